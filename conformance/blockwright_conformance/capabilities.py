"""An adapter's declaration of its engine, and the judgement of findings against known deviations.

An engine need not do everything, nor show everything: `Capabilities` declares its abilities, and a scope that needs
more is left out with the reason. A `Deviation` records a known difference from the specification. The list is strict
both ways: a finding that no deviation names is a violation, and a deviation that no finding shows is out of date.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities and observations of a manager; the names are those of the scopes and observations of its part.

    Attributes:
        kinds: layers, tiers or trees that it knows, by name ("full", "sliding", "lru", ...).
        calls: optional calls that it answers. `kv_cache.fitting.NAMES` has the names of a KV-cache manager.
        features: options of a configuration that it understands ("caching", "eagle", "groups", "block sizes", ...).
        shows: fields of its part's `Observation` that it fills; the others are not compared.
        absent: the reason for each of these that it lacks: shown beside the scopes that were left out.
    """

    kinds: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    shows: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)

    def lacks(self, needs: "Capabilities") -> list[str]:
        """Name the abilities that a scope needs and this manager lacks, with the reason if one is given.

        >>> Capabilities(kinds=frozenset({"full"})).lacks(Capabilities(kinds=frozenset({"full", "mamba"})))
        ['kind mamba']
        """
        return [
            f"{what} {name}" + (f": {self.absent[name]}" if name in self.absent else "")
            for what in ("kind", "call", "feature")
            for name in sorted(getattr(needs, f"{what}s") - getattr(self, f"{what}s"))
        ]


class Standing(Enum):
    BUG = "wrong by the engine's own word, and confirmed by a script over its own API"
    DOCUMENTED = "the engine says that it does so"
    CHOICE = "left open by what an engine promises; the specification decides otherwise"


@dataclass(frozen=True, slots=True)
class Finding:
    """One way in which a manager differs from a law: the shortest that was found in a scope."""

    law: str
    """The law's id, or REF-0 for an answer or state that is not the specification's."""
    scope: str
    detail: str
    script: str = ""
    """The shortest way to it, as calls of the engine's own API."""
    steps: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Deviation:
    """A known difference: its findings, its kind, and its reason.

    Attributes:
        name: short, in words joined by hyphens; reports and pages refer to it.
        law: the law of the findings.
        pattern: a regular expression that is searched for in "scope: detail".
        standing: what it is.
        reason: one or two sentences.
        reference: the place in the engine's documents, or a thread about it.
        confirm: for a BUG, the script in `adapters/confirm` that shows it.
        bugs: ids of the corpus of known bugs, if it is one of them.
        goes_on: whether the exploration continues from states that show it, because no later step depends on it.
    """

    name: str
    law: str
    pattern: str
    standing: Standing
    reason: str
    reference: str = ""
    confirm: str = ""
    bugs: tuple[str, ...] = ()
    goes_on: bool = False

    def __post_init__(self) -> None:
        if self.standing is Standing.BUG and not self.confirm:
            raise ValueError(f"deviation {self.name}: name the script that confirms the bug (confirm=...)")

    def explains(self, finding: Finding) -> bool:
        return finding.law == self.law and re.search(self.pattern, f"{finding.scope}: {finding.detail}") is not None


class Verdict(NamedTuple):
    known: tuple[tuple[Deviation, tuple[Finding, ...]], ...]
    """Each deviation that showed, with the findings that show it."""
    unlisted: tuple[Finding, ...]
    unseen: tuple[Deviation, ...]
    """Deviations that no finding showed: out of date, and violations too unless only some scopes were run."""


def judge(findings: Iterable[Finding], deviations: Iterable[Deviation]) -> Verdict:
    listed = tuple(deviations)
    shown: dict[str, list[Finding]] = {each.name: [] for each in listed}
    unlisted = []
    for finding in findings:
        name = next((each.name for each in listed if each.explains(finding)), None)
        if name is None:
            unlisted.append(finding)
        else:
            shown[name].append(finding)
    known = tuple((each, tuple(shown[each.name])) for each in listed if shown[each.name])
    return Verdict(known, tuple(unlisted), tuple(each for each in listed if not shown[each.name]))

"""An adapter's declaration of its engine, and the judgement of findings against known deviations.

An engine need not do everything, nor show everything: `Capabilities` declares its abilities, and a scope that needs
more is left out with the reason. A `Deviation` records a known difference from the specification. The list is strict
both ways: a finding that no deviation names is a violation, and a deviation that no finding shows is out of date. It is
kept in a TOML file beside a manager's own tests, a table ``[[deviation]]`` for each (`Deviation` has the keys).
"""

import re
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from .gates import GateResult


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities and observations of a manager; the names are those of the scopes and observations of its part.

    Attributes:
        kinds: layers, tiers or trees that it knows, by name ("full", "sliding", "lru", ...).
        calls: optional calls that it answers. `kv_cache.fitting.NAMES` has the names of a KV-cache manager.
        features: options of a configuration that it understands ("caching", "eagle", "groups", "block sizes", ...).
        shows: fields of its part's `Observation` that it fills; the others are not compared.
        absent: the reason for each of these that it lacks: shown beside the scopes that were left out.
        lengths: the lengths that it takes ("block size", "window", ...), each as a set or a range; others: all.
        ways: what it does otherwise than the specification, which then follows it (`kv_cache.ways`).
        excludes: returns why it does not take a configuration, or "" if it does.
    """

    kinds: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    shows: frozenset[str] = frozenset()
    absent: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, Container[int]] = field(default_factory=dict)
    ways: frozenset[str] = frozenset()
    excludes: Callable[[Any], str] | None = None

    def lacks(self, needs: "Capabilities") -> list[str]:
        """Name the abilities that a scope needs and this manager lacks, with the reason if one is given.

        >>> Capabilities(kinds=frozenset({"full"})).lacks(Capabilities(kinds=frozenset({"full", "mamba"})))
        ['kind mamba']
        """
        missing = [
            (f"{what} {name}", name)
            for what in ("kind", "call", "feature")
            for name in sorted(getattr(needs, f"{what}s") - getattr(self, f"{what}s"))
        ]
        for name, taken in self.lengths.items():
            missing += [(f"{name} {each}", name) for each in needs.lengths.get(name, ()) if each not in taken]  # type: ignore[attr-defined]
        return [words + (f": {self.absent[name]}" if name in self.absent else "") for words, name in missing]


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
        pattern: a regular expression that is searched for in "scope: detail".
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


FIELDS = [each.name for each in fields(Deviation)]
REQUIRED = ("name", "law", "pattern", "standing", "reason")


def expected_of(source: str | Path | Iterable[Deviation]) -> tuple[Deviation, ...]:
    """Return the expected failures of a file, or those given.

    Raises:
        ValueError: the file cannot be read, or has another form; the message gives the place.
    """
    if not isinstance(source, str | Path):
        return tuple(source)
    path = Path(source)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected failures: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected failures: {path} is not TOML: {error}") from error
    if unknown := tables.keys() - {"deviation"}:
        raise ValueError(f"expected failures: {path}: expected tables [[deviation]], not {', '.join(sorted(unknown))}")
    rows = tables.get("deviation", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"expected failures: {path}: write [[deviation]], in double brackets")
    found = tuple([deviation(row, f"{path}, deviation {number}") for number, row in enumerate(rows, 1)])
    if repeated := {each.name for each in found if sum(each.name == other.name for other in found) > 1}:
        raise ValueError(f"expected failures: {path}: two deviations are named {', '.join(sorted(repeated))}")
    return found


def deviation(row: dict[str, Any], where: str) -> Deviation:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if missing := [name for name in REQUIRED if not values.get(name)]:
        raise ValueError(f"expected failures: {where}: {', '.join(missing)} missing")
    if unknown := values.keys() - set(FIELDS):
        raise ValueError(
            f"expected failures: {where}: unknown {', '.join(sorted(unknown))}; known are {', '.join(FIELDS)}"
        )
    standings = {each.name.lower(): each for each in Standing}
    if values["standing"] not in standings:
        raise ValueError(f"expected failures: {where}: standing: expected one of {', '.join(standings)}")
    try:
        re.compile(values["pattern"])
        return Deviation(**{**values, "standing": standings[values["standing"]]})
    except (TypeError, ValueError, re.error) as error:
        raise ValueError(f"expected failures: {where}: {error}") from error


def findings(rows: Iterable[GateResult]) -> list[Finding]:
    return [Finding(row.law, row.scope, row.detail, row.script) for row in rows if row.violations]


def judged(rows: list[GateResult], deviations: tuple[Deviation, ...], is_whole: bool) -> list[GateResult]:
    """Judge the rows of a report: expected failures count no more, and a deviation that none shows counts.

    `is_whole`: everything was run, so that a deviation that did not show is out of date.
    """
    verdict = judge(findings(rows), deviations)
    names = {(one.law, one.scope, one.detail): each for each, findings in verdict.known for one in findings}
    results = []
    for row in rows:
        known = names.get((row.law, row.scope, row.detail)) if row.violations else None
        detail = f"expected, {known.name}: {known.reason}" if known else ""
        results.append(replace(row, violations=0, law="", detail=detail, script="") if known else row)
    return results + [outdated(each) for each in verdict.unseen if is_whole]


def outdated(known: Deviation) -> GateResult:
    detail = f"{known.name} did not show: take it off the list of expected failures"
    return GateResult("expected", known.name, "", 0, 0, 1, 0.0, "XPASS-1", detail)


def said(verdict: Verdict, is_whole: bool) -> str:
    lines = [f"{each.scope}: {each.law}: {each.detail}" for each in verdict.unlisted]
    if verdict.unlisted:
        shortest = min(verdict.unlisted, key=lambda each: each.script.count("\n"))
        lines += ["", f"the shortest of them, {shortest.scope}:", shortest.script]
    if is_whole:
        lines += [f"expected failure {each.name} did not show: take it off the list" for each in verdict.unseen]
    return "\n".join(lines)

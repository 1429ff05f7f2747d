"""Managers of other makes: whether a factory can be used, which gates test them, and which scopes are left out.

A manager that is not run is not tested: a report in which nothing was run is a failure, and names the missing
abilities.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from .capabilities import Capabilities
from .gates import GateResult, Profile, factory_of
from .kv_cache.fitting import capabilities_of, fitted, fitting, lacking, needs_of
from .kv_cache.scopes import FOR_OTHERS, Scope, kind_and_lengths, large_scopes

THEIR_GATES: Final = ("lockstep", "machine")
"""The gates that run the manager that `--impl` names; all others are about Blockwright's own code."""

MEMBERS: Final = (
    *("errors", "stale", "follows_policy"),
    *("copy", "send", "forget", "find", "allocate", "append", "free", "observe", "check"),
)


def unusable(profile: Profile) -> str:
    factory: Any = factory_of(profile.implementation)
    try:
        can = capabilities_of(factory)
    except ValueError as error:
        return str(error)
    scopes = fitting(FOR_OTHERS[profile.name], can)
    if not scopes:
        return ""
    try:
        manager = factory(scopes[0].config)
    except Exception as error:
        return f"the factory raised {type(error).__name__} when it was called with a Config: {error}"
    missing = [name for name in MEMBERS if not hasattr(manager, name)]
    if missing:
        return (
            f"the factory returned {type(manager).__name__!r}, which has no {', '.join(missing)} (see ManagerAdapter)"
        )
    return ""


def lacks(scopes: Iterable[Scope], can: Capabilities | None) -> dict[str, list[str]]:
    return {each.name: words for each in scopes if (words := lacking(fitted(each, can), can))}


def asked(names: Sequence[str], profile: Profile) -> list[Scope]:
    scopes = {"lockstep": FOR_OTHERS[profile.name], "machine": large_scopes()}
    return [each for name in names for each in scopes[name] if profile.scope in each.name]


def none_fits(scopes: Iterable[Scope], can: Capabilities | None) -> str:
    left = lacks(scopes, can)
    nearest = min(left, key=lambda name: len(left[name]))
    return f"the manager declares too little; the nearest scope, {nearest!r}, needs {', '.join(left[nearest])}"


class Met(NamedTuple):
    """How often the scopes that were run met one declared ability of a manager."""

    name: str
    scopes: int
    how: str = ""
    """Of a kind: its block sizes, its lengths beside them, and whether it was alone or beside other groups."""
    missing: str = ""
    """What a bug could hide in, since it was not met."""


OWN_LENGTH: Final = {"sliding": "window", "sinks": "window", "chunked": "chunk"}
"""The length that decides what a layer of a kind keeps."""

PLACES: Final = ("below", "at", "above")
"""Where a length may lie beside a block; a chunk is never below a block, which would hold parts of two."""


def met(scopes: Sequence[Scope], can: Capabilities) -> list[Met]:
    needs = [needs_of(each) for each in scopes]
    rows = [kind_met(kind, scopes, "groups" in can.features) for kind in sorted(can.kinds)]
    for what in ("call", "feature"):
        for name in sorted(getattr(can, f"{what}s")):
            count = sum(name in getattr(each, f"{what}s") for each in needs)
            rows.append(Met(f"{what} {name}", count, "", "" if count else "never met"))
    return rows


def kind_met(kind: str, scopes: Sequence[Scope], groups: bool) -> Met:
    sizes, places, company = set(), set(), set()
    for each in scopes:
        for group in each.config.groups:
            name, lengths = kind_and_lengths(group.kind)
            if name == kind:
                own, size = lengths.get(OWN_LENGTH.get(kind, ""), 0), group.block_size
                sizes.add(size)
                places.add(PLACES[1 + (own > size) - (own < size)])
                company.add("alone" if len(each.config.groups) == 1 else "with other groups")
    count = sum(kind in needs_of(each).kinds for each in scopes)
    if not count:
        return Met(f"kind {kind}", 0, "", "never met")
    how, missing = [f"blocks of {', '.join(map(str, sorted(sizes)))}"], ["at one block size only"] * (len(sizes) == 1)
    if length := OWN_LENGTH.get(kind):
        how.append(f"{length} {', '.join(each for each in PLACES if each in places)} a block")
        missing += [f"no {length} {each} a block" for each in PLACES[kind == "chunked" :] if each not in places]
    how.append(", ".join(sorted(company)))
    wanted = ("with other groups",) if kind == "cross" else ("alone", "with other groups")[: 1 + groups]
    missing += [f"never {each}" for each in wanted if each not in company]
    return Met(f"kind {kind}", count, "; ".join(how), "; ".join(missing))


def not_run(names: Sequence[str], profile: Profile, rows: Iterable[GateResult], whole: bool) -> list[GateResult]:
    """Return rows that fail: no scope was run, or, in a whole run, something that is declared was met in none."""
    can = capabilities_of(factory_of(profile.implementation))
    if not any(row.kind == "lockstep" or "lockstep" not in names for row in rows):
        detail = f"no scope was run: {none_fits(asked(names, profile), can)}"
        return [GateResult(names[0], "none", "none", 0, 0, 1, 0.0, "SEEN-1", detail)]
    if can is None or not whole:
        return []
    never = [each.name for each in met(fitting(asked(names, profile), can), can) if not each.scopes]
    detail = f"declared, and met in no scope of profile {profile.name}: {', '.join(never)}"
    return [GateResult("lockstep", "declared", "all", 0, 0, 1, 0.0, "SEEN-1", detail)] if never else []


def reasons(left: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    counts = Counter(word for words in left.values() for word in words)
    alone = Counter(words[0] for words in left.values() if len(words) == 1)
    return [(word, f"{count:,}", f"{alone[word]:,}") for word, count in counts.most_common()]

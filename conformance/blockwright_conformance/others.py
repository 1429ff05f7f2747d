"""Managers of other makes: whether a factory can be used, which gates they are put through, and what is left out.

A manager that is not run is not tested: a report in which nothing was run is a failure, and says what was missing.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .capabilities import Capabilities
from .gates import GateResult, Profile, factory_of
from .kv_cache.fitting import capabilities_of, fitted, lacking
from .kv_cache.scopes import FOR_OTHERS, Scope, large_scopes

THEIR_GATES: Final = ("lockstep", "machine")
"""The gates that run the manager that `--impl` names; all others are about Blockwright's own code."""

MEMBERS: Final = (
    *("errors", "stale", "follows_policy"),
    *("copy", "send", "forget", "find", "allocate", "append", "free", "observe", "check"),
)
"""What every adapter has, whatever its manager can do."""


def unusable(profile: Profile) -> str:
    """Return why the factory of a profile cannot be used; nothing if it can be, or if no scope is to be run on it."""
    factory: Any = factory_of(profile.implementation)
    try:
        can = capabilities_of(factory)
    except ValueError as error:
        return str(error)
    scope = next((each for each in FOR_OTHERS[profile.name] if not lacking(each, can)), None)
    if scope is None:
        return ""
    try:
        manager = factory(scope.config)
    except Exception as error:
        return f"the factory raised {type(error).__name__} when it was called with a Config: {error}"
    missing = [name for name in MEMBERS if not hasattr(manager, name)]
    if missing:
        return (
            f"the factory returned {type(manager).__name__!r}, which has no {', '.join(missing)} (see ManagerAdapter)"
        )
    return ""


def left_out(names: Sequence[str], profile: Profile) -> dict[str, list[str]]:
    """Return the scopes that some gates leave out, each with what it needs and the manager does not declare."""
    can = capabilities_of(factory_of(profile.implementation))
    scopes: dict[str, Iterable[Scope]] = {
        "lockstep": FOR_OTHERS[profile.name],
        "machine": [fitted(each, can) for each in large_scopes()],
    }
    asked = [each for name in names for each in scopes[name] if profile.scope in each.name]
    return {each.name: words for each in asked if (words := lacking(each, can))}


def none_fits(scopes: Iterable[Scope], can: Capabilities | None) -> str:
    """Return why none of some scopes (at least one) can be run, and which of them lacks least."""
    lacks = {each.name: lacking(each, can) for each in scopes}
    nearest = min(lacks, key=lambda name: len(lacks[name]))
    words = ", ".join(lacks[nearest])
    return f"the manager declares too little; the nearest scope, {nearest!r}, needs {words}"


def not_run(names: Sequence[str], profile: Profile, rows: Iterable[GateResult]) -> list[GateResult]:
    """Return a row that fails if no scope was run: none in lock-step, or by other gates where it was not asked for."""
    if any(row.kind == "lockstep" or "lockstep" not in names for row in rows):
        return []
    scopes = FOR_OTHERS[profile.name] if "lockstep" in names else large_scopes()
    can = capabilities_of(factory_of(profile.implementation))
    detail = f"no scope was run: {none_fits([each for each in scopes if profile.scope in each.name], can)}"
    return [GateResult(names[0], "none", "none", 0, 0, 1, 0.0, "SEEN-1", detail)]


def reasons(left: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    """Return for everything that was lacking how many scopes it kept from being run, and how many it alone did."""
    counts = Counter(word for words in left.values() for word in words)
    alone = Counter(words[0] for words in left.values() if len(words) == 1)
    return [(word, f"{count:,}", f"{alone[word]:,}") for word, count in counts.most_common()]

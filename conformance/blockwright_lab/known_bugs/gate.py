"""Known bugs: real bugs of other managers, put back one at a time, must each be caught by the law named for it.

Every known bug is a variant of the implementation. Its place is explored breadth-first in lock-step, so that the first
fault is a shortest one; the broken laws are diagnosed, and the law that the bug names must be among them. A bug that is
not caught, or caught by other laws only, is a violation; so is one that runs on and on, and one whose changes do not
fit the sources any more. Every bug of the corpus must be caught, or listed as not possible here.

A place in which the unchanged implementation fails as well would prove nothing: the gate `places` explores all of them,
which takes ten times as long, by night.

The gate `hunts` has the state machine look for some of the bugs, for some seconds, where lock-step finds them.

Variants are uncompiled, whatever build the process runs.
"""

import time
from dataclasses import replace
from typing import Any

from blockwright_conformance.checker import explore
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.gate import hunted
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.rows import Listed

from .bugs import BUGS, BY_ID, CORPUS, NOT_POSSIBLE
from .changes import Change
from .known_bug import KnownBug, Place, Seen, TrialPlace
from .variants import variant
from .watch import LOADING, OutOfTimeError, rearm, watch
from .worlds import adapter_on

KIND = "known-bugs"
CORE, FAILED = "uncompiled core", "KNOWN-0"
HUNTED, EVERY, OFTEN = 30.0, 7, 5 / 6
"""Seconds for which the machine looks for a bug, of how many bugs it looks for one, and the part that it must find."""


def named(bug: KnownBug) -> str:
    return f"{bug.id} {bug.title}"


def summed(kind: str, places: list[GateResult]) -> list[GateResult]:
    sane = [row for row in places if not row.violations]
    sums = (sum(row.states for row in sane), sum(row.transitions for row in sane), 0, sum(row.seconds for row in sane))
    one = [GateResult(kind, f"unchanged, in {len(sane)} places", CORE, *sums)] if sane else []
    return one + [row for row in places if row.violations]


def corpus(rows: list[GateResult]) -> GateResult:
    """Return the row that fails if a bug of the corpus is neither caught in these rows nor impossible here."""
    caught = {row.scope[:3] for row in rows if not row.violations}
    missing = [f"{name} is not caught" for name in CORPUS if name not in caught | NOT_POSSIBLE.keys()]
    scope = f"the corpus: {len(caught.intersection(CORPUS))} bugs caught, {len(NOT_POSSIBLE)} not possible"
    return GateResult(KIND, scope, "all", 0, 0, len(missing), 0.0, "KNOWN-1" if missing else "", "; ".join(missing))


def sane(name: str, profile: Profile) -> GateResult:
    place, started = PLACES[name], time.perf_counter()
    seen = seen_in(place, (), judged=True)
    law = next(iter(seen.laws), "")
    row = row_from(f"unchanged: {place.title}", seen, time.perf_counter() - started)
    return replace(row, kind="places", law=law, detail=seen.detail, violations=int(bool(law)))


def shown(name: str, profile: Profile) -> GateResult:
    """Put one bug back and see which laws are broken after the shortest way to any fault."""
    bug, started = BY_ID[name.partition(" ")[0]], time.perf_counter()
    seen = seen_in(bug.place, bug.changes, judged=False)
    detail = seen.detail if FAILED in seen.laws else verdict(bug, seen.laws, seen.length)
    caught = int(bug.law in seen.laws)
    row = row_from(named(bug), seen, time.perf_counter() - started)
    return replace(row, law=bug.law, detail=detail, violations=1 - caught, tried=1, passed=caught)


def found(name: str, profile: Profile) -> GateResult:
    place: Any = (bug := BY_ID[name.partition(" ")[0]]).place
    row = hunted(place.scope, adapter_on(variant(*bug.changes), place.adapter), HUNTED)
    return replace(row, kind="hunts", scope=name, law="", violations=0, tried=1, passed=row.violations)


def often(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    low = sum(row.passed for row in rows) < OFTEN * len(rows)
    return [*rows, GateResult("hunts", "five of six are found", CORE, 0, 0, int(low), 0.0, "KNOWN-1" * low)]


def seen_in(place: Place | TrialPlace, changes: tuple[Change, ...], judged: bool) -> Seen:
    try:
        with explore.collector_resting(), watch():  # what the collector has to do at the end is no action
            rearm(LOADING)
            package = variant(*changes)
            rearm()
            return place.look(package, judged)
    except OutOfTimeError:
        return Seen((FAILED,), 0, "runs on and on: one action took longer than it may")
    except Exception as error:
        return Seen((FAILED,), 0, f"{type(error).__name__}: {error}")


def row_from(scope: str, seen: Seen, seconds: float) -> GateResult:
    return GateResult(KIND, scope, CORE, seen.states, seen.transitions, 0, seconds, script=seen.script)


def verdict(bug: KnownBug, laws: tuple[str, ...], length: int) -> str:
    others = ", ".join(law for law in laws if law != bug.law)
    when = f"after {length} call{'s' * (length > 1)}" if length else "before any call"
    if bug.law in laws:
        return f"caught by {bug.law} {when}" + (f" (also {others})" if others else "")
    if laws:
        return f"{bug.law} was to catch it; {when} only {others} did"
    return f"not caught: {bug.law} was to be broken in {bug.place.title}"


PLACES = {f"{place.title}, place {at}": place for at, place in enumerate(dict.fromkeys(bug.place for bug in BUGS))}

GATE = Listed([named(bug) for bug in BUGS], shown, lambda rows, profile: [*rows, corpus(rows)])
UNCHANGED = Listed(PLACES, sane, lambda rows, profile: summed("places", rows))
MACHINES = [named(bug) for bug in BUGS if isinstance(getattr(bug.place, "scope", None), Scope)]
HUNTS = Listed(MACHINES[::EVERY], found, often)

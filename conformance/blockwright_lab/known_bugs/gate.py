"""The museum: real bugs of other managers, put back one at a time, must each be caught by the law named for it.

Every exhibit is a variant of the implementation. Its place is explored breadth-first in lock-step, so that the first
fault is a shortest one; what is broken there is diagnosed, and the law that the exhibit names must be among it. An
exhibit that is not caught, or caught by other laws only, is a violation; so is one that runs on and on, and one whose
patches do not fit the sources any more. So is a fault that the implementation itself, loaded in the same way, shows in
any of the places: what fails always says nothing.

Variants are uncompiled, whatever build the process runs.
"""

import inspect
import time
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from blockwright._terminal import Advance
from blockwright_conformance.checker import counterexample, explore
from blockwright_conformance.checker import diagnose as diagnosis
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.checker.world import World
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.world import KVCacheWorld, explorer
from blockwright_spec.manager.laws import LAWS

from .blocks import BLOCKS
from .corpus import owed
from .demand import DEMAND
from .forks import FORKS
from .instrumented import adapter_on
from .known_bug import Exhibit, Place, Where, WorldPlace
from .offload import OFFLOAD
from .prefixes import PREFIXES
from .tables import TABLES
from .tables_paged import PAGED
from .tiers import TIERS
from .time_ import TIME
from .variants import variant
from .watch import LOADING, Limited, OutOfTimeError, rearm, watch
from .worlds import world_on

EXHIBITS: tuple[Exhibit, ...] = (*BLOCKS, *DEMAND, *TABLES, *PREFIXES, *TIME, *FORKS, *PAGED, *TIERS, *OFFLOAD)
"""All of them, in the order of the rooms."""

NOT_POSSIBLE: dict[str, str] = {
    "B10": "No call copies a block at lookup: a hit is whole blocks, and its last partial block is computed again.",
    "B11": "Nothing is pinned by its prefix: what is held is held by its block id.",
    "B15": "Publication takes no block and evicts none, so nothing can come in between.",
    "B16": "The index is flat: a published block stands under its whole prefix and hangs on no other block.",
    "B30": "Each group has a table of its own; no map leads from one group's slots to another's.",
    "B38": "States are published wherever a step stopped at a block's end; none is chosen to be kept for EAGLE.",
    "B43": "Only full blocks are published: there is no partial key to be registered again.",
}
"""Bugs of the corpus that have no place here, each with the reason: what they broke does not exist."""

PLACES: tuple[Where, ...] = tuple(dict.fromkeys(exhibit.where for exhibit in EXHIBITS))
"""Where they are looked at."""

CORE = "uncompiled core"


def names_of(profile: Profile) -> list[str]:
    """Give the names of what the profile looks at: places and exhibits."""
    if not profile.is_ours:
        return []
    places = {f"place {number}": title_of(place) for number, place in enumerate(PLACES)}
    titles = places | {exhibit.id: f"{exhibit.id} {exhibit.title}" for exhibit in EXHIBITS}
    return [name for name, title in titles.items() if profile.scope in title]


def size(profile: Profile) -> int:
    """Count them."""
    return len(names_of(profile))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Look at the implementation itself in every place, and at every exhibit."""
    names = names_of(profile)
    rows: dict[int, GateResult] = {}
    for index, row in in_parallel(row_of, [(name,) for name in names], profile.jobs):
        rows[index] = row
        progress(1, row.scope)
    ordered = [rows[index] for index in range(len(names))]
    places = [row for row, name in zip(ordered, names, strict=True) if name.startswith("place ")]
    bugs = [row for row in ordered if row not in places]
    whole = [owed(bugs, EXHIBITS, NOT_POSSIBLE)] if profile.is_ours and not profile.scope else []
    return [*summed(places), *bugs, *whole]


def summed(places: list[GateResult]) -> list[GateResult]:
    """Give one row for the places in which nothing is broken, as it should be, and those where something is."""
    sane = [row for row in places if not row.violations]
    sums = (sum(row.states for row in sane), sum(row.transitions for row in sane), 0, sum(row.seconds for row in sane))
    one = [GateResult("museum", f"unchanged, in {len(sane)} places", CORE, *sums)] if sane else []
    return one + [row for row in places if row.violations]


def row_of(name: str) -> GateResult:
    """Give the row of a place or an exhibit, by its name."""
    if name.startswith("place "):
        return sane(PLACES[int(name.removeprefix("place "))])
    return shown(next(exhibit for exhibit in EXHIBITS if exhibit.id == name))


def title_of(where: Where) -> str:
    """Give the name of a place."""
    return where.scope.name if isinstance(where, Place | WorldPlace) else f"trial of {where.__name__}"


def sane(where: Where) -> GateResult:
    """Look at the implementation itself, unchanged: nothing may be broken."""
    started = time.perf_counter()
    row = GateResult("museum", f"unchanged: {title_of(where)}", CORE, 0, 0, 0, 0.0)
    try:
        with explore.collector_resting(), watch():  # what it has to do at the end is no action
            rearm(LOADING)
            package = variant()
            rearm()
            seen = looked_at(where, package, True)
    except (Exception, OutOfTimeError) as error:
        seen = Seen(("MUSEUM-0",), 0, told_of(error))
    return replace(
        row,
        states=seen.states,
        transitions=seen.transitions,
        violations=int(bool(seen.laws)),
        seconds=time.perf_counter() - started,
        law=next(iter(seen.laws), ""),
        detail=seen.detail,
        script=trace(where, seen),
    )


def shown(exhibit: Exhibit) -> GateResult:
    """Put one bug back and see which laws are broken after the shortest way to any fault."""
    started, where = time.perf_counter(), exhibit.where
    try:
        with explore.collector_resting(), watch():  # what it has to do at the end is no action
            rearm(LOADING)
            package = variant(*exhibit.patches)
            rearm()
            seen = looked_at(where, package, False)
            if seen.laws and not callable(where):
                seen = replace(seen, laws=diagnosed(where, package, seen.actions))
            detail = verdict(exhibit, seen.laws, seen.length)
    except (Exception, OutOfTimeError) as error:
        seen = Seen()
        detail = told_of(error)
    caught = exhibit.law in seen.laws
    return GateResult(
        kind="museum",
        scope=f"{exhibit.id} {exhibit.title}",
        manager=CORE,
        states=seen.states,
        transitions=seen.transitions,
        violations=int(not caught),
        seconds=time.perf_counter() - started,
        law=exhibit.law,
        detail=detail,
        script=trace(where, seen),
        tried=1,
        passed=int(caught),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen in a place: the laws broken there, after how many calls, and how far one had to look."""

    laws: tuple[str, ...] = ()
    length: int = 0
    detail: str = ""
    states: int = 0
    transitions: int = 0
    actions: tuple[Any, ...] = ()
    calls: str = ""


def looked_at(where: Where, package: ModuleType, judged: bool) -> Seen:
    """Look at a copy of the implementation in a place, up to the first fault; the specification is `judged` as well."""
    if isinstance(where, Place):
        result = explorer(where.scope, factory_on(package, where), LAWS if judged else ()).run()
    elif isinstance(where, WorldPlace):
        result = explore.Explorer(world_on(where.scope, package), laws=judged).run()
    else:
        rearm()
        faults = list(where(package))
        length = max((fault.length for fault in faults), default=0)
        detail, calls = next(((fault.detail, fault.calls) for fault in faults), ("", ""))
        return Seen(tuple(fault.law for fault in faults), length, detail, calls=calls)
    if result.violation is None:
        return Seen(states=result.states, transitions=result.transitions)
    law, detail, actions = result.violation.law, result.violation.detail, result.violation.actions
    return Seen((law,), len(actions), detail, result.states, result.transitions, actions)


def factory_on(package: ModuleType, where: Place) -> type[BlockwrightAdapter]:
    """Give the adapter of a place on a copy of the implementation, under the watch."""
    base = adapter_on(package, where.adapter)
    return type(base.__name__, (Limited, base), {})


def diagnosed(where: Place | WorldPlace, package: ModuleType, actions: tuple[Any, ...]) -> tuple[str, ...]:
    """Give the laws that are broken at the end of some actions."""
    rearm()
    world: World[Any, Any] = (
        world_on(where.scope, package)
        if isinstance(where, WorldPlace)
        else KVCacheWorld(where.scope, factory_on(package, where))
    )
    return diagnosis.diagnose(world, actions).laws


def trace(where: Where, seen: Seen) -> str:
    """Give the way to a fault as calls; that of a trial which does not tell them is its own text."""
    if not seen.laws:
        return ""
    if callable(where):
        return f"{(seen.calls or inspect.getsource(where)).rstrip()}\n# {seen.detail}"
    if isinstance(where, WorldPlace):
        return counterexample.script(world_on(where.scope), seen.actions, seen.detail)
    return counterexample.script(KVCacheWorld(where.scope), seen.actions, seen.detail)


def told_of(error: BaseException) -> str:
    """Say that an exhibit, or the implementation itself, could not be looked at to the end."""
    if isinstance(error, OutOfTimeError):
        return "runs on and on: one action took longer than it may"
    return f"{type(error).__name__}: {error}"


def verdict(exhibit: Exhibit, laws: tuple[str, ...], length: int) -> str:
    """Say by what an exhibit was caught."""
    others = ", ".join(law for law in laws if law != exhibit.law)
    when = f"after {length} call{'s' * (length > 1)}" if length else "before any call"
    if exhibit.law in laws:
        return f"caught by {exhibit.law} {when}" + (f" (also {others})" if others else "")
    if laws:
        return f"{exhibit.law} was to catch it; {when} only {others} did"
    return f"not caught: {exhibit.law} was to be broken in {title_of(exhibit.where)}"

"""Gate 4, the museum: real bugs of other managers, put back one at a time, must each be caught by the law named for it.

Every exhibit is a variant of the implementation. Its place is explored breadth-first in lock-step, so that the first
fault is a shortest one; what is broken there is diagnosed, and the law that the exhibit names must be among it. An
exhibit that is not caught, or caught by other laws only, is a violation. So is a fault that the implementation itself,
loaded in the same way, shows in any of the places: what fails always says nothing.

Variants are uncompiled, whatever build the process runs.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from blockwright._terminal import Advance

from .diagnosis import diagnose
from .exhibit import Exhibit, Place, Trial
from .exhibits_blocks import BLOCKS
from .exhibits_prefixes import PREFIXES
from .exhibits_tables import TABLES
from .explore import Explorer
from .gates import GateResult, Profile
from .trace import script
from .variants import variant
from .watched import adapter_on

EXHIBITS: tuple[Exhibit, ...] = (*BLOCKS, *TABLES, *PREFIXES)
"""All of them, in the order of the rooms."""

PLACES: tuple[Place | Trial, ...] = tuple(dict.fromkeys(exhibit.where for exhibit in EXHIBITS))
"""Where they are looked at."""

CORE = "uncompiled core"


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Look at the implementation itself in every place, and then at every exhibit."""
    if not profile.is_ours:
        return []
    names = [f"place {number}" for number in range(len(PLACES))] + [exhibit.id for exhibit in EXHIBITS]
    rows = []
    with ProcessPoolExecutor(profile.jobs, mp_context=get_context("spawn")) as pool:
        for row in pool.map(row_of, names):
            progress(1, row.scope)
            rows.append(row)
    return [row for row in rows if profile.scope in row.scope]


def row_of(name: str) -> GateResult:
    """Give the row of a place or an exhibit, by its name."""
    if name.startswith("place "):
        return sane(PLACES[int(name.removeprefix("place "))])
    return shown(next(exhibit for exhibit in EXHIBITS if exhibit.id == name))


def title_of(where: Place | Trial) -> str:
    """Give the name of a place."""
    return where.scope.name if isinstance(where, Place) else f"trial of {where.__name__}"


def sane(where: Place | Trial) -> GateResult:
    """Look at the implementation itself, unchanged: nothing may be broken."""
    started = time.perf_counter()
    row = GateResult("museum", f"unchanged: {title_of(where)}", CORE, 0, 0, 0, 0.0)
    if isinstance(where, Place):
        result = Explorer(where.scope, adapter_on(variant(), where.adapter)).run()
        states, transitions, fault = result.states, result.transitions, result.violation
        actions = script(where.scope.config, where.scope.slots, fault.actions, fault.detail) if fault else ""
        law, detail = (fault.law, fault.detail) if fault else ("", "")
    else:
        states, transitions, actions = 0, 0, ""
        law, detail, _ = next(where(variant()), ("", "", 0))
    seconds = time.perf_counter() - started
    return GateResult(row.kind, row.scope, CORE, states, transitions, int(bool(law)), seconds, law, detail, actions)


def shown(exhibit: Exhibit) -> GateResult:
    """Put one bug back and see which laws are broken after the shortest way to any fault."""
    started = time.perf_counter()
    package, where = variant(*exhibit.patches), exhibit.where
    states = transitions = length = 0
    actions = ""
    if isinstance(where, Place):
        factory = adapter_on(package, where.adapter)
        result = Explorer(where.scope, factory, laws=()).run()
        states, transitions = result.states, result.transitions
        laws: tuple[str, ...] = ()
        if result.violation is not None:
            path = result.violation.actions
            laws, length = diagnose(where.scope, factory, path).laws, len(path)
            actions = script(where.scope.config, where.scope.slots, path, result.violation.detail)
    else:
        faults = list(where(package))
        laws, length = tuple(fault.law for fault in faults), max((fault.length for fault in faults), default=0)
    caught = exhibit.law in laws
    return GateResult(
        kind="museum",
        scope=f"{exhibit.id} {exhibit.title}",
        manager=CORE,
        states=states,
        transitions=transitions,
        violations=int(not caught),
        seconds=time.perf_counter() - started,
        law=exhibit.law,
        detail=verdict(exhibit, laws, length),
        script="" if caught else actions,
    )


def verdict(exhibit: Exhibit, laws: tuple[str, ...], length: int) -> str:
    """Say by what an exhibit was caught."""
    others = ", ".join(law for law in laws if law != exhibit.law)
    when = f"after {length} call{'s' * (length > 1)}" if length else "before any call"
    if exhibit.law in laws:
        return f"caught by {exhibit.law} {when}" + (f" (also {others})" if others else "")
    if laws:
        return f"{exhibit.law} was to catch it; {when} only {others} did"
    return f"not caught: {exhibit.law} was to be broken in {title_of(exhibit.where)}"

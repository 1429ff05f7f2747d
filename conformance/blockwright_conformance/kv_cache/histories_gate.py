"""The state machine and the random walk over scopes too large to visit whole."""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import HistoryError, run_machine, walk
from ..checker.parallel import in_parallel
from ..gates import GateResult, Profile, factory_of
from .actions import ACTIONS
from .adapter_calls import way
from .fitting import capabilities_of, walkable
from .scopes import Scope, large_scopes
from .world import Factory, KVCacheWorld


class Length(NamedTuple):
    """How far a profile goes: examples and steps of the state machine, and steps of a walk."""

    examples: int
    steps: int
    walk: int
    seeds: int = 1


LENGTHS = {"quick": Length(2, 20, 100), "pr": Length(15, 40, 600), "nightly": Length(2000, 100, 10_000, 20)}


CALLS = frozenset(kind.__name__ for kind in ACTIONS) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


def size(profile: Profile) -> int:
    """Count the runs."""
    return 2 * len(chosen(profile))


def chosen(profile: Profile) -> list[Scope]:
    """Give the large scopes that are asked for, without the calls that the manager says it does not have."""
    scopes = [each for each in large_scopes() if profile.scope in each.name]
    return scopes if profile.is_ours else walkable(scopes, capabilities_of(factory_of(profile.implementation)))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run both for every large scope, in parallel processes."""
    calls = [(task, profile, each) for each in chosen(profile) for task in (machine, walks)]
    rows: dict[int, GateResult] = {}
    for index, result in in_parallel(apply, calls, profile.jobs):
        rows[index] = result
        progress(1, result.scope)
    return [rows[index] for index in sorted(rows)]


def apply(task: Callable[[Profile, Scope], GateResult], profile: Profile, scope: Scope) -> GateResult:
    """Run one of the two for one scope."""
    return task(profile, scope)


def machine(profile: Profile, scope: Scope) -> GateResult:
    """Run the state machine of a scope."""
    length, fixed = LENGTHS[profile.name], profile.name != "nightly"
    world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
    return row("machine", scope, world.factory, lambda: run_machine(world, length.examples, length.steps, fixed))


def walks(profile: Profile, scope: Scope) -> GateResult:
    """Take random walks through a scope."""
    length, fired = LENGTHS[profile.name], Counter[str]()
    world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)

    def taken() -> Counter[str]:
        for seed in range(length.seeds):
            fired.update(walk(world, seed, length.walk).fired)
        return fired

    return row("walk", scope, world.factory, taken)


def row(kind: str, scope: Scope, factory: Factory, histories: Callable[[], Counter[str]]) -> GateResult:
    """Give the row of a run: what happened, and the history of a violation."""
    started, fired, law, detail, trace = time.perf_counter(), Counter[str](), "", "", ""
    try:
        fired = histories()
    except HistoryError as error:
        found = error.violation
        law, detail = found.law, found.detail
        trace = way(scope, factory, found.actions, f"{law}: {detail}")
    return GateResult(
        kind=kind,
        scope=scope.name,
        manager=scope.name.partition(",")[0],
        states=0,
        transitions=sum(count for name, count in fired.items() if name in CALLS),
        violations=int(bool(law)),
        seconds=time.perf_counter() - started,
        law=law,
        detail=detail,
        script=trace,
        fired=fired,
    )

"""The state machine and the random walk over scopes too large to visit whole."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import run_machine, walked
from ..checker.parallel import in_parallel
from ..gates import GateResult, Profile, factory_of
from ..rows import ran
from .actions import ACTIONS
from .counterexample.adapter_calls import way
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
    """Return the large scopes that are asked for, without the calls that the manager says it does not have."""
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
    return row("machine", scope, world.factory, [lambda: run_machine(world, length.examples, length.steps, fixed)])


def walks(profile: Profile, scope: Scope) -> GateResult:
    """Take random walks through a scope."""
    length, world = LENGTHS[profile.name], KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
    runs = (partial(walked, world, seed, length.walk) for seed in range(length.seeds))
    return row("walk", scope, world.factory, runs)


def row(kind: str, scope: Scope, factory: Factory, runs: Iterable[Callable[[], Counter[str]]]) -> GateResult:
    """Return the row of some runs: what happened, and the history of a violation."""
    return ran(kind, scope.name, runs, CALLS.__contains__, partial(way, scope, factory))

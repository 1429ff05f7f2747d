"""The state machine over scopes too large to visit whole."""

from collections.abc import Iterable
from functools import partial

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import Run, run_machine
from ..checker.parallel import in_order
from ..gates import GateResult, Profile, factory_of
from ..rows import ran
from .actions import ACTIONS
from .fitting import capabilities_of, fitting
from .scopes import Scope, large_scopes
from .world import KVCacheWorld

LENGTHS = {"quick": (2, 60), "pr": (5, 120), "nightly": (2000, 200)}
"""Per profile: examples of the machine, and the steps of each."""
CALLS = frozenset(kind.__name__ for kind in ACTIONS) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


def size(profile: Profile) -> int:
    return len(chosen(profile))


def chosen(profile: Profile) -> list[Scope]:
    scopes = [each for each in large_scopes() if profile.scope in each.name]
    return scopes if profile.is_ours else fitting(scopes, capabilities_of(factory_of(profile.implementation)))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    calls = [(profile, each) for each in chosen(profile)]
    return in_order(histories, calls, [each.name for _, each in calls], profile.jobs, progress)


def histories(profile: Profile, scope: Scope) -> GateResult:
    world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
    machine = partial(run_machine, world, *LENGTHS[profile.name], profile.name != "nightly")
    return row(world, [machine])


def row(world: KVCacheWorld, runs: Iterable[Run]) -> GateResult:
    return ran("machine", world.scope.name, runs, CALLS.__contains__, world.script)

"""The state machine and the random walk over scopes too large to visit whole."""

from collections.abc import Iterable

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import Run, long_runs
from ..checker.parallel import in_order
from ..gates import GateResult, Profile, factory_of
from ..rows import ran
from .actions import ACTIONS
from .fitting import capabilities_of, fitting
from .scopes import Scope, large_scopes
from .world import KVCacheWorld

LENGTHS = {"quick": (2, 20, 100, 1), "pr": (15, 40, 600, 1), "nightly": (2000, 100, 10_000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""
CALLS = frozenset(kind.__name__ for kind in ACTIONS) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


def size(profile: Profile) -> int:
    """Count the runs."""
    return 2 * len(chosen(profile))


def chosen(profile: Profile) -> list[Scope]:
    """Return the large scopes that are asked for, without the calls that the manager says it does not have."""
    scopes = [each for each in large_scopes() if profile.scope in each.name]
    return scopes if profile.is_ours else fitting(scopes, capabilities_of(factory_of(profile.implementation)))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run both for every large scope, in parallel processes."""
    calls = [(kind, profile, each) for each in chosen(profile) for kind in ("machine", "walk")]
    return in_order(histories, calls, [each.name for _, _, each in calls], profile.jobs, progress)


def histories(kind: str, profile: Profile, scope: Scope) -> GateResult:
    """Run the state machine of a scope, or take its walks."""
    world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
    machine, *walks = long_runs(world, LENGTHS[profile.name], profile.name != "nightly")
    return row(kind, world, [machine] if kind == "machine" else walks)


def row(kind: str, world: KVCacheWorld, runs: Iterable[Run]) -> GateResult:
    """Return the row of some runs: what happened, and the history of a violation."""
    return ran(kind, world.scope.name, runs, CALLS.__contains__, world.script)

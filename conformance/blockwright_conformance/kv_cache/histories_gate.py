"""The state machine over scopes too large to visit whole."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from blockwright._terminal import Advance
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import Run, run_machine
from ..gates import GateResult, Profile, factory_of
from ..rows import Exploration, ran
from .actions import NAMES
from .gate import for_manager
from .scopes import Scope, large_scopes
from .world import KVCacheWorld

LENGTHS = {"quick": (2, 60), "pr": (5, 120), "nightly": (2000, 200)}
"""Per profile: examples of the machine, and the steps of each."""
CALLS = frozenset(NAMES) | frozenset(Reason.__members__)
"""What happens once in each call (a batch may both serve and refuse); the rest of what is counted is particular."""


def row(world: KVCacheWorld, runs: Iterable[Run]) -> GateResult:
    return ran("machine", world.scope.name, runs, CALLS.__contains__, world.script)


class Histories(Exploration):
    """The gate of the state machine, of managers of other makes too."""

    def chosen(self, profile: Profile) -> list[Scope]:
        return for_manager(large_scopes(), profile)

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        return super().run(replace(profile, explorer=None), progress)  # the specification as it reads

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        world = KVCacheWorld(scope, factory_of(profile.implementation), is_long=True)
        return row(world, [partial(run_machine, world, *LENGTHS[profile.name], profile.name != "nightly")])


GATE = Histories(__name__, "machine", "", lambda profile: large_scopes(), KVCacheWorld, frozenset())

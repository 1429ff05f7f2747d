"""The gate of a worker's rows: small scopes explored whole, and long histories of large ones."""

from ..checker.history import long_runs
from ..gates import GateResult, Profile
from ..rows import Exploration, ran
from .scopes import LARGE, PROFILES, WorkerScope
from .world import EVENTS, EVERYTHING, WorkerWorld

LENGTHS = {"quick": (1, 20, 60, 1), "pr": (3, 40, 300, 1), "nightly": (300, 100, 3000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


def scopes(profile: str) -> tuple[WorkerScope, ...]:
    """Return the scopes of a profile, those of long histories last."""
    return (*PROFILES[profile], *LARGE.values())


class WorkerGate(Exploration):
    """Explores the small scopes, and runs the machine and walks of the large ones."""

    def row(self, scope: WorkerScope, profile: Profile) -> GateResult:
        if scope.name not in LARGE:
            return Exploration.row(self, scope, profile)
        world = WorkerWorld(scope)
        runs = long_runs(world, LENGTHS[profile.name], profile.name != "nightly")
        return ran("inputs machine", scope.name, runs, lambda what: what not in EVENTS, world.script)


GATE = WorkerGate(__name__, "worker", "all scopes of inputs", scopes, WorkerWorld, EVERYTHING)
size, run = GATE.size, GATE.run

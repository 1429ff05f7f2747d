"""The gate of a worker's rows: small scopes explored whole, and long histories of large ones."""

from functools import partial

from ..checker.history import run_machine
from ..gates import GateResult, Profile
from ..rows import Exploration, ran
from .scopes import LARGE, PROFILES, WorkerScope
from .world import EVENTS, EVERYTHING, WorkerWorld

LENGTHS = {"quick": (1, 40), "pr": (6, 140), "nightly": (300, 200)}
"""Per profile: examples of the machine, and the steps of each."""


def scopes(profile: str) -> tuple[WorkerScope, ...]:
    """Return the scopes of a profile, those of long histories last."""
    return (*PROFILES[profile], *LARGE.values())


class WorkerGate(Exploration):
    """Explores the small scopes, and runs the machine of the large ones."""

    def row(self, scope: WorkerScope, profile: Profile) -> GateResult:
        if scope.name not in LARGE:
            return Exploration.row(self, scope, profile)
        world = WorkerWorld(scope)
        machine = partial(run_machine, world, *LENGTHS[profile.name], profile.name != "nightly")
        return ran("inputs machine", scope.name, [machine], lambda what: what not in EVENTS, world.script)


GATE = WorkerGate(__name__, "worker", "all scopes of inputs", scopes, WorkerWorld, EVERYTHING)

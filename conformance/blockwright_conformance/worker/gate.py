"""The gate of a worker's rows: small scopes explored whole, and long histories of large ones."""

from functools import partial

from blockwright._terminal import Advance

from ..checker.counterexample import script
from ..checker.history import run_machine, walked
from ..gates import GateResult, Profile
from ..rows import Exploration, ran
from .scopes import LARGE, PROFILES, WorkerScope
from .world import EVENTS, EVERYTHING, WorkerWorld

LENGTHS = {"quick": (1, 20, 60, 1), "pr": (3, 40, 300, 1), "nightly": (300, 100, 3000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


def scopes(profile: str) -> tuple[WorkerScope, ...]:
    """Return the scopes of a profile, those of long histories last."""
    return (*PROFILES[profile], *LARGE.values())


GATE = Exploration("worker", "inputs", scopes, WorkerWorld, EVERYTHING)
size = GATE.size


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the small scopes, and run the machine and walks of the large ones."""
    return GATE.run(profile, progress, task)


def task(name: str, profile: str) -> GateResult:
    """Explore the scope of a name, or run its histories."""
    return histories(name, profile) if name in LARGE else GATE.row(name, profile)


def histories(name: str, profile: str) -> GateResult:
    """Run the machine and the walks of a scope."""
    examples, steps, length, walks = LENGTHS[profile]
    world = WorkerWorld(LARGE[name])
    machine = partial(run_machine, world, examples, steps, profile != "nightly")
    runs = (machine, *(partial(walked, world, seed, length) for seed in range(walks)))
    return ran("inputs machine", name, runs, lambda what: what not in EVENTS, partial(script, world))

"""Trials of what a worker keeps: rows and inputs of a step, in small worlds, against the specification.

The kit's workers and engine are imported once more on the copy of the implementation that is on trial. Each world is
one law's name long: what breaks is told as the law that the engine names.
"""

from collections.abc import Callable, Iterator
from types import ModuleType

from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

from ..data_movement.worker_scopes import world
from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.variants import kit_on
from ..known_bugs.watch import rearm

ON_PACKAGE = (
    "blockwright_conformance.kv_cache.blockwright",
    "blockwright_lab.data_movement.worker",
    "blockwright_lab.data_movement.wrong_calls",
    "blockwright_lab.data_movement.worker_engine",
    "blockwright_lab.data_movement.worker_histories",
)
"""What of the kit stands on the package, in the order of its imports."""

SMALL: dict[str, object] = {"slots": 3, "prompts": tuple((0, (0,) * count) for count in (1, 3, 6))}
WALK = 60
"""Steps of a walk."""
GROUPS: dict[str, tuple[tuple[Kind, int], ...]] = {
    "windows": ((Full(), 2), (Sliding(3), 1)),
    "states": ((Chunked(4), 2), (Mamba(1), 2)),
    "encoder": ((Full(), 2), (Cross(), 2)),
}


def walk_in(world: Scope, seed: int) -> Trial:
    """Give the trial that walks through a world."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        *_, histories = kit_on(package, *ON_PACKAGE)
        rearm()
        walk: Callable[..., object] = histories.inputs_walk
        walk(world, seed, WALK)
        yield from ()

    trial.__name__ = f"rows and inputs: {world.name}, walk {seed}"
    trial.needs = ("torch", "hypothesis.stateful")  # type: ignore[attr-defined]
    return trial


WORLDS: tuple[Scope, ...] = (
    world(GROUPS["windows"], "windows", 20, **SMALL),
    world(GROUPS["windows"], "windows, in flight", 26, in_flight=2, settles=True, **SMALL),
    world(GROUPS["states"], "states", 22, **SMALL | {"drafts": 1}),
    world(GROUPS["encoder"], "encoder", 20, encoder=3, caching=False, **SMALL),
)
WALKS: tuple[Trial, ...] = tuple(walk_in(world, seed) for world in WORLDS for seed in range(3))

"""Trials of the block manager as mutants need them: short random walks of small worlds, in lock-step.

As the histories of the gate, with pools so small that most operations are refused now and then; deterministic.
"""

from collections.abc import Iterator
from types import ModuleType

from ..data_movement.tables_scopes import World
from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import rearm

STEPS = 150

WORLDS: dict[str, World] = {
    "naive": World(2, 10, 6, False, slots=5, max_tokens=12, watermark=0.1),
    "caching": World(2, 10, 6, True, slots=5, max_tokens=12, watermark=0.1),
    "naive under a window": World(2, 9, 6, False, 3, slots=4, max_tokens=16, watermark=0.2),
    "caching under a window": World(1, 8, 5, True, 2, slots=4, max_tokens=9, watermark=0.2),
}
"""The worlds, by what is told of them."""


def walk(package: ModuleType, world: World) -> Iterator[Fault]:
    """Take a random walk on a copy of the package, up to the first difference (REF-0, PAGE-1, PAGE-4, PAGE-13)."""
    from ..data_movement.engine import BrokenError
    from ..data_movement.tables_histories import random_walk  # it imports torch

    rearm()
    try:
        random_walk(world, 1, STEPS, package=package, before=rearm)
    except BrokenError as error:
        yield Fault(error.law, error.detail, STEPS)


def walk_of(name: str, world: World) -> Trial:
    """Give the trial of a world."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        return walk(package, world)

    trial.__name__ = f"walk, {name}"
    trial.needs = ("torch", "hypothesis")  # type: ignore[attr-defined]
    return trial


TRIALS: tuple[Trial, ...] = tuple(walk_of(name, world) for name, world in WORLDS.items())

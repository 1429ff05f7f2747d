"""Long histories of a block manager with data that moves: what its engine does, picked from what there is.

The worlds are too large to visit whole: 24 to 64 blocks on each device, ten sequences in groups, forks of forks, swaps
under pressure, lookahead slots and windows that straddle blocks.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, Final

import blockwright
from blockwright.paging import SequenceStatus
from blockwright_conformance.checker.history import walk, walks
from blockwright_conformance.gates import GateResult
from blockwright_conformance.rows import ran

from .gate import HISTORIES, World
from .tables_engine import PagedEngine

LENGTHS: dict[str, Any] = {"quick": (1, 40), "pr": (8, 100), "nightly": (1000, 200)}


MOVES: Final = {
    "reset": 1, "arrive": 4, "grow": 12, "free": 3, "access": 1, "compute": 8, "fork": 4, "swap_out": 2, "swap_in": 3,
}  # fmt: skip
"""The moves, and how often they are drawn."""
CHOICES: Final = 8

Move = tuple[str, int]
"""The name of a move, and a number from which all that is open about it is drawn."""


class Moves:
    """The operations of an engine, each with its condition, and picked from the possible ones.

    Each is a method that takes a few numbers, by which it picks.
    """

    names = tuple(MOVES)

    def __init__(self, engine: PagedEngine) -> None:
        self.weights = dict(MOVES)
        self.engine, self.world, self.fired, self.made = engine, engine.world, engine.fired, 0
        self.reset, self.finish = engine.reset, engine.finish

    def kinds(self) -> dict[str, list[Move]]:
        numbers, engine = range(CHOICES * self.made, CHOICES * (self.made + 1)), self.engine
        able: dict[str, object] = {
            "reset": True, "arrive": engine.empty_slots, "fork": engine.groups and engine.empty_slots,
            "free": engine.groups, "access": engine.groups, "grow": self.growable, "compute": self.chunked,
            "swap_out": self.indices(engine.running), "swap_in": self.indices(engine.swapped),
        }  # fmt: skip
        return {name: [(name, number) for number in numbers] for name in MOVES if able[name]}

    def act(self, move: Move) -> None:
        name, number = move
        self.made += 1
        method, random = getattr(self, name), Random(number)
        method(*[random.randrange(2**16) for _ in range(method.__code__.co_argcount - 1)])

    def indices(self, status: SequenceStatus) -> list[int]:
        groups = self.engine.groups
        return [at for at, (_, members) in enumerate(groups) if members[0].seq.status is status]

    @property
    def growable(self) -> list[int]:
        groups, most, waiting = self.engine.groups, self.world.max_tokens, self.chunked
        running = [at for at in self.indices(self.engine.running) if at not in waiting]
        return [at for at in running if all(each.placed < most for each in groups[at][1])]

    @property
    def chunked(self) -> list[int]:
        groups, running = self.engine.groups, self.indices(self.engine.running)
        return [at for at in running if any(each.seq.num_computed_tokens < each.placed for each in groups[at][1])]

    def arrive(self, pick: int, length: int, width: int) -> None:
        world, tokens = self.world, []
        for at in range(1 + length % (world.max_tokens * 2 // 3)):
            tokens.append(0 if at < world.size * (pick % 4) else (pick >> at % 8) % world.symbols)
        chunk = len(tokens) if width % 2 else 1 + pick % (2 * world.size)
        self.engine.arrive(tokens, pick % 2, 1 + width % 4, width % (world.most_ahead + 1), chunk)

    def grow(self, pick: int, count: int, ahead: int) -> None:
        at, random = self.growable[pick % len(self.growable)], Random(pick)
        more, world = 1 + (count % 2) * (count % (2 * self.world.size)), self.world
        self.engine.grow(
            at, lambda: [random.randrange(world.symbols) for _ in range(more)], ahead % (world.most_ahead + 1)
        )

    def fork(self, pick: int, which: int) -> None:
        self.engine.fork(pick % len(self.engine.groups), which)

    def free(self, pick: int, which: int) -> None:
        self.engine.free(pick % len(self.engine.groups), which)

    def swap_out(self, pick: int) -> None:
        running = self.indices(self.engine.running)
        self.engine.swap_out(running[pick % len(running)])

    def swap_in(self, pick: int, ahead: int) -> None:
        swapped = self.indices(self.engine.swapped)
        self.engine.swap_in(swapped[pick % len(swapped)], ahead % (self.world.most_ahead + 1))

    def access(self, pick: int) -> None:
        self.engine.access(pick % len(self.engine.groups))

    def compute(self, pick: int) -> None:
        self.engine.compute(self.chunked[pick % len(self.chunked)], 1 + pick % (2 * self.world.size))


def random_walk(
    world: World,
    seed: int,
    steps: int,
    reference: bool = True,
    package: ModuleType = blockwright,
    before: Callable[[], object] = int,
) -> None:
    """Take a random walk, on the implementation or a copy of it, and end every sequence.

    `reference`: whether the specification goes along; `before`: called before each operation.
    """
    engine = PagedEngine(world, reference, package)
    walk(Moves(engine), seed, steps, before)


def histories(name: str, profile: str) -> GateResult:
    taken = partial(walks, lambda: Moves(PagedEngine(HISTORIES[name])), *LENGTHS[profile])
    return ran("paged machine", name, [taken])

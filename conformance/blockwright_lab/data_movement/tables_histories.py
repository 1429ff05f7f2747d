"""Long histories of a block manager with data that moves: a state machine that Hypothesis drives, and random walks.

The worlds are too large to visit whole: 24 to 64 blocks on each device, ten sequences in groups, forks of forks, swaps
under pressure, lookahead slots and windows that straddle blocks.
"""

# ruff: noqa: D102  # the name of a rule says what it does

from collections.abc import Callable
from functools import partial
from random import Random
from types import ModuleType
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import blockwright
from blockwright.paging import SequenceStatus
from blockwright_conformance.gates import GateResult
from blockwright_conformance.kv_cache.long_runs import histories_row, run_machine

from .tables_engine import PagedEngine
from .tables_scopes import HISTORIES, World

LENGTHS = {"quick": (1, 20, 60, 1), "pr": (12, 50, 600, 2), "nightly": (1000, 100, 3000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


class Moves:
    """The operations of an engine, each with what it needs to be possible, and picked from what there is."""

    def __init__(self, engine: PagedEngine) -> None:
        self.engine, self.world = engine, engine.world

    def indices(self, status: SequenceStatus) -> list[int]:
        """Give the numbers of the groups of a status."""
        groups = self.engine.groups
        return [at for at, (_, members) in enumerate(groups) if members[0].seq.status is status]

    @property
    def growable(self) -> list[int]:
        """Running groups that are computed, and whose sequences may still grow."""
        groups, most, waiting = self.engine.groups, self.world.max_tokens, self.chunked
        running = [at for at in self.indices(self.engine.running) if at not in waiting]
        return [at for at in running if all(each.placed < most for each in groups[at][1])]

    @property
    def chunked(self) -> list[int]:
        """Running groups of whose prompt chunks are to come."""
        groups, running = self.engine.groups, self.indices(self.engine.running)
        return [at for at in running if any(each.seq.num_computed_tokens < each.placed for each in groups[at][1])]

    def arrive(self, pick: int, length: int, width: int) -> None:
        world, tokens = self.world, []
        for at in range(1 + length % (world.max_tokens * 2 // 3)):
            tokens.append(0 if at < world.size * (pick % 4) else (pick >> at % 8) % world.symbols)
        chunk = len(tokens) if width % 2 else 1 + pick % (2 * world.size)
        self.engine.arrive(tokens, pick % 2, 1 + width % 3, width % (world.most_ahead + 1), chunk)

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


def nothing() -> None:
    """Do nothing before a step."""


def random_walk(
    world: World,
    seed: int,
    steps: int,
    reference: bool = True,
    package: ModuleType = blockwright,
    before: Callable[[], None] = nothing,
) -> PagedEngine:
    """Take a random walk, on the implementation or a copy of it; end every sequence, and give the engine.

    Args:
        world: the configuration of the manager.
        seed: of the random draws.
        steps: how many operations.
        reference: whether the specification goes along.
        package: the implementation, or a copy of it.
        before: called before each operation.

    Raises:
        PagedHistoryError: the walk met a violation.
    """
    random, engine = Random(seed), PagedEngine(world, reference, package)
    moves = Moves(engine)

    def pick() -> int:
        return random.randrange(2**16)

    for _ in range(steps):
        before()
        possible: list[tuple[int, Callable[[], None]]] = [(1, engine.reset)]
        if engine.empty_slots:
            possible.append((4, lambda: moves.arrive(pick(), pick(), pick())))
        if moves.growable:
            possible.append((12, lambda: moves.grow(pick(), pick(), pick())))
        if engine.groups:
            possible += [(3, lambda: moves.free(pick(), pick())), (1, lambda: moves.access(pick()))]
        if moves.chunked:
            possible.append((8, lambda: moves.compute(pick())))
        if engine.groups and engine.empty_slots:
            possible.append((4, lambda: moves.fork(pick(), pick())))
        if moves.indices(engine.running):
            possible.append((2, lambda: moves.swap_out(pick())))
        if moves.indices(engine.swapped):
            possible.append((3, lambda: moves.swap_in(pick(), pick())))
        random.choices([move for _, move in possible], [weight for weight, _ in possible])[0]()
    engine.finish()
    return engine


PICKS = st.integers(0, 2**16)
"""Draws that pick one of the candidates there are."""


class TablesMachine(RuleBasedStateMachine):
    """Sequence groups of one world on one block manager; see `machine_of_world`."""

    world: ClassVar[World]
    fired: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self.engine = PagedEngine(self.world)
        self.moves = Moves(self.engine)

    def teardown(self) -> None:
        """End every sequence, and count what happened."""
        self.engine.judge()
        self.engine.finish()
        for name, count in self.engine.fired.items():
            self.fired[name] = self.fired.get(name, 0) + count

    @precondition(lambda self: self.engine.empty_slots)
    @rule(pick=PICKS, length=PICKS, width=PICKS)
    def arrive(self, pick: int, length: int, width: int) -> None:
        self.moves.arrive(pick, length, width)

    @precondition(lambda self: self.moves.growable)
    @rule(pick=PICKS, count=PICKS, ahead=PICKS)
    def grow(self, pick: int, count: int, ahead: int) -> None:
        self.moves.grow(pick, count, ahead)

    @precondition(lambda self: self.engine.groups and self.engine.empty_slots)
    @rule(pick=PICKS, which=PICKS)
    def fork(self, pick: int, which: int) -> None:
        self.moves.fork(pick, which)

    @precondition(lambda self: self.engine.groups)
    @rule(pick=PICKS, which=PICKS)
    def free(self, pick: int, which: int) -> None:
        self.moves.free(pick, which)

    @precondition(lambda self: self.moves.indices(self.engine.running))
    @rule(pick=PICKS)
    def swap_out(self, pick: int) -> None:
        self.moves.swap_out(pick)

    @precondition(lambda self: self.moves.indices(self.engine.swapped))
    @rule(pick=PICKS, ahead=PICKS)
    def swap_in(self, pick: int, ahead: int) -> None:
        self.moves.swap_in(pick, ahead)

    @precondition(lambda self: self.engine.groups)
    @rule(pick=PICKS)
    def access(self, pick: int) -> None:
        self.moves.access(pick)

    @precondition(lambda self: self.moves.chunked)
    @rule(pick=PICKS)
    def compute(self, pick: int) -> None:
        self.moves.compute(pick)

    @rule()
    def reset(self) -> None:
        self.engine.reset()


def run_tables_machine(world: World, examples: int, steps: int, derandomize: bool) -> dict[str, int]:
    """Run the state machine of a world; give how often what happened.

    Raises:
        PagedHistoryError: a run met a violation, shrunk by Hypothesis.
    """
    return run_machine(TablesMachine, world, examples, steps, derandomize)


def histories(name: str, profile: str) -> GateResult:
    """Run the machine and the walks of a world, and give their row."""
    world, (examples, steps, length, walks) = HISTORIES[name], LENGTHS[profile]
    machine = partial(run_tables_machine, world, examples, steps, profile != "nightly")
    rest = (partial(walked, world, seed, length) for seed in range(walks))
    return histories_row("paged machine", name, (machine, *rest))


def walked(world: World, seed: int, steps: int) -> dict[str, int]:
    """Take a random walk; give how often what happened."""
    return random_walk(world, seed, steps).fired

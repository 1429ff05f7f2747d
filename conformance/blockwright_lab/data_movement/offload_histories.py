"""Long histories of a chain of three tiers with bytes that move: a state machine, and random walks."""

# ruff: noqa: D102  # the name of a rule says what it does

from collections.abc import Callable
from functools import partial
from random import Random
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from blockwright_conformance.gates import GateResult
from blockwright_conformance.kv_cache.long_runs import histories_row, run_machine

from .offload_engine import OffloadEngine
from .offload_scopes import OFFLOAD_HISTORIES, OffloadWorld

LENGTHS = {"quick": (1, 20, 80, 1), "pr": (10, 40, 800, 2), "nightly": (1000, 100, 5000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


def chain_walk(world: OffloadWorld, seed: int, steps: int) -> OffloadEngine:
    """Take a random walk, land all transfers, and give the engine.

    Raises:
        OffloadHistoryError: the walk met a violation.
    """
    random, engine = Random(seed), OffloadEngine(world)

    def pick() -> int:
        return random.randrange(2**16)

    for _ in range(steps):
        possible: list[tuple[int, Callable[[], None]]] = [
            (4, lambda: engine.compute(pick())),
            (6, lambda: engine.store(pick())),
            (6, lambda: engine.load(pick())),
            (5, engine.take),
            (1, lambda: engine.cancel(pick())),
            (1, lambda: engine.touch(pick())),
            (1, lambda: engine.lose(pick())),
        ]
        if engine.started():
            possible += [
                (14, lambda: engine.land(pick(), fails=random.random() < 0.15)),
                (6, lambda: engine.move(pick())),
            ]
        random.choices([move for _, move in possible], [weight for weight, _ in possible])[0]()
    engine.finish()
    return engine


PICKS = st.integers(0, 2**16)
"""Draws that pick one of the candidates there are."""


class ChainMachine(RuleBasedStateMachine):
    """The requests of one world on one chain; see `run_chain_machine`."""

    world: ClassVar[OffloadWorld]
    fired: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self.engine = OffloadEngine(self.world)

    def teardown(self) -> None:
        """Land everything, and count what happened."""
        self.engine.finish()
        for name, count in self.engine.fired.items():
            self.fired[name] = self.fired.get(name, 0) + count

    @rule(pick=PICKS)
    def compute(self, pick: int) -> None:
        self.engine.compute(pick)

    @rule(pick=PICKS)
    def compute_and_store(self, pick: int) -> None:
        self.engine.compute(pick)
        self.engine.store(pick)

    @rule(pick=PICKS)
    def load(self, pick: int) -> None:
        self.engine.load(pick)

    @rule()
    def take(self) -> None:
        self.engine.take()

    @precondition(lambda self: self.engine.started())
    @rule(pick=PICKS, fails=st.booleans())
    def land(self, pick: int, fails: bool) -> None:
        self.engine.land(pick, fails)

    @precondition(lambda self: self.engine.started())
    @rule(pick=PICKS)
    def move(self, pick: int) -> None:
        self.engine.move(pick)

    @rule(pick=PICKS)
    def cancel(self, pick: int) -> None:
        self.engine.cancel(pick)

    @rule(pick=PICKS)
    def touch(self, pick: int) -> None:
        self.engine.touch(pick)

    @rule(pick=PICKS)
    def lose(self, pick: int) -> None:
        self.engine.lose(pick)


def run_chain_machine(world: OffloadWorld, examples: int, steps: int, derandomize: bool) -> dict[str, int]:
    """Run the state machine of a world; give how often what happened.

    Raises:
        OffloadHistoryError: a run met a violation, shrunk by Hypothesis.
    """
    return run_machine(ChainMachine, world, examples, steps, derandomize)


def chain_histories(name: str, profile: str) -> GateResult:
    """Run the machine and the walks of a world, and give their row."""
    world, (examples, steps, length, walks) = OFFLOAD_HISTORIES[name], LENGTHS[profile]
    machine = partial(run_chain_machine, world, examples, steps, profile != "nightly")
    rest = (partial(walked, world, seed, length) for seed in range(walks))
    return histories_row("offload machine", name, (machine, *rest))


def walked(world: OffloadWorld, seed: int, steps: int) -> dict[str, int]:
    """Take a random walk; give how often what happened."""
    return chain_walk(world, seed, steps).fired

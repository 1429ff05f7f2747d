"""Long histories of the inputs of steps: a state machine that Hypothesis drives, and random walks."""

# ruff: noqa: D102  # the name of a rule says what it does

from collections.abc import Callable
from functools import partial
from random import Random
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from blockwright_conformance.gates import GateResult
from blockwright_conformance.kv_cache.long_runs import histories_row, run_machine
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_spec.manager.state import Absent, Running

from .worker_engine import InputsEngine
from .worker_scopes import INPUT_WORLDS

LENGTHS = {"quick": (1, 20, 100, 1), "pr": (6, 40, 500, 1), "nightly": (600, 100, 5000, 20)}
"""Per profile: examples of the machine, steps of each, steps of a walk, walks."""


def inputs_walk(world: Scope, seed: int, steps: int) -> InputsEngine:
    """Take a random walk, and give the engine.

    Raises:
        InputsError: the walk met a violation.
    """
    random, engine = Random(seed), InputsEngine(world)

    def pick() -> int:
        return random.randrange(2**16)

    for _ in range(steps):
        possible: list[tuple[int, Callable[[], None]]] = [(6, lambda: engine.run(pick())), (1, engine.compact)]
        possible.append((4, lambda: engine.wrong(pick(), pick())))
        possible.append((1, lambda: engine.swap(pick(), pick())))
        if engine.slots(Absent):
            possible.append((6, lambda: engine.admit(pick(), pick())))
        if engine.hungry:
            possible += [(3, lambda: engine.grow(pick(), pick())), (8, lambda: engine.grow_all(pick(), pick()))]
        if engine.speaking:
            possible.append((8, lambda: engine.put_out(pick(), pick())))
        if engine.loading:
            possible.append((3, lambda: engine.finish_load(pick(), pick())))
        if engine.slots(Running):
            possible += [(1, lambda: engine.release(pick())), (1, lambda: engine.trim(pick()))]
        if engine.slots(Running) and engine.slots(Absent):
            possible += [(2, lambda: engine.fork(pick())), (1, lambda: engine.move(pick(), pick()))]
        if world.in_flight > len(engine.state.flights):
            possible.append((12, lambda: engine.start(pick())))
        if engine.state.flights:
            possible.append((6, lambda: engine.settle(pick(), pick())))
        random.choices([move for _, move in possible], [weight for weight, _ in possible])[0]()
    engine.run(0)
    return engine


PICKS = st.integers(0, 2**16)
"""Draws that pick one of the candidates there are."""


class InputsMachine(RuleBasedStateMachine):
    """The requests of one world on one manager and two workers; see `run_inputs_machine`."""

    world: ClassVar[Scope]
    fired: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self.engine = InputsEngine(self.world)

    def teardown(self) -> None:
        """Hand out the last step, and count what happened."""
        self.engine.run(0)
        for name, count in self.engine.fired.items():
            self.fired[name] = self.fired.get(name, 0) + count

    @rule(pick=PICKS)
    def run(self, pick: int) -> None:
        self.engine.run(pick)

    @precondition(lambda self: self.engine.slots(Absent))
    @rule(pick=PICKS, part=PICKS)
    def admit(self, pick: int, part: int) -> None:
        self.engine.admit(pick, part)

    @precondition(lambda self: self.engine.hungry)
    @rule(pick=PICKS, part=PICKS)
    def grow(self, pick: int, part: int) -> None:
        self.engine.grow(pick, part)

    @precondition(lambda self: self.engine.hungry)
    @rule(pick=PICKS, part=PICKS)
    def grow_all(self, pick: int, part: int) -> None:
        self.engine.grow_all(pick, part)

    @precondition(lambda self: self.engine.speaking)
    @rule(pick=PICKS, part=PICKS)
    def put_out(self, pick: int, part: int) -> None:
        self.engine.put_out(pick, part)

    @precondition(lambda self: self.engine.loading)
    @rule(pick=PICKS, part=PICKS)
    def finish_load(self, pick: int, part: int) -> None:
        self.engine.finish_load(pick, part)

    @precondition(lambda self: self.engine.slots(Running) and self.engine.slots(Absent))
    @rule(pick=PICKS)
    def fork(self, pick: int) -> None:
        self.engine.fork(pick)

    @precondition(lambda self: self.engine.slots(Running))
    @rule(pick=PICKS)
    def trim(self, pick: int) -> None:
        self.engine.trim(pick)

    @precondition(lambda self: self.engine.slots(Running))
    @rule(pick=PICKS)
    def release(self, pick: int) -> None:
        self.engine.release(pick)

    @precondition(lambda self: self.engine.slots(Running))
    @rule(pick=PICKS)
    def preempt(self, pick: int) -> None:
        self.engine.preempt(pick)

    @precondition(lambda self: len(self.engine.state.flights) < self.world.in_flight)
    @rule(pick=PICKS)
    def start(self, pick: int) -> None:
        self.engine.start(pick)

    @precondition(lambda self: self.engine.state.flights)
    @rule(pick=PICKS, part=PICKS)
    def settle(self, pick: int, part: int) -> None:
        self.engine.settle(pick, part)

    @rule()
    def compact(self) -> None:
        self.engine.compact()

    @rule(pick=PICKS, part=PICKS)
    def swap(self, pick: int, part: int) -> None:
        self.engine.swap(pick, part)

    @precondition(lambda self: self.engine.slots(Running) and self.engine.slots(Absent))
    @rule(pick=PICKS, part=PICKS)
    def move(self, pick: int, part: int) -> None:
        self.engine.move(pick, part)

    @rule(pick=PICKS, part=PICKS)
    def wrong(self, pick: int, part: int) -> None:
        self.engine.wrong(pick, part)


def run_inputs_machine(world: Scope, examples: int, steps: int, derandomize: bool) -> dict[str, int]:
    """Run the state machine of a world; give how often what happened.

    Raises:
        InputsError: a run met a violation, shrunk by Hypothesis.
    """
    return run_machine(InputsMachine, world, examples, steps, derandomize)


def inputs_histories(name: str, profile: str) -> GateResult:
    """Run the machine and the walks of a world, and give their row."""
    world, (examples, steps, length, walks) = INPUT_WORLDS[name], LENGTHS[profile]
    machine = partial(run_inputs_machine, world, examples, steps, profile != "nightly")
    rest = (partial(walked, world, seed, length) for seed in range(walks))
    return histories_row("inputs machine", name, (machine, *rest))


def walked(world: Scope, seed: int, steps: int) -> dict[str, int]:
    """Take a random walk; give how often what happened."""
    return dict(inputs_walk(world, seed, steps).fired)

"""Long histories of the inputs of steps: a state machine that Hypothesis drives, and random walks."""

# the name of a rule says what it does

from collections.abc import Callable
from random import Random

from blockwright_spec.state import Absent, Running

from .inputs_engine import InputsEngine
from .scopes import Scope

LENGTHS = {"smoke": (1, 20, 100, 1), "pr": (6, 40, 500, 1), "nightly": (600, 100, 5000, 20)}
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

"""What engines with data that moves have in common: moves by name, drawn as actions of worlds are."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import ClassVar

from blockwright_conformance.checker.history import run_drawn, wander

CHOICES = 8
"""Draws of each move to choose from."""

Move = tuple[str, int]
"""The name of a move, and a number from which all that is open about it is drawn."""


class BrokenError(AssertionError):
    """A history that shows a violation; `law` names what was broken."""

    def __init__(self, law: str, detail: str) -> None:
        super().__init__(f"{law}: {detail}")
        self.law, self.detail = law, detail


class Engine:
    """An engine; each move is a method that takes a few numbers, by which it picks from what there is."""

    moves: ClassVar[dict[str, int]]
    """The moves, and how often they are drawn."""

    def __init__(self) -> None:
        self.fired: Counter[str] = Counter()
        self.made = 0

    def can(self, name: str) -> bool:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def kinds(self) -> dict[str, list[Move]]:
        """Return the moves that may be next, by their names."""
        numbers = range(CHOICES * self.made, CHOICES * (self.made + 1))
        return {name: [(name, number) for number in numbers] for name in self.moves if self.can(name)}

    def act(self, move: Move) -> None:
        name, number = move
        self.made += 1
        method, random = getattr(self, name), Random(number)
        method(*[random.randrange(2**16) for _ in range(method.__code__.co_argcount - 1)])


def walked(engine: Engine, seed: int, steps: int, before: Callable[[], object] = int) -> None:
    """Take a random walk, with a call before each move, and end everything."""
    wander(engine, engine.moves, seed, steps, before)
    engine.finish()


def run_machine(make: Callable[[], Engine], examples: int, steps: int, derandomize: bool = True) -> Counter[str]:
    """Run a state machine over an engine; return how often what happened."""
    moves = make().moves
    return run_drawn(make, tuple(moves), moves, examples, steps, derandomize)

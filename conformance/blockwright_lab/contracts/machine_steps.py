"""Contracts on the steps of the block machine: from any state that has the invariants, each leads to one that has them.

The state need not be one that can be reached: of a pool of two blocks and the null block, three places hold what they
may, blocks contain what they may, and a table with a window has tokens that are done or under way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product, starmap
from typing import Any

from blockwright_spec import block_machine
from blockwright_spec.block_machine import Block, Machine, Place, Table
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.reads import Full, Sliding

from .closed_forms import CONTRACTS, Contract

PLACES: tuple[Place, ...] = (("window", 0), ("full", 0), ("pin", 0))
FEW = range(3)


@dataclass(frozen=True)
class Given:
    """A state in integers: the block of each place, or -1 for none, and of both blocks the content, 0 for nothing."""

    in_window: int
    in_full: int
    in_pin: int
    one: int
    is_one_found: bool
    two: int
    is_two_found: bool
    window: int
    done: int
    stop: int

    def machine(self) -> Machine:
        """Return the state, with the counts and the free blocks that follow from what is held."""
        own = (self.in_window, self.in_full, self.in_pin)
        blocks, free = [Block()], []
        for number, content, is_found in ((1, self.one, self.is_one_found), (2, self.two, self.is_two_found)):
            count = sum(1 for held in own if held == number)
            free += [] if count else [number]
            inside = content if content > 0 else None
            blocks.append(Block(count, inside, inside if is_found else None))
        tables = {"window": Table(Sliding(self.window), 1, self.done, self.stop), "full": Table(Full(), 1)}
        held = {place: block for place, block in zip(PLACES, own, strict=True) if block >= 0}
        return Machine(tuple(blocks), frozenset(free), tables, held)

    def is_small(self, most: int) -> bool:
        places = all(-1 <= held <= 2 for held in (self.in_window, self.in_full, self.in_pin))
        return places and 1 <= self.window <= most and 0 <= self.done <= self.stop <= most


def is_lawful(now: Machine) -> bool:
    return all(law.holds(now) for law in BLOCK_LAWS)


@cache
def lawful() -> list[Given]:
    """Return every state with the invariants in which contents are told apart, and there are at most two tokens."""
    places, found = range(-1, 3), (False, True)
    every = starmap(Given, product(places, places, places, FEW, found, FEW, found, (1, 2), FEW, FEW))
    return [given for given in every if given.is_small(2) and is_lawful(given.machine())]


def keeps(given: Given, step: str, *arguments: Any) -> None:
    now = given.machine()
    if is_lawful(now):
        after = getattr(block_machine, step)(now, *arguments)
        assert after is None or is_lawful(after)


def of_place(step: str) -> Callable[..., None]:
    def holds(given: Given, place: int) -> None:
        assert given.is_small(4) and 0 <= place <= 2
        keeps(given, step, PLACES[place])

    return holds


def of_place_and_block(step: str) -> Callable[..., None]:
    def holds(given: Given, place: int, block: int) -> None:
        assert given.is_small(4) and 0 <= place <= 2 and 0 <= block <= 2
        keeps(given, step, PLACES[place], block)

    return holds


def of_block(step: str) -> Callable[..., None]:
    def holds(given: Given, block: int) -> None:
        assert given.is_small(4) and 0 <= block <= 2
        keeps(given, step, block)

    return holds


def write(given: Given, block: int, content: int) -> None:
    assert given.is_small(4) and 0 <= block <= 2 and content > 0
    keeps(given, "write", block, content)


def advance(given: Given, done: int, more: int) -> None:
    assert given.is_small(4) and 0 <= done <= 5 and 0 <= more <= 2
    keeps(given, "advance", "window", done, done + more)


STEPS: dict[str, tuple[Callable[..., None], tuple[Any, ...]]] = {
    "take": (of_place_and_block("take"), (FEW, FEW)),
    "hold": (of_place_and_block("hold"), (FEW, FEW)),
    "write": (write, (FEW, (1, 2))),
    "publish": (of_block("publish"), (FEW,)),
    "drop": (of_place("drop"), (FEW,)),
    "null": (of_place("null"), (FEW,)),
    "forget": (of_block("forget"), (FEW,)),
    "advance": (advance, (FEW, FEW)),
}
"""The contract of each step, and the arguments that are tried in every state."""

CONTRACTS += [
    Contract("the block machine", step, "keeps the invariants, from any state that has them", function, (lawful, *more))
    for step, (function, more) in STEPS.items()
]

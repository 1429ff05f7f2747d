"""Contracts on the steps of the block machine: from any state that has the invariants, each leads to one that has them.

The state need not be one that can be reached. Of a pool of two blocks and the null block, three places hold what they
may, the blocks contain what they may, and a table with a window has tokens that are done or under way.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from itertools import product, starmap
from typing import Any

from blockwright_spec import block_machine
from blockwright_spec.block_machine import Block, Machine, Place, Table
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.reads import Full, Sliding

from .contract import CONTRACTS, Contract

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
        own = (self.in_window, self.in_full, self.in_pin)
        blocks, free = [Block()], []
        for number, content, is_found in ((1, self.one, self.is_one_found), (2, self.two, self.is_two_found)):
            count = sum(1 for held in own if held == number)
            free += [] if count else [number]
            inside = content if content > 0 else None
            blocks.append(Block(count, inside, inside if is_found else None))
        tables: dict[Hashable, Table] = {
            "window": Table(Sliding(self.window), 1, self.done, self.stop),
            "full": Table(Full(), 1),
        }
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


ARGUMENTS: dict[str, Callable[[int, int], tuple[Any, ...]]] = {
    "take": lambda one, two: (PLACES[one], two),
    "hold": lambda one, two: (PLACES[one], two),
    "write": lambda one, two: (one, two + 1),
    "publish": lambda one, two: (one,),
    "drop": lambda one, two: (PLACES[one],),
    "null": lambda one, two: (PLACES[one],),
    "forget": lambda one, two: (one,),
    "advance": lambda one, two: ("window", one, one + two),
}


def of_step(step: str, arguments: Callable[[int, int], tuple[Any, ...]]) -> Callable[..., None]:
    def keeps(given: Given, one: int, two: int) -> None:
        assert given.is_small(4) and 0 <= one <= 2 and 0 <= two <= 2
        if is_lawful(now := given.machine()):
            after = getattr(block_machine, step)(now, *arguments(one, two))
            assert after is None or is_lawful(after)

    return keeps


for name, made_of in ARGUMENTS.items():
    said = f"{name} keeps the invariants, from any state that has them"
    CONTRACTS.append(Contract("spec: block_machine", "all", said, of_step(name, made_of), (lawful, FEW, FEW)))

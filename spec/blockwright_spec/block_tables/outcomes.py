"""Part two, chapter 2: the arguments, answers and free choices of a call on tables.

Open is which of the blocks that may go next is taken; a choice cannot be illegal. What may go is pinned: blocks without
content before all others, then the least recently accessed, among those the one with the most tokens up to its end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ..manager.outcomes import When
from .state import Device, Paged, Pair, free_on


class PagedReason(Enum):
    """Why a call is refused; each reason includes when it could happen."""

    NO_FREE_BLOCKS = (When.NOT_NOW, "the device has fewer free blocks than the call takes")
    BLOCKS_IN_USE = (When.NOT_NOW, "a table or a pending copy holds blocks, so the cache cannot be reset")
    COPY_PENDING = (When.NOT_NOW, "the block is an end of a copy that has not been taken")
    HAS_BLOCKS = (When.INVALID, "the table holds blocks already")
    NO_BLOCKS = (When.INVALID, "the table was not allocated, or has been freed")
    NO_TOKENS = (When.INVALID, "a table starts with a token at least")
    NEGATIVE = (When.INVALID, "a count is negative")
    NOT_TOLD = (When.INVALID, "under a window an append must be told how many tokens are computed")
    WRONG_DEVICE = (When.INVALID, "the table is not on the device that the call is about")
    UNWRITTEN = (When.INVALID, "fewer tokens than none are said to be computed, or more than were written")
    NOT_KNOWN = (When.INVALID, "the block is not one that was accessed: it is free and holds nothing")


@dataclass(frozen=True, slots=True)
class PagedRefusal:
    """A call that did not happen: nothing has changed.

    Where blocks are short, `counted` is the number that the call needed.
    """

    reason: PagedReason
    counted: int = 0
    device: Device = Device.GPU


@dataclass(frozen=True, slots=True)
class PagedDone:
    """A call that happened: the new state, the pairs that it returned, and its counted blocks (PAGE-13)."""

    state: Paged
    pairs: tuple[Pair, ...] = ()
    counted: int = 0
    device: Device = Device.GPU


PagedOutcome = PagedDone | PagedRefusal

Choice = Callable[[int], int]
"""Settles which of the blocks that may go next is taken: the one to which it gives the least number."""


def lowest(block: int) -> int:
    """Choose the lowest id."""
    return block


def preferring(order: tuple[int, ...]) -> Choice:
    """Return the choice that goes by a recorded order of blocks; others come after, by id."""
    return lambda block: order.index(block) if block in order else len(order) + block


def rank(state: Paged, block: int) -> tuple[bool, int, int]:
    """Return the place of a free block in the order of eviction."""
    key = state.keys[block]
    return (False, 0, 0) if key is None else (True, state.times[block], -len(key[1]))


def may_go(state: Paged, device: Device) -> tuple[int, ...]:
    """Return the free blocks that may be taken next."""
    free = free_on(state, device)
    first = min((rank(state, block) for block in free), default=None)
    return tuple(block for block in free if rank(state, block) == first)

"""What a pool tells of its blocks, in the verbs of the block machine. Each thing is told once, to all who listen.

The history of published blocks, the journal of facts and a trace listen. A pool that nobody listens to adds and drops
keys in runs; otherwise it goes block by block. Ranges of tables are told in one call.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.pool.index import PrefixIndex
from blockwright.events import BlockStored

UNNOTED: Final = 0
"""Why blocks are released: not by a request."""
EVICTED: Final = 1
"""The request ended or was preempted. Of a key: its block was taken, or written over."""
TRIMMED: Final = 2
"""The window of the request moved on."""
RESET: Final = 3
"""Why a key goes: by a reset of the prefix cache, or on demand."""
PASSED: Final = 4
"""Why a key goes: its block was taken, and no hit that its last holder wanted needed it."""
MERGED: Final = 5
"""Why a key goes: another block has the same content."""
CLEARED: Final = 6
"""Why a key goes: all are forgotten on demand, of which the history knows already."""


def is_eviction(cause: i64) -> bool:
    """Return whether a key goes because its block was taken or written over."""
    return cause in (EVICTED, PASSED)


class Listener:
    """Hears what happens to blocks, in the middle of a change: an error here tears the pool, except in `begins`."""

    def begins(self) -> None:
        """Hear that a call begins that takes blocks for others than requests. An error here must end it."""

    def took(self, ids: vec[i32], free: i64) -> None:
        """Note that blocks were taken for others than requests, and how many are left."""

    def take(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that the blocks of a range were taken from the free ones."""

    def hold(self, ids: vec[i32], is_hit: bool) -> None:
        """Note that each non-null block has one holder more, a request if they are a hit."""

    def copy_on_write(self, left: i64, source: i64, new: i64) -> None:
        """Note that a holder of one block goes on in a new one, which was taken, and is to be copied from a source."""

    def release(self, ids: vec[i32], start: i64, stop: i64, cause: i64) -> None:
        """Note that each non-null block of a range has one holder less, and why."""

    def publish(self, block: i64, request: Request, units: i64, at: i64, group: i64, size: i64, is_new: bool) -> None:
        """Note that a block is published as entry `at` of a request; `is_new` if no other has that key."""

    def publish_part(self, number: i64, request: Request, length: i64, group: i64, size: i64, is_new: bool) -> None:
        """Note that a part of a block is published which ends after `length` tokens of a request."""

    def publish_event(self, block: i64, event: BlockStored, is_new: bool) -> None:
        """Note that a block is published under the key of an event of another process."""

    def forget(self, block: i64, low: i64, high: i64, group: i64, is_last: bool, cause: i64) -> None:
        """Note that a block is about to lose its own key, and why; `is_last` if no other block has that key."""

    def forget_part(self, number: i64, block: i64, key: tuple[i64, i64, i64], is_last: bool, cause: i64) -> None:
        """Note that a part of a block is about to lose its key (two words and the group), and why."""

    def forget_all(self, index: PrefixIndex) -> None:
        """Note that all blocks and parts are about to lose their keys."""

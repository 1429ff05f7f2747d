"""The tape of a pool: what happens to its blocks, in the verbs of the block machine, while `observe.trace` records.

A step is a word of 64 bits: its verb (4 bits), the holder (28 bits; 0 is no request), and a block or a number (31).
From `NULL` on a second word has two numbers. Writing takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros64
from blockwright.core.keys.request import Request
from blockwright.core.pool.index import PrefixIndex
from blockwright.core.pool.listener import Listener, is_eviction
from blockwright.events import BlockStored

TAKE: Final = 0
HOLD: Final = 1
HIT: Final = 2
WRITE: Final = 3
PUBLISH: Final = 4
DROP: Final = 5
FORGET: Final = 6
RESET: Final = 7
NULL: Final = 9
ADVANCE: Final = 10
GONE: Final = 11
COPY: Final = 12
END: Final = 13
HOLDERS: Final = 2**28


@final
class Tape(Listener):
    """A buffer of words, with the function that is given them when it is full; that must not raise an error."""

    def __init__(self, size: int, note: Callable[[vec[i64], int], object]) -> None:
        self.holder: i64 = 0  # the request that acts from now on, until the call ends
        self.names: dict[int, str] = {}  # the ids of requests that have ended since words were given, by holder
        self._words: vec[i64] = zeros64(size)
        self._count: i64 = 0
        self._ended: i64 = 0  # words up to the end of the last call
        self._note = note

    def put(self, verb: i64, value: i64, high: i64 = 0, low: i64 = 0) -> None:
        if self._count + 1 >= i64(len(self._words)):  # the second word of a step follows its first
            self.flush()
        self._words[self._count] = verb << 59 | self.holder << 31 | value
        self._words[self._count + 1] = high << 32 | low
        self._count += 1 if verb < NULL else 2

    def put_each(self, verb: i64, ids: vec[i32], start: i64, stop: i64) -> None:
        while stop > start:
            stop -= 1
            if ids[stop] != 0:
                self.put(verb, i64(ids[stop]))

    def take(self, ids: vec[i32], start: i64, stop: i64) -> None:
        self.put_each(TAKE, ids, start, stop)

    def hold(self, ids: vec[i32], is_hit: bool) -> None:
        self.put_each(HIT if is_hit else HOLD, ids, 0, i64(len(ids)))

    def copy_on_write(self, left: i64, source: i64, new: i64) -> None:
        self.put(COPY, left, source, new)

    def release(self, ids: vec[i32], start: i64, stop: i64, cause: i64) -> None:
        self.put_each(DROP, ids, start, stop)

    def publish(self, block: i64, request: Request, units: i64, at: i64, group: i64, size: i64, is_new: bool) -> None:
        self.put(PUBLISH, block)

    def publish_event(self, block: i64, event: BlockStored, is_new: bool) -> None:
        self.put(PUBLISH, block)

    def forget(self, block: i64, low: i64, high: i64, group: i64, is_last: bool, cause: i64) -> None:
        if not is_eviction(cause):  # the block is taken, and with that its key goes
            self.put(FORGET, block)

    def forget_all(self, index: PrefixIndex) -> None:
        if index.num_keyed > 0:
            self.put(RESET, 0)

    def end(self, num_free: i64, num_keyed: i64) -> None:
        """Write that a call has ended, if it wrote anything: with how many blocks free, and how many findable."""
        if self._count != self._ended:
            self.holder = 0
            self.put(END, num_free, 0, num_keyed)
            self._ended = self._count

    def flush(self) -> None:
        count, self._count, self._ended = self._count, 0, -1
        self._note(self._words, int(count))

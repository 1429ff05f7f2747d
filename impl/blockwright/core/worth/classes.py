"""Which blocks are passing: no hit that the last request that held them wanted needs them.

A connector that holds a block longer only delays what the request decided, so the class is noted for each block.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, u8

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.order import Page
from blockwright.core.tables.window import WindowRule

ORDINARY: Final = 0
"""Not passing, as far as is known."""
PASSING: Final = 1
"""In front of the others, or left so by its last request and held by a connector."""
PROMPT: Final = 2
OUTPUT: Final = 3
"""Ordinary and free; a prompt, or the output of a request, ended with it, and no request has gone on from there."""
SPARED: Final = 4
"""Passing, and one of the last, which are evicted by age."""
_CLASS: Final = 7
ASKED: Final = 8
"""Set beside the class of a block of full attention: a request has wanted a hit to end there."""
_MOST: Final = 12  # ranges of entries: of five lengths, of each a window and sinks
# Instead of a number of ranges:
_NOTED: Final = -1  # no request lets go of the blocks: each is what is noted of it
_PLAIN: Final = -2  # all blocks are ordinary, and nothing ended with them


@final
class Classes:
    """The class of each block, and the entries that are wanted of a table that is being let go of.

    Attributes:
        of: the class of each block, and whether it is asked for.
        every: hits of each multiple of so many tokens are wanted; 0: none are for that alone.
    """

    def __init__(self, count: i64, every: i64 = 0) -> None:
        """Start with every block ordinary. O(count), a byte for each block."""
        self.of: vec[u8] = vec[u8]([0] * count)
        self.every: i64 = every
        self._ranges: vec[i32] = zeros32(2 * _MOST)
        self._num_ranges: i64 = _NOTED
        # Of each so many entries the last are wanted, counted from an entry, up to another; 0: none are.
        self._period: i64 = 0
        self._num_last: i64 = 0
        self._counted_from: i64 = 0
        self._counted_to: i64 = 0
        # Entries with which the prompt ends, with and without its last token, and all that is published; -1: none.
        self._prompt: i64 = -1
        self._resend: i64 = -1
        self._output: i64 = -1
        # Up to an entry, those are wanted that never die (`WindowRule.stays`), of blocks of so many tokens.
        self._rule: WindowRule | None = None
        self._stay_to: i64 = 0
        self._size: i64 = 1

    def copy(self) -> Classes:
        """Return an independent copy. O(count)."""
        twin = Classes(0, self.every)
        twin.of = self.of[:]
        return twin

    # ------------------------------------------------------------------ what is wanted of a table

    def begin(self, is_plain: bool = False) -> None:
        """Start with a table of which no entry is wanted, or, if it is plain, all are and nothing ended. O(1)."""
        self._num_ranges = _PLAIN if is_plain else 0
        self._period = self._stay_to = 0
        self._prompt = self._resend = self._output = -1

    def want(self, start: i64, stop: i64) -> None:
        """Want the entries of a range. O(1); takes no memory."""
        if start < stop:
            at = 2 * self._num_ranges
            self._ranges[at] = i32(start)
            self._ranges[at + 1] = i32(stop)
            self._num_ranges += 1

    def want_staying(self, rule: WindowRule, block_size: i64, stop: i64) -> None:
        """Want the entries up to `stop` that never die, of a table of blocks of a size. O(1); takes no memory."""
        self._rule = rule
        self._size = block_size
        self._stay_to = max(self._stay_to, stop)

    def want_each(self, period: i64, num_last: i64, first: i64, stop: i64) -> None:
        """Want the last entries of each `period` from `first` to `stop`, and those before if they are enough. O(1)."""
        self._period = period
        self._counted_to = stop
        self._num_last = num_last
        self._counted_from = first

    def end_at(self, prompt: i64, resend: i64, output: i64) -> None:
        """Note the entries with which the prompt ends, with and without its last token, and the output; -1: none."""
        self._prompt = prompt
        self._resend = resend
        self._output = output

    def end(self) -> None:
        """Have the class of every block that is let go of be the noted one from now on."""
        self._num_ranges = _NOTED

    def is_passing(self, entry: i64, block: i64) -> bool:
        """Return whether no wanted hit needs an entry or, where no request lets go of it, the block is noted. O(1)."""
        if self._num_ranges == _NOTED:
            return self.is_noted(block)
        if self._num_ranges == _PLAIN:
            return False
        at: i64 = 0
        stop = 2 * self._num_ranges
        while at < stop:
            if i64(self._ranges[at]) <= entry and entry < i64(self._ranges[at + 1]):
                return False
            at += 2
        if entry < self._stay_to and self._rule is not None and self._rule.stays(entry, self._size):
            return False
        if self._period == 0 or entry >= self._counted_to:
            return True
        at = entry - self._counted_from
        return at % self._period < self._period - self._num_last if at >= 0 else self._num_last < self._period - at

    def first_alike(self, start: i64, stop: i64) -> i64:
        """Return the first entry from `start` on from which all up to `stop` are surely of one class. O(1)."""
        if self._num_ranges == _PLAIN or start == stop:
            return start
        if self._num_ranges == _NOTED or self._period > 0 or self._stay_to > 0:
            return stop - 1
        at: i64 = 0
        while at < 2 * self._num_ranges:
            begin: i64 = i64(self._ranges[at])
            end: i64 = i64(self._ranges[at + 1])
            if begin < stop and stop <= end:
                return max(start, begin)
            if end < stop:
                start = max(start, end)
            at += 2
        return start

    # ------------------------------------------------------------------ what is noted of a block

    def is_noted(self, block: i64) -> bool:
        """Return whether a block is passing, as far as is noted here. O(1)."""
        noted = i64(self.of[block]) & _CLASS
        return noted in (PASSING, SPARED)

    def class_of(self, block: i64) -> i64:
        return PASSING if self.is_noted(block) else i64(self.of[block]) & _CLASS

    def set(self, block: i64, noted: i64) -> None:
        """Note the class of a block, which stays asked for if it is. O(1)."""
        self.of[block] = u8(i64(self.of[block]) & ASKED | noted)

    def note(self, block: i64, is_passing: bool) -> None:
        """Note whether a block is passing that the last of its requests has left, or that is in front. O(1)."""
        self.set(block, PASSING if is_passing else ORDINARY)

    def note_all(self, ids: vec[i32], start: i64, stop: i64, noted: i64) -> None:
        """Note the class of the blocks of a range. O(entries)."""
        of = self.of
        while start < stop:
            block = i64(ids[start])
            of[block] = u8(i64(of[block]) & ASKED | noted)
            start += 1

    def note_ordinary(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that the candidates of a range are ordinary, and what ended at entries of their table. O(entries).

        After `end` nothing changes: each stays as it is noted.
        """
        if self._num_ranges != _NOTED:
            self.note_all(ids, start, stop, ORDINARY)
            self._note_end(ids, start, stop, self._resend, PROMPT)
            self._note_end(ids, start, stop, self._prompt, PROMPT)
            self._note_end(ids, start, stop, self._output, OUTPUT)

    def _note_end(self, ids: vec[i32], start: i64, stop: i64, entry: i64, noted: i64) -> None:
        """Note what ended at an entry, if that is in a range. O(1)."""
        if start <= entry and entry < stop:
            self.set(i64(ids[entry]), noted)

    def left(self, page: Page, entry: i64, block: i64, count: i64, is_published: bool) -> None:
        """Note the class of a block that a request has left to `count` others, if no request holds it now. O(1)."""
        if page.num_others(block) == count:
            self.note(block, is_published and self.is_passing(entry, block))

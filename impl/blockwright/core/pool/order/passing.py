"""Which blocks are passing, as they are let go of, and where they are in the free queue.

A block is passing if no hit that its last holder wanted needs it. Passing blocks stand in front of other candidates, in
the order in which they were let go of::

    | without content | passing | ordinary, and the last `spares` passing ones, in the order of their release |

The last request that held a block decides. A connector that holds it longer only delays it, so the class is noted.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32

SHARE: Final = 32
"""One block of so many is a passing one that is spared, unless an engine says otherwise."""

# Instead of a neighbour in the ring of spared blocks:
_PASSING: Final = -1  # passing: in front of the others, or left so by its last request and held by a connector
_ORDINARY: Final = -2  # not passing, as far as is known
_PROMPT: Final = -3  # of a free block: ordinary, and a prompt ended with it that no request has gone on from
_OUTPUT: Final = -4  # likewise, the output of a request
NO_TIP: Final = 0
AT_PROMPT: Final = 1
AT_OUTPUT: Final = 2
"""What ended with a free block that no request has gone on from since."""
_MOST: Final = 12  # ranges of entries: of five lengths, of each a window and sinks
_ALL: Final = -1  # instead of a number of ranges: every block is ordinary


@final
class PassingBlocks:
    """The passing blocks among the candidates, and the entries that are wanted of a table that is being let go of.

    Attributes:
        spares: how many of the last passing blocks go as ordinary ones do.
        last: the last passing block in front of the ordinary ones, 0: there is none.
        last_bare: the last block without content, if the queue begins with one.
        num_spared: passing blocks that are spared now.
    """

    def __init__(self, count: i64, spares: i64) -> None:
        """Start with every block without content. O(count): 8 bytes for each block, 4 without `spares`."""
        self.spares: i64 = spares
        self.last: i64 = 0
        self.last_bare: i64 = count - 1
        self.num_spared: i64 = 0
        # A ring of the spared blocks, first to be let go of first, from block 0.
        self._newer: vec[i32] = vec[i32]([_ORDINARY] * count)
        if spares == 0:
            count = 1
        self._older: vec[i32] = zeros32(count)
        self._newer[0] = 0
        self._ranges: vec[i32] = zeros32(2 * _MOST)
        self._num_ranges: i64 = _ALL
        # Entries with which the prompt ends, with and without its last token, and all that is published; -1: none.
        self._prompt: i64 = -1
        self._resend: i64 = -1
        self._output: i64 = -1

    def copy(self) -> PassingBlocks:
        """Return an independent copy. O(count)."""
        twin = PassingBlocks(1, self.spares)
        twin.last = self.last
        twin.last_bare = self.last_bare
        twin.num_spared = self.num_spared
        twin._newer = self._newer[:]
        twin._older = self._older[:]
        return twin

    # ------------------------------------------------------------------ what is wanted of a table

    def begin(self) -> None:
        """Start with a table of which no entry is wanted. Takes no memory."""
        self._num_ranges = 0
        self._prompt = self._resend = self._output = -1

    def want(self, start: i64, stop: i64) -> None:
        """Want the entries of a range. O(1); takes no memory."""
        if start < stop:
            at = 2 * self._num_ranges
            self._ranges[at] = i32(start)
            self._ranges[at + 1] = i32(stop)
            self._num_ranges += 1

    def end_at(self, prompt: i64, resend: i64, output: i64) -> None:
        """Note the entries with which the prompt ends, with and without its last token, and the output; -1: none."""
        self._prompt = prompt
        self._resend = resend
        self._output = output

    def end(self) -> None:
        """Take every block that is let go of as ordinary from now on."""
        self._num_ranges = _ALL

    def is_passing(self, entry: i64, block: i64) -> bool:
        """Return whether no wanted hit needs an entry or, where no request lets go of it, the block is noted. O(1)."""
        if self._num_ranges == _ALL:
            return self._newer[block] == _PASSING
        at: i64 = 0
        stop = 2 * self._num_ranges
        while at < stop:
            if i64(self._ranges[at]) <= entry and entry < i64(self._ranges[at + 1]):
                return False
            at += 2
        return True

    def note_ordinary(self, entry: i64, block: i64) -> None:
        """Note that a candidate is ordinary, and what ended at its entry of the table that is let go of. O(1)."""
        noted: i64 = _ORDINARY
        if self._num_ranges != _ALL:
            if entry == self._output:
                noted = _OUTPUT
            elif entry == self._prompt or entry == self._resend:
                noted = _PROMPT
        self._newer[block] = i32(noted)

    def note_tip(self, block: i64, tip: i64) -> None:
        """Note what ended with a free block that is ordinary. O(1)."""
        self._newer[block] = _PROMPT if tip == AT_PROMPT else _OUTPUT

    def tip(self, block: i64) -> i64:
        """Return what ended with a free block that no request has gone on from since. O(1)."""
        noted = self._newer[block]
        if noted == _PROMPT:
            return AT_PROMPT
        return AT_OUTPUT if noted == _OUTPUT else NO_TIP

    def note(self, block: i64, is_passing: bool) -> None:
        """Note whether a block is passing that the last of its requests has left, or that is in front. O(1)."""
        self._newer[block] = _PASSING if is_passing else _ORDINARY

    # ------------------------------------------------------------------ what is spared

    def is_spared(self, block: i64) -> bool:
        """Return whether a free block is one of the last passing ones. O(1)."""
        return self._newer[block] >= 0

    def is_noted(self, block: i64) -> bool:
        """Return whether a block is passing, as far as is noted here. O(1)."""
        return self._newer[block] >= _PASSING

    def wants_none(self) -> bool:
        """Return whether no entry is wanted of the table that is being let go of. O(1)."""
        return self._num_ranges == 0

    def spare(self, block: i64) -> None:
        """Spare a passing block, the last to be let go of. O(1)."""
        newest = self._older[0]
        self._newer[i64(newest)] = i32(block)
        self._older[block] = newest
        self._newer[block] = 0
        self._older[0] = i32(block)
        self.num_spared += 1

    def spare_all(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Spare the blocks of a range, the last entry first. O(entries)."""
        newer = self._newer
        older = self._older
        newest: i64 = i64(older[0])
        self.num_spared += stop - start
        while stop > start:
            stop -= 1
            block: i64 = i64(ids[stop])
            newer[newest] = i32(block)
            older[block] = i32(newest)
            newest = block
        newer[newest] = 0
        older[0] = i32(newest)

    def spare_no_more(self) -> i64:
        """Return the first of the spared blocks, which is not spared any more. O(1)."""
        oldest: i64 = i64(self._newer[0])
        self._drop(oldest)
        return oldest

    def _drop(self, block: i64) -> None:
        """Spare a block no more. O(1)."""
        newer = self._newer[block]
        older = self._older[block]
        self._newer[i64(older)] = newer
        self._older[i64(newer)] = older
        self._newer[block] = _ORDINARY
        self.num_spared -= 1

    # ------------------------------------------------------------------ what leaves the queue

    def taken(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that the first blocks of the queue are taken, those of a range. O(blocks)."""
        if self.last == 0 and self.num_spared == 0:
            return
        while start < stop:
            self.taken_one(i64(ids[start]))
            start += 1

    def taken_one(self, block: i64) -> None:
        """Note that the first block of the queue is taken. O(1)."""
        newer = self._newer
        noted: i64 = i64(newer[block])
        if noted < _PASSING:
            return
        if noted >= 0:
            # The first of the queue is the first of the spared ones too: both stand in the order of their release.
            newer[0] = i32(noted)
            self._older[noted] = 0
            self.num_spared -= 1
        elif block == self.last:
            self.last = 0
        newer[block] = _ORDINARY

    def held(self, block: i64, before: i64, is_bare: bool, keeps: bool) -> None:
        """Note that a candidate is held again. O(1).

        Args:
            block: the candidate, which is still in the queue.
            before: the block in front of it.
            is_bare: whether that has no content, or there is none.
            keeps: whether it stays as it is, since no request holds it.
        """
        is_passing = self._newer[block] >= _PASSING
        if block == self.last:
            self.last = 0 if is_bare else before
        if self._newer[block] >= 0:
            self._drop(block)
        self.note(block, keeps and is_passing)

    def leave(self, candidates: list[int]) -> None:
        """Note that no candidate stands in the queue any more, given those that are passing. O(candidates)."""
        for block in candidates:
            self._newer[block] = _ORDINARY
        self.last = 0
        self.num_spared = 0
        self._newer[0] = 0
        self._older[0] = 0

    def clear(self, last: i64) -> None:
        """Note that no block has content any more; `last` is the last one of the queue. O(count)."""
        self.last = 0
        self.last_bare = last
        self.num_spared = 0
        block: i64 = 1
        while block < i64(len(self._newer)):
            self._newer[block] = _ORDINARY
            block += 1
        self._newer[0] = 0
        self._older[0] = 0

    def spared(self) -> list[int]:
        """Return the spared blocks, first to be let go of first. O(spared)."""
        found: list[int] = []
        block: i64 = i64(self._newer[0])
        while block != 0 and i64(len(found)) <= self.num_spared:
            found.append(int(block))
            block = i64(self._newer[block])
        return found

"""Which blocks are passing, as they are let go of, and where they are in the free queue.

A block is passing if no hit that its last holder wanted needs it. Passing blocks stand in front of other candidates, in
the order in which they were let go of::

    | without content | passing | ordinary, and the last `spares` passing ones, in the order of their release |

The last request that held a block decides. A connector that holds it longer only delays it, so the class is noted.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, u8

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.index import LINK

WHOLE: Final = 1 << 16
"""The whole pool, in the parts that the learned share of passing blocks is counted in."""
SLOW: Final = 5
"""One admission moves the learned share by one part in 2 ** SLOW of the way to what it shows."""
_PARTS: Final = 6  # a hit counts whole if it would be shorter by a sixth without passing blocks
_MOST_SHARED: Final = 4  # one part of so many of the pool is the most that is spared
# Instead of a neighbour in the ring of spared blocks:
_PASSING: Final = -1  # passing: in front of the others, or left so by its last request and held by a connector
_ORDINARY: Final = -2  # not passing, as far as is known
_PROMPT: Final = -3  # of a free block: ordinary, and a prompt ended with it that no request has gone on from
_OUTPUT: Final = -4  # likewise, the output of a request
_ASKED: Final = -1  # instead of a neighbour in the ring, of a block of full attention
NO_TIP: Final = 0
AT_PROMPT: Final = 1
AT_OUTPUT: Final = 2
"""What ended with a free block that no request has gone on from since."""
_MOST: Final = 12  # ranges of entries: of five lengths, of each a window and sinks
# Instead of a number of ranges:
_NOTED: Final = -1  # no request lets go of the blocks: each is what is noted of it
_PLAIN: Final = -2  # all blocks are ordinary, and nothing ended with them


@final
class PassingBlocks:
    """The passing blocks among the candidates, and the entries that are wanted of a table that is being let go of.

    Attributes:
        spares: how many of the last passing blocks go as ordinary ones do.
        whole, slow, parts: what `learn` counts shares in, how slowly it does, and which part of a hit counts as all of
            it; `whole` is 0 where `spares` is fixed.
        share: the part of `whole` that passing blocks are worth, as learned.
        every: hits of each multiple of so many tokens are wanted; 0: none are for that alone.
        last: the last passing block in front of the ordinary ones, 0: there is none.
        last_bare: the last block without content, if the queue begins with one.
        num_spared: passing blocks that are spared now.
    """

    def __init__(self, count: i64, spares: i64, whole: i64 = 0, every: i64 = 0) -> None:
        """Start with every block without content. O(count).

        Takes 8 bytes for each block, a quarter of one if no block is ever spared.
        """
        self._count: i64 = count
        self.spares: i64 = spares
        self.whole: i64 = whole
        self.slow: i64 = SLOW
        self.parts: i64 = _PARTS
        self.share: i64 = 0
        self.every: i64 = every
        self.last: i64 = 0
        self.last_bare: i64 = count - 1
        self.num_spared: i64 = 0
        # A ring of the spared blocks, first to be let go of first, from block 0; without it, two bits for each block.
        # Blocks of full attention are never in it: there `_older` says whether a request asked for a hit to end there.
        self._has_ring: bool = spares > 0 or whole > 0
        ringed: i64 = count if self._has_ring else 1
        packed: i64 = 0 if self._has_ring else (count + 3) // 4
        self._newer: vec[i32] = vec[i32]([_ORDINARY] * ringed)
        self._older: vec[i32] = zeros32(ringed)
        self._bits: vec[u8] = vec[u8]([0] * packed)
        self._newer[0] = 0
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

    def copy(self) -> PassingBlocks:
        """Return an independent copy. O(count)."""
        twin = PassingBlocks(1, self.spares, self.whole, self.every)
        twin._count = self._count
        twin._has_ring = self._has_ring  # though nothing is spared any more: see `leave`
        twin.slow = self.slow
        twin.parts = self.parts
        twin.share = self.share
        twin.last = self.last
        twin.last_bare = self.last_bare
        twin.num_spared = self.num_spared
        twin._newer = self._newer[:]
        twin._older = self._older[:]
        twin._bits = self._bits[:]
        return twin

    def _noted(self, block: i64) -> i64:
        """Return what is noted of a block: its neighbour in the ring of spared ones, or one of the constants above."""
        if self._has_ring:
            return i64(self._newer[block])
        return -1 - (((i64(self._bits[block >> 2]) >> 2 * (block & 3)) + 1) & 3)

    def _set(self, block: i64, noted: i64) -> None:
        """Note one of the constants above of a block."""
        if self._has_ring:
            self._newer[block] = i32(noted)
        else:
            at = 2 * (block & 3)
            others = i64(self._bits[block >> 2]) & (255 - (3 << at))
            self._bits[block >> 2] = u8(others | ((-2 - noted) & 3) << at)

    # ------------------------------------------------------------------ what is learned

    def learn(self, hit: i64, served: i64, lacks: bool) -> None:
        """Learn from an admission how many passing blocks to spare. O(1). law: POLICY-6.

        Args:
            hit: tokens of its hit. Without one, a lack says nothing about the blocks that are spared.
            served: how many fewer it would have without passing blocks.
            lacks: whether passing blocks that are gone would have made it longer.
        """
        if hit > 0 or not lacks:
            tokens: i64 = max(hit, 1)
            served = min(self.parts * served, hit)
            more: i64 = (self.whole - self.share) * served // tokens >> self.slow
            self.share += more - (self.share * (tokens - served) // tokens >> self.slow)
        if lacks:
            self.share += (self.whole - self.share) >> (self.slow + 1)
        self.spares = self._count * min(self.share, self.whole // _MOST_SHARED) // self.whole

    def ask(self, block: i64) -> None:
        """Note that a request has wanted a hit to end with a block of full attention. O(1)."""
        self._older[block] = i32(_ASKED)

    def is_asked(self, block: i64) -> bool:
        """Return whether a request has wanted a hit to end with a block of full attention. O(1)."""
        return i64(self._older[block]) == _ASKED

    def renew(self, block: i64) -> None:
        """Note that a block has lost its content. O(1)."""
        if self.whole > 0:
            self._older[block] = 0

    def recall(self, num_spared: i64) -> None:
        """Spare as many blocks as an earlier process had learned to, or none where nothing is learned. O(1)."""
        if self.whole > 0:
            self.spares = min(num_spared, self._count // _MOST_SHARED)
            self.share = (self.spares * self.whole + self._count - 1) // self._count

    # ------------------------------------------------------------------ what is wanted of a table

    def begin(self) -> None:
        """Start with a table of which no entry is wanted. Takes no memory."""
        self._num_ranges = 0
        self._period = 0
        self._prompt = self._resend = self._output = -1

    def want(self, start: i64, stop: i64) -> None:
        """Want the entries of a range. O(1); takes no memory."""
        if start < stop:
            at = 2 * self._num_ranges
            self._ranges[at] = i32(start)
            self._ranges[at + 1] = i32(stop)
            self._num_ranges += 1

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

    def begin_plain(self) -> None:
        """Start with a table of which all entries are wanted, and nothing ended at one. O(1)."""
        self.begin()
        self._num_ranges = _PLAIN

    def is_passing(self, entry: i64, block: i64) -> bool:
        """Return whether no wanted hit needs an entry or, where no request lets go of it, the block is noted. O(1)."""
        if self._num_ranges == _NOTED:
            return self._noted(block) == _PASSING
        if self._num_ranges == _PLAIN:
            return False
        at: i64 = 0
        stop = 2 * self._num_ranges
        while at < stop:
            if i64(self._ranges[at]) <= entry and entry < i64(self._ranges[at + 1]):
                return False
            at += 2
        if self._period == 0 or entry >= self._counted_to:
            return True
        at = entry - self._counted_from
        return at % self._period < self._period - self._num_last if at >= 0 else self._num_last < self._period - at

    def first_alike(self, start: i64, stop: i64) -> i64:
        """Return the first entry from `start` on from which all up to `stop` are surely of one class. O(1)."""
        if self._num_ranges == _PLAIN or start == stop:
            return start
        if self._num_ranges == _NOTED or self._period > 0:
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

    def note_ordinary(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that the candidates of a range are ordinary, and what ended at entries of their table. O(entries).

        After `end` nothing changes: each stays as it is noted.
        """
        if self._num_ranges != _NOTED:
            self.note_all(ids, start, stop, False)
            self._note_end(ids, start, stop, self._resend, _PROMPT)
            self._note_end(ids, start, stop, self._prompt, _PROMPT)
            self._note_end(ids, start, stop, self._output, _OUTPUT)

    def _note_end(self, ids: vec[i32], start: i64, stop: i64, entry: i64, noted: i64) -> None:
        """Note what ended at an entry, if that is in a range. O(1)."""
        if start <= entry and entry < stop:
            self._set(i64(ids[entry]), noted)

    def note_tip(self, block: i64, tip: i64) -> None:
        """Note what ended with a free block that is ordinary. O(1)."""
        self._set(block, _PROMPT if tip == AT_PROMPT else _OUTPUT)

    def tip(self, block: i64) -> i64:
        """Return what ended with a free block that no request has gone on from since. O(1)."""
        noted = self._noted(block)
        if noted == _PROMPT:
            return AT_PROMPT
        return AT_OUTPUT if noted == _OUTPUT else NO_TIP

    def note(self, block: i64, is_passing: bool) -> None:
        """Note whether a block is passing that the last of its requests has left, or that is in front. O(1)."""
        self._set(block, _PASSING if is_passing else _ORDINARY)

    # ------------------------------------------------------------------ what is spared

    def is_spared(self, block: i64) -> bool:
        """Return whether a free block is one of the last passing ones. O(1)."""
        return self._noted(block) >= 0

    def is_noted(self, block: i64) -> bool:
        """Return whether a block is passing, as far as is noted here. O(1)."""
        return self._noted(block) >= _PASSING

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

    def note_all(self, ids: vec[i32], start: i64, stop: i64, is_passing: bool) -> None:
        """Note of the blocks of a range that all are passing, or none. O(entries)."""
        noted: i32 = _PASSING if is_passing else _ORDINARY
        if self._has_ring:
            newer = self._newer
            while start < stop:
                newer[i64(ids[start])] = noted
                start += 1
        while start < stop:
            self._set(i64(ids[start]), i64(noted))
            start += 1

    def first_spared(self) -> i64:
        """Return the first of the spared blocks. O(1)."""
        return i64(self._newer[0])

    def spare_no_more(self, rows: vec[i64]) -> i64:
        """Spare the first spared blocks no more, as many as are too many and side by side in the queue.

        Returns the last of them. O(blocks).
        """
        newer = self._newer
        block = i64(newer[0])
        self.num_spared -= 1
        while self.num_spared > self.spares and rows[4 * block + LINK] >> 32 == i64(newer[block]):
            behind = i64(newer[block])
            newer[block] = _PASSING
            block = behind
            self.num_spared -= 1
        newer[0] = newer[block]
        newer[block] = _PASSING
        self._older[i64(newer[0])] = 0
        return block

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
        newer = self._newer
        has_ring = self._has_ring
        if self.whole > 0:
            self._renew_all(ids, start, stop)
        if self.last == 0 and self.num_spared == 0:
            return
        while start < stop:
            block: i64 = i64(ids[start])
            start += 1
            noted: i64 = 0
            if has_ring:
                noted = i64(newer[block])
            # Most blocks are in front: nothing but the note is theirs.
            if noted >= 0 or block == self.last:
                self.taken_one(block)
            elif noted == _PASSING:
                newer[block] = _ORDINARY

    def _renew_all(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Note that the blocks of a range that are not spared lose their content. O(blocks)."""
        older = self._older
        while start < stop:
            block: i64 = i64(ids[start])
            if i64(older[block]) == _ASKED:
                older[block] = 0
            start += 1

    def taken_one(self, block: i64) -> None:
        """Note that the first block of the queue is taken. O(1)."""
        noted = self._noted(block)
        if noted < _PASSING:
            self.renew(block)
            return
        if noted >= 0:
            # The first of the queue is the first of the spared ones too: both stand in the order of their release.
            self._newer[0] = i32(noted)
            self._older[noted] = 0
            self.num_spared -= 1
        elif block == self.last:
            self.last = 0
        self._set(block, _ORDINARY)

    def held(self, block: i64, before: i64, is_bare: bool, keeps: bool) -> None:
        """Note that a candidate is held again. O(1).

        Args:
            block: the candidate, which is still in the queue.
            before: the block in front of it.
            is_bare: whether that has no content, or there is none.
            keeps: whether it stays as it is, since no request holds it.
        """
        is_passing = self.is_noted(block)
        if block == self.last:
            self.last = 0 if is_bare else before
        if self.is_spared(block):
            self._drop(block)
        self.note(block, keeps and is_passing)

    def leave(self, candidates: list[int]) -> None:
        """Note that no candidate stands in the queue any more, given those that are passing. O(candidates)."""
        for block in candidates:
            self._set(block, _ORDINARY)
        self.last = 0
        self.spares = self.whole = 0
        self.num_spared = 0
        self._newer[0] = 0
        self._older[0] = 0

    def clear(self, last: i64) -> None:
        """Note that no block has content any more; `last` is the last one of the queue. O(count)."""
        self.last = 0
        self.last_bare = last
        self.num_spared = 0
        block: i64 = 1
        while block < self._count:
            self._set(block, _ORDINARY)
            self.renew(block)
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

"""The order in which passing blocks are evicted first: the queue by age, with these in front of the other candidates.

| without content | passing | ordinary, and the last `spares` passing ones, in the order of their release |
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.check import demand
from blockwright.core.pool.index import LINK, MARK
from blockwright.core.pool.order import CandidateOrder, Page
from blockwright.core.pool.queue import BEFORE, insert, insert_all, join
from blockwright.core.worth.classes import ORDINARY, PASSING, SPARED, Classes

WHOLE: Final = 1 << 16
"""The whole pool, in the parts that the learned share of passing blocks is counted in."""
SLOW: Final = 5
"""One admission moves the learned share by one part in 2 ** SLOW of the way to what it shows."""
_PARTS: Final = 6  # a hit counts whole if it would be shorter by a sixth without passing blocks
_MOST_SHARED: Final = 4  # one part of so many of the pool is the most that is spared


@final
class PassingOrder(CandidateOrder):
    """Puts passing blocks in front of the other candidates, in the store's queue. law: POLICY-4.

    Attributes:
        classes: which blocks are passing.
        spares: how many of the last passing blocks go as ordinary ones do.
        whole, slow, parts: what `learn` counts shares in, how slowly it does, and which part of a hit counts as all of
            it; `whole` is 0 where `spares` is fixed.
        share: the part of `whole` that passing blocks are worth, as learned.
        last: the last passing block in front of the ordinary ones, 0: there is none.
        last_bare: the last block without content, if the queue begins with one.
        num_spared: passing blocks that are spared now.
    """

    def __init__(self, count: i64, classes: Classes, spares: i64, whole: i64 = 0) -> None:
        """Start with every block without content. O(count), 8 bytes for each block if any is ever spared."""
        super().__init__()
        self.in_queue = True
        self._count: i64 = count
        self._size: i64 = count  # of the pool now
        self.classes: Classes = classes
        self.spares = spares
        self.whole: i64 = whole
        self.slow: i64 = SLOW
        self.parts: i64 = _PARTS
        self.share: i64 = 0
        self.last: i64 = 0
        self.last_bare: i64 = count - 1
        self.num_spared: i64 = 0
        # A ring of the spared blocks, first to be let go of first, from block 0.
        self._newer: vec[i32] = zeros32(count if spares > 0 or whole > 0 else 1)
        self._older: vec[i32] = zeros32(count if spares > 0 or whole > 0 else 1)

    def copy(self) -> CandidateOrder:
        return self.copied(PassingOrder(1, self.classes, 0))

    # ------------------------------------------------------------------ what is learned

    def learn(self, hit: i64, served: i64, lacks: bool) -> None:
        """Learn from an admission how many passing blocks to spare. O(blocks spared no more). law: POLICY-6.

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
        self.spares = self._size * min(self.share, self.whole // _MOST_SHARED) // self.whole
        self._spare_fewer()

    def recall(self, num_spared: i64) -> None:
        """Spare as many blocks as an earlier process had learned to, or none where nothing is learned. O(1)."""
        if self.whole > 0:
            self.spares = min(num_spared, self._size // _MOST_SHARED)
            self.share = (self.spares * self.whole + self._size - 1) // self._size

    # ------------------------------------------------------------------ what the store reports

    def release(self, page: Page, ids: vec[i32], start: i64, stop: i64) -> i64:
        """See `CandidateOrder.release`. law: REF-1, QUEUE-1, POLICY-4.

        Candidates of one class go to the queue together, so that their reads wait for memory all at once.
        """
        rows, classes = self.rows, self.classes
        freed: i64 = 0
        while stop > start:
            block: i64 = i64(ids[stop - 1])
            link = rows[4 * block + LINK]
            # The first cases are of entries that become no candidate.
            if block == 0:
                stop -= 1
            elif link < -1:
                rows[4 * block + LINK] = link + 1
                classes.left(page, stop - 1, block, -1 - link, rows[4 * block + MARK] != 0)
                stop -= 1
            elif rows[4 * block + MARK] == 0:
                assert link == -1, "a block is released by those that hold it"
                if rows[4 * (rows[LINK] >> 32) + MARK] != 0 or rows[LINK] == 0:
                    self.last_bare = block
                classes.note(block, False)
                insert(rows, block, 0)
                freed += 1
                stop -= 1
            else:
                assert link == -1, "a block is released by those that hold it"
                first = self._first_candidate(ids, classes.first_alike(start, stop), stop)
                if not classes.is_passing(first, i64(ids[first])):
                    insert_all(rows, ids, first, stop, rows[LINK] & BEFORE)
                    classes.note_ordinary(ids, first, stop)
                elif self.spares > 0:
                    insert_all(rows, ids, first, stop, rows[LINK] & BEFORE)
                    self._spare_all(ids, first, stop)
                    self._spare_fewer()
                else:
                    self.last = insert_all(rows, ids, first, stop, self._last_to_pass())
                    classes.note_all(ids, first, stop, PASSING)
                freed += stop - first
                stop = first
        return freed

    def _first_candidate(self, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Return the first entry from which all up to `stop` are published and have one holder. O(entries)."""
        rows = self.rows
        while stop > start and rows[4 * i64(ids[stop - 1]) + LINK] == -1 and rows[4 * i64(ids[stop - 1]) + MARK] != 0:
            stop -= 1
        return stop

    def _last_to_pass(self) -> i64:
        """Return the last block in front of the ordinary ones, 0 if there is none. O(1)."""
        after = self.last
        if after == 0:
            first = self.rows[LINK] >> 32
            after = self.last_bare if first != 0 and self.rows[4 * first + MARK] == 0 else 0
        return after

    def _spare_all(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Spare the blocks of a range, the last entry first. O(entries)."""
        newer, older = self._newer, self._older
        newest: i64 = i64(older[0])
        self.num_spared += stop - start
        self.classes.note_all(ids, start, stop, SPARED)
        while stop > start:
            stop -= 1
            block: i64 = i64(ids[stop])
            newer[newest] = i32(block)
            older[block] = i32(newest)
            newest = block
        newer[newest] = 0
        older[0] = i32(newest)

    def _spare_fewer(self) -> None:
        """Put the first spared blocks in front of the ordinary ones until no more than `spares` are left.

        Those that are side by side in the queue move in one go.
        """
        rows, newer, classes = self.rows, self._newer, self.classes
        while self.num_spared > self.spares:
            first = block = i64(newer[0])
            self.num_spared -= 1
            classes.set(block, PASSING)
            while self.num_spared > self.spares and rows[4 * block + LINK] >> 32 == i64(newer[block]):
                block = i64(newer[block])
                classes.set(block, PASSING)
                self.num_spared -= 1
            newer[0] = newer[block]
            self._older[i64(newer[0])] = 0
            join(rows, rows[4 * first + LINK] & BEFORE, rows[4 * block + LINK] >> 32)
            ahead = self._last_to_pass()
            join(rows, block, rows[4 * ahead + LINK] >> 32)
            join(rows, ahead, first)
            self.last = block

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Note that the first blocks of the queue are taken. O(blocks)."""
        while start < stop:
            self.taken(i64(ids[start]))
            start += 1

    def taken(self, block: i64) -> None:
        noted = i64(self.classes.of[block])
        if noted != ORDINARY:
            if noted == SPARED:
                self._spare_no_more(block)
            elif block == self.last:
                self.last = 0
            self.classes.of[block] = ORDINARY

    def _spare_no_more(self, block: i64) -> None:
        """Take a block out of the ring of spared ones. O(1)."""
        newer = self._newer[block]
        older = self._older[block]
        self._newer[i64(older)] = newer
        self._older[i64(newer)] = older
        self.num_spared -= 1

    def leave(self, ids: vec[i32]) -> list[int]:
        """Return none: all candidates are in the queue."""
        return []

    def held(self, block: i64, before: i64, is_outside: bool) -> None:
        """See `CandidateOrder.held`. A connector that holds a candidate leaves its class as it is."""
        is_passing = self.classes.is_noted(block)
        if block == self.last:
            self.last = 0 if self.rows[4 * before + MARK] == 0 else before
        if i64(self.classes.of[block]) == SPARED:
            self._spare_no_more(block)
        self.classes.note(block, is_outside and is_passing)

    def shared(self, block: i64, is_outside: bool) -> None:
        self.classes.note(block, is_outside and self.classes.is_noted(block))

    def lost(self, block: i64) -> None:
        self.classes.of[block] = ORDINARY

    def resize(self, end: i64) -> None:
        """See `CandidateOrder.resize`. O(blocks without content)."""
        self._size = end
        block = self.rows[LINK] >> 32
        while block != 0 and self.rows[4 * block + MARK] == 0:
            self.last_bare = block
            block = self.rows[4 * block + LINK] >> 32
        if self.whole > 0:
            self.spares = end * min(self.share, self.whole // _MOST_SHARED) // self.whole
            self._spare_fewer()

    def clear(self) -> list[int]:
        """See `CandidateOrder.clear`. O(count)."""
        self.last = self.num_spared = 0
        self.last_bare = self.rows[LINK] & BEFORE
        block: i64 = 1
        while block < self._count:
            self.classes.of[block] = ORDINARY
            block += 1
        self._newer[0] = self._older[0] = 0
        return []

    # ------------------------------------------------------------------ what it answers

    def candidates(self) -> list[int]:
        """Return none: all candidates are in the queue."""
        return []

    def ranked(self) -> list[int]:
        return []

    def is_passing(self, block: i64) -> bool:
        return self.classes.is_noted(block)

    def class_of(self, block: i64) -> i64:
        return self.classes.class_of(block)

    def check(self, queue: list[int], keyed: list[bool]) -> None:
        """See `CandidateOrder.check`: POLICY-4."""
        num_bare = [keyed[block] for block in queue].count(False)
        if num_bare > 0:
            demand("POLICY-4", "the last block without content", queue[num_bare - 1], int(self.last_bare))
        last = int(self.last)
        demand("POLICY-4", f"the last passing block {last} is a candidate", True, last == 0 or last in queue[num_bare:])
        stop = queue.index(last) + 1 if last != 0 else num_bare
        ring: list[int] = []
        block: i64 = i64(self._newer[0])
        while block != 0 and i64(len(ring)) <= self.num_spared:
            ring.append(int(block))
            block = i64(self._newer[block])
        spared = [each for each in queue[stop:] if self.classes.of[each] == SPARED]
        demand("POLICY-4", "spared blocks, in the order of the queue", spared, ring)
        noted = [each for each in queue if self.classes.is_noted(each)]
        demand("POLICY-4", "passing candidates, in the order of the queue", queue[num_bare:stop] + ring, noted)
        demand("POLICY-4", "the number of spared blocks", min(len(ring), int(self.spares)), int(self.num_spared))

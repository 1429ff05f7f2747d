"""The other eviction order: least recently accessed first, then the most tokens, then the lowest id.

An indexed binary heap over packed arrays: `_heap` holds the free published blocks, `_place` the position of each block
in it, so that one in the middle can leave (a hit) or move (its access time is refreshed). Every operation is O(log n).
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.order import CandidateOrder
from blockwright.core.worth.ranked import RankedOrder

NEVER: Final = -1.0
"""The access time of a block that has not been accessed since it was taken."""


@final
class AccessOrder(RankedOrder):
    """Orders the eviction candidates by access; also keeps the access times of blocks that are held."""

    def __init__(self, count: i64) -> None:
        """Start without candidates, for block ids below `count`. O(count)."""
        super().__init__()
        self._heap: vec[i32] = zeros32(count)
        self._place: vec[i32] = zeros32(count)  # place in the heap plus one; 0: not in it
        self._times: vec[float] = vec[float]([NEVER] * count)
        self._lengths: vec[i32] = zeros32(count)

    def copy(self) -> CandidateOrder:
        return self.copied(AccessOrder(0))

    def time(self, block: i64) -> float:
        """Return when a block was last accessed. O(1)."""
        return self._times[block]

    def accessed(self, block: i64, now: float) -> None:
        """Note an access; a candidate moves to its new place at once. O(log n)."""
        self._times[block] = now
        self._settle(block)

    def measure(self, block: i64, num_tokens: i64) -> None:
        """Note how many tokens the prefix has that ends with a block. O(log n)."""
        self._lengths[block] = i32(num_tokens)
        self._settle(block)

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate; none is passing here. O(log n)."""
        self.size += 1
        self._up(self.size - 1, block)

    def remove(self, block: i64) -> None:
        """Take a candidate out of any position. O(log n)."""
        place: i64 = i64(self._place[block]) - 1
        assert place >= 0, "only a candidate is taken out"
        self._place[block] = 0
        self.size -= 1
        last: i64 = i64(self._heap[self.size])
        # The last block of the heap fills the hole; it may have to move either up or down from there.
        if last != block:
            self._up(place, last)
            self._settle(last)

    def pop(self) -> i64:
        """Take out the candidate that is evicted first, and forget its access; there must be one. O(log n)."""
        assert self.size > 0, "blocks are counted before they are taken"
        block: i64 = i64(self._heap[0])
        self.remove(block)
        self.forget(block)
        return block

    def forget(self, block: i64) -> None:
        """Forget the access and length of a block that has no content any more. O(1)."""
        self._times[block] = NEVER
        self._lengths[block] = 0

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Take out the candidates that are evicted first, and forget their accesses. O(candidates taken * log n)."""
        while at < stop:
            ids[at] = i32(self.pop())
            at += 1

    def clear(self) -> list[int]:
        """Take out all candidates, and forget their accesses. O(n log n)."""
        return [int(self.pop()) for _ in range(int(self.size))]

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, and return them. O(blocks log n)."""
        blocks: list[int] = []
        for block in ids:
            if self._place[i64(block)] != 0:
                self.remove(i64(block))
                blocks.append(int(block))
        return blocks

    def candidates(self) -> list[int]:
        """Return the candidates in the order in which they go. O(n log n)."""
        ranked = []
        place: i64 = 0
        while place < self.size:
            block: i64 = i64(self._heap[place])
            ranked.append((self._times[block], -int(self._lengths[block]), int(block)))
            place += 1
        ranked.sort()
        return [block for _, _, block in ranked]

    def is_sound(self) -> bool:
        """Return whether the heap is one, and every block knows its place, for the self-check. O(count)."""
        known: i64 = 0
        for place in self._place:
            if place != 0:
                known += 1
        if known != self.size:
            return False
        at: i64 = 0
        while at < self.size:
            block: i64 = i64(self._heap[at])
            if i64(self._place[block]) != at + 1:
                return False
            if at > 0 and self._precedes(block, i64(self._heap[(at - 1) // 2])):
                return False
            at += 1
        return True

    def _precedes(self, one: i64, other: i64) -> bool:
        """Return whether one block is evicted before another."""
        times = self._times
        if times[one] != times[other]:
            return times[one] < times[other]
        # Of two prefixes that were used at the same time, the longer one is of use to fewer requests.
        lengths = self._lengths
        if lengths[one] != lengths[other]:
            return lengths[one] > lengths[other]
        return one < other

    def _settle(self, block: i64) -> None:
        """Move a candidate to where it belongs; a block that is none stays out."""
        place: i64 = i64(self._place[block])
        # Held blocks keep their access times up to date as well, for the time when they are released.
        if place != 0:
            self._up(place - 1, block)
            self._down(i64(self._place[block]) - 1, block)

    def _up(self, place: i64, block: i64) -> None:
        """Put a block at a place or, while it precedes its parent there, above."""
        heap = self._heap
        while place > 0:
            above: i64 = (place - 1) // 2
            parent: i64 = i64(heap[above])
            if not self._precedes(block, parent):
                break
            heap[place] = i32(parent)
            self._place[parent] = i32(place + 1)
            place = above
        heap[place] = i32(block)
        self._place[block] = i32(place + 1)

    def _down(self, place: i64, block: i64) -> None:
        """Put a block at a place or, while a child precedes it there, below."""
        heap = self._heap
        size = self.size
        while True:
            below: i64 = 2 * place + 1
            if below >= size:
                break
            if below + 1 < size and self._precedes(i64(heap[below + 1]), i64(heap[below])):
                below += 1
            child: i64 = i64(heap[below])
            if not self._precedes(child, block):
                break
            heap[place] = i32(child)
            self._place[child] = i32(place + 1)
            place = below
        heap[place] = i32(block)
        self._place[block] = i32(place + 1)

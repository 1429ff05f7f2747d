"""The blocks of one device: the pool below all managers, with absolute ids, one block at a time.

Counters, free queue, prefix index, copies to come and eviction order are `BlockStore`'s. Its blocks 1..n are shown as
``first_id .. first_id + n - 1``. A `Block` keeps its *mark*, its absolute id plus one (0: it has none), so that blocks
of two devices are never mistaken for each other.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.check import demand
from blockwright.core.pool.store import BlockStore
from blockwright.core.worth.by_access import AccessOrder

# An epoch that never ends.
_NOT_FULL: Final = 2**62


@final
class DevicePool(BlockStore):
    """The pool of one device.

    Attributes:
        first_id: absolute id of its first block.
        null: the block set aside as the null block; 0 before there is one.
    """

    def __init__(self, num_blocks: i64, first_id: i64, by_access: bool) -> None:
        """Make a pool with every block free, evicting by access or by release. O(num_blocks)."""
        super().__init__(num_blocks + 1, None, AccessOrder(num_blocks + 1) if by_access else None)
        self._one: vec[i32] = zeros32(1)
        self.first_id: i64 = first_id
        self.null: i64 = 0
        # A block is computed once the epoch in which it was published has ended; until it is full that is `_NOT_FULL`.
        self._epoch: i64 = 1
        self._filled_in: vec[i64] = zeros64(num_blocks + 1)
        # 1 where a step has computed some of what a block holds.
        self._begun: vec[i32] = zeros32(num_blocks + 1)

    def copy(self) -> DevicePool:
        twin = DevicePool(0, self.first_id, False)
        self._copy_to(twin)
        twin.null = self.null
        twin._epoch = self._epoch
        twin._filled_in = self._filled_in[:]
        twin._begun = self._begun[:]
        return twin

    def num_total(self) -> i64:
        return self._count - 1

    def num_free(self) -> i64:
        return self._num_free

    def take_mark(self) -> i64:
        """Take a block; there must be a free one. Return its mark. O(1), O(log n) by access. law: PAGE-7."""
        block = self._take_one()
        self._filled_in[block] = _NOT_FULL
        self._begun[block] = 0
        return block + self.first_id

    def hold_one(self, mark: i64) -> None:
        self._one[0] = i32(mark - self.first_id)
        self._touch_entries(self._one)

    def release_one(self, mark: i64) -> None:
        self._one[0] = i32(mark - self.first_id)
        self._release(self._one, 0, 1)

    def take_null(self) -> int:
        """Set a block aside as the null block, if there is none yet; return its absolute id. One must be free."""
        # Taken once and never returned: entries that a window has passed all name it.
        if self.null == 0:
            self.null = self._take_one()
        return int(self.null + self.first_id - 1)

    def is_held(self, mark: i64) -> bool:
        block: i64 = mark - self.first_id
        return 0 < block < self._count and block != self.null and self.ref_count(block) > 0

    def is_free(self, mark: i64) -> bool:
        return self.ref_count(mark - self.first_id) == 0

    def sharers(self, mark: i64) -> i64:
        """Return how many hold a block, copies to come left out. O(1)."""
        return self.num_sharers(mark - self.first_id)

    def is_copy_end(self, mark: i64) -> bool:
        return self._copies.holders_of(mark - self.first_id) != 0

    def is_copy_target(self, mark: i64) -> bool:
        return self.is_destination(mark - self.first_id)

    def take_pairs(self) -> list[tuple[int, int]]:
        pairs: list[tuple[int, int]] = []
        copies = self._copies.pending
        shift = self.first_id - 1
        at: i64 = 1
        while at < i64(len(copies)):
            pairs.append((int(i64(copies[at]) + shift), int(i64(copies[at + 1]) + shift)))
            at += 3
        self._end_copies()
        return pairs

    def copy_one(self, mark: i64) -> i64:
        """Move one holder of a block to a copy of it; return the copy's mark. One block must be free. O(1)."""
        block = self._copy_on_write(mark - self.first_id, 0)
        self._filled_in[block] = _NOT_FULL
        self._begun[block] = self._begun[mark - self.first_id]
        return block + self.first_id

    # ------------------------------------------------------------------ content

    def find_words(self, low: i64, high: i64) -> i64:
        block = self._index.find(low, high, 0)
        return 0 if block == 0 else block + self.first_id

    def publish_words(self, mark: i64, low: i64, high: i64, num_tokens: i64) -> None:
        """Make a full block findable by a hash, not computed yet. law: PAGE-5, PAGE-6."""
        block: i64 = mark - self.first_id
        self._index.add(block, low, high, 0)
        self._filled_in[block] = self._epoch
        order = self._order
        if isinstance(order, AccessOrder):
            order.measure(block, num_tokens)

    def is_known(self, mark: i64) -> bool:
        return self._index.has_key(mark - self.first_id)

    def is_computed(self, mark: i64) -> bool:
        """Return whether a block is found by its content and that is there: marked as computed. O(1). law: PAGE-16."""
        return self._index.has_key(mark - self.first_id) and self.is_whole(mark)

    def is_whole(self, mark: i64) -> bool:
        """Return whether all slots of a block are computed, found or not. O(1)."""
        return self._filled_in[mark - self.first_id] < self._epoch

    def has_data(self, mark: i64) -> bool:
        return self.is_whole(mark) or self._begun[mark - self.first_id] != 0

    def note_computed(self, mark: i64, is_whole: bool) -> None:
        """Note that a step has computed some data of a block, or all of a full one. O(1)."""
        self._begun[mark - self.first_id] = 1
        if is_whole:
            self._filled_in[mark - self.first_id] = 0

    def carry_computed(self, mark: i64, source: DevicePool, from_mark: i64) -> None:
        """Note that a block was just taken to be a copy of one of another pool. O(1)."""
        if source.has_data(from_mark):
            self.note_computed(mark, source.is_whole(from_mark))

    def end_epoch(self) -> None:
        self._epoch += 1

    def time_of(self, mark: i64) -> float:
        order = self._order
        return order.time(mark - self.first_id) if isinstance(order, AccessOrder) else -1.0

    def access(self, mark: i64, now: float) -> None:
        """Note an access, of a free block too; the null block has none. law: PAGE-14. O(log n)."""
        order = self._order
        block: i64 = mark - self.first_id
        if isinstance(order, AccessOrder) and block != self.null:
            order.accessed(block, now)

    def reset(self) -> bool:
        """Forget all content; False, and nothing happens, while a block other than the null block is held. O(n)."""
        return self._forget_all(0 if self.null == 0 else 1)

    def can_reset(self) -> bool:
        return self._num_free + (0 if self.null == 0 else 1) == self._count - 1

    # ------------------------------------------------------------------ self-check

    def check_holders(self, entries: list[int] | None) -> None:
        """Recompute the counts, given the absolute ids in the entries of all tables, or None if unknown. O(n).

        Raises:
            InvariantError: PAGE-1, PAGE-2 or a law of the pool is broken.
        """
        self.check()
        expected = [0] * int(self._count)
        # A copy to come holds both its ends, so that neither is taken before it was made.
        for _, source, target in self.pending_copies():
            expected[source] += 1
            expected[target] += 1
        demand("PAGE-8", "ends of copies that are the null block", 0, expected[self.null] if self.null else 0)
        if self.null != 0:
            expected[self.null] += 1
            demand("PAGE-2", "the null block is published", False, self._index.has_key(self.null))
        counts = self.ref_counts()
        held = sum([1 for block in range(1, len(counts)) if counts[block] > 0])
        demand("PAGE-1", "free and held blocks", int(self.num_total()), int(self._num_free) + held)
        if entries is None:
            fewer = [block for block in range(len(counts)) if counts[block] < expected[block]]
            demand("PAGE-1", "blocks with fewer holders than copies to come and null block", [], fewer)
            return
        for entry in entries:
            block: i64 = entry - self.first_id + 1
            if 0 < block < self._count:
                expected[block] += 1
        demand("PAGE-1", "holders of each block: entries, copies to come, null block", expected, counts)

"""Parts of blocks that are published: hits may end at them.

Each part, a *tail*, has a number and stands under its key in an index of the same make as that of whole blocks. A block
that is published only in parts also has the key of the first of them in the index of whole blocks, until it is full: so
whatever asks there whether a block is published need not know of tails, and no lookup of whole blocks finds such a key,
since it is of another length.

Memory: 8 bytes per block, and about 60 bytes per tail.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import word_bytes
from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.check import demand
from blockwright.core.pool.index import PrefixIndex
from blockwright.core.pool.journal import Journal

_FEWEST: Final = 8
"""Numbers of tails that there is room for at first."""


@final
class TailIndex:
    """The tails of blocks, each a key and a count of hash units; every operation is O(tails of a block).

    Attributes:
        num_tails: tails that can be found.
        is_part: per block, 1 where its key in the index of whole blocks is that of a tail.
        journal: where tails that are forgotten are noted, if anywhere.
    """

    def __init__(self, num_blocks: i64, journal: Journal | None) -> None:
        """Make an index without tails. O(num_blocks)."""
        self.num_tails: i64 = 0
        self.journal: Journal | None = journal
        self.is_part: vec[i32] = zeros32(num_blocks)
        self._first: vec[i32] = zeros32(num_blocks)  # the tail of a block that was published last
        self._capacity: i64 = _FEWEST
        self._index: PrefixIndex = PrefixIndex(_FEWEST)
        # By number, from 1 on: the block, its units, and the next tail of the same block, or the next free number.
        self._blocks: vec[i32] = zeros32(_FEWEST)
        self._units: vec[i32] = zeros32(_FEWEST)
        self._next: vec[i32] = zeros32(_FEWEST)
        self._free: i64 = 0
        self._put_free(1)

    def _put_free(self, start: i64) -> None:
        """Put the numbers from one on into the list of free ones."""
        number = self._capacity - 1
        while number >= start:
            self._next[number] = i32(self._free)
            self._free = number
            number -= 1

    def copy(self, journal: Journal | None) -> TailIndex:
        """Return an independent copy, with a journal of its own. O(num_blocks + tails)."""
        twin = TailIndex(0, journal)
        twin.num_tails = self.num_tails
        twin.is_part = self.is_part[:]
        twin._first = self._first[:]
        twin._capacity = self._capacity
        twin._index = self._index.copy()
        twin._blocks = self._blocks[:]
        twin._units = self._units[:]
        twin._next = self._next[:]
        twin._free = self._free
        return twin

    def reserve(self, count: i64) -> None:
        """Take the memory for `count` more tails; nothing else changes. Amortized O(count)."""
        capacity = self._capacity
        while self.num_tails + count >= capacity:
            capacity *= 2
        if capacity == self._capacity:
            return
        index = PrefixIndex(capacity)
        for _, _, ring, _ in self._index.rings():
            for number in ring:  # oldest first, so that it goes on serving hits
                low, high, group = self._index.key(i64(number))
                index.add(i64(number), low, high, group)
        more = capacity - self._capacity
        blocks, units = extend(self._blocks[:], zeros32(more)), extend(self._units[:], zeros32(more))
        following = extend(self._next[:], zeros32(more))
        # All memory is taken: what follows cannot fail.
        start = self._capacity
        self._capacity = capacity
        self._blocks = blocks
        self._units = units
        self._next = following
        self._index = index
        self._put_free(start)

    def find(self, low: i64, high: i64, group: i64) -> i64:
        """Return the block of the oldest tail with this key, or 0. O(1)."""
        return i64(self._blocks[self._index.find(low, high, group)])

    def matches(self, block: i64, low: i64, high: i64, group: i64) -> bool:
        """Return whether a tail of a block has this key."""
        number = i64(self._first[block])
        while number != 0 and not self._index.matches(number, low, high, group):
            number = i64(self._next[number])
        return number != 0

    def longest(self, block: i64) -> i64:
        """Return the units of the longest tail of a block."""
        most: i64 = 0
        number = i64(self._first[block])
        while number != 0:
            most = max(most, i64(self._units[number]))
            number = i64(self._next[number])
        return most

    def publish(self, keys: PrefixIndex, block: i64, low: i64, high: i64, group: i64, units: i64) -> i64:
        """Make a part of a block findable; `keys` is the index of whole blocks. Takes no memory. law: KEY-1.

        Return the number of the new tail, or 0 if there is one already.
        """
        if self.matches(block, low, high, group):
            return 0
        number = self._free
        assert number != 0, "room is made before tails are published"
        self._free = i64(self._next[number])
        self._index.add(number, low, high, group)
        self._blocks[number] = i32(block)
        self._units[number] = i32(units)
        self._next[number] = self._first[block]
        self._first[block] = i32(number)
        self.num_tails += 1
        if not keys.has_key(block):
            keys.add(block, low, high, group)
            self.is_part[block] = 1
        return number

    def promote(self, keys: PrefixIndex, block: i64) -> None:
        """Make way for the key of a whole block, which was published in parts. law: PUB-2."""
        if self.is_part[block] != 0:
            keys.drop(block)
            self.is_part[block] = 0

    def move(self, keys: PrefixIndex, block: i64, other: i64) -> None:
        """Give the tail of a block that is published as nothing else to another block, the latest. law: UNIT-7."""
        number = i64(self._first[block])
        assert self._next[number] == 0, "a state is of one length"
        low, high, group = self._index.key(number)
        self.promote(keys, block)
        self._first[block] = 0
        self._index.drop(number)
        self._index.add(number, low, high, group)
        self._blocks[number] = i32(other)
        self._first[other] = i32(number)
        keys.add(other, low, high, group)
        self.is_part[other] = 1

    def forget(self, block: i64) -> None:
        """Forget the tails of a block that loses its key: none outlives it. law: KEY-1."""
        self.is_part[block] = 0
        number = i64(self._first[block])
        self._first[block] = 0
        while number != 0:
            following = i64(self._next[number])
            group = self._index.key(number)[2]
            was_last = self._index.drop(number)
            if self.journal is not None:
                self.journal.forgot_tail(number, group, was_last)
            self._next[number] = i32(self._free)
            self._free = number
            self.num_tails -= 1
            number = following

    def clear(self) -> None:
        """Forget all tails. Takes no memory. O(num_blocks + tails)."""
        block: i64 = 0
        while block < i64(len(self._first)):
            self.forget(block)
            block += 1

    def keys_of(self, block: i64) -> list[bytes]:
        """Return the 16-byte keys of the tails of a block."""
        found: list[bytes] = []
        number = i64(self._first[block])
        while number != 0:
            low, high, _ = self._index.key(number)
            found.append(word_bytes(low, high))
            number = i64(self._next[number])
        return found

    def check(self, keyed: list[bool]) -> list[int]:
        """Check that each tail is one of a published block, once for each length, and found under its key.

        Return the numbers of all tails, ascending.

        Raises:
            InvariantError: KEY-1 is broken.
        """
        numbers: list[int] = []
        for block in range(len(keyed)):
            units: list[int] = []
            number = i64(self._first[block])
            while number != 0 and i64(len(units)) <= self._capacity:
                units.append(int(self._units[number]))
                numbers.append(int(number))
                demand("KEY-1", f"the block of tail {number}", block, int(self._blocks[number]))
                demand("KEY-1", f"tail {number} of block {block} has a key", True, self._index.has_key(number))
                number = i64(self._next[number])
            demand("KEY-1", f"lengths of the tails of block {block}", sorted(set(units)), sorted(units))
            demand("KEY-1", f"block {block} has tails and no key", False, bool(units) and not keyed[block])
            is_part = self.is_part[block] != 0
            demand("KEY-1", f"block {block} has the key of a tail and no tail", False, is_part and not units)
        demand("KEY-1", "the number of tails", len(numbers), int(self.num_tails))
        return sorted(numbers)

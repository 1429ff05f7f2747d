"""Parts of blocks that are published: hits may end at them.

Each part, a *tail*, has a number and stands under its key in an index of the same make as that of whole blocks. A block
that is published only in parts also has the key of the first of them in the index of whole blocks, until it is full: so
whatever asks there whether a block is published need not know of tails, and no lookup of whole blocks finds such a key,
since it is of another length.

The tails of a block form a chain, as free numbers do. Its links lie in the rows of the index: above, the number of the
next tail; in the last 32 bits, the block. So tails that go together are dropped as the store drops a run of keys.

Memory: 4 bytes per block, and about 56 bytes per tail.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import word_bytes
from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.check import demand
from blockwright.core.pool.index import LINK, MARK, PrefixIndex
from blockwright.core.pool.journal import Journal

_FEWEST: Final = 8
"""Numbers of tails that there is room for at first."""
_BLOCK: Final = 0xFFFFFFFF
"""The part of a tail's link that is its block."""


@final
class TailIndex:
    """The tails of blocks, each a key and a count of hash units; every operation is O(tails of a block).

    Attributes:
        num_tails: tails that can be found.
        journal: where tails that are forgotten are noted, if anywhere.
    """

    def __init__(self, num_blocks: i64, journal: Journal | None) -> None:
        """Make an index without tails. O(num_blocks)."""
        self.num_tails: i64 = 0
        self.journal: Journal | None = journal
        # Per block, the tail that was published last; negative where its key in the index of whole blocks is of a tail.
        self._first: vec[i32] = zeros32(num_blocks)
        self._capacity: i64 = _FEWEST
        self._index: PrefixIndex = PrefixIndex(_FEWEST)
        self._units: vec[i32] = zeros32(_FEWEST)  # by number, from 1 on
        self._free: i64 = 0
        self._put_free(1)

    def _put_free(self, start: i64) -> None:
        """Put the numbers from one on into the list of free ones."""
        links = self._index.rows
        number = self._capacity - 1
        while number >= start:
            links[4 * number + LINK] = self._free << 32
            self._free = number
            number -= 1

    def copy(self, journal: Journal | None) -> TailIndex:
        """Return an independent copy, with a journal of its own. O(num_blocks + tails)."""
        twin = TailIndex(0, journal)
        twin.num_tails = self.num_tails
        twin._first = self._first[:]
        twin._capacity = self._capacity
        twin._index = self._index.copy()
        twin._units = self._units[:]
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
        units = extend(self._units[:], zeros32(capacity - self._capacity))
        # All memory is taken: what follows cannot fail.
        start = self._capacity
        at: i64 = 0
        while at < start:
            index.rows[4 * at + LINK] = self._index.rows[4 * at + LINK]
            at += 1
        self._capacity = capacity
        self._units = units
        self._index = index
        self._put_free(start)

    def edition(self) -> object:
        """Return an object that is the same as before iff no tail came or went since. O(1)."""
        return self._index.edition()

    def is_part(self, block: i64) -> bool:
        """Return whether a block's key in the index of whole blocks is that of a tail. O(1)."""
        return self._first[block] < 0

    def first(self, block: i64) -> i64:
        """Return the number of the tail of a block that was published last, or 0."""
        number: i64 = i64(self._first[block])
        if number < 0:
            return -number
        return number

    def _after(self, number: i64) -> i64:
        """Return the number of the next tail of the same block, or 0."""
        return self._index.rows[4 * number + LINK] >> 32

    def find(self, low: i64, high: i64, group: i64) -> i64:
        """Return the block of the oldest tail with this key, or 0. O(1)."""
        return self._index.rows[4 * self._index.find(low, high, group) + LINK] & _BLOCK

    def find_last(self, words: vec[i64], group: i64, start: i64, stop: i64, step: i64) -> i64:
        """Return the last of the keys stop, stop - step, ... behind number `start` that a tail has, or `start`."""
        return self._index.find_last(words, group, start, stop, step)

    def matches(self, block: i64, low: i64, high: i64, group: i64) -> bool:
        """Return whether a tail of a block has this key."""
        number = self.first(block)
        while number != 0 and not self._index.matches(number, low, high, group):
            number = self._after(number)
        return number != 0

    def longest(self, block: i64) -> i64:
        """Return the units of the longest tail of a block."""
        return i64(self._units[self._longest(block)])

    def _longest(self, block: i64) -> i64:
        """Return the number of the longest tail of a block, or 0."""
        found = number = self.first(block)
        while number != 0:
            if self._units[number] > self._units[found]:
                found = number
            number = self._after(number)
        return found

    def longest_key(self, block: i64) -> tuple[i64, bool]:
        """Return the low word of the key of the longest tail of a block, and whether no other block has that key."""
        number = self._longest(block)
        return self._index.key(number)[0], self._index.is_single(number)

    def publish_run(
        self,
        keys: PrefixIndex,
        ids: vec[i32],
        words: vec[i64],
        hashed: i64,
        tails: vec[i64],
        start: i64,
        stop: i64,
        group: i64,
        size: i64,
        unit: i64,
    ) -> None:
        """Make the parts of a table's blocks findable that end with a range of tails. Takes no memory. law: KEY-1.

        What is published already is passed over, and null blocks, and tails that end with a block. O(tails).

        Args:
            keys: the index of whole blocks.
            ids: the blocks, each of `size` tokens.
            words: the keys of the request's units of `hashed` tokens.
            tails: lengths, in tokens, each a multiple of `unit`.
            start, stop: the range of them.
            group: the group of layers of the table.
        """
        index, first, units = self._index, self._first, self._units
        links, rows = index.rows, keys.rows
        free, num_tails = self._free, self.num_tails
        while start < stop:
            length = tails[start]
            start += 1
            entry = length // size
            inside = (length - entry * size) // unit
            if inside == 0 or ids[entry] == 0:
                continue
            block = i64(ids[entry])
            head = i64(first[block])
            is_part = head < 0
            if is_part:
                head = -head
            # A block has one content, so its parts differ in their lengths.
            number = head
            while number != 0 and i64(units[number]) != inside:
                number = links[4 * number + LINK] >> 32
            if number != 0:
                continue
            number = free
            assert number != 0, "room is made before tails are published"
            free = links[4 * number + LINK] >> 32
            at = 2 * (length // hashed - 1)
            index.add(number, words[at], words[at + 1], group)
            units[number] = i32(inside)
            links[4 * number + LINK] = head << 32 | block
            if rows[4 * block + MARK] == 0:
                keys.add(block, words[at], words[at + 1], group)
                is_part = True
            first[block] = i32(number)
            if is_part:
                first[block] = i32(-number)
            num_tails += 1
        self._free = free
        self.num_tails = num_tails

    def promote(self, keys: PrefixIndex, block: i64) -> None:
        """Make way for the key of a whole block, which was published in parts. law: PUB-2."""
        if self._first[block] < 0:
            keys.drop(block)
            self._first[block] = -self._first[block]

    def move(self, keys: PrefixIndex, block: i64, other: i64) -> None:
        """Give the tail of a block that is published as nothing else to another block, the latest. law: UNIT-7."""
        number = self.first(block)
        assert self._after(number) == 0, "a state is of one length"
        low, high, group = self._index.key(number)
        self.promote(keys, block)
        self._first[block] = 0
        self._index.drop(number)
        self._index.add(number, low, high, group)
        self._index.rows[4 * number + LINK] = other
        keys.add(other, low, high, group)
        self._first[other] = i32(-number)

    def forget(self, block: i64) -> None:
        """Forget the tails of a block that loses its key: none outlives it. law: KEY-1."""
        number = self.first(block)
        self._first[block] = 0
        while number != 0:
            following = self._after(number)
            self._drop(number)
            number = following

    def _drop(self, number: i64) -> None:
        """Forget a tail that is in no chain any more."""
        group = self._index.key(number)[2]
        was_last = self._index.drop(number)
        if self.journal is not None:
            self.journal.forgot_tail(number, group, was_last)
        self._index.rows[4 * number + LINK] = self._free << 32
        self._free = number
        self.num_tails -= 1

    def cut(self, keys: PrefixIndex, block: i64, units: i64) -> None:
        """Forget the tails of a block beyond its first units, which is published as a whole no more.

        It gets the key of one of those that are left. law: GIVEN-1, UNIT-8.
        """
        self.promote(keys, block)
        links = self._index.rows
        number = self.first(block)
        self._first[block] = 0
        last: i64 = 0
        while number != 0:
            following = self._after(number)
            if i64(self._units[number]) > units:
                self._drop(number)
            else:
                if last == 0:
                    low, high, group = self._index.key(number)
                    keys.add(block, low, high, group)
                    self._first[block] = i32(-number)
                else:
                    links[4 * last + LINK] = number << 32 | block
                links[4 * number + LINK] = block
                last = number
            number = following

    def forget_run(self, rows: vec[i64], block: i64, count: i64) -> None:
        """Forget the tails of `count` blocks from one on, as `rows` link them; for stores without a journal."""
        first, links = self._first, self._index.rows
        head: i64 = 0
        last: i64 = 0
        gone: i64 = 0
        while count > 0:
            number: i64 = i64(first[block])
            if number != 0:
                first[block] = 0
                if number < 0:
                    number = -number
                # The chains of all blocks become one, in which the index reads ahead.
                if head == 0:
                    head = number
                else:
                    links[4 * last + LINK] = number << 32
                while number != 0:
                    last = number
                    number = links[4 * last + LINK] >> 32
                    gone += 1
            block = rows[4 * block + LINK] >> 32
            count -= 1
        if gone > 0:
            self._index.drop_run(head, gone)
            links[4 * last + LINK] = self._free << 32
            self._free = head
            self.num_tails -= gone

    def clear(self) -> None:
        """Forget all tails. Takes no memory. O(num_blocks + tails)."""
        block: i64 = 0
        while block < i64(len(self._first)):
            self.forget(block)
            block += 1

    def keys_of(self, block: i64) -> list[bytes]:
        """Return the 16-byte keys of the tails of a block."""
        found: list[bytes] = []
        number = self.first(block)
        while number != 0:
            low, high, _ = self._index.key(number)
            found.append(word_bytes(low, high))
            number = self._after(number)
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
            number = self.first(block)
            while number != 0 and i64(len(units)) <= self._capacity:
                units.append(int(self._units[number]))
                numbers.append(int(number))
                demand("KEY-1", f"the block of tail {number}", block, int(self._index.rows[4 * number + LINK] & _BLOCK))
                demand("KEY-1", f"tail {number} of block {block} has a key", True, self._index.has_key(number))
                number = self._after(number)
            demand("KEY-1", f"lengths of the tails of block {block}", sorted(set(units)), sorted(units))
            demand("KEY-1", f"block {block} has tails and no key", False, bool(units) and not keyed[block])
        demand("KEY-1", "the number of tails", len(numbers), int(self.num_tails))
        return sorted(numbers)

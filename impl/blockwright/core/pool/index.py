"""The prefix index: from the key of a prefix to a block that holds it.

Open addressing with linear probing over packed arrays; half of the slots are always empty, so a probe ends after one or
two steps. A slot holds a block id (0: empty, since the null block is never published) and a tag, 32 bits of key and
group. A search begins at the slot that the tag gives, so that the groups of one prefix lie apart and a search is as
short with 64 groups as with one. Blocks with equal keys form a ring, oldest first; only the oldest is in the slots and
serves hits. Deletion closes the gap by moving later entries back, so there are no tombstones and no rebuilds.

A block's key lies in its row, and is read only where a tag is right. Its mark is the block before it in its ring, with
the tag, in the form of a slot: that of a block alone in its ring equals its slot, so its key is dropped without being
read. The group is not kept, because it follows from key and tag.

In a large index a slot is seldom in the processor's caches. So a run of keys that are added or dropped reads all its
slots first: reads that wait for nothing else are made many at a time.

Where hits may end inside blocks, a block is also published in *parts*. A part is a key with a length. Its number is
above all block ids, and its key is one of group -1 - group, so that no lookup of a whole block finds it. The parts of a
block form a chain, the newest first: the link of a part has the next one above, and its block in the last 32 bits. A
block that is published in parts alone has the mark `PARTS` and is in no slot.

Memory: 36 bytes per block, 8 of them the link, and 8 per slot, 16 to 32 bytes of slots per block. With parts, 8 bytes
more per block, and per part as much as for a block.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.block_hash import word_bytes
from blockwright.core.keys.packed import zeros32, zeros64

LOW: Final = 3
HIGH: Final = 4
MARK: Final = 5
LINK: Final = 6
"""Where the words of block 0 are. A large vector begins three words before a line of the caches; no row lies in two."""
_APART: Final = 0x9E3779B1
"""How far apart two groups begin to search: odd, and no simple part of any number of slots."""
_INVERSE: Final = 0x0E8B2F51
"""What takes `_APART` back: their product is 1, as far as a tag reaches."""
_TAG: Final = 0xFFFFFFFF
"""The part of a slot that is a tag; the block stands above it."""
_AHEAD: Final = 64
"""Slots that are asked for at a time: they stay in the nearest cache until they are used."""
PARTS: Final = 1
"""The mark of a block that is published in parts alone. Marks of keys are larger, since a block stands above."""
_FEWEST: Final = 8
"""Parts that there is room for at first, where blocks are fewer."""


def _put(
    slots: vec[i64],
    rows: vec[i64],
    younger: vec[i32],
    mask: i64,
    block: i64,
    low: i64,
    high: i64,
    tag: i64,
) -> bool:
    """Add a block as `PrefixIndex.add` does; arguments spare a lookup of fields for each block of a run.

    Keys with the same low word and tag are of the same group.
    """
    slot = tag & mask
    entry = slots[slot]
    oldest = entry >> 32
    # The tag is compared first: it is in the slot, while the words of a block may be in no cache.
    while entry != 0 and (entry & _TAG != tag or rows[4 * oldest + LOW] != low or rows[4 * oldest + HIGH] != high):
        slot = (slot + 1) & mask
        entry = slots[slot]
        oldest = entry >> 32
    rows[4 * block + LOW] = low
    rows[4 * block + HIGH] = high
    if entry == 0:
        slots[slot] = block << 32 | tag
        rows[4 * block + MARK] = block << 32 | tag
        return True
    # A duplicate joins the ring behind the youngest, so that the oldest goes on serving hits.
    youngest = rows[4 * oldest + MARK] >> 32
    younger[youngest] = i32(block)
    younger[block] = i32(oldest)
    rows[4 * block + MARK] = youngest << 32 | tag
    rows[4 * oldest + MARK] = block << 32 | tag
    return False


def _take(slots: vec[i64], rows: vec[i64], younger: vec[i32], mask: i64, block: i64) -> None:
    """Drop a block's key as `PrefixIndex.drop` does."""
    mark = rows[4 * block + MARK]
    rows[4 * block + MARK] = 0
    tag: i64 = mark & _TAG
    slot = tag & mask
    own = block << 32 | tag
    # The block is alone in its ring, as almost all are: its slot is found without reading its key.
    if mark == own:
        while slots[slot] != own:
            slot = (slot + 1) & mask
        _close_gap(slots, mask, slot)
        return
    behind: i64 = i64(younger[block])
    younger[mark >> 32] = i32(behind)
    rows[4 * behind + MARK] = mark
    # The oldest of the ring stands in a slot; if it is this one, the next takes its place.
    low: i64 = rows[4 * block + LOW]
    high: i64 = rows[4 * block + HIGH]
    entry = slots[slot]
    while entry != own:
        oldest = entry >> 32
        if entry & _TAG == tag and rows[4 * oldest + LOW] == low and rows[4 * oldest + HIGH] == high:
            return
        slot = (slot + 1) & mask
        entry = slots[slot]
    # The slot is written over in place: the chain of probes stays whole without moving any entry.
    slots[slot] = behind << 32 | tag


def _close_gap(slots: vec[i64], mask: i64, gap: i64) -> None:
    """Empty a slot, moving back entries that were pushed past it."""
    slot = gap
    while True:
        slot = (slot + 1) & mask
        entry = slots[slot]
        if entry == 0:
            break
        # The home slot is the tag's last bits.
        if ((slot - entry) & mask) >= ((slot - gap) & mask):
            slots[gap] = entry
            gap = slot
    slots[gap] = 0


@final
class PrefixIndex:
    """Finds, adds and drops published blocks; each in O(1), whatever the number of blocks.

    Attributes:
        num_keyed: blocks that are published, as wholes or in parts.
        num_blocks: ids are below it.
        num_parts: parts that can be found.
        has_parts: whether blocks may be published in parts.
        rows: four words per block: its key, its mark (0 iff it carries no key), and its link, which the store keeps.
    """

    def __init__(self, num_blocks: i64) -> None:
        """Make an index for block ids below `num_blocks`. O(num_blocks)."""
        capacity: i64 = 8
        while capacity < 2 * num_blocks:
            capacity *= 2
        self._mask: i64 = capacity - 1
        self._slots: vec[i64] = zeros64(capacity)
        self.num_blocks: i64 = num_blocks
        self.num_parts: i64 = 0
        self.has_parts = False
        self.rows: vec[i64] = zeros64(4 * num_blocks + LOW)
        # A ring through the blocks with the same key: oldest, next, ..., youngest, oldest; not kept where one is alone.
        self._younger: vec[i32] = zeros32(num_blocks)
        self.num_keyed: i64 = 0
        self._edition: object | None = None  # see `edition`
        self._last_group: i64 = 0  # of which a block ever got a key
        self._read: i64 = 0  # so that reading ahead comes to something
        self._newest: vec[i32] = vec[i32]()  # by block, the number of its newest part
        self._units: vec[i32] = vec[i32]()  # by number, the hash units of a part
        self._spare: i64 = 0  # the first number that no part has; the others follow it as the parts of a block do

    def copy(self) -> PrefixIndex:
        twin = PrefixIndex(0)
        twin.num_parts = self.num_parts
        twin.has_parts = self.has_parts
        twin._newest = self._newest[:]
        twin._units = self._units[:]
        twin._spare = self._spare
        twin._mask = self._mask
        twin._slots = self._slots[:]
        twin.num_blocks = self.num_blocks
        twin.rows = self.rows[:]
        twin._younger = self._younger[:]
        twin.num_keyed = self.num_keyed
        twin._edition = self._edition
        twin._last_group = self._last_group
        return twin

    def clear(self) -> None:
        """Take all keys away. Takes no memory. O(num_blocks + parts), O(1) where there is none."""
        if self.num_keyed == 0:
            return
        block: i64 = 1
        while self.num_parts > 0:
            self.forget_parts(block)
            block += 1
        # The vectors are emptied in place, because a reset must not fail for want of memory.
        slots, rows = self._slots, self.rows
        at: i64 = 0
        while at < i64(len(slots)):
            slots[at] = 0
            at += 1
        at = 0
        while at < self.num_blocks:
            rows[4 * at + MARK] = 0
            at += 1
        self.num_keyed = 0
        self._edition = None

    def edition(self) -> object:
        """Return an object that is the same as before iff no key was given or taken away since. O(1).

        A copy has that of the original until one of them changes.
        """
        edition = self._edition
        if edition is None:
            edition = self._edition = object()
        return edition

    def has_key(self, block: i64) -> bool:
        return self.rows[4 * block + MARK] != 0

    def is_single(self, block: i64) -> bool:
        """Return whether no other block has the key of a published one, its own or that of a part."""
        return self.rows[4 * block + MARK] >> 32 == block

    def find(self, low: i64, high: i64, group: i64) -> i64:
        """Return the oldest block with this key, or 0."""
        slots = self._slots
        rows = self.rows
        mask = self._mask
        # The low word is random already, so it needs no further mixing; the group shifts it.
        tag: i64 = (low + group * _APART) & _TAG
        slot = tag & mask
        entry = slots[slot]
        while entry != 0:
            block = entry >> 32
            if entry & _TAG == tag and rows[4 * block + LOW] == low and rows[4 * block + HIGH] == high:
                return block
            slot = (slot + 1) & mask
            entry = slots[slot]
        return 0

    def matches(self, block: i64, low: i64, high: i64, group: i64) -> bool:
        """Return whether a block is published under this key."""
        rows, mark = self.rows, self.rows[4 * block + MARK]
        return (
            mark > PARTS
            and rows[4 * block + LOW] == low
            and rows[4 * block + HIGH] == high
            and (mark - low - group * _APART) & _TAG == 0
        )

    def find_run(
        self, words: vec[i64], stride: i64, group: i64, ids: vec[i32], start: i64, stop: i64, step: i64 = 1
    ) -> i64:
        """Write the blocks of entries start, start + step, ... up to `stop` to `ids`; return the first missing.

        Entry i has its key in `words` at ``(i + 1) * stride - 2``. One lookup per entry.
        """
        slots = self._slots
        rows = self.rows
        mask = self._mask
        shift = group * _APART
        i = start
        while i != stop:
            at = (i + 1) * stride - 2
            low: i64 = words[at]
            tag: i64 = (low + shift) & _TAG
            slot = tag & mask
            entry = slots[slot]
            block = entry >> 32
            while block != 0 and (
                entry & _TAG != tag or rows[4 * block + LOW] != low or rows[4 * block + HIGH] != words[at + 1]
            ):
                slot = (slot + 1) & mask
                entry = slots[slot]
                block = entry >> 32
            if block == 0:
                return i
            ids[i] = i32(block)
            i += step
        return i

    def last_part(self, words: vec[i64], group: i64, start: i64, stop: i64, step: i64) -> i64:
        """Return the last of the units stop, stop - step, ... above `start` that a part ends with, or `start`.

        Unit i has its key in `words` at ``2 * i - 2``. One lookup per unit.
        """
        group = -1 - group
        slots = self._slots
        mask = self._mask
        shift = group * _APART
        while stop > start:
            low: i64 = words[2 * stop - 2]
            # Most slots are empty, which needs no call.
            if slots[(low + shift) & mask] != 0 and self.find(low, words[2 * stop - 1], group) != 0:
                break
            stop -= step
        return stop

    def match_run(self, words: vec[i64], stride: i64, group: i64, ids: vec[i32], start: i64) -> i64:
        """Return the first entry from `start` on with a block that is not published under its key, or len(ids)."""
        rows = self.rows
        shift = group * _APART
        i = start
        size: i64 = len(ids)
        num_blocks = self.num_blocks
        while i < size:
            block: i64 = i64(ids[i])
            at = (i + 1) * stride - 2
            if (
                block <= 0
                # The ids come from outside; one out of range would read beyond the arrays instead of failing.
                or block >= num_blocks
                or rows[4 * block + MARK] <= PARTS
                or rows[4 * block + LOW] != words[at]
                or rows[4 * block + HIGH] != words[at + 1]
                or (rows[4 * block + MARK] - words[at] - shift) & _TAG != 0
            ):
                return i
            i += 1
        return size

    def next_duplicate(self, block: i64, oldest: i64) -> i64:
        """Return the next younger block with the same key, or 0 after the youngest."""
        if self.is_single(block):
            return 0
        block = i64(self._younger[block])
        if block == oldest:
            return 0
        return block

    def add(self, block: i64, low: i64, high: i64, group: i64) -> bool:
        """Give a block its key; return whether the key is new. Only parts of it may be published. law: PUB-1, PUB-2."""
        self.withdraw_parts(block)
        assert self.rows[4 * block + MARK] == 0, "a block has one key"
        self.num_keyed += 1
        self._edition = None
        self._last_group = max(self._last_group, group)
        tag: i64 = (low + group * _APART) & _TAG
        return _put(self._slots, self.rows, self._younger, self._mask, block, low, high, tag)

    def add_each(self, low: i64, high: i64, blocks: vec[i32], count: i64) -> None:
        """Give the first of some blocks the key in group 0, the next in group 1, ..., except blocks that have a key."""
        slots, rows, younger, mask = self._slots, self.rows, self._younger, self._mask
        added: i64 = 0
        counted: i64 = 0
        group: i64 = 0
        while group < count:
            block = i64(blocks[group])
            if block != 0 and rows[4 * block + MARK] <= PARTS:
                counted += rows[4 * block + MARK]  # one that is published in parts is counted already
                tag: i64 = (low + group * _APART) & _TAG
                if slots[tag & mask] == 0:  # as most often, and then a call would cost as much as the rest
                    rows[4 * block + LOW] = low
                    rows[4 * block + HIGH] = high
                    slots[tag & mask] = rows[4 * block + MARK] = block << 32 | tag
                else:
                    _put(slots, rows, younger, mask, block, low, high, tag)
                added += 1
            group += 1
        self.num_keyed += added - counted
        self._edition = None
        self._last_group = max(self._last_group, count - 1)

    def add_run(self, words: vec[i64], stride: i64, group: i64, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give the blocks of some entries that are not null and carry no key their keys; `words` as for `find_run`."""
        slots, rows, younger, mask = self._slots, self.rows, self._younger, self._mask
        shift = group * _APART
        added: i64 = 0
        counted: i64 = 0
        read: i64 = 0
        i = start
        while i < stop:
            end = min(stop, i + _AHEAD)
            # First all slots of the part are read, whose values nothing waits for: the processor fetches them side by
            # side.
            ahead = i
            while ahead < end:
                ahead += 1
                read ^= slots[(words[ahead * stride - 2] + shift) & mask]
            while i < end:
                block = i64(ids[i])
                i += 1
                if block != 0 and rows[4 * block + MARK] <= PARTS:
                    counted += rows[4 * block + MARK]
                    at = i * stride - 2
                    low: i64 = words[at]
                    _put(slots, rows, younger, mask, block, low, words[at + 1], (low + shift) & _TAG)
                    added += 1
        self._read = read
        self._last_group = max(self._last_group, group)
        self.num_keyed += added - counted
        self._edition = None

    def drop(self, block: i64) -> None:
        """Take a block's own key away; parts of it stay. O(1)."""
        assert self.rows[4 * block + MARK] > PARTS, "only a block with a key loses it"
        self.num_keyed -= 1
        self._edition = None
        _take(self._slots, self.rows, self._younger, self._mask, block)

    def drop_run(self, block: i64, count: i64) -> i64:
        """Take the keys of `count` blocks away, from one on as the queue links them; return how many carried one.

        None of their parts is left. law: KEY-1.
        """
        if self.num_parts > 0:
            self._drop_parts(block, count)
        dropped = self._drop_linked(block, count)
        if dropped > 0:  # most often the blocks that are taken carry no key
            self.num_keyed -= dropped
            self._edition = None
        return dropped

    def _drop_linked(self, block: i64, count: i64) -> i64:
        """Take the keys of `count` blocks or parts away, from one on as they are linked; return how many had one."""
        slots, rows, younger, mask = self._slots, self.rows, self._younger, self._mask
        dropped: i64 = 0
        read: i64 = 0
        while count > 0:
            part = min(count, _AHEAD)
            count -= part
            # As in `add_run`; the list is walked twice, and the second walk finds it in the cache.
            ahead = block
            left: i64 = part
            while left > 1:  # the last one waits for itself as well as ahead
                read ^= slots[rows[4 * ahead + MARK] & mask]  # a tag's last bits say where a search begins
                ahead = rows[4 * ahead + LINK] >> 32
                left -= 1
            while part > 0:
                mark: i64 = rows[4 * block + MARK]
                slot = mark & mask
                if mark >> 32 == block and slots[slot] == mark and slots[(slot + 1) & mask] == 0:
                    # Alone in its ring and in its run of slots, as most are: a call would cost as much as the rest.
                    slots[slot] = rows[4 * block + MARK] = 0
                    dropped += 1
                elif mark > PARTS:
                    _take(slots, rows, younger, mask, block)
                    dropped += 1
                elif mark != 0:
                    rows[4 * block + MARK] = 0
                    dropped += 1
                block = rows[4 * block + LINK] >> 32
                part -= 1
        self._read = read
        return dropped

    def key(self, block: i64) -> tuple[i64, i64, i64]:
        """Return the key of a block, that of its first part where only parts are published, or of a part."""
        if self.rows[4 * block + MARK] == PARTS:
            block = self.newest_part(block)
            while self.part_after(block) != 0:
                block = self.part_after(block)
        # The group is what the tag has more than the low word; `_INVERSE` undoes the multiplication modulo 2**32.
        low: i64 = self.rows[4 * block + LOW]
        group = ((self.rows[4 * block + MARK] - low) * _INVERSE) & _TAG
        return low, self.rows[4 * block + HIGH], group if block < self.num_blocks else _TAG - group

    def rings(self) -> list[tuple[int, int, list[int], bool]]:
        """Return, for each block in a slot, the facts that the self-check compares. O(slots + published blocks).

        That is: the block, the one that is found under its key, its ring from the oldest on, cut off if it has no end,
        and whether all of the ring carry that key.
        """
        found: list[tuple[int, int, list[int], bool]] = []
        for slot in self._slots:
            oldest = slot >> 32
            if slot == 0:
                continue
            low, high, group = self.key(oldest)
            ring: list[int] = []
            is_sound = group <= self._last_group
            if oldest >= self.num_blocks:
                group = -1 - group
            block = oldest
            while block != 0 and len(ring) <= self.num_blocks + self.num_parts:
                is_sound = is_sound and self.matches(block, low, high, group)
                ring.append(int(block))
                block = self.next_duplicate(block, oldest)
            found.append((int(oldest), int(self.find(low, high, group)), ring, is_sound))
        return found

    # ------------------------------------------------------------------ parts of blocks

    def keep_parts(self) -> None:
        """Let blocks be published in parts as well. O(num_blocks)."""
        self._newest = zeros32(self.num_blocks)
        self.has_parts = True
        self._make_room(max(_FEWEST, self.num_blocks))

    def reserve_parts(self, count: i64) -> None:
        """Take the memory for `count` more parts; `rows` is another vector then. Amortized O(count)."""
        room = i64(len(self._younger)) - self.num_blocks
        if self.num_parts + count > room:
            while self.num_parts + count > room:
                room *= 2
            self._make_room(room)

    def _make_room(self, room: i64) -> None:
        """Have numbers for so many parts. O(num_blocks + parts)."""
        first: i64 = len(self._younger)
        more = self.num_blocks + room - first
        rows = extend(self.rows[:], zeros64(4 * more))
        younger = extend(self._younger[:], zeros32(more))
        units = extend(self._units[:], zeros32(self.num_blocks + room - i64(len(self._units))))
        capacity: i64 = len(self._slots)
        while capacity < 2 * (self.num_blocks + room):
            capacity *= 2
        slots = zeros64(capacity)
        # All memory is taken: what follows cannot fail.
        for entry in self._slots:
            slot = entry & (capacity - 1)
            while entry != 0 and slots[slot] != 0:
                slot = (slot + 1) & (capacity - 1)
            if entry != 0:
                slots[slot] = entry
        number = first + more
        while number > first:
            number -= 1
            rows[4 * number + LINK] = self._spare << 32
            self._spare = number
        self.rows, self._younger, self._units, self._slots, self._mask = rows, younger, units, slots, capacity - 1

    def is_part(self, block: i64) -> bool:
        """Return whether a block is published in parts alone. O(1)."""
        return self.rows[4 * block + MARK] == PARTS

    def newest_part(self, block: i64) -> i64:
        """Return the number of the part of a block that was published last, or 0. O(1)."""
        return i64(self._newest[block]) if self.has_parts else 0

    def part_after(self, number: i64) -> i64:
        """Return the number of the next older part of the same block, or 0. O(1)."""
        return self.rows[4 * number + LINK] >> 32

    def parts_of(self, block: i64) -> list[int]:
        """Return the numbers of a block's parts, the newest first. O(parts of the block)."""
        found: list[int] = []
        number = self.newest_part(block)
        while number != 0 and i64(len(found)) <= self.num_parts:
            found.append(int(number))
            number = self.part_after(number)
        return found

    def block_of(self, number: i64) -> i64:
        """Return the block of a part. O(1)."""
        return self.rows[4 * number + LINK] & _TAG

    def units_of(self, number: i64) -> i64:
        """Return the hash units of a part. O(1)."""
        return i64(self._units[number])

    def find_part(self, low: i64, high: i64, group: i64) -> i64:
        """Return the block of the oldest part with this key, or 0. O(1)."""
        number = self.find(low, high, -1 - group)
        return 0 if number == 0 else self.block_of(number)

    def longest_part(self, block: i64) -> i64:
        """Return the number of the longest part of a block, or 0. O(parts of the block)."""
        found = number = self.newest_part(block)
        while number != 0:
            if self._units[number] > self._units[found]:
                found = number
            number = self.part_after(number)
        return found

    def longest_units(self, block: i64) -> i64:
        """Return the hash units of the longest part of a block, or 0. O(parts of the block)."""
        number = self.longest_part(block)
        return 0 if number == 0 else i64(self._units[number])

    def part_keys(self, block: i64) -> list[bytes]:
        """Return the 16-byte keys of the parts of a block, the newest first. O(parts of the block)."""
        keys = [self.key(i64(number)) for number in self.parts_of(block)]
        return [word_bytes(key[0], key[1]) for key in keys]

    def add_parts(
        self,
        ids: vec[i32],
        words: vec[i64],
        hashed: i64,
        lengths: vec[i64],
        start: i64,
        stop: i64,
        group: i64,
        size: i64,
        unit: i64,
    ) -> None:
        """Make the parts of a table's blocks findable that end with a range of lengths. Takes no memory. law: KEY-1.

        What is published already is passed over, and null blocks, and lengths of whole blocks. O(lengths).

        Args:
            ids: the blocks, each of `size` tokens.
            words: the keys of the request's units of `hashed` tokens.
            lengths: in tokens, each a multiple of `unit`.
            start, stop: the range of them.
            group: the group of layers of the table.
        """
        rows, newest, units = self.rows, self._newest, self._units
        slots, younger, mask = self._slots, self._younger, self._mask
        shift = (-1 - group) * _APART
        spare, added = self._spare, self.num_parts
        while start < stop:
            length = lengths[start]
            start += 1
            entry = length // size
            inside = (length - entry * size) // unit
            block: i64 = i64(ids[entry]) if inside != 0 else 0  # without its type it would be an object
            if block == 0:
                continue
            # A block has one content, so its parts differ in their lengths.
            number = i64(newest[block])
            while number != 0 and i64(units[number]) != inside:
                number = rows[4 * number + LINK] >> 32
            if number != 0:
                continue
            number = spare
            assert number != 0, "room is made before parts are published"
            spare = rows[4 * number + LINK] >> 32
            at = 2 * (length // hashed - 1)
            _put(slots, rows, younger, mask, number, words[at], words[at + 1], (words[at] + shift) & _TAG)
            units[number] = i32(inside)
            rows[4 * number + LINK] = i64(newest[block]) << 32 | block
            newest[block] = i32(number)
            added += 1
            if rows[4 * block + MARK] == 0:
                rows[4 * block + MARK] = PARTS
                self.num_keyed += 1
        if added != self.num_parts:
            self._edition = None
            self._last_group = max(self._last_group, group)
        self._spare = spare
        self.num_parts = added

    def withdraw_parts(self, block: i64) -> None:
        """Have a block that is published in parts alone not count as published, since it is written over or full."""
        if self.rows[4 * block + MARK] == PARTS:
            self.rows[4 * block + MARK] = 0
            self.num_keyed -= 1
            self._edition = None

    def move_part(self, block: i64, other: i64) -> None:
        """Give the part of a block that is published as nothing else to another block, the latest. law: UNIT-7."""
        number = self.newest_part(block)
        assert self.part_after(number) == 0, "a state is of one length"
        rows, slots, younger, mask = self.rows, self._slots, self._younger, self._mask
        tag: i64 = rows[4 * number + MARK] & _TAG
        self.withdraw_parts(block)
        _take(slots, rows, younger, mask, number)
        _put(slots, rows, younger, mask, number, rows[4 * number + LOW], rows[4 * number + HIGH], tag)
        self._newest[block] = 0
        self._newest[other] = i32(number)
        rows[4 * number + LINK] = other
        rows[4 * other + MARK] = PARTS
        self.num_keyed += 1
        self._edition = None

    def forget_parts(self, block: i64, units: i64 = 0) -> None:
        """Forget the parts of a block beyond its first units. O(parts of the block). law: KEY-1, GIVEN-1, UNIT-8.

        A block without a key of its own is published no more if none is left, and published in parts if some are.
        """
        rows, number = self.rows, self.newest_part(block)
        last: i64 = 0
        while number != 0:
            following = self.part_after(number)
            if i64(self._units[number]) > units:
                if last != 0:
                    rows[4 * last + LINK] = following << 32 | block
                else:
                    self._newest[block] = i32(following)
                _take(self._slots, rows, self._younger, self._mask, number)
                rows[4 * number + LINK] = self._spare << 32
                self._spare = number
                self.num_parts -= 1
                self._edition = None
            else:
                last = number
            number = following
        if last == 0:
            self.withdraw_parts(block)
        elif rows[4 * block + MARK] == 0:
            rows[4 * block + MARK] = PARTS
            self.num_keyed += 1

    def _drop_parts(self, block: i64, count: i64) -> None:
        """Forget the parts of `count` blocks from one on, as the queue links them."""
        newest, rows = self._newest, self.rows
        head: i64 = 0
        last: i64 = 0
        gone: i64 = 0
        while count > 0:
            number: i64 = i64(newest[block])
            if number != 0:
                newest[block] = 0
                # The chains of all blocks become one, whose slots are read ahead.
                if head == 0:
                    head = number
                else:
                    rows[4 * last + LINK] = number << 32
                while number != 0:
                    last = number
                    number = rows[4 * last + LINK] >> 32
                    gone += 1
            block = rows[4 * block + LINK] >> 32
            count -= 1
        if gone > 0:
            self._drop_linked(head, gone)
            rows[4 * last + LINK] = self._spare << 32
            self._spare = head
            self.num_parts -= gone

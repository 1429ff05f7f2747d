"""Least recently used or least frequently used, whichever of the two would have hit more of late.

Two shadows remember which keys a cache under each rule alone would hold: of every `2**shift`-th key, by its digest, in
as large a part of the pool. Each first admission asks both how much of its prompt they have; what they found counts,
399/400 of it at the next admission. The rule with the higher count is in force, and a tie changes nothing.

Least frequently used is with aging: a candidate is ranked by how often its content was released, and by the rank of
the last one evicted as it was. Of equal ranks those go that stand deeper in their prefix, by half powers of two, and of
these the oldest: a prefix is released from its end, and no block of it ranks below what follows it. Counts of contents
outlive their blocks for a while, in a table that newer ones write over.

Beside recurrent layers the shadows are whole, since a state is there or not whatever a sample says, and one entry is
for the states of all these layers. Windows are left out: neither rule evicts their passing blocks first.
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.index import PrefixIndex
from blockwright.core.pool.order import CandidateOrder, Page, RuleInForce
from blockwright.core.worth.ranked import RankedOrder

_LEAST_SHADOW: Final = 512
"""Blocks of a shadow below which a sample says too little: smaller pools sample more keys, up to all."""
_MOST_SHIFT: Final = 4
_DECAY: Final = 400
_POINT: Final = 16
"""Scores are in parts of a block, 2**-16 each."""
_MOST_USES: Final = 63
_DEPTHS: Final = 32
_RINGS: Final = 2048
"""Places that blocks may have at a time: so many uses above the last one evicted, each with all depths."""
_TAG: Final = 0x7FFFFFC0
_STATE: Final = 0x5A5A5A5A5A5A5A5A
"""Tells the uses of a state from those of the block of full attention with the same key."""
_FAR: Final = 1 << 20
"""The depth of a state that its request has moved past: of its rank it goes first."""


@final
class Ranking:
    """Blocks in the order of their release, and also by use if `by_use` says so.

    A ring through block 0 for the first; for the second a ring for each place: a rank, and below it how near to the
    beginning of its prefix a block is. 44 bytes a block, and 8 to 16 for the counts of contents that have no block.
    """

    def __init__(self, count: i64, by_use: bool) -> None:
        """Start without blocks, for ids below `count`. O(count)."""
        self.size: i64 = 0
        self.by_use = by_use
        self._floor: i64 = 0  # the rank of the last block that was evicted by use, below which there is none
        self._after: vec[i32] = vec[i32]([-1] * count)  # -1 behind a block that is not ranked
        self._before: vec[i32] = zeros32(count)
        self._after[0] = 0
        self._next: vec[i32] = zeros32(count + _RINGS)  # at the same place; its ring goes through `count` and that
        self._previous: vec[i32] = zeros32(count + _RINGS)
        self._first: i64 = 0  # a place before which there is none
        self._empty(0)
        self._lows: vec[i64] = zeros64(count)  # the content that `_uses` counts
        self._uses: vec[i32] = zeros32(count)
        self._depths: vec[i32] = zeros32(count)
        self._places: vec[i64] = zeros64(count)  # -1 of one that goes before all others
        slots: i64 = 8
        while slots < 2 * count:
            slots *= 2
        self._past: vec[i32] = zeros32(slots)  # of contents whose block was evicted: a part of the key, and the uses
        self._last_depth: i64 = 0
        self._last_uses: i64 = 0

    def copy(self) -> Ranking:
        """Return an independent copy. O(count)."""
        twin = Ranking(1, self.by_use)
        copy_fields(self, twin)
        return twin

    def has(self, block: i64) -> bool:
        return self._after[block] >= 0

    def use(self, block: i64, low: i64, depth: i64, is_use: bool) -> None:
        """Note that a holder has released the content of a block, so many entries down its prefix. O(1)."""
        uses: i64 = i64(self._uses[block])
        if self._lows[block] != low:
            past: i64 = i64(self._past[(low >> 8) & (i64(len(self._past)) - 1)])
            uses = past & _MOST_USES if past & _TAG == (low >> 32) & _TAG else 0
            self._lows[block] = low
        elif not is_use:
            depth = i64(self._depths[block])  # a connector releases blocks in any order
        if is_use and uses < _MOST_USES:
            uses += 1
        # What goes on from a block is of no use without it. A table is released from its end, so the block behind came
        # just before.
        if depth + 1 == self._last_depth:
            uses = max(uses, self._last_uses)
        self._last_depth, self._last_uses = depth, uses
        self._uses[block] = i32(uses)
        self._depths[block] = i32(depth)
        distance: i64 = depth
        shift: i64 = 1
        while distance > 2:
            distance = (distance - 1) >> 1
            shift += 2
        distance = min(distance + shift - 1, _DEPTHS - 1)
        self._places[block] = (self._floor + uses) * _DEPTHS + _DEPTHS - 1 - distance

    def put_first(self, block: i64) -> None:
        """Have a block go before all others as it is added, since another has its content too."""
        self._places[block] = -1

    def add(self, block: i64) -> None:
        """Rank a block behind all others of its rank. O(1)."""
        ahead: i64 = 0 if self._places[block] < 0 else i64(self._before[0])
        behind = self._after[ahead]
        self._after[ahead] = i32(block)
        self._before[block] = i32(ahead)
        self._after[block] = behind
        self._before[i64(behind)] = i32(block)
        self.size += 1
        if self.by_use:
            self._join(block)

    def leave(self, block: i64) -> None:
        """Rank a block no more. O(1)."""
        after, before = self._after[block], self._before[block]
        self._after[i64(before)] = after
        self._before[i64(after)] = before
        self._after[block] = -1
        self.size -= 1
        if self.by_use:
            after, before = self._next[block], self._previous[block]
            self._next[i64(before)] = after
            self._previous[i64(after)] = before

    def evict(self) -> i64:
        """Take out the block that goes first, and return it. O(1), by use amortized: ranks only rise."""
        block: i64 = i64(self._after[0])
        if self.by_use:
            block = i64(self._next[self._first % _RINGS + self._count()])
            while block >= self._count():
                self._first += 1
                block = i64(self._next[self._first % _RINGS + self._count()])
            self._floor = max(self._floor, self._places[block] // _DEPTHS)
        self.leave(block)
        low = self._lows[block]
        if self._places[block] >= 0:
            self._past[(low >> 8) & (i64(len(self._past)) - 1)] = i32((low >> 32) & _TAG | i64(self._uses[block]))
        self.forget(block)
        return block

    def forget(self, block: i64) -> None:
        """Forget the uses of a block's content."""
        self._lows[block] = 0
        self._uses[block] = 0

    def forget_all(self) -> None:
        """Forget the uses of all contents that have no block. Takes no memory. O(count)."""
        at: i64 = 0
        while at < i64(len(self._past)):
            self._past[at] = 0
            at += 1
        self._floor = 0
        self._empty(0)

    def switch(self, by_use: bool) -> None:
        """Go by the other rule. Takes no memory. O(n)."""
        self.by_use = by_use
        block: i64 = i64(self._after[0]) if by_use else 0
        self._empty(self._floor * _DEPTHS)
        while block != 0:
            self._join(block)
            block = i64(self._after[block])

    def in_order(self) -> list[int]:
        """Return the blocks in the order in which they go. O(n)."""
        links = self._next if self.by_use else self._after
        found: list[int] = []
        for at in range(_RINGS if self.by_use else 1):
            start: i64 = self._count() + (self._first + at) % _RINGS if self.by_use else 0
            block: i64 = i64(links[start])
            while block != start and i64(len(found)) <= self.size:
                found.append(int(block))
                block = i64(links[block])
        return found

    def is_sound(self) -> bool:
        """Return whether all rings hold the same blocks, each once, for the self-check. O(count)."""
        known = self.in_order()
        ranked = [block for block in range(1, len(self._after)) if self._after[block] >= 0]
        return i64(len(known)) == self.size and sorted(known) == ranked

    def _count(self) -> i64:
        return i64(len(self._after))

    def _empty(self, first: i64) -> None:
        self._first = first
        at = self._count()
        while at < self._count() + _RINGS:
            self._next[at] = self._previous[at] = i32(at)
            at += 1

    def _join(self, block: i64) -> None:
        """Put a block at the end of the ring of its place, or before all others."""
        place = self._places[block]
        if 0 <= place < self._first:
            self._first = place
        at: i64 = self._count() + max(place, self._first) % _RINGS
        before: i64 = at if place < 0 else i64(self._previous[at])
        behind = self._next[before]
        self._next[before] = i32(block)
        self._previous[block] = i32(before)
        self._next[block] = behind
        self._previous[i64(behind)] = i32(block)


@final
class Shadow:
    """The keys of the sample that a cache under one rule would hold, and how much it would have hit of late.

    Attributes:
        plain, states: blocks that a key takes, one in each layer group of full attention, and in each recurrent one.
    """

    def __init__(self, size: i64, by_use: bool, plain: i64, states: i64) -> None:
        """Start without keys, in `size` blocks. O(size)."""
        self.score: i64 = 0
        self.plain: i64 = plain
        self.states: i64 = states
        self._room: i64 = size
        self._index: PrefixIndex = PrefixIndex(size + 1)
        self._ranking: Ranking = Ranking(size + 1, by_use)
        self._bare: vec[i32] = zeros32(size)  # the entries without a key: the first `size - ranking.size` of these
        at: i64 = 0
        while at < size:
            self._bare[at] = i32(size - at)
            at += 1

    def copy(self) -> Shadow:
        """Return an independent copy. O(size)."""
        twin = Shadow(1, True, 0, 0)
        copy_fields(self, twin)
        return twin

    def ask(self, words: vec[i64], stride: i64, count: i64, shift: i64) -> None:
        """Count the blocks of a prompt that this would hit; see `AdaptiveOrder.admit`. Takes no memory. O(blocks)."""
        index = self._index
        hits: i64 = 0
        at = stride - 2
        while count > 0:
            low = words[at]
            if low & (1 << shift) - 1 == 0:
                if self.plain > 0 and index.find(low, words[at + 1], 0) == 0:
                    break
                hits += 1
            at += stride
            count -= 1
        at = hits * stride - 2
        while self.states > 0 and hits > 0 and index.find(words[at], words[at + 1], 1) == 0:
            hits -= 1
            at -= stride
        self.score += (hits << shift + _POINT) - self.score // _DECAY

    def put(self, low: i64, high: i64, depth: i64, is_use: bool, is_state: bool) -> None:
        """Learn that a key of the sample was released. O(1), amortized."""
        index, ranking = self._index, self._ranking
        kind: i64 = 1 if is_state else 0
        takes: i64 = self.states if is_state else self.plain
        block = index.find(low, high, kind)
        if block != 0:
            ranking.leave(block)
        else:
            while self._room < takes:
                if ranking.size == 0:
                    return  # a pool this small never has it
                self._evict()
            block = i64(self._bare[i64(len(self._bare)) - ranking.size - 1])
            self._room -= takes
            index.add(block, low, high, kind)
        ranking.use(block, low ^ _STATE if is_state else low, depth, is_use)
        ranking.add(block)

    def _evict(self) -> None:
        block = self._ranking.evict()
        _, _, kind = self._index.key(block)
        self._room += self.states if kind == 1 else self.plain
        self._index.drop(block)
        self._bare[i64(len(self._bare)) - self._ranking.size - 1] = i32(block)

    def clear(self) -> None:
        """Forget all keys, and what they hit. Takes no memory."""
        self.score = 0
        while self._ranking.size > 0:
            self._evict()
        self._ranking.forget_all()


@final
class AdaptiveOrder(RankedOrder):
    """Orders candidates by age or by use, as the two shadows say.

    Attributes:
        admitted: requests that were admitted for the first time.
        since: how many of them there were as the rule in force came into force.
    """

    def __init__(self, count: i64, block_size: i64, is_state: list[bool]) -> None:
        """Start without candidates, for block ids below `count`, least recently used first. O(count).

        `is_state` says of each layer group whether it is recurrent.
        """
        super().__init__()
        self.tells = self.learns = True
        self.admitted: i64 = 0
        self.since: i64 = 0
        self._block_size: i64 = block_size
        states: i64 = is_state.count(True)
        self._state: i64 = is_state.index(True) if states > 0 else -1  # the group whose states the shadows are told of
        self._plain: i64 = is_state.index(False) if False in is_state else -1
        self._is_state: list[bool] = is_state
        self._shift: i64 = 0
        while self._shift < _MOST_SHIFT and states == 0 and count >> (self._shift + 1) >= _LEAST_SHADOW:
            self._shift += 1
        self._ranking: Ranking = Ranking(count, False)
        size: i64 = max(1, (count - 1) >> self._shift)
        plain: i64 = is_state.count(False)
        self._by_age: Shadow = Shadow(size, False, plain, states)
        self._by_use: Shadow = Shadow(size, True, plain, states)

    def copy(self) -> CandidateOrder:
        """Return an independent copy. O(count)."""
        return self.copied(AdaptiveOrder(2, self._block_size, [False]))

    def rule(self) -> RuleInForce | None:
        """Return the rule by which candidates go now."""
        ahead = self._by_use.score - self._by_age.score
        lead = max(ahead, -ahead) * self._block_size >> _POINT
        name = "least frequently used" if self._ranking.by_use else "least recently used"
        return RuleInForce(name, int(self.since), int(lead))

    def admit(self, words: vec[i64], stride: i64, count: i64) -> None:
        """Ask the shadows for a prompt of `count` blocks that is admitted for the first time. Takes no memory.

        Block i has its key in `words` at ``(i + 1) * stride - 2``. O(blocks).
        """
        self._by_age.ask(words, stride, count, self._shift)
        self._by_use.ask(words, stride, count, self._shift)
        self.admitted += 1
        ahead = self._by_use.score - self._by_age.score
        if ahead > 0 if not self._ranking.by_use else ahead < 0:
            self._ranking.switch(not self._ranking.by_use)
            self.since = self.admitted

    def note(self, page: Page, ids: vec[i32], at: i64, stop: i64, is_free: bool) -> None:
        """Count a release, and tell the shadows of it if the key is in the sample. O(1)."""
        block: i64 = i64(ids[at])
        index = self.index
        ranking = self._ranking
        if index.is_part(block):  # found in parts alone, of which no sample is kept
            low, _ = page.content(block)
            ranking.use(block, low, at, self.is_use)
            return
        low, high, group = index.key(block)
        is_state = self._is_state[int(group)]
        content = low ^ _STATE if is_state else low
        # A request moves past the state that it has hit, so every release counts as a use; where it stood is not known.
        is_use = self.is_use or is_state
        if is_state and not self.is_use:
            at = _FAR
        ranking.use(block, content, at, is_use)
        if not index.is_single(block):
            found = index.find(low, high, group)
            if found != block:
                # Lookups find the other, so this use is that one's.
                is_ranked = ranking.has(found)
                if is_ranked:
                    ranking.leave(found)
                ranking.use(found, content, at, is_use)
                if is_ranked:
                    ranking.add(found)
                ranking.put_first(block)
        if (group == self._plain or group == self._state) and low & (1 << self._shift) - 1 == 0:
            self._by_age.put(low, high, at, is_use, is_state)
            self._by_use.put(low, high, at, is_use, is_state)

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate; with full attention none is passing. O(1)."""
        self.size += 1
        self._ranking.add(block)

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, and return them. O(blocks)."""
        blocks: list[int] = []
        for each in ids:
            block: i64 = i64(each)
            if block != 0 and self._ranking.has(block):
                self._ranking.leave(block)
                self.size -= 1
                blocks.append(int(block))
        return blocks

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Take out the candidates that are evicted first. O(candidates)."""
        while at < stop:
            ids[at] = i32(self._ranking.evict())
            self.size -= 1
            at += 1

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, in their order, and forget all uses. O(n)."""
        blocks = self._ranking.in_order()
        for block in blocks:
            self._ranking.leave(block)
            self._ranking.forget(block)
        self.size = 0
        self._ranking.forget_all()
        self._by_age.clear()
        self._by_use.clear()
        return blocks

    def candidates(self) -> list[int]:
        """Return the candidates in the order in which they go. O(n)."""
        return self._ranking.in_order()

    def is_sound(self) -> bool:
        """Return whether the records of pool and shadows agree, for the self-check. O(count)."""
        return (
            self.size == self._ranking.size
            and self._ranking.is_sound()
            and self._by_age._ranking.is_sound()
            and self._by_use._ranking.is_sound()
        )

    def forget(self, block: i64) -> None:
        """Forget the uses of a block that is free and has no content any more."""
        self._ranking.forget(block)

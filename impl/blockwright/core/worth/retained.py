"""The order of candidates under hints of the engine and shares of tenants.

The ranks of candidates are, in the order of eviction: released early by a hint, passing, without a hint, kept with a
priority until a time, and guarded (the last that were released, which no hint affects). Within a rank the least
recently released is evicted first. Each tenant has a list of candidates without a hint, in the order of release, a
pairing heap of passing ones and of those with a hint, by rank and age, and a list of guarded ones. A tournament among
the tenants above their floors gives the next victim in O(log tenants).

A tenant is a cache salt that was given a share; all others are one tenant without.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Any, Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.index import LINK
from blockwright.core.pool.order import CandidateOrder, Page, Wish
from blockwright.core.pool.queue import insert
from blockwright.core.worth.classes import Classes
from blockwright.core.worth.heaps import BlockHeaps
from blockwright.core.worth.ranked import RankedOrder
from blockwright.errors import InvalidArgumentError

_FOR_GOOD: Final = -1  # instead of an entry from which on blocks go first: none do

_AGE: Final = 48  # bits of a key below the rank
_FIRST: Final = 1
_PASSING: Final = 2
_PLAIN: Final = 3  # and priorities are above it
_RECENT: Final = 127
_NONE: Final = (1 << 62) - 1  # of a tenant who has no candidate to give

_HELD: Final = 0
_LISTED: Final = 1
_HEAPED: Final = 2
_GUARDED: Final = 3


@final
class RetentionOrder(RankedOrder):
    """Orders candidates by hints and tenants.

    Attributes:
        tells: whether a hint may apply to the blocks that are being released, that is, to a request's whole table.
        hears: whether there has been any hint; before the first only the tenants of blocks are recorded.
    """

    def __init__(
        self, count: i64, shares: Mapping[str, int], guard: float, has_parts: bool, classes: Classes | None
    ) -> None:
        """Start without candidates, for block ids below `count`; a part of them, the last, is guarded. O(count).

        Raises:
            InvalidArgumentError: shares of no number of blocks, or of more than there are. law: SHARE-1.
        """
        super().__init__(classes)
        given: Any = shares
        check_shares(given, int(count) - 1)
        # Of parts of blocks, one may be there twice and another not: their blocks are not the same.
        self.keeps_doubles = has_parts
        self._count: i64 = count
        self._guarded_part: float = guard
        self._guard: i64 = int(guard * float(count - 1))
        self._tenants: dict[str, int] = {name: number for number, name in enumerate(shares, 1)}
        tenants: i64 = len(shares) + 1
        self._floors: vec[i64] = zeros64(tenants)
        for name, number in self._tenants.items():
            self._floors[number] = shares[name]
        self._counts: vec[i64] = zeros64(tenants)  # blocks of each tenant, held and candidates
        self._roots: vec[i32] = zeros32(tenants)
        leaves: i64 = 1
        while leaves < tenants:
            leaves *= 2
        self._leaves: i64 = leaves
        self._best: vec[i64] = vec[i64]([_NONE] * (2 * leaves))  # the tournament; 1 is its top
        # Of each block:
        self._heaps: BlockHeaps = BlockHeaps(count)  # its key: rank and age
        self._owner: vec[i32] = zeros32(count)
        self._where: vec[i32] = zeros32(count)
        self._priority: vec[i32] = zeros32(count)
        self._until: vec[float] = vec[float]([0.0] * count)
        self._goes: vec[i32] = zeros32(count)  # whether it is among the first to go
        self._next_key: vec[i64] = zeros64(count)  # the key of what stood behind it
        self._num_next: vec[i32] = zeros32(count)  # different things that stood behind it: 0, 1, or 2 for more
        # Rings of listed blocks, one per tenant, then of guarded ones; their heads stand behind the blocks.
        self._after: vec[i32] = zeros32(count + 2 * tenants)
        self._before: vec[i32] = zeros32(count + 2 * tenants)
        head: i64 = count
        while head < count + 2 * tenants:
            self._after[head] = i32(head)
            self._before[head] = i32(head)
            head += 1
        self._guarded: OrderedDict[int, None] = OrderedDict()  # all guarded blocks, oldest first
        self._age: i64 = 0
        # A heap of blocks by when they are no longer kept, and some that were taken or kept anew since.
        self._ends: list[tuple[float, int]] = []
        # What was said of the table that is being released.
        self.hears = False
        self._keep: i64 = 0
        self._with_priority: i64 = 0
        self._for_long = 0.0
        self._first_entry: i64 = _FOR_GOOD
        self._goes_on = True

    def copy(self) -> CandidateOrder:
        return self.copied(RetentionOrder(1, {}, 0.0, False, None))

    def tenant(self, salt: str | None) -> i64:
        return 0 if salt is None else self._tenants.get(salt, 0)

    def least(self) -> i64:
        floors: i64 = 0
        for floor in self._floors:
            floors += floor
        return floors

    def start(self, page: Page, held: i64, candidates: list[int]) -> None:
        """Begin in the middle of a pool's life: blocks held, and candidates in order. O(count)."""
        self._counts[0] = held
        for candidate in candidates:
            self._counts[0] += 1
            self.add(candidate, self.is_passing(candidate))
        self.hear()
        for candidate in candidates:
            if not (self.keeps_doubles or self.index.is_single(candidate)):
                self._empty_double(page, candidate)

    def hear(self) -> None:
        """Record hints from now on. O(count) once.

        Blocks that are published by now are never evicted early, because it is not known which blocks follow them.
        """
        if self.hears:
            return
        self.hears = True
        block: i64 = 1
        while block < self._count:
            if self.index.has_key(block):
                # Two means several: what follows a block that was published earlier is not known, so it counts as used.
                self._num_next[block] = 2
            block += 1

    # ------------------------------------------------------------------ what is said

    def begin(self, wish: Wish | None, block_size: i64) -> None:
        self.tells = self.hears
        self._keep = self._with_priority = 0
        self._first_entry = _FOR_GOOD
        if wish is not None:
            self._keep = (wish.tokens + block_size - 1) // block_size
            self._with_priority = wish.priority
            self._for_long = wish.until
            if wish.first >= 0:
                self._first_entry = (wish.first + block_size - 1) // block_size
        self._goes_on = True

    def end(self) -> None:
        self.tells = False

    def note(self, page: Page, ids: vec[i32], at: i64, stop: i64, is_free: bool) -> None:
        """Mark the block at an entry of a table by its hint; called from the table's end on. law: POLICY-1."""
        block: i64 = i64(ids[at])
        follows = False
        if at + 1 < stop:
            behind: i64 = i64(ids[at + 1])
            follows = behind != 0 and self.index.has_key(behind)
            if follows:
                low, _ = page.content(behind)
                if self._num_next[block] == 0:
                    self._num_next[block] = 1
                    self._next_key[block] = low
                elif self._next_key[block] != low:
                    self._num_next[block] = 2
        # A block that others went on from is of use to them, even if its last holder's conversation is over.
        alone = self._num_next[block] == (1 if follows else 0)
        first = self._first_entry >= 0 and at >= self._first_entry
        # The table is released from its end on: a block may go first only if all after it do.
        self._goes_on = (self._goes_on or not follows) and first and is_free and alone
        self._goes[block] = 1 if self._goes_on else 0
        self._goes_on = self._goes_on and page.content(block)[1]
        if at < self._keep and self._with_priority > 0 and self._for_long > self.now:
            if self._until[block] <= self.now:  # what is over counts no more
                self._priority[block] = 0
            self._priority[block] = i32(max(self._with_priority, i64(self._priority[block])))
            self._until[block] = max(self._for_long, self._until[block])

    def published(self, page: Page, ids: vec[i32], start: i64, stop: i64) -> i64:
        """Take the content from candidates with the same content as a range of held blocks. law: SHARE-4."""
        index = self.index
        emptied: i64 = 0
        while start < stop and not self.keeps_doubles:
            block: i64 = i64(ids[start])
            start += 1
            if block == 0 or not index.has_key(block) or index.is_single(block):
                continue
            double = index.next_duplicate(block, block)
            while double != 0 and self.rows[4 * double + LINK] < 0:
                double = index.next_duplicate(double, block)
            if double != 0:
                self._empty_double(page, double)
                emptied += 1
        return emptied

    def _empty_double(self, page: Page, block: i64) -> None:
        """Make a candidate a block without content, since others carry its key as well. law: SHARE-4."""
        # Its place is looked up by notes that `forget` clears.
        self._withdraw(block)
        self.folded(page, block)
        self.forget(block)
        insert(self.rows, block, 0)

    def folded(self, page: Page, block: i64) -> None:
        """See `CandidateOrder.folded`; the others keep its hints. law: SHARE-4."""
        other = self.index.next_duplicate(block, block)
        while other != 0:
            self._merge(other, block)
            other = self.index.next_duplicate(other, block)
        super().folded(page, block)

    def _merge(self, block: i64, double: i64) -> None:
        """Let a block keep the hint for a duplicate, and the blocks that followed the duplicate. law: SHARE-4."""
        if self._priority[double] > 0 and self._until[double] > self.now:
            if self._until[block] <= self.now:
                self._priority[block] = 0
            self._priority[block] = max(self._priority[block], self._priority[double])
            self._until[block] = max(self._until[block], self._until[double])
        if self._num_next[block] == 0:
            self._next_key[block] = self._next_key[double]
            self._num_next[block] = self._num_next[double]
        elif self._num_next[double] == 2 or (
            self._num_next[double] == 1 and self._next_key[double] != self._next_key[block]
        ):
            self._num_next[block] = 2

    def pass_time(self, now: float) -> None:
        """Set the time; expired hints have no effect on the order any more. law: HINT-2.

        Complexity: O(log n) for each hint that expires.
        """
        self.now = now
        ends = self._ends
        while len(ends) > 0 and ends[0][0] <= now:
            block: i64 = heappop(ends)[1]
            if self._is_kept(block) and self._until[block] <= now:
                owner: i64 = i64(self._owner[block])
                root = self._heaps.without(i64(self._roots[owner]), block)
                rank = self._unkept_rank(block)
                self._heaps.keys[block] = (rank << _AGE) | (self._heaps.keys[block] & ((1 << _AGE) - 1))
                self._roots[owner] = i32(self._heaps.meld(root, block))
                self._update(owner)

    # ------------------------------------------------------------------ candidates

    def add(self, block: i64, is_passing: bool = False) -> None:
        """Make a block a candidate, of which the notes have been taken. O(1), O(log n) with a hint."""
        assert self._where[block] == _HELD, "a candidate is added once"
        self.size += 1
        self._age += 1
        owner: i64 = i64(self._owner[block])
        if self._guard == 0 or is_passing:
            self._place(block, owner, self._age)
            return
        # The guarded list is per tenant too, since a tenant within its share gives none of its candidates.
        head = self._count + i64(len(self._floors)) + owner
        self._link(block, head, _GUARDED, (_RECENT << _AGE) | self._age)
        self._guarded[int(block)] = None
        self._update(owner)
        self._guard_fewer()

    def resize(self, end: i64) -> None:
        super().resize(end)
        self._guard = int(self._guarded_part * float(end - 1))
        self._guard_fewer()

    def _guard_fewer(self) -> None:
        """Put the oldest guarded candidates where their rank is, while too many are guarded. law: HINT-3."""
        while i64(len(self._guarded)) > self._guard:
            oldest: i64 = next(iter(self._guarded))
            self._unlink(oldest)
            self._place(oldest, i64(self._owner[oldest]), self._heaps.keys[oldest] & ((1 << _AGE) - 1))

    def _place(self, block: i64, owner: i64, age: i64) -> None:
        """Put a candidate of an age where its rank is."""
        rank = self._open_rank(block)
        if rank == _PLAIN:
            head: i64 = self._count + owner
            # Only the first candidate of a list is in the tournament, so that most additions change nothing there.
            was_empty = i64(self._after[head]) == head
            self._link(block, head, _LISTED, (_PLAIN << _AGE) | age)
            if was_empty:
                self._update(owner)
            return
        self._heaps.keys[block] = (rank << _AGE) | age
        if rank > _PLAIN:
            self._expect(block)
        self._where[block] = _HEAPED
        root: i64 = i64(self._roots[owner])
        first = self._heaps.meld(root, block)
        if first != root:
            self._roots[owner] = i32(first)
            self._update(owner)

    def _rank(self, block: i64) -> i64:
        """Return the rank of a candidate. O(1)."""
        return _RECENT if self._where[block] == _GUARDED else self._open_rank(block)

    def _open_rank(self, block: i64) -> i64:
        """Return the rank that a candidate has unless it is guarded. O(1)."""
        if self.hears and self._priority[block] > 0 and self._until[block] > self.now:
            return _PLAIN + i64(self._priority[block])
        return self._unkept_rank(block)

    def _unkept_rank(self, block: i64) -> i64:
        """Return the rank that a candidate has if nobody asked to keep it. O(1)."""
        if self.hears and self._goes[block] != 0:
            return _FIRST
        return _PASSING if self.is_passing(block) else _PLAIN

    def _is_kept(self, block: i64) -> bool:
        """Return whether a block is a candidate with a priority. O(1)."""
        return self._where[block] == _HEAPED and self._heaps.keys[block] >> _AGE > _PLAIN

    def _expect(self, block: i64) -> None:
        """Note when a block's time ends. O(log n) amortized."""
        if self._until[block] == float("inf"):
            return
        if i64(len(self._ends)) > 2 * self._count + 64:
            # Blocks that were taken or kept anew are dropped before they outgrow the pool.
            ends = {each for each in self._ends if self._is_kept(i64(each[1])) and self._until[i64(each[1])] == each[0]}
            self._ends = list(ends)
            heapify(self._ends)
        heappush(self._ends, (self._until[block], int(block)))

    def _link(self, block: i64, head: i64, where: i32, key: i64) -> None:
        """Put a candidate at the end of a ring."""
        after = self._after
        before = self._before
        last = before[head]
        after[i64(last)] = i32(block)
        before[block] = last
        after[block] = i32(head)
        before[head] = i32(block)
        self._where[block] = where
        self._heaps.keys[block] = key

    def _unlink(self, block: i64) -> None:
        """Take a candidate out of its ring or heap."""
        owner: i64 = i64(self._owner[block])
        if self._where[block] == _HEAPED:
            self._roots[owner] = i32(self._heaps.without(i64(self._roots[owner]), block))
        else:
            after = self._after[block]
            before = self._before[block]
            self._after[i64(before)] = after
            self._before[i64(after)] = before
        if self._where[block] == _GUARDED:
            del self._guarded[int(block)]
        self._where[block] = _HELD

    def leave(self, ids: vec[i32]) -> list[int]:
        """Take out those of some blocks that are candidates, and return them. O(blocks)."""
        blocks: list[int] = []
        for each in ids:
            block: i64 = i64(each)
            if self._where[block] != _HELD:
                self._withdraw(block)
                # A block that is found again is of use, so that the end of its first conversation no longer counts.
                self._goes[block] = 0
                blocks.append(int(block))
        return blocks

    def _withdraw(self, block: i64) -> None:
        """Take out one candidate. O(log n)."""
        self._unlink(block)
        self.size -= 1
        self._update(i64(self._owner[block]))

    def take(self, ids: vec[i32], start: i64, at: i64, stop: i64) -> None:
        """Take out the candidates that are evicted first for the tenant being served. law: SHARE-3.

        Complexity: O(log tenants) for each run of candidates of one tenant. Where only candidates within a floor are
        left, the first of them goes, found in O(tenants). law: POLICY-3.
        """
        taker = self.serving
        owners = self._owner
        counts = self._counts
        after = self._after
        before = self._before
        keys = self._heaps.keys
        floor = self._floors[taker]
        # The blocks without content that were taken before count for the taker, and may bring it to its floor.
        counts[taker] += at - start
        if counts[taker] > floor >= counts[taker] - (at - start):
            self._update(taker)
        while start < at:
            owners[i64(ids[start])] = i32(taker)
            start += 1
        while at < stop:
            counts[taker] += 1
            if counts[taker] == floor + 1:
                self._update(taker)
            owner = self._next_owner()
            key = self._first_key(owner)
            # Up to this key the tenant's candidates go before those of all others: a run needs one look at the
            # tournament.
            bound = self._bound(owner)
            least = self._floors[owner]
            is_taker = owner == taker
            head = self._count + owner
            while True:
                block = i64(after[head])
                if block < head and keys[block] == key:  # the first of the list, as most are
                    following = after[block]
                    after[head] = following
                    before[i64(following)] = i32(head)
                    self._where[block] = _HELD
                else:
                    block = self._first_of(owner, key)
                    self._unlink(block)
                self.size -= 1
                counts[owner] -= 1
                if self.hears:
                    if self.tells_gone and self._until[block] > self.now:
                        self.gone[int(block)] = (int(self._priority[block]), self._until[block])
                    self._unmark(block)
                owners[block] = i32(taker)
                ids[at] = i32(block)
                at += 1
                if at == stop:
                    break
                key = self._first_key(owner)
                if key >= bound:
                    break
                # Taking from itself leaves a tenant's count as it is; taking from another one shrinks that, down to its
                # floor.
                if is_taker:
                    if counts[owner] < least:
                        break
                elif counts[owner] <= least or counts[taker] == floor:
                    break
                counts[taker] += 1
            self._update(owner)

    def _next_owner(self) -> i64:
        """Return the tenant with the next victim; there must be one."""
        best = self._best
        top: i64 = best[1]
        if top < _NONE:
            at: i64 = 1
            leaves = self._leaves
            while at < leaves:
                at += at
                if best[at] != top:
                    at += 1
            return at - leaves
        # All tenants are within their floors: floors are soft, so the first candidate of all goes rather than none.
        owner: i64 = 0
        tenant: i64 = 0
        while tenant < i64(len(self._floors)):
            key: i64 = self._first_key(tenant)
            if key < top:
                top = key
                owner = tenant
            tenant += 1
        return owner

    def _bound(self, owner: i64) -> i64:
        """Return the key up to which a tenant's candidates precede all others; 0 if all are within their floors."""
        best = self._best
        bound: i64 = _NONE
        if best[1] == _NONE:
            return 0
        at: i64 = self._leaves + owner
        while at > 1:
            if best[at ^ 1] < bound:
                bound = best[at ^ 1]
            at >>= 1
        return bound

    def _first_of(self, owner: i64, key: i64) -> i64:
        """Return a tenant's first candidate, which has this key."""
        keys = self._heaps.keys
        block: i64 = i64(self._after[self._count + owner])
        if block < self._count and keys[block] == key:
            return block
        block = i64(self._roots[owner])
        if block != 0 and keys[block] == key:
            return block
        return i64(self._after[self._count + i64(len(self._floors)) + owner])

    def _first_key(self, tenant: i64) -> i64:
        """Return the key of a tenant's first candidate. O(1)."""
        keys = self._heaps.keys
        block: i64 = i64(self._after[self._count + tenant])
        key: i64 = keys[block] if block < self._count else _NONE
        block = i64(self._roots[tenant])
        if block != 0 and keys[block] < key:
            key = keys[block]
        if key == _NONE and self._guard > 0:
            block = i64(self._after[self._count + i64(len(self._floors)) + tenant])
            if block < self._count:
                return keys[block]
        return key

    def _update(self, tenant: i64) -> None:
        """Let the tournament know of a tenant's first candidate, or that its floor is reached. O(log tenants)."""
        best = self._best
        key: i64 = self._first_key(tenant) if self._counts[tenant] > self._floors[tenant] else _NONE
        at: i64 = self._leaves + tenant
        best[at] = key
        while at > 1:
            other: i64 = best[at ^ 1]
            if other < key:
                key = other
            at >>= 1
            # The winner above is unchanged, and so is everything above that.
            if best[at] == key:
                break
            best[at] = key

    # ------------------------------------------------------------------ who has how much

    def forget(self, block: i64) -> None:
        """Forget all of a block that is free and has no content any more. O(log tenants)."""
        owner: i64 = i64(self._owner[block])
        self._counts[owner] -= 1
        self._owner[block] = 0
        self._unmark(block)
        # The tenant has just come within its floor and leaves the tournament.
        if self._counts[owner] == self._floors[owner]:
            self._update(owner)

    def disown(self, block: i64) -> None:
        """Count a block for no tenant with a share. O(log tenants)."""
        owner: i64 = i64(self._owner[block])
        self._counts[owner] -= 1
        self._counts[0] += 1
        self._owner[block] = 0
        if self._counts[owner] == self._floors[owner]:
            self._update(owner)

    def _unmark(self, block: i64) -> None:
        """Forget the hint for a block."""
        self._priority[block] = 0
        self._until[block] = 0.0
        self._goes[block] = 0
        self._num_next[block] = 0

    def clear(self) -> list[int]:
        """Take out all candidates, which lose their content, and return them. O(n log n)."""
        blocks = self.candidates()
        for found in blocks:
            block: i64 = found
            self._unlink(block)
            self.size -= 1
            self.forget(block)
        return blocks

    def candidates(self) -> list[int]:
        """Return the candidates, least recently released first; who goes depends on the taker. O(n log n)."""
        ages = [
            (int(self._heaps.keys[block] & ((1 << _AGE) - 1)), block)
            for block in range(1, int(self._count))
            if self._where[block] != _HELD
        ]
        ages.sort()
        return [block for _, block in ages]

    def ranked(self) -> list[int]:
        """See `CandidateOrder.ranked`: by rank, and then least recently released first. O(n log n)."""
        ranks = [(int(self._heaps.keys[block]), block) for block in self.candidates()]
        ranks.sort()
        return [block for _, block in ranks]

    def is_sound(self) -> bool:
        """Return whether every candidate is where its rank is, and counts and tournament are right. O(count)."""
        keys = self._heaps.keys
        known: list[int] = []
        for tenant in range(len(self._floors)):
            heaped = self._heaps.members(i64(self._roots[tenant]))
            rings = self._ring(self._count + tenant) + self._ring(self._count + len(self._floors) + tenant)
            if any([self._owner[block] != tenant for block in heaped + rings]):
                return False
            if any([keys[block] >> _AGE != self._rank(block) for block in heaped + rings]):
                return False
            # Found by looking at every candidate, while `_first_key` looks at the heads of the lists alone.
            least = min([int(keys[block]) for block in heaped + rings], default=int(_NONE))
            if least != int(self._first_key(tenant)):
                return False
            is_open = self._counts[tenant] > self._floors[tenant]
            if self._best[self._leaves + tenant] != (self._first_key(tenant) if is_open else _NONE):
                return False
            known += heaped + rings
        at: i64 = 1
        while at < self._leaves:
            if self._best[at] != min(self._best[2 * at], self._best[2 * at + 1]):
                return False
            at += 1
        return len(known) == len(set(known)) == int(self.size) and sorted(known) == sorted(self.candidates())

    def _ring(self, head: i64) -> list[int]:
        """Return the blocks of a ring."""
        found: list[int] = []
        block: i64 = i64(self._after[head])
        while block != head and i64(len(found)) <= self._count:
            found.append(int(block))
            block = i64(self._after[block])
        return found


def check_shares(shares: object, most: int) -> None:
    """Check the floors of tenants in a pool of `most` blocks.

    Raises:
        InvalidArgumentError: names the tenant, or the floors sum to more than the pool. law: SHARE-1.
    """
    if not isinstance(shares, Mapping):
        raise InvalidArgumentError(f"shares: must map cache salts to numbers of blocks, not be {shares!r}")
    total = 0
    for name, floor in shares.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"shares: a tenant is a cache salt, a string, not {name!r}")
        if isinstance(floor, bool) or not isinstance(floor, int) or floor < 0:
            raise InvalidArgumentError(f"shares: the floor of {name!r} must be a number of blocks, not {floor!r}")
        total += floor
    if total > most:
        raise InvalidArgumentError(f"shares: the floors sum to {total} blocks, the pool has {most}; lower some")

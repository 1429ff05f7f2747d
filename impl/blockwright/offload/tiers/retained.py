"""A tier's record of the hints for its blocks, and the order of eviction that follows from it.

The order of candidates on the device (`core.worth`) is one of released blocks in a pool of fixed size. Here the
order of use is the tier's own: its blocks come, leave and are passed over by name. So the next victims are found by
reading it from its oldest end, once if the victims have no hints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.pool.check import demand
from blockwright.core.pool.order import BlockHint
from blockwright.core.worth.hints import MAX_PRIORITY
from blockwright.errors import InvalidArgumentError
from blockwright.offload.tiers.entries import Entries

# Instead of a priority, of blocks that no hint is about.
_GUARDED: Final = MAX_PRIORITY + 1

_as_float: Any = float


def checked_hints(keys: list[bytes], hints: object) -> list[BlockHint]:
    """Return the hints for blocks, one for each; None and an empty hint are the same.

    Raises:
        InvalidArgumentError: the number of hints differs from that of blocks, or one is no tenant, priority and time.
    """
    if not isinstance(hints, Iterable):
        raise InvalidArgumentError(f"hints: must be a sequence of BlockHint, not {type(hints).__name__}")
    found: list[BlockHint] = []
    for hint in hints:
        if hint is None:
            found.append(BlockHint())
            continue
        if not isinstance(hint, tuple) or len(hint) != 3:
            raise InvalidArgumentError(f"hints: must be BlockHint(tenant, priority, until), not {hint!r}")
        tenant, priority, until = hint
        if tenant is not None and not isinstance(tenant, str):
            raise InvalidArgumentError(f"hints: a tenant is a cache salt, a string, not {tenant!r}")
        if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
            raise InvalidArgumentError(f"hints: a priority is within 0..{MAX_PRIORITY}, not {priority!r}")
        if not isinstance(until, (int, float)) or until != until:  # it is no number
            raise InvalidArgumentError(f"hints: until must be a time, not {until!r}")
        # As an object: mypyc does not check that a float of its own could be made into one when memory is short.
        time: Any = _as_float(until)
        found.append(BlockHint(tenant, priority, time))
    if len(found) != len(keys):
        raise InvalidArgumentError(f"hints: {len(found)} given, for {len(keys)} blocks")
    return found


@final
class TierRetention:
    """The tenant of each block of a tier, and its priority with the time when that ends; all by slots.

    Attributes:
        coming: the hints for the blocks of the store that is being prepared.
        guard: how many of the last blocks used no hint affects.
    """

    def __init__(self, shares: Mapping[str, int], guard: i64) -> None:
        """Begin without hints; of the last `guard` blocks used none counts."""
        self.coming: dict[bytes, BlockHint] = {}
        self.guard: i64 = guard
        self._numbers: dict[str, int] = {name: number for number, name in enumerate(shares, 1)}
        self._shares: vec[i64] = zeros64(len(shares) + 1)
        for number, share in enumerate(shares.values(), 1):
            self._shares[number] = share
        self._counts: vec[i64] = zeros64(len(shares) + 1)  # blocks of each tenant that has a share
        self._tenant: list[str | None] = []
        self._number: vec[i32] = vec[i32]()  # of the tenant, if it has a share
        self._priority: vec[i32] = vec[i32]()
        self._until: vec[float] = vec[float]()

    def copy(self) -> TierRetention:
        """Return an independent copy. O(slots)."""
        twin = TierRetention({}, self.guard)
        copy_fields(self, twin)
        return twin

    def grow(self, size: i64) -> None:
        """Make room for slots below `size`, without hints."""
        added = size - i64(len(self._tenant))
        if added > 0:
            self._tenant.extend([None] * added)
            self._number = extend(self._number, zeros32(added))
            self._priority = extend(self._priority, zeros32(added))
            self._until = extend(self._until, vec[float]([0.0] * added))

    def join(self, slot: i64, hint: BlockHint, now: float) -> None:
        """Join a hint to that of a block: the higher priority, the later time. Expired hints do not count."""
        tenant, priority, until = hint
        if tenant is not None:
            self._counts[i64(self._number[slot])] -= 1
            self._tenant[slot] = tenant
            self._number[slot] = i32(self._numbers.get(tenant, 0))
            self._counts[i64(self._number[slot])] += 1
        if priority > 0 and until > now:
            # An expired hint does not count, so that it does not lift the new one.
            over = self._until[slot] <= now
            self._priority[slot] = i32(priority if over else max(priority, int(self._priority[slot])))
            self._until[slot] = until if over else max(until, self._until[slot])

    def promised(self) -> i64:
        """Return how many blocks tenants may count on together."""
        total: i64 = 0
        for share in self._shares:
            total += share
        return total

    def hint_of(self, slot: i64) -> BlockHint | None:
        """Return the hint for a block, or None."""
        if self._tenant[slot] is None and self._priority[slot] == 0:
            return None
        return BlockHint(self._tenant[slot], int(self._priority[slot]), self._until[slot])

    def forget(self, slots: vec[i32]) -> None:
        """Forget the hints for blocks that leave."""
        for named in slots:
            slot: i64 = i64(named)
            self._counts[i64(self._number[slot])] -= 1
            self._counts[0] += 1
            self._tenant[slot] = None
            self._number[slot] = 0
            self._priority[slot] = 0
            self._until[slot] = 0.0

    def victims(self, entries: Entries, count: i64, new: list[bytes], call: i64, now: float) -> vec[i32]:
        """Return the idle blocks that go, up to `count`. law: TIER-10, TIER-11, TIER-12.

        Blocks of tenants within their shares are evicted last. Of the others the lowest priority is evicted first, and
        within a priority the least recently used. The last that were used are above all priorities. O(blocks passed
        over), for each priority that is reached.
        """
        # How many blocks each tenant has beyond its share, those that are coming included.
        above = self._counts[:]
        at: i64 = 0
        while at < i64(len(above)):
            above[at] -= self._shares[at]
            at += 1
        for key in new:
            hint = self.coming.get(key)
            if hint is not None and hint.tenant is not None:
                above[self._numbers.get(hint.tenant, 0)] += 1
        newer = entries.recency.newer
        numbers = self._number
        victims = vec[i32]()
        within = vec[i32]()
        rank: i64 = 0
        # A walk over the order of use for each priority that is reached: mostly one, and no memory for a sort.
        while rank <= _GUARDED and i64(len(victims)) < count:
            following: i64 = _GUARDED + 1
            slot: i64 = i64(newer[0])
            in_reach = entries.recency.count - self.guard
            while slot != 0 and i64(len(victims)) < count:
                in_reach -= 1
                if entries.is_idle(slot) and entries.named[slot] != call:
                    level: i64 = i64(self._priority[slot]) if self._until[slot] > now else 0
                    if in_reach < 0:
                        level = _GUARDED
                    number: i64 = i64(numbers[slot])
                    if rank < level < following:
                        following = level
                    elif level == rank and (number == 0 or above[number] > 0):
                        above[number] -= 1
                        victims = append(victims, i32(slot))
                    elif level == rank:
                        within = append(within, i32(slot))
                slot = i64(newer[slot])
            rank = following
        # Only where nothing else is left: shares promise an order, and no room.
        for spared in within:
            if i64(len(victims)) < count:
                victims = append(victims, spared)
        return victims

    def check(self, used: list[int]) -> None:
        """Raise an `InvariantError` if the counts of tenants are not those of the blocks present. law: TIER-10."""
        for tenant, number in self._numbers.items():
            owned = [slot for slot in used if self._tenant[slot] == tenant]
            demand("TIER-10", f"the number of blocks of {tenant!r}", len(owned), int(self._counts[number]))

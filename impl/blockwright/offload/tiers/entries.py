"""The blocks of one tier, packed: 32 bytes and a reference to the key for each.

The life of a block:

    1. WRITING `prepare_store` gave it a place; it cannot be read yet
    2. READY      completely written; it may have readers, and without them it may be evicted
    3. DOOMED     a load of it failed, so that it is found no more; it stays until its last reader has ended
    1 -> 2, or 1 -> gone    `complete_store`, by success
    2 -> 3                  a load fails
    2 -> gone               evicted or removed
    3 -> gone               the last reader ends
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.errors import InvariantError, UnknownBlockHashError
from blockwright.offload.status import NOT_READY, BlockStatus
from blockwright.offload.tiers.keys import KeyIndex, shown
from blockwright.offload.tiers.ring import Ring

WRITING: Final = 1
READY: Final = 2
DOOMED: Final = 3


@final
class Entries:
    """The state of each block that is present; all fields except `index` are by slot.

    Attributes:
        index: the slots of the blocks.
        recency: the blocks in order of their last use.
        state: WRITING, READY or DOOMED; 0 in a slot without block.
        readers: how many loads read the block.
        place: its number on the medium (with a packed backend only).
        named: the last call of `prepare_store` that named the block.
        has_statuses: whether the backend is another.
        statuses: by slot, the statuses that it gave; empty with a packed one.
    """

    def __init__(self, has_statuses: bool) -> None:
        self.has_statuses: bool = has_statuses
        self.statuses: list[BlockStatus | None] = [None] if has_statuses else []
        self.index = KeyIndex()
        self.recency = Ring()
        self.state: vec[i32] = zeros32(1)
        self.readers: vec[i32] = zeros32(1)
        self.place: vec[i32] = zeros32(1)
        self.named: vec[i64] = zeros64(1)

    def copy(self) -> Entries:
        """Return an independent copy, without the backend's statuses. O(slots)."""
        twin = Entries(False)
        copy_fields(self, twin, "has_statuses", "statuses")
        return twin

    def put_after(self, last: i64, key: bytes) -> i64:
        """Return the slot of a key, as `KeyIndex.put_after`, and let every field have that slot. O(1)."""
        slot = self.index.put_after(last, key)
        if slot >= i64(len(self.state)):
            self._grow()
        return slot

    def _grow(self) -> None:
        more = zeros32(self.index.size - i64(len(self.state)))
        self.state = extend(self.state, more)
        self.readers = extend(self.readers, more)
        self.place = extend(self.place, more)
        self.named = extend(self.named, zeros64(self.index.size - i64(len(self.named))))
        self.recency.grow(self.index.size)
        if self.has_statuses:
            self.statuses.extend([None] * (self.index.size - i64(len(self.statuses))))

    def slots_of(self, keys: list[bytes]) -> vec[i32]:
        """Return the slots of blocks; raise an `UnknownBlockHashError` if one of them is not present. O(blocks)."""
        slots = self.index.find_all(keys)
        at: i64 = 0
        for slot in slots:
            if slot == 0:
                raise UnknownBlockHashError(f"block_hashes: no block {shown(keys[at])} is here")
            at += 1  # noqa: SIM113
        return slots

    def places_of(self, slots: vec[i32]) -> vec[i32]:
        place = self.place
        places = slots[:]
        at: i64 = 0
        while at < i64(len(slots)):
            places[at] = place[i64(slots[at])]
            at += 1
        return places

    def status_of(self, slot: i64) -> BlockStatus:
        status = self.statuses[slot]
        if status is None:
            raise InvariantError("TIER-2", f"the place of slot {slot}", "one of the backend's", None)
        return status

    def show(self, slot: i64) -> None:
        """Update the backend's status of a block, if there is one."""
        if self.has_statuses:
            self.status_of(slot).ref_cnt = NOT_READY if self.state[slot] == WRITING else int(self.readers[slot])

    def enter_all(self, slots: vec[i32], state: i32) -> None:
        """Begin the lives of blocks, at the newest end, in order. law: TIER-4."""
        states = self.state
        readers = self.readers
        for slot in slots:
            states[i64(slot)] = state
            readers[i64(slot)] = 0
        self.recency.push_all(slots)

    def is_idle(self, slot: i64) -> bool:
        return self.state[slot] == READY and self.readers[slot] == 0

    def drop_all(self, slots: vec[i32]) -> None:
        """End the lives of blocks; their places are the caller's to return. O(slots). law: TIER-4."""
        self.recency.leave_all(slots)
        self.index.drop_all(slots)
        states = self.state
        for slot in slots:
            states[i64(slot)] = 0
            if self.has_statuses:
                self.statuses[i64(slot)] = None

"""Orders of slots: linked lists through packed arrays, every operation O(1)."""

from __future__ import annotations

from typing import final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright._copies import copy_fields
from blockwright.core.keys.packed import zeros32


@final
class Ring:
    """Slots from the oldest to the newest; slot 0, never a member, is where the ring begins and ends.

    Attributes:
        newer: per member, the next newer one, or 0 after the newest; at 0, the oldest. Only to be read.
        count: number of members.
    """

    def __init__(self) -> None:
        self.newer: vec[i32] = zeros32(1)
        self._older: vec[i32] = zeros32(1)
        self.count: i64 = 0

    def copy(self) -> Ring:
        """Return an independent copy. O(slots)."""
        twin = Ring()
        copy_fields(self, twin)
        return twin

    def grow(self, size: i64) -> None:
        """Make room for slots below `size`."""
        added = size - i64(len(self.newer))
        if added > 0:
            self.newer = extend(self.newer, zeros32(added))
            self._older = extend(self._older, zeros32(added))

    def push_all(self, slots: vec[i32]) -> None:
        """Add slots at the newest end, in order. They must not be members yet, and there must be room for them."""
        newer = self.newer
        older = self._older
        newest = older[0]
        for slot in slots:
            newer[i64(newest)] = slot
            older[i64(slot)] = newest
            newest = slot
        newer[i64(newest)] = 0
        older[0] = newest
        self.count += i64(len(slots))

    def leave_all(self, slots: vec[i32]) -> None:
        newer = self.newer
        older = self._older
        for slot in slots:
            before = older[i64(slot)]
            after = newer[i64(slot)]
            newer[i64(before)] = after
            older[i64(after)] = before
        self.count -= i64(len(slots))

    def refresh_all(self, slots: vec[i32]) -> None:
        """Move members to the newest end, the last first, so that the first becomes the newest; pass over 0."""
        newer = self.newer
        older = self._older
        newest = older[0]
        at: i64 = len(slots)
        while at > 0:
            at -= 1
            slot = slots[at]
            if slot == 0 or slot == newest:
                continue
            before = older[i64(slot)]
            after = newer[i64(slot)]
            newer[i64(before)] = after
            older[i64(after)] = before
            newer[i64(newest)] = slot
            older[i64(slot)] = newest
            newest = slot
            newer[i64(newest)] = 0
            older[0] = newest

    def members(self) -> list[int]:
        """Return the members, oldest first. O(count)."""
        return self._walk(self.newer)

    def backwards(self) -> list[int]:
        """Return the members, newest first, read by the other links, for the self-check. O(count)."""
        return self._walk(self._older)

    def _walk(self, links: vec[i32]) -> list[int]:
        """Follow links from slot 0 until it comes again, or more members than there are."""
        slots: list[int] = []
        slot: i64 = i64(links[0])
        while slot != 0 and i64(len(slots)) <= self.count:
            slots.append(int(slot))
            slot = i64(links[slot])
        return slots

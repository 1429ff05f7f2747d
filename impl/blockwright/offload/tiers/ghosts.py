"""Keys of blocks that were evicted lately, in two orders of eviction, from which an adaptive policy learns.

Source: the lists B1 and B2 of ARC (Megiddo and Modha, FAST 2003).
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.offload.tiers.keys import KeyIndex
from blockwright.offload.tiers.ring import Ring

ONCE: Final = 1
OFTEN: Final = 2


@final
class Ghosts:
    """Keys without blocks, each in the list of those seen once or of those seen more often.

    Attributes:
        index: the slots of the keys.
        once, often: the two lists, least recent first.
    """

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.once = Ring()
        self.often = Ring()
        self._list: vec[i32] = zeros32(1)

    def copy(self) -> Ghosts:
        """Return an independent copy. O(slots)."""
        twin = Ghosts()
        twin.index = self.index.copy()
        twin.once = self.once.copy()
        twin.often = self.often.copy()
        twin._list = self._list[:]
        return twin

    def list_of(self, key: bytes) -> i32:
        """Return ONCE or OFTEN, or 0 for a key that is in neither list. O(1)."""
        return self._list[self.index.find(key)]

    def ring(self, which: i32) -> Ring:
        return self.once if which == ONCE else self.often

    def add(self, key: bytes, which: i32) -> None:
        """Put a key that is in neither list at the recent end of one. O(1)."""
        slot = self.index.put(key)
        size = self.index.size
        if i64(len(self._list)) < size:
            self._list = extend(self._list, zeros32(size - i64(len(self._list))))
            self.once.grow(size)
            self.often.grow(size)
        self._list[slot] = which
        self.ring(which).push(slot)

    def refresh(self, key: bytes, which: i32) -> None:
        """Move a key of a list to its recent end. O(1)."""
        self.ring(which).refresh(self.index.find(key))

    def discard(self, key: bytes) -> None:
        """Take a key out of its list, if it is in one. O(1)."""
        slot = self.index.find(key)
        if slot != 0:
            self._drop(slot)

    def trim(self, which: i32, count: i64) -> None:
        """Forget the least recent keys of a list until at most `count` are left. O(keys that go)."""
        ring = self.ring(which)
        while ring.count > 0 and ring.count > count:
            self._drop(i64(ring.newer[0]))

    def _drop(self, slot: i64) -> None:
        self.ring(self._list[slot]).leave(slot)
        self._list[slot] = 0
        self.index.drop_all(vec[i32]([i32(slot)]))

    def keys(self, which: i32) -> list[bytes]:
        """Return the keys of a list, least recent first. O(count)."""
        return [self.index.keys[slot] for slot in self.ring(which).members()]

"""Keys of blocks that were evicted lately, in two orders of eviction, from which an adaptive policy learns.

Source: the lists B1 and B2 of ARC (Megiddo and Modha, FAST 2003).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, final

from mypy_extensions import i32, i64

ONCE: Final = 1
OFTEN: Final = 2


@final
class Ghosts:
    """Keys without blocks, each in the list of those seen once or of those seen more often.

    Attributes:
        once, often: the two lists, least recent first. Ordered dictionaries, since a plain one gets slow at its front.
    """

    def __init__(self) -> None:
        self.once: OrderedDict[bytes, None] = OrderedDict()
        self.often: OrderedDict[bytes, None] = OrderedDict()

    def copy(self) -> Ghosts:
        """Return an independent copy. O(keys)."""
        twin = Ghosts()
        twin.once = self.once.copy()
        twin.often = self.often.copy()
        return twin

    def list_of(self, key: bytes) -> i32:
        """Return ONCE or OFTEN, or 0 for a key that is in neither list. O(1)."""
        return ONCE if key in self.once else OFTEN if key in self.often else 0

    def ring(self, which: i32) -> OrderedDict[bytes, None]:
        return self.once if which == ONCE else self.often

    def trim(self, which: i32, count: i64) -> None:
        """Forget the least recent keys of a list until at most `count` are left. O(keys that go)."""
        ring = self.ring(which)
        while i64(len(ring)) > count:
            ring.popitem(last=False)

"""What became of prefixes that can no longer be found: the keys lost last, and how each was lost."""

from __future__ import annotations

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.index import PrefixIndex, zeros32

EVICTED: Final = 1
"""Taken for new blocks after its last request had ended or was preempted."""
TRIMMED: Final = 2
"""Taken for new blocks after the window of its last request had moved on."""
RESET: Final = 3
"""Dropped by a reset of the prefix cache."""


@final
class Losses:
    """Remembers the last losses, as many as the pool has blocks but the null block. All in O(1) per key.

    A key that is published again is found before anybody asks here; lost again, it counts as lost then.

    Attributes:
        counts: keys lost since the counts were last taken, by ``3 * group + cause - 1``.
    """

    def __init__(self, num_blocks: i64, *, source: Losses | None = None) -> None:
        """Start without losses, or copy `source`. O(num_blocks)."""
        if source is not None:
            self._size: i64 = source._size
            self._last: i64 = source._last
            self._keys: PrefixIndex = source._keys.copy()
            self._causes: vec[i32] = source._causes[:]
            self._releases: vec[i32] = source._releases[:]
            self.counts: dict[int, int] = source.counts.copy()
            return
        self._size = num_blocks
        self._last = 0  # the slot written last, within 1 .. num_blocks - 1
        self._keys = PrefixIndex(num_blocks)
        self._causes = zeros32(num_blocks)
        # Per block: how it was last released, EVICTED or TRIMMED, which is how its key is lost if it is taken.
        self._releases = vec[i32]([EVICTED] * num_blocks)
        self.counts = {}

    def copy(self) -> Losses:
        """Return an independent copy."""
        return Losses(0, source=self)

    def note_release(self, block: i64, cause: i64) -> None:
        """Note how a block was released."""
        self._releases[block] = i32(cause)

    def lose(self, block: i64, low: i64, high: i64, group: i64) -> None:
        """Note that the last block with a key is taken."""
        self._remember(low, high, group, i64(self._releases[block]))

    def lose_all(self, index: PrefixIndex) -> None:
        """Note that every key of an index is about to be dropped, a key of several blocks once. O(num_blocks)."""
        block: i64 = 1
        while block < self._size:
            if index.has_key(block):
                low, high, group = index.key(block)
                if index.find(low, high, group) == block:
                    self._remember(low, high, group, RESET)
            block += 1

    def cause(self, low: i64, high: i64, group: i64) -> i64:
        """Return how a key was last lost; 0 if it never was, or was forgotten."""
        slot = self._keys.find(low, high, group)
        return i64(self._causes[slot]) if slot > 0 else 0

    def take_counts(self) -> dict[int, int]:
        """Return the counts since the last call, and start again."""
        counts = self.counts
        self.counts = {}
        return counts

    def _remember(self, low: i64, high: i64, group: i64, cause: i64) -> None:
        """Write a loss over the oldest one."""
        keys = self._keys
        before = keys.find(low, high, group)
        if before > 0:
            keys.drop(before)
        slot = self._last % (self._size - 1) + 1
        if keys.has_key(slot):
            keys.drop(slot)
        keys.add(slot, low, high, group)
        self._causes[slot] = i32(cause)
        self._last = slot
        kind = 3 * group + cause - 1
        self.counts[kind] = self.counts.get(kind, 0) + 1

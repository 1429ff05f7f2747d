"""Copies to come: the engine makes them before its next step, and each holds both of its ends until it is taken."""

from __future__ import annotations

from typing import final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import with_room, zeros32
from blockwright.core.pool.check import demand


@final
class Copies:
    """The copies to come of one pool.

    Attributes:
        pending: group, source and destination of each, oldest first.
    """

    def __init__(self, count: i64) -> None:
        """Start without copies, for block ids below `count`."""
        self._count: i64 = count
        self.pending: vec[i32] = vec[i32]()
        # Per block, once there has been a copy: of how many it is the source, or of a destination the source, negative.
        self._ends: vec[i32] = vec[i32]()

    def copy(self) -> Copies:
        twin = Copies(self._count)
        twin.pending = self.pending[:]
        twin._ends = self._ends[:]
        return twin

    def reserve(self, count: i64) -> None:
        """Take the memory for `count` more copies; nothing else changes."""
        if len(self._ends) == 0:
            # Most engines never fork, so that the four bytes per block are taken with the first copy.
            self._ends = zeros32(self._count)
        self.pending = with_room(self.pending, 3 * count)

    def note(self, group: i64, source: i64, destination: i64) -> None:
        """Note a copy, which holds both of its ends already. Takes no memory."""
        self._ends[source] += 1
        self._ends[destination] = -i32(source)
        self.pending = append(append(append(self.pending, i32(group)), i32(source)), i32(destination))

    def holders_of(self, block: i64) -> i64:
        """Return how many copies hold a block. O(1)."""
        if len(self.pending) == 0:
            return 0
        times: i64 = i64(self._ends[block])
        return times if times >= 0 else 1

    def source_of(self, block: i64) -> i64:
        """Return the source of the copy that goes to a block; 0 if none does. O(1)."""
        return max(0, -i64(self._ends[block])) if len(self.pending) > 0 else 0

    def let_go(self, block: i64) -> i64:
        """Return how many copies hold a block, and have none hold it any more. O(1)."""
        times = self.holders_of(block)
        self._ends[block] = 0
        return times

    def listed(self) -> list[tuple[int, int, int]]:
        """Return (group, source, destination) of each, oldest first. O(copies)."""
        numbers = [int(number) for number in self.pending]
        return [(numbers[at], numbers[at + 1], numbers[at + 2]) for at in range(0, len(numbers), 3)]

    def check(self) -> None:
        """Recount the copies of each block from the list of all.

        Raises:
            InvariantError: COPY-1 is broken.
        """
        ends = [0] * len(self._ends)
        for _, source, destination in self.listed():
            ends[source] += 1
            ends[destination] = -source
        demand("COPY-1", "copies to come that each block is the source of", ends, [int(count) for count in self._ends])

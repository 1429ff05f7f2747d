"""Which block lies in which slot of a directory, as one process knows it. No call here goes to the disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from blockwright.errors import BlockNotReadyError, InvalidArgumentError
from blockwright.offload.disk.index import Record


@dataclass
class DiskCounts:
    """Counts since a store was opened.

    Attributes:
        hits: reads that returned the block.
        misses: reads of a place that holds no block, another one, or one of another size.
        corrupt: reads of bytes that differ from those written; such a block is dropped.
        writes: blocks written and acknowledged.
        failures: blocks that could not be written.
        recovered: blocks found on opening.
        damaged_records: torn or damaged records ignored on opening.
        damaged_hints: impossible entries of the order of use, ignored on opening.
    """

    hits: int = 0
    misses: int = 0
    corrupt: int = 0
    writes: int = 0
    failures: int = 0
    recovered: int = 0
    damaged_records: int = 0
    damaged_hints: int = 0


class SlotTable:
    """The records of all slots, for threads that read and write different slots at once.

    A slot is without a block, holds one, or is being written by one thread; a block is found only while its slot holds
    it.

    Attributes:
        counts: events since the store was opened.
    """

    def __init__(self, num_slots: int) -> None:
        self.counts = DiskCounts()
        self._records: list[Record | None] = [None] * num_slots
        self._used = [0] * num_slots  # order of use, and of writing: one count for both
        self._writing: set[int] = set()
        self._clock = 0
        self._lock = threading.Lock()

    def recover(self, found: Sequence[tuple[int, Record]], uses: Sequence[tuple[int, int]]) -> None:
        """Take over the blocks in a directory.

        Only an order is taken from `uses`, so that a wrong entry costs no more than a worse order. law: DISK-4.

        Args:
            found: slot and record of each block; of two with one key the one that was written later counts.
            uses: for each slot when its block was written, to know the block, and when it was last used.
        """
        latest: dict[bytes, tuple[int, Record]] = {}
        for slot, record in found:
            if record.key not in latest or latest[record.key][1].written < record.written:
                latest[record.key] = slot, record
        last_use: list[tuple[int, bytes, int]] = []
        for slot, record in latest.values():
            written, used = uses[slot]
            self._records[slot] = record
            last_use.append((max(record.written, used if written == record.written else 0), record.key, slot))
        newest = max((record.written for _, record in found), default=0)
        self._clock = newest + len(latest)
        # New counts, behind all that was ever written: damaged hints cannot push the clock to its end.
        for count, (_, _, slot) in enumerate(sorted(last_use), newest + 1):
            self._used[slot] = count
        self.counts.recovered = len(latest)

    def move(self, slot: int, to: int) -> None:
        """Let a block be found in another slot, as a copy of it is."""
        self._records[to], self._used[to] = self._records[slot], self._used[slot]
        self._records[slot] = None

    def shorten(self, num_slots: int) -> None:
        """Drop the slots from `num_slots` on, and count the blocks that are left as recovered."""
        del self._records[num_slots:], self._used[num_slots:]
        self.counts.recovered = len(self.blocks())

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return key and slot of each block, least recently used first."""
        with self._lock:
            held = [(self._used[slot], record.key, slot) for slot, record in enumerate(self._records) if record]
        return [(key, slot) for _, key, slot in sorted(held)]

    def uses(self) -> list[tuple[int, int]]:
        """Return for each slot when its block was written and last used."""
        with self._lock:
            return [(record.written if record else 0, self._used[slot]) for slot, record in enumerate(self._records)]

    def get(self, slot: int) -> Record | None:
        return self._records[slot]

    def tick(self) -> int:
        with self._lock:
            self._clock += 1
            return self._clock

    @contextmanager
    def writing(self, slots: Sequence[int]) -> Iterator[None]:
        """Let one thread write slots, which hold no block from now on. law: DISK-3.

        Raises:
            InvalidArgumentError: a slot is named twice.
            BlockNotReadyError: a slot is being written already.
        """
        chosen = set(slots)
        if len(chosen) != len(slots):
            raise InvalidArgumentError("places: one of them is named twice; write one block to each")
        with self._lock:
            busy = chosen & self._writing
            if busy:
                raise BlockNotReadyError(f"place {min(busy)} is being written; wait until that has ended")
            self._writing |= chosen
            for slot in chosen:
                self._records[slot] = None
        try:
            yield
        finally:
            with self._lock:
                self._writing -= chosen

    def publish(self, slots: Sequence[int], outcomes: Sequence[Record | OSError]) -> None:
        """Let the blocks be found that have been written, and count those that have not."""
        with self._lock:
            for slot, outcome in zip(slots, outcomes, strict=True):
                if isinstance(outcome, Record):
                    self._records[slot], self._used[slot] = outcome, outcome.written
                    self.counts.writes += 1
                else:
                    self.counts.failures += 1

    def hit(self, slot: int, record: Record) -> None:
        with self._lock:
            self.counts.hits += 1
            if self._records[slot] is record:
                self._clock += 1
                self._used[slot] = self._clock

    def missed(self) -> None:
        with self._lock:
            self.counts.misses += 1

    def damaged(self, slot: int, record: Record) -> bool:
        """Forget a block with wrong bytes; False, a miss, if the slot was written while they were read."""
        with self._lock:
            if self._records[slot] is not record:
                self.counts.misses += 1
                return False
            self._records[slot] = None
            self.counts.corrupt += 1
            return True

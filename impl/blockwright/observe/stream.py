"""Events with numbers: what is told since when, what a consumer that joins late gets, and what one that is too slow.

The stream folds every event into an index of its own, so that a snapshot costs the manager nothing. It is safe to use
from several threads: an engine records, a publisher reads. What is recorded is folded when somebody reads, or when much
has come together, so that the engine's step does not wait for it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple, Protocol

from blockwright.errors import EventGapError, InvalidArgumentError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

Key = tuple[BlockHash, int, str]
"""What can be found: a block's hash, its group of layers, and the medium that it is on."""


class TierEvent(Protocol):
    """What a tier off the device tells: `blockwright.offload.OffloadingEvent`."""

    @property
    def block_hashes(self) -> list[bytes]:
        """Of which blocks."""

    @property
    def block_size(self) -> int:
        """Tokens in each."""

    @property
    def medium(self) -> str:
        """Where."""

    @property
    def removed(self) -> bool:
        """True if they are gone, False if they were stored."""


class Batch(NamedTuple):
    """Events that were recorded together, by their number; the first batch of a stream has the number 0."""

    sequence: int
    timestamp: float
    events: tuple[KVCacheEvent, ...]


class Snapshot(NamedTuple):
    """All that can be found: as `events`, parents before children, to be followed by the batches from `sequence` on."""

    epoch: uuid.UUID
    sequence: int
    events: tuple[BlockStored, ...]


class EventStream:
    """Events of one engine, in order.

    Attributes:
        epoch: names this life of the engine; a restarted one has another, and its numbers begin again.

    Example:
        >>> from blockwright.events import BlockRemoved, BlockStored
        >>> stream = EventStream()
        >>> stream.record([BlockStored(b"h1", None, b"", 16), BlockStored(b"h2", b"h1", b"", 16)])
        >>> stream.record([BlockRemoved(b"h2")])
        >>> [event.block_hash for event in stream.snapshot().events], stream.sequence
        ([b'h1'], 2)
        >>> [len(batch.events) for batch in stream.since(0)]
        [2, 1]
    """

    def __init__(self, backlog: int = 100_000, *, clock: Callable[[], float] = time.time) -> None:
        """Begin with an empty index.

        Args:
            backlog: events kept for `since`, at least 1; the last batch is kept whatever its size.
            clock: the time that batches carry.

        Raises:
            InvalidArgumentError: names the argument.
        """
        if isinstance(backlog, bool) or not isinstance(backlog, int) or backlog < 1:
            raise InvalidArgumentError(f"backlog: must be a number of events, at least 1, not {backlog!r}")
        self.epoch = uuid.uuid4()
        self._backlog = backlog
        self._clock = clock
        self._sequence = 0
        self._batches: deque[Batch] = deque()
        self._num_kept = 0
        self._index: dict[Key, BlockStored] = {}
        self._pending: deque[tuple[float, tuple[KVCacheEvent | TierEvent, ...]]] = deque()
        self._num_pending = 0
        self._lock = threading.Lock()

    def copy(self) -> EventStream:
        """Return an independent copy of the same epoch. O(index + backlog)."""
        twin = EventStream(self._backlog, clock=self._clock)
        with self._folded():
            twin.epoch, twin._sequence, twin._num_kept = self.epoch, self._sequence, self._num_kept
            twin._batches, twin._index = self._batches.copy(), self._index.copy()
        return twin

    def __bool__(self) -> bool:
        """Return True: it is an object that goes on, empty or not."""
        return True

    def __len__(self) -> int:
        """Return how many prefixes can be found, on all media."""
        with self._folded():
            return len(self._index)

    def __contains__(self, key: Key) -> bool:
        """Return whether a hash can be found in a group, on a medium."""
        with self._folded():
            return key in self._index

    def known_keys(self) -> frozenset[Key]:
        """Return all that can be found. O(index)."""
        with self._folded():
            return frozenset(self._index)

    @property
    def sequence(self) -> int:
        """The number that the next batch will have."""
        with self._folded():
            return self._sequence

    def record(self, events: Iterable[KVCacheEvent | TierEvent]) -> None:
        """Add what `take_events` of a manager, and then of a connector or a tier, returned: one batch, if it is any.

        Complexity: O(1), and O(events) for whoever reads them next, or once as many wait as are kept.
        """
        reported = tuple(events)
        if reported:
            self._pending.append((self._clock(), reported))
            self._num_pending += len(reported)
            if self._num_pending > self._backlog:
                with self._folded():
                    pass

    @contextmanager
    def _folded(self) -> Iterator[None]:
        """Hold the lock, with all that was recorded folded in. law: EV-1, EV-3."""
        with self._lock:
            while self._pending:
                timestamp, events = self._pending.popleft()
                reported = tuple(self._fold(events))
                self._num_pending = 0  # or a little more: a bound, not a count
                self._batches.append(Batch(self._sequence, timestamp, reported))
                self._sequence += 1
                self._num_kept += len(reported)
                while self._num_kept > self._backlog and len(self._batches) > 1:
                    self._num_kept -= len(self._batches.popleft().events)
            yield

    def _fold(self, events: Iterable[KVCacheEvent | TierEvent]) -> Iterator[KVCacheEvent]:
        """Fold events into the index; yield what is reported. After a reset O(index), where tiers keep blocks."""
        index = self._index
        for event in events:
            if isinstance(event, BlockStored):
                reported = self._marked(event)
                index[event.block_hash, event.group_id, event.medium] = reported
                yield reported
            elif isinstance(event, BlockRemoved):
                index.pop(event, None)  # which is a key: hash, group, medium
                yield event
            elif isinstance(event, AllBlocksCleared):
                yield from self._cleared(event)
            elif event.removed:
                yield from self._fold([BlockRemoved(key, 0, event.medium) for key in event.block_hashes])
            else:
                yield from self._fold([self._on_tier(key, event) for key in event.block_hashes])

    def _cleared(self, event: AllBlocksCleared) -> Iterator[KVCacheEvent]:
        """Clear what is on the device. To a consumer the event means all media: what others keep is reported again."""
        kept = [stored for (_, _, medium), stored in self._index.items() if medium != "GPU"]
        self._index.clear()
        yield event
        yield from self._fold(kept)

    def _on_tier(self, key: bytes, event: TierEvent) -> BlockStored:
        """Return the event of a block that a tier stored: what is known of its prefix elsewhere, else the key alone."""
        known = self._index.get((key, 0, "GPU")) or self._index.get((key, 0, event.medium))
        if known is None:
            return BlockStored(key, None, b"", event.block_size, medium=event.medium, is_parent_absent=True)
        return known._replace(medium=event.medium, is_parent_absent=False)

    def since(self, sequence: int) -> list[Batch]:
        """Return the batches from a number on; empty if it is the next one.

        Raises:
            EventGapError: older than the backlog, or not of this stream yet: take a snapshot.
        """
        with self._folded():
            oldest = self._batches[0].sequence if self._batches else self._sequence
            if not oldest <= sequence <= self._sequence:
                raise EventGapError(sequence, oldest, self._sequence)
            return list(islice(self._batches, sequence - oldest, None))

    def snapshot(self) -> Snapshot:
        """Return all that can be found now as events, and the number of the next batch. O(index). law: EV-2."""
        with self._folded():
            return Snapshot(self.epoch, self._sequence, tuple(self._parents_first()))

    def _parents_first(self) -> Iterator[BlockStored]:
        """Yield the index as events, each after its parent or marked as without one. law: EV-3."""
        index, done = self._index, set[Key]()
        for key, event in index.items():
            chain: list[BlockStored] = []
            each: BlockStored | None = event
            while each is not None and key not in done:
                done.add(key)
                chain.append(self._marked(each))
                key = (each.parent_block_hash or b"", each.group_id, each.medium)
                each = index.get(key)
            yield from reversed(chain)

    def _marked(self, event: BlockStored) -> BlockStored:
        """Return an event marked by whether its parent can be found now. law: EV-3."""
        parent = event.parent_block_hash
        is_absent = parent is not None and (parent, event.group_id, event.medium) not in self._index
        if parent is None or is_absent == event.is_parent_absent:
            return event
        return event._replace(is_parent_absent=is_absent)

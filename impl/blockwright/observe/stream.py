"""Numbered events: the events since a number, and the answers for consumers that join late or are too slow.

The stream folds every event into its own index, so that a snapshot costs the manager nothing. It is safe to use from
several threads: an engine records, a publisher reads. A batch is folded when a reader asks, or when more events wait
than are kept, so that the engine's step does not wait for it.

A call that is interrupted loses nothing (CALL-1): a batch is worked out apart from the index, and only then put into
it, by steps that the next call takes again from the first if one of them did not end.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from blockwright.arguments import integer
from blockwright.errors import EventGapError, LostBatchError
from blockwright.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored, KVCacheEvent

Key = tuple[BlockHash, int, str]
"""What can be found: a block's hash, its group of layers, and the medium that it is on."""


class TierEvent(Protocol):
    """The event of a tier off the device: `blockwright.offload.OffloadingEvent`."""

    @property
    def block_hashes(self) -> list[bytes]:
        """The blocks of the event."""

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
    """Events that were recorded together.

    Attributes:
        sequence: number of the batch in its stream, from 0.
        timestamp: seconds, of the clock that was recorded with them.
        events: oldest first.
    """

    sequence: int
    timestamp: float
    events: tuple[KVCacheEvent, ...]


class Snapshot(NamedTuple):
    """All blocks that can be found at one moment.

    Attributes:
        epoch: of the stream; numbers of another epoch mean nothing here.
        sequence: number of the first batch that is not part of it, from 0.
        events: a store of each block, parents before children.
    """

    epoch: uuid.UUID
    sequence: int
    events: tuple[BlockStored, ...]


class _Folded(NamedTuple):
    """A folded batch, and the index after it."""

    recorded: tuple[float, tuple[KVCacheEvent | TierEvent, ...]]
    """As it waits in `EventStream._pending`."""
    batch: Batch
    base: dict[Key, BlockStored]
    """The index before the batch; an empty one where the batch clears it."""
    changes: dict[Key, BlockStored | None]
    """By key, what is stored; None: removed."""
    fault: Exception | None
    """Why the batch cannot be read. Then it is a gap."""


class EventStream:
    """Events of one engine, in order.

    Memory: the backlog, at most the same number of events that are not folded yet, and the index, with an event for
    each block on the device and on the tiers that report to it.

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
        self._backlog = integer("backlog", backlog, 1)
        self.epoch = uuid.uuid4()
        self._clock = clock
        self._sequence = 0
        self._batches: deque[tuple[int, Batch]] = deque()  # each with the number of events before it
        self._index: dict[Key, BlockStored] = {}
        self._pending: deque[tuple[float, tuple[KVCacheEvent | TierEvent, ...]]] = deque()
        self._num_pending = 0
        self._due: _Folded | None = None
        self._lock = threading.Lock()

    def copy(self) -> EventStream:
        """Return an independent copy of the same epoch. O(index + backlog)."""
        twin = EventStream(self._backlog, clock=self._clock)
        with self._lock:
            self._fold_pending()
            twin.epoch, twin._sequence = self.epoch, self._sequence
            twin._batches, twin._index = self._batches.copy(), self._index.copy()
        return twin

    def __bool__(self) -> bool:
        """Return True: it is an object that goes on, empty or not."""
        return True

    def __len__(self) -> int:
        """Return how many prefixes can be found, on all media."""
        with self._lock:
            self._fold_pending()
            return len(self._index)

    def __contains__(self, key: Key) -> bool:
        """Return whether a hash can be found in a group, on a medium."""
        with self._lock:
            self._fold_pending()
            return key in self._index

    def known_keys(self) -> frozenset[Key]:
        """Return all that can be found. O(index)."""
        with self._lock:
            self._fold_pending()
            return frozenset(self._index)

    @property
    def sequence(self) -> int:
        """The number that the next batch will have."""
        with self._lock:
            self._fold_pending()
            return self._sequence

    def record(self, events: Iterable[KVCacheEvent | TierEvent]) -> None:
        """Add what `take_events` of a manager, and then of a connector or a tier, returned: one batch, if it is any.

        Complexity: O(events), and the same for the next read of them, or once the backlog is full of unfolded events.

        Raises:
            LostBatchError: an earlier batch holds an object that is no event; this one is recorded.
        """
        reported = tuple(events)
        if reported:
            # Without the lock: the engine's step must not wait for a reader that copies the index.
            self._pending.append((self._clock(), reported))
            self._num_pending += len(reported)
            if self._num_pending > self._backlog:
                with self._lock:
                    self._fold_pending()

    def _fold_pending(self) -> None:
        """Fold in all that was recorded; the caller holds the lock. law: EV-1, EV-3, CALL-1.

        Raises:
            LostBatchError: a batch holds an object that is no event. It became a gap; this is raised once.
        """
        while self._due is not None or self._pending:
            if self._due is None:
                self._due = self._worked_out(self._pending[0])
            self._put_in(self._due)

    def _worked_out(self, recorded: tuple[float, tuple[KVCacheEvent | TierEvent, ...]]) -> _Folded:
        """Return a folded batch; nothing changes. O(events), and after a reset O(index)."""
        timestamp, events = recorded
        folding, fault = _Folding(self._index), None
        try:
            reported = tuple(folding.fold(events))
        # Not the batch's fault: it is worked out again by the next call.
        except MemoryError:
            raise
        except Exception as error:
            folding, reported, fault = _Folding(self._index), (), error
        return _Folded(recorded, Batch(self._sequence, timestamp, reported), folding.index, folding.changes, fault)

    def _put_in(self, folded: _Folded) -> None:
        """Change the index by a batch, and keep it. Each step may be taken twice: an interrupt may come after any."""
        batch, batches, fault = folded.batch, self._batches, folded.fault
        self._index = index = folded.base
        for key, event in folded.changes.items():
            if event is None:
                index.pop(key, None)
            else:
                index[key] = event
        if fault is not None:
            batches.clear()  # consumers that have not seen the one before take a snapshot as well
        elif not batches or batches[-1][1] is not batch:
            # Sums, so that the events kept are one subtraction.
            before = batches[-1][0] + len(batches[-1][1].events) if batches else 0
            batches.append((before, batch))
        while len(batches) > 1 and batches[-1][0] + len(batch.events) - batches[0][0] > self._backlog:
            batches.popleft()
        self._sequence = batch.sequence + 1
        if self._pending and self._pending[0] is folded.recorded:
            self._pending.popleft()
        self._num_pending = 0  # or a little more: a bound, not a count
        self._due = None
        if fault is not None:
            reason = f"it holds an object that is no event; {type(fault).__name__}: {fault}"
            raise LostBatchError(batch.sequence, reason) from fault

    def since(self, sequence: int) -> list[Batch]:
        """Return the batches from a number on; empty if it is the next one.

        Raises:
            EventGapError: older than the backlog, or not of this stream yet: take a snapshot.
        """
        with self._lock:
            self._fold_pending()
            oldest = self._batches[0][1].sequence if self._batches else self._sequence
            # A number from the future is of another life of the engine.
            if not oldest <= sequence <= self._sequence:
                raise EventGapError(sequence, oldest, self._sequence)
            return [batch for _, batch in islice(self._batches, sequence - oldest, None)]

    def snapshot(self) -> Snapshot:
        """Return all that can be found now as events, and the number of the next batch. O(index). law: EV-2."""
        with self._lock:
            self._fold_pending()
            return Snapshot(self.epoch, self._sequence, tuple(_parents_first(self._index)))


class _Folding:
    """What events make of an index, which stays as it is.

    Attributes:
        index: the index before them; empty once they clear it.
        changes: by key, the stored event, or None if it was removed.
    """

    def __init__(self, index: dict[Key, BlockStored]) -> None:
        self.index = index
        self.changes: dict[Key, BlockStored | None] = {}

    def fold(self, events: Iterable[KVCacheEvent | TierEvent]) -> Iterator[KVCacheEvent]:
        """Fold events; yield those that are reported.

        O(events), and after a reset O(index), where tiers keep blocks.
        """
        changes = self.changes
        for event in events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                if (told := self.found((event.block_hash, event.group_id, event.medium))) and told[:10] == event[:10]:
                    continue  # no news, which a consumer that counts copies would take for another; law: EV-1
                if parent is not None:
                    above = (parent, event.group_id, event.medium)
                    known = changes[above] if above in changes else self.index.get(above)
                    # A parent may have gone, or come, between the event and this batch.
                    if (known is None) != event.is_parent_absent:
                        event = _marked(event, known is None)
                changes[event.block_hash, event.group_id, event.medium] = event
                yield event
            elif isinstance(event, BlockRemoved):
                changes[event] = None  # which is a key: hash, group, medium
                yield event
            elif isinstance(event, AllBlocksCleared):
                yield from self._cleared(event)
            elif (told := getattr(event, "told", None)) is not None:
                yield from self.fold(told)
            elif event.removed:
                yield from self.fold([BlockRemoved(key, 0, event.medium) for key in event.block_hashes])
            else:
                yield from self.fold([self._on_tier(key, event) for key in event.block_hashes])

    def found(self, key: Key) -> BlockStored | None:
        """Return the event stored under a key after the events so far."""
        return self.changes[key] if key in self.changes else self.index.get(key)

    def _cleared(self, event: AllBlocksCleared) -> Iterator[KVCacheEvent]:
        """Clear the blocks of a medium: the device's, if none is named.

        To a consumer the event means all media, so the blocks on other tiers are reported again.
        """
        after: dict[Key, BlockStored | None] = {**self.index, **self.changes}
        gone = event.medium or "GPU"
        kept = [stored for (_, _, medium), stored in after.items() if stored is not None and medium != gone]
        # A new one: the old one is the base of what readers hold.
        self.index = {}
        self.changes.clear()
        yield AllBlocksCleared()
        yield from self.fold(kept)

    def _on_tier(self, key: bytes, event: TierEvent) -> BlockStored:
        """Return the event of a block that a tier stored, with its prefix if it is known, else with the key alone."""
        known = self.found((key, 0, "GPU")) or self.found((key, 0, event.medium))
        if known is None:
            return BlockStored(key, None, b"", event.block_size, medium=event.medium, is_parent_absent=True)
        return known._replace(medium=event.medium, is_parent_absent=False)


def _parents_first(index: dict[Key, BlockStored]) -> Iterator[BlockStored]:
    """Yield an index as events, each after its parent or marked as without one. law: EV-3."""
    done = set[Key]()
    for key, event in index.items():
        chain: list[BlockStored] = []
        each: BlockStored | None = event
        while each is not None and key not in done:
            done.add(key)
            above = (each.parent_block_hash or b"", each.group_id, each.medium)
            is_absent = above not in index
            is_right = each.parent_block_hash is None or is_absent == each.is_parent_absent
            chain.append(each if is_right else _marked(each, is_absent))
            key, each = above, index.get(above)
        yield from reversed(chain)


def _marked(event: BlockStored, is_absent: bool) -> BlockStored:
    """Return an event marked by whether its parent can be found now. law: EV-3."""
    return event._replace(is_parent_absent=is_absent)

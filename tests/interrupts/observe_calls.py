"""The calls of an event stream, which folds what was recorded when it is read, and of a consumer's index.

Not covered: sockets; `Metrics`, which reads what the journal counts.
"""

from __future__ import annotations

from typing import Any

from tests.interrupts.ended import AS_THEY_ARE, Call, Given

from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from blockwright.observe import EventStream, PrefixIndex
from blockwright.offload import OffloadingEvent


def stored(number: int, parent: int | None = None, medium: str = "GPU") -> BlockStored:
    above = None if parent is None else bytes([parent])
    return BlockStored(bytes([number]), above, bytes([number, 0, 0, 0]), 1, medium=medium)


class Streaming:
    """A stream with a full backlog; one more batch has each sort of event."""

    def __init__(self, given: Given = AS_THEY_ARE) -> None:
        self.extra: Any = None
        self.stream = EventStream(12, clock=lambda: 1.0)
        self.stream.record([stored(1), stored(2, 1), stored(3, 2)])
        self.stream.record([OffloadingEvent([b"\1", b"\7"], 1, "CPU", False)])
        self.stream.record([BlockRemoved(b"\3")])
        removed: list[Any] = [BlockRemoved(b"\1"), OffloadingEvent([b"\7"], 1, "CPU", True)]
        self.batch = [stored(4, 3), stored(3, 2), *removed, stored(5, 1), AllBlocksCleared(), stored(6, 1)]

    def dump(self) -> object:
        """Everything that a consumer is told."""
        stream, sequence = self.stream, self.stream.sequence
        first = max(0, sequence - len(stream._batches))
        return sequence, stream.since(first), stream.snapshot()[1:], stream.known_keys()

    def record(self) -> None:
        self.stream.record(self.batch)


class Consuming:
    """An index, and events that change it in each way."""

    def __init__(self, given: Given = AS_THEY_ARE) -> None:
        self.extra: Any = None
        self.index = PrefixIndex([stored(1), stored(2, 1), stored(3, 2)])
        self.events: list[KVCacheEvent] = [BlockRemoved(b"\3"), stored(4, 2), BlockRemoved(b"\1")]

    def dump(self) -> object:
        index = self.index
        found = [index.match(list(prompt)) for prompt in ((1, 2, 3), (1, 2, 4))]
        return index.known_keys(), found, index._ranks[0].children


CALLS: dict[str, Call] = {
    "stream, read": Call(Streaming, lambda w: (w.record(), w.stream.sequence), reads=Streaming.dump),
    "stream, followed": Call(Streaming, lambda w: (w.record(), w.stream.since(2)), reads=Streaming.dump),
    "stream, snapshot": Call(Streaming, lambda w: (w.record(), w.stream.snapshot()), reads=Streaming.dump),
    "stream, copied": Call(Streaming, lambda w: (w.record(), w.stream.copy()), reads=Streaming.dump),
    "stream, overrun": Call(Streaming, Streaming.record, lambda w: w.stream.record([stored(9)] * 6), Streaming.dump),
    "index, applied": Call(Consuming, lambda w: w.index.apply(w.events), reads=Consuming.dump),
    "index, cleared": Call(
        Consuming, lambda w: w.index.apply([AllBlocksCleared(), *w.events, stored(1)]), reads=Consuming.dump
    ),
}
"""By name, the calls of `blockwright.observe` that change something; each is interrupted in both builds."""

"""A consumer that ends with the right index whatever it misses (extra ``events``: pyzmq, msgspec).

Of Blockwright's publisher it begins with a snapshot, applies the batches that follow, and asks for missed ones: for the
batches themselves, if they are kept and are of the same life of the engine, else for another snapshot.

The publishers of vLLM, SGLang and TensorRT-LLM know numbers alone: asked for an epoch, they end their answer at once.
Of them it asks for the last batch that it has, and what followed. If that is the same batch, the engine lives on; else
it is another one, or has gone too far, and the index begins anew with all batches that are kept. Where batches are
missing that no one can bring back, `ZmqSubscriber.is_complete` says so.

A publisher need not be any of these, nor honest. A batch that cannot be read is a gap, which a snapshot mends; if the
snapshot is older than the batch, the batch is passed over. No message ends `ZmqSubscriber.poll` by an error, or holds
it longer than its time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable
from typing import Final, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from blockwright.arguments import guard as _guard
from blockwright.errors import BlockwrightError, InvalidArgumentError
from blockwright.events import AllBlocksCleared, CacheLayout, KVCacheEvent
from blockwright.observe.prefix_index import PrefixIndex
from blockwright.observe.publisher import END
from blockwright.observe.wire import Events, decode

MAX_MESSAGE: Final = 1 << 26
"""Bytes of a message, at most; ZeroMQ ends a connection that brings a larger one."""
MAX_SNAPSHOT: Final = 1 << 30
"""Bytes of the messages of a snapshot, at most."""

# How many times its patience a subscriber gives a whole answer.
_WHOLE = 30

# Questions under way: yields a request to send, or None to hear more of the answer; is sent the message that comes;
# returns whether the publisher answered.
_Asking = Generator[bytes | None, list[bytes], bool]


class ZmqSubscriber:
    """Keeps a `PrefixIndex` of one publisher.

    Memory: the index, as large as the publisher's cache; while a snapshot comes, another one;
    and the messages that wait: 1,000 batches, 100 messages of an answer.

    Attributes:
        index: the prefixes that the engine can find, as far as reported; another object after each snapshot.
        num_snapshots, num_replays: how often missed batches were mended by a snapshot, and by sending them again.
        is_complete: whether all that the engine can find is in the index, as far as batches tell. False until its
            first batch or a snapshot was heard, and after a batch that is lost for good, until the engine clears its
            cache or another snapshot comes.
        num_gaps: batches and messages that could not be read.
        num_unknown: events that were passed over, as nothing here knows their type; and those on unknown media.
        last_error: why the last of them could not be read, or None.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        patience: float = 1.0,
        layout: CacheLayout | None = None,
        tells_hits: bool = False,
        listener: Callable[[Iterable[KVCacheEvent]], object] | None = None,
    ) -> None:
        """Subscribe. The index is empty until `poll` has heard of the engine.

        Args:
            endpoint: the publisher's PUB socket.
            replay_endpoint: its ROUTER socket; without one, what was missed is missing.
            topic: the topics to hear begin so.
            patience: seconds to wait for each message of an answer, and of silence after which `poll` asks if something
                was missed; a whole answer may take 30 times that.
            layout, tells_hits: as for `PrefixIndex`.
            listener: called with the events of each batch that is applied; a snapshot's come behind `AllBlocksCleared`.
                Into a `FleetIndex`: ``partial(fleet.apply, "engine 1")``.
        """
        self._layout, self._tells_hits = layout, tells_hits
        self._listener = listener or (lambda _: None)
        self.index = PrefixIndex(layout=layout, tells_hits=tells_hits)
        self.is_complete = False
        self.num_snapshots = self.num_replays = self.num_gaps = self.num_unknown = 0
        self.last_error: BlockwrightError | None = None
        self._next: int | None = None
        # Of a publisher that knows numbers alone: its rank, the batch that was applied last, and the numbers that
        # follow from other ranks behind the same socket, of which nothing can be asked.
        self._is_plain, self._rank = False, 0
        self._last: tuple[int, bytes] | None = None
        self._others: dict[int, int] = {}
        self._epoch = b""
        self._num_applied = 0
        self._passed = -1  # up to this number, batches that cannot be read are passed over
        self._patience = patience
        self._replay_endpoint = replay_endpoint
        self._heard_at = self._failed_at = -math.inf
        self._asking: _Asking | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._until = self._until_whole = 0.0
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        # Before anything is decoded: a message of any size would be held in memory first.
        self._sub.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
        self._sub.subscribe(topic.encode("utf-8", "surrogatepass"))
        self._monitor = self._sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._sub.connect(endpoint)

    def close(self) -> None:
        """Close the sockets."""
        self._sub.disable_monitor()
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def poll(self, timeout: float = 0.1) -> int:
        """Apply the messages that come within `timeout` seconds; return the number of batches.

        After a silence, or where a message is missing, it asks the publisher for what was sent. If the answer has not
        ended in time, the next call goes on with it.
        """
        before, stop, left = self._num_applied, time.monotonic() + timeout, timeout
        while True:
            # A lost last batch shows by nothing but silence.
            if self._next is None or self._has_failed() or time.monotonic() - self._heard_at > self._patience:
                self._ask()
            if self._asking is not None:
                self._hear(left)
            elif self._sub.poll(_milliseconds(left)):
                self._take(self._sub.recv_multipart())
            left = stop - time.monotonic()
            if left <= 0:
                return self._num_applied - before

    def sync(self) -> bool:
        """Ask for missed batches, and wait for the answer; return whether the publisher answered."""
        # A question that failed just now may be asked again: the caller waits for it.
        self._asking, self._failed_at = None, -math.inf
        self._ask()
        while self._asking is not None:
            self._hear(self._patience)
        return not self._has_failed()

    def _has_failed(self) -> bool:
        """Return whether the last question had no answer, or nothing can be asked."""
        return self._failed_at > -math.inf

    # ------------------------------------------------------------------ what is published

    def _take(self, frames: list[bytes]) -> None:
        """Apply a batch if it is the next one; ask if one was missed."""
        while self._monitor.poll(0):  # a publisher that is back may be another one, whatever its numbers
            recv_monitor_message(self._monitor)
            self._next = None
        if len(frames) != 3 or len(frames[1]) != 8:
            self._cannot_read(_wrong_frames(frames))
            return
        sequence = int.from_bytes(frames[1], "big")
        if self._is_plain or self._has_failed():
            self._take_numbered(sequence, frames[2])
        elif self._next is None or sequence > self._next:
            self._ask()
        elif sequence == self._next:
            self._apply(sequence, frames[2])

    def _take_numbered(self, sequence: int, payload: bytes) -> None:
        """Apply a batch of a publisher that has numbers alone, or cannot be asked for more."""
        events = _read(payload)
        # The first rank that is heard is the one that is followed.
        if isinstance(events, Events) and not self._num_applied:
            self._rank = events.rank
        if isinstance(events, Events) and events.rank != self._rank:
            self._take_other(sequence, events)
        elif self._next is not None and sequence < self._next:
            if self._replay_endpoint is None:  # else it was replayed, or a question will tell
                self._begin_anew()
                self._fold(sequence, payload, events)
        elif sequence == self._next or self._has_failed():
            self._epoch = self._epoch if sequence == self._next else b""
            self._fold(sequence, payload, events)
        else:
            self._ask()

    def _take_other(self, sequence: int, events: Events) -> None:
        """Apply a batch of another rank."""
        following = self._others.get(events.rank, 0)
        # Its numbers began again: it was restarted, and its cache is empty.
        if sequence < following:
            self._tell(_cleared(events.rank))
        self.is_complete &= sequence in (0, following)
        self._others[events.rank] = sequence + 1
        self._applied(events)

    def _tell(self, events: Events) -> None:
        self.index.apply(events)
        self._listener(events)

    def _begin_anew(self) -> None:
        """Forget the blocks of the rank that is followed, since the engine was restarted."""
        self._tell(_cleared(self._rank))
        self._next = self._last = None

    def _fold(self, sequence: int, payload: bytes, events: Events | InvalidArgumentError) -> None:
        """Apply the next batch that there is; one that cannot be read is missing, as are those before it."""
        is_next = sequence == (0 if self._next is None else self._next)
        if self._next is None:
            self.is_complete = is_next
        self.is_complete &= self._applied(events) and is_next
        # Whatever was missed before is gone from the engine as well.
        self.is_complete |= isinstance(events, Events) and AllBlocksCleared() in events
        self._next, self._last, self._heard_at = sequence + 1, (sequence, payload), time.monotonic()

    def _applied(self, events: Events | InvalidArgumentError) -> bool:
        """Apply the events of a batch, if it can be read; return whether it can."""
        if isinstance(events, InvalidArgumentError):
            self._cannot_read(events)
            return False
        self._tell(events)
        self.num_unknown += events.num_unknown
        self._num_applied += 1
        return True

    def _apply(self, sequence: int, payload: bytes) -> bool:
        """Apply the next batch, or pass it over; return False if a snapshot is needed instead."""
        self._heard_at = time.monotonic()
        if not self._applied(_read(payload)):
            if sequence > self._passed:  # else the publisher has no newer snapshot, which would mend it
                self._passed, self._next = sequence, None
                return False
            self.is_complete = False
        self._next = sequence + 1
        return True

    def _cannot_read(self, error: BlockwrightError) -> None:
        self.num_gaps += 1
        self.last_error = error

    # ------------------------------------------------------------------ what is asked

    def _ask(self) -> None:
        """Begin to ask for missed batches, unless a request is under way, or has failed just now."""
        now = time.monotonic()
        if self._replay_endpoint is None:
            self._failed_at = now
        elif self._asking is None and now - self._failed_at > self._patience:
            self._asking, self._until_whole = self._catch_up(), now + _WHOLE * self._patience
            self._send(next(self._asking))

    def _send(self, request: bytes | None) -> None:
        """Send a request through a new socket, so that no part of an earlier answer is received."""
        if request is not None:
            if self._dealer is not None:
                self._dealer.close(linger=0)
            self._dealer = self._context.socket(zmq.DEALER)
            self._dealer.setsockopt(zmq.RCVHWM, 100)
            self._dealer.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
            self._dealer.connect(str(self._replay_endpoint))
            self._dealer.send_multipart([b"", request], zmq.DONTWAIT)
        self._until = min(time.monotonic() + self._patience, self._until_whole)

    def _hear(self, timeout: float) -> None:
        """Wait for the next message of an answer, for at most `timeout` seconds."""
        left = self._until - time.monotonic()
        if left <= 0 or self._dealer is None or self._asking is None:
            self._end(False)
        elif self._dealer.poll(_milliseconds(min(timeout, left))):
            self._heard(self._asking, self._dealer.recv_multipart())

    def _heard(self, asking: _Asking, frames: list[bytes]) -> None:
        """Go on with one message of an answer. law: CALL-2."""
        if len(frames) == 3:
            frames.insert(1, b"")  # before vLLM #45177 there was no topic
        try:
            if len(frames) != 4 or len(frames[2]) != 8:
                raise _wrong_frames(frames)
            self._send(asking.send(frames[1:]))
        except StopIteration as ended:
            self._end(ended.value is True)
        except InvalidArgumentError as error:
            self._cannot_read(error)
            self._end(False)

    def _end(self, was_answered: bool) -> None:
        if was_answered:
            self._heard_at, self._failed_at = time.monotonic(), -math.inf
        else:
            self._failed_at = time.monotonic()
        self._asking = None
        if self._dealer is not None:
            self._dealer.close(linger=0)
            self._dealer = None

    def _catch_up(self) -> _Asking:
        """Ask for the batches that were missed, or for a snapshot if they are not kept, or of another life."""
        epoch, number, _ = yield b"epoch"
        self._is_plain = number == END
        if self._is_plain:
            return (yield from self._follow_numbers())
        if (yield None)[1] != END:
            return False
        following = int.from_bytes(number, "big")
        # Numbers of another epoch mean nothing, and those ahead of the publisher's cannot be its own.
        is_same = self._next is not None and epoch == self._epoch and self._next <= following
        if is_same and (self._next == following or (yield from self._replay())):
            return True
        return (yield from self._join())

    def _follow_numbers(self) -> _Asking:
        """Ask a publisher that knows numbers alone for what is missing, and for all if it is another one by now."""
        if self._last is not None and (yield from self._numbered(self._last[0])):
            return True
        self._begin_anew()
        return (yield from self._numbered(0))

    def _numbered(self, start: int) -> _Asking:
        """Apply the batches from `start` on; return False if the first is not the batch that was applied last."""
        request: bytes | None = start.to_bytes(8, "big")
        is_first = True
        while True:
            _, number, payload = yield request
            sequence = int.from_bytes(number, "big")
            # Without an epoch the batch itself shows whether it is the same engine.
            if is_first and self._last is not None and (sequence, payload) != self._last:
                return False
            if number == END:
                break
            if is_first and self._last is not None:
                self._next = sequence + 1  # the same engine lives on
            else:
                events = _read(payload)
                self._rank = events.rank if isinstance(events, Events) else self._rank
                self._fold(sequence, payload, events)
                self.num_replays += request is not None
            is_first, request = False, None
        if is_first:
            self._next, self.is_complete = 0, True  # nothing was sent yet
        return True

    def _replay(self) -> Generator[bytes | None, list[bytes], bool]:
        """Ask for the batches from the next one on; return whether they came and could be read."""
        if self._next is None:
            return False
        request: bytes | None = self._next.to_bytes(8, "big") + self._epoch
        is_first = True
        while True:
            _, number, payload = yield request
            request = None
            if number == END:
                return not is_first
            sequence = int.from_bytes(number, "big")
            if sequence != self._next or not self._apply(sequence, payload):
                return False
            self.num_replays += is_first
            is_first = False

    def _join(self) -> Generator[bytes | None, list[bytes], bool]:
        """Ask for a snapshot, and begin anew with it; return whether there was one."""
        epoch, following, _ = yield b"snapshot"
        if following == END:
            return False
        # Beside the old one, which answers until the new one is whole.
        index, size = PrefixIndex(layout=self._layout, tells_hits=self._tells_hits), 0
        told = list[Events](map(_cleared, self.index.ranks()))
        while True:
            _, number, payload = yield None
            if number == END:
                break
            size += len(payload)
            if size > MAX_SNAPSHOT:
                raise InvalidArgumentError(f"snapshot: is larger than {MAX_SNAPSHOT} bytes; subscribe to an engine")
            try:
                told.append(decode(payload))
                index.apply(told[-1])
            except InvalidArgumentError as error:
                self._cannot_read(error)
        # Numbers that were passed over were another engine's.
        if epoch != self._epoch:
            self._passed = -1
        self.index, self._epoch, self._next = index, epoch, int.from_bytes(following, "big")
        for events in told:
            self._listener(events)
        self.num_snapshots += 1
        self.is_complete = True
        return True


def _read(payload: bytes) -> Events | InvalidArgumentError:
    """Return the events of a batch, or why it cannot be read."""
    try:
        return decode(payload)
    except InvalidArgumentError as error:
        return error


def _cleared(rank: int) -> Events:
    """Return a batch of events that clears the blocks of a rank."""
    events = Events(rank)
    events.append(AllBlocksCleared())
    return events


def _milliseconds(seconds: float) -> int:
    """Return a time as ZeroMQ takes it, rounded up."""
    return max(0, math.ceil(seconds * 1000))


def _wrong_frames(frames: list[bytes]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"frames: a batch is a topic, eight bytes and a payload, not frames of {[len(each) for each in frames][:8]} "
        "bytes; subscribe to an engine's events"
    )


__all__ = ["MAX_MESSAGE", "MAX_SNAPSHOT", "ZmqSubscriber"]

_guard(globals(), __all__)

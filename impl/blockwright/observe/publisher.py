"""Events over ZeroMQ, as routers subscribe to them (extra ``events``: pyzmq, msgspec).

A PUB socket sends each batch as ``[topic, number, payload]``; the number is eight bytes, big-endian, from 0. A ROUTER
socket answers, to one who sends an empty frame and

- eight bytes, a number: every batch from there on as ``["", topic, number, payload]``, and at the end
  ``["", "", eight times 0xFF, ""]``, as vLLM's publisher does; where these are not all kept any more, one batch in
  place of them all, numbered as the last, with an `AllBlocksCleared` and the snapshot;
- the same and the epoch's sixteen bytes: likewise, but only what is kept, and nothing of another life of the engine;
- ``snapshot``: ``["", epoch, number, ""]``, where the number is that of the batch that follows the snapshot, then the
  snapshot as batches of that number, and the same end;
- ``epoch``: the first of these messages alone, and the end.

The first batch of a stream is an `AllBlocksCleared`, so that one who heard an earlier life of the engine forgets it.

A batch that cannot be sent is left out, as if it were lost on the way: consumers miss its number and take a snapshot,
without the events that cannot be encoded. The next call of `ZmqPublisher.publish` raises the reason.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Self

import zmq

from blockwright.arguments import guard as _guard
from blockwright.errors import EventGapError, InterruptedCallError, InvalidArgumentError, LostBatchError
from blockwright.events import AllBlocksCleared, KVCacheEvent
from blockwright.observe.answers import Answers
from blockwright.observe.stream import Batch, EventStream, Snapshot
from blockwright.observe.wire import Encoder

END = b"\xff" * 8
"""The number that ends an answer."""

# Events of a snapshot in one message.
_CHUNK = 1000


class ZmqPublisher:
    """Sends the events of a stream, from a separate thread.

    Memory: `high_water_mark` messages for consumers that are slow (they share them), and the answers to consumers that
    ask, which `answers` bounds.

    Attributes:
        endpoint, replay_endpoint: the addresses that were bound, ports filled in.
        num_lost: batches that could not be sent.
    """

    def __init__(
        self,
        stream: EventStream,
        endpoint: str = "tcp://127.0.0.1:5557",
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        encoder: Encoder | None = None,
        high_water_mark: int = 100_000,
    ) -> None:
        """Bind, and begin to send.

        Args:
            stream: what to send; engines call `EventStream.record`, and then `publish`.
            endpoint: address of the PUB socket; port 0 takes any.
            replay_endpoint: address of the ROUTER socket; without one, nothing can be asked for.
            topic: of every message; llm-d's routers want ``kv@<pod>@<model>``.
            encoder: how; by default vLLM's form, rank 0.
            high_water_mark: messages queued for a consumer that is slow; more are dropped, and it asks for them.

        Raises:
            InvalidArgumentError: an address cannot be bound.
        """
        self._stream = stream
        self._encode = encoder or Encoder()
        self._topic = topic.encode("utf-8", "surrogatepass")
        self._next = 0
        self.num_lost = 0
        self._shared: _Encoded | None = None
        # Numbers begin with it: a consumer of an earlier life of the engine forgets that one.
        if stream.sequence == 0:
            stream.record([AllBlocksCleared()])
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(high_water_mark)
        self._router = self._context.socket(zmq.ROUTER)
        self._answers = Answers(self._router, self._answer)
        # The thread waits for sockets alone, so that the engine wakes it through one.
        self._awaken = self._context.socket(zmq.PAIR)
        self._awake = self._context.socket(zmq.PAIR)
        try:
            self.endpoint = _bound(self._pub, endpoint)
            self.replay_endpoint = None if replay_endpoint is None else _bound(self._router, replay_endpoint)
            self._awake.bind("inproc://awake")
            self._awaken.connect("inproc://awake")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise InvalidArgumentError(f"endpoint: cannot bind {endpoint} and {replay_endpoint}: {error}") from error
        self._closing = threading.Event()
        self._failures: deque[LostBatchError] = deque(maxlen=16)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Have everything sent that the stream has recorded; returns at once. O(1).

        Raises:
            LostBatchError: an earlier batch could not be sent, and is a gap; what came after it is sent. Each is
                raised once.
            InterruptedCallError: the publisher is closed, or this is the child of a fork, where its thread is not.
        """
        # After a fork the sockets are the parent's too: nothing may be sent here.
        if not self._thread.is_alive():
            raise InterruptedCallError("publisher: its thread has ended (by close, or a fork); make a new publisher")
        failure = self._failures.popleft() if self._failures else None
        self._wake()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Send the remaining batches and close the sockets; a second call does nothing."""
        self._closing.set()
        if self._thread.is_alive():
            self._wake()
            # It sends what is left; then no socket is in use any more.
            self._thread.join()
        self._context.destroy(linger=200)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wake(self) -> None:
        """Wake the thread; one that has a full queue wakes anyway."""
        with self._lock, contextlib.suppress(zmq.Again):
            self._awaken.send(b"", zmq.DONTWAIT)

    def _serve(self) -> None:
        """Send, and answer, until closed. Nothing ends the thread before: no other part of the engine would see it."""
        poller = zmq.Poller()
        poller.register(self._awake, zmq.POLLIN)
        if self.replay_endpoint is not None:
            poller.register(self._router, zmq.POLLIN)
        wait = 100
        while True:
            # Read first: what was recorded before `close` is sent in this round.
            is_last = self._closing.is_set()
            try:
                ready = dict(poller.poll(0 if is_last else wait))
                # However often it was woken, one look at the stream serves all.
                while self._awake in ready and self._awake.poll(0):
                    self._awake.recv()
                self._send()
                if self._router in ready:
                    self._answers.take()
                wait = self._answers.send()
                # Nobody reads it any more, and it is as large as the cache.
                if not self._answers:
                    self._shared = None
            except BaseException as error:
                self._failed(self._next, error)
                self._closing.wait(0.1)  # as it may come again at once
            if is_last:
                return

    def _failed(self, sequence: int, error: BaseException) -> None:
        """Keep the reason why a batch, or an answer, was not sent, for `publish` to raise."""
        failure = LostBatchError(sequence, f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        self._failures.append(failure)

    def _send(self) -> None:
        """Send the new batches.

        Batches that are not kept any more are left out: consumers miss their numbers, and ask.
        """
        while True:
            try:
                batches = self._stream.since(self._next)
                break
            except EventGapError as gap:
                self._next = gap.oldest  # which may be gone as well by now
            except LostBatchError as error:
                self.num_lost += 1
                self._failures.append(error)
        for batch in batches:
            self._next = batch.sequence + 1  # before: one that cannot be sent now could not be later
            try:
                self._pub.send_multipart(self._frames(batch))
            except BaseException as error:
                self.num_lost += 1
                self._failed(batch.sequence, error)

    def _frames(self, batch: Batch) -> list[bytes]:
        return [self._topic, batch.sequence.to_bytes(8, "big"), self._encode(batch.events, batch.timestamp)]

    def _answer(self, asked: bytes) -> Iterator[list[bytes]]:
        """Yield the messages that answer one who has missed something; one who does not ask so gets the end alone."""
        epoch = self._stream.epoch.bytes
        if asked == b"epoch":
            yield [epoch, self._stream.sequence.to_bytes(8, "big"), b""]
        elif asked == b"snapshot":
            shared = self._snapshot()
            number = shared.snapshot.sequence.to_bytes(8, "big")
            yield [epoch, number, b""]
            for part in shared.all_parts():
                yield [self._topic, number, part]
        elif len(asked) == 8 or (len(asked) == 24 and asked[8:] == epoch):
            yield from self._replay(int.from_bytes(asked[:8], "big"), len(asked) == 8)
        yield [b"", END, b""]

    def _replay(self, start: int, takes_snapshot: bool) -> Iterator[list[bytes]]:
        """Yield the batches from a number on; for one who asks for more than is kept, the snapshot as a batch."""
        try:
            batches = self._stream.since(start)
        except EventGapError as gap:
            # A number beyond what was ever sent is of another engine: it gets the end alone.
            if start <= gap.oldest and takes_snapshot:
                shared = self._snapshot()
                yield [self._topic, (shared.snapshot.sequence - 1).to_bytes(8, "big"), shared.whole()]
            return
        for batch in batches:
            with contextlib.suppress(InvalidArgumentError):  # it was not sent either: its number is missing
                yield self._frames(batch)

    def _snapshot(self) -> _Encoded:
        """Return the snapshot, shared by all who ask for the same."""
        if self._shared is None or self._shared.snapshot.sequence != self._stream.sequence:
            self._shared = _Encoded(self._stream.snapshot(), self._encode)
        return self._shared


class _Encoded:
    """A snapshot, encoded as far as a consumer has read it."""

    def __init__(self, snapshot: Snapshot, encode: Encoder) -> None:
        self.snapshot = snapshot
        self._encode = encode
        self._parts: list[bytes] = []
        self._whole = b""

    def all_parts(self) -> Iterator[bytes]:
        """Yield the payloads, `_CHUNK` events in each."""
        events = self.snapshot.events
        for at in range(-(-len(events) // _CHUNK)):
            # Encoded as it is read: a consumer that leaves after the first part costs no more.
            if at == len(self._parts):
                self._parts.append(self._encoded(events[at * _CHUNK : (at + 1) * _CHUNK]))
            yield self._parts[at]

    def whole(self) -> bytes:
        """Return one payload that clears a consumer's index and contains the whole snapshot."""
        # Cleared and stored in one message: half of it would be a wrong index.
        self._whole = self._whole or self._encoded((AllBlocksCleared(), *self.snapshot.events))
        return self._whole

    def _encoded(self, events: tuple[KVCacheEvent, ...]) -> bytes:
        """Return the payload of some events, without those that cannot be encoded: their batch was not sent either."""
        try:
            return self._encode(events, 0.0)
        except InvalidArgumentError:
            return self._encode(filter(self._can_be_encoded, events), 0.0)

    def _can_be_encoded(self, event: KVCacheEvent) -> bool:
        try:
            self._encode((event,), 0.0)
        except InvalidArgumentError:
            return False
        return True


def _bound(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind a socket, and return the address with its port."""
    socket.bind(endpoint)
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    return address.rstrip(b"\0").decode() if isinstance(address, bytes) else endpoint


__all__ = ["END", "ZmqPublisher"]

_guard(globals(), __all__)

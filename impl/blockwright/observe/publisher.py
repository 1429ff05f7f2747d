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
"""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

import zmq

from blockwright.errors import EventGapError, InvalidArgumentError
from blockwright.events import AllBlocksCleared
from blockwright.observe.stream import Batch, EventStream
from blockwright.observe.wire import Encoder

END = b"\xff" * 8
"""The number that ends an answer."""

_CHUNK = 1000
"""Events of a snapshot in one message."""


class ZmqPublisher:
    """Sends what a stream records, from a thread of its own.

    Attributes:
        endpoint, replay_endpoint: the addresses that were bound, ports filled in.
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
        self._topic = topic.encode()
        self._next = 0
        if stream.sequence == 0:
            stream.record([AllBlocksCleared()])
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(high_water_mark)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set_hwm(0)  # an answer comes whole: beyond a mark, messages of its middle are dropped
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
        self._is_closing = False
        self._failure: InvalidArgumentError | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Have everything sent that the stream has recorded; returns at once. O(1).

        Raises:
            InvalidArgumentError: what was recorded before cannot be encoded (`Encoder`), so nothing is sent any more.
        """
        if self._failure is not None:
            raise self._failure
        with self._lock, contextlib.suppress(zmq.Again):  # one that is full will wake it as well
            self._awaken.send(b"", zmq.DONTWAIT)

    def close(self) -> None:
        """Send what is left and close the sockets; a second time it does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        with contextlib.suppress(InvalidArgumentError):
            self.publish()
        self._thread.join()
        self._context.destroy(linger=200)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _serve(self) -> None:
        """Send, and answer, until closed, or until something cannot be encoded."""
        try:
            self._send_and_answer()
        except InvalidArgumentError as error:
            self._failure = error

    def _send_and_answer(self) -> None:
        """Send what comes, and answer who asks, until closed."""
        poller = zmq.Poller()
        poller.register(self._awake, zmq.POLLIN)
        if self.replay_endpoint is not None:
            poller.register(self._router, zmq.POLLIN)
        while not self._is_closing:
            ready = dict(poller.poll(100))
            while self._awake in ready and self._awake.poll(0):
                self._awake.recv()
            self._send()
            if self._router in ready:
                self._answer(self._router.recv_multipart())
        self._send()

    def _send(self) -> None:
        """Send what is new. Batches that are not kept any more are left out: consumers miss their numbers, and ask."""
        while True:
            try:
                batches = self._stream.since(self._next)
                break
            except EventGapError as gap:
                self._next = gap.oldest  # which may be gone as well by now
        for batch in batches:
            self._pub.send_multipart(self._frames(batch))
            self._next = batch.sequence + 1

    def _frames(self, batch: Batch) -> list[bytes]:
        """Return a batch as it is sent."""
        return [self._topic, batch.sequence.to_bytes(8, "big"), self._encode(batch.events, batch.timestamp)]

    def _answer(self, request: list[bytes]) -> None:
        """Answer one who has missed something; what is no request is not answered."""
        if len(request) != 3:
            return
        client, _, asked = request
        epoch = self._stream.epoch.bytes
        if asked in (b"snapshot", b"epoch"):
            snapshot = self._stream.snapshot() if asked == b"snapshot" else None
            sequence = self._stream.sequence if snapshot is None else snapshot.sequence
            self._router.send_multipart([client, b"", epoch, sequence.to_bytes(8, "big"), b""])
            events = () if snapshot is None else snapshot.events
            for at in range(0, len(events), _CHUNK):
                part = Batch(sequence, 0.0, events[at : at + _CHUNK])
                self._router.send_multipart([client, b"", *self._frames(part)])
        elif len(asked) == 8 or (len(asked) == 24 and asked[8:] == epoch):
            for batch in self._from(int.from_bytes(asked[:8], "big"), len(asked) == 8):
                self._router.send_multipart([client, b"", *self._frames(batch)])
        self._router.send_multipart([client, b"", b"", END, b""])

    def _from(self, start: int, takes_snapshot: bool) -> list[Batch]:
        """Return the batches from a number on; for one who asks for more than is kept, the snapshot as a batch."""
        try:
            return self._stream.since(start)
        except EventGapError as gap:
            if start > gap.oldest or not takes_snapshot:
                return []
            snapshot = self._stream.snapshot()
            return [Batch(snapshot.sequence - 1, 0.0, (AllBlocksCleared(), *snapshot.events))]


def _bound(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind a socket, and return the address with its port."""
    socket.bind(endpoint)
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    return address.rstrip(b"\0").decode() if isinstance(address, bytes) else endpoint

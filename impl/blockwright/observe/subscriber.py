"""A consumer that ends with the right index whatever it misses (extra ``events``: pyzmq, msgspec).

It begins with a snapshot, applies the batches that follow, and asks for what it misses: for the batches, if they are
kept and are of the same life of the engine, else for another snapshot.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from blockwright.observe.prefix_index import PrefixIndex
from blockwright.observe.publisher import END
from blockwright.observe.wire import decode


class ZmqSubscriber:
    """Keeps a `PrefixIndex` of one publisher.

    Attributes:
        index: what the engine can find, as far as it is heard of; another object after each snapshot.
        num_snapshots, num_replays: how often something was missed.
    """

    def __init__(self, endpoint: str, replay_endpoint: str, *, topic: str = "", patience: float = 1.0) -> None:
        """Subscribe. The index is empty until `poll` has heard of the engine.

        Args:
            endpoint: the publisher's PUB socket.
            replay_endpoint: its ROUTER socket.
            topic: the topics to hear begin so.
            patience: seconds to wait for an answer, and of silence after which `poll` asks if something was missed.
        """
        self.index = PrefixIndex()
        self.num_snapshots = self.num_replays = 0
        self._next: int | None = None
        self._epoch = b""
        self._patience = patience
        self._replay_endpoint = replay_endpoint
        self._heard_at = 0.0
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.subscribe(topic.encode())
        self._monitor = self._sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._sub.connect(endpoint)

    def close(self) -> None:
        """Close the sockets."""
        self._sub.disable_monitor()
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def poll(self, timeout: float = 0.1) -> int:
        """Apply what has come within `timeout` seconds; return how many batches. Asks after a silence, or a loss."""
        applied = 0
        if self._next is None or time.monotonic() - self._heard_at > self._patience:
            self.sync()
        stop = time.monotonic() + timeout
        while (left := stop - time.monotonic()) > 0 and self._sub.poll(int(left * 1000) + 1):
            while self._monitor.poll(0):  # a publisher that is back may be another one, whatever its numbers
                recv_monitor_message(self._monitor)
                self._next = None
            _, number, payload = self._sub.recv_multipart()
            self._heard_at = time.monotonic()
            sequence = int.from_bytes(number, "big")
            if self._next is None or sequence > self._next:
                self.sync()
            if self._next == sequence:
                self.index.apply(decode(payload))
                self._next += 1
                applied += 1
        return applied

    def sync(self) -> bool:
        """Ask for what was missed; say whether the publisher answered."""
        answer = self._ask(b"epoch")
        if not answer:
            return False
        self._heard_at = time.monotonic()
        (epoch, following, _), *_ = answer
        if self._next is not None and epoch == self._epoch:
            if self._next == int.from_bytes(following, "big"):
                return True
            missed = self._ask(self._next.to_bytes(8, "big") + epoch)
            if missed and int.from_bytes(missed[0][1], "big") == self._next:
                self.num_replays += 1
                for _, number, payload in missed:
                    self.index.apply(decode(payload))
                    self._next = int.from_bytes(number, "big") + 1
                return True
        return self._join()

    def _join(self) -> bool:
        """Begin anew with a snapshot; say whether there was one."""
        answer = self._ask(b"snapshot")
        if not answer:
            return False
        (self._epoch, following, _), *parts = answer
        self.num_snapshots += 1
        self.index = PrefixIndex([event for _, _, payload in parts for event in decode(payload)])
        self._next = int.from_bytes(following, "big")
        return True

    def _ask(self, request: bytes) -> list[list[bytes]]:
        """Return the messages of a whole answer; none if it does not come, or not to its end."""
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._replay_endpoint)
            socket.send_multipart([b"", request])
            answer: list[list[bytes]] = []
            while socket.poll(int(self._patience * 1000)):
                _, *frames = socket.recv_multipart()
                if frames[1] == END:
                    return answer
                answer.append(frames)
            return []
        finally:
            socket.close(linger=0)

"""Answers to consumers over a ROUTER socket, sent as fast as each of them reads, in bounded memory.

A consumer may ask and not read. ZeroMQ would keep every message of every answer for it; here an answer is made message
by message, and the next one only while the messages that are not read yet are few. So the memory is at most

- `UNREAD` bytes of messages, over all consumers, and an eighth of that for one of them (one message may be larger: a
  snapshot in one piece, for consumers that know vLLM's publisher only). The second half is for the first message of
  each, so that those that read are served beside those that do not;
- `OPEN` answers under way, which hold references to batches, or a snapshot that they share if it is the same;
- `WAITING` requests of 24 bytes. More are dropped; their consumers ask again.

A consumer that reads nothing for `PATIENCE` seconds loses its answer, and over TCP its connection. While others wait
for their turn, it loses its answer after a quarter of a second.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import zmq

UNREAD: Final = 64 << 20
"""Bytes of messages that no consumer has read yet, at most."""
OPEN: Final = 4
"""Answers that are under way at most."""
WAITING: Final = 1000
"""Requests that wait at most."""
PATIENCE: Final = 10.0
"""Seconds without progress after which an answer ends."""

_HIGH_WATER = 1000  # messages for one consumer; as many again may be on the way
_TURN = 100  # messages after which the next consumer has its turn
_HEAD = 128  # bytes that a message takes beside its payload, about


class _Client:
    """A consumer that waits for answers, or has not read all of one."""

    def __init__(self) -> None:
        self.asked: deque[bytes] = deque()
        self.answer: Iterator[list[bytes]] | None = None
        self.held: list[bytes] | None = None  # a message that did not fit yet
        self.unread: deque[tuple[zmq.MessageTracker, int]] = deque()
        self.num_unread = 0  # bytes
        self.moved_at = time.monotonic()


class Answers:
    """Sends answers through a ROUTER socket.

    Attributes:
        num_dropped: requests that were not answered, or not to the end.
    """

    def __init__(self, socket: zmq.Socket[bytes], answer: Callable[[bytes], Iterator[list[bytes]]]) -> None:
        """Prepare a socket that is not bound yet; `answer` returns the messages that answer a request."""
        self._socket = socket
        self._answer = answer
        self._clients: dict[bytes, _Client] = {}
        self._num_waiting = 0
        self.num_unread = 0
        self.num_dropped = 0
        socket.set_hwm(_HIGH_WATER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # one that is full or gone is reported, nothing is dropped unseen
        socket.setsockopt(zmq.MAXMSGSIZE, 1024)
        socket.setsockopt(zmq.TCP_MAXRT, int(PATIENCE * 1000))
        socket.copy_threshold = 0  # small messages are followed as well

    def __bool__(self) -> bool:
        """Return whether a consumer waits or has something to read."""
        return bool(self._clients)

    def take(self) -> None:
        """Take the requests that have come."""
        with suppress(zmq.Again):
            for _ in range(_TURN):
                client, *rest = self._socket.recv_multipart(zmq.DONTWAIT)
                if len(rest) != 2:
                    continue  # no request
                if self._num_waiting >= WAITING:
                    self.num_dropped += 1
                    continue
                # No request is longer: what is gets the answer to an empty one, the end alone.
                self._clients.setdefault(client, _Client()).asked.append(rest[1] if len(rest[1]) <= 24 else b"")
                self._num_waiting += 1

    def send(self) -> int:
        """Send all that the consumers can take now; return in how many milliseconds to try again."""
        now, num_open = time.monotonic(), sum(each.answer is not None for each in self._clients.values())
        # While others wait for a turn, one that does not read must not keep it.
        patience = PATIENCE if num_open < OPEN or not self._num_waiting else 0.25
        wait = 100
        for name, client in list(self._clients.items()):
            self._count_read(client, now)
            was_open = client.answer is not None
            if was_open or num_open < OPEN:
                wait = min(wait, 0 if self._send_to(name, client, now) else 5)
                num_open += (client.answer is not None) - was_open
            if client.answer is not None and now - client.moved_at > patience:
                self._give_up(client)
            if client.answer is None and not client.asked and not client.unread:
                del self._clients[name]
            elif was_open:  # the others come first the next time
                self._clients[name] = self._clients.pop(name)
        return wait

    def _count_read(self, client: _Client, now: float) -> None:
        unread = client.unread
        while unread and unread[0][0].done:
            size = unread.popleft()[1]
            client.num_unread -= size
            self.num_unread -= size
            client.moved_at = now

    def _send_to(self, name: bytes, client: _Client, now: float) -> bool:
        """Send one consumer some of its answers; return whether it can take more at once."""
        for _ in range(_TURN):
            if client.answer is None:
                if not client.asked:
                    return False
                client.answer, client.moved_at = self._answer(client.asked.popleft()), now
                self._num_waiting -= 1
            frames = client.held or next(client.answer, None)
            if frames is None:
                client.answer = None
                continue
            client.held, size = frames, len(frames[-1]) + _HEAD
            if not self._fits(client, size):
                return False
            try:
                self._socket.send(name, zmq.SNDMORE | zmq.DONTWAIT)  # which the whole message follows, or none of it
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._give_up(client)  # it has gone
                return False
            for frame in (b"", *frames[:-1]):
                self._socket.send(frame, zmq.SNDMORE)
            tracker = self._socket.send(frames[-1], copy=False, track=True)
            client.held, client.moved_at = None, now
            client.unread.append((tracker, size))
            client.num_unread += size
            self.num_unread += size
        return True

    def _fits(self, client: _Client, size: int) -> bool:
        # One message may be larger than the bound: a snapshot in one piece.
        if self.num_unread == 0:
            return True
        if client.num_unread == 0:
            return self.num_unread + size <= UNREAD
        return self.num_unread + size <= UNREAD // 2 and client.num_unread + size <= UNREAD // 8

    def _give_up(self, client: _Client) -> None:
        self.num_dropped += 1 + len(client.asked)
        self._num_waiting -= len(client.asked)
        client.answer = client.held = None
        client.asked.clear()

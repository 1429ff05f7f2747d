"""A proxy in front of a store's server that does, on demand, what networks and failing servers do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Self

CHUNK = 1 << 16
DELAY = 30.0
"""Seconds by which a delayed reply is late: far beyond any timeout; the end of the fault ends the wait."""
DRIP = 0.02
"""Seconds between two bytes of a reply that drips: each arrives within a timeout, and all of them never do."""


class Cut(Exception):  # noqa: N818  # it ends a connection on purpose
    """The proxy closes the connection here."""


class FaultProxy:
    """Forwards connections on the loopback interface to a server, and spoils them while `fault` names how.

    Use it as a context manager. What is being forwarded when the fault changes may still be spoiled.

    Attributes:
        port: where it listens; the same for as long as it lives.
    """

    def __init__(self, upstream: int, seed: int = 0) -> None:
        self._upstream, self._random = upstream, Random(seed)
        self._fault, self._changed, self._closing = "", threading.Event(), False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._changed.set()
        self._deafen()
        self._cut_all()
        for thread in self._threads:
            thread.join(10.0)

    @property
    def fault(self) -> str:
        """What goes wrong now; a key of `FAULTS`, or empty."""
        return self._fault

    @fault.setter
    def fault(self, name: str) -> None:
        if name and name not in FAULTS:
            raise ValueError(f"no fault is called {name!r}")
        before, self._fault = self._fault, name
        with self._lock:
            self._changed.set()
            self._changed = threading.Event()
        if name == "refuse":
            self._deafen()
        if name in ("refuse", "hang up"):
            self._cut_all()
        if before == "refuse" and name != before:
            self._listen()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._spawn(self._accept, listener)

    def _deafen(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _cut_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self._closing or self._fault == "hang up":
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream), timeout=5.0)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            self._spawn(self._link, client, server)

    def _link(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways until either side, or a fault, ends it."""
        with client, server:
            with self._lock:
                self._sockets |= {client, server}
            back = threading.Thread(target=self._pump, args=(server, client, "reply"), daemon=True)
            back.start()
            self._pump(client, server, "request")
            back.join()
            with self._lock:
                self._sockets -= {client, server}

    def _pump(self, source: socket.socket, sink: socket.socket, what: str) -> None:
        with suppress(OSError, Cut):
            while data := source.recv(CHUNK):
                direction, share, spoil = FAULTS.get(self._fault, ("", 0.0, None))
                hit = spoil is not None and direction == what and self._random.random() < share
                for piece in spoil(self, data) if spoil is not None and hit else [data]:
                    sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    # Faults.

    def _drop(self, data: bytes) -> Iterator[bytes]:
        yield from ()

    def _delay(self, data: bytes) -> Iterator[bytes]:
        self._changed.wait(DELAY)
        yield data

    def _drip(self, data: bytes) -> Iterator[bytes]:
        changed = self._changed
        for at in range(len(data)):
            yield data[at : at + 1]
            if changed.wait(DRIP):
                raise Cut

    def _close(self, data: bytes) -> Iterator[bytes]:
        yield data[: self._random.randrange(len(data))]
        raise Cut

    def _truncate(self, data: bytes) -> Iterator[bytes]:
        start = self._random.randrange(len(data))
        yield data[:start] + data[start + self._random.randint(1, 16) :]

    def _corrupt(self, data: bytes) -> Iterator[bytes]:
        spoiled = bytearray(data)
        for _ in range(self._random.randint(1, 3)):
            spoiled[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        yield bytes(spoiled)

    def _corrupt_head(self, data: bytes) -> Iterator[bytes]:
        spoiled = bytearray(data)
        spoiled[self._random.randrange(min(8, len(data)))] = self._random.choice(b"0123456789$*+-:_\r\n\x00x")
        yield bytes(spoiled)

    def _corrupt_name(self, data: bytes) -> Iterator[bytes]:
        start = data.find(b"blockwright")
        if start < 0:
            yield data
            return
        at = start + self._random.randrange(min(140, len(data) - start))
        yield data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


Spoil = Callable[[FaultProxy, bytes], Iterator[bytes]]

SOME = 0.3
"""The share of pieces that are spoiled where sparing others lets a conversation get further."""

FAULTS: dict[str, tuple[str, float, Spoil | None]] = {
    "refuse": ("", 0.0, None),
    "hang up": ("", 0.0, None),
    "drop replies": ("reply", SOME, FaultProxy._drop),
    "drop requests": ("request", SOME, FaultProxy._drop),
    "delay replies": ("reply", SOME, FaultProxy._delay),
    "drip replies": ("reply", SOME, FaultProxy._drip),
    "close mid-reply": ("reply", SOME, FaultProxy._close),
    "close mid-request": ("request", SOME, FaultProxy._close),
    "truncate replies": ("reply", SOME, FaultProxy._truncate),
    "truncate requests": ("request", SOME, FaultProxy._truncate),
    "corrupt replies": ("reply", SOME, FaultProxy._corrupt),
    "corrupt protocol": ("reply", SOME, FaultProxy._corrupt_head),
    "corrupt names": ("request", SOME, FaultProxy._corrupt_name),
    "corrupt requests": ("request", SOME, FaultProxy._corrupt),
}
"""What can go wrong, the direction and the share of pieces that are spoiled, and how."""

"""A proxy in front of a store's server that does, on demand, what networks and failing servers do."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
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

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._changed.set()
        self._deafen()
        self._cut_all()
        for thread in self._threads:
            thread.join(10.0)

    @property
    def fault(self) -> str:
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
                direction, how = FAULTS.get(self._fault, ("", ""))
                hit = direction == what and self._random.random() < SHARE
                for piece in self._spoiled(how, data) if hit else [data]:
                    sink.sendall(piece)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _spoiled(self, how: str, data: bytes) -> Iterator[bytes]:
        random, changed, at, other = self._random, self._changed, self._random.randrange(len(data)), bytearray(data)
        match how:
            case "drop":
                return
            case "delay":
                changed.wait(DELAY)
            case "drip":
                for byte in data:
                    yield bytes([byte])
                    if changed.wait(DRIP):
                        raise Cut
                return
            case "close":
                yield data[:at]
                raise Cut
            case "truncate":
                del other[at : at + random.randint(1, 16)]
            case "corrupt":
                for _ in range(random.randint(1, 3)):
                    other[random.randrange(len(data))] ^= 1 << random.randrange(8)
            case "corrupt the head":
                other[at % 8 % len(data)] = random.choice(b"0123456789$*+-:_\r\n\x00x")
            case "corrupt a name" if (start := data.find(b"blockwright")) >= 0:
                other[start + at % min(140, len(data) - start)] ^= 1
        yield bytes(other)


SHARE = 0.3
"""The share of pieces that are spoiled; sparing others lets a conversation get further."""

FAULTS: dict[str, tuple[str, str]] = {
    "refuse": ("", ""),
    "hang up": ("", ""),
    "drop replies": ("reply", "drop"),
    "drop requests": ("request", "drop"),
    "delay replies": ("reply", "delay"),
    "drip replies": ("reply", "drip"),
    "close mid-reply": ("reply", "close"),
    "close mid-request": ("request", "close"),
    "truncate replies": ("reply", "truncate"),
    "truncate requests": ("request", "truncate"),
    "corrupt replies": ("reply", "corrupt"),
    "corrupt protocol": ("reply", "corrupt the head"),
    "corrupt names": ("request", "corrupt a name"),
    "corrupt requests": ("request", "corrupt"),
}

"""A client of a Valkey or Redis server: each operation ends by a deadline, and no secret is shown.

The client library bounds each read of a socket, so that a server which sends a byte now and then holds a caller for as
long as it likes. Here the sockets know until when the operation of their thread may take. Outside of that are only the
resolution of a host's name, for which no time can be set, and the steps of a TLS handshake, each bounded on its own.
"""

from __future__ import annotations

import importlib
import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from blockwright.errors import InvalidArgumentError, UnsupportedError

READ_SIZE = 1 << 20
"""Bytes asked of a socket at a time; the libraries' own 64 KiB halve the speed of large values."""

_WHERE = frozenset({"host", "port", "path", "db", "username", "password", "credential_provider", "client_name"})
_TRANSPORT = ("ssl_", "socket_keepalive")
_OURS = {"socket_read_size": READ_SIZE, "protocol": 2, "decode_responses": False, "health_check_interval": 0}


class Deadline(threading.local):
    """The time by which the operation of this thread must end.

    Attributes:
        until: by `time.monotonic`.
    """

    until: float = math.inf

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Give what runs in the block this much time in all, and no more than a block around it leaves."""
        before = self.until
        self.until = min(before, time.monotonic() + seconds)
        try:
            yield
        finally:
            self.until = before


class BoundedSocket:
    """A connected socket that waits for no longer than its own timeout and the deadline of the thread."""

    def __init__(self, sock: socket.socket, deadline: Deadline, timeout: float) -> None:
        """Wrap a socket."""
        self._sock, self._deadline = sock, deadline
        self._limit: float | None = timeout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def settimeout(self, seconds: float | None) -> None:
        """Set the longest wait of one call."""
        self._limit = seconds
        self._sock.settimeout(seconds)

    def recv(self, *args: Any) -> bytes:
        """Receive, in time."""
        self._arm()
        return self._sock.recv(*args)

    def recv_into(self, *args: Any) -> int:
        """Receive, in time."""
        self._arm()
        return self._sock.recv_into(*args)

    def sendall(self, *args: Any) -> None:
        """Send all, in time."""
        self._arm()
        self._sock.sendall(*args)

    def _arm(self) -> None:
        if self._limit == 0:  # a poll
            return
        left = self._deadline.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the operation took too long")
        # The library sets a limit of its own for each call; the nearer of the two counts.
        if self._limit is not None or left < math.inf:
            self._sock.settimeout(left if self._limit is None else min(left, self._limit))


def library() -> Any:
    """Import `valkey`, else `redis`, which is called alike; raise an `UnsupportedError` if neither is installed."""
    for name in ("valkey", "redis"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UnsupportedError("no client of Valkey or Redis is installed: pip install valkey")


def settings_of(target: Any) -> tuple[Any, dict[str, Any]]:
    """Return the library, and how to connect, of a URL or of a client of either library.

    Raises:
        InvalidArgumentError: not a URL of such a server, or options in it that are not about where and how to connect.
        UnsupportedError: a client of a cluster or behind sentinels, or no library.
    """
    if isinstance(target, str):
        lib = library()
        settings = _parsed(lib, target)
        if settings is None:  # raised outside of the handler: the parser's own error quotes parts of the URL
            raise InvalidArgumentError("url: pass valkey://user:password@host:port/db, valkeys:// (TLS) or unix://path")
    else:
        pool = getattr(target, "connection_pool", None)
        if pool is None or "connection_pool" in getattr(pool, "connection_kwargs", {"connection_pool": None}):
            raise UnsupportedError("pass a URL or a client of one server; clusters and sentinels are not supported")
        lib = importlib.import_module(type(pool).__module__.partition(".")[0])
        settings = pool.connection_kwargs | {"connection_class": pool.connection_class}
        settings = {name: settings[name] for name in settings if _is_where(name)}
    if not all(_is_where(name) for name in settings):
        raise InvalidArgumentError("url: it has options that are not about where to connect; timeouts are arguments")
    return lib, settings


def _parsed(lib: Any, url: str) -> dict[str, Any] | None:
    try:
        return dict(lib.connection.parse_url(url))
    except Exception:
        return None


def _is_where(name: str) -> bool:
    return name in _WHERE or name == "connection_class" or name.startswith(_TRANSPORT)


def address_of(settings: dict[str, Any]) -> str:
    """Return where a server is, without user, password or options."""
    if "path" in settings:
        return f"{settings['path']}/{settings.get('db', 0)}"
    return f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}/{settings.get('db', 0)}"


def client_of(lib: Any, settings: dict[str, Any], deadline: Deadline, timeout: float, connect_timeout: float) -> Any:
    """Return a client with its own pool of connections, which keep to the deadline and are not retried."""
    settings = dict(settings)
    bounded = _bounded(settings.pop("connection_class", lib.Connection), deadline)
    no_retry = importlib.import_module(f"{lib.__name__}.retry").Retry(
        importlib.import_module(f"{lib.__name__}.backoff").NoBackoff(), 0
    )
    times = {"socket_timeout": timeout, "socket_connect_timeout": connect_timeout, "retry": no_retry}
    pool = lib.ConnectionPool(connection_class=bounded, **(settings | _OURS | times))
    kind = getattr(lib, "Valkey", None) or lib.Redis
    return kind(connection_pool=pool)


def _bounded(connection_class: Any, deadline: Deadline) -> Any:
    """Derive a class of connections with sockets that keep to the deadline."""

    class Bounded(connection_class):  # type: ignore[misc]
        socket_timeout: float
        socket_connect_timeout: float

        def _connect(self) -> BoundedSocket:
            limits = self.socket_timeout, self.socket_connect_timeout
            # Never 0, which would make the socket one that polls.
            left = max(1e-3, deadline.until - time.monotonic())
            self.socket_timeout, self.socket_connect_timeout = (min(limit, left) for limit in limits)
            try:
                sock = super()._connect()  # with TLS, the handshake as well
            finally:
                self.socket_timeout, self.socket_connect_timeout = limits
            return BoundedSocket(sock, deadline, limits[0])

    Bounded.__name__ = Bounded.__qualname__ = f"Bounded{connection_class.__name__}"
    return Bounded

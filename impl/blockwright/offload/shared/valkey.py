"""Blocks in a Valkey or Redis server that several engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright.errors import InvalidArgumentError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.breaker import CircuitBreaker
from blockwright.offload.shared.store import Unreadable, Value, ValueStore
from blockwright.offload.shared.valkey_client import Deadline, address_of, client_of, settings_of

GROUP = 64
"""Names that one EXISTS counts, when the leading run of many is looked for."""


class OutOfStepError(Exception):
    """A reply makes no sense; it may be that of another command, or damaged. Counts as a failure of the store."""


class ValkeyStore(ValueStore):
    """Keeps each block as one string of a Valkey or Redis server, under ``prefix:identity:hash``.

    The server evicts by its own policy; set ``maxmemory`` and ``maxmemory-policy allkeys-lru`` there. A read counts as
    use for it, a lookup does not. Blocks are verified at each read: neither the server nor what lies between can make a
    damaged byte appear. Whoever knows the password can see, replace and delete blocks.

    >>> ours = CacheIdentity("llama", "layers, heads, tokens", "bfloat16", 16, b"seed")
    >>> ValkeyStore("valkey://engine:secret@cache.example:6379/0", ours)
    ValkeyStore('cache.example:6379/0', identity=7105905d)
    """

    def __init__(
        self,
        target: str | Any,
        identity: CacheIdentity,
        *,
        prefix: str = "blockwright",
        username: str | None = None,
        password: str | None = None,
        timeout: float = 2.0,
        lookup_timeout: float = 0.1,
        connect_timeout: float = 0.5,
        ttl: float | None = None,
        failures: int = 3,
        backoff: float = 0.5,
        longest_backoff: float = 30.0,
        batch_bytes: int = 8 << 20,
    ) -> None:
        """Set up, without asking the server; `ping` does that.

        Args:
            target: a URL, or a client of the `valkey` or `redis` library, of which address, credentials and TLS are
                taken over (not the client itself, which may wait for ever).
            identity: agreed on by the engines that share blocks; blocks of another identity are never found.
            prefix: starts every name.
            username: instead of one in the URL.
            password: the same for the password.
            timeout: seconds that one batch of reads or writes may take in all.
            lookup_timeout: seconds that a lookup may take; it keeps the engine waiting.
            connect_timeout: seconds for a connection, within the other two.
            ttl: seconds after which the server drops a block; None for no limit.
            failures: calls in a row that fail until the store counts as down.
            backoff: seconds for which it does, at first; they double up to `longest_backoff`.
            longest_backoff: see there.
            batch_bytes: of blocks that are read or written by one call, unless one alone is larger.

        Raises:
            InvalidArgumentError: not a URL of a server, or a number that is not positive; no secret is repeated.
            UnsupportedError: no client library is installed, or the client is of a cluster.
        """
        times = {"timeout": timeout, "lookup_timeout": lookup_timeout, "connect_timeout": connect_timeout}
        for name, seconds in (times | ({} if ttl is None else {"ttl": ttl})).items():
            if not isinstance(seconds, int | float) or not 1e-3 <= seconds < 1e9:
                raise InvalidArgumentError(f"{name}={seconds!r}: pass seconds, at least 0.001")
        lib, settings = settings_of(target)
        given = {"username": username, "password": password}
        settings |= {name: value for name, value in given.items() if value is not None}
        breaker = CircuitBreaker(failures, backoff, longest_backoff)
        super().__init__(address_of(settings), identity, breaker, batch_bytes)
        self._start = f"{prefix}:{self._identity.hex()}:"
        self._timeout, self._lookup_timeout = timeout, lookup_timeout
        self._ttl = None if ttl is None else round(ttl * 1000)
        self._deadline = Deadline()
        self._client = client_of(lib, settings, self._deadline, timeout, connect_timeout)
        self._refusal: type[Exception] = lib.ResponseError  # of one command: the server answers

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _name(self, key: bytes) -> str:
        return self._start + key.hex()

    def _probe(self) -> None:
        for reply in self._ask([("PING",), ("EXISTS", self._start)], self._timeout):
            if isinstance(reply, Exception):
                raise reply

    def _write(self, values: Sequence[tuple[str, bytes]]) -> list[bool]:
        expiry: tuple[Any, ...] = () if self._ttl is None else ("PX", self._ttl)
        replies = self._ask([("SET", name, value, *expiry) for name, value in values], self._timeout)
        # A reply of another kind belongs to another command: the connection is out of step.
        self._check(all(reply is True or isinstance(reply, self._refusal) for reply in replies))
        return [reply is True for reply in replies]

    def _read(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        # A range rather than the whole: what lies there may be larger than any block. It ends a byte late, so that a
        # longer value is seen to be one.
        replies = self._ask([("GETRANGE", name, 0, size) for name, size in wanted], self._timeout)
        return [self._value(reply) for reply in replies]

    def _value(self, reply: object) -> Value:
        if isinstance(reply, bytes):
            return reply or None
        if isinstance(reply, self._refusal) and not str(reply).startswith("WRONGTYPE"):
            return Unreadable("refused")
        return Unreadable("wrong_type")

    def _present(self, names: Sequence[str]) -> list[bool]:
        return [count == 1 for count in self._counts_of([[name] for name in names])]

    def _run(self, names: Sequence[str]) -> int:
        """Count whole groups first: two rounds, and few replies, however many names there are."""
        groups = [names[at : at + GROUP] for at in range(0, len(names), GROUP)]
        with self._deadline.within(self._lookup_timeout):
            counts = self._counts_of(groups)
            for at, (group, count) in enumerate(zip(groups, counts, strict=True)):
                if count != len(group):
                    return at * GROUP + (super()._run(group) if count else 0)
        return len(names)

    def _counts_of(self, groups: Sequence[Sequence[str]]) -> list[int]:
        """Return how many of the names in each group exist; 0 where the server does not answer."""
        replies = self._ask([("EXISTS", *group) for group in groups], self._lookup_timeout)
        counts = [0 if isinstance(reply, self._refusal) else reply for reply in replies]
        self._check(
            all(type(count) is int and 0 <= count <= len(group) for count, group in zip(counts, groups, strict=True))
        )
        return counts

    def _delete(self, names: Sequence[str]) -> int:
        return sum(reply == 1 for reply in self._ask([("UNLINK", name) for name in names], self._lookup_timeout))

    def _ask(self, commands: Sequence[tuple[Any, ...]], seconds: float) -> list[Any]:
        """Send commands together; return the replies, errors of single commands among them."""
        with self._deadline.within(seconds), self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        return replies

    def _check(self, sane: bool) -> None:
        if not sane:
            raise OutOfStepError("a reply of a kind that the command does not have")

    def _distrust(self) -> None:
        self._client.connection_pool.disconnect(inuse_connections=False)

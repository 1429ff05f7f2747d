"""What stores that engines share have in common: names, verified values, failures as misses, and counts.

Blocks in such a store may vanish at any time, be damaged, or never have been there; the server may be slow or away. All
of that is a miss here, and counted.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TypeVar

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError, StoreUnavailableError
from blockwright.offload.identity import CacheIdentity, checked_identity
from blockwright.offload.media import ByteStore, Item
from blockwright.offload.shared.breaker import CircuitBreaker
from blockwright.offload.shared.envelope import Envelope

_log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_KEY_BYTES = 120
"""The longest key: in hexadecimal digits it is still the name of a file."""
MOST_BYTES = 1 << 62
"""No bound on bytes is higher."""
MOST_IN_BATCH = 1024
"""Blocks that one call reads or writes, however small."""


@dataclass(frozen=True, slots=True)
class SharedStoreStats:
    """Counts of a store since it was opened; every requested block is counted once.

    Attributes:
        found: blocks read and verified.
        absent: blocks that were not there.
        truncated: misses, since stored bytes were missing.
        foreign: misses, since the value is of another version, identity, key or length.
        corrupt: misses, since the checksum differs.
        wrong_type: misses, since something else lies under the name.
        unavailable: blocks neither read, looked up nor written, since the call failed.
        down: blocks neither read, looked up nor written, since the store counts as down.
        refused: blocks that the server would not take or give, for example for lack of memory or permission.
        written: blocks written and acknowledged.
        failures: calls that failed, those of lookups among them.
        bytes_read: of blocks found.
        bytes_written: of blocks written.
    """

    found: int = 0
    absent: int = 0
    truncated: int = 0
    foreign: int = 0
    corrupt: int = 0
    wrong_type: int = 0
    unavailable: int = 0
    down: int = 0
    refused: int = 0
    written: int = 0
    failures: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class Unreadable(Exception):  # noqa: N818  # what lies there is no block; not a failure of the store
    """Something under a name that is no block; the argument names the count."""


_Move = Callable[[Sequence[str], Sequence[Item]], list[str]]

Value = bytes | Unreadable | None
"""What a read of one name gives: its bytes, why there are none, or None if nothing is there."""


class SharedStore(ByteStore):
    """A `ByteStore` without places. It answers in time even if its server hangs, fails or sends damaged bytes.

    Reads and lookups never raise: a failure is a counted miss. After several failures in a row the store counts as down
    for a back-off time, in which nothing is asked of it. Safe to use from several threads.

    Attributes:
        address: where the store is, without secrets.
        identity: the identity of its blocks.
    """

    def __init__(self, address: str, identity: CacheIdentity, breaker: CircuitBreaker, batch_bytes: int) -> None:
        """Set the parts up; the store itself is first asked by `ping` or by use."""
        self.address = address
        self.identity = checked_identity(identity)
        self._identity = self.identity.digest()
        self._envelope = Envelope(self._identity)
        self._breaker = breaker
        self._batch_bytes = integer("batch_bytes", batch_bytes, 1, MOST_BYTES)
        self._most_in_batch = MOST_IN_BATCH
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r}, identity={self._identity.hex()[:8]})"

    @property
    def is_down(self) -> bool:
        """Whether the store counts as down, so that it is not asked now."""
        return self._breaker.is_open

    def stats(self) -> SharedStoreStats:
        """Return the counts so far."""
        with self._lock:
            return SharedStoreStats(**self._counts)

    def ping(self) -> None:
        """Ask the store whether it can be used, even if it counts as down; an answer closes the breaker.

        Raises:
            StoreUnavailableError: it cannot be reached in time, or refuses; the message gives the place and kind of the
                error, and no text of a server or library.
        """
        _, kind = self._tried(self._probe)
        if kind:  # raised outside of the handler: no context, whose text might hold a secret
            raise StoreUnavailableError(f"the store at {self.address} cannot be used: {kind}")

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        """Write a block; readers find all of it or the previous content.

        Raises:
            InvalidArgumentError: an empty key, or one longer than `MOST_KEY_BYTES`.
            StoreUnavailableError: it was not acknowledged.
        """
        if not self.put_many([(key, place, parts)])[0]:
            raise StoreUnavailableError(f"the store at {self.address} did not acknowledge a block")

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        """Read a block; False, a counted miss, if not all of it could be read and verified."""
        return self.get_many([(key, place, into)])[0]

    def put_many(self, items: Sequence[Item]) -> list[bool]:
        """Write blocks, several per call of the server; return which were acknowledged.

        A call that fails ends it: the blocks after it are not tried.
        """
        return self._each_batch(self._put_batch, items, "written")

    def get_many(self, items: Sequence[Item]) -> list[bool]:
        """Read blocks, several per call of the server; return which were found. Failures end it as in `put_many`."""
        return self._each_batch(self._get_batch, items, "found")

    def contains(self, keys: Sequence[bytes]) -> list[bool] | None:
        """Return which blocks seem to be there, as a hint, since each may vanish; None if it is unknown."""
        if not keys:
            return []
        return self._attempt(partial(self._present, [self._named(key) for key in keys]), len(keys))

    def leading(self, keys: Sequence[bytes]) -> int:
        """Return how many of the first blocks, in a row, seem to be there, as a hint; 0 if the store does not know."""
        if not keys:
            return 0
        return self._attempt(partial(self._run, [self._named(key) for key in keys]), len(keys)) or 0

    def remove(self, keys: Sequence[bytes]) -> bool:
        """Delete blocks; False if the store did not answer."""
        names = [self._named(key) for key in keys]
        return not names or self._attempt(partial(self._delete, names), 0) is not None

    def pin(self, keys: Sequence[bytes]) -> None:
        """Let the next write of these blocks keep them from eviction; a store that cannot do that ignores the call."""
        return

    # What a kind of store has to do. Each may raise anything, which is a failure of the store.

    @abstractmethod
    def _name(self, key: bytes) -> str:
        """Return the name under which a block of this identity lies."""

    @abstractmethod
    def _probe(self) -> None:
        """Do something that fails if the store cannot be used."""

    @abstractmethod
    def _put_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        """Write blocks under names; return the count for each: ``"written"`` or the reason why it was not."""

    @abstractmethod
    def _get_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        """Read the blocks under names and verify them; return the count for each: ``"found"`` or the kind of miss."""

    @abstractmethod
    def _present(self, names: Sequence[str]) -> list[bool]:
        """Return for each name whether something lies under it."""

    def _run(self, names: Sequence[str]) -> int:
        return (*self._present(names), False).index(False)

    @abstractmethod
    def _delete(self, names: Sequence[str]) -> int:
        """Delete names, there or not; return how many there were."""

    def _distrust(self) -> None:
        """Drop what may be out of step, after an answer that makes no sense."""
        return

    def _named(self, key: bytes) -> str:
        if not 0 < len(key) <= MOST_KEY_BYTES:
            raise InvalidArgumentError(f"a key of {len(key)} bytes; pass the block's hash, 1 to {MOST_KEY_BYTES} bytes")
        return self._name(key)

    def _each_batch(self, move: _Move, items: Sequence[Item], good: str) -> list[bool]:
        done: list[bool] = []
        for batch in self._batches(items):
            work = partial(move, [self._named(key) for key, _, _ in batch], batch)
            verdicts = self._attempt(work, len(items) - len(done))
            if verdicts is None:
                break
            for verdict in verdicts:
                self._count(verdict)
            moved = [verdict == good for verdict in verdicts]
            self._count(f"bytes_{'read' if good == 'found' else good}", _lengths(batch, moved))
            done += moved
        return done + [False] * (len(items) - len(done))

    def _attempt(self, work: Callable[[], T], blocks: int) -> T | None:
        """Do work on the store unless it counts as down; None after a failure, with the blocks concerned counted."""
        if not self._breaker.may_try():
            self._count("down", blocks)
            return None
        result, kind = self._tried(work)
        if kind:
            self._count("unavailable", blocks)
        return result

    def _tried(self, work: Callable[[], T]) -> tuple[T | None, str]:
        """Do work; return its result, or the name of the kind of error."""
        try:
            result = work()
        except Exception as error:
            kind = type(error).__name__
        else:
            if self._breaker.succeeded():
                _log.info("the store at %s answers again", self.address)
            return result, ""
        self._count("failures")
        self._distrust()
        if self._breaker.failed():
            _log.warning("the store at %s counts as down, and is tried again now and then: %s", self.address, kind)
        return None, kind

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def _batches(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """Split items so that no batch exceeds `batch_bytes`, unless it is a single block, or has too many blocks."""
        start = total = 0
        for at, item in enumerate(items):
            # A single block larger than the bound is a batch by itself.
            full = total + _length(item) > self._batch_bytes or at - start == self._most_in_batch
            if at > start and full:
                yield items[start:at]
                start, total = at, 0
            total += _length(item)
        if items:
            yield items[start:]


class ValueStore(SharedStore):
    """A store that writes and reads values of bytes, header and data in one piece; the data are copied."""

    @abstractmethod
    def _write(self, values: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Write values under names; False for those that were refused."""

    @abstractmethod
    def _read(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        """Read the values under names, none of them to more than a byte beyond its size."""

    def _put_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        values = [self._envelope.sealed(key, parts) for key, _, parts in items]
        return ["written" if done else "refused" for done in self._write(list(zip(names, values, strict=True)))]

    def _get_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        sizes = [self._envelope.size(item[0], _length(item)) for item in items]
        values = self._read(list(zip(names, sizes, strict=True)))
        verdicts = [self._verdict(item, value) for item, value in zip(items, values, strict=True)]
        if not {"found", "absent", "refused"}.issuperset(verdicts):
            self._distrust()
        return verdicts

    def _verdict(self, item: Item, value: Value) -> str:
        """Verify a value and copy its data to the item's memory; return the name of the count to raise."""
        if value is None:
            return "absent"
        if isinstance(value, Unreadable):
            return str(value)
        return self._envelope.opened(item[0], value, item[2]) or "found"


def _length(item: Item) -> int:
    return sum(part.nbytes for part in item[2])


def _lengths(items: Sequence[Item], which: Sequence[bool]) -> int:
    return sum(_length(item) for item, chosen in zip(items, which, strict=True) if chosen)

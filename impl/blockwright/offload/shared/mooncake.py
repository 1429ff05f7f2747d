"""Blocks in a Mooncake store: memory that processes lend, on many machines, behind one master."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError, StoreUnavailableError, UnsupportedError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import Item
from blockwright.offload.shared.breaker import CircuitBreaker
from blockwright.offload.shared.store import MOST_BYTES, SharedStore

BOUNDS: Final = {
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2",
    "MC_TCP_STATUS_TIMEOUT_SEC": "2",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "500",
    "MC_TCP_LANES_PER_PEER": "16",
    "MC_RPC_TIMEOUT_MS": "500",
    "MC_RPC_CONNECT_TIMEOUT_MS": "300",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
}
"""How long the library waits. It reads these variables of the environment once, when it is loaded or first used.

Transfers that share a connection wait for each other: 32 of them wait 4 s for a process that is stopped, and with the
library's four connections 20 s. It takes 16 at most; above that it goes back to four. A block of more than
`MOST_COPIED` bytes makes two transfers.
"""
MOST_AT_ONCE: Final = 32
"""Blocks of one call. More would wait longer for a stopped process; half of them take a fifth more time."""
MOST_COPIED: Final = 512 << 10
"""Bytes of a block that is copied beside its header, so that it is one transfer: two take longer than the copy."""
QUIET: Final = {"MC_LOG_LEVEL": "ERROR", "MC_STORE_CLIENT_METRIC": "0"}
"""Less on standard error, unless the variables are set."""

OK, FULL, NOT_THAT_LONG, ABSENT, NO_TRANSFER = 0, -200, -600, -704, -800
"""Codes: done; no room; the object is longer than the memory for it; no such object; its bytes do not come."""
REFUSALS = frozenset({FULL, -702, -703, -705, -706, -707, -708, -709, -712})
"""Codes of a master that answers, and does not take the object now."""
_MOST_HINTED = 1 << 16


class MooncakeError(Exception):
    """A call of the library failed; the argument is its code."""


class _Batch:
    """Where the objects of a batch are gathered from, or read into: a slot for each, and their blocks' own memory.

    Attributes:
        is_copied: whether slots hold whole objects; else their headers alone.
        needed: bytes of memory for the slots.
        pointers, sizes: of the pieces of each object.
    """

    def __init__(self, items: Sequence[Item], heads: Sequence[int]) -> None:
        self._parts = [parts for _, _, parts in items]
        lengths = [sum(part.nbytes for part in parts) for parts in self._parts]
        self.is_copied = max(lengths) <= MOST_COPIED
        step = max(heads) + self.is_copied * max(lengths)
        self._step = step + -step % 64
        self.needed = self._step * len(items)
        self.sizes = [[head + length] for head, length in zip(heads, lengths, strict=True)]
        if not self.is_copied:
            self.sizes = [
                [head, *(part.nbytes for part in parts if part.nbytes)]
                for head, parts in zip(heads, self._parts, strict=True)
            ]

    def lay(self, memory: memoryview) -> None:
        self._memory, base, step = memory, _address(memory), self._step
        self.pointers = [[base + at * step] for at in range(len(self._parts))]
        if not self.is_copied:
            for place, parts in zip(self.pointers, self._parts, strict=True):
                place += [_address(part) for part in parts if part.nbytes]

    def slot(self, at: int) -> memoryview:
        return self._memory[at * self._step : (at + 1) * self._step]

    def write(self, at: int, head: bytes) -> None:
        """Write the header of an object, and copy its data."""
        end = at * self._step
        for part in (memoryview(head), *(self._parts[at] if self.is_copied else ())):
            start, end = end, end + part.nbytes
            self._memory[start:end] = part


class MooncakeStore(SharedStore):
    """Keeps each block as one object of a Mooncake store, under ``prefix:identity:hash``.

    A block of more than 512 KiB is moved without a copy: its object is gathered from two places, the header and the
    block's memory on the host, and is read into two. The checksum is verified in place, so that memory that a miss was
    read into is undefined. Smaller blocks are copied once.

    Transfers are never given up here, since a transfer that goes on would write later. They end by the library's own
    timeouts, `BOUNDS`, which this class sets before it loads the library, unless they are set already. The master
    evicts objects by its own policy. Any process that reaches the master can read, replace and delete blocks.
    """

    def __init__(
        self,
        master: str,
        identity: CacheIdentity,
        *,
        hostname: str = "127.0.0.1",
        metadata: str = "P2PHANDSHAKE",
        protocol: str = "tcp",
        devices: str = "",
        segment_bytes: int = 0,
        replicas: int = 1,
        most_pinned_bytes: int = 0,
        prefix: str = "blockwright",
        lookup_timeout: float = 0.1,
        failures: int = 3,
        backoff: float = 0.5,
        longest_backoff: float = 30.0,
        batch_bytes: int = 32 << 20,
    ) -> None:
        """Load the library and join the store.

        Args:
            master: host and port of the master.
            identity: agreed on by the engines that share blocks; blocks of another identity are never found.
            hostname: of this machine, as the others reach it.
            metadata: server of the library's metadata; by default there is none.
            protocol: ``"tcp"`` or ``"rdma"``.
            devices: network devices for RDMA, separated by commas.
            segment_bytes: memory that this process lends to the store, and that is lost when it ends. Let other
                processes lend it.
            replicas: of each block, on different processes where the store has room for them.
            most_pinned_bytes: of blocks with hints without an end, which this store writes so that they are not
                evicted; 0 for none. Only `remove` or the end of the master frees them.
            prefix: starts every name.
            lookup_timeout: seconds that a lookup may take; it keeps the engine waiting.
            failures, backoff, longest_backoff, batch_bytes: as for `ValkeyStore`.

        Raises:
            InvalidArgumentError: a number is out of range.
            UnsupportedError: the library cannot be loaded, or was loaded before without bounds.
            StoreUnavailableError: the master does not answer.
        """
        integer("segment_bytes", segment_bytes, 0, MOST_BYTES)
        integer("replicas", replicas, 1)
        integer("most_pinned_bytes", most_pinned_bytes, 0, MOST_BYTES)
        if not isinstance(lookup_timeout, int | float) or not 1e-3 <= lookup_timeout < 1e9:
            raise InvalidArgumentError(f"lookup_timeout={lookup_timeout!r}: pass seconds, at least 0.001")
        super().__init__(master, identity, CircuitBreaker(failures, backoff, longest_backoff), batch_bytes)
        self._most_in_batch = MOST_AT_ONCE
        library = _library()
        self._start = f"{prefix}:{self._identity.hex()}:"
        self._lookup_timeout = lookup_timeout
        self._configs = {False: library.ReplicateConfig(), True: library.ReplicateConfig()}
        for pinned, config in self._configs.items():
            config.replica_num, config.with_hard_pin = replicas, pinned
        self._most_pinned = most_pinned_bytes
        self._hinted: dict[str, None] = {}  # oldest first
        self._pinned: dict[str, int] = {}
        self._memory: set[tuple[int, int]] = set()
        self._spare: list[bytearray] = []  # for headers and what is copied, one for each transfer at a time
        self._client: Any = library.MooncakeDistributedStore()
        code = self._client.setup(hostname, metadata, segment_bytes, 16 << 20, protocol, devices, master)
        if code != OK:
            raise StoreUnavailableError(f"the store at {master} cannot be used: code {code}")
        self._lookups = ThreadPoolExecutor(4, thread_name_prefix="blockwright-lookup")

    def register(self, memory: memoryview) -> None:
        """Let the network reach memory of blocks.

        Raises:
            StoreUnavailableError: the library refuses it.
        """
        place = _address(memory), memory.nbytes
        if memory.nbytes and place not in self._memory:
            if code := self._client.register_buffer(*place):
                raise StoreUnavailableError(f"the store at {self.address} cannot use the host's memory: code {code}")
            self._memory.add(place)

    def pin(self, keys: Sequence[bytes]) -> None:
        """Let the next write of these blocks keep them from eviction, as far as this is allowed."""
        if self._most_pinned:
            self._hinted.update(dict.fromkeys(self._name(key) for key in keys))
            while len(self._hinted) > _MOST_HINTED:
                with suppress(KeyError, StopIteration):  # another thread was faster
                    del self._hinted[next(iter(self._hinted))]

    def close(self) -> None:
        """Leave the store; memory that this process has lent is lost to it."""
        self._lookups.shutdown(cancel_futures=True)
        self._client.close()

    def _put_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        # A put under a name that there is would do nothing and report success, even if the object is damaged.
        free = [code in (OK, ABSENT) for code in self._removed(names)]
        pinned = self._to_pin(names, items)
        codes = [FULL] * len(names)
        with self._laid_out(items) as batch:
            for is_pinned, config in self._configs.items():
                chosen = [at for at, name in enumerate(names) if free[at] and (name in pinned) is is_pinned]
                if not chosen:
                    continue
                for at in reversed(chosen):  # the caches still have the first when they are sent
                    key, _, parts = items[at]
                    batch.write(at, self._envelope.head(key, parts))
                found = self._client.batch_put_from_multi_buffers(
                    [names[at] for at in chosen],
                    [batch.pointers[at] for at in chosen],
                    [batch.sizes[at] for at in chosen],
                    config,
                )
                for at, code in zip(chosen, found, strict=True):
                    codes[at] = code
        verdicts = ["written" if code == OK else "refused" if code in REFUSALS else "unavailable" for code in codes]
        for name, verdict in zip(names, verdicts, strict=True):
            if verdict != "written":
                self._pinned.pop(name, None)
            self._hinted.pop(name, None)
        return _some(verdicts, codes)

    def _get_batch(self, names: Sequence[str], items: Sequence[Item]) -> list[str]:
        with self._laid_out(items) as batch:
            codes = self._client.batch_get_into_multi_buffers(list(names), batch.pointers, batch.sizes)
            # A shorter object fails as one does whose bytes do not come; its description tells which of the two it is.
            unsure = [name for name, code in zip(names, codes, strict=True) if code == NO_TRANSFER]
            there = self._client.batch_get_replica_desc(unsure) if unsure else {}
            verdicts = [
                self._verdict(batch, at, code, _size(there.get(name, ())), item)
                for at, (name, code, item) in reversed([*enumerate(zip(names, codes, items, strict=True))])
            ][::-1]  # the last first, since the caches have it still
        for name, verdict in zip(names, verdicts, strict=True):
            if verdict == "absent":
                self._pinned.pop(name, None)
        return _some(verdicts, codes)

    def _verdict(self, batch: _Batch, at: int, code: int, size: int | None, item: Item) -> str:
        """Verify what was read, and copy it if it lies in a slot; `size` is the object's, if the read has failed."""
        key, _, parts = item
        if code == ABSENT:
            return "absent"
        if code == NOT_THAT_LONG or (size is not None and size != sum(batch.sizes[at])):
            return "foreign"
        if code < 0:
            return "unavailable"
        if batch.is_copied:
            return self._envelope.opened(key, batch.slot(at)[:code], parts) or "found"
        head, *rest = batch.sizes[at]
        return self._envelope.fault(key, batch.slot(at)[:head], parts, code, sum(rest)) or "found"

    @contextmanager
    def _laid_out(self, items: Sequence[Item]) -> Iterator[_Batch]:
        """Lend registered memory for the headers and copies of a batch; it is kept for the next batch."""
        batch = _Batch(items, [self._envelope.size(key, 0) for key, _, _ in items])
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = bytearray()
        if len(memory) < batch.needed:
            if memory:
                place = _address(memoryview(memory)), len(memory)
                self._client.unregister_buffer(place[0])
                self._memory.discard(place)
            memory = bytearray(batch.needed)
            self.register(memoryview(memory))
        batch.lay(memoryview(memory))
        try:
            yield batch
        finally:
            self._spare.append(memory)

    def _to_pin(self, names: Sequence[str], items: Sequence[Item]) -> set[str]:
        """Choose the blocks to pin, within the bytes allowed."""
        chosen: set[str] = set()
        if not self._most_pinned:
            return chosen
        with self._lock:
            for name in names:
                self._pinned.pop(name, None)
            room = self._most_pinned - sum(self._pinned.values())
            for name, (_, _, parts) in zip(names, items, strict=True):
                size = sum(part.nbytes for part in parts)
                if name in self._hinted and size <= room:
                    self._pinned[name], room = size, room - size
                    chosen.add(name)
        return chosen

    def _name(self, key: bytes) -> str:
        return self._start + key.hex()

    def _probe(self) -> None:
        self._present([self._start])  # `health_check` is content with a master that is dead

    def _present(self, names: Sequence[str]) -> list[bool]:
        # To give up a lookup is harmless: it writes to no memory of ours.
        future = self._lookups.submit(self._client.batch_is_exist, list(names))
        try:
            codes = future.result(self._lookup_timeout)
        finally:
            future.cancel()
        if any(code < 0 for code in codes):
            raise MooncakeError(min(codes))
        return [code == 1 for code in codes]

    def _delete(self, names: Sequence[str]) -> int:
        for name in names:
            self._pinned.pop(name, None)
        return list(self._removed(names)).count(OK)

    def _removed(self, names: Sequence[str]) -> list[int]:
        codes: list[int] = self._client.batch_remove(list(names), True)
        for code in codes:
            if code not in (OK, ABSENT) and code not in REFUSALS:
                raise MooncakeError(code)
        return codes


def _some(verdicts: list[str], codes: Sequence[int]) -> list[str]:
    """Return the verdicts; raise a `MooncakeError` if the store has moved, or answered, nothing at all."""
    if all(verdict == "unavailable" for verdict in verdicts):
        raise MooncakeError(codes[0])
    return verdicts


def _size(replicas: Iterable[Any]) -> int | None:
    """Return the bytes of an object that has these replicas."""
    for replica in replicas:
        if replica.is_memory_replica():
            return int(replica.get_memory_descriptor().buffer_descriptor.size)
    return None


def _library() -> Any:
    """Set the bounds and import the library; raise an `UnsupportedError` where either cannot be done."""
    late = [name for name in BOUNDS if name not in os.environ] if "mooncake.store" in sys.modules else []
    if late:
        raise UnsupportedError(
            f"mooncake was imported before its timeouts were set: set {', '.join(late)} in the environment, or make "
            "the MooncakeStore first"
        )
    for name, value in (BOUNDS | QUIET).items():
        os.environ.setdefault(name, value)
    try:
        from mooncake import store
    except ModuleNotFoundError:
        raise UnsupportedError("mooncake is not installed: pip install 'blockwright[mooncake]'") from None
    except ImportError as error:
        raise UnsupportedError(
            f"mooncake cannot be loaded: {error}; the system must have libibverbs, librdmacm, libnuma and liburing "
            "(on Debian libibverbs1, librdmacm1, libnuma1 and liburing2)"
        ) from None
    return store


class _Buffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("rest", ctypes.c_void_p * 5),
    )


def _address(view: memoryview) -> int:
    """Return where memory lies, writable or not; the caller keeps it alive."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return buffer.buf or 0

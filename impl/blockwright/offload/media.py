"""Media below the host: the places of blocks, the interface of a store, and the handlers that move blocks.

A `ByteStore` keeps whole blocks by their key: a directory on a disk, or a store that several engines share. It knows
nothing of tiers, readers or eviction, which are the managers' part.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from blockwright.arguments import integer
from blockwright.errors import BlockError, InvalidArgumentError, OffloadError
from blockwright.offload.failures import name_of
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.jobs import Batch, Part, ThreadedHandler
from blockwright.offload.tiers.interfaces import BlockIDsLoadStoreSpec, CPULoadStoreSpec
from blockwright.offload.worker import TransferSpec

_log = logging.getLogger(__name__)


class KeyedLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks that a medium keeps by their key, in numbered places or without.

    Attributes:
        block_ids: the places, in order of the blocks; empty if the medium has none.
        block_hashes: the keys.
    """

    def __init__(self, block_ids: list[int], block_hashes: list[bytes]) -> None:
        """Take the keys, and a place for each or none at all.

        Raises:
            InvalidArgumentError: there are places, but not one for each key.
        """
        if block_ids and len(block_ids) != len(block_hashes):
            raise InvalidArgumentError(
                f"{len(block_ids)} places for {len(block_hashes)} blocks; pass one for each, or none at all"
            )
        super().__init__(block_ids)
        self.block_hashes = block_hashes

    def items(self) -> list[tuple[bytes, int | None]]:
        """Return key and place of each block, in order; None as the place where the medium has none."""
        if not self.block_ids:
            return [(block_hash, None) for block_hash in self.block_hashes]
        return list(zip(self.block_hashes, self.block_ids, strict=True))


class DiskLoadStoreSpec(KeyedLoadStoreSpec):
    """Blocks in a directory on a disk."""

    @staticmethod
    def medium() -> str:
        return "DISK"


class SharedLoadStoreSpec(KeyedLoadStoreSpec):
    """Blocks in a store that engines share; it has no places, so `block_ids` is empty."""

    def __init__(self, block_hashes: list[bytes]) -> None:
        super().__init__([], block_hashes)

    @staticmethod
    def medium() -> str:
        return "STORE"


Item = tuple[bytes, int | None, Sequence[memoryview]]
"""Key and place of a block, and the pieces of memory that together hold its bytes, in order.

Each piece is contiguous, of format ``"B"`` and one dimension; those that a `get` fills are writable.
"""


class ByteStore(Protocol):
    """Keeps whole blocks of bytes by their key. Safe to call from several threads at once.

    Derive from it to have the defaults of `put_many`, `get_many`, `register` and `close`. A store that other processes
    read has an attribute `identity`, that of its blocks.
    """

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        """Write a block; when this returns, the medium has acknowledged all of it.

        Args:
            key: of the block; the previous content of the place is gone.
            place: where; None for a medium without places.
            parts: the block's bytes, one piece after the other; not read after the return.

        Raises:
            OffloadError: the block was not written. Afterwards a `get` of this key is a miss or finds the whole block.
            OSError: likewise.
        """
        ...

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        """Read a block; True if all its bytes are there and are those that were written under this key.

        False is a miss: absent, another engine's, of another size, or corrupt; what lies in `into` then is undefined.

        Args:
            key: of the block.
            place: where; None for a medium without places.
            into: memory to fill, one piece after the other; not written after the return.

        Raises:
            OffloadError: whether the block is there is not known, since the medium does not answer.
            OSError: likewise.
        """
        ...

    def put_many(self, items: Sequence[Item]) -> list[bool]:
        """Write blocks, as `put` does each; return which of them were written, in order.

        A medium that can acknowledge many at once does better than this loop.
        """
        return [_done(self.put, item) for item in items]

    def get_many(self, items: Sequence[Item]) -> list[bool]:
        """Read blocks, as `get` does each; return which of them were found, in order."""
        return [_done(self.get, item) for item in items]

    def register(self, memory: memoryview) -> None:
        """Note memory that blocks will be moved from and to, for media that reach it without the processor."""
        return

    def close(self) -> None:
        """Release the files and connections of the store; the last call."""
        return


def identities_of(*stores: ByteStore) -> tuple[CacheIdentity, ...]:
    """Return the identities of those stores that have one."""
    found = [getattr(store, "identity", None) for store in stores]
    return tuple([each for each in found if isinstance(each, CacheIdentity)])


def check_told(done: Sequence[bool], blocks: Sequence[object]) -> None:
    """Raise an `OffloadError` unless a store reported every block, and no more."""
    if len(done) != len(blocks):
        raise OffloadError(f"the store reported {len(done)} of {len(blocks)} blocks")


class _Call(Protocol):
    def __call__(self, key: bytes, place: int | None, parts: Sequence[memoryview], /) -> bool | None: ...


def _done(call: _Call, item: Item) -> bool:
    """Put or get one block; False for a miss and for an error of the medium, which is logged without its message."""
    try:
        return call(*item) is not False
    except (OffloadError, OSError) as error:
        _log.warning("a block could not be moved: %s", name_of(error))
        return False


# The key of a block, and its place in a store.
_Keyed = tuple[bytes, int | None]

# A block on the host, and in a store.
_Placed = tuple[int, _Keyed]


def _batches(
    move: Callable[[Sequence[Any]], Sequence[int | None]], items: list[Any], size: int, most: int
) -> list[Part]:
    return [Batch(move, items[at : at + size], most) for at in range(0, len(items), size)]


class HostBlocks(Protocol):
    """Blocks in the host's memory, such as a `HostPool`."""

    @property
    def num_blocks(self) -> int:
        """How many there are."""
        ...

    def block_view(self, block_id: int) -> memoryview:
        """Return the bytes of one block, writable, in one piece."""
        ...


class StoreHandler(ThreadedHandler):
    """Moves blocks between the host's memory and a medium of bytes, in both directions, a batch at a time.

    Register it for (`CPULoadStoreSpec`, the medium's spec) and the other way round. A transfer of which any block is
    not written, or not found, fails as a whole. Writes that wait, such as of blocks that come down one by one, are made
    together, up to a batch, and each fails for itself. Reads are not batched, since a request waits for each. The store
    stays open when the handler is closed.
    """

    def __init__(
        self,
        host: HostBlocks,
        store: ByteStore,
        *,
        batch: int = 16,
        threads: int = 1,
        max_queued: int = 64,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads.

        Args:
            host: where the blocks of a `CPULoadStoreSpec` lie.
            store: where those of a `KeyedLoadStoreSpec` lie.
            batch: most blocks per call of `put_many` or `get_many`; between calls a transfer can be cancelled.
            threads, max_queued, timeout, clock: as for `ThreadedHandler`.

        Raises:
            InvalidArgumentError: as `ThreadedHandler`, a batch below 1, or the store's identity names another element
                type than the host's tensors have (`HostPool.check_dtype`).
        """
        self._host = host
        self._store = store
        self._batch = integer("batch", batch, 1)
        self._identities = identities_of(store)
        check_dtype = getattr(host, "check_dtype", None)  # other hosts than a `HostPool` need not have it
        if check_dtype is not None:
            for identity in self._identities:
                check_dtype(identity.dtype)
        memory, register = getattr(host, "memory", None), getattr(store, "register", None)  # nor these
        if memory is not None and register is not None:
            register(memory)
        super().__init__(threads=threads, max_queued=max_queued, timeout=timeout, clock=clock)

    def places_of(self, medium: str) -> int | None:
        """Return the blocks on the host; of a store its slots, if it has any."""
        if medium == CPULoadStoreSpec.medium():
            return self._host.num_blocks
        found = getattr(self._store, "num_blocks", None)
        return found if isinstance(found, int) else None

    def identities(self) -> Collection[CacheIdentity]:
        return self._identities

    def parts(self, spec: TransferSpec) -> list[Part]:
        """Check a transfer and return its batches.

        Raises:
            InvalidArgumentError: not one side on the host and one in the store, or different numbers of blocks.
            BlockError: a block that the host does not have, or that is written twice.
        """
        source, destination = spec
        written: list[list[int] | list[bytes]]
        if isinstance(source, CPULoadStoreSpec) and isinstance(destination, KeyedLoadStoreSpec):
            written = [destination.block_ids, destination.block_hashes]
            host, keyed, move = source, destination, self._write
        elif isinstance(source, KeyedLoadStoreSpec) and isinstance(destination, CPULoadStoreSpec):
            host, keyed, move, written = destination, source, self._read, [destination.block_ids]
        else:
            raise InvalidArgumentError(f"{source!r} to {destination!r}: pass one on the host and one with keys")
        blocks = host.block_ids
        if len(blocks) != len(keyed.block_hashes):
            raise InvalidArgumentError(
                f"{len(blocks)} blocks on the host for {len(keyed.block_hashes)} keys; pass equal numbers"
            )
        if any(not 0 <= block < self._host.num_blocks for block in blocks):
            raise BlockError(
                f"host blocks {min(blocks)} to {max(blocks)}: ids count from 0 to {self._host.num_blocks - 1}"
            )
        if any(len(set(ids)) < len(ids) for ids in written):
            raise BlockError("a block is the destination twice; each is written once")
        items = list(zip(blocks, keyed.items(), strict=True))
        # Reads share no call with others: each has a request that waits for it.
        return _batches(move, items, self._batch, self._batch if keyed is destination else 0)

    def _write(self, blocks: Sequence[_Placed]) -> list[int | None]:
        return self._move(self._store.put_many, blocks)

    def _read(self, blocks: Sequence[_Placed]) -> list[int | None]:
        return self._move(self._store.get_many, blocks)

    def _move(self, call: Callable[[Sequence[Item]], list[bool]], blocks: Sequence[_Placed]) -> list[int | None]:
        views = [self._host.block_view(block) for block, _ in blocks]
        done = call([(*keyed, [view]) for view, (_, keyed) in zip(views, blocks, strict=True)])
        check_told(done, blocks)
        return [view.nbytes if is_done else None for view, is_done in zip(views, done, strict=True)]


class RelayHandler(ThreadedHandler):
    """Reads blocks from one medium of bytes and writes them to another, a batch at a time.

    A chain moves blocks down from tier to tier, and up from any tier to the nearest. So between tiers 1 and 2 there is
    one direction: register it for (the upper medium's spec, the lower one's). Each thread holds a batch while it moves
    it. Transfers that wait are moved together, up to a batch, and each fails for itself. The stores stay open when the
    handler is closed.

    >>> class Kept(ByteStore):
    ...     def __init__(self, **kept: bytes) -> None:
    ...         self.kept = {key.encode(): value for key, value in kept.items()}
    ...     def put(self, key, place, parts):
    ...         self.kept[key] = b"".join(parts)
    ...     def get(self, key, place, into):
    ...         into[0][:] = self.kept[key]
    ...         return True
    >>> upper, lower = Kept(key=b"kvkv"), Kept()
    >>> with RelayHandler(upper, lower, block_bytes=4) as relay:
    ...     relay.transfer_async(0, (DiskLoadStoreSpec([7], [b"key"]), SharedLoadStoreSpec([b"key"])))
    ...     relay.wait([0])
    ...     relay.get_finished(), lower.kept
    True
    ([(0, True)], {b'key': b'kvkv'})
    """

    def __init__(
        self,
        source: ByteStore,
        destination: ByteStore,
        block_bytes: int,
        *,
        batch: int = 16,
        threads: int = 1,
        max_queued: int = 64,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads.

        Args:
            source: where blocks are read.
            destination: where they are written.
            block_bytes: bytes of a block (`HostPool.bytes_per_block`).
            batch: most blocks per call of a store; between calls a transfer can be cancelled.
            threads, max_queued, timeout, clock: as for `ThreadedHandler`.

        Raises:
            InvalidArgumentError: as `ThreadedHandler`, a batch below 1, or blocks of less than a byte.
        """
        self._source = source
        self._destination = destination
        self._block_bytes = integer("block_bytes", block_bytes, 1, 1 << 62)
        self._batch = integer("batch", batch, 1)
        super().__init__(threads=threads, max_queued=max_queued, timeout=timeout, clock=clock)

    def identities(self) -> Collection[CacheIdentity]:
        return identities_of(self._source, self._destination)

    def parts(self, spec: TransferSpec) -> list[Part]:
        """Check a transfer and return its batches.

        Raises:
            InvalidArgumentError: a side has no keys, or the two name other blocks, or one of them twice.
        """
        source, destination = spec
        if not isinstance(source, KeyedLoadStoreSpec) or not isinstance(destination, KeyedLoadStoreSpec):
            raise InvalidArgumentError(f"{source!r} to {destination!r}: pass two sides with keys")
        keys = source.block_hashes
        if keys != destination.block_hashes or len(set(keys)) < len(keys):
            raise InvalidArgumentError(f"{len(keys)} keys: name the same blocks on both sides, each once")
        moves = list(zip(source.items(), destination.items(), strict=True))
        return _batches(self._move, moves, self._batch, self._batch)

    def _move(self, moves: Sequence[tuple[_Keyed, _Keyed]]) -> list[int | None]:
        """Read blocks by one call and write those that were found by another; return the bytes of each."""
        # New memory for each batch: threads that relay at once must not share it.
        held = [memoryview(bytearray(self._block_bytes)) for _ in moves]
        found = self._source.get_many([(*read, [block]) for (read, _), block in zip(moves, held, strict=True)])
        check_told(found, moves)
        there = [at for at, is_found in enumerate(found) if is_found]
        # Only what was found: a miss of the source is no content of the destination.
        written = self._destination.put_many([(*moves[at][1], [held[at].toreadonly()]) for at in there])
        check_told(written, there)
        arrived = {at for at, is_written in zip(there, written, strict=True) if is_written}
        return [self._block_bytes if at in arrived else None for at in range(len(moves))]

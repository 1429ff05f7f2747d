"""Transfers between two media below the host, such as a disk and a shared store, through buffers in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.jobs import Batch
from blockwright.offload.media import ByteStore, KeyedLoadStoreSpec, check_told, identities_of
from blockwright.offload.queue import Part, ThreadedHandler
from blockwright.offload.worker import TransferSpec

_Placed = tuple[bytes, int | None]
"""The key of a block, and its place in a store."""


class RelayHandler(ThreadedHandler):
    """Reads blocks from one medium of bytes and writes them to another, a batch at a time.

    A chain moves blocks down from tier to tier, and up from any tier to the nearest. So between tiers 1 and 2 there is
    one direction: register it for (the upper medium's spec, the lower one's). Each thread holds a batch while it moves
    it. Transfers that wait are moved together, up to a batch, and each fails for itself. The stores stay open when the
    handler is closed.

    >>> from blockwright.offload.media import DiskLoadStoreSpec, SharedLoadStoreSpec
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
        return [
            Batch(self._move, moves[at : at + self._batch], self._batch) for at in range(0, len(moves), self._batch)
        ]

    def _move(self, moves: Sequence[tuple[_Placed, _Placed]]) -> list[int | None]:
        """Read blocks by one call and write those that were found by another; return the bytes of each."""
        held = [memoryview(bytearray(self._block_bytes)) for _ in moves]
        found = self._source.get_many([(*read, [block]) for (read, _), block in zip(moves, held, strict=True)])
        check_told(found, moves)
        there = [at for at, is_found in enumerate(found) if is_found]
        written = self._destination.put_many([(*moves[at][1], [held[at].toreadonly()]) for at in there])
        check_told(written, there)
        arrived = {at for at, is_written in zip(there, written, strict=True) if is_written}
        return [self._block_bytes if at in arrived else None for at in range(len(moves))]

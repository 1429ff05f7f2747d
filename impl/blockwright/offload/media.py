"""Where blocks lie below the host, and what a medium of bytes has to do.

A `ByteStore` keeps whole blocks by their key: a directory on a disk, or a store that several engines share. It knows
nothing of tiers, readers or eviction, which are the managers' part.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from blockwright.errors import InvalidArgumentError, OffloadError
from blockwright.offload.tiers.interfaces import BlockIDsLoadStoreSpec

_log = logging.getLogger(__name__)


class KeyedLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks that a medium keeps by their key, in numbered places or without.

    Attributes:
        block_ids: the places, in order of the blocks; empty if the medium has none.
        block_hashes: the keys.
    """

    def __init__(self, block_ids: list[int], block_hashes: list[bytes]) -> None:
        """Name places and keys.

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
        """Return ``"DISK"``."""
        return "DISK"


class SharedLoadStoreSpec(KeyedLoadStoreSpec):
    """Blocks in a store that engines share; it has no places, so `block_ids` is empty."""

    def __init__(self, block_hashes: list[bytes]) -> None:
        """Name the keys."""
        super().__init__([], block_hashes)

    @staticmethod
    def medium() -> str:
        """Return ``"STORE"``."""
        return "STORE"


Item = tuple[bytes, int | None, Sequence[memoryview]]
"""Key and place of a block, and the pieces of memory that together hold its bytes, in order.

Each piece is contiguous, of format ``"B"`` and one dimension; those that a `get` fills are writable.
"""


class ByteStore(Protocol):
    """Keeps whole blocks of bytes by their key. Safe to call from several threads at once.

    Derive from it to have the defaults of `put_many`, `get_many` and `close`.
    """

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        """Write a block; when this returns, the medium has acknowledged all of it.

        Args:
            key: of the block; what the place held before is gone.
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

    def close(self) -> None:
        """Give back what the medium holds open; no call comes after this one."""
        return


class _Call(Protocol):
    def __call__(self, key: bytes, place: int | None, parts: Sequence[memoryview], /) -> bool | None: ...


def _done(call: _Call, item: Item) -> bool:
    """Put or get one block; False for a miss and for an error of the medium, which is logged by its kind alone."""
    try:
        return call(*item) is not False
    except (OffloadError, OSError) as error:
        _log.warning("a block could not be moved: %s", type(error).__name__)
        return False

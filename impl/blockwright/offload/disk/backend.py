"""The disk tier: a store that keeps blocks in a directory, and the backend that hands out its places.

>>> import tempfile
>>> from blockwright.offload.identity import CacheIdentity
>>> from blockwright.offload.tiers.lru import LRUOffloadingManager
>>> identity = CacheIdentity("llama", "layers, heads, tokens", "bfloat16", 16, b"seed")
>>> with tempfile.TemporaryDirectory() as folder:
...     with DiskStore(folder, identity, block_bytes=4, num_blocks=2) as store:
...         store.put(b"key", 1, [memoryview(b"kvkv")])
...     with DiskStore(folder, identity, block_bytes=4, num_blocks=2) as store:
...         manager = LRUOffloadingManager(DiskBackend(16, store))
>>> manager.lookup([b"key"]), manager.prepare_load([b"key"])
(1, DiskLoadStoreSpec([1]))
"""

from __future__ import annotations

import logging

from blockwright.errors import BlockNotReadyError
from blockwright.offload.disk.slots import DiskCounts
from blockwright.offload.disk.store import DiskStore
from blockwright.offload.media import DiskLoadStoreSpec
from blockwright.offload.status import BlockStatus, PlacedBlockStatus
from blockwright.offload.tiers.backend import SlotBackend
from blockwright.offload.tiers.interfaces import LoadStoreSpec

_log = logging.getLogger(__name__)

__all__ = ["DiskBackend", "DiskCounts", "DiskStore"]


class DiskBackend(SlotBackend):
    """The slots of a `DiskStore` as places; slots with blocks from before it was opened are taken."""

    def __init__(self, block_size: int, store: DiskStore) -> None:
        """Take the places of a store that has just been opened; no other backend may give them out.

        Args:
            block_size: tokens in an offloaded block.
            store: the store with these slots.

        Raises:
            InvalidArgumentError: the block size is not positive.
        """
        super().__init__(block_size, DiskLoadStoreSpec.medium(), store.num_blocks)
        self._store = store
        self._recovered = store.blocks()
        for place in sorted(place for _, place in self._recovered):  # in this order each claim takes constant time
            self.claim_place(place)

    def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> LoadStoreSpec:
        return DiskLoadStoreSpec(block_ids, block_hashes)

    def erase(self, places: LoadStoreSpec) -> int:
        """Delete the blocks in these places, so that no restart finds them; return how many the disk did not delete.

        A transfer that reads one of them fails.
        """
        count = 0
        for place in places.block_ids if isinstance(places, DiskLoadStoreSpec) else ():
            try:
                self._store.discard(place)
            # One that is being written goes when that has ended: the chain asks again then.
            except (OSError, BlockNotReadyError) as error:
                _log.warning("the block in place %d could not be deleted: %s", place, error)
                count += 1
        return count

    def recovered_blocks(self) -> list[tuple[bytes, BlockStatus]]:
        """Return the blocks that the directory held when it was opened, least recently used first, ready."""
        return [(key, _ready(place)) for key, place in self._recovered]


def _ready(place: int) -> PlacedBlockStatus:
    """Return the status of a ready block without readers."""
    status = PlacedBlockStatus(place)
    status.ref_cnt = 0
    return status

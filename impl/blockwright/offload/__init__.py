"""Cached blocks that leave the device: kept on the host, on disk and in a shared store, and brought back.

The bookkeeping (`tiers`) is compiled and moves no byte. The handlers move bytes between the media; those that need
torch or another library import it themselves, so that this package imports none of them.
"""

from blockwright.offload.status import BlockStatus
from blockwright.offload.tiers.arc import ARCOffloadingManager
from blockwright.offload.tiers.backend import CPUBackend, SlotBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import (
    Backend,
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
    PrepareStoreOutput,
)
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.tiers.transfers import Finished, StoreStart, Transfer
from blockwright.offload.worker import OffloadingHandler

__all__ = [
    "ARCOffloadingManager",
    "Backend",
    "BlockIDsLoadStoreSpec",
    "BlockStatus",
    "CPUBackend",
    "CPULoadStoreSpec",
    "Finished",
    "GPULoadStoreSpec",
    "LRUOffloadingManager",
    "LoadStoreSpec",
    "OffloadChain",
    "OffloadingEvent",
    "OffloadingHandler",
    "OffloadingManager",
    "PrepareStoreOutput",
    "SlotBackend",
    "StoreStart",
    "Transfer",
]

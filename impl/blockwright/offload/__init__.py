"""Cached blocks that leave the device: kept on the host, on disk and in a shared store, and brought back.

The bookkeeping (`tiers`) is compiled and moves no byte. The handlers move bytes between the media; the names in
`ON_DEMAND` are imported when they are first used, so that this package imports neither torch nor the clients of stores.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from blockwright.arguments import guard
from blockwright.core.pool.order import BlockHint
from blockwright.offload.connector import OffloadingConnector
from blockwright.offload.results import ConnectorStats, Forgotten, HostResizing, LoadResult
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
    TierResizing,
)
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.tiers.transfers import Finished, StoreStart, Transfer
from blockwright.offload.worker import OffloadingHandler, OffloadingWorker, TransferResult, TransferSpec

if TYPE_CHECKING:
    from blockwright.offload.disk import DiskBackend, DiskStore, StoreCheck, check_store
    from blockwright.offload.host import HostHandler, HostPool
    from blockwright.offload.identity import CacheIdentity
    from blockwright.offload.media import ByteStore, DiskLoadStoreSpec, RelayHandler, SharedLoadStoreSpec, StoreHandler
    from blockwright.offload.shared.file_system import FileSystemStore
    from blockwright.offload.shared.manager import SharedStoreManager
    from blockwright.offload.shared.mooncake import MooncakeStore
    from blockwright.offload.shared.valkey import ValkeyStore

_LATER: Final = {
    "disk": ("DiskBackend", "DiskStore", "StoreCheck", "check_store"),
    "host": ("HostHandler", "HostPool"),
    "identity": ("CacheIdentity",),
    "media": ("ByteStore", "DiskLoadStoreSpec", "RelayHandler", "SharedLoadStoreSpec", "StoreHandler"),
    "shared.file_system": ("FileSystemStore",),
    "shared.manager": ("SharedStoreManager",),
    "shared.mooncake": ("MooncakeStore",),
    "shared.valkey": ("ValkeyStore",),
}
ON_DEMAND: Final = {name: module for module, names in _LATER.items() for name in names}
"""Public names, and the module of each."""

__all__ = [
    "ARCOffloadingManager", "Backend", "BlockHint", "BlockIDsLoadStoreSpec", "BlockStatus", "ByteStore", "CPUBackend",
    "CPULoadStoreSpec", "CacheIdentity", "ConnectorStats", "DiskBackend", "DiskLoadStoreSpec", "DiskStore",
    "FileSystemStore", "Finished", "Forgotten", "GPULoadStoreSpec", "HostHandler", "HostPool", "HostResizing",
    "LRUOffloadingManager", "LoadResult", "LoadStoreSpec", "MooncakeStore", "OffloadChain", "OffloadingConnector",
    "OffloadingEvent", "OffloadingHandler", "OffloadingManager", "OffloadingWorker", "PrepareStoreOutput",
    "RelayHandler", "SharedLoadStoreSpec", "SharedStoreManager", "SlotBackend", "StoreCheck", "StoreHandler",
    "StoreStart", "TierResizing", "Transfer", "TransferResult", "TransferSpec", "ValkeyStore", "check_store",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name of `ON_DEMAND`."""
    if name not in ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(f"{__name__}.{ON_DEMAND[name]}"), name)
    guard(globals(), [name])
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *ON_DEMAND})


guard(globals(), [name for name in __all__ if name not in ON_DEMAND])

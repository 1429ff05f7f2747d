"""A connector from its parts' sizes: the host's memory and, below it, a directory on a disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from blockwright.arguments import integer
from blockwright.core.manager import KVCacheManager
from blockwright.device.layout import Caches
from blockwright.errors import InvalidArgumentError
from blockwright.offload.connector import OffloadingConnector
from blockwright.offload.disk import DiskBackend, DiskStore
from blockwright.offload.host import HostHandler, HostPool
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import DiskLoadStoreSpec, StoreHandler
from blockwright.offload.tiers.backend import CPUBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import Backend, CPULoadStoreSpec, GPULoadStoreSpec, OffloadingManager
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.worker import OffloadingWorker

Tensors: TypeAlias = Caches
HostMemory: TypeAlias = HostPool


def build_connector(
    manager: KVCacheManager,
    tensors: Tensors,
    host_blocks: int,
    disk: str | os.PathLike[str] | None,
    disk_blocks: int | None,
    identity: CacheIdentity | None,
    store_on: str,
    write: str,
    block_dim: int | Sequence[int],
    events: bool,
    shares: Mapping[str, int],
    hint_guard: float,
    waiting_bytes: int | None,
    max_host_blocks: int | None,
) -> OffloadingConnector:
    """Build the connector that `OffloadingConnector.build` describes."""
    if (disk is None) != (disk_blocks is None) or (disk is None) != (identity is None):
        raise InvalidArgumentError(
            "disk: give it together with disk_blocks (its size) and identity (that of its blocks), or leave out all"
        )
    if events and store_on == "evict" and not manager.block_pool.records_events:
        raise InvalidArgumentError(
            "events: with store_on='evict' the manager must be made with enable_kv_cache_events=True, since it alone "
            "knows the tokens of an evicted block"
        )
    size = max([group.block_size for group in manager.managers], default=1)
    if identity is not None and identity.block_size != size:
        raise InvalidArgumentError(f"identity: its blocks hold {identity.block_size} tokens, the manager's {size}")
    pool = HostPool(tensors, host_blocks, block_dim=block_dim, max_blocks=max_host_blocks)
    if identity is not None:
        pool.check_dtype(identity.dtype)  # before a directory is made
    worker = OffloadingWorker()
    opened: list[DiskStore] = []

    def tier(backend: Backend, num_blocks: int) -> OffloadingManager:
        # Shares are of the host's blocks; a larger disk keeps the same part for each tenant.
        own = {salt: share * num_blocks // max(1, host_blocks) for salt, share in shares.items()}
        return LRUOffloadingManager(backend, events, shares=own or None, hint_guard=hint_guard)

    try:
        tiers = [tier(CPUBackend(size, host_blocks), host_blocks)]
        near = HostHandler(tensors, pool, block_dim=block_dim)
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, near)
        worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, near)
        if disk is not None and disk_blocks is not None and identity is not None:
            store = DiskStore(disk, identity, pool.bytes_per_block, disk_blocks)
            opened.append(store)
            below = StoreHandler(pool, store)
            worker.register_handler(CPULoadStoreSpec, DiskLoadStoreSpec, below)
            worker.register_handler(DiskLoadStoreSpec, CPULoadStoreSpec, below)
            tiers.append(tier(DiskBackend(size, store), disk_blocks))
        chain = OffloadChain(
            tiers,
            write=write,
            # Written back, an eighth of the host is kept free, so that a store need not wait for the disk.
            reserve=(host_blocks + 7) // 8 if write == "back" and len(tiers) > 1 else 0,
            on_load="free" if store_on == "evict" else "keep",
        )
        most = None if waiting_bytes is None else integer("waiting_bytes", waiting_bytes) // pool.bytes_per_block
        return OffloadingConnector(
            manager, chain, worker, store_on=store_on, most_waiting=most, media=opened, host=pool
        )
    except BaseException:
        worker.close()
        for each in opened:
            each.close()
        raise

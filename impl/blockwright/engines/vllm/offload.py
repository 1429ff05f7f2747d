"""Blockwright's host and disk tiers as an `OffloadingSpec` of vLLM, for its `OffloadingConnector`.

The scheduler's side keeps the books with the tiers' own managers; the worker's side moves bytes, at once and in the
caller's thread. With a disk every block that is stored on the host is written to the directory too, and what the
directory holds is found again after a restart. With a Mooncake store they are written there as well, and those of other
engines are brought to the host (`shared`). It needs vLLM's own names and nothing of Blockwright's manager, so that
it serves under either.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload import base

from blockwright.engines.vllm.shared import SharedTier
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.offload import CacheIdentity, CPUBackend, DiskBackend, DiskStore, LRUOffloadingManager, MooncakeStore

_stores: dict[Path, DiskStore] = {}
"""Directories that this process has open: a store's places are given by the scheduler and written by the worker."""
_shared: dict[tuple[str, bytes], SharedTier] = {}
"""Shared stores that this process has open, by master and identity: both sides use the host's memory."""


class OffloadingSpec(base.OffloadingSpec):
    """Blocks on the host; on a disk, if ``disk_path`` is given; and in a Mooncake store, if ``mooncake_master`` is.

    Of ``kv_connector_extra_config``: ``cpu_bytes_to_use``; ``disk_path`` with ``disk_bytes_to_use``; and
    ``mooncake_master``, host and port, with further arguments of `MooncakeStore` in ``mooncake_options``. Engines that
    share a store must be started with one ``PYTHONHASHSEED``.
    """

    def __init__(self, config: Any) -> None:
        """Take vLLM's configuration.

        Raises:
            InvalidArgumentError: an option is missing.
            UnsupportedError: several blocks in one, or a disk or a store with several workers; or the store's library
                cannot be loaded.
            StoreUnavailableError: the store's master does not answer.
        """
        super().__init__(config)
        self._block_bytes = config.worker_kv_bytes_per_block
        # Its managers here are asked block by block, each with a key of its own.
        if self.blocks_per_chunk != 1:
            raise UnsupportedError(
                "offloading several blocks as one is not supported: leave block_size out of the config"
            )
        self.num_host_blocks = self._num_blocks("cpu_bytes_to_use")
        self._folder = Path(self.extra_config["disk_path"]).absolute() if "disk_path" in self.extra_config else None
        self._master = self.extra_config.get("mooncake_master")
        if (self._folder is not None or self._master) and config.parallel.world_size > 1:
            raise UnsupportedError(
                "disk_path, mooncake_master: each serves one worker; leave them out, or start vLLM with one"
            )
        self.store = None if self._folder is None else self._opened(self._folder)
        self.shared = self._joined(self._master) if self._master else None

    def _num_blocks(self, option: str) -> int:
        if not self.extra_config.get(option):
            raise InvalidArgumentError(f"{option}: must be given in kv_connector_extra_config")
        count: int = int(self.extra_config[option]) // max(1, self._block_bytes)
        return count

    def _opened(self, folder: Path) -> DiskStore:
        """Return the store of a directory, which the scheduler's side and the worker's share."""
        # vLLM makes the spec twice in a process, and a directory has one store at a time.
        if folder not in _stores:
            size = self._num_blocks("disk_bytes_to_use")
            _stores[folder] = DiskStore(folder, self._identity(), self._block_bytes, size)
        return _stores[folder]

    def _joined(self, master: str) -> SharedTier:
        """Return the tier of a shared store, which the scheduler's side and the worker's share."""
        identity = self._identity()
        name = master, identity.digest()
        if name not in _shared:
            store = MooncakeStore(master, identity, **self.extra_config.get("mooncake_options", {}))
            _shared[name] = SharedTier(store, self.num_host_blocks, self._block_bytes)
        return _shared[name]

    def _identity(self) -> CacheIdentity:
        config = self.config
        return CacheIdentity(
            config.model.name,
            f"{config.kv_cache_layout}: {[sorted(group.layer_names) for group in config.groups]}",
            config.model.dtype,
            min(self.tokens_per_block),
            kv_cache_utils.get_none_hash_seed().encode(),
            {"dtype": str(config.model.dtype), "tokens_per_hash": self.tokens_per_hash},
        )

    def get_manager(self) -> Manager:
        """Return the scheduler's side."""
        return Manager(self, self._folder)

    def get_worker(self, kv_caches: Any) -> Worker:
        """Return the worker's side."""
        memory = None if self.shared is None else self.shared.memory
        return Worker(kv_caches, self._block_bytes, self.num_host_blocks, self.store, memory)


class Places(base.LoadStoreSpec):
    """Where blocks lie, in order: a place on the host, or None; and key and place on the disk, or None."""

    def __init__(self, host: list[int | None], disk: list[tuple[bytes, int] | None]) -> None:
        """Name the places."""
        self.host, self.disk = host, disk


class Manager(base.OffloadingManager):
    """Which blocks are where."""

    def __init__(self, spec: OffloadingSpec, folder: Path | None) -> None:
        """Take over the tiers, and what the disk holds already."""
        size, self._folder, self._shared = min(spec.tokens_per_block), folder, spec.shared
        self._host = LRUOffloadingManager(
            CPUBackend(size, spec.num_host_blocks), spec.kv_events_config.enable_kv_cache_events
        )
        self._disk = None if spec.store is None else LRUOffloadingManager(DiskBackend(size, spec.store))
        self._tiers = [self._host] if self._disk is None else [self._host, self._disk]
        self._reads: dict[bytes, list[LRUOffloadingManager]] = {}
        self._writes: dict[bytes, list[LRUOffloadingManager]] = {}

    def lookup(self, key: Any, req_context: Any) -> Any:
        """Return whether a block can be read, or will be."""
        if any(tier.lookup([key]) for tier in self._tiers):
            return base.LookupResult.HIT
        if any(tier.status_of(key) is not None for tier in self._tiers):
            # Its bytes are on their way from other engines, and have been for too long: the request computes them.
            is_late = self._shared is not None and self._shared.is_late(key)
            return base.LookupResult.MISS if is_late else base.LookupResult.HIT_PENDING
        if self._shared is not None and self._shared.ask(key, req_context.req_id):
            return base.LookupResult.RETRY
        return base.LookupResult.MISS

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Places:
        """Begin to read blocks."""
        places = Places([], [])
        for key in keys:
            tier = next(tier for tier in self._tiers if tier.lookup([key]))
            place: int = tier.prepare_load([key]).block_ids[0]  # type: ignore[attr-defined]
            # The tier may change until the read ends: the reader ends where it began.
            self._reads.setdefault(key, []).append(tier)
            places.host.append(place if tier is self._host else None)
            places.disk.append(None if tier is self._host else (key, place))
        return places

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        """End the reading of blocks."""
        for key in keys:
            tiers = self._reads[key]
            tiers.pop().complete_load([key])
            if not tiers:
                del self._reads[key]

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        """Count blocks as just used."""
        for tier in self._tiers:
            tier.touch(keys)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        """Begin to write those blocks that the host lacks, to the disk too if it lacks them; None without room."""
        started = self._host.prepare_store(keys)
        if started is None:
            return None
        new = list(started.block_hashes_to_store)
        # A disk without room keeps nobody from the host.
        below = self._disk.prepare_store(new) if self._disk is not None and new else None
        on_disk: dict[bytes, int] = {}
        if below is not None:
            on_disk = dict(zip(below.block_hashes_to_store, below.store_spec.block_ids, strict=True))  # type: ignore[attr-defined]
        for key in new:
            self._writes[key] = [self._host, self._disk] if key in on_disk and self._disk else [self._host]
        places = Places(
            list(started.store_spec.block_ids),  # type: ignore[attr-defined]
            [(key, on_disk[key]) if key in on_disk else None for key in new],
        )
        return base.PrepareStoreOutput(new, places, list(started.block_hashes_evicted))

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        """End the writing of blocks."""
        for key in keys:
            for tier in self._writes.pop(key, ()):
                tier.complete_store([key], success)
        if self._shared is not None and success:
            self._shared.write(self._host, list(keys))

    def on_request_finished(self, req_context: Any) -> None:
        """Forget what a request has asked the shared store for."""
        if self._shared is not None:
            self._shared.forget(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Bring blocks of the shared store that were asked for to the host."""
        if self._shared is not None:
            self._shared.fetch(self._host)

    def has_pending_work(self) -> bool:
        """Return whether blocks are on their way to the shared store, or from it."""
        return self._shared is not None and self._shared.is_busy

    def on_new_request(self, req_context: Any) -> Any:
        """Return how a request's blocks are offloaded: as they come."""
        return base.RequestOffloadingContext()

    def take_events(self) -> Iterable[Any]:
        """Return what has come to the host and left it since the last call."""
        for event in self._host.take_events():
            yield base.OffloadingEvent(list(event.block_hashes), base.Medium.CPU, event.removed)

    def reset_cache(self) -> None:
        """Forget all blocks, on the disk too, but not in the shared store; what was under way has ended."""
        if self._shared is not None:
            self._shared.collect(self._host, wait=True)
        # vLLM has waited for its transfers, and will not report them any more.
        self.complete_store(list(self._writes), None, success=False)
        for key, tiers in list(self._reads.items()):
            self.complete_load([key] * len(tiers), None)
        for tier in self._tiers:
            keys = tier.idle_blocks(1 << 30)
            if tier is self._disk and self._folder is not None:
                for place in tier.places_of(keys).block_ids:  # type: ignore[attr-defined]
                    _stores[self._folder].discard(place)
            tier.remove(keys)

    def shutdown(self) -> None:
        """Close the directory, and leave the shared store; what they hold is found when they are opened again."""
        for name, shared in list(_shared.items()):
            if shared is self._shared:
                del _shared[name]
                shared.collect(self._host, wait=True)
                shared.close()
        store = None if self._folder is None else _stores.pop(self._folder, None)
        if store is not None:
            store.close()


class Worker(base.OffloadingWorker):
    """Moves blocks between vLLM's tensors, the host's memory and the disk."""

    def __init__(
        self, kv_caches: Any, block_bytes: int, num_host_blocks: int, store: DiskStore | None, memory: Any = None
    ) -> None:
        """Take the host's memory: the given one, or new.

        Raises:
            UnsupportedError: vLLM's tensors hold another number of bytes for a block than it said.
        """
        self._rows = [each.tensor.view(torch.uint8) for each in kv_caches.tensors]
        self._widths = [rows.shape[1] for rows in self._rows]
        if sum(self._widths) != block_bytes:
            raise UnsupportedError(f"a block has {sum(self._widths)} bytes in vLLM's tensors, not {block_bytes}")
        self._memory = torch.zeros((num_host_blocks, block_bytes), dtype=torch.uint8) if memory is None else memory
        self._spare = torch.zeros(block_bytes, dtype=torch.uint8)
        self._store = store
        self._ended: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks from the device."""
        start, count = time.perf_counter(), len(src_spec.block_ids)
        items = []
        for block, place, kept in zip(src_spec.block_ids.tolist(), dst_spec.host, dst_spec.disk, strict=True):
            memory = self._memory[place]
            for rows, part in zip(self._rows, memory.split(self._widths), strict=True):
                part.copy_(rows[block])
            if kept is not None:
                items.append((kept[0], kept[1], [memory.numpy().data]))
        is_written = self._store is None or not items or all(self._store.put_many(items))
        return self._end(job_id, is_written, count, start)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks to the device; of one that cannot be read, nothing is said to have come."""
        start, count = time.perf_counter(), len(dst_spec.block_ids)
        for block, place, kept in zip(dst_spec.block_ids.tolist(), src_spec.host, src_spec.disk, strict=True):
            memory = self._spare if place is None else self._memory[place]
            if kept is not None and (
                self._store is None or not self._store.get(kept[0], kept[1], [memory.numpy().data])
            ):
                return self._end(job_id, False, count, start)
            for rows, part in zip(self._rows, memory.split(self._widths), strict=True):
                rows[block].copy_(part)
        return self._end(job_id, True, count, start)

    def _end(self, job_id: int, success: bool, count: int, start: float) -> bool:
        size = count * sum(self._widths)
        self._ended.append(base.TransferResult(job_id, success, size, time.perf_counter() - start))
        return True

    def get_finished(self) -> list[Any]:
        """Return the transfers that have ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: a transfer has ended when it was submitted."""

"""Tiers below a replayed pool: the engine's own connector, with transfers that end at once and move nothing.

A disk and a store have a speed all the same: what a load reads from them is due later, and its request waits for that.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from blockwright import KVCacheManager, Request
from blockwright.errors import InvalidArgumentError
from blockwright.offload.connector import OffloadingConnector
from blockwright.offload.media import DiskLoadStoreSpec, SharedLoadStoreSpec
from blockwright.offload.results import ConnectorStats
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.tiers.backend import CPUBackend, SlotBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingManager,
)
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.worker import OffloadingHandler, OffloadingWorker, TransferResult, TransferSpec


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """Describe the tiers behind the device: a host of `host_blocks`, and below it a disk and a store, if they have any.

    Each engine has a host and a disk of its own, all have one store. What lands on the host is written through to them.

    `store_on`: ``"publish"`` or ``"evict"``. `on_load`: whether the host ``"keep"``s loaded blocks, or ``"free"``s
        them; None for the choice that keeps more different blocks: free with evict (the device has it, and will give it
        back), else keep.

    `disk_seconds`, `store_seconds`: that reading a block from there takes, one after another: from a disk those of its
        engine, from the store those of all. Writing takes none of that time.

    Raises:
        InvalidArgumentError: an option is none of these, or a tier has no host above it.
    """

    host_blocks: int
    store_on: Literal["publish", "evict"] = "publish"
    on_load: Literal["keep", "free"] | None = None
    disk_blocks: int = 0
    store_blocks: int = 0
    disk_seconds: float = 0.0
    store_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("host_blocks", "disk_blocks", "store_blocks", "disk_seconds", "store_seconds"):
            if not 0 <= (count := getattr(self, name)) < inf:
                raise InvalidArgumentError(f"{name}: must be finite and not negative, {count} is not")
        if not self.host_blocks and (self.disk_blocks or self.store_blocks):
            raise InvalidArgumentError("host_blocks: blocks of a disk or a store pass through the host; give it some")
        if self.store_on not in ("publish", "evict") or self.on_load not in ("keep", "free", None):
            raise InvalidArgumentError(f"store_on, on_load: there is no {self.store_on!r} with {self.on_load!r}")

    @property
    def num_blocks(self) -> int:
        return self.host_blocks + self.disk_blocks + self.store_blocks

    @property
    def frees(self) -> bool:
        return self.on_load == "free" or (self.on_load is None and self.store_on == "evict")


@dataclass(frozen=True, slots=True)
class TierResult:
    """The result of a trace on the tiers below the device.

    Attributes:
        host_blocks, store_on, on_load, disk_blocks, store_blocks: the options.
        device_hit_blocks, host_hit_blocks: hits on the device, and beyond them on the host or below; together all hits.
        device_hit_rate, host_hit_rate: the same as shares of the trace's block references.
        stored_blocks, loaded_blocks: blocks that were transferred from the device, and to it.
        refused_blocks: blocks that the host had no room for.
        from_disk, from_store: blocks that were brought up to the host to be loaded.
        to_disk, to_store: blocks that were written through to them.
    """

    host_blocks: int
    store_on: str
    on_load: str
    device_hit_blocks: int
    device_hit_rate: float
    host_hit_blocks: int
    host_hit_rate: float
    stored_blocks: int
    loaded_blocks: int
    refused_blocks: int
    disk_blocks: int = 0
    store_blocks: int = 0
    from_disk: int = 0
    from_store: int = 0
    to_disk: int = 0
    to_store: int = 0

    @property
    def num_blocks(self) -> int:
        return self.host_blocks + self.disk_blocks + self.store_blocks


class Link:
    """Moves blocks one after the other, in either direction."""

    def __init__(self, seconds: float) -> None:
        """Take the seconds of a block."""
        self._seconds, self._free_at = seconds, 0.0

    def move(self, num_blocks: int, now: float) -> float:
        """Return when blocks have come that are asked for now, or are written from now on."""
        if num_blocks == 0:
            return now
        self._free_at = max(self._free_at, now) + num_blocks * self._seconds
        return self._free_at


class SharedBlocks:
    """What a store has that all engines share: the blocks that were used last."""

    def __init__(self, num_blocks: int, link: Link) -> None:
        self._most, self._blocks, self.link = num_blocks, OrderedDict[bytes, None](), link

    def leading(self, keys: Sequence[bytes]) -> int:
        return next((at for at, key in enumerate(keys) if key not in self._blocks), len(keys))

    def contains(self, keys: Sequence[bytes]) -> list[bool] | None:
        return [key in self._blocks for key in keys]

    def remove(self, keys: Sequence[bytes]) -> bool:
        for key in keys:
            self._blocks.pop(key, None)
        return True

    def pin(self, keys: Sequence[bytes]) -> None:
        """Keep nothing longer than others."""

    def use(self, keys: Sequence[bytes], is_written: bool) -> bool:
        """Write blocks, or read them: False if one is gone."""
        if not is_written and self.leading(keys) < len(keys):
            return False
        for key in keys:
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return True


class _Disk(SlotBackend):
    def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> LoadStoreSpec:
        return DiskLoadStoreSpec(block_ids, block_hashes)


class InstantHandler(OffloadingHandler):
    """Ends every transfer when it begins: as a success, but for reading what a store has no more."""

    def __init__(self, shared: SharedBlocks | None = None) -> None:
        self._finished: list[TransferResult] = []
        self._shared = shared
        self.read, self.written = Counter[str](), Counter[str]()  # blocks, by medium

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        (source, target), is_done = spec, True
        for side in spec:
            if isinstance(side, SharedLoadStoreSpec) and self._shared is not None:
                is_done = self._shared.use(side.block_hashes, side is target)
        if is_done:
            keyed = source if isinstance(source, SharedLoadStoreSpec) else None
            placed = source.block_ids if isinstance(source, BlockIDsLoadStoreSpec) else ()
            count = len(keyed.block_hashes if keyed else placed)
            self.read[source.medium()] += count
            self.written[target.medium()] += count
        self._finished.append((job_id, is_done))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Return at once."""


class HostTier:
    """The tiers behind one pool's manager."""

    def __init__(
        self,
        manager: KVCacheManager,
        block_size: int,
        options: OffloadOptions,
        shared: SharedBlocks | None = None,
    ) -> None:
        tiers: list[OffloadingManager] = [LRUOffloadingManager(CPUBackend(block_size, options.host_blocks))]
        media = [CPULoadStoreSpec, DiskLoadStoreSpec, SharedLoadStoreSpec]
        if options.disk_blocks:
            disk = _Disk(block_size, DiskLoadStoreSpec.medium(), options.disk_blocks)
            tiers.append(LRUOffloadingManager(disk))
        if shared is not None:
            tiers.append(SharedStoreManager(shared, block_size))
        worker, self._handler = OffloadingWorker(), InstantHandler(shared)
        for one, other in ((GPULoadStoreSpec, media[0]), (media[0], media[1]), (media[0], media[2]), media[1:]):
            worker.register_handler(one, other, self._handler)
            worker.register_handler(other, one, self._handler)
        self._manager, self.options = manager, options
        self._links: dict[type[LoadStoreSpec], Link] = {DiskLoadStoreSpec: Link(options.disk_seconds)}
        if shared is not None:
            self._links[SharedLoadStoreSpec] = shared.link
        self._written = dict.fromkeys(self._links, 0)  # blocks that their links have taken
        self.ready_at = 0.0  # when what was loaded last has come from all tiers
        chain = OffloadChain(tiers, on_load="free" if options.frees else "keep", write="through")
        self._connector = OffloadingConnector(manager, chain, worker, store_on=options.store_on)

    def load(self, request: Request, now: float) -> int:
        """Admit a request that is found further on the host than on the device; return its tokens there, 0 if not.

        The request then holds its blocks, and its own count is that of the hit.
        """
        connector = self._connector
        hit, num_hit = self._manager.get_computed_blocks(request)
        num_external, _ = connector.get_num_new_matched_tokens(request, num_hit)
        if num_external == 0 or not self._manager.allocate_slots(
            request, 0, num_hit, hit, num_external_computed_tokens=num_external
        ):
            return 0
        before = [self.read_from(medium) for medium in self._links]
        connector.update_state_after_alloc(request, num_external)
        connector.start_step()
        for result in connector.drain():
            request.num_computed_tokens = result.num_computed_tokens
        reads = zip(self._links.items(), before, strict=True)
        self.ready_at = max(link.move(self.read_from(medium) - count, now) for (medium, link), count in reads)
        return num_external if request.num_computed_tokens else 0

    def step(self, request: Request, num_computed: int, now: float) -> None:
        """Count a step as run: evicted blocks are copied before it, full blocks are stored after it."""
        self._connector.start_step()
        request.num_computed_tokens = num_computed
        self._connector.finish_step([request])
        # Nobody waits for a write, but what is read after it does.
        for medium, link in self._links.items():
            link.move(self.written_to(medium) - self._written[medium], now)
            self._written[medium] = self.written_to(medium)

    def end(self, request: Request) -> None:
        self._connector.request_finished(request)
        self._connector.drain()

    def check(self) -> None:
        self._connector.check()

    def stats(self) -> ConnectorStats:
        return self._connector.stats()

    def read_from(self, medium: type[LoadStoreSpec]) -> int:
        """Return how many blocks were read from a medium."""
        return self._handler.read[medium.medium()]

    def written_to(self, medium: type[LoadStoreSpec]) -> int:
        return self._handler.written[medium.medium()]


def tier_result(tiers: Sequence[HostTier], hit_blocks: int, host_hit_blocks: int, references: int) -> TierResult | None:
    """Return the result of the tiers of all engines, whose options are the same; None if there are none."""
    if not tiers:
        return None
    stats, options = [tier.stats() for tier in tiers], tiers[0].options
    return TierResult(
        options.host_blocks,
        options.store_on,
        "free" if options.frees else "keep",
        device_hit_blocks=hit_blocks - host_hit_blocks,
        device_hit_rate=(hit_blocks - host_hit_blocks) / references,
        host_hit_blocks=host_hit_blocks,
        host_hit_rate=host_hit_blocks / references,
        stored_blocks=sum(each.stored_blocks for each in stats),
        loaded_blocks=sum(each.loaded_blocks for each in stats),
        refused_blocks=sum(each.refused_blocks for each in stats),
        disk_blocks=options.disk_blocks,
        store_blocks=options.store_blocks,
        from_disk=sum(tier.read_from(DiskLoadStoreSpec) for tier in tiers),
        from_store=sum(tier.read_from(SharedLoadStoreSpec) for tier in tiers),
        to_disk=sum(tier.written_to(DiskLoadStoreSpec) for tier in tiers),
        to_store=sum(tier.written_to(SharedLoadStoreSpec) for tier in tiers),
    )

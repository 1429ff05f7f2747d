"""A host tier behind a replayed pool: the engine's own connector, with transfers that end at once and move nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from blockwright import KVCacheManager, Request
from blockwright.errors import InvalidArgumentError
from blockwright.offload.connector import OffloadingConnector
from blockwright.offload.results import ConnectorStats
from blockwright.offload.tiers.backend import CPUBackend
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.tiers.lru import LRUOffloadingManager
from blockwright.offload.worker import OffloadingHandler, OffloadingWorker, TransferResult, TransferSpec


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """Describe a host tier of `host_blocks` blocks behind the device.

    `store_on`: ``"publish"`` or ``"evict"``. `on_load`: whether the host ``"keep"``s loaded blocks, or ``"free"``s
        them; None for the choice that keeps more different blocks: free with evict (the device has it, and will give it
        back), else keep.

    Raises:
        InvalidArgumentError: an option is none of these.
    """

    host_blocks: int
    store_on: Literal["publish", "evict"] = "publish"
    on_load: Literal["keep", "free"] | None = None

    def __post_init__(self) -> None:
        if self.host_blocks < 0:
            raise InvalidArgumentError(f"host_blocks: must not be negative, {self.host_blocks} is")
        if self.store_on not in ("publish", "evict") or self.on_load not in ("keep", "free", None):
            raise InvalidArgumentError(f"store_on, on_load: there is no {self.store_on!r} with {self.on_load!r}")

    @property
    def frees(self) -> bool:
        return self.on_load == "free" or (self.on_load is None and self.store_on == "evict")


@dataclass(frozen=True, slots=True)
class TierResult:
    """The result of a trace on a host tier.

    Attributes:
        host_blocks, store_on, on_load: the options.
        device_hit_blocks, host_hit_blocks: hits on the device, and beyond them on the host; together all hits.
        device_hit_rate, host_hit_rate: the same as shares of the trace's block references.
        stored_blocks, loaded_blocks: blocks that were transferred.
        refused_blocks: blocks that the host had no room for.
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


class InstantHandler(OffloadingHandler):
    """Ends every transfer as a success when it begins."""

    def __init__(self) -> None:
        self._finished: list[TransferResult] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        self._finished.append((job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        """Return at once."""


class HostTier:
    """The host behind one pool's manager."""

    def __init__(self, manager: KVCacheManager, block_size: int, options: OffloadOptions) -> None:
        host = LRUOffloadingManager(CPUBackend(block_size, options.host_blocks))
        worker, handler = OffloadingWorker(), InstantHandler()
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
        worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
        self._manager = manager
        self.options = options
        chain = OffloadChain([host], on_load="free" if options.frees else "keep")
        self._connector = OffloadingConnector(manager, chain, worker, store_on=options.store_on)

    def load(self, request: Request) -> int:
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
        connector.update_state_after_alloc(request, num_external)
        connector.start_step()
        for result in connector.drain():
            request.num_computed_tokens = result.num_computed_tokens
        return num_external if request.num_computed_tokens else 0

    def step(self, request: Request, num_computed: int) -> None:
        """Count a step as run: evicted blocks are copied before it, full blocks are stored after it."""
        self._connector.start_step()
        request.num_computed_tokens = num_computed
        self._connector.finish_step([request])

    def end(self, request: Request) -> None:
        self._connector.request_finished(request)
        self._connector.drain()

    def check(self) -> None:
        self._connector.check()

    def stats(self) -> ConnectorStats:
        return self._connector.stats()


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
    )

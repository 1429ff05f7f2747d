"""Host offload: blocks that the device publishes or loses are kept on the host, and found there by any request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from blockwright.offload import CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from blockwright.offload.host import HostHandler, HostPool

from .below import Carrier, LateHandler, Shelf, backend_of
from .elsewhere import Elsewhere
from .schedule import EngineConfig
from .task import Task


class LateCopies(LateHandler):
    """Copies between the device and the host; some loads fail, leaving what was there."""

    def __init__(self, inner: HostHandler, config: EngineConfig, fired: Counter[str]) -> None:
        super().__init__()
        self.inner, self.lose_every, self.fired = inner, config.lose_load_every, fired
        self.landed: set[int] = set()
        """Blocks of the device that were written since somebody asked."""
        self.load_polls = config.load_steps
        self.store_polls = config.load_steps if config.store_steps is None else config.store_steps
        self.num_loads = 0

    def polls_of(self, spec: Any) -> int:
        return (self.load_polls if spec[0].medium() == "CPU" else self.store_polls) or -1

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        source, destination = ours(source), ours(destination)
        if source.medium() == "CPU":
            self.num_loads += 1
            if self.lose_every and self.num_loads % self.lose_every == 0:
                self.fired["offload load lost"] += 1
                return False
            self.landed.update(destination.block_ids)
        self.inner.transfer_async(job_id, (source, destination))
        self.inner.wait([job_id])
        while not (finished := self.inner.get_finished()):  # of a GPU the host has not waited yet
            time.sleep(0.0)
        return all(success for _, success in finished)

    def cancel(self, job_id: int) -> bool:
        if self.waiting.pop(job_id, None) is None:
            return False
        self.finished.append((job_id, False))
        self.fired["offload transfer cancelled"] += 1
        return True

    def close(self) -> None:
        self.inner.close()


def ours(spec: Any) -> LoadStoreSpec:
    made = GPULoadStoreSpec if spec.medium() == "GPU" else CPULoadStoreSpec
    return made(list(spec.block_ids))


class Offload(Elsewhere):
    """The connector of one engine, with one tier on the host."""

    def __init__(
        self,
        package: Any,
        manager: Any,
        tensors: Sequence[Tensor],
        config: EngineConfig,
        fired: Counter[str],
        shelf: Shelf | None = None,
    ) -> None:
        offload, self.fired = package.offload, fired
        host = HostPool(list(tensors), config.offload_blocks)
        host.buffer.fill_(0xFF)
        self.handler = LateCopies(HostHandler(list(tensors), host, threads=1), config, fired)
        offload.OffloadingHandler.register(LateHandler)  # of a changed package it is another class
        worker = offload.OffloadingWorker()
        worker.register_handler(offload.GPULoadStoreSpec, offload.CPULoadStoreSpec, self.handler)
        worker.register_handler(offload.CPULoadStoreSpec, offload.GPULoadStoreSpec, self.handler)
        size = min(each.block_size for each in manager.managers)
        tiers = [offload.LRUOffloadingManager(offload.CPUBackend(size, host.num_blocks))]
        if shelf is not None:
            backend, spec = backend_of(package, size, config.shelf_blocks, shelf)
            tiers.append(offload.LRUOffloadingManager(backend))
            carrier = Carrier(host, shelf, config, fired)
            worker.register_handler(offload.CPULoadStoreSpec, spec, carrier)
            worker.register_handler(spec, offload.CPULoadStoreSpec, carrier)
        chain = offload.OffloadChain(
            tiers,
            write=config.write,
            reserve=(1,) if shelf is not None and config.write == "back" else 0,
            on_load="free" if config.offload == "evict" else "keep",
        )
        self.package, self.manager, self.chain, self.careless = package, manager, chain, config.careless
        self.own_copies = config.own_copies
        self.connector = offload.OffloadingConnector(manager, chain, worker, store_on=config.offload)
        self.loading: dict[str, Task] = {}

    def num_external(self, task: Task, num_hit: int) -> int:
        return int(self.connector.get_num_new_matched_tokens(task.request, num_hit)[0])

    def load(self, task: Task, num_hit: int, num_external: int) -> None:
        self.connector.update_state_after_alloc(task.request, num_external)
        self.loading[task.name] = task
        if self.careless:
            self.store_unwritten(task, num_hit + num_external)

    def store_unwritten(self, task: Task, num_loaded: int) -> None:
        """Try to store the last block that is being loaded as the block after it, past the connector."""
        index = num_loaded // self.manager.managers[0].block_size
        if len(task.request.block_hashes) <= index:
            return
        block = self.manager.get_block_ids(task.name)[0][index - 1]
        key = self.package.offload.hits.offload_key(task.request.block_digest(index), 0)
        try:
            self.chain.store([key], [block])
        except self.package.errors.BlockError:
            self.fired["stores refused"] += 1

    def start_step(self) -> None:
        copies = self.connector.pending_copies() if self.own_copies else []
        self.connector.start_step()
        for job, _, source, destination, _ in copies:
            self.connector.copy_finished(job, self.handler.carry(job, source, destination))

    def finish_step(self, tasks: list[Task]) -> None:
        self.connector.finish_step([task.request for task in tasks])

    def poll(self) -> list[tuple[Task, int]]:
        results = []
        for result in self.connector.poll():
            task = self.loading.pop(result.request_id)
            self.fired["offload loads"] += result.num_tokens > 0
            results.append((task, int(result.num_computed_tokens)))
        return results

    def ended(self, task: Task) -> None:
        self.connector.request_finished(task.request)
        self.loading.pop(task.name, None)

    def close(self) -> None:
        self.connector.drain()
        self.connector.check()
        self.fired["offload stores"] += self.connector.stats().stored_blocks
        self.handler.close()

"""The calls of a connector, with its desk and worker, and of a queue of transfers.

Handlers end transfers when they are asked, so that a run is the same each time; the queues have no threads. Not
covered: `drain`, which is one `poll` after another, and may be ended between two; a relay, whose calls are its queue's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tests.core.support import SHA256, full, manager_dump, manager_over
from tests.interrupts.ended import AS_THEY_ARE, Call, Given, require_refused

from blockwright import Request
from blockwright.offload import (
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadResult,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingConnector,
    OffloadingHandler,
    OffloadingWorker,
)
from blockwright.offload.jobs import JobQueue
from blockwright.offload.worker import TransferResult, TransferSpec


class LaterHandler(OffloadingHandler):
    """Ends transfers when it is told to, or waited for."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[TransferResult] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        self.begun.append(job_id)
        return True

    def end(self) -> None:
        self.ended += [(job_id, True) for job_id in self.begun]
        self.begun = []

    def get_finished(self) -> list[TransferResult]:
        ended, self.ended = self.ended, []
        return ended

    def wait(self, job_ids: Collection[int]) -> None:
        self.end()


class ConnectorWorld:
    """A connector with a store under way, a hit that was offered, one that loads, and a request that has just run."""

    def __init__(self, given: Given = AS_THEY_ARE, *, store_on: str = "publish") -> None:
        self.extra: Any = None
        self.told: list[LoadResult] = []
        self.manager = manager = manager_over([full(2)], 40, 100, track_evictions=True)
        self.handler, self.worker = LaterHandler(), OffloadingWorker()
        self.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, self.handler)
        self.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, self.handler)
        self.chain = OffloadChain([LRUOffloadingManager(CPUBackend(2, 12))])
        self.connector = OffloadingConnector(manager, self.chain, self.worker, store_on=store_on)
        self.run(self.request("old", 0))
        self.connector.start_step()
        self.handler.end()
        self.connector.drain(0)
        self.ended = self.run(self.request("ended", 50))
        self.run(self.request("wide", 100, 7))
        self.connector.start_step()
        self.handler.end()
        self.connector.poll()
        self.manager.reset_prefix_cache()
        self.loading, self.new = self.request("loading", 0), self.request("new", 0)
        self.external = self.connector.get_num_new_matched_tokens(self.loading, 0)[0]
        if self.external:
            manager.allocate_slots(self.loading, 0, num_external_computed_tokens=self.external)
        self.filled = self.request("filled", 20)
        manager.allocate_slots(self.filled, 9)
        self.filled.num_computed_tokens = 9

    def request(self, name: str, first: int, length: int = 9) -> Request:
        return Request(name, list(range(first, first + length)), 2, hasher=SHA256)

    def run(self, request: Request) -> Request:
        self.manager.allocate_slots(request, request.num_tokens)
        self.connector.start_step()
        request.num_computed_tokens = request.num_tokens
        self.connector.finish_step([request])
        self.manager.free(request)
        self.connector.request_finished(request)
        return request

    def dump(self) -> object:
        connector: Any = self.connector
        connector.check()
        manager: Any = manager_dump(self.manager)
        stores, desk = connector._stores, connector._desk
        loads = {number: (load.request.request_id, load.num_tokens) for number, load in connector._loads.items()}
        found = {name: (each.num_computed, each.num_external) for name, each in connector._found.items()}
        books = stores._next, stores._touched, stores._held, list(stores._late), sorted(stores.copies)
        under_way = desk._waiting, sorted(desk._under_way), sorted(self.worker._jobs), self.handler.begun[:]
        said = connector.stats(), connector._is_quiet(), self.told + connector._told, sorted(connector._recompute)
        chain = self.chain.tiers[0].idle_blocks(99), self.chain.pins(), sorted(self.chain._jobs.under_way)
        return repr((manager[:-1], loads, found, books, under_way, said, chain))

    def require_refusals(self) -> None:
        """See that a torn connector serves no call."""
        connector = self.connector
        require_refused(
            lambda: connector.get_num_new_matched_tokens(self.new, 0),
            lambda: connector.update_state_after_alloc(self.new, 0),
            lambda: connector.request_finished(self.new),
            connector.start_step,
            connector.pending_copies,
            lambda: connector.finish_step([]),
            connector.poll,
            lambda: connector.drain(0),
            connector.take_events,
            connector.check,
            lambda: connector.is_idle,
        )
        connector.close()


def _loads(world: ConnectorWorld) -> None:
    world.connector.update_state_after_alloc(world.loading, world.external)
    world.connector.start_step()
    world.handler.end()


def _polls(world: ConnectorWorld) -> None:
    world.told += world.connector.poll()


CONNECTOR: dict[str, tuple[Callable[[ConnectorWorld], object], Callable[[ConnectorWorld], object] | None]] = {
    "look up": (lambda w: w.connector.get_num_new_matched_tokens(w.new, 0), None),
    "load": (lambda w: w.connector.update_state_after_alloc(w.loading, w.external), None),
    "start a step": (
        lambda w: w.connector.start_step(),
        lambda w: w.connector.update_state_after_alloc(w.loading, w.external),
    ),
    "finish a step": (lambda w: w.connector.finish_step([w.filled]), None),
    "request finished": (lambda w: w.connector.request_finished(w.loading), None),
    "poll": (_polls, _loads),
}


class QueueWorld:
    """A queue with a transfer that waits, one of which a part is taken, and one that has ended."""

    def __init__(self, given: Given = AS_THEY_ARE) -> None:
        self.extra: Any = None
        self.queue = queue = JobQueue(8, 10.0, lambda: 0.0)
        for number in range(3):
            queue.put(number, ("GPU", "CPU"), [int] * 2)
        queue._work_once()
        queue._work_once()
        queue._work_once()

    def dump(self) -> object:
        queue = self.queue
        queue._whole.require()
        jobs = [(each.job_id, len(each.parts), each.running, each.outcome) for each in queue._jobs.values()]
        return repr((jobs, [each.job_id for each in queue._pending], queue._num_waiting, queue._results, queue.stats()))

    def require_refusals(self) -> None:
        """See that a torn queue serves no call, and can be closed."""
        queue = self.queue
        require_refused(
            lambda: queue.put(9, ("GPU", "CPU"), [int]),
            lambda: queue.cancel(1),
            lambda: queue.wait([1]),
            queue.take_results,
            queue.stats,
            queue._work_once,
        )
        queue.stop()
        queue.join()


QUEUE: dict[str, Callable[[QueueWorld], object]] = {
    "put": lambda w: w.queue.put(5, ("GPU", "CPU"), [int] * 3),
    "put nothing": lambda w: w.queue.put(5, ("GPU", "CPU"), []),
    "results": lambda w: w.queue.take_results(),
    "cancel": lambda w: w.queue.cancel(1),
    "cancel, waiting": lambda w: w.queue.cancel(2),
}

CALLS: dict[str, Call] = {
    **{f"connector: {name}": Call(ConnectorWorld, act, prepare) for name, (act, prepare) in CONNECTOR.items()},
    **{f"queue: {name}": Call(QueueWorld, act) for name, act in QUEUE.items()},
}

"""A small engine over real tensors: every slot of the device holds a number that its exact prefix and group decide.

It checks what it reads: before a step, each position that the next token reads must hold the number of its prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import partial
from random import Random

import torch

from blockwright import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    Sha256Hasher,
    SlidingWindowSpec,
)
from blockwright.offload.connector import OffloadingConnector
from blockwright.offload.host import HostHandler, HostPool
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

SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
WIDTH = 4  # slots in a row of the device: the largest block size


def full(block_size: int) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **SIZES)  # type: ignore[arg-type]


def sliding(block_size: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, **SIZES)  # type: ignore[arg-type]


def sinks(block_size: int, sink_len: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, sink_len=sink_len, **SIZES)  # type: ignore[arg-type]


def chunked(block_size: int, chunk: int) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk, **SIZES)  # type: ignore[arg-type]


def mamba(block_size: int) -> KVCacheSpec:
    return MambaSpec(block_size, ((1,),), ("float32",))


def number(group: int, tokens: list[int]) -> int:
    """The number that a group's slot holds after these tokens."""
    data = bytes([group, *tokens])
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "little")


class SlowSpec(BlockIDsLoadStoreSpec):
    @staticmethod
    def medium() -> str:
        return "SLOW"


class SlowBackend(SlotBackend):
    """Places of a second tier."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        super().__init__(block_size, "SLOW", num_blocks)

    def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> LoadStoreSpec:
        return SlowSpec(block_ids)


class SlowHandler(OffloadingHandler):
    """Moves blocks between the host and a second tier, at once."""

    def __init__(self, pool: HostPool) -> None:
        self.pool = pool
        self.places: dict[int, bytes] = {}
        self.finished: list[TransferResult] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        source, destination = spec
        assert isinstance(source, BlockIDsLoadStoreSpec)
        assert isinstance(destination, BlockIDsLoadStoreSpec)
        for one, other in zip(source.block_ids, destination.block_ids, strict=True):
            if source.medium() == "CPU":
                self.places[other] = bytes(self.pool.block_view(one))
            else:
                self.pool.block_view(other)[:] = self.places[one]
        self.finished.append((job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        return


class FaultyHandler(OffloadingHandler):
    """Refuses, raises, reports late, and fails, leaving rubbish where a failed transfer was to write.

    Unless `races`, a run is the same every time: what the inner handler has begun has ended when it is asked.
    """

    def __init__(self, inner: OffloadingHandler, random: Random, rate: float, engine: Engine, races: bool) -> None:
        self.inner, self.random, self.rate, self.engine, self.races = inner, random, rate, engine, races
        self.destinations: dict[int, LoadStoreSpec] = {}
        self.late: list[TransferResult] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        if self.random.random() < self.rate:
            if self.random.random() < 0.5:
                raise RuntimeError("injected")
            return False
        self.destinations[job_id] = spec[1]
        return self.inner.transfer_async(job_id, spec)

    def get_finished(self) -> list[TransferResult]:
        if not self.races:
            self.inner.wait(list(self.destinations))
        self.late += sorted(self.inner.get_finished())
        reported = [result for result in self.late if self.random.random() < 0.7]
        self.late = [result for result in self.late if result not in reported]
        return [(job_id, success and not self.spoils(job_id)) for job_id, success in reported]

    def spoils(self, job_id: int) -> bool:
        destination = self.destinations.pop(job_id)
        if self.random.random() >= self.rate:
            return False
        assert isinstance(destination, BlockIDsLoadStoreSpec)
        for block in destination.block_ids:
            if destination.medium() == "GPU":
                self.engine.device[block] = -1
            elif destination.medium() == "CPU":
                self.engine.pool.buffer[block] = 255
        return True

    def wait(self, job_ids: Collection[int]) -> None:
        self.inner.wait(job_ids)

    def cancel(self, job_id: int) -> bool:
        return self.races and self.inner.cancel(job_id)


def slow_tier(num_blocks: int, engine: Engine) -> list[OffloadingManager]:
    """Make a second tier, unless without blocks."""
    if num_blocks == 0:
        return []
    slow = engine.faulty(SlowHandler(engine.pool))
    engine.worker.register_handler(CPULoadStoreSpec, SlowSpec, slow)
    engine.worker.register_handler(SlowSpec, CPULoadStoreSpec, slow)
    return [LRUOffloadingManager(SlowBackend(4 * engine.per_block, num_blocks), enable_events=True)]


class Engine:
    """One engine with its connector, its host pool and a second tier."""

    def __init__(
        self,
        specs: list[KVCacheSpec],
        store_on: str,
        *,
        seed: int = 0,
        blocks: int = 24,
        host_blocks: int = 30,
        slow_blocks: int = 0,
        per_block: int = 1,
        rate: float = 0.0,
        overlap: bool = False,
        on_load: str = "keep",
        write: str = "back",
        races: bool = False,
        told: bool = False,
        unit: int | None = None,
        lower: Callable[[Engine], list[OffloadingManager]] | None = None,
    ) -> None:
        """Make it; `lower` registers handlers with its worker and returns the tiers below the host."""
        self.random = Random(seed)
        self.specs, self.unit = specs, unit
        self.hasher = Sha256Hasher(b"seed") if told else None
        groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=blocks, kv_cache_groups=groups),
            max_model_len=100,
            track_evictions=store_on == "evict",
            overlap_steps=overlap,
            enable_kv_cache_events=told,
            prefix_match_unit=unit,
        )
        self.device = torch.zeros((blocks, WIDTH), dtype=torch.int64)
        self.pool = HostPool([self.device], host_blocks, device_blocks_per_block=per_block)
        self.host = HostHandler([self.device], self.pool, threads=1, max_queued=4)
        self.rate, self.races, self.per_block = rate, races, per_block
        self.worker = OffloadingWorker()
        host = self.faulty(self.host)
        self.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, host)
        self.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, host)
        nearest = LRUOffloadingManager(CPUBackend(4 * per_block, host_blocks), enable_events=True)
        self.chain = OffloadChain(
            [nearest, *(lower or partial(slow_tier, slow_blocks))(self)],
            device_blocks_per_block=per_block,
            reserve=2 if (slow_blocks or lower) and write == "back" else 0,
            on_load=on_load,
            write=write,
        )
        self.connector = OffloadingConnector(self.manager, self.chain, self.worker, store_on=store_on)
        self.waiting: list[Request] = []
        self.loading: dict[str, Request] = {}
        self.running: list[Request] = []
        self.flight: list[tuple[Request, int, int, tuple[list[int], ...]]] | None = None
        self.num_loaded = 0

    def faulty(self, handler: OffloadingHandler) -> FaultyHandler:
        """Let a handler fail as often as this engine's handlers do."""
        return FaultyHandler(handler, self.random, self.rate, self, self.races)

    # ------------------------------------------------------------------ bytes

    def expect(self, group: int, table: list[int], tokens: list[int], stop: int) -> None:
        """Check the blocks that a table holds below `stop`, the last as far as that; of states, the last."""
        spec = self.specs[group]
        size = spec.block_size
        for entry in range(-(-stop // size)):
            block, last = table[entry], min(stop, (entry + 1) * size)
            if block == 0 or (isinstance(spec, MambaSpec) and last != stop):
                continue
            ends = [stop] * size if isinstance(spec, MambaSpec) else range(entry * size + 1, last + 1)
            assert self.device[block, : len(ends)].tolist() == [number(group, tokens[:end]) for end in ends]

    def reads(self, request: Request, tables: tuple[list[int], ...], begin: int) -> None:
        """Check every slot that the token at `begin` reads."""
        tokens = request.all_token_ids
        for group, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
            size = spec.block_size
            first = self.manager._state.groups[group].rule.first_needed(begin)
            for position in (*range(min(first, getattr(spec, "sink_len", 0))), *range(first, begin)):
                block = table[position // size]
                slot = 0 if isinstance(spec, MambaSpec) else position % size
                assert block != 0
                assert int(self.device[block, slot]) == number(group, tokens[: position + 1]), (group, position)

    def compute(self, request: Request, begin: int, end: int, tables: tuple[list[int], ...]) -> None:
        """Run a step of one request on these tables."""
        self.reads(request, tables, begin)
        tokens = request.all_token_ids
        for group, (spec, table) in enumerate(zip(self.specs, tables, strict=True)):
            size = spec.block_size
            for position in range(end - 1 if isinstance(spec, MambaSpec) else begin, end):
                slots = slice(None) if isinstance(spec, MambaSpec) else position % size
                self.device[table[position // size], slots] = number(group, tokens[: position + 1])

    # ------------------------------------------------------------------ the scheduler

    def send(self, name: str, tokens: list[int], **owner: str) -> Request:
        unit = self.unit or min(spec.block_size for spec in self.specs)
        request = Request(name, tokens, unit, hasher=self.hasher, **owner)  # type: ignore[arg-type]
        self.waiting.append(request)
        return request

    def admit(self, request: Request) -> bool:
        """Admit a waiting request: on a load where there is one, else computing."""
        manager, connector = self.manager, self.connector
        hit, num_hit = manager.get_computed_blocks(request)
        external, is_async = connector.get_num_new_matched_tokens(request, num_hit)
        assert is_async == (external > 0)
        if external:
            given = manager.allocate_slots(request, 0, num_hit, hit, num_external_computed_tokens=external)
            if given is None:
                return False
            connector.update_state_after_alloc(request, external)
            self.loading[request.request_id] = request
            return True
        end = self.chunk_end(num_hit, request.num_tokens)
        if manager.allocate_slots(request, end - num_hit, num_hit, hit) is None:
            return False
        connector.update_state_after_alloc(request, 0)
        self.running.append(request)
        self.scheduled.append((request, num_hit, end, manager.get_block_ids(request.request_id)))
        return True

    def chunk_end(self, begin: int, stop: int) -> int:
        end = min(begin + 8, stop)
        if self.unit is not None and begin < (stop - 1) // self.unit * self.unit <= end:
            return (stop - 1) // self.unit * self.unit  # where a recurrent layer's state is found
        return end // 4 * 4 if end // 4 * 4 > begin else end

    def fork(self, parent: Request, name: str) -> None:
        """Go on twice from where a running request stands."""
        child = parent.fork(name)
        if self.manager.fork(parent, child) is not None:
            self.running.append(child)

    def preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.num_computed_tokens = 0
        self.running.remove(request)
        self.waiting.append(request)

    def grow(self, request: Request) -> None:
        """Give a running request slots for its next tokens, preempting those behind it."""
        begin = request.num_computed_tokens
        if begin == request.num_tokens and not self.manager.overlap_steps:
            request.append_output_token_ids([self.random.randrange(2)])
        end = self.chunk_end(begin, request.num_tokens)
        while end > begin and self.manager.allocate_slots(request, end - begin) is None:
            last = self.running[-1]
            self.preempt(last)
            if last is request:
                return
        if end > begin:
            self.scheduled.append((request, begin, end, self.manager.get_block_ids(request.request_id)))

    def step(self) -> None:
        """Schedule a step, run it (or the one before it, with a step in flight), and collect what has ended."""
        manager, connector = self.manager, self.connector
        self.scheduled: list[tuple[Request, int, int, tuple[list[int], ...]]] = []
        number_of_step = manager.start_step() if manager.overlap_steps else 0
        for request in list(self.running):
            if request in self.running:
                self.grow(request)
        for request in list(self.waiting):
            if request.request_id not in self.loading and self.admit(request):
                self.waiting.remove(request)
            else:
                break
        for request, _, end, _ in self.scheduled:
            request.num_computed_tokens = end
        connector.start_step()
        if self.flight is not None:  # it ran late: after the next was scheduled and what that evicts was copied
            self.forward(self.flight)
        for copies in manager.take_copies():  # after start_step: their destinations may have held what is evicted
            for source, destination in copies:
                self.device[destination] = self.device[source]
        if not manager.overlap_steps:
            self.run(self.scheduled)
        else:
            if self.flight is not None:
                self.settle(self.flight, number_of_step - 1)
            self.flight = self.scheduled
        self.collect()

    def run(self, flight: list[tuple[Request, int, int, tuple[list[int], ...]]], number_of_step: int = 0) -> None:
        self.forward(flight)
        self.settle(flight, number_of_step)

    def forward(self, flight: list[tuple[Request, int, int, tuple[list[int], ...]]]) -> None:
        for request, begin, end, tables in flight:
            self.compute(request, begin, end, tables)

    def settle(self, flight: list[tuple[Request, int, int, tuple[list[int], ...]]], number_of_step: int) -> None:
        if number_of_step:
            self.manager.settle_step(number_of_step)
        self.connector.finish_step([request for request, *_ in flight])

    def collect(self, last: bool = False) -> None:
        for result in self.connector.drain() if last else self.connector.poll():
            request = self.loading.pop(result.request_id)
            request.num_computed_tokens = result.num_computed_tokens
            if result.num_tokens == 0:
                self.waiting.append(request)
                continue
            self.num_loaded += 1
            tables = self.manager.get_block_ids(request.request_id)
            self.running.append(request)
            if self.to_be_written().isdisjoint(block for table in tables for block in table):
                for group, table in enumerate(tables):
                    self.expect(group, table, request.all_token_ids, result.num_computed_tokens)
                self.reads(request, tables, result.num_computed_tokens)

    def to_be_written(self) -> set[int]:
        """The blocks that the step in flight writes when it runs: a hit may have them already."""
        return {
            table[position // spec.block_size]
            for _, begin, end, tables in self.flight or ()
            for spec, table in zip(self.specs, tables, strict=True)
            for position in range(begin, end)
        }

    def end(self, request: Request) -> None:
        """Finish or abort a request, wherever it is."""
        self.manager.free(request)
        self.connector.request_finished(request)
        self.loading.pop(request.request_id, None)
        self.waiting = [other for other in self.waiting if other is not request]
        self.running = [other for other in self.running if other is not request]

    def stop(self) -> None:
        """End all requests and transfers; nothing may be left behind."""
        if self.flight is not None:
            self.run(self.flight, self.manager.steps_in_flight[0])
        for request in [*self.waiting, *self.loading.values(), *self.running]:
            self.end(request)
        self.collect(last=True)
        assert self.connector.is_idle
        assert self.chain.pins() == {}
        assert self.manager.usage == 0.0
        self.manager.check()
        self.chain.check()
        self.connector.check()
        self.host.close()

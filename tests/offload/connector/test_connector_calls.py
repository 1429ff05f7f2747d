"""Property: each call of the connector does what it says: hits are the longest there are, loads touch only what is the
request's own, copies come before the step, refusals and wrong calls are told and change nothing.

How: external hits of every kind of group are compared with the definition, tried length by length; the other calls by
small cases with a handler that does nothing until it is told to.
Not covered: bytes (test_connector.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import lcm
from random import Random
from typing import Any

import pytest

from blockwright import (
    ChunkedLocalAttentionSpec,
    Fits,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.errors import InvalidArgumentError, UnknownTransferError, UnsupportedError
from blockwright.offload import (
    BlockIDsLoadStoreSpec,
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
from blockwright.offload.hits import external_hit, offload_key
from blockwright.offload.worker import TransferResult, TransferSpec

SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}


def full(block_size: int = 2) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **SIZES)  # type: ignore[arg-type]


def sliding(block_size: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, **SIZES)  # type: ignore[arg-type]


def sinks(block_size: int, sink_len: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=window, sink_len=sink_len, **SIZES)  # type: ignore[arg-type]


def chunked(block_size: int, chunk: int) -> KVCacheSpec:
    return ChunkedLocalAttentionSpec(block_size=block_size, attention_chunk_size=chunk, **SIZES)  # type: ignore[arg-type]


def mamba(block_size: int) -> KVCacheSpec:
    return MambaSpec(block_size, ((1,),), ("float32",))


def manager_of(*specs: KVCacheSpec, num_blocks: int = 12, **options: Any) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)]
    config = KVCacheConfig(num_blocks=num_blocks, kv_cache_groups=groups)
    return KVCacheManager(config, 100, **options)


class StillHandler(OffloadingHandler):
    """Takes at most `room` transfers and ends them when it is told to, or waited for."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.begun: dict[int, TransferSpec] = {}
        self.finished: list[TransferResult] = []
        self.waited: list[int] = []

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        if len(self.begun) >= self.room:
            return False
        self.begun[job_id] = spec
        return True

    def end(self, success: bool = True) -> None:
        self.finished += [(job_id, success) for job_id in self.begun]
        self.begun = {}

    def get_finished(self) -> list[TransferResult]:
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids: Collection[int]) -> None:
        self.waited += job_ids
        self.finished += [(job_id, True) for job_id in job_ids if self.begun.pop(job_id, None)]

    def blocks(self) -> list[tuple[list[int], list[int]]]:
        """Sources and destinations of what has begun."""
        return [(ids_of(one), ids_of(other)) for one, other in self.begun.values()]


def ids_of(spec: object) -> list[int]:
    assert isinstance(spec, BlockIDsLoadStoreSpec)
    return spec.block_ids


class Rig:
    """A connector over one host tier and a handler that waits to be told."""

    def __init__(
        self,
        *specs: KVCacheSpec,
        store_on: str = "publish",
        num_blocks: int = 12,
        host: int = 10,
        per_block: int = 1,
        room: int = 100,
    ) -> None:
        self.manager = manager_of(*specs or [full()], num_blocks=num_blocks, track_evictions=store_on == "evict")
        self.chain = OffloadChain([LRUOffloadingManager(CPUBackend(2, host))], device_blocks_per_block=per_block)
        self.handler = StillHandler(room)
        worker = OffloadingWorker()
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, self.handler)
        worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, self.handler)
        self.connector = OffloadingConnector(self.manager, self.chain, worker, store_on=store_on)

    def compute(self, name: str, tokens: Sequence[int]) -> Request:
        """Admit a request and run its prompt."""
        request = Request(name, list(tokens), 2)
        hit, num_hit = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit) is not None
        self.connector.start_step()
        request.num_computed_tokens = request.num_tokens
        self.connector.finish_step([request])
        return request

    def end(self, request: Request) -> None:
        self.manager.free(request)
        self.connector.request_finished(request)

    def offloaded(self, tokens: Sequence[int]) -> None:
        """Have the host hold a prompt that the device has forgotten."""
        self.end(self.compute("first", tokens))
        self.handler.end()
        self.connector.poll()
        assert self.manager.reset_prefix_cache()

    def load(self, name: str, tokens: Sequence[int]) -> Request:
        """Admit a request on a load."""
        request = Request(name, list(tokens), 2)
        hit, num_hit = self.manager.get_computed_blocks(request)
        external, is_async = self.connector.get_num_new_matched_tokens(request, num_hit)
        assert is_async
        assert self.manager.allocate_slots(request, 0, num_hit, hit, num_external_computed_tokens=external) is not None
        self.connector.update_state_after_alloc(request, external)
        self.connector.start_step()
        return request


# ---------------------------------------------------------------------- external hits


class Held:
    """A tier that holds some keys."""

    def __init__(self, keys: set[bytes]) -> None:
        self.keys = keys
        self.asked: list[bytes] = []

    def lookup(self, block_hashes: Sequence[bytes]) -> int:
        self.asked += block_hashes
        flags = [key in self.keys for key in block_hashes]
        return [*flags, False].index(False)


def defined(
    manager: KVCacheManager, held: Held, request: Request, num_computed: int, per_block: int
) -> tuple[int, set[bytes]]:
    """The external hit by its definition: every length from the longest on, every block that it needs."""
    units = [each.block_size for each in manager.managers]
    for length in range((request.num_tokens - 1) // lcm(*units) * lcm(*units), num_computed, -lcm(*units)):
        needed: set[bytes | None] = set()
        for group, each in enumerate(manager.managers):
            first = each.first_kept(length)
            for entry in range(num_computed // each.block_size, length // each.block_size):
                if each.sinks <= entry < first:
                    continue
                end = (entry // per_block + 1) * per_block * each.block_size
                known = end <= request.num_tokens
                needed.add(offload_key(request.block_hashes[end // 2 - 1], group) if known else None)
        if needed <= held.keys:
            return length, {key for key in needed if key}
    return num_computed, set()


GROUPS: dict[str, list[KVCacheSpec]] = {
    "full": [full()],
    "sliding": [sliding(2, 5)],
    "window of one": [full(), sliding(2, 1)],
    "chunked": [chunked(2, 6)],
    "mamba": [mamba(4)],
    "sinks": [sinks(2, 3, 4)],
    "full, sliding": [full(4), sliding(2, 5)],
    "chunked, full, mamba": [chunked(2, 4), full(2), mamba(4)],
}


@pytest.mark.parametrize("per_block", [1, 2])
@pytest.mark.parametrize("specs", GROUPS.values(), ids=GROUPS.keys())
def test_external_hits_are_the_longest(specs: list[KVCacheSpec], per_block: int) -> None:
    random = Random(per_block)
    manager = manager_of(*specs)
    unit = lcm(*[each.block_size for each in manager.managers])
    found = 0
    for _ in range(300):
        request = Request("r", list(range(random.randint(1, 21))), 2)
        share = random.choice([0.5, 0.8, 0.95, 1.0])
        keys = {offload_key(digest, group) for digest in request.block_hashes for group in range(len(specs))}
        held = Held({key for key in sorted(keys) if random.random() < share})
        num_computed = random.randrange(0, request.num_tokens, unit)
        length, needed = external_hit(held, manager.managers, request, num_computed, per_block)
        assert (length, {block.key for block in needed}) == defined(manager, held, request, num_computed, per_block)
        assert len({block.key for block in needed}) == len(needed)
        assert len(held.asked) == len(set(held.asked))
        found += length > num_computed
    assert found > 20


@pytest.mark.parametrize("specs", GROUPS.values(), ids=GROUPS.keys())
def test_what_is_offered_can_be_loaded_into_an_idle_pool(specs: list[KVCacheSpec]) -> None:
    """And no longer hit could; whatever the device has of it already (laws LIVE-1, LIVE-3)."""
    cut = 0
    for num_blocks in range(2, 30):
        manager = manager_of(*specs, num_blocks=num_blocks)
        unit = lcm(*[each.block_size for each in manager.managers])
        request = Request("r", list(range(30)), 2)
        held = Held({offload_key(digest, group) for digest in request.block_hashes for group in range(len(specs))})
        for length in range(0, 13, unit):  # computed in one step, so that all of it is on the device
            first = Request("first", list(range(length + 1)), 2)
            if isinstance(manager.plan(first, length + 1), Fits):
                manager.allocate_slots(first, length + 1)
                first.num_computed_tokens = length + 1
                manager.free(first)
            hit, num_hit = manager.get_computed_blocks(request)
            offered = offer(manager, held, request, num_hit)
            loadable = [
                end
                for end in range(num_hit + unit, 30, unit)
                if isinstance(manager.plan(request, 0, num_hit, hit, num_external_computed_tokens=end - num_hit), Fits)
                and not is_stuck(manager, num_hit, end)
            ]
            assert offered == max(loadable, default=num_hit)
            cut += offered < 29 // unit * unit
    assert cut > 0 or isinstance(specs[0], MambaSpec)


def is_stuck(manager: KVCacheManager, num_hit: int, end: int) -> bool:
    """Whether the pool holds the request if all is computed in one step, and not if its rest is, after a load."""
    if not isinstance(manager.plan(Request("fresh", list(range(50, 80)), 2), 30), Fits):
        return False
    twin, request = manager.copy(), Request("r", list(range(30)), 2)
    hit, _ = twin.get_computed_blocks(request)
    twin.allocate_slots(request, 0, num_hit, hit, num_external_computed_tokens=end - num_hit)
    twin.finish_load(request, end - num_hit)
    request.num_computed_tokens = end
    return not isinstance(twin.plan(request, 30 - end), Fits)


def offer(manager: KVCacheManager, held: Held, request: Request, num_hit: int) -> int:
    """The external hit that can be loaded, as a connector asks for it."""
    return external_hit(
        held, manager.managers, request, num_hit, 1, lambda end: manager.can_load(request, num_hit, end - num_hit)
    )[0]


def test_lengths_that_the_model_cannot_have_are_not_loaded() -> None:
    manager = manager_of(full(), num_blocks=200)
    request = Request("r", list(range(120)), 2)
    assert [manager.can_load(request, 90, more) for more in (8, 10, 12)] == [True, True, False]
    for counts in ((-1, 2), (0, 2**31)):
        with pytest.raises(InvalidArgumentError, match="computed_tokens"):
            manager.can_load(request, *counts)


# ---------------------------------------------------------------------- stores


def test_what_a_step_fills_is_stored_and_held() -> None:
    rig = Rig(num_blocks=6)
    request = rig.compute("r", range(5))
    assert rig.handler.blocks() == [([1, 2], [0, 1])]
    assert rig.manager.block_pool.ref_counts()[1:4] == [2, 2, 1]
    rig.connector.finish_step([request])  # nothing new
    assert len(rig.handler.begun) == 1
    rig.end(request)
    rig.connector.check()
    other = Request("other", list(range(10, 18)), 2)
    assert rig.manager.allocate_slots(other, 8) is None  # two blocks are still being read
    rig.handler.end()
    assert rig.connector.poll() == []
    assert rig.manager.usage == 0.0
    assert rig.connector.stats().stored_blocks == 2
    assert rig.connector.is_idle


def test_output_tokens_fill_blocks_too_and_strangers_are_passed_over() -> None:
    rig = Rig()
    request = rig.compute("r", range(3))
    stranger, keyless = Request("s", [1, 2, 3], 2), Request("k", [1, 2, 3], None)
    assert rig.manager.allocate_slots(keyless, 3) is not None
    keyless.num_computed_tokens = 3
    for count in range(3):
        request.append_output_token_ids([count])
        assert rig.manager.allocate_slots(request, 1) is not None
        request.num_computed_tokens += 1
        rig.connector.finish_step([stranger, request, keyless])
    assert [len(source) for source, _ in rig.handler.blocks()] == [1, 1, 1]


def test_of_too_many_blocks_the_first_are_stored() -> None:
    rig = Rig(host=3)
    rig.compute("r", range(17))
    assert [source for source, _ in rig.handler.blocks()] == [[1, 2, 3]]
    rig.handler.end()
    rig.connector.poll()
    assert rig.connector.stats()[5:8] == (3, 0, 5)
    nothing = Rig(host=0)
    nothing.compute("r", range(5))
    assert nothing.connector.stats().refused_blocks == 2
    assert nothing.connector.is_idle


# ---------------------------------------------------------------------- evictions


def evicting(**options: int) -> tuple[Rig, Request]:
    """A rig whose next step writes over two blocks of "first"."""
    rig = Rig(store_on="evict", num_blocks=5, **options)
    rig.end(rig.compute("first", range(5)))
    request = Request("next", list(range(20, 28)), 2)
    assert rig.manager.allocate_slots(request, 8) is not None
    return rig, request


def test_copies_have_ended_before_the_step() -> None:
    rig, request = evicting()
    assert rig.handler.begun == {}
    rig.connector.start_step()
    assert rig.handler.waited == [0]
    assert rig.handler.begun == {}
    rig.connector.poll()
    assert rig.connector.stats().stored_blocks == 2
    rig.end(request)
    assert rig.connector.get_num_new_matched_tokens(Request("again", list(range(5)), 2), 0) == (4, True)


def test_an_engine_may_run_the_copies_itself() -> None:
    rig, _ = evicting()
    (copy,) = rig.connector.pending_copies()
    assert (ids_of(copy.source), ids_of(copy.destination)) == ([1, 2], [0, 1])
    assert rig.connector.pending_copies() == []
    rig.connector.start_step()
    assert rig.handler.waited == []
    assert not rig.connector.is_idle
    rig.connector.copy_finished(copy.job_id, True)
    with pytest.raises(UnknownTransferError):
        rig.connector.copy_finished(copy.job_id, True)
    assert rig.connector.poll() == []
    assert rig.connector.is_idle
    assert rig.connector.stats().stored_blocks == 2


def test_a_copy_that_cannot_begin_is_given_up() -> None:
    rig, _ = evicting(room=0)
    rig.connector.start_step()
    rig.connector.poll()
    assert rig.connector.is_idle
    assert rig.connector.stats()[5:10] == (0, 0, 0, 2, 1)


# ---------------------------------------------------------------------- loads


def test_a_load_from_end_to_end() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    request = rig.load("r", range(9))
    assert rig.handler.blocks() == [([0, 1, 2, 3], rig.manager.get_block_ids("r")[0])]
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert rig.connector.poll() == []
    assert not rig.connector.is_idle
    rig.handler.end()
    assert rig.connector.poll() == [LoadResult("r", 8, 8)]
    request.num_computed_tokens = 8
    assert rig.manager.allocate_slots(request, 1) is not None
    rig.connector.check()
    assert rig.connector.stats()[:5] == (1, 1, 1, 0, 4)


def test_a_failed_load_is_computed_once_and_not_looked_up() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    request = rig.load("r", range(9))
    rig.handler.end(success=False)
    assert rig.connector.poll() == [LoadResult("r", 0, 0)]
    assert rig.manager.usage == 0.0
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)  # its blocks are to blame, and gone
    assert rig.connector.stats().loads_failed == 1


def test_what_is_gone_when_the_load_is_to_begin() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    request = Request("r", list(range(9)), 2)
    external, _ = rig.connector.get_num_new_matched_tokens(request, 0)
    assert rig.manager.allocate_slots(request, 0, num_external_computed_tokens=external) is not None
    rig.chain.tiers[0].remove([offload_key(request.block_hashes[0], 0)])
    rig.connector.update_state_after_alloc(request, external)
    rig.connector.check()
    assert not rig.connector.is_idle
    assert rig.connector.poll() == [LoadResult("r", 0, 0)]
    assert rig.connector.is_idle
    assert rig.manager.usage == 0.0


def test_freed_before_its_load_begins_or_while_it_runs() -> None:
    for room in (100, 0):
        rig = Rig()
        rig.offloaded(range(9))
        rig.handler.room = room
        request = Request("r", list(range(9)), 2)
        external, _ = rig.connector.get_num_new_matched_tokens(request, 0)
        assert rig.manager.allocate_slots(request, 0, num_external_computed_tokens=external) is not None
        rig.connector.update_state_after_alloc(request, external)
        if room:
            rig.connector.start_step()
        rig.end(request)
        again = Request("r", list(range(9)), 2)  # another request under its name
        assert rig.connector.get_num_new_matched_tokens(again, 0) == (0, False)
        assert rig.manager.allocate_slots(again, 1) is not None
        rig.handler.end()
        assert rig.connector.poll() == []
        assert rig.manager.request_ids() == ["r"]
        rig.manager.free(again)
        assert rig.manager.usage == 0.0
        assert rig.connector.get_num_new_matched_tokens(again, 0) == (8, True)  # the host has not lost it
        rig.connector.check()


def test_parts_that_a_request_has_no_place_for_go_to_spare_blocks() -> None:
    """Offloaded blocks of two device blocks, after a hit of one, and ending in the middle of one."""
    rig = Rig(per_block=2)
    rig.offloaded(range(9))
    first = rig.compute("head", range(3))  # the device has the first block again
    rig.handler.end()
    rig.connector.poll()
    request = rig.load("r", range(8))
    ((_, places),) = rig.handler.blocks()
    table = rig.manager.get_block_ids("r")[0]
    assert places[1:3] == table[1:3]
    assert not {places[0], places[3]} & {*table, *rig.manager.get_block_ids("head")[0], 0}
    rig.connector.check()
    rig.handler.end()
    assert rig.connector.poll() == [LoadResult("r", 4, 6)]
    rig.connector.check()
    rig.end(request)
    rig.end(first)
    rig.handler.end()
    rig.connector.drain()
    assert rig.manager.usage == 0.0


def test_without_spare_blocks_the_load_fails() -> None:
    rig = Rig(per_block=2, num_blocks=7)
    rig.offloaded(range(9))
    holder = Request("holder", [50] * 5, 2)
    assert rig.manager.allocate_slots(holder, 5) is not None
    request = rig.load("r", range(8))
    assert rig.handler.begun == {}
    assert rig.connector.poll() == [LoadResult("r", 0, 0)]
    rig.end(request)
    rig.connector.check()


# ---------------------------------------------------------------------- back-pressure


def test_a_transfer_that_nobody_takes_fails() -> None:
    rig = Rig(room=0)
    rig.end(rig.compute("a", range(5)))
    assert rig.connector.drain() == []
    assert rig.connector.stats()[8:10] == (2, 1)
    assert rig.manager.usage == 0.0


# ---------------------------------------------------------------------- wrong calls


def test_requests_that_load_nothing() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    tokens = list(range(9))
    for request in (
        Request("k", tokens, None),
        Request("p", tokens, 2, prompt_logprobs=True),
        Request("s", tokens, 2, cache_salt="other"),
        Request("short", tokens[:2], 2),
    ):
        assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
        rig.connector.update_state_after_alloc(request, 0)
    with pytest.raises(InvalidArgumentError, match="block_size"):
        rig.connector.get_num_new_matched_tokens(Request("r", tokens, 3), 0)


def test_loads_of_other_tokens_than_were_told() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    request = Request("r", list(range(9)), 2)
    with pytest.raises(InvalidArgumentError, match="offered 0"):
        rig.connector.update_state_after_alloc(request, 8)
    rig.connector.get_num_new_matched_tokens(request, 0)
    with pytest.raises(InvalidArgumentError, match="offered 8"):
        rig.connector.update_state_after_alloc(request, 6)
    assert rig.connector.is_idle


def test_a_request_of_another_block_size_is_refused_and_nothing_forgotten() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    with pytest.raises(InvalidArgumentError, match="block_size=3"):
        rig.connector.forget(Request("other", list(range(9)), 3))
    assert rig.connector.get_num_new_matched_tokens(Request("r", list(range(9)), 2), 0) == (8, True)


@pytest.mark.parametrize("store_on", ["publish", "evict"])
def test_everything_is_forgotten_while_requests_run(store_on: str) -> None:
    """New weights: with a request that runs, a store and a load under way, and a hit that was offered and not taken."""
    rig = Rig(store_on=store_on, num_blocks=30)
    if store_on == "publish":
        rig.offloaded(range(9))
        loading = rig.load("loads", range(9))
        waiting = Request("waits", list(range(9)), 2)
        offered, _ = rig.connector.get_num_new_matched_tokens(waiting, 0)
        assert offered == 8
    running = rig.compute("runs", range(20, 29))
    done = rig.connector.forget()
    assert done.device_blocks == 4
    rig.handler.end()  # the load, and the store of what runs
    results = rig.connector.poll()
    for tokens in (range(9), range(20, 29)):
        asks = Request("asks", list(tokens), 2)
        assert rig.manager.get_computed_blocks(asks)[1] == 0
        assert rig.connector.get_num_new_matched_tokens(asks, 0) == (0, False)
    for token in (1, 2, 3):  # it goes on, and nothing of it is stored or found
        running.append_output_token_ids(token)
        assert rig.manager.allocate_slots(running, 1) is not None
        rig.connector.start_step()
        running.num_computed_tokens += 1
        rig.connector.finish_step([running])
    if store_on == "publish":
        assert [each.num_tokens for each in results] == [8]  # it came from the old weights, for this request alone
        loading.num_computed_tokens = results[0].num_computed_tokens
        assert rig.manager.allocate_slots(waiting, 0, 0, None, num_external_computed_tokens=offered) is not None
        rig.connector.update_state_after_alloc(waiting, offered)  # it is gone
        assert [each.num_tokens for each in rig.connector.poll()] == [0]
        rig.end(loading)
    rig.end(running)
    rig.handler.end()
    rig.connector.poll()
    assert rig.connector.get_num_new_matched_tokens(Request("late", [*range(20, 29), 1, 2, 3], 2), 0) == (0, False)
    assert rig.manager.block_pool.get_num_free_blocks() == rig.manager.block_pool.num_blocks - 1
    rig.connector.check()


def test_what_names_nothing_forgets_nothing() -> None:
    rig = Rig()
    rig.offloaded(range(9))
    wrong: list[dict[str, Any]] = [{"request": None}, {"cache_salt": None}, {"lora_name": None, "cache_salt": None}]
    for meant in wrong:
        with pytest.raises(InvalidArgumentError, match="no argument at all"):
            rig.connector.forget(**meant)
        with pytest.raises(InvalidArgumentError, match="no argument at all"):
            rig.manager.forget(**meant)
    assert rig.connector.get_num_new_matched_tokens(Request("r", list(range(9)), 2), 0) == (8, True)


def test_what_cannot_be_connected() -> None:
    chain, worker = OffloadChain([LRUOffloadingManager(CPUBackend(2, 4))]), OffloadingWorker()
    wide = OffloadChain([LRUOffloadingManager(CPUBackend(4, 4))], device_blocks_per_block=2)
    with pytest.raises(InvalidArgumentError, match="store_on"):
        OffloadingConnector(manager_of(full()), chain, worker, store_on="never")
    with pytest.raises(InvalidArgumentError, match="enable_caching"):
        OffloadingConnector(manager_of(full(), enable_caching=False), chain, worker)
    with pytest.raises(InvalidArgumentError, match="track_evictions"):
        OffloadingConnector(manager_of(full()), chain, worker, store_on="evict")
    with pytest.raises(UnsupportedError, match="one by one"):
        OffloadingConnector(manager_of(full(), track_evictions=True), wide, worker, store_on="evict")
    with pytest.raises(UnsupportedError, match="device_blocks_per_block=1"):
        OffloadingConnector(manager_of(full(), prefix_match_unit=1), wide, worker)
    for option, value in {"verify_tokens": True, "use_eagle": True}.items():
        with pytest.raises(UnsupportedError, match=option):
            OffloadingConnector(manager_of(full(), **{option: value}), chain, worker)


def test_specs_are_told_apart() -> None:
    """In the compiled build too, where classes derived from `abc.ABC` would share one cache of answers."""
    device, host = GPULoadStoreSpec([1]), CPULoadStoreSpec([1])
    for _ in range(2):
        for spec, own, other in (
            (device, GPULoadStoreSpec, CPULoadStoreSpec),
            (host, CPULoadStoreSpec, GPULoadStoreSpec),
        ):
            assert not isinstance(spec, other)
            assert isinstance(spec, own)
            assert isinstance(spec, BlockIDsLoadStoreSpec)

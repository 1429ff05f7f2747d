"""Property: the connector remembers of a request what it must, and no longer than it may.

How: small cases, each of which shows one line of its books: every one was asked for by a change of the source that no
other test noticed (`blockwright conform --gate mutants`).
Not covered: bytes (test_connector.py), and what each call says of the rest (test_connector_calls.py).
"""

from collections.abc import Sequence

import pytest
from tests.offload.connector.test_connector_calls import SIZES, Held, Rig, StillHandler, full, manager_of, sliding

from blockwright import FullAttentionSpec, KVCacheSpec, Request
from blockwright.errors import InvalidArgumentError
from blockwright.offload import (
    BlockHint,
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LoadResult,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingConnector,
    OffloadingWorker,
)
from blockwright.offload.hits import NeededBlock, external_hit, offload_key
from blockwright.offload.loads import destinations


def single() -> KVCacheSpec:
    return FullAttentionSpec(block_size=1, **SIZES)  # type: ignore[arg-type]


def asked(rig: Rig, name: str, tokens: range) -> tuple[Request, int]:
    """A request, and how many tokens the connector could load for it."""
    request = Request(name, list(tokens), 2)
    return request, rig.connector.get_num_new_matched_tokens(request, 0)[0]


def gone_from_the_host(rig: Rig) -> None:
    """Have the host give all its places to another prompt, which the device forgets."""
    rig.offloaded(range(100, 121))


def test_what_was_found_once_is_forgotten_when_asked_again() -> None:
    rig = Rig()
    rig.offloaded(range(5))
    request, external = asked(rig, "r", range(5))
    assert external == 4
    gone_from_the_host(rig)
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    with pytest.raises(InvalidArgumentError, match="offered 0"):
        rig.connector.update_state_after_alloc(request, 4)


def test_what_was_found_is_forgotten_with_the_request() -> None:
    rig = Rig()
    rig.offloaded(range(5))
    request, external = asked(rig, "r", range(5))
    rig.connector.request_finished(request)
    with pytest.raises(InvalidArgumentError, match="offered 0"):
        rig.connector.update_state_after_alloc(request, external)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_request_that_starts_again_is_stored_again(is_over: bool) -> None:
    rig = Rig(num_blocks=14)
    request = rig.compute("r", range(5))
    rig.manager.free(request)
    if is_over:
        rig.connector.request_finished(request)
    rig.handler.end()
    rig.connector.poll()
    gone_from_the_host(rig)
    again = Request("r", list(range(5)), 2)
    if not is_over:
        assert rig.connector.get_num_new_matched_tokens(again, 0) == (0, False)
    assert rig.manager.allocate_slots(again, 5) is not None
    again.num_computed_tokens = 5
    rig.connector.finish_step([again])
    assert [len(source) for source, _ in rig.handler.blocks()] == [2]


@pytest.mark.parametrize("host", range(2, 12))
def test_a_hit_that_is_longer_than_the_host_is_offered_in_the_longest_part_that_fits(host: int) -> None:
    manager, handler, worker = manager_of(full(), sliding(2, 6), num_blocks=60), StillHandler(), OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, CPULoadStoreSpec, handler)
    tiers = [LRUOffloadingManager(CPUBackend(2, host)), LRUOffloadingManager(CPUBackend(2, 60))]
    connector = OffloadingConnector(manager, OffloadChain(tiers, write="through"), worker)
    request = Request("r", list(range(41)), 2)
    keys = [offload_key(request.block_digest(at), group) for at in range(20) for group in range(2)]
    assert tiers[1].prepare_store(keys) is not None
    tiers[1].complete_store(keys)
    length = 2 * max(blocks for blocks in range(20) if blocks + min(blocks, 3) <= host)  # three of the window
    assert connector.get_num_new_matched_tokens(request, 0) == (length, True)
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=length) is not None
    connector.update_state_after_alloc(request, length)
    results = []
    for _ in range(3):
        connector.start_step()
        handler.end()
        results += connector.poll()
    assert results == [LoadResult("r", length, length)]


@pytest.mark.parametrize("is_stepping", [False, True])
def test_blocks_that_waited_for_room_are_stored_once_no_step_may_write_them(is_stepping: bool) -> None:
    rig = Rig(host=2)
    rig.compute("first", range(5))
    request = rig.compute("late", range(50, 55))
    if is_stepping:
        rig.connector.start_step()
    rig.handler.end()
    rig.connector.poll()
    assert (rig.connector.stats().waiting_blocks, len(rig.handler.blocks())) == ((2, 0) if is_stepping else (0, 1))
    rig.manager.free(request)
    rig.connector.request_finished(request)
    rig.connector.poll()
    assert (rig.connector.stats().waiting_blocks, len(rig.handler.blocks())) == (0, 1)


def failed(rig: Rig) -> Request:
    """A request whose load has failed, and whose tokens another one has stored since."""
    rig.offloaded(range(5))
    request = rig.load("r", range(5))
    rig.handler.end(success=False)
    assert [result.num_tokens for result in rig.connector.poll()] == [0]
    assert rig.connector.stats().load_failures == {"not copied": 1}
    rig.offloaded(range(5))
    return request


def test_a_load_of_single_tokens_that_failed_brings_none() -> None:
    rig = Rig(single())
    request = Request("first", [7, 8, 9], 1)
    assert rig.manager.allocate_slots(request, 3) is not None
    request.num_computed_tokens = 3
    rig.connector.finish_step([request])
    rig.end(request)
    rig.handler.end()
    rig.connector.poll()
    assert rig.manager.reset_prefix_cache()
    again = Request("r", [7, 8, 9], 1)
    assert rig.connector.get_num_new_matched_tokens(again, 0) == (2, True)
    assert rig.manager.allocate_slots(again, 0, num_external_computed_tokens=2) is not None
    rig.connector.update_state_after_alloc(again, 2)
    rig.connector.start_step()
    rig.handler.end(success=False)
    assert rig.connector.poll() == [LoadResult("r", 0, 0)]
    assert rig.manager.get_computed_blocks(Request("other", [7, 8, 9], 1))[1] == 0


def test_after_a_failure_nothing_is_loaded_once() -> None:
    rig = Rig()
    request = failed(rig)
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert rig.connector.get_num_new_matched_tokens(request, 0) == (4, True)


def test_a_failure_is_forgotten_with_the_request() -> None:
    rig = Rig()
    rig.connector.request_finished(failed(rig))
    assert asked(rig, "r", range(5))[1] == 4


def test_a_single_token_is_worth_a_load() -> None:
    rig = Rig(single())
    request = Request("first", [7, 8], 1)
    assert rig.manager.allocate_slots(request, 2) is not None
    request.num_computed_tokens = 2
    rig.connector.finish_step([request])
    rig.end(request)
    rig.handler.end()
    rig.connector.poll()
    assert rig.connector.get_num_new_matched_tokens(Request("r", [7, 9], 1), 0) == (1, True)


@pytest.mark.parametrize("spec", [single(), sliding(1, 2)], ids=["full", "sliding"])
def test_a_single_token_that_is_nowhere_is_no_hit(spec: KVCacheSpec) -> None:
    manager = manager_of(spec)
    assert external_hit(Held(set()), manager.managers, Request("r", [7, 8], 1), 0, 1) == (0, [])


def test_a_hit_of_the_engine_that_is_not_aligned_is_kept_whatever_is_held() -> None:
    manager, request = manager_of(full(4)), Request("r", list(range(13)), 2)
    held = Held({offload_key(digest, 0) for digest in request.block_hashes})
    assert external_hit(held, manager.managers, request, 3, 1) == (3, [])


def test_a_hit_of_the_engine_that_is_whole_is_kept() -> None:
    manager, request = manager_of(full()), Request("r", [1, 2, 3, 4], 2)
    assert external_hit(Held(set()), manager.managers, request, 4, 1) == (4, [])


def test_where_nothing_can_be_gained_nothing_is_to_be_loaded() -> None:
    """The engine has it all, one token more than a hit may have."""
    manager, request = manager_of(full()), Request("r", [1, 2, 3, 4], 2)
    held = Held({offload_key(digest, 0) for digest in request.block_hashes})
    assert external_hit(held, manager.managers, request, 4, 1) == (4, [])
    assert external_hit(held, manager.managers, request, 2, 1) == (2, [])


def test_a_null_entry_is_no_place_for_a_load() -> None:
    needed = [NeededBlock(b"a", 0, 0, 0, 4), NeededBlock(b"b", 0, 2, 4, 8)]
    assert destinations(needed, ([0, 5, 6, 7],), [0], [3], 2) == [None, 5, 6, None]
    assert destinations(needed, ([3, 5, 6, 7],), [1], [4], 2) == [None, 5, 6, 7]


def test_full_attention_is_looked_up_once() -> None:
    class Counted(Held):
        calls = 0

        def lookup(self, block_hashes: Sequence[bytes]) -> int:
            self.calls += 1
            return super().lookup(block_hashes)

    manager, request = manager_of(full()), Request("r", list(range(9)), 2)
    held = Counted({offload_key(digest, 0) for digest in request.block_hashes[:3]})
    assert external_hit(held, manager.managers, request, 0, 1)[0] == 6
    assert held.calls == 1


def test_the_key_of_a_block_is_its_digest_and_four_bytes_of_its_group() -> None:
    assert offload_key(b"digest", 258) == b"digest\2\1\0\0"  # it is written to disks


@pytest.mark.parametrize("host", [2, 3, 4, 6])
def test_what_is_to_be_loaded_is_not_driven_out_by_what_the_device_loses(host: int) -> None:
    rig = Rig(store_on="evict", num_blocks=5, host=host)
    rig.end(rig.compute("first", range(5)))
    rig.end(rig.compute("second", range(20, 28)))  # takes the blocks of the first, which go to the host
    if host == 6:
        rig.end(rig.compute("third", range(40, 48)))  # and those of the second: the host is full
    request, external = asked(rig, "r", range(5))
    assert external == 4
    assert rig.manager.allocate_slots(request, 0, num_external_computed_tokens=4) is not None
    rig.connector.update_state_after_alloc(request, 4)
    rig.connector.start_step()
    rig.handler.end()
    assert [result.num_tokens for result in rig.connector.poll()] == [4]


def test_draining_waits_for_what_is_under_way_and_tells_of_loads() -> None:
    rig = Rig()
    rig.end(rig.compute("r", range(5)))
    assert not rig.connector.is_idle
    assert rig.connector.drain(0) == []  # it keeps its time, whatever a handler does
    assert not rig.connector.is_idle
    rig.handler.end()
    assert rig.connector.drain(5) == []
    assert rig.connector.is_idle
    assert rig.manager.reset_prefix_cache()
    rig.load("again", range(5))
    rig.handler.end()
    assert [result.num_tokens for result in rig.connector.drain(5)] == [4]


def test_draining_gives_up_when_a_handler_has_lost_a_transfer() -> None:
    rig = Rig()
    rig.end(rig.compute("r", range(5)))
    rig.handler.begun.clear()
    assert rig.connector.drain(0.01) == []
    assert not rig.connector.is_idle


def test_a_load_that_has_ended_is_still_to_be_told() -> None:
    rig = Rig()
    rig.offloaded(range(5))
    rig.load("r", range(5))
    rig.handler.end()
    rig.connector.start_step()  # it learns of the end here
    assert not rig.connector.is_idle
    assert len(rig.connector.poll()) == 1
    assert rig.connector.is_idle


def test_a_move_between_tiers_is_under_way_too() -> None:
    handler, manager = StillHandler(), manager_of(full())
    tiers = [LRUOffloadingManager(CPUBackend(2, 4)) for _ in range(2)]
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, CPULoadStoreSpec, handler)
    connector = OffloadingConnector(manager, OffloadChain(tiers, write="through"), worker)
    request = Request("r", list(range(5)), 2)
    assert manager.allocate_slots(request, 5) is not None
    request.num_computed_tokens = 5
    connector.finish_step([request])
    handler.end()
    connector.poll()
    assert len(handler.begun) == 2  # from the first tier to the second
    assert not connector.is_idle
    handler.end()
    connector.poll()
    assert connector.is_idle


def test_events_come_from_the_tiers() -> None:
    manager, handler, worker = manager_of(full()), StillHandler(), OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    chain = OffloadChain([LRUOffloadingManager(CPUBackend(2, 4), enable_events=True)])
    connector = OffloadingConnector(manager, chain, worker)
    request = Request("r", list(range(5)), 2)
    assert manager.allocate_slots(request, 5) is not None
    request.num_computed_tokens = 5
    connector.finish_step([request])
    handler.end()
    connector.poll()
    keys = [offload_key(digest, 0) for digest in request.block_hashes]
    assert [(list(event.block_hashes), event.removed) for event in connector.take_events()] == [(keys, False)]
    assert connector.take_events() == []


def test_every_count_is_told_under_its_name() -> None:
    rig = Rig()
    rig.offloaded(range(5))
    asked(rig, "elsewhere", range(50, 55))
    asked(rig, "nowhere", range(60, 65))
    asked(rig, "known", range(5))
    rig.load("r", range(5))
    rig.handler.end()
    rig.connector.poll()
    stats = rig.connector.stats()
    assert (stats.lookups, stats.lookups_hit, stats.loads, stats.loaded_blocks) == (4, 2, 1, 2)


@pytest.mark.parametrize("store_on", ["publish", "evict"])
def test_whose_a_block_is_and_what_keeps_it_goes_to_the_host(store_on: str) -> None:
    rig = Rig(store_on=store_on, num_blocks=4)
    request = Request("r", list(range(5)), 2, cache_salt="a")
    assert rig.manager.allocate_slots(request, 5) is not None
    rig.manager.retain(request, 2, priority=3, until=9)
    request.num_computed_tokens = 5
    rig.connector.finish_step([request])
    rig.end(request)
    rig.manager.advance_time(8)
    rig.handler.end()
    rig.connector.poll()
    other = rig.compute("s", range(10, 15))
    rig.handler.end()
    rig.connector.poll()
    (host,) = rig.chain.tiers
    hints = [host.hint_of(offload_key(digest, 0)) for digest in (*request.block_hashes[:2], *other.block_hashes[:2])]
    assert hints[:2] == [BlockHint("a", 3, 9), BlockHint("a")]
    assert set(hints[2:]) == {None}
    rig.manager.advance_time(9)
    rig.end(other)
    rig.compute("t", range(20, 25))
    again = OffloadChain([host])
    assert again.store([offload_key(request.block_hashes[0], 0)], [1], [BlockHint(None, 1, 9)]) is not None
    assert host.hint_of(offload_key(request.block_hashes[0], 0)) == BlockHint("a", 3, 9), "the host's time is 9, too"
    rig.connector.check()

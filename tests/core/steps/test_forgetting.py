"""Property: once everything is forgotten while requests run, each report says so, and what was found before is stale.

How: calls written down here. Which contents are found, what is published and what comes free, lock-step compares in
scopes with "all forgotten".
"""

from __future__ import annotations

import pytest
from tests.core.support import SHA256, full, manager_of

from blockwright import KVCacheManager, Request
from blockwright.errors import InvalidArgumentError, StaleHitError, StalePlanError, UnknownRequestError
from blockwright.events import AllBlocksCleared


def running(manager: KVCacheManager, name: str, count: int) -> Request:
    request = Request(name, list(range(count)), manager.hash_block_size, hasher=SHA256)
    hit, length = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, count - length, length, hit) is not None
    request.num_computed_tokens = count
    return request


def test_reports_of_everything_forgotten() -> None:
    manager = manager_of(full(), 20, 60, log_stats=True, enable_kv_cache_events=True, explain_evictions=True)
    reader = manager.start_journal().reader()
    one = running(manager, "one", 9)
    waiting = Request("waits", list(range(12)), manager.hash_block_size, hasher=SHA256)
    hit, length = manager.get_computed_blocks(waiting)
    plan = manager.plan(one, 1)
    assert length == 8
    manager.take_events()
    assert manager.forget() == 2 * len(manager.managers) * 4 // manager.managers[0].block_size
    assert manager.take_events() == [AllBlocksCleared()]
    assert [each.kind for each in reader.read()][-1] == "reset"
    stats, losses = manager.make_prefix_cache_stats(), manager.make_eviction_stats()
    assert stats is not None
    assert stats.reset
    assert losses is not None
    assert sum(losses.reset) > 0
    with pytest.raises(StaleHitError):
        manager.allocate_slots(waiting, 4, length, hit)
    with pytest.raises(StalePlanError):
        manager.commit(plan)
    one.append_output_token_ids([1] * 8)
    assert manager.allocate_slots(one, 8) is not None
    manager.free(one)
    assert manager.get_computed_blocks(waiting)[1] == 0
    assert manager.take_events() == []
    manager.check()


def test_blocks_held_alone_are_those_that_come_free() -> None:
    manager = manager_of(full(), 20, 60)
    parent = running(manager, "parent", 10)
    child = parent.fork("child")
    with pytest.raises(UnknownRequestError):
        manager.num_blocks_held_alone(child)
    assert manager.num_blocks_held_alone(parent) == len(manager.get_block_ids("parent")[0])
    assert manager.fork(parent, child) is not None
    assert manager.num_blocks_held_alone(parent) == manager.num_blocks_held_alone(child) == 0
    child.append_output_token_ids([3] * 6)
    assert manager.allocate_slots(child, 6) is not None
    manager.take_copies()
    alone, free = manager.num_blocks_held_alone(child), manager.block_pool.get_num_free_blocks()
    manager.preempt(child)
    assert manager.block_pool.get_num_free_blocks() == free + alone
    assert alone > 0


def test_what_limits_a_publication_is_named() -> None:
    manager = manager_of(full(), 20, 60, overlap_steps=True, publish_on_settlement=True)
    request = Request("r", list(range(4)), manager.hash_block_size)
    manager.start_step()
    assert manager.allocate_slots(request, 4, delay_cache_blocks=True) is not None
    with pytest.raises(
        InvalidArgumentError, match=r"within 0..0, the known and settled tokens of 'r', not 4; settle_step"
    ):
        manager.cache_blocks(request, 4, has_run=False)

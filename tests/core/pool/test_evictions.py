"""Property: a manager that tracks evictions tells of exactly the contents that its pool loses to other content.

How: random requests of one and of several groups, with forks, plans, batches and copies of the manager; what is told is
compared with the digests that could be found before a call and cannot be after it, and with `num_evictions`.
Not covered: the order within a call and resets between calls, which the kit compares with the specification.
"""

from __future__ import annotations

from random import Random

import pytest
from tests.core.support import full, mamba, manager_over, sliding

from blockwright import Eviction, Fits, KVCacheManager, KVCacheSpec, Request
from blockwright.core.pool.order.order import BlockHint
from blockwright.errors import InvalidArgumentError

KINDS: dict[str, list[KVCacheSpec]] = {
    "full": [full(2)],
    "full, sliding": [full(4), sliding(2, 5)],
    "full, mamba": [full(2), mamba(2, 1)],
}


def tracking(specs: list[KVCacheSpec], num_blocks: int = 24) -> KVCacheManager:
    return manager_over(specs, num_blocks, track_evictions=True)


def findable(manager: KVCacheManager) -> set[tuple[int, bytes]]:
    pool = manager.block_pool
    pairs = zip(pool.block_groups(), pool.block_keys(), strict=True)
    return {(group, key) for group, key in pairs if group is not None and key is not None}


def admitted(manager: KVCacheManager, request: Request, random: Random) -> bool:
    hit, length = manager.get_computed_blocks(request)
    new = request.num_tokens - length
    if random.random() < 0.5:
        plan = manager.plan(request, new, length, hit)
        return isinstance(plan, Fits) and manager.commit(plan) is not None
    return manager.allocate_slots(request, new, length, hit) is not None


@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_is_what_was_lost(specs: list[KVCacheSpec], seed: int) -> None:
    random = Random(seed)
    manager = tracking(specs)
    running: list[Request] = []
    num_told = 0
    for number in range(150):
        before = findable(manager)
        choice = random.random()
        if choice < 0.4:
            length = random.randint(2, 14)
            request = Request(f"r{number}", [random.randrange(2) for _ in range(length)], 2)
            if admitted(manager, request, random):
                request.num_computed_tokens = length
                running.append(request)
        elif choice < 0.6 and running:
            for request in running:
                request.append_output_token_ids([random.randrange(2)])
            served = manager.allocate_slots_batch(running, 1).num_served
            for request in running[:served]:
                request.num_computed_tokens += 1
            for request in running[served:]:
                manager.free(request)
            del running[served:]
        elif choice < 0.7 and running:
            child = running[0].fork(f"f{number}")
            if manager.fork(running[0], child) is not None:
                running.append(child)
        elif running:
            manager.free(running.pop(random.randrange(len(running))))
        manager.take_copies()
        twin = manager.copy()
        evictions = manager.take_evictions()
        assert evictions == twin.take_evictions()
        assert manager.take_evictions() == []
        after = findable(manager)
        lost = {(each.group, each.block_hash[:16]) for each in evictions}
        assert before - after <= lost <= before | after
        assert all(0 < each.block_id < 24 for each in evictions)
        num_told += len(evictions)
        manager.check()
    assert 0 < num_told <= manager.block_pool.num_evictions


def test_only_the_last_copy_counts() -> None:
    manager = tracking([full(2)], 5)
    one, two = Request("one", [1, 2, 3], 2), Request("two", [1, 2, 3], 2)
    for request in (one, two):  # neither looks the other up, so that both publish the same
        assert manager.allocate_slots(request, 3) is not None
    digest = one.block_hashes[0]
    manager.free(one)
    manager.free(two)
    big = Request("big", list(range(10, 17)), 2)
    assert manager.allocate_slots(big, 5) is not None
    assert manager.take_evictions() == []
    big.num_computed_tokens = 5
    assert manager.allocate_slots(big, 2) is not None
    assert manager.take_evictions() == [Eviction(0, 3, digest)]


def test_resets_are_no_evictions_and_pools_need_caching() -> None:
    manager = tracking([full(2)], 5)
    request = Request("r", [1, 2, 3], 2)
    assert manager.allocate_slots(request, 3) is not None
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.allocate_slots(Request("s", list(range(8)), 2), 8) is not None
    assert manager.take_evictions() == []
    assert manager_over([full(2)], 5).take_evictions() == []
    with pytest.raises(InvalidArgumentError, match="track_evictions"):
        manager_over([full(2)], 5, caching=False, track_evictions=True)


def test_blocks_held_elsewhere_are_counted() -> None:
    manager = tracking([full(2)], 5)
    assert manager.allocate_slots(Request("r", [1, 2, 3], 2), 3) is not None
    manager.block_pool.touch([1, 2, 2])
    manager.check({1: 1, 2: 2})
    manager.block_pool.free_blocks([2, 2, 1])
    manager.check()


@pytest.mark.parametrize(("at", "kept"), [(5.0, True), (9.0, False)])
def test_an_eviction_tells_whose_block_it_was_and_what_kept_it(at: float, kept: bool) -> None:
    manager = tracking([full(2)], 5)
    request = Request("r", [1, 2, 3, 4, 5], 2, cache_salt="a")
    assert manager.allocate_slots(request, 5) is not None
    assert manager.hint_of(request, 0) == BlockHint("a")
    manager.retain(request, 2, priority=3, until=9)
    assert [manager.hint_of(request, token) for token in (0, 2)] == [BlockHint("a", 3, 9), BlockHint("a")]
    manager.free(request)
    manager.advance_time(at)
    twin = manager.copy()
    for each in (manager, twin):
        other = Request("s", list(range(9)), 2)
        assert each.allocate_slots(other, 7) is not None
        assert each.hint_of(other, 0) is None
        hints = [told.hint for told in each.take_evictions()]
        if kept:
            assert hints == [BlockHint("a"), BlockHint("a", 3, 9)], "what was kept goes last"
        else:
            assert hints == [BlockHint("a"), BlockHint("a")]
        each.free(other)
        assert each.allocate_slots(Request("t", list(range(20, 28)), 2), 7) is not None
        assert {told.hint for told in each.take_evictions()} == {None}, "nothing stays with a block"
        each.check()

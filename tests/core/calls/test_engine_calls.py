"""Property: calls for engines that publish after a step, keep their own tokens, lock hits and give slots back.

How: each beside the calls that it stands for, or beside what the same tokens take where they are computed once.
Not covered: every order of these calls (lock-step, in scopes "put off together", "made shorter" and "folded").
"""

import pytest
from tests.core.support import full, manager_dump, manager_of, manager_over, sliding

from blockwright import Fits, KVCacheManager, NotNow, Request
from blockwright.errors import BlockwrightError, DuplicateRequestError, InvalidArgumentError, StaleHitError


def two(manager: KVCacheManager) -> list[Request]:
    requests = [Request(name, [number] * 9, 4) for number, name in enumerate("ab")]
    for request in requests:
        assert manager.allocate_slots(request, 4) is not None
        request.num_computed_tokens = 4
    return requests


def test_a_batch_that_is_put_off_is_published_in_one_call() -> None:
    one, other = manager_of(full(4), 20), manager_of(full(4), 20)
    mine, theirs = two(one), two(other)
    one.allocate_slots_batch(mine, 5, delay_cache_blocks=True)
    for request in theirs:
        other.allocate_slots(request, 5, delay_cache_blocks=True)
    assert [one.num_published(name) for name in "ab"] == [(1,), (1,)]
    assert manager_dump(one) == manager_dump(other)
    one.cache_blocks_batch(mine, 9)
    for request in theirs:
        other.cache_blocks(request, 9)
    assert [one.num_published(name) for name in "ab"] == [(2,), (2,)]
    assert manager_dump(one) == manager_dump(other)


def test_a_batch_with_one_wrong_count_publishes_nothing() -> None:
    manager = manager_of(full(4), 20)
    requests = two(manager)
    manager.allocate_slots_batch(requests, 5, delay_cache_blocks=True)
    before = manager_dump(manager)
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        manager.cache_blocks_batch(requests, [9, 10])
    with pytest.raises(DuplicateRequestError, match="twice"):
        manager.cache_blocks_batch([*requests, requests[0]], 9)
    assert manager_dump(manager) == before


def test_a_locked_hit_outlives_others_and_is_adopted() -> None:
    manager = manager_of(full(4), 6)
    first = Request("first", [1] * 8, 4)
    manager.allocate_slots(first, 8)
    first.num_computed_tokens = 8
    manager.free(first)
    waiting = Request("waiting", [1] * 8, 4)
    hit, length = manager.get_computed_blocks(waiting)
    manager.lock(waiting, length, hit)
    assert manager.allocate_slots(Request("other", [2] * 16, 4), 16) is not None
    manager.check()
    assert manager.allocate_slots(waiting, 1, length, hit) is None  # no block is left for its last tokens
    manager.unlock(hit)
    assert manager.block_pool.num_held_externally == 0
    with pytest.raises(BlockwrightError):
        manager.unlock(hit)
    manager.block_pool.get_new_blocks(1)
    with pytest.raises(StaleHitError):
        manager.lock(waiting, length, hit)


def test_sync_appends_what_is_not_known() -> None:
    tokens = [1, 2, 3]
    request = Request("r", tokens, 2)
    tokens += [4, 5]
    assert (request.sync(tokens), request.sync(tokens), request.num_tokens) == (2, 0, 5)
    with pytest.raises(InvalidArgumentError, match="taken back"):
        request.sync(tokens[:4])
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        request.sync([*tokens, -1])
    assert request.num_tokens == 5


def test_a_plan_tells_the_demand_of_each_group() -> None:
    manager = manager_over([full(4), sliding(2, 4)], 9)
    fits = manager.plan(Request("r", [1] * 8, 2), 8)
    assert isinstance(fits, Fits)
    assert fits.blocks_by_group == [2, 4]
    assert manager.allocate_slots(Request("other", [2] * 8, 2), 8) is not None
    late = manager.plan(Request("r", [1] * 8, 2), 8)
    assert isinstance(late, NotNow)
    assert late.blocks_by_group == [2, 4]


def test_a_single_call_tells_what_it_nulled() -> None:
    manager = manager_of(sliding(2, 4), 20)
    request = Request("r", [1] * 12, 2)
    manager.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    given = manager.allocate_slots(request, 4)
    assert given is not None
    assert given.nulled_entries == ([0, 1],)
    assert manager.get_block_ids("r")[0][:2] == [0, 0]


def test_a_step_that_is_given_up_leaves_what_was_there() -> None:
    manager = manager_of(full(4), 20)
    request = Request("r", [1] * 20, 4)
    manager.allocate_slots(request, 6)
    request.num_computed_tokens = 6
    before = manager.get_block_ids("r"), manager.block_pool.num_free, manager.num_published("r")
    manager.allocate_slots(request, 10)
    manager.shorten(request, 9)
    assert len(manager.get_block_ids("r")[0]) == 3
    manager.shorten(request, 6)
    assert (manager.get_block_ids("r"), manager.block_pool.num_free, manager.num_published("r")) == before
    manager.check()
    with pytest.raises(InvalidArgumentError, match=r"6\.\.6"):
        manager.shorten(request, 5)


def test_samples_that_compute_the_same_hold_one_block_for_it() -> None:
    """Eight samples of 23 blocks each: 184 blocks before, and 23 with the blocks that are not full apart."""
    manager = manager_of(full(4), 400)
    samples = [Request(f"r{i}", [1] * 92, 4) for i in range(8)]
    manager.allocate_slots_batch(samples, 92)
    used = 399 - manager.block_pool.num_free
    for request in samples:
        request.num_computed_tokens = 92
    told = manager.fold_duplicates(samples, 92)
    assert (used, 399 - manager.block_pool.num_free) == (184, 23)
    assert len(told.replaced_entries) == 4 * 7 * 23
    assert {tuple(manager.get_block_ids(request.request_id)[0]) for request in samples} == {tuple(range(1, 24))}
    assert len(manager.fold_duplicates(samples, 92).replaced_entries) == 0
    manager.check()


def test_a_manager_shows_itself() -> None:
    manager = manager_over([full(4), sliding(2, 4)], 9)
    assert manager.allocate_slots(Request("r", [2] * 8, 2), 8) is not None
    assert repr(manager) == (
        "KVCacheManager(2 of 8 blocks free, 1 running, FullAttention in blocks of 4, SlidingWindow(4) in blocks of 2)"
    )
    assert manager._repr_svg_().startswith("<svg")

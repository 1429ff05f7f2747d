"""Property: a manager that tracks evictions reports the last copy of a content only, its owner, and its hint.

How: pools of a few blocks, by hand.
Not covered: which evictions are reported, and in which order (law STEP-4, in lock-step).
"""

from __future__ import annotations

import pytest
from tests.core.support import full, manager_over

from blockwright import Eviction, KVCacheManager, KVCacheSpec, Request
from blockwright.core.pool.order import BlockHint
from blockwright.errors import InvalidArgumentError


def tracking(specs: list[KVCacheSpec], num_blocks: int = 24) -> KVCacheManager:
    return manager_over(specs, num_blocks, track_evictions=True)


def test_only_the_last_copy_counts() -> None:
    manager = tracking([full(2)], 5)
    one, two = Request("one", [1, 2, 3], 2), Request("two", [1, 2, 3], 2)
    for request in (one, two):  # neither looks the other up, so that both publish the same
        assert manager.allocate_slots(request, 3) is not None
        request.num_computed_tokens = 3
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


@pytest.mark.parametrize(("at", "kept"), [(5.0, True), (9.0, False)])
def test_an_eviction_tells_whose_block_it_was_and_what_kept_it(at: float, kept: bool) -> None:
    manager = tracking([full(2)], 5)
    request = Request("r", [1, 2, 3, 4, 5], 2, cache_salt="a")
    assert manager.allocate_slots(request, 5) is not None
    request.num_computed_tokens = 5
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
        other.num_computed_tokens = 7
        each.free(other)
        assert each.allocate_slots(Request("t", list(range(20, 28)), 2), 7) is not None
        assert {told.hint for told in each.take_evictions()} == {None}, "nothing stays with a block"
        each.check()

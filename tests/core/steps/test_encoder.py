"""Property: blocks for the encoder's tokens are there from a request's first step to its last, and nothing caches them.

How: cross attention beside full attention, by hand; errors are compared by a dump of the whole observable state.

Not covered: hybrids, preemption and steps in flight (conformance), groups without cross attention (test_groups.py).
"""

from __future__ import annotations

from tests.core.steps.timed import refused
from tests.core.support import cross, full, manager_of, manager_over

from blockwright import Fits, KVCacheManager, KVCacheSpec, Never, NotNow, Request
from blockwright.errors import InvalidArgumentError


def over(specs: list[KVCacheSpec], num_blocks: int = 33) -> KVCacheManager:
    return manager_over(specs, num_blocks, 100, caching=False)


def test_the_table_covers_the_encoder_alone() -> None:
    manager = over([full(4), cross(4)])
    request = Request("r", list(range(6)), 4)
    given = manager.allocate_slots(request, 6, num_encoder_tokens=9)
    assert given is not None
    assert given.get_block_ids() == manager.get_block_ids("r") == ([1, 2], [3, 4, 5])
    request.num_computed_tokens = 6
    for token in range(6, 40):
        request.append_output_token_ids([token])
        given = manager.allocate_slots(request, 3)  # with two drafts
        assert given is not None
        assert list(given.ids[1]) == []
        request.num_computed_tokens += 1
        assert manager.get_block_ids("r")[1] == [3, 4, 5]
        manager.check()
    assert len(manager.get_block_ids("r")[0]) == 11
    manager.remove_skipped_blocks(request, 40)
    step = manager.allocate_slots_batch([request], 0 + 1, 7)
    assert list(step.new_block_offsets) == [0, len(step.new_block_ids), len(step.new_block_ids)]
    assert manager.get_block_ids("r")[1] == [3, 4, 5]
    manager.free(request)
    assert manager.usage == 0.0
    assert manager.block_pool.block_keys() == [None] * 33


def test_the_encoder_counts_for_the_whole_sequence() -> None:
    manager = over([full(4), cross(4)], 9)  # eight blocks
    request = Request("r", list(range(20)), 4)
    plan = manager.plan(request, 4, num_encoder_tokens=13, full_sequence_must_fit=True)
    assert isinstance(plan, Never)
    assert "9 blocks" in plan.reason
    assert isinstance(manager.plan(request, 4, num_encoder_tokens=12, full_sequence_must_fit=True), Fits)
    assert isinstance(manager.plan(request, 4, num_encoder_tokens=29), Never)
    assert manager.allocate_slots(Request("other", [1], 4), 1) is not None
    plan = manager.plan(request, 4, num_encoder_tokens=12, full_sequence_must_fit=True)
    assert isinstance(plan, NotNow)
    assert plan.num_missing_blocks == 1


def test_encoder_tokens_come_with_the_first_step() -> None:
    manager = over([full(4), cross(4)])
    running = Request("running", list(range(6)), 4)
    assert manager.allocate_slots(running, 6, num_encoder_tokens=5) is not None
    running.num_computed_tokens = 6
    running.append_output_token_ids([1])
    request = Request("r", list(range(6)), 4)
    for call in (manager.allocate_slots, manager.plan):
        assert "num_encoder_tokens" in refused(manager, InvalidArgumentError, call, running, 1, num_encoder_tokens=1)
        for count in (-1, 2**31, 2**63):
            assert "num_encoder_tokens" in refused(
                manager, InvalidArgumentError, call, request, 6, num_encoder_tokens=count
            )
    plain = manager_of(full())
    for call in (plain.allocate_slots, plain.plan):
        assert "num_encoder_tokens" in refused(plain, InvalidArgumentError, call, request, 6, num_encoder_tokens=1)

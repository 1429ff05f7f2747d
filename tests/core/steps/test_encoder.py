"""Property: blocks for the encoder's tokens are there from a request's first step to its last, and nothing caches them.

How: cross attention beside full and sliding attention, by hand and in a random walk; demand against what leaves the
free queue; errors are compared by a dump of the whole observable state.

Not covered: groups without cross attention (test_groups.py).
"""

from __future__ import annotations

from random import Random

import pytest
from tests.core.steps.timed import refused
from tests.core.support import cross, full, mamba, manager_dump, manager_of, manager_over, sliding

from blockwright import Fits, KVCacheManager, KVCacheSpec, Never, NotNow, Request
from blockwright.errors import InvalidArgumentError

KINDS: dict[str, list[KVCacheSpec]] = {
    "full": [full(4), cross(4)],
    "before a window": [cross(3), sliding(2, 5)],
    "between": [full(2), cross(5), mamba(4, 1)],
    "two": [cross(2), full(4), cross(8)],
}


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


def test_no_encoder_no_blocks() -> None:
    manager = over([full(4), cross(4)])
    request = Request("r", list(range(6)), 4)
    assert manager.allocate_slots(request, 6) is not None
    assert manager.get_block_ids("r") == ([1, 2], [])
    manager.check()


@pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())
def test_demand_is_what_is_taken(specs: list[KVCacheSpec]) -> None:
    random, outcomes = Random(1), set()
    sizes = [spec.block_size if type(spec) is type(cross()) else 0 for spec in specs]
    for num_blocks in (9, 14, 25):
        manager, running = over(specs, num_blocks), dict[str, Request]()
        for number in range(60):
            request = Request(f"r{number}", list(range(random.randint(1, 12))), 1)
            encoder, free = random.randint(0, 24), manager.block_pool.get_num_free_blocks()
            plan = manager.plan(request, request.num_tokens, num_encoder_tokens=encoder)
            outcomes.add(type(plan).__name__)
            before = manager_dump(manager)
            given = manager.allocate_slots(request, request.num_tokens, num_encoder_tokens=encoder)
            assert isinstance(plan, Fits) == (given is not None)
            if isinstance(plan, Fits):
                assert plan.num_blocks == free - manager.block_pool.get_num_free_blocks()
                tables = manager.get_block_ids(request.request_id)
                assert all(len(t) == -(-encoder // size) for t, size in zip(tables, sizes, strict=True) if size)
                request.num_computed_tokens = request.num_tokens
                running[request.request_id] = request
            else:
                assert manager_dump(manager) == before
            for name, each in list(running.items()):
                each.append_output_token_ids([1])
                if random.random() < 0.3 or manager.allocate_slots(each, 1) is None:
                    manager.free(running.pop(name))
                    continue
                each.num_computed_tokens += 1
            manager.check()
    assert outcomes == {"Fits", "NotNow", "Never"}


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


def test_preempted_requests_get_their_encoder_again() -> None:
    manager = over([full(4), cross(4)])
    request = Request("r", list(range(6)), 4)
    assert manager.allocate_slots(request, 6, num_encoder_tokens=5) is not None
    manager.free(request)
    assert manager.allocate_slots(request, 6, num_encoder_tokens=9) is not None
    assert len(manager.get_block_ids("r")[1]) == 3
    copy = manager.copy()
    assert manager_dump(copy) == manager_dump(manager)
    copy.free(request.copy())
    assert copy.usage == 0.0
    assert len(manager.get_block_ids("r")[1]) == 3


def test_encoders_with_steps_in_flight() -> None:
    manager = manager_over([sliding(2, 3), cross(4)], 33, 100, caching=False, overlap_steps=True)
    request = Request("r", list(range(6)), 2)
    manager.start_step()
    assert manager.allocate_slots(request, 6, num_encoder_tokens=9) is not None
    request.num_computed_tokens = 6
    manager.start_step()
    assert manager.allocate_slots(request, 1) is not None
    manager.settle_step(1)
    manager.free(request)
    manager.check()
    assert manager.usage > 0
    manager.settle_step(2)
    assert manager.usage == 0.0

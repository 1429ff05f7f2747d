"""Property: blocks for the encoder's tokens come with a request's first step, and count for its whole sequence.

How: cross attention beside full attention, by hand; errors are compared by a dump of the whole observable state.

Not covered: tables of the encoder (the scopes named "encoder"), groups without cross attention (test_groups.py).
"""

from __future__ import annotations

from tests.core.steps.timed import refused
from tests.core.support import cross, full, manager_of, manager_over

from blockwright import Fits, KVCacheManager, KVCacheSpec, Never, NotNow, Request
from blockwright.errors import InvalidArgumentError


def over(specs: list[KVCacheSpec], num_blocks: int = 33) -> KVCacheManager:
    return manager_over(specs, num_blocks, 100, caching=False)


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

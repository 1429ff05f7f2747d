"""Property: a request that is admitted leaves the reserve to others, and its whole sequence fits if that was asked for.

How: reserve and whole-sequence gate at the exact block where the answer changes; requests that were admitted by the
gate run to their end alone, in steps as large as promised.

Not covered: watermarks and what plans count (the scopes named "admission"); that a request which is alone is served
(law LIVE-1, conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import refused
from tests.core.support import chunked, full, mamba, manager_over, sliding, started

from blockwright import Fits, KVCacheManager, KVCacheSpec, Never, NotNow, Request
from blockwright.errors import InvalidArgumentError, NeverFitsError

KINDS: dict[str, list[KVCacheSpec]] = {
    "full": [full()],
    "sliding": [sliding(2, 6)],
    "chunked": [chunked(2, 6)],
    "mamba": [mamba(4, 2)],
    "full, sliding": [full(4), sliding(2, 5)],
    "full, mamba": [full(2), mamba(4, 1)],
    "sliding, chunked, mamba": [sliding(3, 7), chunked(2, 4), mamba(2)],
}
every_kinds = pytest.mark.parametrize("specs", KINDS.values(), ids=KINDS.keys())


def missing(manager: KVCacheManager, request: Request, new: int = 1, **more: int) -> int:
    """The blocks that a plan lacks; 0 if it fits. The call itself agrees."""
    plan = manager.plan(request, new, **more)  # type: ignore[arg-type]
    given = manager.copy().allocate_slots(request.copy(), new, **more)  # type: ignore[arg-type]
    assert isinstance(plan, Fits) == (given is not None)
    if isinstance(plan, NotNow):
        return plan.num_missing_blocks
    assert isinstance(plan, Fits)
    return 0


@pytest.mark.parametrize("watermark", [0.0, 0.2])
def test_reserved_blocks(watermark: float) -> None:
    """They add to the watermark, for this one call; who finds the pool idle need not leave any."""
    manager = manager_over([full(4), sliding(4, 9)], 31, watermark=watermark)
    request, spare = Request("r", list(range(8)), 4), int(watermark * 31)
    for reserve in (0, 1, 30, 31, 2**31 - 1):
        assert missing(manager, request, 8, reserved_blocks=reserve) == 0
    running = started(manager, "running", 8, first=50)
    for reserve in (0, 1, 22 - spare, 23 - spare, 30, 2**31 - 1):
        assert missing(manager, request, 8, reserved_blocks=reserve) == max(0, 4 + spare + reserve - 26)
    running.append_output_token_ids([5])
    assert missing(manager, running, 1, reserved_blocks=2**31 - 1) == 0
    for call in (manager.allocate_slots, manager.plan):
        for reserve in (-1, 2**31, 2**63):
            message = refused(manager, InvalidArgumentError, call, request, 8, reserved_blocks=reserve)
            assert "reserved_blocks" in message


def run_alone(manager: KVCacheManager, request: Request, step: int) -> int:
    """Compute all tokens of a request in steps; return the most blocks held at once."""
    most = 0
    while request.num_computed_tokens < request.num_tokens:
        new = min(step, request.num_tokens - request.num_computed_tokens)
        first = request.num_computed_tokens == 0
        assert manager.allocate_slots(request, new, full_sequence_must_fit=first) is not None
        request.num_computed_tokens += new
        most = max(most, manager.block_pool.num_blocks - 1 - manager.block_pool.get_num_free_blocks())
    return most


@every_kinds
@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 40])
@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_the_gate_is_exact(specs: list[KVCacheSpec], step: int, caching: bool) -> None:
    """Kinds that recycle blocks need less than their tokens cover: the smallest pool that is let in is the smallest
    in which the request could hold its most."""
    for length in (1, 2, 7, 16, 33):
        admitted = 0
        for num_blocks in range(2, 60):
            manager = manager_over(specs, num_blocks, 100, caching)
            request = Request("r", list(range(length)), 1)
            new = min(step, length)
            plan = manager.plan(request, new, full_sequence_must_fit=True)
            if isinstance(plan, Never):
                assert not admitted
                with pytest.raises(NeverFitsError):
                    manager.allocate_slots(request, new, full_sequence_must_fit=True)
                continue
            assert isinstance(plan, Fits)
            most = run_alone(manager, request, new)
            manager.check()
            if not admitted:
                admitted = num_blocks - 1
            assert most == admitted  # neither too small nor too large: `Never` means never
            if num_blocks > admitted + 3:
                break
        assert admitted

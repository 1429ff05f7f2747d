"""Property: a request that is admitted leaves to others what it was told to leave, and its whole sequence fits if that
was asked for.

How: watermark, reserve and the whole-sequence gate at the exact block where the answer changes; requests that were
admitted by the gate run to their end alone, in steps as large as promised.

Not covered: what plans count (test_plans.py); that whoever is alone is served (law LIVE-1, conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import refused
from tests.core.support import (
    chunked,
    full,
    mamba,
    manager_of,
    manager_over,
    needed,
    sliding,
    started,
)

from blockwright import Fits, KVCacheManager, KVCacheSpec, MambaSpec, Never, NotNow, Request
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


# ---------------------------------------------------------------------- watermark and reserve


@pytest.mark.parametrize("watermark", [0.0, 0.1, 0.25, 1])
def test_watermark(watermark: float) -> None:
    """That share of all blocks stays free when a request joins others; running ones may take it."""
    manager = manager_of(full(), 41, watermark=watermark)
    request, spare = Request("r", list(range(160)), 4), int(watermark * 41)
    assert missing(manager, request, 160) == 0  # the pool is idle
    running = started(manager, "running", 3)
    for blocks in (1, 20, 39 - spare, 40 - spare, 38, 39):
        if 0 < blocks < 40:
            assert missing(manager, request, 4 * blocks) == max(0, blocks + spare - 39)
    running.append_output_token_ids([5] * 157)
    assert missing(manager, running, 157) == 0
    assert manager.allocate_slots(running, 157) is not None


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


def test_a_fenced_pool_is_not_idle() -> None:
    manager = manager_of(full(), 11, overlap_steps=True)
    manager.start_step()
    gone, request = Request("gone", [1], 4), Request("r", list(range(20)), 4)
    assert manager.allocate_slots(gone, 1) is not None
    manager.free(gone)
    assert missing(manager, request, 20, reserved_blocks=9) == 5
    manager.settle_step(1)
    manager.start_step()
    assert missing(manager, request, 20, reserved_blocks=9) == 0


# ---------------------------------------------------------------------- the whole sequence


def run_alone(manager: KVCacheManager, request: Request, step: int, encoder: int = 0) -> int:
    """Compute all tokens of a request in steps; return the most blocks held at once."""
    most = 0
    while request.num_computed_tokens < request.num_tokens:
        new = min(step, request.num_tokens - request.num_computed_tokens)
        first = request.num_computed_tokens == 0
        given = manager.allocate_slots(
            request, new, num_encoder_tokens=encoder if first else 0, full_sequence_must_fit=first
        )
        assert given is not None, request.num_computed_tokens
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


def most_at_once(spec: KVCacheSpec, tokens: int, step: int) -> int:
    """The most blocks that a token reads and its step fills, in steps of one size (law PLAN-2)."""
    size, counts = spec.block_size, []
    for start in range(0, tokens, step):
        stop = min(start + step, tokens)
        written = range(stop - 1, stop) if isinstance(spec, MambaSpec) else range(start, stop)
        counts.append(len({position // size for position in needed(spec, start) | set(written)}))
    return max(counts) + (spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0)


WINDOWS = [sliding(3, window) for window in (1, 2, 3, 4, 7, 12)]
CHUNKS = [chunked(2, chunk) for chunk in (2, 6, 8)]


@pytest.mark.parametrize("spec", [full(3), *WINDOWS, *CHUNKS, mamba(1), mamba(3, 2)], ids=str)
def test_the_most_held_at_once(spec: KVCacheSpec) -> None:
    for tokens in (1, 2, 3, 6, 7, 13, 20):
        for step in (1, 2, 3, 4, 7, 20):
            request = Request("r", list(range(tokens)), 1)
            plan = manager_of(spec, 2).plan(request, min(step, tokens), full_sequence_must_fit=True)
            said = int(plan.reason.split()[0]) if isinstance(plan, Never) else 1
            assert said == most_at_once(spec, tokens, min(step, tokens))


# ---------------------------------------------------------------------- nobody waits for ever

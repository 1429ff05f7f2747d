"""Property: the whole sequence of a request that is admitted fits, if that was asked for.

How: the gate at the exact block where the answer changes; requests that were admitted by it run to their end alone, in
steps as large as promised.

Not covered: watermarks, reserves and what plans count (the scopes named "admission"); that a request which is
alone is served (law LIVE-1, conformance).
"""

from __future__ import annotations

import pytest
from tests.core.support import chunked, full, mamba, manager_over, sliding

from blockwright import Fits, KVCacheManager, KVCacheSpec, Never, Request
from blockwright.errors import NeverFitsError

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

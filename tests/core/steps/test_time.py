"""Property: what a step in flight touches is never free, and what is not settled is not found, if so wished.

How: the order in which blocks return is compared with that of a twin that settled first; errors are compared by a dump
of the whole observable state; copies are settled in another order of events than the original.

Not covered: loads (test_loads.py), states of drafts (test_drafts.py), windows, drafts and all orders of calls
(conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import every_kinds, give, over, prefilled, refused
from tests.core.support import full, mamba, manager_dump, manager_of, sliding

from blockwright import KVCacheManager, KVCacheSpec, MambaSpec, Request
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnknownStepError,
    UnsupportedError,
)

# ---------------------------------------------------------------------- fences


@every_kinds
def test_blocks_wait_for_their_step_and_return_in_order(specs: list[KVCacheSpec]) -> None:
    """Released in flight, or settled and then released: the free queue comes out the same (law FENCE-1)."""
    queues = []
    for settles_first in (True, False):
        manager = over(specs)
        old = prefilled(manager, "old", 6, first=70)
        manager.settle_step(1)
        manager.free(old)
        one, two = prefilled(manager, "one"), Request("two", list(range(30, 35)), 2)
        assert give(manager, two, 5)
        free = manager.block_pool.free_block_ids()
        if settles_first:
            manager.settle_step(2)
        for request in (two, one):
            manager.free(request)
            manager.free(request)  # twice is harmless
        if not settles_first:
            assert manager.request_ids() == []
            assert manager.block_pool.free_block_ids() == free
            manager.check()
            manager.settle_step(2)
        assert manager.usage == 0.0
        manager.check()
        queues.append(manager.block_pool.free_block_ids())
    assert queues[0] == queues[1]
    assert len(queues[0]) == 40


# ---------------------------------------------------------------------- settled tokens


@every_kinds
def test_no_hit_on_data_in_flight(specs: list[KVCacheSpec]) -> None:
    """But on what a step before it writes, and of the same step on all but recurrent states."""
    for settles, early in ((False, 8), (True, 0)):
        manager = over(specs, settles=settles)
        request = prefilled(manager, length=8)
        same = Request("same", list(range(9)), 2)
        has_states = any(isinstance(spec, MambaSpec) for spec in specs)
        assert manager.get_computed_blocks(same)[1] == (0 if has_states else early)
        manager.start_step()
        assert manager.get_computed_blocks(same)[1] == early
        assert give(manager, request, 1)
        assert manager.get_computed_blocks(same)[1] == early
        manager.settle_step(1)
        assert manager.get_computed_blocks(same)[1] == 8
        manager.check()
    manager = over(specs, settles=True)
    request = prefilled(manager, length=8)
    refused(manager, InvalidArgumentError, manager.cache_blocks, request, 1)
    manager.free(request)
    manager.settle_step(1)
    assert manager.get_computed_blocks(same)[1] == 0  # nobody asks for it any more
    assert manager.block_pool.block_keys() == [None] * 41


# ---------------------------------------------------------------------- errors


def test_steps_settle_in_order() -> None:
    manager = over([full(), mamba(4, 3)])
    request = prefilled(manager)
    manager.settle_step(1)
    request.append_output_token_ids([9])
    manager.start_step()
    assert give(manager, request, 3, drafts=2)
    gone = Request("gone", list(range(40, 45)), 2)
    assert give(manager, gone, 5)
    manager.free(gone)
    prefilled(manager, "later", first=90)
    for step in (-1, 0, 1, 3, 4, 2**31, 2**63, -(2**63)):
        refused(manager, UnknownStepError, manager.settle_step, step)
        refused(manager, KeyError, manager.settle_step, step, {"r": 1})
    for rejected in ({"r": 3}, {"r": -1}, {"r": 2**63}, {"later": 0}, {"gone": 0}, {"nobody": 1}, {"r": 1, "x": 0}):
        assert "num_rejected_tokens" in refused(manager, InvalidArgumentError, manager.settle_step, 2, rejected)
    for odd in ({"r": 1.5}, {"r": None}, {"r": "1"}, [("r",)], 5):
        refused(manager, (InvalidArgumentError, TypeError, ValueError), manager.settle_step, 2, odd)
    manager.settle_step(2, {"r": 2})
    refused(manager, UnknownStepError, manager.settle_step, 2)
    manager.settle_step(3, {})
    assert "none" in refused(manager, UnknownStepError, manager.settle_step, 3)


def test_slots_belong_to_a_step() -> None:
    manager = over([full()])
    request = Request("r", list(range(9)), 2)
    calls = (manager.allocate_slots, manager.plan, lambda r, n: manager.allocate_slots_batch([r], n))
    for call in calls:
        refused(manager, UnknownStepError, call, request, 1)
        refused(manager, UnknownStepError, call, request, 9)
    manager.start_step()
    assert give(manager, request, 9)
    for call in calls:
        refused(manager, DuplicateRequestError, call, request, 1)
    manager.settle_step(1)
    for call in calls:
        refused(manager, UnknownStepError, call, request, 1)
    manager.start_step()
    request.num_computed_tokens = 8
    for call in calls:
        refused(manager, InvalidArgumentError, call, request, 1)
    refused(manager, UnknownRequestError, manager.num_settled, "nobody")


def test_without_overlap_there_are_no_steps() -> None:
    manager = manager_of(full())
    assert "overlap_steps" in refused(manager, UnsupportedError, manager.start_step)
    refused(manager, UnknownStepError, manager.settle_step, 1)
    assert manager.steps_in_flight == []
    request = Request("r", list(range(9)), 2)
    assert give(manager, request, 9)
    assert manager.num_settled("r") == 0
    refused(manager, UnknownRequestError, manager.num_settled, "nobody")
    manager.free(request)
    refused(manager, UnknownRequestError, manager.num_settled, "r")
    assert manager.usage == 0.0


# ---------------------------------------------------------------------- copies


def history(manager: KVCacheManager, request: Request, other: Request) -> object:
    """Settle, go on and release; the outcome of all of it."""
    manager.settle_step(1)
    manager.free(other)
    request.append_output_token_ids([77, 78])
    request.num_computed_tokens = 9
    manager.start_step()
    assert give(manager, request, 1)
    manager.settle_step(2)
    manager.check()
    return manager_dump(manager)


def test_copies_have_their_own_steps() -> None:
    manager = over([full(), sliding(2, 4)])
    request, other = prefilled(manager), Request("other", list(range(50, 58)), 2)
    assert give(manager, other, 8)
    copy = manager.copy()
    twins = request.copy(), other.copy()
    before = manager_dump(manager)
    assert manager_dump(copy) == before
    expected = history(copy, *twins)
    assert manager_dump(manager) == before
    assert history(manager, request, other) == expected


@pytest.mark.parametrize("specs", [[full(2)], [full(2), mamba(2)]], ids=["full", "full, mamba"])
def test_copies_publish_by_their_own_tokens(specs: list[KVCacheSpec]) -> None:
    """On settlement, too: what the original's request says by then is of no concern, nor the other way round."""
    manager = over(specs, settles=True)
    request = prefilled(manager, length=3)
    manager.start_step()
    assert give(manager, request, 1)  # the token that the first step will give
    manager.settle_step(1)
    copy, twin = manager.copy(), request.copy()
    request.append_output_token_ids([50])
    twin.append_output_token_ids([60])
    for each in (copy, manager):
        each.settle_step(2)
        each.check()
    assert manager.get_computed_blocks(Request("same", [0, 1, 2, 50, 9], 2))[1] == 4
    assert manager.get_computed_blocks(Request("not", [0, 1, 2, 60, 9], 2))[1] == (2 if len(specs) == 1 else 0)
    assert copy.get_computed_blocks(Request("not", [0, 1, 2, 50, 9], 2))[1] == (2 if len(specs) == 1 else 0)

"""Property: what a step in flight touches is never free, and what is not settled is neither trimmed nor, if so wished,
found.

How: managers with steps in flight, by hand and in random walks; the order in which blocks return is compared with that
of a twin that settled first; errors are compared by a dump of the whole observable state.

Not covered: loads (test_loads.py), states of drafts (test_drafts.py), all orders of calls (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import every_kinds, give, over, prefilled, refused
from tests.core.support import chunked, full, mamba, manager_of, needed, sliding

from blockwright import KVCacheSpec, MambaSpec, Request
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


def test_blocks_wait_for_the_last_step_that_touches_them() -> None:
    manager = over([full()])
    request = prefilled(manager)
    other = prefilled(manager, "other", first=50)
    assert give(manager, request, 1)
    manager.start_step()  # neither is in the third
    free = manager.block_pool.get_num_free_blocks()
    manager.free(request)
    manager.settle_step(1)
    assert manager.block_pool.get_num_free_blocks() == free
    manager.free(other)
    assert manager.block_pool.get_num_free_blocks() == free
    manager.settle_step(2)
    assert manager.usage == 0.0
    assert manager.steps_in_flight == [3]
    last = Request("last", [1, 2], 2)
    assert give(manager, last, 2)
    manager.settle_step(3)
    manager.free(last)  # its step is settled: nothing to wait for
    assert manager.usage == 0.0


def test_fenced_blocks_are_nobodys() -> None:
    """A pool that is full of fenced blocks serves nobody; a new request under the old name waits as others do."""
    manager = over([full()], 4)
    request = prefilled(manager)
    manager.free(request)
    again = Request("r", list(range(60, 69)), 2)
    assert not give(manager, again, 9)
    assert not manager.reset_prefix_cache()
    manager.settle_step(1)
    manager.start_step()
    assert give(manager, again, 9)
    assert manager.get_block_ids("r") == ([3, 2, 1],)
    refused(manager, InvalidArgumentError, manager.settle_step, 2, {"r": 1})


def test_preempted_within_a_step_and_readmitted() -> None:
    """The step then computes tokens for the old tables and for the new; only the new ones settle for the request."""
    manager = over([full(), sliding()])
    request = prefilled(manager, length=8)
    manager.free(request)
    request.num_computed_tokens = 0
    hit, tokens = manager.get_computed_blocks(request)
    assert tokens == 4  # published when scheduled: the step writes it before anyone reads it
    assert manager.allocate_slots(request, 4, tokens, hit) is not None
    manager.check()
    assert manager.num_settled("r") == 4
    manager.settle_step(1)
    assert manager.num_settled("r") == 8
    manager.check()
    manager.free(request)
    assert manager.usage == 0.0


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


def test_a_settled_state_is_found_where_its_certain_tokens_end() -> None:
    """Whatever becomes of the drafts: theirs have blocks of their own."""
    for rejected in (0, 1, 2):
        manager = over([mamba(2, 2)], settles=True)
        request = prefilled(manager, length=3)
        manager.settle_step(1)
        request.append_output_token_ids([3])
        manager.start_step()
        assert give(manager, request, 3, drafts=2)
        state = manager.get_block_ids("r")[0][1]
        assert manager.get_computed_blocks(Request("same", list(range(9)), 2))[1] == 0
        manager.settle_step(2, {"r": rejected})
        hit, tokens = manager.get_computed_blocks(Request("same", list(range(9)), 2))
        assert (tokens, hit.get_block_ids()) == (4, ([0, state],))
        manager.check()


@pytest.mark.parametrize("spec", [sliding(2, 3), sliding(1, 4), chunked(2, 4)])
def test_windows_are_trimmed_on_settled_tokens(spec: KVCacheSpec) -> None:
    manager, size = over([spec]), spec.block_size
    request, in_flight, settled = Request("r", list(range(5)), size), list[int](), 0
    for number in range(1, 30):
        assert manager.start_step() == number
        new = 5 if number == 1 else 1
        assert give(manager, request, new)
        in_flight.append(new)
        (table,) = manager.get_block_ids("r")
        read = {position // size for position in needed(spec, settled)}
        dead = [entry for entry in range(len(table)) if (entry + 1) * size <= settled and entry not in read]
        assert [entry for entry, block in enumerate(table) if not block] == dead
        manager.check()
        if number % 3:
            settled += in_flight.pop(0)
            manager.settle_step(number - len(in_flight))
            request.append_output_token_ids([number])
            assert manager.num_settled("r") == settled
            refused(manager, InvalidArgumentError, manager.remove_skipped_blocks, request, settled + 1)
    assert dead


def test_rejected_drafts_move_later_steps_back() -> None:
    manager = over([full(2), sliding(2, 4)])
    request = prefilled(manager, length=4)
    manager.settle_step(1)
    request.append_output_token_ids([4])
    manager.start_step()
    assert give(manager, request, 4, drafts=3)
    manager.start_step()
    assert give(manager, request, 3, drafts=2)
    assert (manager.num_settled("r"), request.num_computed_tokens) == (4, 11)
    manager.settle_step(2, {"r": 2})
    assert manager.num_settled("r") == 6
    for count in (11, 10, 8):
        request.num_computed_tokens = count
        manager.start_step()
        refused(manager, InvalidArgumentError, manager.allocate_slots, request, 1)
    request.num_computed_tokens = 9
    request.append_output_token_ids([5, 6])
    assert give(manager, request, 1)
    manager.settle_step(3, {"r": 2})
    assert manager.num_settled("r") == 7
    request.num_computed_tokens = 8
    request.append_output_token_ids([7])
    manager.start_step()
    assert give(manager, request, 1)
    while manager.steps_in_flight:
        manager.settle_step(manager.steps_in_flight[0])
    assert manager.num_settled("r") == 9
    assert manager.num_published("r") == (4, 4)
    assert manager.block_pool.block_key(manager.get_block_ids("r")[0][3]) == request.block_hashes[3]
    manager.check()


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

"""Property: a recurrent layer goes back from rejected drafts to the state of the last accepted token, and no further.

How: the state that is told after none, some and all drafts were accepted; numbers of states and errors by hand.

Not covered: what states hold (forks/test_forks.py), drafts of attention alone (test_slots.py), all else (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import refused
from tests.core.support import full, mamba, manager_dump, manager_of, manager_over

from blockwright import KVCacheManager, KVCacheSpec, MambaSpec, Request
from blockwright.errors import InvalidArgumentError


def drafted(manager: KVCacheManager, drafts: int = 2) -> Request:
    """A request of 8 computed tokens and one more, which a step computes with drafts after it."""
    request = Request("r", list(range(8)), 4)
    assert manager.allocate_slots(request, 8) is not None
    request.num_computed_tokens = 8
    request.append_output_token_ids([8])
    assert manager.allocate_slots(request, 1 + drafts, num_draft_tokens=drafts) is not None
    return request


@pytest.mark.parametrize("caching", [True, False])
def test_the_state_follows_what_was_accepted(caching: bool) -> None:
    for accepted in (0, 1, 2):
        manager = manager_over([full(4), mamba(4, 2)], caching=caching)
        request = drafted(manager)
        (last, states) = manager.get_block_ids("r")[1][-1], manager.get_draft_block_ids("r")[1]
        request.append_output_token_ids(list(range(9, 10 + accepted)))
        request.num_computed_tokens = 9 + accepted
        assert manager.get_state_block_ids(request) == [0, [last, *states][accepted]]
        request.num_computed_tokens = 12
        assert manager.get_state_block_ids(request) == [0, 0]  # no such state was written


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("drafts", [0, 2])
def test_the_state_follows_decoding_without_drafts(caching: bool, drafts: int) -> None:
    manager = manager_over([full(4), mamba(4, drafts)], caching=caching)
    request = Request("r", list(range(6)), 4)
    for new in (6, 1, 1, 1):
        assert manager.allocate_slots(request, new) is not None
        request.num_computed_tokens += new
        assert manager.get_state_block_ids(request) == [0, manager.get_block_ids("r")[1][-1]]
        request.append_output_token_ids([7])
    request.num_computed_tokens += 1
    assert manager.get_state_block_ids(request) == [0, 0]  # a step that has been given no slots


@pytest.mark.parametrize("caching", [True, False])
def test_no_more_drafts_than_states(caching: bool) -> None:
    several: list[tuple[list[KVCacheSpec], int]] = [
        ([mamba(4, 2)], 2),
        ([mamba(2, 3), full(), mamba(4, 1)], 1),
        ([mamba(), full()], 0),
    ]
    for specs, most in several:
        manager = manager_over(specs, caching=caching)
        request = Request("r", list(range(8)), 2)
        for drafts in (most + 1, 7, 90):
            for call in (manager.allocate_slots, manager.plan):
                message = refused(manager, InvalidArgumentError, call, request, 8 + drafts, num_draft_tokens=drafts)
                assert "num_draft_tokens" in message or "max_model_len" in message
                refused(manager, InvalidArgumentError, call, request, 8, num_lookahead_tokens=drafts)
            refused(manager, InvalidArgumentError, manager.allocate_slots_batch, [request], 8 + drafts, 0, drafts)
        for new, drafts in ((9, 0), (8, 1), (9, 9), (10, 1), (8 + most, most + 1)):  # drafts that are none, or not told
            refused(manager, InvalidArgumentError, manager.allocate_slots, request, new, num_draft_tokens=drafts)
        assert manager.allocate_slots(request, 8 + most, 0, None, most, False, most) is not None
        kept = [spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0 for spec in specs]
        assert [len(ids) for ids in manager.get_draft_block_ids("r")] == kept


def test_going_back_no_further_than_what_is_certain() -> None:
    manager = manager_over([full(4), mamba(4, 2)])
    request = drafted(manager)
    for computed in (8, 12, 0):
        request.num_computed_tokens = computed
        before = manager_dump(manager)
        for drafts in (0, 1):
            refused(manager, InvalidArgumentError, manager.allocate_slots, request, 1 + drafts, num_draft_tokens=drafts)
        assert manager_dump(manager) == before
    request.num_computed_tokens = 9
    request.append_output_token_ids([60])
    assert manager.allocate_slots(request, 3, num_draft_tokens=2) is not None
    manager.check()


def test_a_lookahead_beyond_the_states_is_named() -> None:
    manager = manager_of(mamba(4, 2))
    request = Request("r", list(range(8)), 4)
    for new, drafts in ((8, 0), (10, 2)):
        counts = {"num_lookahead_tokens": 3, "num_draft_tokens": drafts}
        message = refused(manager, InvalidArgumentError, manager.allocate_slots, request, new, **counts)
        assert "num_lookahead_tokens" in message

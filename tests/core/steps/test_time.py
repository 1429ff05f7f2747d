"""Property: slots belong to a step, steps settle in order, and what a copy publishes is its own.

How: errors are compared by a dump of the whole observable state.

Not covered: when blocks become free and data becomes findable, and all else of copies (the scopes named "in flight").
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import give, over, prefilled, refused
from tests.core.support import full, mamba, manager_of

from blockwright import KVCacheSpec, Request
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnknownStepError,
    UnsupportedError,
)


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
    assert "no step is in flight" in refused(manager, UnknownStepError, manager.settle_step, 3)


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

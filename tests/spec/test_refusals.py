"""Property: every call about a request that holds no block table is refused as wrong, and so is a wrong choice of rows.

How: each call once, on a request that was never sent; rows that are moved from or to a wrong place. Not covered: all
other reasons (the scopes named "wrong calls").
"""

from collections.abc import Callable

import pytest

from blockwright_spec.manager import retention, transitions
from blockwright_spec.manager.in_time import forks
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Outcome, Reason, Refusal, Step
from blockwright_spec.manager.state import Config, State, initial
from blockwright_spec.reads import Full, Group
from blockwright_spec.worker.rows import Row, RowRefusal, compact

STATE = initial(Config((Group(Full(), 2),), 4, 8), 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda state: transitions.grow(state, 0, 0, Step(1), LRU),
        lambda state: transitions.append_output(state, 0, (1,)),
        lambda state: transitions.publish(state, 0, 1),
        lambda state: transitions.trim(state, 0, 1, LRU),
        lambda state: transitions.preempt(state, 0, LRU),
        lambda state: retention.retain(state, 0, 1, 1, 1),
        lambda state: retention.release_prefix(state, 0, 0),
        lambda state: forks.fork(state, 0, 1, LRU),
    ],
)
def test_only_what_runs_is_served(call: Callable[[State], Outcome]) -> None:
    assert call(STATE) == Refusal(Reason.NOT_RUNNING)


@pytest.mark.parametrize("moves", [((0, 1),), ((1, 0),), ((2, 0),), ((2, 3),), ()])
def test_only_rows_are_moved_and_only_to_gaps(moves: tuple[tuple[int, int], ...]) -> None:
    row = Row(0, ((),), ((),))
    assert compact((row, None, row), moves) is RowRefusal.ILLEGAL_ORDER
    assert compact((row, None, row), ((2, 1),)) == (row, row, None)

"""Property: a run of long histories that fails is a violation of its row, under the law that the error names.

How: runs that raise each kind of error, after one that went well.
Not covered: what the machines and walks do (`test_paged.py`, `test_offload.py`).
"""

import pytest

from blockwright.errors import InvariantError
from blockwright_conformance.rows import ran
from blockwright_lab.data_movement.tables_scopes import BrokenError

INVARIANT = InvariantError("TIER-2", "places", 1, 2)


@pytest.mark.parametrize(
    ("error", "law", "detail"),
    [
        (BrokenError("PAGE-1", "counts differ"), "PAGE-1", "counts differ"),
        (BrokenError("CHAIN-3", "other bytes"), "CHAIN-3", "other bytes"),
        (INVARIANT, "TIER-2", f"InvariantError: {INVARIANT}"),
        (KeyError("lost"), "REF-0", "KeyError: 'lost'"),
    ],
)
def test_a_run_that_fails_is_a_violation(error: Exception, law: str, detail: str) -> None:
    def fails() -> dict[str, int]:
        raise error

    row = ran("some machine", "a world", [lambda: {"store": 2}, fails, lambda: {"store": 5}])
    assert (row.violations, row.law, row.detail) == (1, law, detail)
    assert row.fired == {"store": 2}


def test_runs_that_go_well_are_summed() -> None:
    row = ran("some machine", "a world, large", [lambda: {"store": 2}, lambda: {"store": 1, "load": 1}])
    assert (row.violations, row.transitions, row.fired, row.manager) == (0, 4, {"store": 3, "load": 1}, "a world")

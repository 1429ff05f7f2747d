"""Property: the last table of a report adds up its rows, and leaves none of them out.

How: rows of known and unknown kinds, that count things and that do not, are summed.
Not covered: what the table looks like (tests/conformance/kit/test_command.py).
"""

from blockwright_conformance.gates import GateResult, gates
from blockwright_conformance.summary import as_data, cells, sums


def row(kind: str, violations: int = 0, tried: int = 0, passed: int = 0) -> GateResult:
    return GateResult(kind, "scope", "manager", 3, 5, violations, 0.25, tried=tried, passed=passed)


def test_rows_that_count_nothing_are_one_thing_each() -> None:
    (found,) = sums([row("lockstep"), row("paged", violations=2)]).values()
    assert (found.kind, found.tried, found.passed) == ("lock-step", 2, 1)
    assert (found.states, found.transitions, found.violations, found.seconds) == (6, 10, 2, 0.5)


def test_rows_that_count_are_added() -> None:
    (found,) = sums([row("mutants"), row("mutants", tried=12, passed=11), row("mutants", tried=3, passed=3)]).values()
    assert (found.tried, found.passed) == (15, 14)
    assert cells([row("known-bugs", tried=1, passed=1)])[0][2] == "1 of 1 caught"


def test_a_kind_without_a_way_is_shown_all_the_same() -> None:
    assert as_data([row("new")])["new"]["tried"] == 1


def test_no_kind_has_two_ways() -> None:
    ways = {way for gate in gates().values() for way in gate.ways}
    kinds = [kind for way in ways for kind in way.kinds]
    assert len(kinds) == len(set(kinds))

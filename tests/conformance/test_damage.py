"""Property: every known bug either corrupts data, and then fails in the engine, or is said not to, and why.

How: both tables hold every known bug; worlds of each kind (on the device, offloaded, below the host, block tables) are
run with their bugs; a change that changes nothing, one that runs on and on, one that does not fit, one that only leaks,
and a world in which the implementation itself fails must all be violations.
Not covered: every world (`blockwright conform`, gate numerics).
"""

from dataclasses import replace

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.known_bugs.bugs import BUGS

pytest.importorskip("torch")

from blockwright_lab.known_bugs.changes import Change
from blockwright_lab.numerics import damage_gate
from blockwright_lab.numerics.engine.schedule import Job, Schedule, shown
from blockwright_lab.numerics.shown import HARMLESS, SHOWN
from blockwright_lab.numerics.worlds import WORLDS

IDENTITIES = WORLDS["identities"]


def test_the_tables_hold_every_bug_once_and_every_world() -> None:
    assert sorted([*SHOWN, *HARMLESS]) == sorted(bug.id for bug in BUGS)
    assert set(SHOWN.values()) == set(WORLDS)
    assert all(HARMLESS.values())
    assert damage_gate.size(Profile()) == len(WORLDS)
    assert damage_gate.size(Profile(scope="B62")) == 1
    assert damage_gate.size(Profile(implementation="other:Adapter")) == 0


@pytest.mark.parametrize(
    "name", ["draft head over attention and states", "identities", "other weights", "loaded late", "naive, block 4"]
)
def test_worlds_pass_unchanged_and_show_their_bugs(name: str) -> None:
    rows = damage_gate.rows_of(name)
    assert len(rows) > 1
    assert [row.detail for row in rows if row.violations] == []
    assert all(row.law.startswith(("NUMERICS", "PAGE-4")) for row in rows[1:])


def test_the_gate_gives_a_row_for_what_is_unchanged_and_one_for_each_bug() -> None:
    seen: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        seen.append(note)

    rows = damage_gate.run(Profile(jobs=1, scope="B42"), progress)
    assert rows[0].scope == "unchanged, in 2 places"
    assert [row.scope.split()[0] for row in rows[1:]] == ["B42a", "B42b"]
    assert not any(row.violations for row in rows)
    assert seen == ["dropped", "dropped, settled"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Change("make_prefix_cache_stats", "state = self._state", "state  =  self._state"), "everything is right"),
        (Change("make_prefix_cache_stats", "no_such_name"), "StaleChangeError"),
        (Change("transitions.find", "num_computed == 0", "while True:\n    pass", "before"), "on and on"),
        (Change("vacate", "manager.release(table)"), "REF-1"),
    ],
)
def test_what_is_not_caught_is_a_violation(change: Change, told: str) -> None:
    row = damage_gate.caught("B00", IDENTITIES, (change,))
    assert row.violations == 1
    assert told in row.detail


def test_a_world_that_fails_unchanged_is_a_violation() -> None:
    assert isinstance(IDENTITIES, Schedule)
    too_long = replace(IDENTITIES, jobs=(Job(own=100),))
    assert damage_gate.unchanged("too long", too_long).violations == 1
    assert "Job(own=100)" in shown(too_long)

"""Property: every exhibit of the museum either corrupts data, and then fails in the engine, or is said not to, and why.

How: both tables are the museum; worlds of each kind (on the device, offloaded, below the host, block tables) are run
with their exhibits; a patch that changes nothing, one that runs on and on, one that does not fit, one that only leaks,
and a world in which the implementation itself fails must all be violations.
Not covered: every world (`blockwright conform`, gate numerics).
"""

from dataclasses import replace

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.known_bugs.gate import EXHIBITS

pytest.importorskip("torch")

from blockwright_lab.known_bugs.known_bug import patch
from blockwright_lab.numerics import damage_gate as museum
from blockwright_lab.numerics.engine.schedule import Job, Schedule, shown
from blockwright_lab.numerics.shown import HARMLESS, SHOWN
from blockwright_lab.numerics.worlds import WORLDS

IDENTITIES = WORLDS["identities"]


def test_the_tables_hold_every_exhibit_once_and_every_world() -> None:
    assert sorted([*SHOWN, *HARMLESS]) == sorted(exhibit.id for exhibit in EXHIBITS)
    assert set(SHOWN.values()) == set(WORLDS)
    assert all(HARMLESS.values())
    assert museum.size(Profile()) == len(WORLDS)
    assert museum.size(Profile(scope="B62")) == 1
    assert museum.size(Profile(implementation="other:Adapter")) == 0


@pytest.mark.parametrize(
    "name", ["draft head over attention and states", "identities", "other weights", "loaded late", "forked tables"]
)
def test_worlds_pass_unchanged_and_show_their_exhibits(name: str) -> None:
    rows = museum.rows_of(name)
    assert len(rows) > 1
    assert [row.detail for row in rows if row.violations] == []
    assert all(row.law.startswith("NUMERICS") for row in rows[1:])


def test_the_gate_gives_a_row_for_what_is_unchanged_and_one_for_each_exhibit() -> None:
    seen: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        seen.append(note)

    rows = museum.run(Profile(jobs=1, scope="B42"), progress)
    assert rows[0].scope == "unchanged, in 2 places"
    assert [row.scope.split()[0] for row in rows[1:]] == ["B42a", "B42b"]
    assert not any(row.violations for row in rows)
    assert seen == ["dropped", "dropped, settled"]


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("manager.py", "self._num_lookups = 0\n", "self._num_lookups = 0  # as before\n", "everything is right"),
        ("manager.py", "no such text", "", "StalePatchError"),
        (
            "manager.py",
            "        if num_computed == 0:\n",
            "        while True:\n            pass\n        if True:\n",
            "on and on",
        ),
        ("running.py", "                manager.release(table)\n", "                pass\n", "REF-1"),
    ],
)
def test_what_is_not_caught_is_a_violation(file: str, old: str, new: str, told: str) -> None:
    row = museum.caught("B00", IDENTITIES, (patch(file, old, new),))
    assert row.violations == 1
    assert told in row.detail


def test_a_world_that_fails_unchanged_is_a_violation() -> None:
    assert isinstance(IDENTITIES, Schedule)
    too_long = replace(IDENTITIES, jobs=(Job(own=100),))
    assert museum.unchanged("too long", too_long).violations == 1
    assert "Job(own=100)" in shown(too_long)

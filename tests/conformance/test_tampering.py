"""Property: whatever is taken from the checks is missed: a gate fails, and is named.

How: a fixed sample of tampers is done (laws removed, refusals left out, exhibits taken away, the museum emptied);
tampers of every sort are there for everything there is; a tamper that nothing misses is a violation; leaving out
a scope fails the row of goals. With `BLOCKWRIGHT_NIGHTLY` in the environment every tamper is done, which takes minutes.
Not covered: tampering with the kit's own code.
"""

import os

import pytest

from blockwright_conformance import scope_goals, tampering
from blockwright_conformance.gates import GateResult
from blockwright_conformance.museum import EXHIBITS, NOT_POSSIBLE
from blockwright_conformance.museum_corpus import CORPUS, DECIDED, owed
from blockwright_conformance.scope_goals import SCOPES, goals_of, goals_rows, settings, wanted
from blockwright_conformance.spec_mutants import ALL_LAWS
from blockwright_conformance.tampering import Tamper, exhibits_gone, row_of, tampers

EVERY = list(tampers())
BRIEF = [each for each in EVERY if each.sort != "scope skipped"]


def caught(left: list[str]) -> list[GateResult]:
    """The rows of a museum in which these exhibits were caught."""
    return [GateResult("museum", f"{name} shown", "", 0, 0, 0, 0.0) for name in left]


def test_there_are_tampers_with_everything() -> None:
    sorts = [each.sort for each in EVERY]
    assert sorts.count("law removed") == len(ALL_LAWS)
    assert sorts.count("scope skipped") == sum(map(len, SCOPES.values()))
    assert sorts.count("exhibit taken away") == len(EXHIBITS)
    assert sorts.count("refusal left out") > 80
    assert len({(each.sort, each.name) for each in EVERY}) == len(EVERY)


@pytest.mark.parametrize("tamper", BRIEF[::9], ids=lambda tamper: f"{tamper.sort}: {tamper.name}"[:60])
def test_a_sample_of_tampers_is_noticed(tamper: Tamper) -> None:
    row = row_of(tamper)
    assert row.violations == 0, row
    assert row.manager in ("spec", "museum", "lockstep", "paged", "offload", "inputs")


def test_removing_leaves_the_laws_as_they_were() -> None:
    law = next(each for each in ALL_LAWS if each.id == "REF-1")
    before = law.holds.__code__
    row_of(next(each for each in EVERY if each.name == "REF-1"))
    assert law.holds.__code__ is before


def test_a_tamper_that_nothing_misses_is_a_violation() -> None:
    row = row_of(Tamper("law removed", "none", lambda: ("", "")))
    assert (row.violations, row.law, row.detail) == (1, "TAMPER-1", "no gate fails")


def test_the_museum_owes_every_bug() -> None:
    every = [each.id for each in EXHIBITS]
    assert owed(caught(every), EXHIBITS, NOT_POSSIBLE).violations == 0
    assert "B13 is not caught" in owed(caught([each for each in every if each != "B13"]), EXHIBITS, NOT_POSSIBLE).detail
    assert "B33 is not caught" in exhibits_gone("B33b")[1]
    assert owed(caught(every), EXHIBITS, NOT_POSSIBLE | {"B13": "no place"}).detail == "B13 is excused and shown"
    assert owed([], (), NOT_POSSIBLE).violations == len(CORPUS) + len(DECIDED) - len(NOT_POSSIBLE) + 1


def test_an_uncaught_exhibit_is_owed() -> None:
    rows = caught([each.id for each in EXHIBITS if each.id != "B13"])
    rows.append(GateResult("museum", "B13 shown", "", 0, 0, 1, 0.0))
    assert owed(rows, EXHIBITS, NOT_POSSIBLE).violations == 1


@pytest.mark.parametrize("gate", SCOPES)
def test_goals_are_of_dimensions_and_not_of_scopes(gate: str) -> None:
    found = {setting for scope in SCOPES[gate] for setting in settings(scope)}
    assert found == {setting for setting, _ in wanted()[gate]}


def test_a_goal_that_is_not_met_fails_the_row() -> None:
    rows = [
        GateResult("offload", scope.name, "", 0, 0, 0, 0.0, fired=dict.fromkeys(events, 1))
        for scope in SCOPES["offload"]
        for events in ({event for setting, event in wanted()["offload"] if setting in set(settings(scope))},)
    ]
    assert goals_rows("offload", rows, SCOPES["offload"])[0].violations == 0
    row = goals_rows("offload", [row for row in rows if "span 2" not in row.scope], SCOPES["offload"])[0]
    assert row.law == "SEEN-2"
    assert "blocks of several" in row.detail


def test_a_scope_that_alone_meets_no_goal_fails_the_row() -> None:
    few = SCOPES["paged"][:3]
    rows = [GateResult("paged", scope.name, "", 0, 0, 0, 0.0, fired={scope.name: 1}) for scope in few]
    assert goals_rows("paged", rows, few)[1].violations == 0
    rows[1].fired.clear()
    row = goals_rows("paged", rows, few)[1]
    assert (row.law, row.violations) == ("SEEN-3", 1)
    assert few[1].name in row.detail


def test_goals_are_settings_with_events() -> None:
    scope = SCOPES["paged"][0]
    assert goals_of(scope, ["Fork"]) == {(setting, "Fork") for setting in settings(scope)}


by_night = pytest.mark.skipif("BLOCKWRIGHT_NIGHTLY" not in os.environ, reason="set BLOCKWRIGHT_NIGHTLY to run it")


@by_night
@pytest.mark.slow
@pytest.mark.parametrize("gate", SCOPES)
def test_skipping_a_scope_is_noticed(gate: str) -> None:
    names = [name for name in scope_goals.names() if scope_goals.gate_of(name) == gate]
    assert [name for name in names if not scope_goals.goals_met(name).violations] == []


@by_night
@pytest.mark.slow
def test_every_tamper_is_noticed() -> None:
    unnoticed = [row.scope for each in EVERY if (row := row_of(each)).violations]
    assert unnoticed == []


def test_the_command_prints_what_failed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tampering", "--scope", "exhibit taken away: B0", "--sample", "5"])
    assert tampering.main() == 0
    assert "gate that fails" in capsys.readouterr().out

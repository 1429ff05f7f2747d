"""Property: the numbers of the documentation are those of the gates, and a number that has changed is noticed.

How: the check of the committed data passes (what is cheap is recomputed); a field of a report that is compared is
changed, and the change is named; seconds may differ; the command writes files that its check then accepts.
Not covered: the numbers of scopes themselves, which only a fresh report can confirm (`make conform docs-check`).
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from blockwright_conformance.kv_cache.scopes import PROFILES
from blockwright_lab.book import report, spaces
from blockwright_lab.book.__main__ import checked, main
from blockwright_lab.known_bugs.bugs import BUGS

DATA = Path(__file__).resolve().parents[2] / "docs/data"


def row(kind: str, scope: str, **more: Any) -> dict[str, Any]:
    """A row of a report."""
    numbers = {"states": 3, "transitions": 7, "violations": 0, "seconds": 0.5, "law": None, "detail": None}
    return {"kind": kind, "manager": "full", "scope": scope, **numbers, "trace": None, **more}


REPORT: dict[str, Any] = {
    "profile": "pr",
    "build": "pure",
    "scope": "",
    "gates": [
        row("contract", "a statement", states=0, transitions=0),
        row("lockstep", "a world"),
        row("known-bugs", "B02 a bug", law="QUEUE-1", detail="caught by QUEUE-1 after 3 calls", trace=["a", "b"]),
        row("known-bugs", "unchanged, in 2 places"),
        row("damage", "B02 a bug", law="NUMERICS-1", detail="wrong"),
        row("machine", "a history"),
    ],
}


def changed(at: int, **more: Any) -> dict[str, Any]:
    """The report with a row changed."""
    other = copy.deepcopy(REPORT)
    other["gates"][at].update(more)
    return other


def test_committed_data_is_current() -> None:
    assert list(checked(DATA, None)) == []


def test_a_report_agrees_with_itself_whatever_it_took() -> None:
    kept = report.gates(REPORT)
    assert list(report.stale(kept, REPORT)) == []
    assert list(report.stale(kept, changed(1, seconds=99.0))) == []
    assert list(report.stale(kept, changed(5, transitions=8))) == []  # a random history


@pytest.mark.parametrize(
    ("at", "field", "value"),
    [(1, "states", 4), (1, "transitions", 8), (0, "violations", 1), (2, "detail", "caught by QUEUE-1 after 4 calls")],
)
def test_a_changed_number_is_named(at: int, field: str, value: Any) -> None:
    faults = list(report.stale(report.gates(REPORT), changed(at, **{field: value})))
    assert len(faults) == 1
    assert field in faults[0]
    assert REPORT["gates"][at]["scope"] in faults[0]


def test_scopes_and_bugs_without_numbers_are_named() -> None:
    rows = [row("lockstep", each.name) for each in PROFILES["pr"]]
    bugs: dict[str, Any] = {each.id: {} for each in BUGS}
    kept = {"profile": "pr", "rows": rows[1:]}
    faults = list(report.misnamed(kept, {**bugs, "B99": {}}))
    assert f"lockstep {rows[0]['scope']}: not in the documentation" in faults
    assert "known-bugs B99: no such bug" in faults
    assert f"lockstep {rows[1]['scope']}: not in the documentation" not in faults


def test_the_command_writes_what_its_check_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "report.json"
    source.write_text(json.dumps(REPORT))
    folder = ["--folder", str(tmp_path / "data")]
    assert main(["--report", str(source), *folder]) == 0
    assert main(["--check", "--report", str(source), *folder]) == 1  # its few rows are not those of the profile
    reported = capsys.readouterr().err.splitlines()
    assert reported
    assert all("documentation" in line or "no such" in line for line in reported)
    assert not any("a world: states" in line for line in reported)
    changed_file = tmp_path / "data/spaces.json"
    changed_file.write_text(changed_file.read_text().replace('"states"', '"stales"', 1))
    assert main(["--check", *folder]) == 1
    assert "spaces.json" in capsys.readouterr().err


def test_the_drawn_world_is_the_explored_one() -> None:
    drawn = spaces.graph(spaces.world(spaces.GROWN[0][0], 1, 3, 2))
    counted = spaces.counted(spaces.world(spaces.GROWN[0][0], 1, 3, 2))
    assert len(drawn["states"]) == counted["states"]
    assert drawn["transitions"] == counted["transitions"]
    ids = {state["id"] for state in drawn["states"]}
    assert all({start, end} <= ids for start, end, _ in drawn["edges"])

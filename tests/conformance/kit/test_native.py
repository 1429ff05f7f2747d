"""Property: lock-step with the specification compiled sees what lock-step with the specification as it reads sees.

How: scopes of all three explorations run in processes that import both packages from a folder, and every count is
compared; a folder that is empty, or of other sources, is refused with the remedy. The folder holds the sources as they
are; with `BLOCKWRIGHT_NIGHTLY` in the environment, compiled. Reports that counted otherwise cannot be joined.
Not covered: all scopes compiled (`make conform`, whose two reports are compared by `make docs-check`).
"""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright.cli import main
from blockwright_conformance.checker.compiled import PACKAGES, digests, first_on_path, trouble
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.gates import GateResult, Profile, gate
from blockwright_lab.book import report
from blockwright_lab.explorer import compile_into, recorded

SCOPES = {"lockstep": "sliding 2, block 1: drafts", "paged": "naive, block 1", "offload": "LRU, 2 blocks: all lists"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("explorer")
    if "BLOCKWRIGHT_NIGHTLY" in os.environ:
        compile_into(where)
        return where
    for package in PACKAGES:
        shutil.copytree(package, where / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    recorded(where, digests())
    return where


def place() -> str:
    """Return where this process has the specification from."""
    import blockwright_spec

    return str(blockwright_spec.__file__)


def counted(row: GateResult) -> GateResult:
    """Return a row without what differs from run to run."""
    return replace(row, seconds=0.0)


@pytest.mark.parametrize("name", SCOPES)
def test_explorations_are_the_same_in_a_folder(folder: Path, name: str) -> None:
    here = Profile("pr", jobs=1, scope=SCOPES[name])
    run, size = gate(name, here)
    assert size > 0
    there = run(replace(here, explorer=folder), lambda *_: None)
    assert [*map(counted, there)] == [*map(counted, run(here, lambda *_: None))]


def test_processes_import_from_the_folder_and_this_one_does_not(folder: Path) -> None:
    assert not trouble(folder)
    ((_, found),) = in_parallel(place, [()], 1, folder)
    assert Path(found).is_relative_to(folder)
    with first_on_path(folder):
        assert not Path(place()).is_relative_to(folder)


def test_a_folder_of_other_sources_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was compiled" in trouble(tmp_path)
    recorded(tmp_path, digests() | {"blockwright_spec/manager/state.py": "other"})
    assert "blockwright_spec/manager/state.py" in trouble(tmp_path)
    assert main(["conform", "--profile", "quick", "--explorer", str(tmp_path)]) == 2
    assert "python -m blockwright_lab.explorer" in capsys.readouterr().err
    assert main(["conform", "--impl", "a:b", "--explorer", str(folder)]) == 2


def test_reports_that_counted_otherwise_cannot_be_joined() -> None:
    row = {"kind": "lockstep", "scope": "one", "states": 3, "transitions": 5, "violations": 0}
    one = {"build": "a", "gates": [row]}
    joined = report.joined([one, {"build": "b", "gates": [row, row | {"kind": "known-bugs"}]}])
    assert joined is not None
    assert [each["kind"] for each in joined["gates"]] == ["lockstep", "known-bugs"]
    with pytest.raises(ValueError, match="lockstep, one: the reports differ"):
        report.joined([one, {"build": "b", "gates": [row | {"states": 4}]}])

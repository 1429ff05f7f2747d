"""Property: processes that explore import the specification from the folder that they are given, if its sources fit.

How: a folder that is empty, or of other sources, is refused with the remedy. The folder holds the sources as they are;
with `BLOCKWRIGHT_NIGHTLY=1` in the environment, compiled.
Not covered: that both explore the same (`make docs-check` compares the two reports of `PROFILE=nightly`).
"""

import shutil
from pathlib import Path

import pytest

from blockwright._switch import is_on
from blockwright.cli import main
from blockwright_conformance.checker.compiled import PACKAGES, digests, first_on_path, trouble
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_lab.explorer import compile_into, recorded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("explorer")
    if is_on("BLOCKWRIGHT_NIGHTLY"):
        compile_into(where)
        return where
    for package in PACKAGES:
        shutil.copytree(package, where / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    recorded(where, digests())
    return where


def place() -> list[str]:
    """Return where this process has the specification from, and what its laws are called."""
    from blockwright_spec.manager import laws

    return [laws.__file__, *(each.id for each in laws.LAWS)]


def test_processes_import_from_the_folder_and_this_one_does_not(folder: Path) -> None:
    assert not trouble(folder)
    ((_, (found, *laws)),) = in_parallel(place, [()], 1, folder)
    assert (Path(found).is_relative_to(folder), laws) == (True, place()[1:])  # whose docstrings are not compiled
    with first_on_path(folder):
        assert not Path(place()[0]).is_relative_to(folder)


def test_a_folder_of_other_sources_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing was compiled" in trouble(tmp_path)
    recorded(tmp_path, digests() | {"blockwright_spec/manager/state.py": "other"})
    assert "blockwright_spec/manager/state.py" in trouble(tmp_path)
    assert main(["conform", "--profile", "quick", "--explorer", str(tmp_path)]) == 2
    assert "python -m blockwright_lab.explorer" in capsys.readouterr().err
    assert main(["conform", "--impl", "a:b", "--explorer", str(folder)]) == 2

"""Property: the benchmark of the disk tier writes and reads what it times, and judges the shares by its target.

How: a small run of the command; a share that misses the target.
Not covered: the numbers.
"""

import argparse
from pathlib import Path

import pytest

from blockwright.bench.measure import WorkNotDoneError
from blockwright.bench.offload import disk as offload_disk
from blockwright.offload.disk import DiskStore

pytest.importorskip("rich")


def ran(folder: Path, *, require: bool = False) -> int:
    parser = argparse.ArgumentParser()
    offload_disk.add_arguments(parser)
    args = parser.parse_args(["--blocks", "3", "--mib", "1", "--batch", "2", "--folder", str(folder)])
    return offload_disk.run(argparse.Namespace(repeat=1, require=require, **vars(args)))


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(tmp_path) == 0
    shown = capsys.readouterr().out
    for text in ("Disk tier", "plain file, one sync", "put_many of 2", "get_many of 2", "3 blocks of 1 MiB"):
        assert text in shown
    assert list(tmp_path.iterdir()) == []


def test_a_missed_target_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload_disk, "TARGET", 1e6)
    assert ran(tmp_path, require=True) == 1
    assert "MISSED" in capsys.readouterr().out


def test_blocks_that_do_not_come_back_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskStore, "get", lambda self, key, place, into: True)
    with pytest.raises(WorkNotDoneError):
        ran(tmp_path)

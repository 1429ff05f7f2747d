"""Property: what names no directory, no store or no identity is refused with a typed error, and no secret is repeated.

How: one wrong argument at a time.
Not covered: what is wrong there (test_disk_directory.py, test_shared_faults.py).
"""

from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload import CacheIdentity, DiskStore, FileSystemStore, ValkeyStore

OURS = CacheIdentity("model", "layout", "bfloat16", 16, b"seed")


@pytest.mark.parametrize("wrong", [None, "", 3, "a\0b"])
def test_no_directory(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="path"):
        DiskStore(wrong, OURS, 4, 2)


def test_a_directory_of_others_is_not_to_be_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreDirectoryError) as reported:
        DiskStore(tmp_path, OURS, 4, 2)
    assert "delete" not in str(reported.value)


@pytest.mark.parametrize("wrong", [None, "model", OURS.digest()])
def test_no_identity(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="identity"):
        DiskStore(tmp_path, wrong, 4, 2)
    assert not list(tmp_path.iterdir())
    pytest.importorskip("fsspec")
    with pytest.raises(InvalidArgumentError, match="identity"):
        FileSystemStore("memory://", wrong)
    pytest.importorskip("valkey")
    with pytest.raises(InvalidArgumentError, match="identity"):
        ValkeyStore("valkey://127.0.0.1:1/0", wrong)


@pytest.mark.parametrize("wrong", [None, "", 3])
def test_no_file_system(wrong: Any) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(InvalidArgumentError, match="target"):
        FileSystemStore(wrong, OURS)

"""What tests of stores on disk begin with: a folder that is not there, and a store that is open in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.offload.stores.disk_support import opened

from blockwright.offload.disk import DiskStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[DiskStore]:
    with opened(path) as store:
        yield store

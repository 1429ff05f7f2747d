"""What these tests share: a Valkey server of their own, a plain umask, and the path that lets them share modules."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright_lab.media.server import LocalServer, missing

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """Start a server on the loopback interface, or skip where none is installed."""
    why = missing()
    if why:
        pytest.skip(f"needs a server: {why}")
    with LocalServer() as running:
        yield running


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Let files that tests make be such as others cannot write to, or a disk store would refuse them."""
    before = os.umask(0o022)
    yield
    os.umask(before)

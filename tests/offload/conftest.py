"""What these tests share: a Valkey server of their own, and a plain umask."""

import os
from collections.abc import Iterator

import pytest

from blockwright_lab.media.server import LocalServer, missing


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

"""A Valkey server of the tests' own, for as long as they run, and the path that lets them share modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockwright_conformance.offload_server import LocalServer, missing

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


@pytest.fixture(scope="session")
def server() -> Iterator[LocalServer]:
    """Start a server on the loopback interface, or skip where none is installed."""
    why = missing()
    if why:
        pytest.skip(f"needs a server: {why}")
    with LocalServer() as running:
        yield running

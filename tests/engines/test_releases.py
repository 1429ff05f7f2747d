"""Another release's schedulers over the same manager: its published Python files beside the libraries installed here.

The tests of schedulers (`TESTS`) are run once more in a process of its own, in which ``import vllm`` finds the files
that `make bench-peers` has fetched. Not covered: its engine, which needs the libraries of its own release.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.conftest import published

from benchmarks.peers.vllm import PUBLISHED

HERE = Path(__file__).resolve().parent
TESTS = ("start", "manager", "connectors", "schedules", "hybrids", "sessions")
PEERS = Path(os.environ.get("BLOCKWRIGHT_PEERS") or HERE.parents[1] / ".peers").absolute()


@pytest.mark.slow
@pytest.mark.skipif(not (PEERS / "vllm").is_dir(), reason="the peers' files are not there: make bench-peers")
def test_the_schedulers_of_the_newest_release(tmp_path: Path) -> None:
    PUBLISHED.check(PEERS)
    tests = [str(HERE / f"test_{name}.py") for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "filterwarnings=", "-p", "no:cacheprovider", *tests]
    environment = published(tmp_path, PEERS, PUBLISHED.version)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout.splitlines()[-1]

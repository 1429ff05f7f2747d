"""What all tests share: modules, however pytest was started, Hypothesis profiles, a rule on builds, serving traces.

- The profile `blockwright-pr` draws the same examples every time, without a deadline and without a database: a failure
  found here is found everywhere. By night `--hypothesis-profile=crosshair` has CrossHair search for examples.
- A stale build is refused: tests that pass on libraries older than their sources say nothing.
- The traces are large and not part of the repository: tests that read them skip, and say so, without them.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings

from blockwright import build_info
from blockwright._switch import is_on

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
settings.register_profile("blockwright-pr", derandomize=True, deadline=None, database=None)
if find_spec("hypothesis_crosshair_provider"):  # which the environments of engines do not have
    settings.register_profile("crosshair", settings.get_profile("blockwright-pr"), backend="crosshair", max_examples=50)
settings.load_profile("blockwright-pr")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test a build that is not what the run claims to test."""
    build = build_info()
    if build.kind == "stale":
        raise pytest.UsageError(f"refusing to test a stale build: {build}")
    required = is_on("BLOCKWRIGHT_REQUIRE_COMPILED")
    if required and not is_on("BLOCKWRIGHT_PURE_PYTHON") and build.kind != "compiled":
        raise pytest.UsageError(f"BLOCKWRIGHT_REQUIRE_COMPILED=1, but this is a {build}; build it (make build)")


def pytest_report_header(config: pytest.Config) -> str:
    """Return which build is tested."""
    return f"blockwright: {build_info()}"


@pytest.fixture(scope="session")
def traces() -> Path:
    """Return the folder of serving traces named by BLOCKWRIGHT_TRACES, or skip."""
    folder = os.environ.get("BLOCKWRIGHT_TRACES")
    if not folder:
        pytest.skip("needs serving traces: set BLOCKWRIGHT_TRACES to the folder that holds them")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"BLOCKWRIGHT_TRACES={folder} is not a folder")
    return path

"""Tests inside a vLLM: they skip where it is not installed. `make test-engines` makes an environment that has it."""

import logging
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
os.environ |= {
    "OMP_NUM_THREADS": "1",
    # With numba's OpenMP a second engine with n-gram drafts in a process answers wrongly, under either manager.
    "NUMBA_THREADING_LAYER": "workqueue",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
HAS_VLLM = find_spec("vllm") is not None


def published(folder: Path, peers: Path, version: str) -> dict[str, str]:
    """Return an environment in which ``import vllm`` finds a release's published files beside the libraries here."""
    if not (folder / "vllm").is_symlink():
        (folder / "vllm").symlink_to(peers / "vllm", target_is_directory=True)
    known = folder / f"vllm-{version}+cpu.dist-info"  # by its name vLLM knows that it is to run on a CPU
    known.mkdir(exist_ok=True)
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_VLLM:
        skip = pytest.mark.skip(reason="vLLM is not installed; make test-engines")
        for item in items:
            if HERE in item.path.parents and "without_vllm" not in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def models_folder() -> Path:
    folder = Path(os.environ.get("BLOCKWRIGHT_ENGINE_MODELS", HERE.parents[1] / "build" / "models"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """What Blockwright writes into vLLM's log. vLLM configures it anew now and then, which takes handlers away."""
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("vllm.blockwright")
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: True)
    monkeypatch.setattr(logger, "handle", records.append)
    return records

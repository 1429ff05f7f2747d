"""Tests inside a vLLM: they skip where it is not installed. `make test-engines` makes an environment that has it."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
HAS_VLLM = find_spec("vllm") is not None


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

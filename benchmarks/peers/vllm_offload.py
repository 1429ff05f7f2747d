"""The peer of `blockwright.offload`: the LRU offloading manager of vLLM 0.11.0, over its backend for the host's memory.

Manager, backend, statuses and specs are executed unmodified from the published package's files, without torch. Its
specs are numpy arrays: numpy is used where it is installed (else a stand-in, which makes the peer faster). Nothing of
it is part of this distribution.
"""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from benchmarks.published import Published

PUBLISHED = Published(
    version="0.11.0",
    sha256="3861c75ff2b12e24f6d179ff5c084d791b42ded8675d76c8706697c79f68cd62",
    folder="vllm-0.11.0",
    witness="vllm/v1/kv_offload/lru_manager.py",
    prefix="vllm.v1.kv_offload.",
    modules=frozenset({"vllm.v1.kv_offload"}),
    foreign=frozenset({"torch"} if importlib.util.find_spec("numpy") else {"numpy", "torch"}),
)
"""The release whose offloading manager is compared with."""


class VllmOffloadPeer:
    """vLLM's `LRUOffloadingManager` with its `CPUBackend`."""

    version = PUBLISHED.version

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._manager: Any = importlib.import_module("vllm.v1.kv_offload.lru_manager").LRUOffloadingManager
        self._backend: Any = importlib.import_module("vllm.v1.kv_offload.backends.cpu").CPUBackend

    def manager(self, num_blocks: int) -> Any:
        return self._manager(self._backend(self.block_size, num_blocks))


def load(peer_path: Path, block_size: int = 16) -> VllmOffloadPeer:
    return PUBLISHED.load(peer_path, lambda: VllmOffloadPeer(block_size))

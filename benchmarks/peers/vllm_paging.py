"""The peer of `blockwright.paging`: the block manager of vLLM 0.10.2, the last release with fork, copy and swap.

Its block manager, tables, allocators, evictor and interfaces, the enumeration of statuses and the helpers that they
call are executed unmodified from the published package's files, without torch. Nothing of it is part of this
distribution.
"""

import importlib
from pathlib import Path
from typing import Any

from benchmarks.published import Published

PUBLISHED = Published(
    version="0.10.2",
    sha256="e0cba6110483d9bf25c4402d8655cf78d366dd13e4155210980cc3480ed98b7b",
    folder="vllm-0.10.2",
    witness="vllm/core/block_manager.py",
    prefix="vllm.core.",
    modules=frozenset({"vllm.core", "vllm.sequence", "vllm.utils"}),
    foreign=frozenset(
        {
            "cachetools",
            "cbor2",
            "cloudpickle",
            "msgspec",
            "numpy",
            "packaging",
            "psutil",
            "regex",
            "setproctitle",
            "torch",
            "transformers",
            "typing_extensions",
            "yaml",
            "zmq",
        }
    ),
)
"""The last release with a block manager of this kind."""


class VllmPagingPeer:
    """vLLM's `SelfAttnBlockSpaceManager`."""

    version = PUBLISHED.version

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._manager: Any = importlib.import_module("vllm.core.block_manager").SelfAttnBlockSpaceManager
        status = importlib.import_module("vllm.sequence").SequenceStatus
        self.waiting: Any = status.WAITING
        self.running: Any = status.RUNNING
        self.swapped: Any = status.SWAPPED

    def manager(self, num_gpu_blocks: int, num_cpu_blocks: int, enable_caching: bool) -> Any:
        return self._manager(
            self.block_size, num_gpu_blocks, num_cpu_blocks, watermark=0.0, enable_caching=enable_caching
        )


def load(peer_path: Path, block_size: int = 16) -> VllmPagingPeer:
    return PUBLISHED.load(peer_path, lambda: VllmPagingPeer(block_size))

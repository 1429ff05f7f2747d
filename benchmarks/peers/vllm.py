"""The peer: vLLM's own KV-cache manager, loaded on a CPU from the published package's files.

The modules that do the work (manager, coordinator, pool, hashing, request) are executed unmodified from the folder.
What they import besides (torch, distributed, multimodal, platforms, ...) never runs on the measured paths, so it is
replaced by stand-ins while they load. Nothing of the peer is part of this distribution.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.published import Published
from benchmarks.sides import Windows

PUBLISHED = Published(
    version="0.33.0",
    sha256="4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa",
    folder=".",
    witness="vllm/v1/core/kv_cache_manager.py",
    prefix="vllm.v1.core",
    modules=frozenset(
        {
            "vllm.utils",
            "vllm.utils.hashing",
            "vllm.utils.math_utils",
            "vllm.v1.hisparse.block_pool",
            "vllm.v1.kv_cache_interface",
            "vllm.v1.kv_cache_layout",
            "vllm.v1.kv_cache_spec_registry",
            "vllm.v1.metrics.stats",
            "vllm.v1.request",
            "vllm.v1.structured_output.request",
            "vllm.v1.utils",
        }
    ),
    foreign=frozenset({"cbor2", "numpy", "torch", "uvloop"}),
)
"""The release that newer engines are compared with; its folder is the folder of all peers itself."""


class _SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens = 1 << 20
    extra_args = None
    structured_outputs = None
    skip_reading_prefix_cache = None


class VllmPeer:
    """vLLM's manager, request and block hasher."""

    version = PUBLISHED.version

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        interface = importlib.import_module("vllm.v1.kv_cache_interface")
        utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        hashing = importlib.import_module("vllm.utils.hashing")
        request = importlib.import_module("vllm.v1.request")
        manager = importlib.import_module("vllm.v1.core.kv_cache_manager")
        single = importlib.import_module("vllm.v1.core.single_type_kv_cache_manager")
        single.register_all_kvcache_specs(None)
        utils.init_none_hash(hashing.sha256)
        self._hasher: Any = utils.get_request_block_hasher(block_size, hashing.sha256)
        self.interface: Any = interface
        self.manager_class: Any = manager.KVCacheManager
        self._request: Any = request.Request
        self._running: Any = request.RequestStatus.RUNNING
        self._params = _SamplingParams()

    def manager(self, num_blocks: int, max_model_len: int, windows: Windows = (None,)) -> Any:
        groups = [
            self.interface.KVCacheGroupSpec([f"layers.{i}"], self.kind_of(window)) for i, window in enumerate(windows)
        ]
        config = self.interface.KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        return self.manager_class(
            config,
            max_model_len=max_model_len,
            scheduler_block_size=self.block_size,
            hash_block_size=self.block_size,
            enable_caching=True,
        )

    def kind_of(self, window: int | None) -> Any:
        shape = {"block_size": self.block_size, "num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"}
        if window is None:
            return self.interface.FullAttentionSpec(**shape)
        return self.interface.SlidingWindowSpec(**shape, sliding_window=window)

    def request(self, request_id: str, prompt_token_ids: Any) -> Any:
        return self._request(request_id, prompt_token_ids, self._params, None, block_hasher=self._hasher)

    def hash_filled(self, request: Any) -> None:
        """Its requests hash as tokens come."""

    def mark_running(self, request: Any) -> None:
        """Set the status its scheduler gives to an admitted request."""
        request.status = self._running

    def advance(self, requests: Sequence[Any], token_ids: list[int]) -> None:
        for request, token in zip(requests, token_ids, strict=True):
            request.num_computed_tokens += 1
            request.append_output_token_ids(token)


def load(peer_path: Path, block_size: int = 16) -> VllmPeer:
    return PUBLISHED.load(peer_path, lambda: VllmPeer(block_size))

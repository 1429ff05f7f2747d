"""SGLang's prefix tree: a release, which of its modules are executed unmodified, and its tree in Rust as a peer.

The conformance kit puts the tree in Python under its laws; here the tree in Rust, which its engine uses by default, is
made by its own registry and asked through its own adapter. Nothing of it is part of this distribution.
"""

import importlib
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from blockwright.bench.published import Published
from blockwright.errors import InvalidArgumentError

MEM = "sglang.srt.mem_cache."

PUBLISHED = Published(
    version="0.5.23",
    sha256="00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    folder="sglang",
    witness="sglang/srt/mem_cache/unified_radix_cache.py",
    prefix=MEM + "unified_cache",
    modules=frozenset(
        {
            *(MEM + name for name in ("base_prefix_cache", "base_swa_memory_pool", "cache_init_params", "common")),
            *(MEM + name for name in ("events", "evict_policy", "hicache_storage", "memory_pool", "radix_cache")),
            *(MEM + name for name in ("swa_memory_pool", "unified_radix_cache", "utils")),
            *(MEM + "allocator" + name for name in ("", ".base", ".token", ".paged", ".swa", ".mamba")),
            *(MEM + "allocator" + name for name in (".page_interleave", ".hisparse", ".unified_hybrid_swa")),
            MEM + "buffer_mode.storage_existence_cache",
            *(MEM + "rust_tree_core" + name for name in ("", ".adapter", ".extension")),
            "sglang.srt.configs.mamba_utils",
            "sglang.srt.constants",
            "sglang.srt.disaggregation.kv_events",
            "sglang.srt.environ",
            "sglang.srt.runtime_context",
            *("sglang.srt.rust_extensions" + name for name in ("", ".loader", ".torch_build")),
            "sglang.srt.session.streaming_session",
            "sglang.srt.utils",
            "sglang.srt.utils.common",
            "sglang.srt.utils.invariants",
            "sglang.srt.utils.rank_consensus_checker",
            "sglang.srt.utils.torch_memory_saver_adapter",
        }
    ),
    foreign=frozenset(
        {
            *("IPython", "PIL", "aiohttp", "fastapi", "huggingface_hub", "orjson", "prometheus_client", "psutil"),
            *("pybase64", "pydantic", "requests", "setproctitle", "sgl_kernel", "starlette", "tqdm", "transformers"),
            *("triton", "uvicorn", "uvloop", "zmq"),
        }
    ),
    package="sglang",
    libraries=("sglang/srt/mem_cache/rust_tree_core/mem_cache.cpython-311-x86_64-linux-gnu.so",),
)
"""The cache, its tree cores in Python and Rust with their components, keys, events, and the allocators of slots."""


class SglangTree:
    """An empty tree in Rust and what its scheduler does with it, for requests that are nothing but their tokens."""

    def __init__(self, page_size: int) -> None:
        def module(name: str) -> Any:
            return importlib.import_module(MEM + name)

        self.page_size = page_size
        self._base, self._key = module("base_prefix_cache"), module("radix_cache").RadixKey
        self._arange: Callable[[int], Any] = importlib.import_module("torch").arange
        params = module("cache_init_params").CacheInitParams(
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=None,
            page_size=page_size,
            tree_components=(module("unified_cache.component_type").ComponentType.FULL,),
            tree_core_backend="rust",
        )
        self._tree: Any = module("unified_cache.tree_core_registry").create_tree_core("rust", params, {})
        if not type(self._tree).__name__.startswith("Rust"):
            raise InvalidArgumentError("peer_path: SGLang falls back to its tree in Python here")

    def packed(self, token_ids: Any) -> Any:
        """Return the tokens of a request as its tokenizer's process hands them over."""
        return array("q", token_ids)

    def slots(self, count: int) -> Any:
        """Return slots for so many tokens, as its allocator would."""
        return self._arange(count)

    def match(self, tokens: Any) -> Any:
        """Match the tokens of a request but the last."""
        key = self._key(tokens, None, limit=len(tokens) - 1)
        return self._tree.match_prefix(self._base.MatchPrefixParams(key=key))

    def lock(self, node: int) -> Any:
        """Hold the matched prefix."""
        return self._tree.inc_lock_ref(node)

    def unlock(self, node: int, lock: Any) -> None:
        """Give it back."""
        self._tree.dec_lock_ref(node, lock.to_dec_params())

    def insert(self, tokens: Any, slots: Any) -> int:
        """Insert the whole pages of a finished request; return how many tokens were there already."""
        key = self._key(tokens, None).page_aligned(self.page_size)
        step = self._tree.begin_insert(self._base.InsertParams(key=key, value=slots))
        while step.result is None:
            step = self._tree.resume_insert()
        self._tree.end_insert()
        return int(step.result.prefix_len)

    def reset(self) -> None:
        """Empty the tree."""
        self._tree.reset()


class SglangPeer:
    """Makes trees."""

    version = PUBLISHED.version

    def __init__(self, peer_path: Path, page_size: int = 16) -> None:
        self._peer_path, self._page_size = peer_path, page_size

    def tree(self) -> SglangTree:
        """Return an empty tree. Raises as `Published.load` does."""
        return PUBLISHED.load(self._peer_path, lambda: SglangTree(self._page_size))

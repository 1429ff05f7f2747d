"""SGLang's prefix tree: a release, which of its modules are executed unmodified, and its tree in Rust as a peer.

The conformance kit puts the tree in Python under its laws; here the tree in Rust, which its engine uses by default, is
made by its own registry and asked through its own adapter. Nothing of it is part of this distribution.
"""

import importlib
import sys
from array import array
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from platform import machine
from typing import Any

from benchmarks.published import Published
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
    """An empty tree in Rust, with what its engine does to it for a request."""

    def __init__(self, tree: Any, base: Any, key: Any, slots: Any, page: int) -> None:
        self._tree, self._base, self._key, self._slots, self._page = tree, base, key, slots, page
        self._root: int = tree.root_node_handle(None)

    def store(self, prompt: Any) -> None:
        """Insert a finished request: its whole pages, as `checkpoint_into_tree` makes key and slots of them."""
        tokens = _packed(prompt)
        tokens = tokens[: len(tokens)]  # of the request's record
        key = self._key(tokens[: len(tokens)], None).page_aligned(self._page)
        slots = self._slots[: len(key)].to(dtype=self._base.torch.int64, copy=True)
        step = self._tree.begin_insert(self._base.InsertParams(key=key, value=slots))
        while step.result is None:
            step = self._tree.resume_insert()
        self._tree.end_insert()

    def request(self, prompt: Any) -> Any:
        """Return the tokens of a new request, as its engine holds them."""
        return _packed(prompt) + array("q")

    def match(self, tokens: Any) -> Any:
        """Match the tokens of a request but the last; the answer names a node and the length up to it."""
        key = self._key(tokens, None, limit=len(tokens) - 1)
        result = self._tree.match_prefix(self._base.MatchPrefixParams(key=key))
        return result.last_device_node, result.device_prefix_len

    def adopt(self, tokens: Any, node: int, length: int) -> Any:
        """Hold the matched prefix, and read its slots."""
        lock = self._tree.inc_lock_ref(node)
        if length:
            self._tree.collect_full_device_indices(node, self._root)
        return node, lock.to_dec_params()

    def drop(self, tokens: Any, held: Any) -> None:
        self._tree.dec_lock_ref(*held)

    def reset(self) -> None:
        self._tree.reset()
        self._root = self._tree.root_node_handle(None)

    def num_stored(self) -> int:
        return int(self._tree.full_evictable_size())


def _packed(prompt: Any) -> Any:
    """Return the tokens as its tokenizer's process hands them over, and its tree requires: in 64 bits."""
    if not isinstance(prompt, array):
        return array("q", prompt)
    if prompt.typecode == "q":
        return prompt
    import numpy  # which torch, and so its engine, brings: fifty times as fast as `array("q", prompt)`

    made = array("q")
    made.frombytes(numpy.frombuffer(prompt, prompt.typecode).astype(numpy.int64).data.cast("B"))
    return made


class SglangPeer:
    """Makes trees in Rust, the first by SGLang's own registry."""

    version = PUBLISHED.version

    def __init__(self) -> None:
        self._base = importlib.import_module(MEM + "base_prefix_cache")
        self._base.torch.set_num_threads(1)  # else copying slots waits for another thread, for milliseconds
        self._key = importlib.import_module(MEM + "radix_cache").RadixKey
        types = importlib.import_module(MEM + "unified_cache.component_type").ComponentType
        self._params = partial(
            importlib.import_module(MEM + "cache_init_params").CacheInitParams,
            disable=False,
            req_to_token_pool=None,
            token_to_kv_pool_allocator=None,
            tree_components=(types.FULL,),
            tree_core_backend="rust",
        )
        create = importlib.import_module(MEM + "unified_cache.tree_core_registry").create_tree_core
        self._tree_type = type(create("rust", self._params(page_size=1), {}))
        if not self._tree_type.__name__.startswith("Rust"):
            raise InvalidArgumentError("peer_path: SGLang would use its tree in Python here")

    def tree(self, num_tokens: int, page: int) -> SglangTree:
        torch = self._base.torch
        slots = torch.arange(num_tokens, dtype=torch.int32)
        return SglangTree(self._tree_type(self._params(page_size=page)), self._base, self._key, slots, page)


def load(peer_path: Path) -> SglangPeer | None:
    """Load the tree in Rust from the folder that `fetch_peers` filled, or return None where it cannot run.

    Raises as `Published.load` does.
    """
    runs = sys.implementation.cache_tag == "cpython-311" and sys.platform == "linux" and machine() == "x86_64"
    if not runs or find_spec("torch") is None or find_spec("msgspec") is None:
        return None
    return PUBLISHED.load(peer_path, SglangPeer)

"""SGLang's prefix tree as published: `UnifiedRadixCache` over its tree core in Python, with its own allocators.

Executed unmodified from the wheel's Python files: the cache, the tree core, its components (full attention, sliding
window, recurrent states), keys, eviction, allocators of slots, and the helpers they call. Replaced by stand-ins is what
they import besides: kernels, models, networking, the host's tier (`hicache`), sessions' servers. The pools of tensors
are left without tensors; which slot is whose is the allocators' business, and theirs are real. The hash of a page in
events is compiled code there, and the same chain of SHA-256 in Python here. Needs torch and msgspec.
"""

import importlib
import logging
import sys
from array import array
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.peers import sglang as sglang_peer

PUBLISHED, MEM = sglang_peer.PUBLISHED, sglang_peer.MEM
"""The release, and which of its modules are executed."""


class SglangEngine:
    """The classes that are needed, imported while the package is importable (`load`)."""

    version = PUBLISHED.version

    def __init__(self) -> None:
        def module(name: str) -> Any:
            return importlib.import_module(MEM + name)

        logging.getLogger(MEM + "unified_radix_cache").setLevel(logging.WARNING)
        self.torch: Any = importlib.import_module("torch")
        self.params, self.base = module("cache_init_params"), module("base_prefix_cache")
        self.cache, self.keys, self.pools = module("unified_radix_cache"), module("radix_cache"), module("memory_pool")
        self.types: Any = module("unified_cache.component_type").ComponentType
        self.token, self.paged = module("allocator.token"), module("allocator.paged")
        self.swa, self.states = module("allocator.swa"), module("allocator.mamba")
        module("allocator.hisparse"), module("allocator.unified_hybrid_swa")
        self.nodes: Any = module("unified_cache.unified_tree_core").UnifiedTreeNode
        # What a server's configuration would say: this platform brings no allocator, states may stand after any token.
        self.swa.current_platform = SimpleNamespace(get_paged_allocator_cls=lambda: None)
        mamba = module("unified_cache.components.mamba")
        mamba.mamba_cache_chunk_size, mamba.mamba_checkpoint_grid = lambda: 1, lambda page: page
        mamba.get_exec = lambda: SimpleNamespace(mamba=SimpleNamespace(mamba_max_states_per_path=-1))
        base_pool: Any = module("base_swa_memory_pool").BaseSWAKVPool
        module("utils").get_native_hash = page_hashes
        self.modules = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == PUBLISHED.package}
        untouched = dict.fromkeys(base_pool.__abstractmethods__)  # what reads and writes tensors
        self.swa_pool = type("Pool", (base_pool,), {**untouched, **_POOL})

    def imported(self) -> AbstractContextManager[Any]:
        """Let it be importable: some of its functions import where they run."""
        return patch.dict(sys.modules, self.modules)

    def key(self, tokens: tuple[int, ...]) -> Any:
        return self.keys.RadixKey(array("q", tokens), None)

    def tensor(self, slots: list[int]) -> Any:
        return self.torch.tensor(slots, dtype=self.torch.int64)


def page_hashes(tokens: Any, prior: bytes | None, page: int | None = None) -> Any:
    """Hash pages of tokens, each over the one before it: a list, or without a page the hash of all."""
    raw, digest, found = list(tokens.raw_token_ids())[: len(tokens)], prior or b"", []
    step = page or max(1, len(raw))
    for start in range(0, len(raw), step):
        digest = sha256(digest + repr(raw[start : start + step]).encode()).digest()
        found.append(digest.hex())
    return found if page else found[-1]


def _register(self: Any, mapping: Any) -> None:
    self.full_to_swa_index_mapping = mapping


def _translate(self: Any, indices: Any) -> Any:
    return self.full_to_swa_index_mapping[indices]


_POOL = {
    "__init__": lambda self: None,
    "register_mapping": _register,
    "translate_loc_from_full_to_swa": _translate,
    "__deepcopy__": lambda self, memo: _copied(self, memo),
}
"""A pool of two kinds of layers without its tensors: it only keeps the mapping that the allocator registers."""


def _copied(pool: Any, memo: dict[int, Any]) -> Any:
    new = type(pool)()
    memo[id(pool)] = new
    mapping = pool.full_to_swa_index_mapping
    new.full_to_swa_index_mapping = memo.setdefault(id(mapping), mapping.clone())
    return new


def load(peer_path: Path) -> SglangEngine:
    """Load SGLang's tree from the folder that `fetch_peers` filled. Raises as `Published.load` does."""
    return PUBLISHED.load(peer_path, SglangEngine)

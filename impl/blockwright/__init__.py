"""Blockwright: a verified KV-cache manager for LLM serving.

Importing it loads neither torch nor numpy.
"""

from collections.abc import Callable as _Callable
from importlib import import_module as _import_module
from typing import Any as _Any

from blockwright import arguments as _arguments
from blockwright._build import BuildInfo, build_info
from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.core.keys.block_hash import (
    BlockHasher,
    FunctionHasher,
    GivenHasher,
    Sha256Hasher,
    SipHasher,
    siphash128,
)
from blockwright.core.keys.request import MultiModalItem, Request
from blockwright.core.manager import ABOVE as _ABOVE
from blockwright.core.manager import KVCacheManager, PrefixCacheStats
from blockwright.core.pool.blocks import KVCacheBlock, KVCacheBlocks
from blockwright.core.pool.history import Eviction
from blockwright.core.pool.pool import BlockPool
from blockwright.core.records.explain import EvictionStats, GroupHit, HitExplanation, HitLimit
from blockwright.core.steps.batch import append_output_token_ids_batch
from blockwright.core.steps.outcomes import BatchAllocation, Fits, Never, NotNow, Plan
from blockwright.core.steps.resizing import Resizing
from blockwright.core.worth.chosen import Candidate, Candidates, EvictionOrder, EvictionPolicy
from blockwright.engines.vllm.single_type_managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
    get_manager_for_kv_cache_spec,
)
from blockwright.kinds import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

__version__ = "0.2.0"

__all__ = [
    "AttentionSpec", "BatchAllocation", "BlockHasher", "BlockPool", "BuildInfo", "Candidate", "Candidates",
    "ChunkedLocalAttentionManager", "ChunkedLocalAttentionSpec", "CrossAttentionManager", "CrossAttentionSpec",
    "Eviction", "EvictionOrder", "EvictionPolicy", "EvictionStats", "Fits", "FullAttentionManager", "FullAttentionSpec",
    "FunctionHasher", "GivenHasher", "GroupHit", "HitExplanation", "HitLimit", "KVCacheBlock", "KVCacheBlocks",
    "KVCacheConfig", "KVCacheGroupSpec", "KVCacheManager", "KVCacheSpec", "MambaManager", "MambaSpec", "MultiModalItem",
    "Never", "NotNow", "Plan", "PrefixCacheStats", "Request", "Resizing",
    "Sha256Hasher", "SingleTypeKVCacheManager", "SipHasher",
    "SlidingWindowManager", "SlidingWindowSpec", "__version__", "append_output_token_ids_batch", "build_info",
    "get_manager_for_kv_cache_spec", "siphash128",
]  # fmt: skip

_arguments.guard(globals(), __all__)


def _later(module: str, name: str) -> _Callable[..., _Any]:
    """Return what calls a function of a module, which is imported only then."""

    def call(*given: _Any) -> _Any:
        return getattr(_import_module(module), name)(*given)

    return call


# `KVCacheManager.draw` and the others are functions that stand on the core, which imports nothing above it.
_ABOVE.update({name: _later("blockwright.observe", name) for name in ("draw", "dump", "restore")})
_ABOVE["order_named"] = _later("blockwright.policies", "order_named")

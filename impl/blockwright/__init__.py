"""Blockwright: a verified KV-cache manager for LLM serving.

Importing it loads neither torch nor numpy.
"""

from blockwright import arguments as _arguments
from blockwright._build import BuildInfo, build_info
from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.core.batch import append_output_token_ids_batch
from blockwright.core.block_hash import BlockHasher, FunctionHasher, GivenHasher, Sha256Hasher, SipHasher, siphash128
from blockwright.core.candidates.chosen import Candidate, Candidates, EvictionPolicy
from blockwright.core.in_time.explain import EvictionStats, GroupHit, HitExplanation, HitLimit
from blockwright.core.journal import Eviction
from blockwright.core.manager import KVCacheManager, PrefixCacheStats
from blockwright.core.managers import (
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
    get_manager_for_kv_cache_spec,
)
from blockwright.core.outcomes import BatchAllocation, Fits, KVCacheBlocks, Never, NotNow, Plan
from blockwright.core.pool import BlockPool, KVCacheBlock
from blockwright.core.request import MultiModalItem, Request
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

__version__ = "0.1.0"

__all__ = [
    "BatchAllocation",
    "BlockHasher",
    "BlockPool",
    "BuildInfo",
    "Candidate",
    "Candidates",
    "ChunkedLocalAttentionManager",
    "ChunkedLocalAttentionSpec",
    "CrossAttentionManager",
    "CrossAttentionSpec",
    "Eviction",
    "EvictionPolicy",
    "EvictionStats",
    "Fits",
    "FullAttentionManager",
    "FullAttentionSpec",
    "FunctionHasher",
    "GivenHasher",
    "GroupHit",
    "HitExplanation",
    "HitLimit",
    "KVCacheBlock",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheManager",
    "KVCacheSpec",
    "MambaManager",
    "MambaSpec",
    "MultiModalItem",
    "Never",
    "NotNow",
    "Plan",
    "PrefixCacheStats",
    "Request",
    "Sha256Hasher",
    "SingleTypeKVCacheManager",
    "SipHasher",
    "SlidingWindowManager",
    "SlidingWindowSpec",
    "__version__",
    "append_output_token_ids_batch",
    "build_info",
    "get_manager_for_kv_cache_spec",
    "siphash128",
]

_arguments.guard(globals(), __all__)

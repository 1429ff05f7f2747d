"""A vLLM manager and requests for the scripts: what its engine core passes, spelt out once."""

from math import lcm
from typing import Any


class SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens, structured_outputs, skip_reading_prefix_cache = 99, None, None

    def __init__(self, **extra_args: str) -> None:
        self.extra_args = extra_args


def full(block_size: int) -> Any:
    """Give a full-attention layer."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32")


def sliding(block_size: int, window: int) -> Any:
    """Give a layer with a sliding window."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return SlidingWindowSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype="float32", sliding_window=window)


def mamba(block_size: int) -> Any:
    """Give a recurrent layer whose states are cached."""
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=("float32",), mamba_cache_mode="align")


def manager(specs: list[Any], num_blocks: int, hash_size: int, **options: Any) -> Any:
    """Give a manager of groups with these layers, a block of `num_blocks` being the null block."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    register_all_kvcache_specs(None)
    config = KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layers.{at}"], spec) for at, spec in enumerate(specs)],
        prefix_cache_retention_interval=options.pop("retention", None),
    )
    unit = lcm(*(spec.block_size for spec in specs))
    return KVCacheManager(config, max_model_len=64, scheduler_block_size=unit, hash_block_size=hash_size, **options)


def request(name: str, tokens: list[int], hash_size: int, **extra_args: str) -> Any:
    """Give a request with its block hashes."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(hash_size, sha256)
    return Request(name, tokens, SamplingParams(**extra_args), None, block_hasher=hasher)

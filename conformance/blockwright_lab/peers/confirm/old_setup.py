"""A manager and requests of vLLM 0.11.0 for the scripts: what its engine core passes, spelt out once."""

from typing import Any

SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
"""Shapes of a layer; nothing here depends on them."""


class SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens, structured_outputs, prompt_logprobs, extra_args = 99, None, None, None


def manager(num_blocks: int, **layers: Any) -> Any:
    """Give a manager of the layers named: a kind, and its window, its chunk, or nothing; blocks of 2 tokens."""
    from vllm.utils import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        CrossAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    init_none_hash(sha256)  # once: the seed is another each time
    make: dict[str, Any] = {
        "full": lambda _: FullAttentionSpec(2, **SIZES),
        "sliding": lambda window: SlidingWindowSpec(2, **SIZES, sliding_window=window),
        "chunked": lambda chunk: ChunkedLocalAttentionSpec(2, **SIZES, attention_chunk_size=chunk),
        "cross": lambda _: CrossAttentionSpec(2, **SIZES),
    }
    options = {"use_eagle": layers.pop("eagle", False), "enable_kv_cache_events": layers.pop("events", False)}
    options["enable_caching"] = "cross" not in layers
    groups = [KVCacheGroupSpec([name], make[name](given)) for name, given in layers.items()]
    config = KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    return KVCacheManager(config, max_model_len=64, **options)


def request(name: str, tokens: list[int]) -> Any:
    """Give a request with its block hashes."""
    from vllm.utils import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(2, sha256)
    return Request(name, tokens, SamplingParams(), None, eos_token_id=None, block_hasher=hasher)

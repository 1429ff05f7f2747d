"""Where vLLM 0.11.0 is wrong by its own word, each shown by a function over its own API."""

from typing import Any

SIZES = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
"""Shapes of a layer; nothing here depends on them."""


class SamplingParams:
    """What a request reads of the sampling parameters."""

    max_tokens, structured_outputs, prompt_logprobs, extra_args = 99, None, None, None


def manager(num_blocks: int, **layers: Any) -> Any:
    """Return a manager of the layers named: a kind, and its window, its chunk, or nothing; blocks of 2 tokens."""
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
    from vllm.utils import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher
    from vllm.v1.request import Request

    hasher = get_request_block_hasher(2, sha256)
    return Request(name, tokens, SamplingParams(), None, eos_token_id=None, block_hasher=hasher)


def old_cross_demand() -> str:
    """Show that encoder blocks of a running request hide that its next chunk does not fit."""
    kv, own = manager(4, full=None, cross=None), request("r", [0, 1, 2, 3])
    kv.allocate_slots(own, 2, num_encoder_tokens=4)
    own.num_computed_tokens = 2
    free = kv.block_pool.get_num_free_blocks()
    try:
        kv.allocate_slots(own, 2)
    except ValueError as error:
        return f"{free} free, 1 needed: not refused, but {type(error).__name__}: {error}"
    return ""


def old_eagle_hybrid() -> str:
    """Show that with drafts of EAGLE each group drops a block of the hit, one after another."""
    hits = []
    for layers in ({"full": None}, {"full": None, "sliding": 3}):
        kv = manager(20, eagle=True, **layers)
        kv.allocate_slots(request("first", [0, 1, 2, 3, 4]), 5)
        hits.append(kv.get_computed_blocks(request("again", [0, 1, 2, 3, 4]))[1])
    alone, beside = hits
    return f"a hit of {alone} tokens alone, {beside} beside a sliding layer" if beside < alone else ""


def old_null_parent() -> str:
    """Show that, with events, a block is published after one that is null, and the event of it cannot be made."""
    kv, own = manager(6, chunked=2, events=True), request("r", [0, 1, 2, 3])
    blocks, length = kv.get_computed_blocks(own)
    try:
        kv.allocate_slots(own, 2, length, blocks)
    except AssertionError:
        return f"a hit of {length} tokens, and an AssertionError when it is used"
    return ""


def old_null_published() -> str:
    """Show that the null block is published, and serves a hit, where publication was put off."""
    kv, own = manager(6, sliding=3), request("r", [0, 1, 2, 3, 4])
    kv.allocate_slots(own, 4, delay_cache_blocks=True)
    own.num_computed_tokens = 4
    kv.allocate_slots(own, 1)
    blocks, length = kv.get_computed_blocks(request("again", [0, 1, 2]))
    ids = [block.block_id for block in blocks.blocks[0]]
    return f"a hit of {length} tokens in blocks {ids}: block 0 is the null block" if 0 in ids else ""

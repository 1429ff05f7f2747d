"""What of SGLang is not served, by the name of its option, and what to do about it: asked when an engine starts."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.runtime_context import get_disagg, get_exec, get_memory, get_parallel, get_serving, get_spec

from blockwright.engines.sglang import NAME, not_served

_OTHER_CACHE = f"leave out --radix-cache-backend {NAME}, so that SGLang's own cache serves it"

_ALLOCATORS = (PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator)


def refuse(context: Any) -> None:
    """Refuse what the cache would serve wrongly or not at all.

    Raises:
        UnsupportedError: names the option or the kind of model, and the remedy.
    """
    params, memory, parallel = context.params, get_memory(), get_parallel()
    allocator, rows, recurs = params.token_to_kv_pool_allocator, params.req_to_token_pool, context.is_hybrid_ssm
    given = {
        "a sliding window that a draft, a replay or a ring of each request keeps otherwise": context.is_hybrid_swa
        and (params.draft_swa_window or params.decoder_swa_bounded_replay or not params.swa_gates_prefix_match),
        "a model with recurrent layers and a pool for sliding windows": recurs and context.is_hybrid_swa,
        "--speculative-algorithm with recurrent layers": recurs and get_spec().speculative_algorithm is not None,
        "--mamba-max-states-per-path": recurs and get_exec().mamba.mamba_max_states_per_path >= 0,
        "--enable-int8-mamba-checkpoint": recurs and getattr(rows, "mamba_ckpt_pool", None) is not None,
        "--enable-linear-replayssm": recurs and get_exec().mamba.enable_linear_replayssm,
        f"the rows {type(rows).__name__}": recurs and type(rows) is not HybridReqToTokenPool,
        "a model with DeepSeek's sparse attention": context.is_dsa,
        "an encoder-decoder model": getattr(context.model_config, "is_encoder_decoder", False),
        "--dllm-algorithm": get_exec().dllm.dllm_algorithm is not None,
        "--disable-radix-cache": context.disable_radix_cache,
        "--enable-hierarchical-cache": context.enable_hierarchical_cache,
        "--enable-lmcache": memory.enable_lmcache,
        "--enable-flexkv": memory.enable_flexkv,
        "--enable-unified-cache-external-linker": memory.enable_unified_cache_external_linker,
        "--enable-session-radix-cache": params.enable_session_radix_cache,
        "--enable-streaming-session": get_serving().enable_streaming_session,
        "--radix-eviction-policy other than lru": params.eviction_policy.lower() != "lru",
        "--disaggregation-mode": get_disagg().disaggregation_mode != "null",
        "--speculative-algorithm other than NGRAM, EAGLE and EAGLE3": get_spec().speculative_algorithm
        not in (None, "NGRAM", "EAGLE", "EAGLE3"),
        "--kv-events-config with EAGLE": params.is_eagle and params.enable_kv_cache_events,
        "pipeline parallelism": params.pp_size > 1,
        "context parallelism": params.attn_cp_size > 1 or parallel.dcp_enabled,
        f"the allocator {type(allocator).__name__}": type(allocator)
        not in ((SWATokenToKVPoolAllocator,) if context.is_hybrid_swa else _ALLOCATORS),
    }
    for what, is_given in given.items():
        if is_given:
            remedy = f"leave out {what.split()[0]}, or " if what.startswith("--") else ""
            raise not_served(what, remedy + _OTHER_CACHE)

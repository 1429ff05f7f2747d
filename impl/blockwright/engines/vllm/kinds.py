"""What vLLM says of its layers, said in Blockwright's words; and what is refused, by name and with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1 import kv_cache_interface as interface

from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.errors import UnsupportedError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

_LAYER: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "uint8"}
"""Sizes of a layer's page are vLLM's own business: the bookkeeping needs block sizes and windows alone."""


def _window(spec: Any) -> KVCacheSpec:
    if getattr(spec, "extra_retained_tokens", 0):
        raise UnsupportedError("sliding window: extra_retained_tokens keeps blocks beyond the window; not supported")
    return SlidingWindowSpec(spec.block_size, sliding_window=spec.sliding_window, **_LAYER)


def _state(spec: Any) -> KVCacheSpec:
    if spec.mamba_cache_mode == "all":
        raise UnsupportedError("mamba_cache_mode='all': states inside a step; start vLLM with --mamba-cache-mode align")
    if spec.num_speculative_blocks:
        raise UnsupportedError(
            "recurrent layers with speculative decoding: states of drafts in the block table are not supported; "
            "start vLLM without --speculative-config"
        )
    if getattr(spec, "num_prefill_checkpoint_blocks", 0):
        raise UnsupportedError("recurrent layers with checkpoints inside a prefill chunk are not supported")
    return MambaSpec(spec.block_size, ((1,),), ("uint8",))


_KINDS: dict[str, Callable[[Any], KVCacheSpec]] = {
    "FullAttentionSpec": lambda spec: FullAttentionSpec(spec.block_size, **_LAYER),
    "MLAAttentionSpec": lambda spec: FullAttentionSpec(spec.block_size, **_LAYER),
    "SlidingWindowSpec": _window,
    "SlidingWindowMLASpec": _window,
    "ChunkedLocalAttentionSpec": lambda spec: ChunkedLocalAttentionSpec(
        spec.block_size, attention_chunk_size=spec.attention_chunk_size, **_LAYER
    ),
    "MambaSpec": _state,
    "CrossAttentionSpec": lambda spec: CrossAttentionSpec(spec.block_size, **_LAYER),
}


def layer_spec(spec: Any) -> Any:
    """Return the one declaration of a group: vLLM wraps layers of one kind that differ in size alone."""
    if isinstance(spec, interface.UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def translated(config: Any) -> KVCacheConfig:
    """Return vLLM's `KVCacheConfig` as Blockwright's.

    Raises:
        UnsupportedError: a kind or an option that the manager does not serve; names it.
    """
    groups: list[KVCacheGroupSpec] = []
    for number, group in enumerate(config.kv_cache_groups):
        spec = layer_spec(group.kv_cache_spec)
        name = type(spec).__name__
        if name not in _KINDS:
            raise UnsupportedError(
                f"layers {list(group.layer_names)[:2]}... declare {name}, which Blockwright does not manage; it does "
                f"{', '.join(_KINDS)}. Unset BLOCKWRIGHT_VLLM to serve this model with vLLM's own manager"
            )
        role = str(getattr(getattr(group, "role", None), "value", "default"))
        if getattr(group, "host_resident", False) or role.lower() != "default":
            raise UnsupportedError(f"group {number}: blocks on the host (HiSparse, role {role}) are not supported")
        groups.append(KVCacheGroupSpec([f"{number}"], _KINDS[name](spec)))
    return KVCacheConfig(config.num_blocks, groups)


def next_trim(spec: KVCacheSpec, size: int) -> Callable[[int], int] | None:
    """Return what says, of a count of tokens, at how many more a further table entry of a group is no longer read.

    None of a group whose entries are read as long as the request runs.
    """
    if isinstance(spec, SlidingWindowSpec):
        last = spec.sliding_window - 1
        return lambda count: (max(0, count - last) // size + 1) * size + last
    if isinstance(spec, ChunkedLocalAttentionSpec):
        chunk = spec.attention_chunk_size
        return lambda count: (count // chunk + 1) * chunk
    if isinstance(spec, MambaSpec):
        return lambda count: max(1, -(-count // size)) * size + 1
    return None

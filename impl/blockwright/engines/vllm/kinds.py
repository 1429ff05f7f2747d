"""What vLLM says of its layers, said in Blockwright's words; and what is refused, by name and with the remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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


WORKERS_OWN = frozenset(
    "alignment block_stride_alignment cache_dtype_str cache_role dtype dtypes head_size head_size_v "
    "is_draft is_index_group_leader kv_quant_mode mamba_type max_tp_shards model_version non_causal "
    "non_causal_multi_token_decode num_head_slots num_heads num_kv_heads page_size_padded prefill_checkpoint_alignment "
    "shapes state_content_bytes storage_block_size tokens_per_state topk_buffer_width tp_replicated "
    "enable_kv_transfer is_eagle_group kv_cache_spec layer_names "
    "cache_hit_alignment_tokens hash_block_size kv_cache_groups kv_cache_layout kv_cache_tensors kv_tp_replicas "
    "num_blocks".split()
)
"""Fields of vLLM's declarations that decide how a block is laid out, or that reach the manager in another way."""

_READ = frozenset(
    "attention_chunk_size block_size dcp_sharded extra_retained_tokens host_resident kv_cache_specs mamba_cache_mode "
    "num_prefill_checkpoint_blocks num_speculative_blocks prefix_cache_retention_interval role rswa_window "
    "sliding_window".split()
)
"""Fields that are read here, and served or refused by their value."""

UNSET = "Unset BLOCKWRIGHT_VLLM to serve this model with vLLM's own manager"
"""The remedy for what no option of vLLM turns off."""

_REPLAYED = "windows that are replayed after a hit", "Start vLLM with --no-swa-bounded-replay"
_ON_THE_HOST = "blocks on the host", "Start vLLM without HiSparse"

_ONLY: dict[str, tuple[Any, tuple[str, str]]] = {
    "bounded_replay": (False, _REPLAYED),
    "hisparse_host_block_stride": (None, _ON_THE_HOST),
    "hisparse_host_num_blocks": (None, _ON_THE_HOST),
    "hisparse_shared_host_pool": (False, _ON_THE_HOST),
    "prefix_replay_tokens": (0, _REPLAYED),
    "prefix_cacheable": (True, ("layers that are left out of prefix caching", UNSET)),
}
"""Fields, and properties, that are served with one value alone; what any other asks for, and the remedy."""


def require_known(place: str, declared: Any) -> None:
    """Return if every field of a declaration of vLLM's is served with the value that it has.

    Raises:
        UnsupportedError: one is not, or is newer than the adapter and not at its default; names it.
    """
    for name, (value, (what, remedy)) in _ONLY.items():
        found = getattr(declared, name, value)
        if found != value:
            raise UnsupportedError(f"{place}: {name}={found!r} ({what}) is not supported under Blockwright. {remedy}")
    for each in dataclasses.fields(declared):
        if each.name not in WORKERS_OWN | _READ | set(_ONLY):
            found = getattr(declared, each.name)
            if found != each.default:
                raise UnsupportedError(
                    f"{place}: {each.name}={found!r} is not supported under Blockwright: this vLLM is newer than "
                    f"the adapter. {UNSET}"
                )


def _full(spec: Any) -> KVCacheSpec:
    return FullAttentionSpec(spec.block_size, **_LAYER)


def _window(spec: Any) -> KVCacheSpec:
    window = spec.sliding_window + getattr(spec, "extra_retained_tokens", 0)
    return SlidingWindowSpec(spec.block_size, sliding_window=window, **_LAYER)


def _state(spec: Any) -> KVCacheSpec:
    if spec.mamba_cache_mode == "all":
        raise UnsupportedError("mamba_cache_mode='all': states inside a step; start vLLM with --mamba-cache-mode align")
    return MambaSpec(spec.block_size, ((1,),), ("uint8",), spec.num_speculative_blocks, runs_ahead=True)


KINDS: dict[str, Callable[[Any], KVCacheSpec]] = {
    "FullAttentionSpec": _full,
    "MLAAttentionSpec": _full,
    "HiddenStateCacheSpec": _full,
    "RSWASpec": _full,  # a window over outputs behind a prompt that is read whole: what vLLM gives up early is kept
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


def require_margins(groups: Sequence[Any], specs: Sequence[KVCacheSpec]) -> None:
    """Return if each layer that may be a draft head's can give up the last block of a hit.

    A group is a draft head's if it is flagged; if none is, each one may be.

    Raises:
        UnsupportedError: one cannot; names it and the remedy.
    """
    flags = [bool(getattr(group, "is_eagle_group", False)) for group in groups]
    for number, (spec, is_flagged) in enumerate(zip(specs, flags, strict=True)):
        if spec.chunk and (is_flagged or not any(flags)):
            raise UnsupportedError(
                f"group {number}: a draft head with chunked local attention cannot give up the last block of a hit, "
                "neither here nor in vLLM: start vLLM without prefix caching, or without drafts by EAGLE or MTP"
            )


def translated(config: Any, dcp_world_size: int) -> KVCacheConfig:
    """Return vLLM's `KVCacheConfig` as Blockwright's.

    A model without any cache (encoders) gets a group that is never asked for a block, since the manager needs one.

    Args:
        config: vLLM's.
        dcp_world_size: ranks that share the tokens of a block, of those layers that vLLM shards between them.

    Raises:
        UnsupportedError: a kind or an option that the manager does not serve; names it.
    """
    require_known("KVCacheConfig", config)
    groups: list[KVCacheGroupSpec] = []
    for number, group in enumerate(config.kv_cache_groups):
        spec = layer_spec(group.kv_cache_spec)
        name = type(spec).__name__
        if name not in KINDS:
            raise UnsupportedError(
                f"layers {list(group.layer_names)[:2]}... declare {name}, which Blockwright does not manage; it does "
                f"{', '.join(KINDS)}. {UNSET}"
            )
        role = str(getattr(getattr(group, "role", None), "value", "default"))
        if getattr(group, "host_resident", False) or role.lower() != "default":
            what, remedy = _ON_THE_HOST
            raise UnsupportedError(f"group {number}: {what} (role {role}): not supported under Blockwright. {remedy}")
        for declared in (group, group.kv_cache_spec, spec):
            require_known(f"group {number}", declared)
        own = KINDS[name](spec)
        if dcp_world_size > 1 and getattr(group.kv_cache_spec, "dcp_sharded", not own.is_recurrent):
            if not own.reads_all:
                raise UnsupportedError(
                    f"group {number}: {name} under decode context parallelism is not supported unless each rank has "
                    "all of it: start vLLM with --decode-context-parallel-size 1"
                )
            own = FullAttentionSpec(own.block_size * dcp_world_size, **_LAYER)
        groups.append(KVCacheGroupSpec([f"{number}"], own))
    if not groups:
        return KVCacheConfig(2, [KVCacheGroupSpec(["none"], FullAttentionSpec(16, **_LAYER))])
    return KVCacheConfig(config.num_blocks, groups)


def checkpoint_rule(scheduler: Any) -> Callable[[int, int], int] | None:
    """Return after which token of a prefill step, given its first and its end, the worker leaves a state; 0: none."""
    # The worker goes by a rule of its own and asks no manager. It is followed where the state belongs to the entry that
    # the worker writes to, the last but one: hits end with blocks, and no block is computed again for a draft head.
    # None where it is not: the entry stays empty, and the worker leaves the state out.
    groups = scheduler.kv_cache_config.kv_cache_groups
    specs = [spec for group in groups if isinstance(spec := layer_spec(group.kv_cache_spec), interface.MambaSpec)]
    layouts = {
        (spec.block_size, getattr(spec, "prefill_checkpoint_alignment", None))
        for spec in specs
        if spec.mamba_cache_mode == "align"
    }
    if not scheduler.mamba_has_prefill_checkpoint_blocks or len(layouts) != 1 or scheduler.use_eagle_block_drop:
        return None
    try:
        from vllm.v1.core.kv_cache_utils import resolve_cache_hit_alignment_tokens
    except ImportError:  # before 0.32
        return None
    unit = scheduler.hash_block_size
    cut = resolve_cache_hit_alignment_tokens(
        scheduler.kv_cache_config, scheduler.vllm_config, scheduler.block_size, unit
    )
    ((size, alignment),) = layouts
    if cut != size:
        return None
    ahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)
    more = {"num_hash_lookahead_tokens": ahead} if ahead else {}

    def inside(start: int, stop: int) -> int:
        place = interface.get_mamba_prefill_checkpoint_position(stop, cut, False, **more)
        is_left = interface.is_mamba_prefill_checkpoint_valid(start, stop, place, unit, size, alignment)
        return place if is_left and start + size <= place == (stop - 1) // size * size else 0

    return inside


def next_trim(spec: KVCacheSpec, size: int) -> Callable[[int], int] | None:
    """Return what says, of a count of tokens, at how many more a further table entry of a group is no longer read."""
    # None of a group whose entries are read as long as the request runs.
    if spec.window is not None:
        last = spec.window - 1
        return lambda count: (max(0, count - last) // size + 1) * size + last
    if (chunk := spec.chunk) is not None:
        return lambda count: (count // chunk + 1) * chunk
    if spec.is_recurrent:
        return lambda count: max(1, -(-count // size)) * size + 1
    return None

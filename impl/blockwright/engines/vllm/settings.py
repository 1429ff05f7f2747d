"""What vLLM's configuration means for the manager, computed once; what is not served is refused, by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from blockwright import KVCacheManager as Manager
from blockwright.config import KVCacheConfig
from blockwright.engines.vllm.kinds import UNSET, layer_spec, next_trim, require_margins, translated
from blockwright.engines.vllm.requests import FOR_EVER
from blockwright.errors import UnsupportedError
from blockwright.kinds import (
    KVCacheSpec,
)

_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "pcp_world_size": ((1,), "start vLLM with --prefill-context-parallel-size 1"),
    "enable_mamba_shared_prefix_checkpoint": ((False, True), "start vLLM without it"),
}
"""Options of vLLM's constructor that the manager serves with these values alone, and the remedy."""


@dataclass(frozen=True)
class Settings:
    """The configuration of one manager."""

    declared: Any  # vLLM's `KVCacheConfig`, which connectors read.
    # The same in Blockwright's words, with a group even of a model without a cache, as the core wants one.
    config: KVCacheConfig
    specs: tuple[KVCacheSpec, ...]  # the kind of each group's layers.
    max_model_len: int  # tokens of the longest request.
    caches: bool  # whether prefixes are cached: vLLM asks for it, and there are layers to cache.
    # Whether a draft head computes the last block of a hit again. Hashes that look ahead spare it that.
    use_eagle: bool
    match_unit: int | None  # tokens at multiples of which a hit may end; None where it ends with blocks.
    hash_unit: int | None  # tokens of one of vLLM's hashes, None without prefix caching.
    lookahead: int  # tokens behind a block that its hash also covers.
    # Number of the hash that is the key of a request's first unit: with a draft head and a unit each key is that of
    # the next unit's end. It covers all that the head's data depends on, so nothing is computed again.
    first: int
    again: int  # last tokens of a step that drafts of several modules write once more in the next one.
    in_flight: int  # most tokens of steps in flight, from which vLLM computes what it reserves for a load.
    watermark: int  # blocks that stay free when a request is admitted.

    @classmethod
    def of(
        cls,
        kv_cache_config: Any,
        max_model_len: int,
        *,
        hash_block_size: int | None = None,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        dcp_world_size: int = 1,
        watermark: float = 0.0,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        **options: Any,
    ) -> Settings:
        """Take vLLM's configuration.

        Raises:
            UnsupportedError: a kind of layer or an option that is not served; names it and the remedy.
        """
        for name, value in options.items():
            values, remedy = _ONLY.get(name, ((), f"this vLLM is newer than the adapter. {UNSET}"))
            if name != "scheduler_block_size" and value not in values:
                shown = f"={value!r}" if isinstance(value, int) else ""
                raise UnsupportedError(f"{name}{shown} is not supported under Blockwright: {remedy}")
        groups = kv_cache_config.kv_cache_groups
        config = translated(kv_cache_config, dcp_world_size)
        specs = tuple(group.kv_cache_spec for group in config.kv_cache_groups)[: len(groups)]
        caches = enable_caching and bool(groups)
        again = max(0, num_prefill_lookahead - 1)
        if caches and any(spec.is_recurrent for spec in specs):
            _require_states(groups, again and num_prefill_lookahead)
        if not num_hash_lookahead_tokens:
            use_eagle = use_eagle or any(getattr(group, "is_eagle_group", False) for group in groups)
        if use_eagle and caches:
            require_margins(groups, specs)
        match_unit = None
        if caches and hash_block_size and not again and dcp_world_size == 1:
            looks_ahead = use_eagle or num_hash_lookahead_tokens + num_prefill_lookahead > 0
            match_unit = _match_unit(specs, hash_block_size, looks_ahead)
        first = int(use_eagle and match_unit is not None)
        unit = hash_block_size or match_unit or min([spec.block_size for spec in specs], default=1)
        return cls(
            kv_cache_config,
            config,
            specs,
            max_model_len,
            caches,
            use_eagle,
            match_unit,
            unit if caches else None,
            unit if first else num_hash_lookahead_tokens,
            first,
            again,
            max_model_len if max_in_flight_tokens is None else max_in_flight_tokens,
            int(watermark * kv_cache_config.num_blocks),
        )

    def core(self, events: bool, track_evictions: bool) -> Manager:
        """Return the core that serves these settings.

        Raises:
            UnsupportedError: a retention interval, and no layer forgets.
        """
        return Manager(
            self.config,
            self.max_model_len,
            self.caches,
            use_eagle=self.use_eagle and self.caches and not self.first,
            enable_kv_cache_events=events and self.caches,
            keep_wanted=self.keeps_wanted,
            wanted_interval=self._wanted_interval() if self.caches else 0,
            # Where all of a prompt is wanted, only what outputs passed could be spared.
            passing_spares=0 if self.keeps_wanted and self.interval is None else None,
            prefix_match_unit=self.match_unit,
            track_evictions=track_evictions and self.caches,
            raise_never_fits=False,
        )

    @cached_property
    def layouts(self) -> tuple[tuple[KVCacheSpec, int], ...]:
        """Kind and tokens of a block of each group."""
        return tuple(zip(self.specs, self.sizes, strict=True))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of a block of each group."""
        return tuple(spec.block_size for spec in self.specs)

    @cached_property
    def state_sizes(self) -> tuple[int, ...]:
        """Those of groups with recurrent layers, each of which takes a state as a request fills a block."""
        return tuple(spec.block_size for spec in self.specs if spec.is_recurrent)

    @cached_property
    def unit(self) -> int:
        """Tokens at multiples of which something may become known to lookups."""
        return self.match_unit or min(self.sizes, default=1)

    @cached_property
    def whole(self) -> int:
        """Tokens at multiples of which all groups have whole blocks."""
        return math.lcm(*self.sizes)

    @cached_property
    def has_states(self) -> bool:
        """Whether states are cached: they are found only where a step ended that cannot be taken back."""
        return self.caches and bool(self.state_sizes)

    @cached_property
    def drafts(self) -> list[int]:
        """Tokens of a step that may be taken back, by recurrent group: each holds as many states more."""
        return [spec.num_speculative_blocks for spec in self.specs if spec.is_recurrent]

    @cached_property
    def num_drafts(self) -> int:
        """Most of them: such a step has its entries for states, and none of its states is certain before it has run."""
        return max(self.drafts, default=0)

    @cached_property
    def behind(self) -> int:
        """Last known tokens whose block is not published yet: written once more, or not covered by its hash."""
        return max(self.again, self.lookahead)

    @cached_property
    def is_later(self) -> bool:
        """Whether what a step fills is published when the next one starts: it has then run before the next's copies."""
        return self.has_states or self.match_unit is not None

    @cached_property
    def next_trim(self) -> Callable[[int], int] | None:
        """At how many tokens, from a count of them, a further table entry is read no more; None: all are read on."""
        trims = [found for spec in dict.fromkeys(self.specs) if (found := next_trim(spec, spec.block_size)) is not None]
        if len(trims) > 1:
            return lambda count: min([trim(count) for trim in trims])
        return trims[0] if trims else None

    @cached_property
    def unread(self) -> int:
        """Tokens behind the published ones within which a step may end, so that no unpublished block is trimmed."""
        # The last block of a chunk needs no key: behind it, nothing of the chunk is read.
        ends = [
            self.unit + (spec.block_size if spec.window is None else spec.window - 1)
            for spec in self.specs
            if spec.window or spec.chunk
        ]
        return min(ends, default=FOR_EVER)

    @cached_property
    def is_certain(self) -> bool:
        """Whether the states that steps leave are certain at once: nobody drafts, and no block dies early."""
        # Then steps that fill blocks in place are told together when the next one starts. Told one by one, as the
        # states of others, they would cost a step of 256 requests with blocks of 16 tokens 15 % (2026-11-30).
        return self.has_states and not self.num_drafts and self.match_unit is None and self.unread == FOR_EVER

    @cached_property
    def zeroed(self) -> list[int]:
        """Groups with new blocks that the worker is to zero before they are written: states are written whole."""
        is_on = getattr(self.declared, "needs_kv_cache_zeroing", False)
        return [number for number, spec in enumerate(self.specs) if is_on and not spec.is_recurrent]

    @property
    def interval(self) -> Any:
        """The retention interval of vLLM: 0 by default, None for dense."""
        return getattr(self.declared, "prefix_cache_retention_interval", 0)

    @cached_property
    def keeps_wanted(self) -> bool | None:
        """Whether blocks that no likely hit needs are evicted first, as the interval asks for; None without caching."""
        # Dense is by age alone, except for recurrent states that decoding has passed: vLLM gives most of these back
        # without a key. vLLM's scheduler ends prefill steps at the junction and at the prompt's last whole block.
        return self._forgets and (self.interval is not None or self._may_pass_states) if self.caches else None

    @property
    def _forgets(self) -> bool:
        return any(not (spec.reads_all or spec.reads_encoder) for spec in self.specs)

    @property
    def _may_pass_states(self) -> bool:
        """Whether states may be kept at each block's end of a prompt, and not of outputs."""
        return bool(self.state_sizes) and not any(spec.chunk for spec in self.specs)

    def _wanted_interval(self) -> int:
        """Return the tokens at each multiple of which hits of a prompt are wanted, 0 for none; each block if dense."""
        if self.interval is None:
            return self.whole if self._may_pass_states else 0
        if self.interval and not self._forgets:
            raise UnsupportedError(
                f"prefix_cache_retention_interval={self.interval}: without windows and recurrent states it would have "
                "no effect: start vLLM without --prefix-cache-retention-interval"
            )
        return int(self.interval)


def _require_states(groups: list[Any], num_prefill_lookahead: int) -> None:
    """Return if recurrent layers can be cached."""
    if any(getattr(layer_spec(group.kv_cache_spec), "mamba_cache_mode", "align") != "align" for group in groups):
        raise UnsupportedError(
            "recurrent layers with prefix caching need mamba_cache_mode='align': start vLLM with "
            "--mamba-cache-mode align or --no-enable-prefix-caching"
        )
    if num_prefill_lookahead:
        raise UnsupportedError(
            f"num_prefill_lookahead={num_prefill_lookahead}: drafts of several modules beside recurrent layers are not "
            "supported under Blockwright with prefix caching: start vLLM with num_speculative_tokens=1"
        )


def _match_unit(specs: tuple[KVCacheSpec, ...], unit: int, looks_ahead: bool) -> int | None:
    """Return the tokens at multiples of which a hit may end, None where hits end with blocks, as in vLLM."""
    states = [spec.block_size for spec in specs if spec.is_recurrent]
    if any(spec.reads_encoder for spec in specs) or (looks_ahead and not states):
        return None
    return unit if unit < (max(states) if states else min(spec.block_size for spec in specs)) else None

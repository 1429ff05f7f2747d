"""vLLM's `KVCacheManager`, served by Blockwright's.

Written against vLLM's scheduler: names, arguments and results are those of `vllm.v1.core.kv_cache_manager`. What makes
it fast is that most calls of a decode step change no table: a step that ends within the slots that a request has, fills
no block and lets no entry die is answered by one comparison, and the manager hears of it with the next step that does.

Time. vLLM runs steps in the order in which it schedules them, so a block that a request gives up may be taken at once:
whoever takes it writes in a later step. Blocks are published when a lookup comes, for every step scheduled before it:
a request that is preempted in the very step that should fill a block leaves no key behind. Tokens that drafts may take
back are never counted as certain. What is published of a request is at most what was scheduled for it: what it had
computed, and what this step computes. Of a streaming session it is at most what its next turn keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from blockwright import Fits, GivenHasher, KVCacheBlocks, Request
from blockwright import KVCacheManager as Manager
from blockwright.engines.vllm import connectors
from blockwright.engines.vllm.events import Events
from blockwright.engines.vllm.kinds import UNSET, checkpoint_rule, layer_spec, next_trim, require_margins, translated
from blockwright.engines.vllm.pool import Blocks, ByRequest, Pool, View
from blockwright.engines.vllm.requests import FOR_EVER, NEVER, Twin
from blockwright.errors import UnsupportedError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)

_CROWD = 32
"""The states that requests take in one step, as they fill a block together, are at most such a part of the pool."""

_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "pcp_world_size": ((1,), "start vLLM with --prefill-context-parallel-size 1"),
    "enable_mamba_shared_prefix_checkpoint": ((False, True), "start vLLM without it"),
}
"""Options of vLLM's constructor that the manager serves with these values alone, and the remedy."""


def _keeps_wanted(kv_cache_config: Any, specs: list[Any]) -> bool | None:
    """Return whether blocks that no likely hit needs are evicted first, as the retention interval asks for.

    None is dense: by age alone, except for recurrent states that decoding has passed: vLLM gives most of these back
    without a key. 0 is vLLM's default; above it, hits of each multiple are wanted as well (`_interval`). vLLM's
    scheduler ends prefill steps at the junction and at the prompt's last whole block.
    """
    return _forgets(specs) and (not _is_dense(kv_cache_config) or _may_pass_states(specs))


def _is_dense(kv_cache_config: Any) -> bool:
    return getattr(kv_cache_config, "prefix_cache_retention_interval", 0) is None


def _may_pass_states(specs: list[Any]) -> bool:
    """Return whether states may be kept at each block's end of a prompt, and not of outputs (`_interval`)."""
    chunked = any(isinstance(spec, ChunkedLocalAttentionSpec) for spec in specs)
    return any(isinstance(spec, MambaSpec) for spec in specs) and not chunked


def _forgets(specs: list[Any]) -> bool:
    return any(isinstance(spec, MambaSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec) for spec in specs)


def _interval(kv_cache_config: Any, specs: list[Any]) -> int:
    """Return the tokens at each multiple of which hits of a prompt are wanted, 0 for none; each block's end if dense.

    Raises:
        UnsupportedError: no layer forgets, so there is nothing to keep, as vLLM's own manager says.
    """
    interval = getattr(kv_cache_config, "prefix_cache_retention_interval", 0)
    if _is_dense(kv_cache_config):
        return math.lcm(*[spec.block_size for spec in specs]) if _may_pass_states(specs) else 0
    if interval and not _forgets(specs):
        raise UnsupportedError(
            f"prefix_cache_retention_interval={interval}: without windows and recurrent states it would have no "
            "effect: start vLLM without --prefix-cache-retention-interval"
        )
    return int(interval)


@HybridKVCacheCoordinator.register
class _Coordinator(View, SimpleNamespace):
    """What vLLM and its connectors read of vLLM's coordinator; some ask whether it is one of several groups."""

    called = "kv_cache_manager.coordinator"


class _Group(View, SimpleNamespace):
    """What they read of vLLM's manager of one group."""

    called = "single_type_manager"


class _NoBlocks:
    """What most steps answer: the scheduler asks every answer for its ids, and this one costs it least.

    Attributes:
        blocks: no block, a list per group.
        ids: likewise.
    """

    __slots__ = ("blocks", "ids")

    def __init__(self, num_groups: int) -> None:
        """Have so many groups."""
        self.blocks: tuple[list[Any], ...] = tuple([] for _ in range(num_groups))
        self.ids: list[list[int]] = [[] for _ in range(num_groups)]

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return no ids, a list per group; None if `allow_none`."""
        return None if allow_none else tuple([] for _ in (self.ids if group_ids is None else group_ids))

    def get_unhashed_block_ids(self) -> list[int]:
        """Return no ids."""
        return []

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Return no ids, a list per group."""
        return [[] for _ in self.ids]

    def new_empty(self) -> _NoBlocks:
        """Return no blocks."""
        return self

    def __add__(self, other: Any) -> Any:
        """Return what is added."""
        return other


class KVCacheManager:
    """The manager of one vLLM scheduler.

    Attributes:
        core: Blockwright's manager, for `check()`, `explain_hit` and the like.
        coordinator: what vLLM and its connectors read of vLLM's coordinator.
        specs: the kind of each group's layers.
        keeps_wanted: whether blocks that no likely hit needs are evicted first; None without prefix caching.
    """

    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        *,
        hash_block_size: int | None = None,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        watermark: float = 0.0,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        metrics_collector: Any = None,
        **options: Any,
    ) -> None:
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
        caches, enable_caching = enable_caching, enable_caching and bool(groups)
        self.specs = [group.kv_cache_spec for group in config.kv_cache_groups][: len(groups)]
        self._has_states = enable_caching and any(isinstance(spec, MambaSpec) for spec in self.specs)
        if self._has_states and any(
            getattr(layer_spec(group.kv_cache_spec), "mamba_cache_mode", "align") != "align" for group in groups
        ):
            raise UnsupportedError(
                "recurrent layers with prefix caching need mamba_cache_mode='align': start vLLM with "
                "--mamba-cache-mode align or --no-enable-prefix-caching"
            )
        self._holds_states = any(isinstance(spec, MambaSpec) for spec in self.specs)
        self._lookahead = num_hash_lookahead_tokens
        # With drafts of several modules, the next step writes a draft head's last tokens once more.
        self._again = max(0, num_prefill_lookahead - 1)
        if self._again and self._has_states:
            raise UnsupportedError(
                f"num_prefill_lookahead={num_prefill_lookahead}: drafts of several modules beside recurrent layers "
                "are not supported under Blockwright with prefix caching: start vLLM with num_speculative_tokens=1"
            )
        # Hashes that look ahead leave no block to be computed again, though the groups stay flagged.
        is_flagged = any(getattr(group, "is_eagle_group", False) for group in groups)
        self.use_eagle = use_eagle or (is_flagged and not self._lookahead)
        if self.use_eagle and enable_caching:
            require_margins(groups, self.specs)
        sizes = [spec.block_size for spec in self.specs if not isinstance(spec, CrossAttentionSpec)]
        self._num_drafts = max([getattr(spec, "num_speculative_blocks", 0) for spec in self.specs], default=0)
        # Where one of these is on, hits end with blocks, as with vLLM's own manager.
        whole = not enable_caching or self._again > 0 or not hash_block_size
        whole = whole or (not self._has_states and (self.use_eagle or self._lookahead + num_prefill_lookahead > 0))
        whole = whole or dcp_world_size > 1 or len(sizes) < len(self.specs)
        states = [spec.block_size for spec in self.specs if isinstance(spec, MambaSpec)]
        whole = whole or (hash_block_size or 0) >= (max(states) if self._has_states else min(sizes))
        self._match_unit: int | None = None if whole else hash_block_size
        # vLLM has a draft head compute the unit behind a hit again. Here each key is that of the next unit's end: it
        # covers the tokens on which the head's data depends, so that nothing is computed again.
        self._first = int(self.use_eagle and not whole)
        if self._first:
            self._lookahead = hash_block_size or 0
        self._behind = max(self._again, self._lookahead)
        self.keeps_wanted = _keeps_wanted(kv_cache_config, self.specs) if enable_caching else None
        self.core = Manager(
            config,
            max_model_len,
            enable_caching,
            use_eagle=self.use_eagle and enable_caching and not self._first,
            enable_kv_cache_events=enable_kv_cache_events and enable_caching,
            keep_wanted=self.keeps_wanted,
            wanted_interval=_interval(kv_cache_config, self.specs) if enable_caching else 0,
            # Where all of a prompt is wanted, only what outputs passed could be spared.
            passing_spares=0 if self.keeps_wanted and _is_dense(kv_cache_config) else None,
            prefix_match_unit=self._match_unit,
            track_evictions=metrics_collector is not None and enable_caching,
            raise_never_fits=False,
        )
        self.kv_cache_config = kv_cache_config
        self.num_kv_cache_groups = len(groups)
        self.max_model_len = max_model_len
        self.enable_caching = caches
        self._caches = enable_caching
        self.enable_kv_cache_events = enable_kv_cache_events
        self.log_stats = log_stats
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.mamba_shared_prefix_checkpoint = self._match_unit is not None and bool(
            options.get("enable_mamba_shared_prefix_checkpoint")
        )
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.empty_kv_cache_blocks: Any = _NoBlocks(len(groups))
        self._sizes = [manager.block_size for manager in self.core.managers][: len(groups)]
        self._unit = self._match_unit or min(self._sizes, default=1)
        # What a step fills is published when the next one starts: it has then run before the next one's copies.
        self._is_later = self._has_states or self._match_unit is not None
        self._hash_block_size = (hash_block_size or self._unit) if enable_caching else None
        self.block_pool = Pool(
            self.core.block_pool, self._sizes, self._hash_block_size, self._publish_for_readers, metrics_collector
        )
        self._state_sizes = [
            size for spec, size in zip(self.specs, self._sizes, strict=True) if isinstance(spec, MambaSpec)
        ]
        self._checkpoint: Callable[[int, int], int] | None = None
        layouts = dict.fromkeys(zip(self.specs, self._sizes, strict=True))
        trims = [found for spec, size in layouts if (found := next_trim(spec, size)) is not None]
        self._trims = bool(trims)
        # A step that ends within so many tokens of the published ones trims no block that is to be published yet. The
        # last block of a chunk needs no key: behind it, nothing of the chunk is read.
        self._unread = min(
            [
                self._unit + (spec.sliding_window - 1 if isinstance(spec, SlidingWindowSpec) else size)
                for spec, size in layouts
                if isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec)
            ],
            default=FOR_EVER,
        )
        # Without drafts no step can be taken back. (With windows, filled blocks are published before they die.)
        self._is_certain = (
            self._has_states and not self._num_drafts and self._match_unit is None and self._unread == FOR_EVER
        )
        self._settles = self._has_states and not self._is_certain
        self._next_trim = trims[0] if len(trims) == 1 else lambda count: min([trim(count) for trim in trims])
        self._in_flight = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        zeroes = bool(getattr(kv_cache_config, "needs_kv_cache_zeroing", False))
        self._zeroed = [number for number, spec in enumerate(self.specs) if zeroes and not isinstance(spec, MambaSpec)]
        self._new_ids: list[int] = []
        self._running: dict[str, Any] = {}
        # What a request's first step with drafts takes in all recurrent layers, and who has not had one yet.
        self._draft_states = sum(spec.num_speculative_blocks for spec in self.specs if isinstance(spec, MambaSpec))
        self._undrafted: set[str] = set()
        self._due: dict[str, Any] = {}
        self._left: list[tuple[int, Any]] = []
        self._dying: list[Any] = []
        self._offers: dict[str, list[tuple[int, int, int]]] = {}
        self._asked: tuple[Any, KVCacheBlocks | None] = None, None  # who looked up last, and the hit
        self._unserved: KVCacheBlocks | None = None  # a hit that could not be cut
        self._spared: list[int] = []  # states that the hit of a request that was refused ends with
        self._may_forget = True  # whether blocks that running requests hold are found by nobody else than lookups
        self._events = (
            Events(
                self.core, groups, self._sizes, self._hash_block_size or 0, self._lookahead, self._first, self._running
            )
            if enable_kv_cache_events and enable_caching
            else None
        )
        self.coordinator = _Coordinator(
            single_type_managers=tuple(
                _Group(
                    block_size=size,
                    kv_cache_spec=group.kv_cache_spec,
                    kv_cache_group_id=number,
                    block_pool=self.block_pool,
                    enable_caching=enable_caching,
                    req_to_blocks=ByRequest(self._running.keys, partial(self._blocks_of, number)),
                    num_cached_block=ByRequest(self._running.keys, partial(self._num_published, number)),
                )
                for number, (size, group) in enumerate(zip(self._sizes, groups, strict=True))
            ),
            block_pool=self.block_pool,
            kv_cache_config=kv_cache_config,
            enable_caching=enable_caching,
            group_block_sizes=tuple(self._sizes),
            scheduler_block_size=math.lcm(*self._sizes),
            retention_interval=getattr(kv_cache_config, "prefix_cache_retention_interval", 0),
            get_blocks=lambda name: self.get_blocks(name).blocks,
            enable_partial_hash_hits=self._has_states and self._match_unit is not None,
            full_attention_group_id=next(
                (number for number, spec in enumerate(self.specs) if isinstance(spec, FullAttentionSpec)), None
            ),
            get_num_blocks_to_allocate=self._num_blocks_to_allocate,
            find_longest_cache_hit_per_group=self._hits_per_group,
        )

    def bind(self, scheduler: Any) -> None:
        """Check, once its scheduler is made, that the manager can serve it, and serve its connector from now on.

        Where a state that the worker would leave inside a prefill step is not kept, the scheduler ends a step there, as
        it does for models without such checkpoints.

        Raises:
            UnsupportedError: it cannot; names what, and the remedy.
        """
        unit, connector = getattr(scheduler.cache_config, "prefix_match_unit", None), scheduler.connector
        if unit is not None and self._has_states and unit < min(self._state_sizes) and self._match_unit is None:
            raise UnsupportedError(
                f"prefix_match_unit={unit}: hits that end inside a block of recurrent layers are not supported under "
                "Blockwright beside DCP or encoder layers: start vLLM without --prefix-match-unit"
            )
        if connector is not None:
            if self._again:
                raise UnsupportedError(
                    "drafts of several modules beside a connector are not supported under Blockwright: what is loaded "
                    "would be found before they have written its last tokens. Start vLLM with num_speculative_tokens=1"
                )
            connectors.require_served(connector)
            self.block_pool.keep_hashes()
        self._may_forget = connector is None and getattr(scheduler, "aux_output_connector", None) is None
        if self._has_states:
            self._checkpoint = checkpoint_rule(scheduler)
            scheduler.mamba_has_prefill_checkpoint_blocks = self._checkpoint is not None

    # ------------------------------------------------------------------ lookup

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int]:
        """Return the hit, its tokens, and where a prefix ends that other layers have and the recurrent ones lack."""
        if not self._caches or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0, 0
        self._publish_for_readers()
        twin = self._twin(request)
        twin.learn(request, request.num_tokens)
        own = twin.request
        if max_cache_hit_length is not None and max_cache_hit_length < request.num_tokens - 1:
            own = self._prefix(request.block_hashes, request.all_token_ids, max(0, max_cache_hit_length))
        hit, length = self.core.get_computed_blocks(own)
        if twin.takes_whole:
            hit, length = self._whole_hit(request.block_hashes, request.all_token_ids, length)
        self._asked = request, hit
        if self._events is not None and length and getattr(request, "kv_cache_report_mode", "") == "full":
            self._events.repeat(request, length)
        twin.junction = own.junction if self._has_states else 0
        return hit, length, twin.junction

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """Return the hit that all layers have: a connector brings what lies beyond it."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def _prefix(self, hashes: Any, tokens: Sequence[int], most: int) -> Request:
        """Return a request that only asks: what is the hit of these tokens, up to `most` of them?"""
        hasher = GivenHasher(hashes, key_lookahead=self._lookahead, first=self._first)
        return Twin.request_of("asks", list(tokens[: most + max(1, self._lookahead)]), self._hash_block_size, hasher)

    def _whole_hit(self, hashes: Any, tokens: Sequence[int], most: int) -> tuple[KVCacheBlocks, int]:
        """Return the longest hit of at most so many tokens that ends with a block of each group, and its tokens."""
        size = math.lcm(*self._sizes)
        while True:
            hit, length = self.core.get_computed_blocks(self._prefix(hashes, tokens, most - most % size))
            if length % size == 0:
                return hit, length
            most = length

    def _hits_per_group(self, block_hashes: Any, max_cache_hit_length: int) -> tuple[None, tuple[int, ...]]:
        """Return the hit that each group has alone, as the offloading connector asks vLLM's coordinator.

        With a unit it is the hit that all have, which is no longer. vLLM returns the blocks first, but no connector
        reads them.
        """
        self._publish_for_readers()
        tokens = [0] * (max_cache_hit_length + 1)
        if self._match_unit is not None:
            keyed = max(0, len(block_hashes) - self._first) * self._match_unit
            length = self._whole_hit(block_hashes, tokens, min(max_cache_hit_length, keyed))[1]
            return None, (length,) * len(self._sizes)
        own = self._prefix(block_hashes, tokens, max_cache_hit_length)
        return None, tuple(group.num_tokens for group in self.core.explain_hit(own).groups)

    def truncate_computed_blocks(self, blocks: KVCacheBlocks, num_computed_tokens: int) -> KVCacheBlocks:
        """Return a hit up to the whole blocks that its first tokens fill: a connector has more than its last part.

        A recurrent layer may have no state there. Then the request is not admitted now, and its next hit is of whole
        blocks.

        Raises:
            UnsupportedError: it is not the last hit, or hits end with blocks and it has another length.
        """
        request, asked = self._asked
        if self._match_unit is not None and blocks is asked:
            hit, length = self._whole_hit(request.block_hashes, request.all_token_ids, num_computed_tokens)
            if length == num_computed_tokens:
                return hit
            request._blockwright.takes_whole = True
            self._unserved = blocks
            return blocks
        length = max([len(ids) * size for ids, size in zip(blocks.ids, self._sizes, strict=True)], default=0)
        if num_computed_tokens != length:
            raise UnsupportedError(
                f"truncate_computed_blocks: a hit of {length} tokens cannot be cut to {num_computed_tokens} under "
                "Blockwright; no release that was tried does this"
            )
        return blocks

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count the lookup of a request that was admitted."""
        if self.prefix_cache_stats is not None and self._caches and not request.skip_reading_prefix_cache:
            self.prefix_cache_stats.record(
                num_tokens=request.num_tokens, num_hits=num_hits, preempted=request.num_preemptions > 0
            )

    def make_prefix_cache_stats(self) -> Any:
        """Return the lookups since the last call, None unless they are counted."""
        stats = self.prefix_cache_stats
        if stats is not None:
            self.prefix_cache_stats = PrefixCacheStats()
        return stats

    def estimate_cached_tokens(self, request: Any) -> int:
        """Return the leading tokens of a request that are published in every group."""
        if not self._caches or request.request_id not in self._running:
            return 0
        self._publish(request, min(request._blockwright.due, request.num_computed_tokens))
        published = self.core.num_published(request.request_id)
        return min(size * count for size, count in zip(self._sizes, published, strict=True))

    # ------------------------------------------------------------------ slots

    def new_step_starts(self) -> None:
        """Say that a step starts: states and parts of blocks that the last one left may be found from now on."""
        self.block_pool.thread = get_ident()
        if self._is_later:
            if self._is_certain:
                self._tell_filled()
            else:
                self._publish_due()
            self.core.new_step_starts()
            if self.block_pool.keeps_hashes:
                for _, request in self._left:
                    self._offer(request)
            self._left.clear()

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> Any:
        """Give a request slots for its next tokens; return the new blocks, None: not now."""
        stop = request.num_computed_tokens + num_new_tokens
        try:
            if stop <= request._blockwright_quiet and not full_sequence_must_fit:
                return self.empty_kv_cache_blocks
            twin = request._blockwright
            if twin.is_session and not self._goes_on(request, twin, stop):
                return None
            if (
                stop <= twin.table and not self._settles and not delay_cache_blocks and not full_sequence_must_fit
            ):  # it fills a block
                self._note_filled(request, twin, stop, twin.table)
                return self.empty_kv_cache_blocks
        except AttributeError:
            self._twin(request)
        if not self._sizes:  # nothing is kept, so nothing is needed
            request._blockwright_quiet = FOR_EVER
            return self.empty_kv_cache_blocks
        if request.status != RequestStatus.RUNNING:
            if self._spared:
                with self._sparing():  # what another waits for is taken last
                    self._spared = []
            if has_scheduled_reqs:
                reserved_blocks += self.watermark_blocks + (self._num_needed_soon() if self._running else 0)
        if request.request_id in self._running:
            if num_new_computed_tokens or num_external_computed_tokens or num_encoder_tokens:
                self._refuse_more(request, num_new_computed_tokens, num_external_computed_tokens, num_encoder_tokens)
            if full_sequence_must_fit:
                whole = self._num_blocks_to_allocate(request.request_id, min(request.num_tokens, self.max_model_len))
                if whole + reserved_blocks > self.core.block_pool.num_free:
                    return None
            if delay_cache_blocks:
                self._publish(request, min(request._blockwright.due, request.num_computed_tokens))
            with self._sparing() if self._spared else nullcontext():
                blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
                if blocks is None and self._trim_late():
                    blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
            if blocks is None and self._spared and self._is_alone(request):
                self._spared = []
                blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
        else:
            blocks = self._admit(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks if num_new_computed_tokens else None,
                num_lookahead_tokens,
                num_external_computed_tokens,
                num_encoder_tokens,
                full_sequence_must_fit,
                reserved_blocks,
                delay_cache_blocks,
            )
            if blocks is None and new_computed_blocks is not None and self._has_states:
                self._use(new_computed_blocks)
        if delay_cache_blocks and num_new_tokens and blocks is not None:
            self._hold(request)
        if blocks is not None:
            if self._zeroed:
                self._note_new(blocks, skip_zeroing_group_ids)
            if self.block_pool.metrics_collector is not None:
                hits = new_computed_blocks.ids if num_new_computed_tokens and new_computed_blocks is not None else ()
                self.block_pool.count(chain.from_iterable(blocks.ids), chain.from_iterable(hits))
        return blocks

    @staticmethod
    def _refuse_more(request: Any, length: int, external: int, encoder: int) -> None:
        """Refuse for a running request what only a new one may bring."""
        for name, count in (
            ("num_new_computed_tokens", length),
            ("num_external_computed_tokens", external),
            ("num_encoder_tokens", encoder),
        ):
            if count:
                raise UnsupportedError(
                    f"request {request.request_id!r} runs already: {name}={count} is not supported under Blockwright"
                    + ("; use a connector that loads synchronously" if encoder else "")
                )

    def _hold(self, request: Any) -> None:
        """Publish nothing of the step that was just given slots before the next call says so."""
        self._due.pop(request.request_id, None)
        request._blockwright.due = request._blockwright.early = 0
        request._blockwright.fill = request._blockwright_quiet = NEVER

    def _continue(self, request: Any, stop: int, ahead: int, reserve: int) -> Any:
        """Serve a running request whose step needs a block, or lets an entry die."""
        twin: Twin = request._blockwright
        own, computed, begin = twin.request, request.num_computed_tokens, twin.written
        if begin > computed:
            begin = max(twin.certain, computed)
        if computed < twin.certain:  # a load failed: what it left out has its slots
            if self._trims:
                raise UnsupportedError(
                    f"request {request.request_id!r}: {twin.certain - computed} tokens are to be computed again after "
                    "a failed load, and their windows are gone: use a connector that loads asynchronously"
                )
            if stop <= begin:
                self._note_filled(request, twin, stop, NEVER)
                return self.empty_kv_cache_blocks
        is_later, end, sure = True, stop, 0
        if self._has_states and self._trims:
            twin.learn(request, stop)
            if self._is_certain and begin <= computed <= request.num_tokens:
                begin = computed
                if begin > twin.published:
                    self._publish(request, begin)
                if begin > twin.written:
                    self._catch_up(twin, begin)
            else:
                begin = self._settle(request, twin)
        elif self._trims:
            begin = computed - request.num_in_flight_tokens
            if begin < twin.certain:
                begin = twin.certain
            sure = twin.learn(request, begin)
            if (
                twin.due <= begin <= twin.written
                and sure <= begin
                and begin - twin.published // self._unit * self._unit < self._unread
                and not self._again
            ):
                is_later = False  # one call trims, publishes what is settled, and gives slots
            else:
                begin = self._settle(request, twin)
            # Slots up to the end of the last block: of steps within it nothing is told.
            if own.num_tokens <= begin + twin.lookahead and request.num_tokens <= stop:
                end = -(-(stop + ahead) // self._unit) * self._unit - ahead
                if end > self.max_model_len:
                    end = self.max_model_len
        own.num_computed_tokens = begin
        inside = self._inside(request, computed, stop) if self._checkpoint is not None and twin.is_exact else 0
        if reserve:
            plan = self.core.plan(own, end - begin, num_lookahead_tokens=ahead, num_checkpoint_tokens=inside)
            if not isinstance(plan, Fits) or plan.num_blocks + reserve > self.core.block_pool.num_free:
                return None
        if inside:
            blocks = self.core.allocate_slots(own, end - begin, 0, None, ahead, is_later, num_checkpoint_tokens=inside)
        else:
            blocks = self.core.allocate_slots(own, end - begin, 0, None, ahead, is_later)
        if blocks is None:
            return None
        if not is_later:
            twin.published = max(twin.published, min(begin, sure) // self._unit * self._unit)
            self._tell(request, twin.published)
        self._note_step(request, twin, begin, end, ahead, inside)
        return blocks

    def _goes_on(self, request: Any, twin: Twin, stop: int) -> bool:
        """Note a step of a session, up to `stop`; return False, "not now", if the scheduler must count it again.

        A next turn goes on where the last one ended. vLLM drops the token that was sampled last, and with it what a
        step in flight computed of it. It keeps what drafts computed beyond the last token, which is to be computed
        again. A recurrent state that such a step has written over is gone, and of the states that a step with drafts
        leaves the worker does not know any more which is the last: then the turn begins with a lookup.
        """
        if request.num_prompt_tokens != twin.num_prompt and request.request_id in self._running:
            counted: int = request.num_computed_tokens
            if self._holds_states and (self._num_drafts or not twin.heard >= counted == twin.stop):
                before = request.num_in_flight_tokens
                request.num_computed_tokens = max(counted, twin.stop)
                request.num_in_flight_tokens = request.num_computed_tokens - twin.published
                self.free(request)
                request.num_in_flight_tokens, request.num_computed_tokens = before, 0
                return False
            twin.num_prompt = request.num_prompt_tokens
            if counted > twin.heard:
                request.num_computed_tokens = twin.heard
                return False
            twin.learn(request, request.num_tokens)
        twin.heard, twin.stop = request.num_tokens, stop
        return True

    def _inside(self, request: Any, start: int, stop: int) -> int:
        """Return the tokens after which a step also leaves recurrent states, where their prompt ends; 0 for none."""
        last = max(request.num_prompt_tokens, request.num_tokens - 1)
        if self._checkpoint is None or not last <= stop <= request.num_tokens:
            return 0
        return self._checkpoint(start, stop)

    def _settle(self, request: Any, twin: Twin) -> int:
        """Publish what a request has filled, before it is trimmed, and return how many tokens cannot go back."""
        due: int = min(twin.due, request.num_computed_tokens)
        settled: int = max(twin.certain, min(twin.heard, request.num_computed_tokens - request.num_in_flight_tokens))
        is_more = settled > twin.written
        if is_more and due <= settled and not self._has_states and not self._again:  # one call publishes too
            known = twin.learn(request, settled)
            self._catch_up(twin, settled, False)
            twin.published = max(twin.published, min(settled, known) // self._unit * self._unit)
            self._tell(request, twin.published)
        else:
            self._publish(request, due)
            if is_more and self._is_unheard(twin, settled):
                return twin.written
            if is_more:
                self._catch_up(twin, settled)
        return max(settled, twin.certain)  # publishing may have told the manager of more, which is certain then

    def _is_unheard(self, twin: Twin, settled: int) -> bool:
        """Return whether the manager need not hear of steps up to `settled` apart: the next is told as one with them.

        All of them read and write the state of one block, and no window ends among them.
        """
        if not self._has_states or self._unread < FOR_EVER or twin.written == 0:
            return False
        return all((twin.written - 1) // size == (settled - 1) // size for size in self._state_sizes)

    def _trim_late(self) -> bool:
        """Trim what could have been trimmed one step earlier, where blocks are short; say whether there was any."""
        num_free = self.core.block_pool.num_free
        for request in self._running.values():
            self._trim(request)
        return self.core.block_pool.num_free > num_free

    def _trim(self, request: Any) -> bool:
        """Trim what no step reads any more; return whether nothing is left that dies with a step already scheduled."""
        twin: Twin = request._blockwright
        settled = min(twin.heard, request.num_computed_tokens - request.num_in_flight_tokens)
        if twin.trim > settled or twin.loading is not None:
            return bool(twin.trim > request.num_computed_tokens)
        if self._is_certain:
            settled, twin.trim = min(settled, twin.written), FOR_EVER
        else:
            settled = self._settle(request, twin)
            twin.trim = self._next_trim(settled)
        self.core.remove_skipped_blocks(twin.request, settled)
        twin.certain = max(twin.certain, settled)
        return True

    def _tell_filled(self) -> None:
        """Tell the manager, in one call for all requests, of the steps that filled their last block in place.

        Those blocks are published, and their states once the step starts. Then trim what the last step was the last to
        read.
        """
        told, counts = [], []
        is_each = self._events is not None or self.block_pool.keeps_hashes  # it is known whose blocks are published
        for request in list(self._due.values()):
            twin: Twin = request._blockwright
            count, written = twin.due, twin.written
            if is_each or not written < count <= request.num_computed_tokens or count > request.num_tokens:
                self._publish(request, count)
                continue
            twin.learn(request, request.num_tokens)
            own = twin.request
            own.num_computed_tokens = written
            told.append(own)
            counts.append(count - written)
            twin.written = twin.certain = twin.published = count
            del self._due[request.request_id]
        if told:
            self.core.allocate_slots_batch(told, counts)
        if self._dying:
            self._dying = [request for request in self._dying if not self._trim(request)]

    def _catch_up(self, twin: Twin, stop: int, is_later: bool = True) -> None:
        """Tell the manager of steps that changed no table, up to `stop` tokens; what they filled is published later."""
        own = twin.request
        own.num_computed_tokens = twin.written
        self.core.allocate_slots(own, stop - twin.written, 0, None, 0, is_later)
        twin.certain = max(twin.written, min(stop, own.num_tokens))
        twin.written = stop

    def _note_step(self, request: Any, twin: Twin, begin: int, stop: int, ahead: int, inside: int = 0) -> None:
        """Note what a step that the manager gave slots to has changed."""
        twin.written = stop
        known = twin.request.num_tokens
        if self._is_certain:
            twin.is_exact = stop <= known
        elif self._has_states:
            twin.is_exact = stop <= known - twin.lookahead
            if stop > known:
                self._undrafted.discard(request.request_id)
            twin.end = stop - stop % self._unit
            if twin.is_exact:
                self._left.append((stop, request))
            if self._caches and twin.end > twin.published:
                self._due[request.request_id] = request
                twin.early = min(stop, known)
        if inside:
            self._left.append((inside, request))
        twin.certain = stop if stop <= known else known if known > begin else begin
        cover = -(-(stop + ahead) // self._unit) * self._unit
        if cover > twin.cover:
            twin.cover = cover
        table = FOR_EVER if twin.cover >= self.max_model_len else twin.cover - ahead
        if self._trims:
            twin.trim = self._next_trim(begin)
            if self._is_certain:
                self._dying.append(request)
            elif twin.trim < table - 1:  # what dies one step before the next block is needed is trimmed with that step
                table = twin.trim
        self._note_filled(request, twin, stop, table)

    def _note_filled(self, request: Any, twin: Twin, stop: int, table: int) -> None:
        """Note that tokens up to `stop` have slots, and set the bounds of steps that change nothing."""
        sure = request.num_tokens - self._behind
        if twin.is_session and sure > stop - self._behind:  # the token behind the step may be dropped
            sure = stop - self._behind
        if sure > stop - self._again:
            sure = stop - self._again
        if self._is_certain:
            if sure == stop:
                self._left.append((stop, request))
            if stop >= twin.fill and stop > twin.published:
                twin.due = stop
                twin.early = stop if sure == stop else 0
                self._due[request.request_id] = request
            sure = stop  # its last token is known when the next step is scheduled
        elif sure >= twin.fill and self._caches and sure > twin.published:
            twin.due = sure
            self._due[request.request_id] = request
        twin.table = table
        twin.fill = (sure // self._unit + 1) * self._unit if self._caches else FOR_EVER
        request._blockwright_quiet = table if table < twin.fill else twin.fill - 1
        if self._num_drafts or twin.is_session:  # each step has its entries for the states of drafts, or is noted
            request._blockwright_quiet = NEVER

    def _admit(
        self,
        request: Any,
        new: int,
        length: int,
        hit: KVCacheBlocks | None,
        ahead: int,
        external: int,
        encoder: int,
        is_whole: bool,
        reserve: int,
        is_delayed: bool,
    ) -> KVCacheBlocks | None:
        """Start a request, or a load for it."""
        if not new and not is_delayed:
            raise UnsupportedError(
                f"request {request.request_id!r}: delay_cache_blocks=False with a hit or a load and no token to "
                "compute (replay of a window) is not supported under Blockwright"
            )
        if new and is_delayed and external and self._trims:
            raise UnsupportedError(
                f"request {request.request_id!r}: delay_cache_blocks=True with a load and new tokens in one step is "
                "not supported under Blockwright where layers have windows: use a connector that loads asynchronously"
            )
        if external and new and self._trims and self.num_kv_cache_groups == 1:  # of several, vLLM refuses what failed
            raise UnsupportedError(
                f"request {request.request_id!r}: a synchronous load into layers with windows alone; if it failed, "
                "windows that are needed again would be gone: use a connector that loads asynchronously"
            )
        if hit is not None and hit is self._unserved:
            return None
        twin = self._twin(request)
        own, stop = twin.request, length + external + new
        if self._has_states and (self._is_left_this_step(request, length) or self._is_copied_this_step(hit)):
            return None
        own.num_computed_tokens = 0
        twin.learn(request, request.num_tokens)
        if self._has_states and self._running and not self._draft_states and self._is_crowded(stop):
            return None
        inside = self._inside(request, length + external, stop) if new else 0
        if external and (not new or self._trims):
            blocks = self._admit_load(own, new, length, hit, ahead, external, is_whole, reserve, inside)
        else:  # what is loaded within the step is for the manager a part of it, published when it has come
            blocks = self.core.allocate_slots(
                own,
                external + new,
                length,
                hit,
                ahead,
                is_delayed or bool(external) or self._again > 0,
                num_encoder_tokens=encoder,
                full_sequence_must_fit=is_whole,
                reserved_blocks=reserve,
                num_checkpoint_tokens=inside,
            )
        if blocks is None:
            return None
        self._running[request.request_id] = request
        if twin.is_session:
            twin.heard, twin.stop = request.num_tokens, stop
        if self._draft_states:
            self._undrafted.add(request.request_id)
        twin.takes_whole = False
        if not new:
            twin.loading = (length, external)
            return blocks
        is_held = is_delayed or (bool(external) and not self._trims)
        is_published = not is_held and not self._again
        twin.published = max(length, min(stop, own.num_tokens - twin.lookahead)) if is_published else length
        twin.offered = dict.fromkeys(range(len(self._sizes)), length + external)
        self._note_step(request, twin, length if is_held else length + external, stop, ahead, inside)
        if is_held:
            self._hold(request)
        self._tell(request, twin.published)
        return blocks

    def _num_needed_soon(self) -> int:
        """Return how many blocks a newcomer leaves to the recurrent layers of those that run.

        A request takes a block in each of them as it fills one, and those for the states of drafts as it begins to
        decode.
        """
        if self._draft_states:
            return self._draft_states * (len(self._undrafted) + 1)
        return len(self._state_sizes) if self._has_states else 0

    def _is_crowded(self, stop: int) -> bool:
        """Return whether a newcomer with `stop` tokens would fill its blocks in the same steps as too many others.

        As it fills a block, a request holds two states in each group for a step. Requests of one prompt that begin
        together would do so together for good, so a newcomer waits for another step.
        """
        size, others = self._state_sizes[0], 0
        for request in self._running.values():
            if request.status == RequestStatus.RUNNING:  # a session that waits for its next turn stands still
                after = max(request._blockwright.written, request.num_computed_tokens + 1)  # decoding is not told of
                others += (after - stop) % size == 0
        states = len(self._state_sizes) * (others + 1)
        # Of all steps in which it might fill its first block, half have no more than twice the average.
        return others * size > 2 * len(self._running) and states * _CROWD > self.block_pool.num_gpu_blocks

    def _use(self, hit: KVCacheBlocks) -> None:
        """Count a hit as used, though its request is refused: while it waits, others would evict what it has found.

        Until a request is asked for again, those that run do not take the states that it ends with: a block a group.
        Without them the request would take the whole prefix in blocks of its own, though those that run share it.
        """
        pool = self.core.block_pool
        for spec, ids in zip(self.specs, hit.ids, strict=True):
            pool.touch(ids)
            pool.free_blocks(ids[::-1])
            if isinstance(spec, MambaSpec):
                self._spared += ids[-1:]

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        """Hold what a request that runs is not to take, while it is served."""
        pool = self.core.block_pool
        self._spared = spared = [block for block in self._spared if pool.block_key(block) is not None]
        pool.touch(spared)
        try:
            yield
        finally:
            pool.free_blocks(spared)

    def _is_alone(self, request: Any) -> bool:
        """Return whether no other request runs."""
        return all(other is request or other.status != RequestStatus.RUNNING for other in self._running.values())

    def _is_left_this_step(self, request: Any, length: int) -> bool:
        """Return whether this step leaves a recurrent state that lengthens a request's hit: it is found in the next.

        Other layers have the prefix of the state, and with a draft head a block more.
        """
        hashes, unit = request.block_hashes, self._hash_block_size or self._unit
        for count, other in self._left:
            if length < count <= request._blockwright.junction and not any(count % size for size in self._state_sizes):
                at = count // unit - 1
                if other.block_hashes[at] == hashes[at]:
                    return True
        return False

    def _is_copied_this_step(self, hit: KVCacheBlocks | None) -> bool:
        """Return whether this step copies a state that a hit ends with: no copy is made of it before the next."""
        pool = self.core.block_pool
        return hit is not None and any(pool.is_destination(int(ids[-1])) for ids in hit.ids if len(ids))

    def _admit_load(
        self,
        own: Any,
        new: int,
        length: int,
        hit: KVCacheBlocks | None,
        ahead: int,
        external: int,
        is_whole: bool,
        reserve: int,
        inside: int,
    ) -> KVCacheBlocks | None:
        """Take blocks for a load, and for tokens that are computed right behind it."""
        if new and not isinstance(
            self.core.plan(
                own,
                external + new,
                length,
                hit,
                ahead,
                full_sequence_must_fit=is_whole,
                reserved_blocks=reserve,
                num_checkpoint_tokens=inside,
            ),
            Fits,
        ):
            return None
        blocks = self.core.allocate_slots(
            own,
            0,
            length,
            hit,
            num_external_computed_tokens=external,
            full_sequence_must_fit=is_whole and not new,
            reserved_blocks=0 if new else reserve,
        )
        if blocks is None or not new:
            return blocks
        self.core.finish_load(own, external)
        own.num_computed_tokens = length + external
        more = self.core.allocate_slots(own, new, 0, None, ahead, num_checkpoint_tokens=inside)
        if more is None:
            raise UnsupportedError(f"request {own.request_id!r}: no blocks for tokens after a load")
        return blocks + more

    def _twin(self, request: Any) -> Twin:
        """Return what hangs on a request, made when it first matters."""
        twin: Twin | None = getattr(request, "_blockwright", None)
        is_other = twin is not None and twin.num_prompt != request.num_prompt_tokens  # a turn that begins anew
        if twin is None or (is_other and request.request_id not in self._running):
            twin = request._blockwright = Twin(request, self._hash_block_size, self._lookahead, self._first)
            request._blockwright_quiet = NEVER
        return twin

    # ------------------------------------------------------------------ publication

    def _publish_due(self) -> None:
        """Publish what the steps scheduled so far have filled, for a lookup."""
        for request in list(self._due.values()):
            self._publish(request, request._blockwright.due)
        if not self._has_states:  # a state waits until it is known which drafts hold
            self._due.clear()

    def _publish_for_readers(self) -> None:
        """Publish what a lookup or a connector may find; states and parts only once the step that left them has run.

        By then no request can be preempted any more that was given slots in this step.
        """
        if not self._is_later:
            self._publish_due()
            return
        for request in list(self._due.values()):
            twin = request._blockwright
            if request.is_finished() or (self._is_certain and twin.due <= request.num_computed_tokens):
                self._publish(request, twin.due)
            elif twin.early > 0:
                if twin.early > twin.written:
                    twin.learn(request, twin.early)
                    self._catch_up(twin, twin.early)
                self.core.cache_blocks(twin.request, twin.early, has_run=False)
                self._tell(request, twin.early)
                twin.early = 0

    def _publish(self, request: Any, count: int) -> None:
        """Publish the first tokens of a running request, which are known and were given slots."""
        twin: Twin = request._blockwright
        if self._is_certain:
            count = min(count, request.num_computed_tokens, request.num_tokens, twin.heard)
            if count >= twin.due:
                self._due.pop(request.request_id, None)
        elif self._has_states:
            count = self._num_left(request, twin)
            if count >= twin.end:
                self._due.pop(request.request_id, None)
        else:
            count -= count % self._unit
        if count // self._unit > twin.published // self._unit:
            count = min(count, twin.learn(request, count))
            if count > twin.written:
                self._catch_up(twin, count)
            self.core.cache_blocks(twin.request, count)
            twin.certain = max(twin.certain, count)
            twin.published = count
            self._tell(request, count)

    def _num_left(self, request: Any, twin: Twin) -> int:
        """Return the tokens after which recurrent states may be found: where a step ended that cannot go back.

        The end of a step within the known tokens is certain, even while it runs: steps run in order. Beyond, it is
        where the last step ended that has run. Tokens beyond the request's end are not known: if they passed a block
        end, the state at the one before was not kept.
        """
        computed: int = request.num_computed_tokens
        if twin.is_exact and twin.written <= computed:
            return twin.written
        if self._num_drafts >= min(self._state_sizes) and request.is_finished():
            return 0  # 0.33 cuts the count at the request's end, so it does not show which block ends were passed
        count: int = min(twin.written, computed - request.num_in_flight_tokens)
        known: int = min(count, min(request.num_tokens, twin.heard) - twin.lookahead)
        return known if all(count // size == known // size for size in self._state_sizes) else 0

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Say that so many tokens are computed: the end of a load, or of a step, whose blocks lookups may find."""
        twin: Twin | None = getattr(request, "_blockwright", None)
        if twin is None:  # it was given no slots
            return
        if twin.loading is None:
            if twin.is_session:
                twin.heard = max(twin.heard, num_computed_tokens)
            if num_computed_tokens >= twin.fill:
                self._note_filled(request, twin, num_computed_tokens, twin.table)
            return
        length, external = twin.loading
        if self._end_load(twin, max(0, min(num_computed_tokens - length, external))):
            twin.published = min(length + external, twin.request.num_tokens - 1)  # the last token is computed again
            twin.offered = dict.fromkeys(range(len(self._sizes)), length + external)
            self._note_step(request, twin, twin.published, twin.published, 0)
            self._tell(request, twin.published)
            return
        del self._running[request.request_id]
        self._tell(request, length + external)
        own = twin.request
        hit, found = self.core.get_computed_blocks(own)
        if self._match_unit is not None:  # without a token to compute, no part of a block is adopted
            hit, found = self._whole_hit(request.block_hashes, request.all_token_ids, found)
        if found and self.core.allocate_slots(own, 0, found, hit) is not None:
            self._running[request.request_id] = request
            twin.published = found
            self._note_step(request, twin, found, found, 0)
        else:
            found = 0
            self._undrafted.discard(request.request_id)
        request.num_computed_tokens = found

    def _end_load(self, twin: Twin, count: int) -> bool:
        """Tell the manager that a load has ended; return whether all of it came."""
        twin.loading = None
        if self.core.finish_load(twin.request, count):
            return True
        twin.forget()
        return False

    def _tell(self, request: Any, count: int) -> None:
        """Keep what readers of the blocks just published need, while it is known whose they are.

        They are within the first `count` tokens of the request: events name them, a connector asks for their hashes.
        """
        if self._events is not None:
            self._events.drain(request)
        if self.block_pool.keeps_hashes:
            twin: Twin = request._blockwright
            hashes, first = request.block_hashes, self._first
            units = min(count // (self._hash_block_size or self._unit), len(hashes) - first)
            self.block_pool.note(
                zip(hashes[twin.noted + first : units + first], hashes[twin.noted : units], strict=True)
            )
            twin.noted = max(twin.noted, units)
            self._offer(request)

    def _offer(self, request: Any) -> None:
        """Offer a connector the states that were published of a running request since it was last offered one."""
        name = request.request_id
        if not self._has_states or name not in self._running:
            return
        offered: dict[int, int] = request._blockwright.offered
        tables, published = self.core.get_block_ids(name), self.core.num_published(name)
        for group, (spec, size) in enumerate(zip(self.specs, self._sizes, strict=True)):
            entry = published[group] - 1
            end = published[group] * size
            if isinstance(spec, MambaSpec) and end > offered.get(group, 0):
                offered[group] = end
                if entry < len(tables[group]) and tables[group][entry]:  # of a private request all has been passed
                    self._offers.setdefault(name, []).append((group, tables[group][entry], end))

    # ------------------------------------------------------------------ release

    def free(self, request: Any) -> None:
        """Release all that a request holds: it ends, or is preempted."""
        name = request.request_id
        if self._running.pop(name, None) is None:
            return
        twin: Twin = request._blockwright
        self._undrafted.discard(name)
        self._due.pop(name, None)
        self._offers.pop(name, None)
        own = twin.request
        if twin.loading is not None:
            self.core.free(own)
            self.core.finish_load(own, 0)
        else:
            self._publish(request, max(min(twin.due, request.num_computed_tokens), self._num_known_last(request, twin)))
            if self._match_unit is not None:
                self._publish_last(request, twin)
            own.num_computed_tokens = max(twin.certain, min(request.num_computed_tokens, twin.written))
            # vLLM's scheduler frees a request that it preempts while it still counts as running, and others afterwards.
            self.core.free(own, preempted=getattr(request.status, "name", "") == "RUNNING")
            if self._events is not None:
                self._events.drain(request)
        twin.forget()
        request._blockwright_quiet = NEVER

    def _num_known_last(self, request: Any, twin: Twin) -> int:
        """Return the computed tokens of a request that ends if they fill a block that was not due before, else 0.

        Its last tokens, or those behind it that its hash covers, have become known after the step that filled it.
        """
        if self._has_states or twin.fill == NEVER:
            return 0
        ran: int = request.num_computed_tokens - request.num_in_flight_tokens - self._again
        count: int = min(ran, request.num_tokens - twin.lookahead)
        return count if count >= twin.fill else 0

    def _publish_last(self, request: Any, twin: Twin) -> None:
        """Tell the manager of all that a request has computed, whose parts are published as it ends."""
        computed: int = request.num_computed_tokens
        count = min(computed - request.num_in_flight_tokens, request.num_tokens, twin.heard)
        if count > 0:
            twin.learn(request, count)
            if self._has_states and computed > max(count, twin.written):
                self._catch_up(twin, computed)  # what is in flight writes over the state
            if count > twin.written:
                self._catch_up(twin, count)
            self.core.cache_blocks(twin.request, count)
            twin.certain = max(twin.certain, count)

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        """Release a request's table but keep its blocks held, for `block_pool.free_blocks` later."""
        blocks = [block for group in self.get_blocks(request.request_id).blocks for block in group if not block.is_null]
        self.block_pool.touch(blocks)
        self.free(request)
        return blocks

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Give back what no token from the last computed one on reads, before a request's blocks are handed over.

        vLLM gives back what no token from `processed_computed_tokens` on reads. The engine that takes the blocks over
        computes the last of these tokens again, and may need one block more. `num_prompt_tokens` only matters to R-SWA.
        """
        request = self._running.get(request_id)
        if request is None or not self._trims or request._blockwright.loading is not None:
            return
        twin: Twin = request._blockwright
        if processed_computed_tokens > twin.written:
            twin.learn(request, processed_computed_tokens)
            self._catch_up(twin, processed_computed_tokens)
        self.core.remove_skipped_blocks(twin.request, max(0, processed_computed_tokens - 1))
        twin.certain = max(twin.certain, processed_computed_tokens)

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Take back what a synchronous load that failed has left: it was not published yet.

        Raises:
            UnsupportedError: it was, because steps are in flight.
        """
        if any(self.core.block_pool.is_published(block) for block in block_ids):
            raise UnsupportedError(
                "evict_blocks: a synchronous load failed after its blocks were found; use a connector that loads "
                "asynchronously, or --no-async-scheduling"
            )

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes, while requests run too: these publish nothing more. False if that cannot be promised.

        vLLM's own manager refuses while a block is held, so that after ``pause(mode="keep", clear_cache=False)`` and
        new weights, lookups would go on finding what the old weights have computed. Beside a connector, which stores
        and loads blocks on its own, this one refuses as well, and nothing happens; so it does beside auxiliary outputs,
        which vLLM would drop under the requests that run.
        """
        if not self.core.reset_prefix_cache():
            if not self._may_forget or self.core.block_pool.num_held_externally:
                return False
            self.core.forget()
        if self.block_pool.metrics_collector is not None:
            self.block_pool.metrics_collector.reset()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    # ------------------------------------------------------------------ what is read and drained

    @property
    def usage(self) -> float:
        """Share of blocks that are held."""
        return self.core.usage

    def get_blocks(self, request_id: str) -> Any:
        """Return a request's blocks, none of one that holds nothing."""
        if request_id not in self._running:
            return self.empty_kv_cache_blocks
        blocks = self.core.get_blocks(request_id)
        return Blocks(self.block_pool, blocks) if self.block_pool.keeps_hashes else blocks

    def _blocks_of(self, group: int, request_id: str) -> Any:
        return self.get_blocks(request_id).blocks[group]

    def _num_published(self, group: int, request_id: str) -> int:
        return self.core.num_published(request_id)[group]

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return a request's block ids, a list per group."""
        if request_id in self._running:
            return self.core.get_block_ids(request_id)
        return tuple([] for _ in self._sizes)

    def get_block_ids_for_computed_tokens(self, request_id: str, num_computed_tokens: int) -> tuple[list[int], ...]:
        """Return the block ids that cover a request's computed tokens."""
        return tuple(
            ids if isinstance(spec, CrossAttentionSpec | MambaSpec) else ids[: -(-num_computed_tokens // size)]
            for ids, spec, size in zip(self.get_block_ids(request_id), self.specs, self._sizes, strict=True)
        )

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return none: vLLM has no kernel any more that reads them once."""
        return [0] * self.num_kv_cache_groups

    def create_kv_cache_blocks(self, blocks: Any) -> KVCacheBlocks:
        """Refuse. vLLM calls it only inside its own manager, and here `get_computed_blocks` builds a hit."""
        raise UnsupportedError("create_kv_cache_blocks: blocks are made by the manager alone")

    def take_events(self) -> list[Any]:
        """Return vLLM's events since the last call."""
        if self._events is None:
            return []
        self._publish_due()
        return self._events.take()

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks that the worker is to zero before they are written."""
        ids, self._new_ids = self._new_ids, []
        return ids

    def get_zeroing_block_ids_in_range(self, request_id: str, start_token: int, end_token: int) -> list[int]:
        """Return the blocks of attention that hold the tokens of a range (0.31)."""
        ids: list[int] = []
        for table, spec, size in zip(self.get_block_ids(request_id), self.specs, self._sizes, strict=True):
            if not isinstance(spec, MambaSpec):
                ids += [block for block in table[start_token // size : -(-end_token // size)] if block]
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Note the blocks from a token on, which a failed load left unwritten."""
        self._new_ids += self.get_zeroing_block_ids_in_range(request_id, start_token, self.max_model_len)

    def _note_new(self, blocks: KVCacheBlocks, skipped: tuple[int, ...]) -> None:
        """Note new blocks of attention, which the worker is to zero."""
        for number in self._zeroed:
            if number not in skipped:
                self._new_ids += [int(block) for block in blocks.ids[number] if block]

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """Return the copies that the worker runs before the step, of the parts of blocks that requests have hit.

        The blocks need not be held until the step has run: what is given them next is written by a later step.
        """
        if self._match_unit is None:
            return [], []
        from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

        return [KVCacheBlockCopy(*pair) for pairs in self.core.take_copies() for pair in pairs], []

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return the states that were published since the last call, as (group, block, tokens), for a connector.

        A block that was given up and taken since then holds another request's data, so it is left out.
        """
        offers, self._offers = self._offers, {}
        unit, pool = self._hash_block_size or self._unit, self.block_pool
        for name, states in offers.items():  # of requests that run: those of others went with them
            hashes, before = self._running[name].block_hashes, self._first - 1
            offers[name] = [each for each in states if pool.carries(each[1], hashes[each[2] // unit + before], each[0])]
        return {name: states for name, states in offers.items() if states}

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """Return none: a connector is offered states at the ends of blocks alone."""
        return []

    def _num_blocks_to_allocate(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Sequence[Any]] = (),
        num_encoder_tokens: int = 0,
        apply_admission_cap: bool = True,
        **_: Any,
    ) -> int:
        """Return the blocks that a request still needs for so many tokens, as the scheduler reserves them for loads.

        Of a recurrent layer: the states after the last token and the drafts, and one that a step leaves inside.
        """
        if any(new_computed_blocks) or num_encoder_tokens or not apply_admission_cap:
            raise UnsupportedError(
                "get_num_blocks_to_allocate: is only supported under Blockwright as the scheduler calls it, for a "
                "request that brings no blocks and no encoder tokens, with the cap"
            )
        missing = 0
        held = self.get_block_ids(request_id)
        for ids, spec, size, group in zip(
            held, self.specs, self._sizes, self.kv_cache_config.kv_cache_groups, strict=True
        ):
            if isinstance(spec, CrossAttentionSpec):
                continue
            wanted = -(-num_tokens // size)
            cap = getattr(group.kv_cache_spec, "max_admission_blocks_per_request", None)
            if cap is not None:
                wanted = min(wanted, cap(max_in_flight_tokens=self._in_flight, max_model_len=self.max_model_len))
            states = wanted
            if isinstance(spec, MambaSpec):
                states = 1 + spec.num_speculative_blocks + (self._checkpoint is not None)
            missing += min(max(0, wanted - len(ids)), states)
        return missing

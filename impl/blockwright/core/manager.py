"""The manager an engine talks to: lookups, slots for the next step, release.

Names, arguments and meaning are those of vLLM's `KVCacheManager` (0.11); `allocate_slots_batch` is the faster way in.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.blocks import BatchAllocation, KVCacheBlocks
from blockwright.core.explain import EvictionStats, HitExplanation, eviction_stats, explain
from blockwright.core.forks import ForkedRequests
from blockwright.core.index import with_room, zeros32
from blockwright.core.journal import Eviction
from blockwright.core.managers import get_manager_for_kv_cache_spec, refuse_eagle
from blockwright.core.picture import Picture, picture_of
from blockwright.core.plan import Ask, Fits, Never, NotNow, Plan, count_of, counts_of
from blockwright.core.pool import BlockPool
from blockwright.core.request import MAX_LENGTH, Request, require_request
from blockwright.core.running import NOT_RUN
from blockwright.core.tables import RequestTables
from blockwright.core.window import common_hit
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    StalePlanError,
    UnsupportedError,
)
from blockwright.events import KVCacheEvent
from blockwright.kinds import CrossAttentionSpec, MambaSpec


class PrefixCacheStats(NamedTuple):
    """Lookups since the last call of `make_prefix_cache_stats`.

    Attributes:
        reset: whether the prefix cache was reset since then.
        requests: lookups made.
        queries: tokens looked up.
        hits: tokens found.
    """

    reset: bool
    requests: int
    queries: int
    hits: int


@final
class KVCacheManager(ForkedRequests):
    """KV-cache blocks of all running requests of one scheduler.

    Attributes:
        block_pool: the pool.
        managers: one per group.
        max_model_len: tokens that a request may have at most.
        enable_caching: whether prefixes are shared.

    Example:
        >>> from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, Request
        >>> spec = FullAttentionSpec(block_size=4, num_kv_heads=8, head_size=128, dtype="bfloat16")
        >>> config = KVCacheConfig(num_blocks=9, kv_cache_groups=[KVCacheGroupSpec(["layers.0"], spec)])
        >>> manager = KVCacheManager(config, max_model_len=64)
        >>> request = Request("r1", list(range(10)), block_size=4)
        >>> hit, num_computed = manager.get_computed_blocks(request)
        >>> manager.allocate_slots(request, 10 - num_computed, num_computed, hit)
        KVCacheBlocks(([1, 2, 3],))
        >>> manager.usage
        0.375
        >>> manager.free(request)
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        enable_caching: bool = True,
        *,
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        verify_tokens: bool = False,
        dcp_world_size: int = 1,
        overlap_steps: bool = False,
        publish_on_settlement: bool = False,
        watermark: float = 0.0,
        explain_evictions: bool = False,
        track_evictions: bool = False,
        source: KVCacheManager | None = None,
    ) -> None:
        """Make a manager with an empty pool.

        Args:
            kv_cache_config: pool size and groups of layers.
            max_model_len: tokens that a request may have at most, 1 .. 2**31 - 1.
            enable_caching: share prefixes between requests.
            use_eagle: a draft head needs the hidden state before the first new token, so the last block of a hit is
                recomputed.
            log_stats: count lookups for `make_prefix_cache_stats`.
            enable_kv_cache_events: record events; requests must then use a portable hasher (`Sha256Hasher`).
            verify_tokens: compare tokens on every hit; needed with a hasher that is not collision resistant.
            dcp_world_size: ranks that share one block's tokens; full attention only.
            overlap_steps: steps are in flight until `settle_step` says that they are done; without, a request's own
                count says so at its next call.
            publish_on_settlement: publish blocks once their step is settled, not when it is scheduled; needs
                `overlap_steps`. For engines that do not execute steps in order.
            watermark: share of the blocks that stay free when a request joins others, within 0.0 .. 1.0.
            explain_evictions: remember how keys were lost, for `explain_hit` and `make_eviction_stats`: the last
                ``num_blocks - 1`` losses, older ones are forgotten.
            track_evictions: record what is taken for other content, for `take_evictions`.
            source: internal, the manager to copy.

        Complexity: O(num_blocks).

        Raises:
            InvalidArgumentError: names the argument.
            UnsupportedError: a combination that no kind allows.
        """
        if source is not None:
            pool = source.block_pool.copy()
            managers = [manager.copy(pool) for manager in source.managers]
            super().__init__(pool, managers, source._max_len, source._most_drafts, source)
            self._copy_counts(source)
            return
        if isinstance(max_model_len, bool) or not 1 <= max_model_len <= MAX_LENGTH:
            raise InvalidArgumentError(f"max_model_len: must be within 1..{MAX_LENGTH} tokens, not {max_model_len!r}")
        groups = list(kv_cache_config.kv_cache_groups)
        if not 0.0 <= watermark <= 1.0:
            raise InvalidArgumentError(f"watermark: must be a share within 0.0..1.0, not {watermark!r}")
        if publish_on_settlement and not overlap_steps:
            raise InvalidArgumentError("publish_on_settlement: steps are settled only with overlap_steps=True")
        encoders = [isinstance(group.kv_cache_spec, CrossAttentionSpec) for group in groups]
        if all(encoders):
            raise UnsupportedError("kv_cache_config: cross attention stands beside a decoder group, not alone")
        if any(encoders) and enable_caching:
            raise UnsupportedError(
                "enable_caching: cross-attention blocks are never cached, so no prefix is; turn it off"
            )
        for group in groups:
            refuse_eagle(group.kv_cache_spec, use_eagle)
        pool = BlockPool(
            kv_cache_config.num_blocks,
            enable_caching,
            enable_kv_cache_events=enable_kv_cache_events,
            verify_tokens=verify_tokens,
            explain_evictions=explain_evictions,
            track_evictions=track_evictions,
        )
        managers = [
            get_manager_for_kv_cache_spec(group.kv_cache_spec, pool, number, dcp_world_size)
            for number, group in enumerate(groups)
        ]
        most = [
            group.kv_cache_spec.num_speculative_blocks for group in groups if isinstance(group.kv_cache_spec, MambaSpec)
        ]
        super().__init__(pool, managers, max_model_len, min(most) if most else -1, None)
        self._overlaps = overlap_steps
        self._settles = publish_on_settlement
        self._watermark = int(watermark * kv_cache_config.num_blocks)
        self.kv_cache_config = kv_cache_config
        self.use_eagle = use_eagle
        self.log_stats = log_stats
        self._num_lookups: int = 0
        self._num_queries: int = 0
        self._num_hits: int = 0
        self._was_reset: bool = False
        self._alignment: i64 = math.lcm(*[manager.block_size for manager in managers])

    def _copy_counts(self, source: KVCacheManager) -> None:
        """Take over what a copy keeps beside the tables."""
        self.kv_cache_config = source.kv_cache_config
        self.use_eagle = source.use_eagle
        self.log_stats = source.log_stats
        self._num_lookups = source._num_lookups
        self._num_queries = source._num_queries
        self._num_hits = source._num_hits
        self._was_reset = source._was_reset
        self._alignment = source._alignment
        self._batches = source._batches

    def copy(self) -> KVCacheManager:
        """Return an independent copy; pair it with copies of the requests (`Request.copy`). O(num_blocks).

        It learns of tokens that were appended to such a copy when a call names it.
        """
        return KVCacheManager(self.kv_cache_config, self._max_len, source=self)

    def __copy__(self) -> KVCacheManager:
        """Return an independent copy."""
        return self.copy()

    # ------------------------------------------------------------------ lookup

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of a request that is not running, and its tokens.

        At most ``num_tokens - 1`` tokens, so that one is left to compute. Nothing changes: pass the result to
        `allocate_slots` to adopt it. Empty without caching, without keys, and when prompt log-probabilities are
        needed. Complexity: at most one index lookup per block. law: HIT-1, HIT-2.

        Raises:
            InvalidArgumentError: the request was made with another block size or hasher.
        """
        require_request(request)
        self._give_keys(request)
        if not self.enable_caching or request.prompt_logprobs or request._block_size == 0:
            return self._nothing, 0
        self.block_pool.require_whole()
        # law: HIT-3
        max_length: i64 = request.num_tokens - 1
        probes = [
            manager.probe(request.keys(self._units(request, manager)), max_length, self.use_eagle)
            for manager in self.managers
        ]
        num_computed = common_hit([manager.rule for manager in self.managers], probes, self._alignment, max_length)
        if self.log_stats:
            self._num_lookups += 1
            self._num_queries += request.num_tokens
            self._num_hits += num_computed
        if num_computed == 0:
            return self._nothing, 0
        ids = [
            probe.entries(num_computed, manager.first_kept(num_computed))
            for probe, manager in zip(probes, self.managers)
        ]
        return KVCacheBlocks(self.block_pool, ids), num_computed

    def explain_hit(self, request: Request) -> HitExplanation:
        """Say why the hit of a request is as long as it is; nothing changes, statistics included.

        Says, for each group, how long its own hit is, the first block that a longer common hit lacks, and what became
        of that block: never published, evicted, trimmed or reset, if the manager was made with ``explain_evictions``.
        Complexity: as `get_computed_blocks`, three times. law: EXPLAIN-1.

        Raises:
            InvalidArgumentError: the request was made with another block size or hasher.
        """
        require_request(request)
        self.block_pool.require_whole()
        self._give_keys(request)
        return explain(self.managers, request, self._alignment, self.use_eagle)

    # ------------------------------------------------------------------ slots

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_draft_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> KVCacheBlocks | None:
        """Give a request slots for its next tokens; return the new blocks, or None: not now, and nothing changed.

        ::

            | computed | num_new_computed_tokens | external | num_new_tokens | num_lookahead_tokens |
            | settled  | the hit, adopted        | loaded   | this step      | drafts, not kept     |

        Trims what no token that is not settled reads, adopts the hit in all groups, takes blocks, and publishes the
        blocks that this step fills (known tokens only, so drafts are never published). Slots end at `max_model_len`.
        Complexity: O(new blocks + blocks trimmed + blocks published + hits).

        Args:
            request: running, or new with ``num_computed_tokens == 0``.
            num_new_tokens: tokens of this step, drafts to verify included.
            num_new_computed_tokens: tokens of the hit.
            new_computed_blocks: the hit as `get_computed_blocks` returned it.
            num_lookahead_tokens: slots beyond this step's tokens, for drafts to come.
            delay_cache_blocks: publish later, by `cache_blocks`.
            num_draft_tokens: how many of the new tokens are drafts; needed with recurrent layers and `overlap_steps`.
            num_external_computed_tokens: tokens after the hit that are loaded from elsewhere, with no new tokens; they
                are published, and the request goes on, after `finish_load`.
            num_encoder_tokens: tokens that cross-attention reads, with a new request.
            full_sequence_must_fit: start a new request only if all its tokens would fit, in steps as large as this.
            reserved_blocks: blocks to leave to others; a new request that finds the pool idle need not leave any.

        Raises:
            InvalidArgumentError: a count is out of range; names the argument.
            StaleHitError: the hit no longer holds; look it up again.
            DuplicateRequestError: another request runs under this id, or its slots in this step are given already.
            UnknownStepError: with `overlap_steps`, no step has been started.
        """
        tables = self._tables_of(request)
        new: i64 = count_of("num_new_tokens", num_new_tokens)
        ahead: i64 = count_of("num_lookahead_tokens", num_lookahead_tokens)
        plain = num_new_computed_tokens == 0 and new_computed_blocks is None
        more = num_draft_tokens != 0 or num_external_computed_tokens != 0 or num_encoder_tokens != 0
        more = more or reserved_blocks != 0
        if plain and not more and tables is not None and self._is_quiet(request, tables, new, ahead):
            self._count_quiet(request, tables, new)
            return self._nothing
        ask = Ask()
        ask.new = new
        ask.ahead = ahead
        ask.is_delayed = delay_cache_blocks
        ask.is_whole = full_sequence_must_fit
        if not plain:
            self._take_hit(request, tables, ask, num_new_computed_tokens, new_computed_blocks)
        if more:
            ask.take(num_draft_tokens, num_external_computed_tokens, num_encoder_tokens, reserved_blocks)
        self._check_ask(request, tables, ask)
        if not self._fits(request, tables, ask):
            return None
        return self._step(request, tables, ask)

    def _take_hit(
        self,
        request: Request,
        tables: RequestTables | None,
        ask: Ask,
        num_new_computed_tokens: int,
        new_computed_blocks: KVCacheBlocks | None,
    ) -> None:
        """Put a hit of the right shape into an ask."""
        ask.hit_length = self._check_hit(request, tables, num_new_computed_tokens, new_computed_blocks)
        if ask.hit_length > 0:
            ask.hit = new_computed_blocks

    def allocate_slots_batch(
        self,
        requests: Sequence[Request],
        num_new_tokens: int | Sequence[int],
        num_lookahead_tokens: int | Sequence[int] = 0,
        num_draft_tokens: int | Sequence[int] = 0,
    ) -> BatchAllocation:
        """Give each request of a step its slots, in order, in one call; hits are adopted by `allocate_slots` only.

        The first request that does not fit ends the batch and is reported; those before it keep their slots, those
        after it are untouched. Everything is checked before anything changes. Complexity: as `allocate_slots`, about
        30 ns per request that needs no new block (compiled).

        Args:
            requests: the requests, each once.
            num_new_tokens: one count for all, or one per request.
            num_lookahead_tokens, num_draft_tokens: likewise.

        Raises:
            InvalidArgumentError, DuplicateRequestError: as `allocate_slots`; a request twice in the batch.
        """
        batch: list[Request] = requests if type(requests) is list else list(requests)
        size: i64 = len(batch)
        news = counts_of("num_new_tokens", num_new_tokens, size)
        aheads = counts_of("num_lookahead_tokens", num_lookahead_tokens, size)
        drafts = counts_of("num_draft_tokens", num_draft_tokens, size)
        ask = Ask()
        stops = self._check_batch(batch, news, aheads, drafts, ask)
        self.block_pool.require_whole()
        done = BatchAllocation(
            0,
            None,
            vec[i32](),
            zeros32(size * self._num_groups + 1),
            vec[i32](),
            zeros32(size * self._num_groups + 1),
            vec[i32](),
            int(self._batches),
            [""] * size,
        )
        try:
            self._serve(batch, news, aheads, drafts, ask, stops, done)
        except BaseException:
            if done.num_served > 0:
                self._tear()
            raise
        return done

    def _serve(
        self,
        batch: list[Request],
        news: vec[i64],
        aheads: vec[i64],
        drafts: vec[i64],
        ask: Ask,
        stops: vec[i64],
        done: BatchAllocation,
    ) -> None:
        """Serve the requests of a checked batch, and write down what changed."""
        size: i64 = len(batch)
        groups = self._num_groups
        overlaps = self._overlaps
        num_nulled: i32 = 0
        replaced = vec[i32]()
        new_ids = vec[i32]()
        new_offsets = done.new_block_offsets
        nulled_offsets = done.nulled_offsets
        served: i64 = 0
        slot: i64 = 0
        while served < size:
            request: Request = batch[served]
            stop = stops[served]
            quiet = request._held
            if stop > 0 and isinstance(quiet, RequestTables):
                if overlaps:
                    step = self._steps[-1]
                    try:
                        step.fly(quiet, news[served], 0)
                        done.num_served = int(served) + 1
                    except BaseException:
                        step.ground(quiet)
                        raise
                    self._count_step(request, quiet, stop, news[served], 0)
                else:
                    done.num_served = int(served) + 1
                    quiet.num_written = stop
                    known: i64 = request._num_prompt + i64(len(request._output))
                    quiet.num_certain = max(stop - news[served], min(stop, known))
                    quiet.num_drafts = 0
                group: i64 = 0
                while group < groups:
                    group += 1
                    slot += 1
                    new_offsets[slot] = i32(len(new_ids))
                    nulled_offsets[slot] = num_nulled
            else:
                tables = self._tables_of(request)
                begin: i64 = request._num_computed
                stop = begin + news[served]
                ask.new = news[served]
                ask.ahead = aheads[served]
                ask.drafts = drafts[served]
                ask.begin = begin
                ask.stop = stop
                ask.certain = stop - drafts[served]
                if not self._fits(request, tables, ask):
                    break
                self._note_held(tables)
                try:
                    ready = self._prepare(request, tables, ask)
                    grown: i64 = 0
                    group = 0
                    while group < groups:
                        grown += i64(len(ready.groups[group].blocks)) - i64(self._held[group])
                        group += 1
                    new_ids = with_room(new_ids, grown)
                    if ready.is_forked:
                        replaced = with_room(replaced, 4 * groups)
                    if overlaps and ask.new > 0:
                        self._steps[-1].fly(ready, ask.new, ask.drafts)
                    done.num_served = int(served) + 1
                except BaseException:
                    self._undo(request, tables, False)
                    raise
                self._act(request, ready, ask, tables is None)
                group = 0
                while group < groups:
                    blocks = ready.groups[group].blocks
                    held: i64 = i64(self._held[group])
                    while held < i64(len(blocks)):
                        new_ids = append(new_ids, blocks[held])
                        held += 1
                    slot += 1
                    new_offsets[slot] = i32(len(new_ids))
                    nulled_offsets[slot] = self._nulled_ends[group]
                    group += 1
                num_nulled = i32(len(self._nulled))
                if len(self._replaced) > 0:
                    replaced = self._take_replaced(i32(served), replaced)
                done.request_ids[served] = request._request_id
            served += 1
        done.nulled_entries = self._nulled
        self._nulled = vec[i32]()
        while slot < size * groups:
            slot += 1
            new_offsets[slot] = i32(len(new_ids))
            nulled_offsets[slot] = i32(len(done.nulled_entries))
        if served < size:
            done.refused = int(served)
        done.new_block_ids = new_ids
        done.replaced_entries = replaced

    def _take_replaced(self, request: i32, replaced: vec[i32]) -> vec[i32]:
        """Append the entries that the last step copied, after the index of its request."""
        at: i64 = 0
        while at < i64(len(self._replaced)):
            replaced = append(replaced, request)
            for part in range(at, at + 3):
                replaced = append(replaced, self._replaced[part])
            at += 3
        self._replaced = vec[i32]()
        return replaced

    def _check_batch(
        self, batch: list[Request], news: vec[i64], aheads: vec[i64], drafts: vec[i64], ask: Ask
    ) -> vec[i64]:
        """Check every request of a batch; return where each step ends that changes only counts, 0 for others."""
        self._batches += 1
        batch_number = self._batches
        fresh: set[str] = set()
        i: i64 = 0
        size: i64 = len(batch)
        stops = vec[i64]([0] * size)
        while i < size:
            request: Request = batch[i]
            tables = self._tables_of(request)
            if drafts[i] == 0 and tables is not None and self._is_quiet(request, tables, news[i], aheads[i]):
                stops[i] = request._num_computed + news[i]
            else:
                ask.new = news[i]
                ask.ahead = aheads[i]
                ask.drafts = drafts[i]
                self._check_ask(request, tables, ask)
            if tables is None:
                if self.enable_caching and request._block_size > 0:
                    for manager in self.managers:
                        self._units(request, manager)
                if request.request_id in fresh:
                    raise DuplicateRequestError(f"requests: {request.request_id!r} stands twice in the batch")
                fresh.add(request.request_id)
            elif tables.batch == batch_number:
                raise DuplicateRequestError(f"requests: {request.request_id!r} stands twice in the batch")
            else:
                tables.batch = batch_number
            i += 1
        return stops

    # ------------------------------------------------------------------ plan and commit

    def plan(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_draft_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> Plan:
        """Say whether `allocate_slots` with these arguments would succeed, and what it would take; change nothing.

        Returns `Fits` with the exact demand, `NotNow` with the blocks missing, or `Never` with the reason: too long for
        the model, or for the pool. Complexity: O(hits + blocks that would be trimmed). law: PLAN-1, PLAN-2, LIVE-1.

        Raises:
            InvalidArgumentError, StaleHitError, DuplicateRequestError, UnknownStepError: as `allocate_slots`.
        """
        tables = self._tables_of(request)
        ask = Ask()
        ask.is_planned = True
        ask.new = count_of("num_new_tokens", num_new_tokens)
        ask.ahead = count_of("num_lookahead_tokens", num_lookahead_tokens)
        ask.is_delayed = delay_cache_blocks
        ask.is_whole = full_sequence_must_fit
        ask.take(num_draft_tokens, num_external_computed_tokens, num_encoder_tokens, reserved_blocks)
        if num_new_computed_tokens != 0 or new_computed_blocks is not None:
            self._take_hit(request, tables, ask, num_new_computed_tokens, new_computed_blocks)
        self._check_ask(request, tables, ask)
        name = request.request_id
        if ask.is_too_long:
            return Never(name, f"{ask.stop} tokens, max_model_len is {self._max_len}")
        fits = self._fits(request, tables, ask)
        if tables is not None:
            ask.most = self._most_held(tables, ask)
        if ask.most > self.block_pool.num_blocks - 1:
            return Never(name, f"{ask.most} blocks at once, the pool has {self.block_pool.num_blocks - 1}")
        if not fits:
            return NotNow(name, ask.missing)
        return Fits(request, ask, self._owner, self.block_pool.version, self._moment(request, tables))

    def can_load(self, request: Request, num_new_computed_tokens: int, num_external_computed_tokens: int) -> bool:
        """Say whether a new request could ever load so many tokens after a hit of so many: not with `plan`'s `Never`.

        All blocks of a load are taken at once, those too that would have been given back in between, had the tokens
        been computed in several steps. So a load may be too large for the pool where the request is not: a connector
        offers no more than can be loaded. The hit need not be there. Complexity: O(groups). law: LIVE-1.

        Raises:
            InvalidArgumentError: a count is out of range, or the request was made with another block size or hasher.
        """
        require_request(request)
        self.block_pool.require_whole()
        self._give_keys(request)
        ask = Ask()
        ask.hit_length = count_of("num_new_computed_tokens", num_new_computed_tokens)
        ask.external = count_of("num_external_computed_tokens", num_external_computed_tokens)
        ask.begin = ask.hit_length
        ask.stop = ask.begin + ask.external
        ask.certain = ask.stop
        ask.slots = ask.stop
        self._count_new(request, ask)
        return bool(ask.stop <= self._max_len and ask.most < self.block_pool.num_blocks)

    def commit(self, plan: Plan) -> KVCacheBlocks:
        """Do what was planned and return the new blocks, as `allocate_slots`; it cannot fail on an unchanged pool.

        Complexity: as `allocate_slots`.

        Raises:
            InvalidArgumentError: the plan is no `Fits`.
            StalePlanError: another manager's, or the pool, the request or the step has changed since; plan again.
        """
        if not isinstance(plan, Fits):
            raise InvalidArgumentError(f"plan: {plan!r} cannot be committed, only one that fits")
        request = plan._request
        if plan._owner != self._owner:
            raise StalePlanError(f"plan: {plan!r} is another manager's, or of this one before it was copied")
        tables = self._tables_of(request)
        if plan._version != self.block_pool.version or plan._moment != self._moment(request, tables):
            raise StalePlanError(f"plan: the pool or the request has changed since {plan!r}; plan again")
        return self._step(request, tables, plan._ask)

    def _moment(self, request: Request, tables: RequestTables | None) -> tuple[int, ...]:
        """Return what a plan leans on beside the pool."""
        if tables is None:
            return (request._num_computed, request.num_tokens, int(self._num_steps), len(self._steps))
        counts = (
            int(tables.num_written),
            int(tables.num_certain),
            int(tables.num_settled),
            int(tables.last_step),
            int(tables.num_loading),
        )
        return (request._num_computed, request.num_tokens, int(self._num_steps), len(self._steps), *counts)

    def _most_held(self, tables: RequestTables, ask: Ask) -> i64:
        """Return the blocks a running request would hold after a step, once nothing is in flight. O(blocks)."""
        most: i64 = 0
        for manager, table in zip(self.managers, tables.groups):
            most += manager.missing(len(table.blocks), manager.reach(ask)) + i64(len(table.states))
            first = manager.first_kept(ask.begin)
            for entry, block in enumerate(table.blocks):
                if block != 0 and i64(entry) >= first:
                    most += 1
        return most

    # ------------------------------------------------------------------ publish, trim, release

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish the blocks that the first `num_computed_tokens` tokens fill and that were delayed.

        It says that these tokens are computed, accepted drafts among them: others may read them from now on, so that
        ``request.num_computed_tokens`` cannot go below that any more. It may still be less when this is called.

        Complexity: O(blocks published). law: PUB-1, PUB-2.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written or known, or, if publication waits for it, than settled.
        """
        tables = self._require(request)
        tables.request = request
        known = min(int(tables.num_settled if self._settles else tables.num_written), request.num_tokens)
        count = operator.index(num_computed_tokens)
        if not 0 <= count <= known:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{known}, the known and written tokens of "
                f"{request.request_id!r}, not {num_computed_tokens}"
            )
        try:
            tables.num_certain = max(tables.num_certain, count)
            if self.enable_caching:
                stopped = tables.num_written - tables.num_drafts
                if self._overlaps and len(self._steps) > 0 and tables.last_step == self._num_steps:  # it has not run
                    if count == stopped and any([each.leaves_state(stopped) for each in self.managers]):
                        self._make_due(tables)
                    stopped = NOT_RUN
                for manager, table in zip(self.managers, tables.groups):
                    self._publish(manager, table, request, count, stopped)
        except BaseException:
            self._tear()
            raise

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Trim now what no token at `num_computed_tokens` or later reads, instead of at the next `allocate_slots`.

        Complexity: O(entries that die). law: TRIM-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written, or, with steps in flight, than are settled.
        """
        tables = self._require(request)
        done, what = (tables.num_settled, "settled") if self._overlaps else (tables.num_written, "written")
        count = operator.index(num_computed_tokens)
        if not 0 <= count <= int(done):
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{done}, the {what} tokens of {request.request_id!r}, "
                f"not {num_computed_tokens}"
            )
        try:
            tables.num_certain = max(tables.num_certain, count)
            for manager, table in zip(self.managers, tables.groups):
                manager.trim(table, count, i64(len(table.blocks)))
        except BaseException:
            self._tear()
            raise

    def free(self, request: Request) -> None:
        """Release all blocks of a request, last first; of one that holds none: nothing. O(blocks). law: REF-1.

        Blocks that a step in flight or a load still touches return when that has ended, in the same order. To preempt,
        free it and then set ``request.num_computed_tokens = 0``: what that says now tells whether the last step has run
        (law: MAMBA-5).

        Raises:
            DuplicateRequestError: another request runs under its id.
        """
        self.block_pool.require_whole()
        tables = self._tables_of(request)
        if tables is not None:
            self._vacate(tables, request._num_computed)
            request._held = None

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; False, and nothing happens, while any block is held. O(num_blocks)."""
        try:
            if not self.block_pool.reset_prefix_cache():
                return False
            self._was_reset = True
        except BaseException:
            if self.block_pool.is_torn:
                self._tear()
            raise
        return True

    # ------------------------------------------------------------------ what it says of itself

    @property
    def hash_block_size(self) -> int:
        """Tokens per hashed block of a request that was made without a size: the most that divides all blocks."""
        return self._hash_size

    @property
    def overlap_steps(self) -> bool:
        """Whether steps are in flight until `settle_step` says that they are done."""
        return self._overlaps

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have at most."""
        return self._max_len

    @property
    def usage(self) -> float:
        """Share of blocks that are held, 0.0 to 1.0. O(1)."""
        return self.block_pool.get_usage()

    def draw(self, max_blocks: int = 256, max_requests: int = 16, max_entries: int = 32) -> Picture:
        """Return a picture of the pool and the block tables: text for a prompt, SVG for a notebook. O(num_blocks)."""
        return picture_of(self, max_blocks, max_requests, max_entries)

    def request_ids(self) -> list[str]:
        """Return the ids of the running requests, oldest first. O(requests)."""
        return list(self._running)

    def num_published(self, request_id: str) -> tuple[int, ...]:
        """Return how many leading table entries publication has passed, per group. O(groups).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple([int(table.num_published) for table in self._named(request_id).groups])

    def num_settled(self, request_id: str) -> int:
        """Return the settled tokens of a request; 0 unless made with ``overlap_steps``. O(1).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        tables = self._named(request_id)
        return int(tables.num_settled) if self._overlaps else 0

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """Return a request's blocks, a copy of its tables. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return KVCacheBlocks(self.block_pool, [table.blocks[:] for table in self._named(request_id).groups])

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return a request's block ids, a list per group; 0 where nothing is held. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple([[int(block) for block in table.blocks] for table in self._named(request_id).groups])

    def get_num_common_prefix_blocks(self, request_id: str, num_running_requests: int) -> list[int]:
        """Return, per group, the leading blocks that are in the tables of exactly `num_running_requests` requests.

        Give it the number of requests that run, scheduled in this step or not, without those that wait for a load: they
        compute nothing yet, so they are not counted, and have no common blocks themselves. What else holds a block (a
        step in flight whose request is gone, a load that was given up, a copy, a connector) is not counted either.
        0 for groups that do not keep all blocks. Complexity: O(blocks + requests), whatever is held from outside, and
        O(blocks that wait for a step or a load). law: COMMON-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        tables = self._named(request_id)
        running = operator.index(num_running_requests)
        common = [0 for _ in self.managers]
        if tables.num_loading > 0:
            return common
        waiting = self._waiting()
        try:
            for blocks in waiting:
                self.block_pool.set_apart(blocks, 1)
            for at, manager in enumerate(self.managers):
                common[at] = manager.get_num_common_prefix_blocks(tables.request_id, running)
            for blocks in waiting:
                self.block_pool.set_apart(blocks, -1)
        except BaseException:
            self._tear()
            raise
        return common

    def create_empty_block_list(self) -> KVCacheBlocks:
        """Return blocks of all groups without any block in them."""
        return KVCacheBlocks(self.block_pool, [vec[i32]() for _ in self.managers])

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call; empty unless made with ``enable_kv_cache_events``."""
        return self.block_pool.take_events()

    def take_evictions(self) -> list[Eviction]:
        """Return the contents that the pool has lost to other content since the last call, oldest first.

        A block stands here if it was taken while no other block had its content; one that a reset emptied does not.
        Until the next step runs its bytes are still there: whoever wants them copies them before. Empty unless made
        with ``track_evictions``. law: STEP-4.
        """
        return self.block_pool.take_evictions()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return the lookups since the last call and start again; None unless made with ``log_stats``."""
        if not self.log_stats:
            return None
        stats = PrefixCacheStats(self._was_reset, self._num_lookups, self._num_queries, self._num_hits)
        self._was_reset = False
        self._num_lookups = 0
        self._num_queries = 0
        self._num_hits = 0
        return stats

    def make_eviction_stats(self) -> EvictionStats | None:
        """Return the keys lost since the last call, by cause and group; None unless made with ``explain_evictions``."""
        if not self.block_pool.explains_evictions:
            return None
        return eviction_stats(self.block_pool.take_losses(), len(self.managers))

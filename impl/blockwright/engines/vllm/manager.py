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

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain
from threading import get_ident
from typing import Any

from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from blockwright import Fits, KVCacheBlocks, Resizing
from blockwright.engines.vllm import connectors
from blockwright.engines.vllm.admission import Admission
from blockwright.engines.vllm.kinds import checkpoint_rule
from blockwright.engines.vllm.lookups import Lookups
from blockwright.engines.vllm.pool import Blocks, NoBlocks, Pool, coordinator_of
from blockwright.engines.vllm.progress import Progress
from blockwright.engines.vllm.readers import Readers
from blockwright.engines.vllm.requests import FOR_EVER, NEVER, Twin, twin_of
from blockwright.engines.vllm.settings import Settings
from blockwright.errors import UnsupportedError


class KVCacheManager:
    """The manager of one vLLM scheduler.

    Attributes:
        settings: what vLLM's configuration means.
        core: Blockwright's manager, for `check()`, `explain_hit` and the like.
        running: vLLM's requests that hold blocks, by id.
        coordinator: what vLLM and its connectors read of vLLM's coordinator.
    """

    def __init__(
        self,
        kv_cache_config: Any,
        max_model_len: int,
        *,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        metrics_collector: Any = None,
        **options: Any,
    ) -> None:
        """Take vLLM's configuration.

        Raises:
            UnsupportedError: a kind of layer or an option that is not served; names it and the remedy.
        """
        self.settings = settings = Settings.of(kv_cache_config, max_model_len, **options)
        self.core = settings.core(enable_kv_cache_events, metrics_collector is not None)
        self.running = running = dict[str, Any]()
        self.block_pool = Pool(settings, self.core, lambda: self._progress.publish_for_readers(), metrics_collector)
        self._readers = Readers(settings, self.core, self.block_pool, running, enable_kv_cache_events)
        self._progress = Progress(settings, self.core, self._readers, running)
        self._admission = Admission(settings, self.core, self._progress, self._readers, running)
        self._lookups = Lookups(settings, self.core, self._progress.publish_for_readers)
        self.kv_cache_config = kv_cache_config
        self.num_kv_cache_groups = len(settings.sizes)
        self.max_model_len = max_model_len
        self.enable_caching = options.get("enable_caching", True)
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        shares = options.get("enable_mamba_shared_prefix_checkpoint", False)
        self.mamba_shared_prefix_checkpoint = settings.match_unit is not None and bool(shares)
        no_ids = self.core.create_empty_block_list().ids[: len(settings.sizes)]
        self.empty_kv_cache_blocks: Any = NoBlocks(self.block_pool, KVCacheBlocks(self.core.block_pool, no_ids))
        self.coordinator = coordinator_of(self, settings, self._lookups.hits_per_group, self._num_blocks_to_allocate)
        self._new_ids: list[int] = []  # blocks that the worker is to zero
        self._may_forget = True  # whether blocks that running requests hold are found by nobody else than lookups

    def bind(self, scheduler: Any) -> None:
        """Check, once its scheduler is made, that the manager can serve it, and serve its connector from now on.

        Where a state that the worker would leave inside a prefill step is not kept, the scheduler ends a step there, as
        it does for models without such checkpoints.

        Raises:
            UnsupportedError: it cannot; names what, and the remedy.
        """
        settings = self.settings
        unit, connector = getattr(scheduler.cache_config, "prefix_match_unit", None), scheduler.connector
        if unit is not None and settings.has_states and unit < min(settings.state_sizes) and not settings.match_unit:
            raise UnsupportedError(
                f"prefix_match_unit={unit}: hits that end inside a block of recurrent layers are not supported under "
                "Blockwright beside DCP or encoder layers: start vLLM without --prefix-match-unit"
            )
        if connector is not None:
            if settings.again:
                raise UnsupportedError(
                    "drafts of several modules beside a connector are not supported under Blockwright: what is loaded "
                    "would be found before they have written its last tokens. Start vLLM with num_speculative_tokens=1"
                )
            connectors.require_served(connector)
            self.block_pool.keep_hashes()
        self._may_forget = connector is None and getattr(scheduler, "aux_output_connector", None) is None
        if settings.has_states:
            self._progress.checkpoint = checkpoint_rule(scheduler)
            scheduler.mamba_has_prefill_checkpoint_blocks = self._progress.checkpoint is not None

    def check(self, held_elsewhere: Mapping[int, int] | None = None) -> None:
        """Check the core, and that what is counted beside it agrees with it (`BLOCKWRIGHT_VLLM_CHECK=1`)."""
        self.core.check(held_elsewhere)
        self._progress.check()

    # ------------------------------------------------------------------ lookup

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int]:
        """Return the hit, its tokens, and where a prefix ends that other layers have and the recurrent ones lack."""
        if not self.settings.caches or request.skip_reading_prefix_cache:
            return self.empty_kv_cache_blocks, 0, 0
        twin = twin_of(request, self.settings, self.running)
        hit, length = self._lookups.hit(request, twin, max_cache_hit_length)
        events = self._readers.events
        if events is not None and length and getattr(request, "kv_cache_report_mode", "") == "full":
            events.repeat(request, length)
        return hit, length, twin.junction

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        """Return the hit that all layers have: a connector brings what lies beyond it."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def truncate_computed_blocks(self, blocks: KVCacheBlocks, num_computed_tokens: int) -> KVCacheBlocks:
        """Return a hit cut to whole blocks: a connector has more than its last part."""
        return self._lookups.cut(blocks, num_computed_tokens)

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count the lookup of a request that was admitted."""
        if self.prefix_cache_stats is not None and self.settings.caches and not request.skip_reading_prefix_cache:
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
        if not self.settings.caches or request.request_id not in self.running:
            return 0
        self._progress.publish(request, min(request._blockwright.due, request.num_computed_tokens))
        published = self.core.num_published(request.request_id)
        return min(size * count for size, count in zip(self.settings.sizes, published, strict=True))

    # ------------------------------------------------------------------ slots

    def new_step_starts(self) -> None:
        """Say that a step starts: states and parts of blocks that the last one left may be found from now on."""
        self.block_pool.thread = get_ident()
        if self.settings.is_later:
            self._progress.start_step()

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
            is_bound = delay_cache_blocks or full_sequence_must_fit or not self._progress.fills_in_place
            if stop <= twin.table and not is_bound:
                self._progress.note_filled(request, twin, stop, twin.table)
                return self.empty_kv_cache_blocks
        except AttributeError:
            twin_of(request, self.settings, self.running)
        if not self.settings.sizes:  # nothing is kept, so nothing is needed
            request._blockwright_quiet = FOR_EVER
            return self.empty_kv_cache_blocks
        admission = self._admission
        if request.status != RequestStatus.RUNNING:
            admission.release()
            if has_scheduled_reqs:
                reserved_blocks += admission.reserve()
        if request.request_id in self.running:
            if num_new_computed_tokens or num_external_computed_tokens or num_encoder_tokens:
                self._refuse_more(request, num_new_computed_tokens, num_external_computed_tokens, num_encoder_tokens)
            if full_sequence_must_fit:
                whole = self._num_blocks_to_allocate(request.request_id, min(request.num_tokens, self.max_model_len))
                if whole + reserved_blocks > self.core.block_pool.num_free:
                    return None
            if delay_cache_blocks:
                self._progress.publish(request, min(request._blockwright.due, request.num_computed_tokens))
            with admission.sparing() if admission.spared else nullcontext():
                blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
                if blocks is None and self._progress.trim_late():
                    blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
            if blocks is None and admission.may_release(request):
                blocks = self._continue(request, stop, num_lookahead_tokens, reserved_blocks)
        else:
            twin_of(request, self.settings, self.running)
            hit = new_computed_blocks if num_new_computed_tokens else None
            blocks = None
            if hit is None or hit is not self._lookups.unserved:
                blocks = admission.admit(
                    request,
                    num_new_tokens,
                    num_new_computed_tokens,
                    hit,
                    num_external_computed_tokens,
                    delay_cache_blocks,
                    num_lookahead_tokens,
                    num_encoder_tokens,
                    {"full_sequence_must_fit": full_sequence_must_fit, "reserved_blocks": reserved_blocks},
                )
            if blocks is None and new_computed_blocks is not None and self.settings.has_states:
                admission.spare(new_computed_blocks)
        if blocks is None:
            return None
        if delay_cache_blocks and num_new_tokens:
            self._progress.hold(request)
        for number in self.settings.zeroed:
            if number not in skip_zeroing_group_ids:
                self._new_ids += [int(block) for block in blocks.ids[number] if block]
        if self.block_pool.metrics_collector is not None:
            hits = new_computed_blocks.ids if num_new_computed_tokens and new_computed_blocks is not None else ()
            self.block_pool.count(chain.from_iterable(blocks.ids), chain.from_iterable(hits))
        return blocks

    @staticmethod
    def _refuse_more(request: Any, length: int, external: int, encoder: int) -> None:
        """Refuse for a running request what only a new one may bring."""
        given = {"num_new_computed_tokens": length, "num_external_computed_tokens": external}
        for name, count in {**given, "num_encoder_tokens": encoder}.items():
            if count:
                raise UnsupportedError(
                    f"request {request.request_id!r} runs already: {name}={count} is not supported under Blockwright"
                    + ("; use a connector that loads synchronously" if encoder else "")
                )

    def _continue(self, request: Any, stop: int, ahead: int, reserve: int) -> Any:
        """Serve a running request whose step needs a block, or lets an entry die."""
        twin: Twin = request._blockwright
        settings, progress, trims = self.settings, self._progress, self.settings.next_trim is not None
        own, computed, begin = twin.request, request.num_computed_tokens, twin.written
        if begin > computed:
            begin = max(twin.certain, computed)
        if computed < twin.certain:  # a load failed: what it left out has its slots
            if trims:
                raise UnsupportedError(
                    f"request {request.request_id!r}: {twin.certain - computed} tokens are to be computed again after "
                    "a failed load, and their windows are gone: use a connector that loads asynchronously"
                )
            if stop <= begin:
                progress.note_filled(request, twin, stop, NEVER)
                return self.empty_kv_cache_blocks
        is_later, end, sure = True, stop, 0
        if trims:
            begin, is_later, sure = progress.begin_of(request, twin, stop)
            # Slots up to the end of the last block: of steps within it nothing is told.
            if not settings.has_states and own.num_tokens <= begin + twin.lookahead and request.num_tokens <= stop:
                end = -(-(stop + ahead) // settings.unit) * settings.unit - ahead
                if end > self.max_model_len:
                    end = self.max_model_len
        heard, own.num_computed_tokens = own.num_computed_tokens, begin
        inside = progress.inside(request, computed, stop) if twin.is_exact else 0
        if reserve:
            plan = self.core.plan(own, end - begin, num_lookahead_tokens=ahead, num_checkpoint_tokens=inside)
            if not isinstance(plan, Fits) or plan.num_blocks + reserve > self.core.block_pool.num_free:
                own.num_computed_tokens = heard
                return None
        if inside:
            blocks = self.core.allocate_slots(own, end - begin, 0, None, ahead, is_later, num_checkpoint_tokens=inside)
        else:
            blocks = self.core.allocate_slots(own, end - begin, 0, None, ahead, is_later)
        if blocks is None:
            own.num_computed_tokens = heard
            return None
        if not is_later:
            progress.note_published(request, twin, min(begin, sure))
        progress.note_step(request, twin, begin, end, ahead, inside)
        self._admission.note_step(request, twin)
        return blocks

    def _goes_on(self, request: Any, twin: Twin, stop: int) -> bool:
        """Note a step of a session, up to `stop`; return False, "not now", if the scheduler must count it again."""
        # A next turn goes on where the last one ended. vLLM drops the token that was sampled last, and with it what a
        # step in flight computed of it. It keeps what drafts computed beyond the last token, which is to be computed
        # again. A recurrent state that such a step has written over is gone, and of the states that a step with drafts
        # leaves the worker does not know any more which is the last: then the turn begins with a lookup.
        if request.num_prompt_tokens != twin.num_prompt and request.request_id in self.running:
            counted: int = request.num_computed_tokens
            if self.settings.state_sizes and (self.settings.num_drafts or not twin.heard >= counted == twin.stop):
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

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Say that so many tokens are computed: the end of a load, or of a step, whose blocks lookups may find."""
        twin: Twin | None = getattr(request, "_blockwright", None)
        if twin is None:  # it was given no slots
            return
        if twin.loading is None:
            if twin.is_session:
                twin.heard = max(twin.heard, num_computed_tokens)
            if num_computed_tokens >= twin.fill:
                self._progress.note_filled(request, twin, num_computed_tokens, twin.table)
            return
        self._end_load(request, twin, *twin.loading, num_computed_tokens)

    def _end_load(self, request: Any, twin: Twin, length: int, external: int, computed: int) -> None:
        """Take in how much of a load has come; if not all, go on behind what is found of all layers."""
        own, found, progress = twin.request, length + external, self._progress
        twin.loading = None
        if self.core.finish_load(own, max(0, min(computed - length, external))):
            twin.published = min(found, own.num_tokens - 1)  # the last token is computed again
            self._readers.begin(request, found)
            progress.note_step(request, twin, twin.published, twin.published, 0)
            self._readers.tell(request, twin.published)
            return
        del self.running[request.request_id]
        progress.forget(request)
        self._readers.tell(request, found)
        hit, found = self.core.get_computed_blocks(own)
        if self.settings.match_unit is not None:  # without a token to compute, no part of a block is adopted
            hit, found = self._lookups.whole_hit(request.block_hashes, request.all_token_ids, found)
        if found and self.core.allocate_slots(own, 0, found, hit) is not None:
            self.running[request.request_id] = request
            twin.published = found
            progress.note_step(request, twin, found, found, 0)
        else:
            found = 0
            self._admission.forget(request)
            self._readers.forget(request)
        request.num_computed_tokens = found

    # ------------------------------------------------------------------ release

    def free(self, request: Any) -> None:
        """Release all that a request holds: it ends, or is preempted."""
        if self.running.pop(request.request_id, None) is None:
            return
        twin: Twin = request._blockwright
        if twin.loading is not None:
            self.core.free(twin.request)
            self.core.finish_load(twin.request, 0)
        else:
            self._progress.publish_end(request)
            # vLLM's scheduler frees a request that it preempts while it still counts as running, and others afterwards.
            self.core.free(twin.request, preempted=getattr(request.status, "name", "") == "RUNNING")
            if self._readers.events is not None:
                self._readers.events.drain(request)
        self._progress.forget(request)
        self._admission.forget(request)

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        """Release a request's table but keep its blocks held, for `block_pool.free_blocks` later."""
        blocks = [block for group in self.get_blocks(request.request_id).blocks for block in group if not block.is_null]
        self.block_pool.touch(blocks)
        self.free(request)
        return blocks

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Give back what no token from the last computed one on reads, before blocks are handed over."""
        # vLLM gives back what no token from `processed_computed_tokens` on reads. The engine that takes the blocks over
        # computes the last of these tokens again, and may need one block more. `num_prompt_tokens` only matters to
        # R-SWA.
        request = self.running.get(request_id)
        if request is None or self.settings.next_trim is None or request._blockwright.loading is not None:
            return
        twin: Twin = request._blockwright
        if processed_computed_tokens > twin.written:
            twin.learn(request, processed_computed_tokens)
            self._progress.catch_up(twin, processed_computed_tokens)
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
        """Forget all prefixes, while requests run too: these publish nothing more. False if that cannot be promised."""
        # vLLM's own manager refuses while a block is held, so that after ``pause(mode="keep", clear_cache=False)`` and
        # new weights, lookups would go on finding what the old weights have computed. Beside a connector, which stores
        # and loads blocks on its own, this one refuses as well, and nothing happens; so it does beside auxiliary
        # outputs, which vLLM would drop under the requests that run.
        if not self.core.reset_prefix_cache():
            if not self._may_forget or self.core.block_pool.num_held_externally:
                return False
            self.core.forget()
        if self.block_pool.metrics_collector is not None:
            self.block_pool.metrics_collector.reset()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    def resize(self, num_gpu_blocks: int) -> Resizing:
        """Let the pool end before a block while requests run: at least 2, at most the blocks vLLM has made tensors for.

        vLLM itself calls no such thing: it is for who gives the memory beyond the end to another model, once `held` of
        the answer is 0, and takes it back before the pool grows.

        Raises:
            InvalidArgumentError: another number.
        """
        self._progress.publish_for_readers()
        return self.core.resize(num_gpu_blocks)

    @property
    def resizing(self) -> Resizing:
        """How far the pool is that was resized last."""
        return self.core.resizing

    # ------------------------------------------------------------------ what is read and drained

    @property
    def usage(self) -> float:
        """Share of blocks that are held."""
        return self.core.usage

    def get_blocks(self, request_id: str) -> Any:
        """Return a request's blocks, none of one that holds nothing."""
        if request_id not in self.running:
            return self.empty_kv_cache_blocks
        blocks = self.core.get_blocks(request_id)
        return Blocks(self.block_pool, blocks) if self.block_pool.keeps_hashes else blocks

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return a request's block ids, a list per group."""
        if request_id in self.running:
            return self.core.get_block_ids(request_id)
        return tuple([] for _ in self.settings.sizes)

    def get_block_ids_for_computed_tokens(self, request_id: str, num_computed_tokens: int) -> tuple[list[int], ...]:
        """Return the block ids that cover a request's computed tokens."""
        return tuple(
            ids if spec.reads_encoder or spec.is_recurrent else ids[: -(-num_computed_tokens // size)]
            for ids, (spec, size) in zip(self.get_block_ids(request_id), self.settings.layouts, strict=True)
        )

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Return none: vLLM has no kernel any more that reads them once."""
        return [0] * self.num_kv_cache_groups

    def create_kv_cache_blocks(self, blocks: Any) -> KVCacheBlocks:
        """Refuse. vLLM calls it only inside its own manager, and here `get_computed_blocks` builds a hit."""
        raise UnsupportedError("create_kv_cache_blocks: blocks are made by the manager alone")

    def take_events(self) -> list[Any]:
        """Return vLLM's events since the last call."""
        if self._readers.events is None:
            return []
        self._progress.publish_due()
        return self._readers.events.take()

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks that the worker is to zero before they are written."""
        ids, self._new_ids = self._new_ids, []
        return ids

    def get_zeroing_block_ids_in_range(self, request_id: str, start_token: int, end_token: int) -> list[int]:
        """Return the blocks of attention that hold the tokens of a range (0.31)."""
        ids: list[int] = []
        for table, (spec, size) in zip(self.get_block_ids(request_id), self.settings.layouts, strict=True):
            if not spec.is_recurrent:
                ids += [block for block in table[start_token // size : -(-end_token // size)] if block]
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Note the blocks from a token on, which a failed load left unwritten."""
        self._new_ids += self.get_zeroing_block_ids_in_range(request_id, start_token, self.max_model_len)

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        """Return the copies that the worker runs before the step, of the parts of blocks that requests have hit."""
        # The blocks need not be held until the step has run: what is given them next is written by a later step.
        if self.settings.match_unit is None:
            return [], []
        from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

        return [KVCacheBlockCopy(*pair) for pairs in self.core.take_copies() for pair in pairs], []

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return the states that were published since the last call, as (group, block, tokens), for a connector."""
        return self._readers.take_offers()

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """Return none: a connector is offered states at the ends of blocks alone."""
        return []

    def _num_blocks_to_allocate(self, request_id: str, num_tokens: int, **step: Any) -> int:
        """Return the blocks that a request still needs for so many tokens, as the scheduler reserves them for loads."""
        # Of a recurrent layer: the states after the last token and the drafts, and one that a step leaves inside.
        is_plain = step.get("apply_admission_cap", True) and not step.get("num_encoder_tokens")
        if any(step.get("new_computed_blocks", ())) or not is_plain:
            raise UnsupportedError(
                "get_num_blocks_to_allocate: is only supported under Blockwright as the scheduler calls it, for a "
                "request that brings no blocks and no encoder tokens, with the cap"
            )
        missing, groups = 0, self.kv_cache_config.kv_cache_groups
        for ids, (spec, size), group in zip(self.get_block_ids(request_id), self.settings.layouts, groups, strict=True):
            if spec.reads_encoder:
                continue
            wanted = -(-num_tokens // size)
            cap = getattr(group.kv_cache_spec, "max_admission_blocks_per_request", None)
            if cap is not None:
                in_flight = self.settings.in_flight
                wanted = min(wanted, cap(max_in_flight_tokens=in_flight, max_model_len=self.max_model_len))
            states = wanted
            if spec.is_recurrent:
                states = 1 + spec.num_speculative_blocks + (self._progress.checkpoint is not None)
            missing += min(max(0, wanted - len(ids)), states)
        return missing

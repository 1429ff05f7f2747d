"""The manager an engine talks to: lookups, slots for the next step, release.

Names, arguments and meaning are those of vLLM's `KVCacheManager` (0.11); `allocate_slots_batch` is the faster way in.
"""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Final, NamedTuple, TypeVar, cast, final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright._text import Drawing
from blockwright.arguments import integer, shown, whole
from blockwright.config import KVCacheConfig, KVCacheGroupSpec
from blockwright.core.keys.block_hash import BlockHasher
from blockwright.core.keys.packed import zeros64
from blockwright.core.keys.request import MAX_LENGTH, Request, count_of, owner_mark
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.history import Eviction, EvictionReader
from blockwright.core.pool.order import BlockHint
from blockwright.core.pool.pool import BlockPool
from blockwright.core.records.explain import (
    EvictionStats,
    HitExplanation,
    eviction_stats,
    explain,
    kind_name,
    without_room,
)
from blockwright.core.records.journal import NUM_FACTS, Journal
from blockwright.core.steps.batch import grow_each
from blockwright.core.steps.check import check_state
from blockwright.core.steps.effects import serve, serve_in_place
from blockwright.core.steps.ending import release, waiting
from blockwright.core.steps.folding import fold_each
from blockwright.core.steps.forks import fork, fork_with_copies, num_held_alone, take_copies
from blockwright.core.steps.in_flight import finish_load, new_step_starts, settle_step, start_step
from blockwright.core.steps.outcomes import BatchAllocation, Plan
from blockwright.core.steps.plans import can_load, fits, planned, refuse_never
from blockwright.core.steps.preconditions import (
    check_ask,
    check_hit,
    check_keys,
    give_keys,
    is_in_place,
    leased,
    tables_named,
    tables_of,
    tables_running,
)
from blockwright.core.steps.publication import make_private
from blockwright.core.steps.resizing import Resizing, resize, resizing
from blockwright.core.steps.shortening import shorten
from blockwright.core.steps.state import Options, State
from blockwright.core.steps.transitions import commit, find, forget, lock, publish, publish_each, reset, trim
from blockwright.core.steps.units import check_unit, has_room
from blockwright.core.tables.ask import StepRequest, all_or_each, counts_of
from blockwright.core.tables.layouts import group_tables, refuse_eagle
from blockwright.core.tables.view import GroupView
from blockwright.core.worth.adaptive import AdaptiveOrder
from blockwright.core.worth.chosen import ChosenOrder, EvictionPolicy
from blockwright.core.worth.classes import Classes
from blockwright.core.worth.hints import advance_time, hint_of, release_prefix, retain
from blockwright.core.worth.passing import WHOLE, PassingOrder
from blockwright.core.worth.retained import RetentionOrder
from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.events import KVCacheEvent, cache_layout
from blockwright.exclusions import refuse_exclusions
from blockwright.ids import id_given
from blockwright.kinds import FullAttentionSpec

T = TypeVar("T")

ABOVE: Final[dict[str, Callable[..., Any]]] = {}
"""What shows, stores or records a manager, by the name of its method here, and what finds an order by its name.

The package puts them in (`blockwright.__init__`), because the core imports nothing that stands on it.
"""


class PrefixCacheStats(NamedTuple):
    """Lookups of requests admitted since the last call of `make_prefix_cache_stats`.

    A lookup is counted once its request is given slots, so that one that has to wait is not counted at each try. A
    request that was admitted before (and preempted since, or its load failed) is counted apart, as in vLLM, because it
    often hits blocks that it computed itself.

    Attributes:
        reset: whether the prefix cache was reset since then.
        requests: requests admitted for the first time, after a lookup.
        queries: tokens looked up for them.
        hits: tokens of the hits that they adopted.
        preempted_requests, preempted_queries, preempted_hits: the same counts for requests that were admitted before.
    """

    reset: bool
    requests: int
    queries: int
    hits: int
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0


@final
class KVCacheManager:
    """KV-cache blocks of all running requests of one scheduler.

    Its state is a record (`State`). Its calls are functions in modules with the names of the specification's chapters:
    `preconditions`, `plans`, `effects`, `publication`, `ending`, `transitions`, `in_flight`, `forks` and `explain`.

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

    def __new__(cls, *_: object, **__: object) -> KVCacheManager:
        """Make a manager without fields, for `__init__` or `copy`."""
        return super().__new__(cls)

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        enable_caching: bool | None = True,
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
        shares: Mapping[str, int] | None = None,
        hint_guard: float = 0.0,
        eviction_order: EvictionPolicy | str | None = None,
        eviction_policy: EvictionPolicy | None = None,
        keep_wanted: bool | None = None,
        passing_spares: int | None = None,
        wanted_interval: int = 0,
        raise_never_fits: bool = True,
        prefix_match_unit: int | None = None,
        max_num_blocks: int | None = None,
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
            overlap_steps: steps are in flight until `settle_step` reports that they are done. Without it, the request's
                own count shows that at its next call.
            publish_on_settlement: publish blocks once their step is settled, not when it is scheduled; needs
                `overlap_steps`. For engines that do not execute steps in order.
            watermark: share of the blocks that stay free when a request joins others, within 0.0 .. 1.0.
            explain_evictions: remember how keys were lost, for `explain_hit` and `make_eviction_stats`: the last
                ``num_blocks - 1`` losses, older ones are forgotten.
            track_evictions: record the contents that are evicted, for `take_evictions`: whole blocks.
            shares: blocks of the pool that belong to each tenant, by cache salt. A candidate of a tenant with no more
                than its share is evicted for others only where there is no other candidate; blocks that its requests
                hold are part of its share. Salts that are not named, and requests without one, have no share.
            hint_guard: part of the pool, within 0.0 .. 1.0, that no hint affects. This many of the last candidates to
                be released stay until all others are gone, so that wrong hints leave at least the hits of plain LRU in
                a pool of that size. law: HINT-3.
            eviction_order: chooses the cached block that is evicted: an `EvictionOrder`, the name of a module of
                `blockwright.orders`, or "module:factory". Blocks without content are taken before any cached block.
                Without an order and without hints, or with "lru", the least recently used block is evicted. "adaptive"
                (without windows) is the least recently or the least frequently used one, by whichever rule more
                would have been hit of late (`BlockPool.rule_in_force`).
            eviction_policy: the earlier name of `eviction_order`.
            keep_wanted: where layers forget (windows, recurrent states), evict those blocks first that no hit of a
                wanted length needs: the prompt, the hit that a request began with, its `Request.junction`, and all that
                it has published. None: True with windows and without recurrent layers. With recurrent layers give True
                only if each prefill ends a step at the request's junction and at the prompt's last whole block. False
                evicts the least recently used block, whatever it is for. law: POLICY-4.
            passing_spares: how many of the last blocks that `keep_wanted` would evict first are evicted by age
                instead, for prompts that part where no earlier one has. None: as many as hits have shown to be of use,
                at most a quarter of the pool (`BlockPool.passing_spares`), and none if `prefix_match_unit` is smaller
                than the blocks of a recurrent layer. Shares and an `eviction_order` spare none, nor do hints once they
                come. law: POLICY-6.
            wanted_interval: with `keep_wanted`, hits of each multiple of so many tokens of a prompt are wanted too,
                since prompts part there; 0 for none. A multiple of the blocks of every group; not for chunked local
                attention, nor for kinds of your own. With recurrent layers, end prefill steps there.
            raise_never_fits: raise `NeverFitsError` when a new request could not be served even alone; False: return
                None for it, as vLLM's manager does, and so each time that it is asked for.
            prefix_match_unit: tokens that divide every block: hits may end inside a block, at their multiples. A
                request that hits part of a block which others read gets that part as a copy: run those of
                `take_copies` before each step, and call `new_step_starts` at its beginning. None: hits end with whole
                blocks. Not with `use_eagle`, which gives up a whole block of each hit.
            max_num_blocks: how many blocks `resize` may give the pool at most, the null block included; None: no more
                than ``kv_cache_config.num_blocks``. The manager takes its own memory for all of them now.

        Complexity: O(max_num_blocks + shares).

        Raises:
            InvalidArgumentError: names the argument.
            ExcludedOptionsError: two options that exclude each other (`blockwright.exclusions` has the table).
            UnsupportedError: a combination that no kind allows.
        """
        if isinstance(max_model_len, bool) or not 1 <= max_model_len <= MAX_LENGTH:
            raise InvalidArgumentError(f"max_model_len: must be within 1..{MAX_LENGTH} tokens, not {max_model_len!r}")
        groups = list(kv_cache_config.kv_cache_groups)
        if not 0.0 <= watermark <= 1.0:
            raise InvalidArgumentError(f"watermark: must be a share within 0.0..1.0, not {watermark!r}")
        if not 0.0 <= hint_guard <= 1.0:
            raise InvalidArgumentError(f"hint_guard: must be a part within 0.0..1.0, not {hint_guard!r}")
        encoders = [group.kv_cache_spec.reads_encoder for group in groups]
        if not groups and enable_caching:
            raise UnsupportedError("enable_caching: without groups of layers nothing is cached; turn it off")
        if groups and all(encoders):
            raise UnsupportedError("kv_cache_config: cross attention needs a decoder group beside it")
        if any(encoders) and enable_caching:
            raise UnsupportedError(
                "enable_caching: cross-attention blocks are never cached, so no prefix is; turn it off"
            )
        recurrent = [group.kv_cache_spec for group in groups if group.kv_cache_spec.is_recurrent]
        runs_ahead = any([spec.runs_ahead for spec in recurrent])
        if eviction_order is not None and eviction_policy is not None:
            raise InvalidArgumentError("eviction_policy: the earlier name of eviction_order; give one of them")
        order = eviction_policy if eviction_order is None else eviction_order
        adapts = order == "adaptive"
        if adapts:
            _require_adaptable(groups, bool(keep_wanted))
        if isinstance(order, str) and not adapts:
            order = ABOVE["order_named"](order)
        given = {
            "enable_caching=False": not enable_caching,
            "enable_kv_cache_events": enable_kv_cache_events,
            "eviction_order": order is not None,
            "explain_evictions": explain_evictions,
            "hint_guard": hint_guard > 0,
            "keep_wanted": bool(keep_wanted),
            "overlap_steps": overlap_steps,
            "overlap_steps=False": not overlap_steps,
            "passing_spares": bool(passing_spares),
            "prefix_match_unit": prefix_match_unit is not None,
            "publish_on_settlement": publish_on_settlement,
            "runs_ahead=True": runs_ahead,
            "shares": shares is not None,
            "track_evictions": track_evictions,
            "use_eagle": use_eagle,
            "verify_tokens": verify_tokens,
        }
        refuse_exclusions(given)
        refuse_eagle([group.kv_cache_spec for group in groups], use_eagle)
        given_blocks = kv_cache_config.num_blocks
        count = given_blocks if max_num_blocks is None else integer("max_num_blocks", max_num_blocks, given_blocks)
        pool = BlockPool(
            count,
            enable_caching,
            enable_kv_cache_events=enable_kv_cache_events,
            verify_tokens=verify_tokens,
            explain_evictions=explain_evictions,
            track_evictions=track_evictions,
        )
        unit = 0 if prefix_match_unit is None else prefix_match_unit
        if prefix_match_unit is not None:
            _check_unit(unit, groups)
            pool._keep_tails()
        pool._guard = hint_guard
        classes, spares = None, passing_spares
        if _keeps_wanted(keep_wanted, passing_spares, groups, pool):
            _require_interval(wanted_interval, groups)
            classes = Classes(count, wanted_interval)
            # With a unit, states are kept where prompts part, to the token: those at block ends serve hardly any hit.
            if spares is None and any([0 < unit < spec.block_size for spec in recurrent]):
                spares = 0
        elif wanted_interval != 0 or passing_spares is not None:
            name = "passing_spares" if wanted_interval == 0 else "wanted_interval"
            raise InvalidArgumentError(
                f"{name}: only with keep_wanted, where layers forget; leave it out, or give keep_wanted=True"
            )
        guard = pool._guard
        if shares is not None:
            pool._go_by(RetentionOrder(count, shares, guard, prefix_match_unit is not None, classes))
        elif adapts:
            is_state = [group.kv_cache_spec.is_recurrent for group in groups]
            pool._go_by(AdaptiveOrder(count, groups[0].kv_cache_spec.block_size, is_state))
        elif not (order is None or isinstance(order, str)):
            pool._go_by(ChosenOrder(order, classes))
        elif classes is not None:
            pool._go_by(PassingOrder(count, classes, spares or 0, WHOLE if spares is None else 0))
        if given_blocks < count:
            pool._move_end(given_blocks)
        managers = [
            group_tables(group.kv_cache_spec, pool, number, dcp_world_size) for number, group in enumerate(groups)
        ]
        if runs_ahead and not all([spec.runs_ahead for spec in recurrent]):
            raise UnsupportedError("kv_cache_config: recurrent layers with runs_ahead=True stand beside no others")
        sizes = [int(manager._block_size) for manager in managers]
        options = Options(
            kv_cache_config,
            max_model_len,
            unit,
            sizes,
            [spec.num_speculative_blocks for spec in recurrent],
            runs_ahead,
            caching=pool.enable_caching,
            eagle=use_eagle,
            logs=log_stats,
            overlaps=overlap_steps,
            settles=publish_on_settlement,
            watermark=watermark,
            raises_never=raise_never_fits,
        )
        pool._describe(cache_layout([group.kv_cache_spec for group in groups], sizes, options.alignment, use_eagle))
        self._state: State = State(options, pool, managers)
        self._evictions: EvictionReader | None = pool.read_evictions(from_start=True) if track_evictions else None

    def copy(self) -> KVCacheManager:
        """Return an independent copy; pair it with copies of the requests (`Request.copy`). O(num_blocks).

        It learns of tokens that were appended to such a copy when a call names it. A journal is copied with its facts;
        its readers, and what `record` gives facts to, stay with the original.
        """
        twin = KVCacheManager.__new__(KVCacheManager)
        twin._state = self._state.copy()
        pool = twin._state.pool
        twin._evictions = pool.read_evictions(from_start=True) if pool.tracks_evictions else None
        return twin

    def __copy__(self) -> KVCacheManager:
        return self.copy()

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "KVCacheManager: can be neither pickled nor copied deeply; use copy(), with Request.copy() of its requests"
        )

    # ------------------------------------------------------------------ lookup

    def get_computed_blocks(self, request: Request, max_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of a request that is not running, and its tokens.

        At most ``num_tokens - 1`` tokens, so that one is left to compute. Nothing changes: pass the result to
        `allocate_slots` to adopt it. Empty without caching, without keys, and when prompt log-probabilities are
        needed. Complexity: at most one index lookup per block. law: HIT-1, HIT-2, HIT-4.

        Args:
            request: see above.
            max_tokens: look for no longer hit, for an engine that computes the tokens behind it whatever is cached:
                for their log-probabilities, for example.

        Raises:
            InvalidArgumentError: the request was made with another block size or hasher, or a negative `max_tokens`.
        """
        give_keys(self._state, request)
        most: i64 = MAX_LENGTH if max_tokens is None else count_of("max_tokens", max_tokens)
        return self._told(find(self._state, request, most))

    def touch(self, request: Request, max_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return what `get_computed_blocks` returns, and count it as used now: it is evicted after all that was before.

        For engines that look each waiting request up again and again, and in which what waits is not to be evicted.
        Nothing is held. Complexity: as `get_computed_blocks`, and O(blocks of the hit). law: USE-1.

        Raises:
            InvalidArgumentError: as `get_computed_blocks`.
        """
        hit = self.get_computed_blocks(request, max_tokens)
        self._state.pool._use(hit[0].ids)
        if hit[1] > 0:
            hit[0].stamp(request)
        return hit

    def lock(self, request: Request, num_new_computed_tokens: int, new_computed_blocks: KVCacheBlocks) -> None:
        """Hold a hit for a request that waits, so that it is not evicted before `allocate_slots` adopts it. O(blocks).

        Each lock ends with an `unlock` of the same blocks, before or after the request is admitted. Locked blocks count
        as held from outside (law: OUTSIDE-1): nobody else is given them, and `reset_prefix_cache` refuses.

        Args:
            request: a request that holds no blocks.
            num_new_computed_tokens, new_computed_blocks: the hit as `get_computed_blocks` returned it.

        Raises:
            StaleHitError: the hit no longer holds; look it up again.
            InvalidArgumentError: the request runs already, or has no keys.
        """
        lock(self._state, request, num_new_computed_tokens, new_computed_blocks)

    def unlock(self, new_computed_blocks: KVCacheBlocks) -> None:
        """End one `lock` of a hit; the end of the hit is then evicted before its beginning. O(blocks).

        Raises:
            BlockError: a block of it is not held from outside.
        """
        self._state.pool.free_blocks([block for ids in new_computed_blocks.ids for block in reversed(list(ids))])

    def explain_hit(self, request: Request) -> HitExplanation:
        """Explain why the hit of a request is as long as it is; nothing changes, statistics included.

        Says, for each group, how long its own hit is, the first block that a longer common hit lacks, and what became
        of that block: never published, evicted, trimmed or reset, if the manager was made with ``explain_evictions``.
        Complexity: as `get_computed_blocks`, three times. law: EXPLAIN-1.

        Raises:
            InvalidArgumentError: the request was made with another block size or hasher.
        """
        state, config = self._state, self._state.config
        state.pool.require_whole()
        give_keys(state, request)
        if config.unit > 0 and request._block_size > 0:
            check_unit(state, request)
        found = explain(state.groups, config.alignment, config.whole_alignment, config.eagle, request)
        return found if has_room(state, request.num_tokens, found.num_tokens) else without_room(found)

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
        num_checkpoint_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Give a request slots for its next tokens; return the new blocks, or None if there is no room now.

        ::

            | computed | num_new_computed_tokens | external            | num_new_tokens | num_lookahead_tokens |
            | certain  | the hit: certain        | certain once loaded | written        | slots only           |

        ``docs/explanation/words.md`` defines known, written, certain, settled, computed and published in one picture.

        Trims the entries that no unsettled token reads, adopts the hit in all groups, takes blocks, and publishes the
        full blocks of known tokens up to the end of this step, so drafts are never published. Slots end at
        `max_model_len`.
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
                are published, and the request goes on, after `finish_load`. A load writes whole blocks: of a hit that
                ends inside a block, it also brings what that block holds.
            num_encoder_tokens: tokens that cross-attention reads, with a new request.
            full_sequence_must_fit: start a new request only if all its tokens would fit, in steps as large as this.
            reserved_blocks: blocks to leave to others; a new request that finds the pool idle need not leave any.
            num_checkpoint_tokens: recurrent layers also keep the state after so many tokens, the last block end before
                the step's last token and at least a block behind its first. It takes a block, and is found like the
                state at the step's end, if it is published before the request leaves the next block. 0 for none. law:
                MAMBA-7.

        Raises:
            InvalidArgumentError: a count is out of range; names the argument.
            StaleHitError: the hit no longer holds; look it up again.
            NeverFitsError: a new request that the pool could not hold even alone; see `raise_never_fits`.
            DuplicateRequestError: another request runs under this id, or its slots in this step are given already.
            UnknownStepError: with `overlap_steps`, no step has been started.
        """
        state = self._state
        tables = tables_of(state, request)
        new: i64 = count_of("num_new_tokens", num_new_tokens)
        ahead: i64 = count_of("num_lookahead_tokens", num_lookahead_tokens)
        is_none = new_computed_blocks is None or new_computed_blocks is state.nothing
        plain = num_new_computed_tokens == 0 and is_none
        more = num_draft_tokens != 0 or num_external_computed_tokens != 0 or num_encoder_tokens != 0
        # Where hits may end inside blocks, a request that ends must know whether its last step put publication off.
        more = (
            more or reserved_blocks != 0 or num_checkpoint_tokens != 0 or (delay_cache_blocks and state.config.unit > 0)
        )
        # Most steps of decoding end here: they take no block and fill none, so that only counts change.
        if plain and not more and tables is not None and is_in_place(state, request, tables, new, ahead):
            serve_in_place(state, request, tables, new)
            return state.nothing
        ask = StepRequest()
        ask.new = new
        ask.ahead = ahead
        ask.is_delayed = delay_cache_blocks
        ask.is_whole = full_sequence_must_fit
        if not plain:
            check_hit(state, request, tables, ask, num_new_computed_tokens, new_computed_blocks)
        if more:
            ask.take(
                num_draft_tokens,
                num_external_computed_tokens,
                num_encoder_tokens,
                reserved_blocks,
                num_checkpoint_tokens,
            )
        check_ask(state, request, tables, ask)
        if fits(state, request, tables, ask):
            given = serve(state, request, tables, ask)
            state.listeners.call_ends()
            return given
        state.listeners.begins()
        state.listeners.refused(request, new)
        state.listeners.call_ends()
        refuse_never(state, request, tables, ask)
        return None

    def allocate_slots_batch(
        self,
        requests: Sequence[Request],
        num_new_tokens: int | Sequence[int],
        num_lookahead_tokens: int | Sequence[int] = 0,
        num_draft_tokens: int | Sequence[int] = 0,
        *,
        delay_cache_blocks: bool = False,
    ) -> BatchAllocation:
        """Give each request of a step its slots, in order, in one call; hits are adopted by `allocate_slots` only.

        The first request that does not fit ends the batch and is reported; those before it keep their slots, those
        after it are untouched. Everything is checked before anything changes. Complexity: as `allocate_slots`, about
        6 ns per request that needs no new block and fills none (compiled).

        Args:
            requests: the requests, each once.
            num_new_tokens: one count for all, or one per request.
            num_lookahead_tokens, num_draft_tokens: the same.
            delay_cache_blocks: publish nothing of these steps until they have run, by `cache_blocks_batch`.

        Raises:
            InvalidArgumentError, NeverFitsError, DuplicateRequestError: as `allocate_slots`; a request twice in the
                batch.
        """
        # An exact list is read as it is. Any other sequence could run code of its own in mid-change.
        batch: list[Request] = requests if type(requests) is list else list(requests)
        size: i64 = len(batch)
        each, news = all_or_each("num_new_tokens", num_new_tokens, size)
        aheads = counts_of("num_lookahead_tokens", num_lookahead_tokens, size)
        drafts = counts_of("num_draft_tokens", num_draft_tokens, size)
        return self._told(grow_each(self._state, batch, each, news, aheads, drafts, delay_cache_blocks))

    def lease(self, request: Request) -> int:
        """Return the tokens up to which no step of a running request needs a call: its `Request.lease`, counted anew.

        It may be more than `Request.lease`, which was counted when slots were last given. O(groups). law: LEASE-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return leased(self._state, tables_running(self._state, request))

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
        num_checkpoint_tokens: int = 0,
    ) -> Plan:
        """Return whether `allocate_slots` with these arguments would succeed, and its demand; change nothing.

        Returns `Fits` with the exact demand, `NotNow` with the blocks missing, or `Never` with the reason: too long for
        the model, or for the pool. Complexity: O(hits + blocks that would be trimmed). law: PLAN-1, PLAN-2, LIVE-1.

        Raises:
            InvalidArgumentError, StaleHitError, DuplicateRequestError, UnknownStepError: as `allocate_slots`.
        """
        state = self._state
        tables = tables_of(state, request)
        ask = StepRequest()
        ask.is_planned = True
        ask.new = count_of("num_new_tokens", num_new_tokens)
        ask.ahead = count_of("num_lookahead_tokens", num_lookahead_tokens)
        ask.is_delayed = delay_cache_blocks
        ask.is_whole = full_sequence_must_fit
        ask.take(
            num_draft_tokens, num_external_computed_tokens, num_encoder_tokens, reserved_blocks, num_checkpoint_tokens
        )
        if num_new_computed_tokens != 0 or new_computed_blocks is not None:
            check_hit(state, request, tables, ask, num_new_computed_tokens, new_computed_blocks)
        check_ask(state, request, tables, ask)
        return planned(state, request, tables, ask)

    def can_load(self, request: Request, num_new_computed_tokens: int, num_external_computed_tokens: int) -> bool:
        """Return whether a new request could ever load tokens after a hit, however many blocks are free now.

        A load takes all blocks that the tokens after it read at once. It fits wherever the request could have computed
        the same tokens; a connector offers no more than that. The hit need not be there. O(groups). law: LIVE-1.

        Raises:
            InvalidArgumentError: a count is out of range, or the request was made with another block size or hasher.
        """
        check_keys(self._state, request)
        return can_load(self._state, request, num_new_computed_tokens, num_external_computed_tokens)

    def commit(self, plan: Plan) -> KVCacheBlocks:
        """Carry out a plan and return the new blocks, as `allocate_slots` does; it cannot fail on an unchanged pool.

        Complexity: as `allocate_slots`.

        Raises:
            InvalidArgumentError: the plan is no `Fits`.
            StalePlanError: another manager's, or the pool, the request or the step has changed since; plan again.
        """
        return self._told(commit(self._state, plan))

    # ------------------------------------------------------------------ publish, trim, release

    def cache_blocks(self, request: Request, num_computed_tokens: int, *, has_run: bool = True) -> None:
        """Publish the blocks that the first `num_computed_tokens` tokens fill and that were delayed.

        The call declares that these tokens are computed, accepted drafts included. Other requests may read them from
        now on, so ``request.num_computed_tokens`` cannot go below this count any more. It may still be less when this
        is called.

        Args:
            request: a request that holds blocks.
            num_computed_tokens: tokens whose blocks are published.
            has_run: whether the request's last step has run. If not, the engine is certain to run it, a recurrent state
                that it leaves is found from the next step on, and other blocks at once (law: MAMBA-5).

        Complexity: O(blocks published). law: PUB-1, PUB-2.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written or known, or, if publication waits for it, than settled.
        """
        publish(self._state, request, num_computed_tokens, has_run)
        self._told(None)

    def cache_blocks_batch(
        self, requests: Sequence[Request], num_computed_tokens: int | Sequence[int], *, has_run: bool = True
    ) -> None:
        """Do what `cache_blocks` does for one request after another, unless one of them is wrong. O(blocks published).

        Args:
            requests: requests that hold blocks, each once.
            num_computed_tokens: one count for all, or one per request.
            has_run: as in `cache_blocks`.

        Raises:
            UnknownRequestError, InvalidArgumentError: as `cache_blocks`, of any of them.
            DuplicateRequestError: a request is twice in the batch.
        """
        batch = list(requests)
        counts = counts_of("num_computed_tokens", num_computed_tokens, len(batch))
        publish_each(self._state, batch, counts, has_run)
        self._told(None)

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Trim now the entries that no token at `num_computed_tokens` or later reads, not at the next `allocate_slots`.

        Complexity: O(entries that die). law: TRIM-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written, or, with steps in flight, than are settled.
        """
        trim(self._state, request, num_computed_tokens)
        self._told(None)

    def fold_duplicates(self, requests: Sequence[Request], num_computed_tokens: int | Sequence[int]) -> BatchAllocation:
        """Let requests that have computed the same hold one block for it, and give their own copies back.

        Called once a step has run, since what it writes must be there. Each full block is asked about once: if another
        request holds a block of the same content that was published before it, the table gets that one, and the own
        copy comes free; with `prefix_match_unit` nothing is folded. Nothing is copied: a worker is told by the answer's
        `replaced_entries`, as of a batch. Blocks that steps in flight still read return when these are settled.
        O(requests + blocks filled since). law: FOLD-1, FOLD-2.

        Args:
            requests: requests that hold blocks, each once.
            num_computed_tokens: tokens that are computed, one count for all or one per request.

        Raises:
            UnknownRequestError: a request holds no blocks.
            InvalidArgumentError: more tokens than are written or known.
            DuplicateRequestError: a request is twice in the batch.
        """
        batch = list(requests)
        return fold_each(self._state, batch, counts_of("num_computed_tokens", num_computed_tokens, len(batch)))

    def shorten(self, request: Request, num_tokens: int) -> None:
        """Give back slots of a request's last step, which has not run: it then ends after `num_tokens` tokens.

        Lookahead slots go too. With the count at which the step began, all of it is given up, and the request goes on
        from there. What it has published behind the count is found no more, as in `free`. A replica of its tables is
        told by removing the request and adding it with ``get_blocks``. O(entries given back). law: GIVEN-1, GIVEN-3.

        Args:
            request: a request that holds blocks; its ``num_computed_tokens`` is the count before the step.
            num_tokens: from that count to where the step ends.

        Raises:
            UnknownRequestError: the request holds no blocks.
            UnknownStepError: tokens of it are being loaded.
            InvalidArgumentError: `num_tokens` is out of range.
            UnsupportedError: with `overlap_steps`; the step leaves a checkpoint; or recurrent layers keep states of
                drafts, and all of the step would be given up.
        """
        shorten(self._state, request, tables_running(self._state, request), count_of("num_tokens", num_tokens))
        self._told(None)

    def free(self, request: Request, *, preempted: bool = False) -> None:
        """Release all blocks of a request, last first; do nothing if it holds none. O(blocks). law: REF-1.

        What it has computed for certain is published before, unless that was put off (law: PUB-5). Blocks that a step
        in flight or a load still touches return when that has ended, in the same order. To preempt, free it and then
        set ``request.num_computed_tokens = 0``. The count before shows whether the last step has run (law: MAMBA-5):
        what the request has published behind it is found no more, and a request that began on such a block is given no
        more slots (law: GIVEN-1). Then it takes O(blocks of running requests) for each of these.

        Args:
            request: any request.
            preempted: the request goes on later. Its blocks are released in the same way; the journal counts it.

        Raises:
            DuplicateRequestError: another request runs under its id.
        """
        release(self._state, request, preempted)
        self._told(None)

    def preempt(self, request: Request) -> None:
        """Release all blocks of a request that goes on later: ``free(request, preempted=True)``."""
        self.free(request, preempted=True)

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; False, and nothing happens, while any block is held. O(num_blocks)."""
        return self._told(reset(self._state))

    def forget(
        self,
        request: Request | EllipsisType | None = ...,
        *,
        cache_salt: str | EllipsisType | None = ...,
        lora_name: str | EllipsisType | None = ...,
    ) -> int:
        """Let no later lookup find what a request, a tenant or an adapter has cached; return the number of blocks.

        Without arguments everything that is cached is forgotten, while requests run: for new weights, or an adapter
        that was loaded anew under its name. `reset_prefix_cache` does that only while no block is held.

        Blocks that are held stay with their requests; these publish nothing more, so that the blocks are not found
        later either. Of a request all blocks of its known tokens are forgotten, also where other prompts begin with
        them. A hit that was looked up before is stale. A load that is under way gives its request what it brings, and
        publishes nothing. The tiers below the device are forgotten by `OffloadingConnector.forget`, which calls this.

        Args:
            request: by its tokens, adapter, salt and items; it need not run.
            cache_salt, lora_name: all contents of this salt, of this adapter, or of both together.

        Complexity: O(num_blocks + blocks of running requests), or the request's blocks in place of num_blocks. law:
        FORGET-1, FORGET-2, FORGET-5, FORGET-6.

        Raises:
            InvalidArgumentError: a request together with one of the others, or only None was given.
            UnsupportedError: less than everything, and made with ``prefix_match_unit``.
        """
        is_all = request is ... and cache_salt is ... and lora_name is ...
        whose = request if isinstance(request, Request) else None
        salt = cache_salt if isinstance(cache_salt, str) else None
        adapter = lora_name if isinstance(lora_name, str) else None
        if not is_all:
            if self._state.config.unit > 0:
                raise UnsupportedError(
                    "prefix_match_unit: parts of blocks cannot be forgotten one by one; forget() without arguments "
                    "forgets everything"
                )
            if (whose is None) == (salt is None and adapter is None):
                raise InvalidArgumentError(
                    "request: give a request, or else cache_salt, lora_name or both, or no argument at all to forget "
                    "everything"
                )
        return self._told(forget(self._state, whose, owner_mark(salt), owner_mark(adapter)))

    def resize(self, num_blocks: int) -> Resizing:
        """Let the pool have another number of blocks from now on, the null block included, while requests run.

        A pool that grows has the new ids free at once: give them memory before the call. From a pool that shrinks, take
        the memory away only once nothing is held there: the call evicts the candidates among the ids that go, and
        no call hands such an id out any more. Blocks there that are held stay where they are. Nobody else finds them,
        their requests publish nothing more, and each is gone once it is let go of, without another call: look at
        `resizing`, or preempt the requests that it names. Blocks are not moved, so there is nothing to copy, and no
        table of a worker changes. A call in the meantime replaces this one.

        What is found in the blocks that stay is found as before. Hits that were looked up and plans that were made
        before are stale where they rest on what went. `watermark` and what is spared are parts of the new size.

        Complexity: O(blocks that come + entries of running requests), O(num_blocks) more where it shrinks. law:
        RESIZE-1, RESIZE-2, RESIZE-3.

        Args:
            num_blocks: at least 2, at most `BlockPool.max_num_blocks`.

        Raises:
            InvalidArgumentError: another number, or the shares of tenants would not fit.
        """
        pool = self._state.pool
        pool.require_whole()
        end = whole(num_blocks)
        if end is None or not 2 <= end <= pool.max_num_blocks:
            raise InvalidArgumentError(
                f"num_blocks: must be within 2..{pool.max_num_blocks} (block 0 is the null block; make the manager "
                f"with max_num_blocks to let it grow further), not {shown(num_blocks)}"
            )
        least = 0 if pool._order is None else int(pool._order.least())
        if end <= least:
            raise InvalidArgumentError(
                f"num_blocks: the shares of tenants sum to {least} blocks, which do not fit {end}; leave more"
            )
        return self._told(resize(self._state, end))

    @property
    def resizing(self) -> Resizing:
        """How far the last `resize` is: blocks beyond the pool's end that are held, and by whom. O(num_blocks)."""
        return resizing(self._state)

    def _publish_no_more(self, request_id: str) -> None:
        """Let a running request publish nothing more, as contents that are being loaded for it were forgotten."""
        tables = self._state.running.get(request_id)
        if tables is not None:
            make_private(self._state, tables)

    # ------------------------------------------------------------------ what to keep

    def retain(self, request: Request, num_tokens: int, priority: int, until: float) -> None:
        """Mark the first tokens of a running request as worth keeping, with a priority, until a time.

        Their blocks, once the request has ended, are evicted after all blocks of lower priority. After `until` they are
        evicted as if there had been no call. Nothing is pinned: a request that needs the blocks gets them. If several
        requests mark the same blocks, the highest priority and the latest time count. A second call for the same
        request replaces the first. Without caching it does nothing. Complexity: O(1), and O(log n) per block when the
        request ends; the first hint that a manager is given costs O(num_blocks). law: HINT-1, HINT-2.

        Args:
            request: a running request.
            num_tokens: leading tokens; a larger number than it has when it ends means all of them.
            priority: 1 .. 100.
            until: a time on the engine's clock, see `advance_time`; ``float("inf")``: until the blocks are taken.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: a number is out of range, or the time has passed.
            UnsupportedError: candidates go by another order, which knows no hints.
        """
        retain(self._state.pool, tables_running(self._state, request), num_tokens, priority, until)

    def release_prefix(self, request: Request, first_token: int = 0) -> None:
        """Declare that no later request will reuse a running request's tokens from `first_token` on.

        Call it when a conversation has ended. Once the request has ended, these blocks are evicted before all other
        cached blocks. Blocks that are still held, or from which other requests have continued, keep their place (law:
        POLICY-1). A hit on such a block before its eviction takes the mark back. Without caching it does nothing.
        Complexity: as `retain`.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: a negative token.
            UnsupportedError: candidates go by another order, which knows no hints.
        """
        release_prefix(self._state.pool, tables_running(self._state, request), first_token)

    def hint_of(self, request: Request, first_token: int) -> BlockHint | None:
        """Return the hint for a running request's block that begins at a token, for lower tiers; None if there is none.

        O(1).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return hint_of(self._state.pool, tables_running(self._state, request), first_token)

    def may_be_wanted(self, request: Request, group: int, start: int, stop: int) -> bool:
        """Return whether a likely hit needs one of some entries of a running request's table (``keep_wanted``). O(1).

        Of the prompt that is known when the request is admitted, of what it puts out only when it ends, so that counts.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: there is no such group, or a range that is none.
        """
        count = len(self._state.groups)
        if not 0 <= group < count or not 0 <= start <= stop <= self.max_model_len:
            raise InvalidArgumentError(
                f"group, start, stop: {group}, {start}..{stop} name no entries of {count} groups"
            )
        tables, wanted = tables_running(self._state, request), self._state.wanted
        return wanted is None or wanted.may_need(tables, group, start, stop)

    def advance_time(self, now: float) -> None:
        """Say what time it is on the engine's clock, which begins at 0 and has any unit: no clock is read here.

        Complexity: O(log n) for each block whose time has come. law: HINT-2.

        Raises:
            InvalidArgumentError: an earlier time than before, or no number.
            UnsupportedError: candidates go by another order, which knows no hints.
        """
        try:
            advance_time(self._state.pool, now)
        except BaseException:
            if self._state.pool._is_torn:
                self._state.tear()
            raise

    # ------------------------------------------------------------------ steps in flight, loads, forks

    def start_step(self) -> int:
        """Start a step and return its number; slots are given in it from now on. O(1). law: SETTLE-1.

        Raises:
            UnsupportedError: the manager was made without `overlap_steps`.
        """
        return self._told(start_step(self._state))

    def new_step_starts(self) -> None:
        """Report that a step starts, for engines without overlapping steps: slots given so far are computed before it.

        Recurrent states that the last step left may be found from now on. Without this call each is found once its own
        request has got its next slots or has ended, so it matters to lookups that come before those calls. Complexity:
        O(requests with a last step that stopped at the end of a block). law: MAMBA-5.

        Raises:
            UnsupportedError: the manager was made with `overlap_steps`.
        """
        new_step_starts(self._state)

    def settle_step(self, step: int, num_rejected_tokens: Mapping[Any, int] | None = None) -> None:
        """Say that the oldest step in flight is done, and how many drafts of which request were rejected.

        The tokens of the step count as settled. Entries that no later token reads are trimmed when the request is next
        given slots. Blocks that the tokens filled are published now if the manager publishes on settlement. Blocks that
        waited for the step are released. Rejected drafts move the request and its later steps back: lower
        ``num_computed_tokens`` by their number, and append the step's tokens afterwards. Complexity: O(requests of the
        step + blocks released). law: SETTLE-1, FENCE-1, PUB-3.

        Args:
            step: the number that `start_step` gave.
            num_rejected_tokens: by request id; requests that run and had drafts in this step.

        Raises:
            UnknownStepError: the step is not in flight, or an older one is.
            InvalidArgumentError: more tokens are rejected than were drafted.
        """
        settle_step(self._state, step, num_rejected_tokens)
        self._told(None)

    def finish_load(self, request: Request, num_loaded_tokens: int) -> bool:
        """Report that a load has ended and how many of its tokens came; return whether the request runs on.

        Positions that no token after the load reads have no block and are not loaded. If all the rest came, it is
        published: set ``num_computed_tokens`` to the hit and the load, or to one less than the known tokens if that is
        all of them (the last is computed again), and go on. If not, the tokens that came are published, the request is
        freed, and False is returned: set ``num_computed_tokens = 0`` and look it up again. Its hit is then the loaded
        prefix, cut back to a length at which every layer has all that the next token reads. With windows or recurrent
        layers this is often the hit before the load. For a request that was freed while it was loading, its blocks
        return now, the answer is False, and nothing else is to be done, even if it runs again. Complexity: O(blocks).
        law: LOAD-1, LOAD-2, READ-1, TRIM-1.

        Args:
            request: the request that loads.
            num_loaded_tokens: the first tokens after the hit for which all data that had to be loaded came; after a
                hit that ends inside a block, counted from the start of that block.

        Raises:
            UnknownStepError: nothing is being loaded for the request.
            DuplicateRequestError: another request runs under its id, and no load of an older one is under way.
            InvalidArgumentError: more tokens than were to be loaded.
        """
        return self._told(finish_load(self._state, request, num_loaded_tokens))

    def fork(self, parent: Request, child: Request) -> KVCacheBlocks | None:
        """Start `child` on the blocks of `parent` with its computed tokens; return its blocks, or None if none is free.

        Only tokens of steps that have run are shared: a copy would lack data that a step has still to write. Make the
        child with ``parent.fork(request_id)``, or with any tokens that go on from those that the parent has computed.
        Both then run on alike. A block that both hold is copied when one of them first writes to it: after allocating
        for a step and before running it, run the copies that `take_copies` returns. Drafts of the parent that are not
        accepted by now are given up. Takes no blocks, except for draft states of recurrent layers; if these are not
        free, it returns None and nothing changes. Complexity: O(blocks shared + output tokens). law: WRITE-1, REF-1.

        Raises:
            UnknownRequestError: the parent holds no blocks.
            DuplicateRequestError: the child runs already.
            InvalidArgumentError: the child's tokens, extra keys or ``num_computed_tokens`` are not the parent's; or the
                parent's own count is out of range, its tokens are being loaded or not appended after settling, or the
                copies for its last step have not been taken.
            UnknownStepError: a step in flight computes tokens of the parent; settle it first.
            UnsupportedError: the parent's last tokens are accepted drafts, and their recurrent state cannot be shared;
                compute a step first.
        """
        return self._told(fork(self._state, parent, child))

    def fork_with_copies(self, parent: Request, child: Request) -> list[list[tuple[int, int]]] | None:
        """Do as `fork`, but give `child` its own block where it goes on to write; return the copies, to be run now.

        For engines that copy as they fork. Per group, the (source, destination) block ids, at most one of each; run
        them before the next step. `take_copies` does not return them. None if a block for each is not free: nothing has
        changed then. Complexity and errors: those of `fork`. law: FORK-1, WRITE-1.
        """
        return self._told(fork_with_copies(self._state, parent, child))

    def take_copies(self) -> list[list[tuple[int, int]]]:
        """Return, per group, the (source, destination) block ids to copy before the next step, oldest first.

        Each copy is returned once. All are independent: no block is a source and a destination, or a destination twice,
        so that any order and any parallelism will do. Both ends stay held until they are taken. Call it after
        allocating for a step, and run the copies before the step. Complexity: O(copies). law: COPY-1, COPY-2.
        """
        return take_copies(self._state)

    # ------------------------------------------------------------------ over a restart, and seen from outside

    def dump(self, told: Iterable[KVCacheEvent], identity: bytes, hasher: BlockHasher | None) -> bytes:
        """Return which free block holds which prefix, for `restore` where the device's memory outlives the process.

        Blocks that a running request holds may still be written and are left out: free the requests first. Nothing may
        be written to that memory afterwards. An engine that restores a dump writes to it, so a dump is restored once.
        O(num_blocks + tokens).

        Args:
            told: the events of all prefixes that can be found now: ``snapshot().events`` of the `observe.EventStream`
                that records them. Prefixes without an event are left out.
            identity: all that decides the bytes of a block, and the owner of the memory: for example a
                `CacheIdentity`'s digest and the name of the memory.
            hasher: of the requests; None if the engine gives its own keys; their seed is then part of the identity.

        Raises:
            InvalidArgumentError: made without ``enable_kv_cache_events``.
            UnsupportedError: made with ``verify_tokens``, as keys alone do not prove the content of a block, or with
                ``prefix_match_unit``, as parts of blocks are not dumped.
        """
        return cast("bytes", ABOVE["dump"](self, told, identity, hasher))

    def restore(self, data: bytes, identity: bytes, hasher: BlockHasher | None) -> int:
        """Publish what `dump` wrote, each block under its own key, to be evicted in the same order; return how many.

        Nothing is restored, and 0 returned, where the identity, the configuration or the hasher's seed differs. Events
        report it like any publication. If the call does not end well, nothing is restored. The checksum has no key: it
        shows accidents, not who wrote the data. Complexity: O(num_blocks + tokens). law: RESTART-1.

        Args:
            data: what `dump` returned.
            identity: of this engine.
            hasher: of the requests to come; the same seed as before.

        Raises:
            InvalidArgumentError: the data is damaged or no manager wrote it, or something is held or published already.
            UnsupportedError: made with ``verify_tokens`` or ``prefix_match_unit``.
        """
        return cast("int", ABOVE["restore"](self, data, identity, hasher))

    # ------------------------------------------------------------------ what happened

    @property
    def journal(self) -> Journal | None:
        """What happened, for any number of readers; None before `start_journal`."""
        return self._state.listeners.journal

    def start_journal(
        self, num_facts: int = NUM_FACTS, num_blocks: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> Journal:
        """Write facts from now on, and return where; of a manager that does so already, the journal that it has.

        Each step that takes blocks writes one fact, a batch one more for all its requests, and so does every other call
        that changes something. A step that takes no block writes nothing. Without a journal nothing is written, and
        nothing is slower. Memory: 152 bytes a fact and 4 bytes a block id, taken now. O(num_facts + num_blocks).

        Args:
            num_facts: how many facts to keep, 1 .. 2**24; the oldest are written over.
            num_blocks: how many block ids to keep with them. By default two of each fact, and all of the pool's twice.
            clock: gives the time of facts, in seconds. It is read before a call changes anything.

        Raises:
            InvalidArgumentError: a number is out of range.
        """
        state = self._state
        state.pool.require_whole()
        if state.listeners.journal is not None:
            return state.listeners.journal
        most = min(2 * num_facts + 2 * self.block_pool.num_blocks, 2**31) if num_blocks is None else num_blocks
        if num_blocks is not None and not 1 <= most <= 2**31:
            raise InvalidArgumentError(f"num_blocks: must be within 1..2**31 block ids, not {num_blocks!r}")
        # Tokens are counted by full attention's blocks, if there are any: another group may hold a part of them.
        counted = next((at for at, group in enumerate(state.groups) if group.keeps_all), 0)
        tokens = int(state.groups[counted]._block_size) if state.groups else 0
        journal = Journal(num_facts, most, counted, tokens, clock)
        state.listeners.journal = journal
        state.pool._listen(journal)
        return journal

    def record(self, note: Callable[[Any], object], clock: Callable[[], float] | None = None) -> KVCacheManager:
        """Give each fact from now on to a function, at the end of the call that wrote it; return this manager.

        It starts the journal if there is none. An error that the function raises is logged, so that the call still
        returns its result. What reads at its own pace, as metrics do, takes a reader of the journal instead.

        Args:
            note: called with each `observe.Fact`: the ``append`` of a list or bounded deque, for example.
            clock: the time that facts carry from now on, in seconds. By default the journal's.
        """
        self.start_journal()._note(note, clock)
        return self

    def found_outside(self, request: Request, num_queried: int, num_found: int) -> None:
        """Say how many tokens of a waiting request were looked up beyond the device, and how many were found there.

        They are counted when the request is admitted, as its lookup on the device is, and found tokens as far as they
        are loaded; until then the last call counts.
        `OffloadingConnector` calls it; an engine with another connector does so itself. O(1).

        Raises:
            InvalidArgumentError: a count is out of range, or more were found than looked up.
        """
        queried, found = count_of("num_queried", num_queried), count_of("num_found", num_found)
        if found > queried:
            raise InvalidArgumentError(f"num_found: {found} of {queried} tokens that were looked up")
        request._num_asked_outside = queried
        request._num_found_outside = found

    def _told(self, answer: T) -> T:
        """Return the answer of a call, after listeners have heard that the call has ended."""
        self._state.listeners.call_ends()
        return answer

    # ------------------------------------------------------------------ what it says of itself

    @property
    def hash_block_size(self) -> int:
        """Tokens per hashed block of a request that was made without a size: the most that divides all blocks."""
        return self._state.config.hash_size

    @property
    def prefix_match_unit(self) -> int | None:
        """Tokens at whose multiples hits may end inside blocks; None: they end with blocks."""
        unit = int(self._state.config.unit)
        return unit if unit > 0 else None

    @property
    def kv_cache_config(self) -> KVCacheConfig:
        """Pool size and groups of layers."""
        return self._state.config.kv_cache_config

    @property
    def block_pool(self) -> BlockPool:
        """The pool."""
        return self._state.pool

    @property
    def managers(self) -> tuple[GroupView, ...]:
        """What can be read of each group. O(groups)."""
        return tuple([GroupView(each) for each in self._state.groups])

    @property
    def enable_caching(self) -> bool:
        """Whether prefixes are shared."""
        return self._state.config.caching

    @property
    def use_eagle(self) -> bool:
        """Whether the last block of a hit is recomputed, for a draft head."""
        return self._state.config.eagle

    @property
    def log_stats(self) -> bool:
        """Whether lookups are counted."""
        return self._state.config.logs

    @property
    def overlap_steps(self) -> bool:
        """Whether steps are in flight until `settle_step` reports that they are done."""
        return self._state.config.overlaps

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have at most."""
        return self._state.config.max_len

    @property
    def usage(self) -> float:
        """Share of blocks that are held, 0.0 to 1.0. O(1)."""
        return self._state.pool.get_usage()

    @property
    def steps_in_flight(self) -> list[int]:
        """The numbers of the steps in flight, oldest first."""
        return [int(step.number) for step in self._state.steps]

    def draw(self, max_blocks: int = 256, max_requests: int = 16, max_entries: int = 32) -> Drawing:
        """Return a picture of the pool and the block tables: text for a prompt, SVG for a notebook. O(num_blocks)."""
        return cast("Drawing", ABOVE["draw"](self, max_blocks, max_requests, max_entries))

    def __repr__(self) -> str:
        """Say how large the pool is, how much of it is free, who runs, and over which layers."""
        kinds = ", ".join([f"{kind_name(group.spec)} in blocks of {group._block_size}" for group in self._state.groups])
        pool = self._state.pool
        free = f"{int(pool._num_free)} of {pool.num_blocks - 1} blocks free"
        return f"KVCacheManager({free}, {len(self._state.running)} running, {kinds})"

    def _repr_svg_(self) -> str:
        """Return the picture that a notebook shows of the manager: `draw`. O(num_blocks)."""
        return self.draw()._repr_svg_()

    def request_ids(self) -> list[Any]:
        """Return the ids of the running requests, oldest first. O(requests)."""
        return [id_given(name) for name in self._state.running]

    def num_published(self, request_id: Hashable) -> tuple[int, ...]:
        """Return how many leading table entries publication has passed, per group. O(groups).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple([int(table.num_published) for table in tables_named(self._state, request_id).by_group])

    def num_settled(self, request_id: Hashable) -> int:
        """Return the settled tokens of a request; 0 unless made with ``overlap_steps``. O(1).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        tables = tables_named(self._state, request_id)
        return int(tables.num_settled) if self._state.config.overlaps else 0

    def get_blocks(self, request_id: Hashable) -> KVCacheBlocks:
        """Return a request's blocks, a copy of its tables. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return KVCacheBlocks(
            self._state.pool, [table.blocks[:] for table in tables_named(self._state, request_id).by_group]
        )

    def get_block_ids(self, request_id: Hashable) -> tuple[list[int], ...]:
        """Return a request's block ids, a list per group; 0 where nothing is held. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple(
            [[int(block) for block in table.blocks] for table in tables_named(self._state, request_id).by_group]
        )

    def num_blocks_held_alone(self, request: Request) -> int:
        """Return how many blocks come free if a request is preempted now: those that no other holder has.

        Other holders are forks and requests that hit the same prefix, copies to come until `take_copies`, and holds
        from outside. Blocks that a step in flight or a load still touches are counted; they come free once that has
        ended. Complexity: O(blocks). law: ALONE-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return num_held_alone(self._state, tables_running(self._state, request))

    def get_draft_block_ids(self, request_id: Hashable) -> tuple[list[int], ...]:
        """Return, per group, the blocks for the states of draft tokens, the first draft's first. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple(
            [[int(block) for block in table.states] for table in tables_named(self._state, request_id).by_group]
        )

    def get_state_block_ids(self, request: Request) -> list[int]:
        """Return, per group, the block with the state after ``request.num_computed_tokens`` tokens. O(groups).

        0 for groups that keep no state, and where there is none. After accepted drafts it is the block of the last of
        them. law: MAMBA-3.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        tables = tables_running(self._state, request)
        count = request._num_computed if request._num_computed <= int(tables.num_written) else 0
        return [int(manager.state_block(table, count)) for manager, table in zip(self._state.groups, tables.by_group)]

    def get_num_common_prefix_blocks(self, request_id: Hashable, num_running_requests: int) -> list[int]:
        """Return, per group, the leading blocks that are in the tables of exactly `num_running_requests` requests.

        Give it the number of requests that run, scheduled in this step or not, without those that wait for a load: they
        compute nothing yet, so they are not counted, and have no common blocks themselves. Other holders of a block (a
        step in flight of a released request, a load that was given up, a copy, a connector) are not counted either. 0
        for groups that do not keep all blocks. Complexity: O(blocks + requests), whatever is held from outside, and
        O(blocks that wait for a step or a load). law: COMMON-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        state = self._state
        tables = tables_named(state, request_id)
        running = operator.index(num_running_requests)
        if tables.num_loading > 0:
            return [0 for _ in state.groups]
        # Counted once for all groups: it goes through every block that waits.
        idle = waiting(state)
        return [each.num_common(table, running, idle) for each, table in zip(state.groups, tables.by_group)]

    def create_empty_block_list(self) -> KVCacheBlocks:
        """Return blocks of all groups without any block in them."""
        return KVCacheBlocks(self._state.pool, [vec[i32]() for _ in self._state.groups])

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call; empty unless made with ``enable_kv_cache_events``.

        They are kept until this is called: call it each step.
        """
        return self._state.pool.take_events()

    def take_evictions(self) -> list[Eviction]:
        """Return the contents that the pool has lost to other content since the last call, oldest first.

        A block is listed if it was taken while no other block had its content, but not if a reset emptied it. Its bytes
        stay until the next step runs: copy them before that. Empty unless made with ``track_evictions``. At least 4 for
        each block of the pool, and 1,024, are kept. law: STEP-4.

        Raises:
            JournalGapError: more have come in between than are kept. The next call returns those after them.
        """
        return self._state.pool.take_evictions()

    def read_evictions(self) -> EvictionReader:
        """Return a reader of the evictions from now on, which takes nothing from other readers.

        Raises:
            UnsupportedError: made without ``track_evictions``.
        """
        return self._state.pool.read_evictions()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return the lookups of requests admitted since the last call; None unless made with ``log_stats``."""
        state = self._state
        if not state.config.logs:
            return None
        # Taken and replaced in one step, so that a lookup is counted in exactly one report.
        done, state.listeners.lookups = state.listeners.lookups, zeros64(7)
        counts = [int(count) for count in done]
        return PrefixCacheStats(counts.pop() > 0, *counts)

    def make_eviction_stats(self) -> EvictionStats | None:
        """Return the keys lost since the last call, by cause and group; None unless made with ``explain_evictions``."""
        if not self._state.pool.explains_evictions:
            return None
        return eviction_stats(self._state.pool.take_losses(), len(self._state.groups))

    def check(self, held_elsewhere: Mapping[int, int] | None = None) -> None:
        """Recompute every invariant from scratch: counters, queue, index, tables. O(num_blocks + blocks held).

        Blocks held from outside (`BlockPool.touch`), for example by a connector, are counted from the pool's own notes.
        If `held_elsewhere` gives the expected number of such holders per block, the check compares it too. What a
        request wanted kept is gone with it, so the class of a candidate (``keep_wanted``) is taken as noted: the check
        compares it with the order of eviction, and with the blocks that may be of no class but the ordinary one, which
        are those without content, those that requests hold and those of full attention.

        Raises:
            InvariantError: names the law and shows both sides.
        """
        check_state(self._state, held_elsewhere)


def _require_interval(tokens: int, groups: list[KVCacheGroupSpec]) -> None:
    """Raise an error unless hits can end at each multiple of so many tokens, and all need as many entries."""
    if tokens != 0 and any([group.kv_cache_spec.rule() is not None for group in groups]):
        raise UnsupportedError("wanted_interval: not with layers of a kind that states its own rule; leave it out")
    alignment = math.lcm(*[group.kv_cache_spec.block_size for group in groups])
    if isinstance(tokens, bool) or not 0 <= tokens <= MAX_LENGTH or tokens % alignment != 0:
        raise InvalidArgumentError(
            f"wanted_interval: must be a multiple of {alignment} tokens, where hits can end, and at most {MAX_LENGTH}, "
            f"not {tokens!r}"
        )


def _check_unit(unit: int, groups: list[KVCacheGroupSpec]) -> None:
    """Check that hits may end at multiples of a unit."""
    if unit < 1:
        raise InvalidArgumentError(f"prefix_match_unit: must be at least 1 token, not {unit}")
    for group in groups:
        spec = group.kv_cache_spec
        if spec.block_size % unit != 0:
            raise InvalidArgumentError(f"prefix_match_unit: {unit} tokens do not divide a block of {spec.block_size}")


def _require_adaptable(groups: list[KVCacheGroupSpec], keeps_wanted: bool) -> None:
    """Raise an `UnsupportedError` if shadows cannot predict the hits of these layers."""
    specs = [group.kv_cache_spec for group in groups]
    recurrent = [spec for spec in specs if spec.is_recurrent]
    if any([not spec.is_recurrent and type(spec) is not FullAttentionSpec for spec in specs]):
        raise UnsupportedError(
            'eviction_order: "adaptive" is for full attention and recurrent layers: with windows, what no hit wants '
            "must be evicted first, which neither of its rules does"
        )
    if recurrent and (keeps_wanted or len({spec.block_size for spec in specs}) > 1):
        raise UnsupportedError(
            'eviction_order: "adaptive" with recurrent layers is without keep_wanted=True, and all block sizes are '
            "the same; leave one of them out"
        )


def _keeps_wanted(asked: bool | None, spares: int | None, groups: list[KVCacheGroupSpec], pool: BlockPool) -> bool:
    """Return whether passing blocks are evicted first, as asked for, or as the kinds of layers suggest."""
    if spares is not None and (isinstance(spares, bool) or not 0 <= spares < pool.num_blocks):
        raise InvalidArgumentError(f"passing_spares: must be within 0..{pool.num_blocks - 1} blocks, not {spares!r}")
    forgetful = [group.kv_cache_spec for group in groups if not group.kv_cache_spec.reads_all]
    if asked and not (pool.enable_caching and forgetful):
        raise InvalidArgumentError(
            "keep_wanted: needs enable_caching and a group of layers with windows or recurrent states; leave it out"
        )
    has_states = any([spec.is_recurrent for spec in forgetful])
    return pool.enable_caching and len(forgetful) > 0 and not has_states if asked is None else asked

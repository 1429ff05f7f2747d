"""The manager an engine talks to: lookups, slots for the next step, release.

Names, arguments and meaning are those of vLLM's `KVCacheManager` (0.11); `allocate_slots_batch` is the faster way in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.blocks import BatchAllocation, KVCacheBlocks
from blockwright.core.index import zeros32
from blockwright.core.managers import get_manager_for_kv_cache_spec, refuse_eagle
from blockwright.core.pool import BlockPool
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.core.running import RunningRequests, count_of, counts_of
from blockwright.core.window import common_hit
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, UnsupportedError
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
class KVCacheManager(RunningRequests):
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
            source: internal, the manager to copy.

        Complexity: O(num_blocks).

        Raises:
            InvalidArgumentError: names the argument.
            UnsupportedError: several groups, or a combination that no kind allows.
        """
        if source is not None:
            pool = source.block_pool.copy()
            managers = [manager.copy(pool) for manager in source.managers]
            super().__init__(pool, managers, source._max_len, source._exact, source)
            self._copy_counts(source)
            return
        if isinstance(max_model_len, bool) or not 1 <= max_model_len <= MAX_LENGTH:
            raise InvalidArgumentError(f"max_model_len: must be within 1..{MAX_LENGTH} tokens, not {max_model_len!r}")
        groups = list(kv_cache_config.kv_cache_groups)
        for group in groups:
            if isinstance(group.kv_cache_spec, CrossAttentionSpec):
                raise UnsupportedError("kv_cache_config: cross attention stands beside a decoder group, not alone")
            refuse_eagle(group.kv_cache_spec, use_eagle)
        pool = BlockPool(
            kv_cache_config.num_blocks,
            enable_caching,
            enable_kv_cache_events=enable_kv_cache_events,
            verify_tokens=verify_tokens,
        )
        managers = [
            get_manager_for_kv_cache_spec(group.kv_cache_spec, pool, number, dcp_world_size)
            for number, group in enumerate(groups)
        ]
        is_exact = any([isinstance(group.kv_cache_spec, MambaSpec) for group in groups])
        super().__init__(pool, managers, max_model_len, is_exact, None)
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

    def copy(self) -> KVCacheManager:
        """Return an independent copy; pair it with copies of the requests (`Request.copy`). O(num_blocks)."""
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
        if not self.enable_caching or request.prompt_logprobs or request._block_size == 0:
            return self._nothing, 0
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

    # ------------------------------------------------------------------ slots

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> KVCacheBlocks | None:
        """Give a request slots for its next tokens; return the new blocks, or None: not now, and nothing changed.

        ::

            | computed | num_new_computed_tokens | num_new_tokens | num_lookahead_tokens |
            | settled  | the hit, adopted        | this step      | drafts, not kept     |

        Trims what no token at ``request.num_computed_tokens`` or later reads, adopts the hit, takes blocks, and
        publishes the blocks that this step fills (known tokens only, so drafts are never published). Slots end at
        `max_model_len`. Complexity: O(new blocks + blocks trimmed + blocks published + hits).

        Args:
            request: running, or new with ``num_computed_tokens == 0``.
            num_new_tokens: tokens of this step, drafts to verify included.
            num_new_computed_tokens: tokens of the hit.
            new_computed_blocks: the hit as `get_computed_blocks` returned it.
            num_lookahead_tokens: slots beyond this step's tokens, for drafts to come.
            delay_cache_blocks: publish later, by `cache_blocks`.

        Raises:
            InvalidArgumentError: a count is out of range; names the argument.
            StaleHitError: the hit no longer holds; look it up again.
            DuplicateRequestError: another request runs under this id.
        """
        new: i64 = count_of("num_new_tokens", num_new_tokens)
        ahead: i64 = count_of("num_lookahead_tokens", num_lookahead_tokens)
        tables = self._tables_of(request)
        hit: i64 = 0
        if num_new_computed_tokens != 0 or new_computed_blocks is not None:
            hit = self._check_hit(request, tables, num_new_computed_tokens, new_computed_blocks)
        self._check_counts(request, tables, new, ahead, hit)
        if tables is not None:
            written: i64 = request.num_computed_tokens + new
            if written + ahead <= tables.quiet:
                tables.num_written = written
                return self._nothing
        adopted = new_computed_blocks if hit > 0 else None
        tables = self._serve(request, tables, new, ahead, adopted, hit, delay_cache_blocks)
        if len(self._nulled) > 0:
            self._nulled = vec[i32]()
        if tables is None:
            return None
        grown = False
        ids: list[vec[i32]] = []
        for at in range(self._num_groups):
            blocks = tables.groups[at].blocks
            held = self._held[at]
            grown = grown or i64(held) < i64(len(blocks))
            ids.append(blocks[held:])
        return KVCacheBlocks(self.block_pool, ids) if grown else self._nothing

    def allocate_slots_batch(
        self,
        requests: Sequence[Request],
        num_new_tokens: int | Sequence[int],
        num_lookahead_tokens: int | Sequence[int] = 0,
    ) -> BatchAllocation:
        """Give each request of a step its slots, in order, in one call; hits are adopted by `allocate_slots` only.

        The first request that does not fit ends the batch and is reported; those before it keep their slots, those
        after it are untouched. Everything is checked before anything changes. Complexity: as `allocate_slots`, about
        10 ns per request that needs no new block (compiled).

        Args:
            requests: the requests, each once.
            num_new_tokens: one count for all, or one per request.
            num_lookahead_tokens: likewise.

        Raises:
            InvalidArgumentError, DuplicateRequestError: as `allocate_slots`; a request twice in the batch.
        """
        batch = requests if isinstance(requests, list) else list(requests)
        size: i64 = len(batch)
        news = counts_of("num_new_tokens", num_new_tokens, size)
        aheads = counts_of("num_lookahead_tokens", num_lookahead_tokens, size)
        self._check_batch(batch, news, aheads)
        groups = self._num_groups
        new_ids = vec[i32]()
        new_offsets = zeros32(size * groups + 1)
        nulled_offsets = zeros32(size * groups + 1)
        served: i64 = 0
        slot: i64 = 0
        while served < size:
            request: Request = batch[served]
            tables = self._tables_of(request)
            written: i64 = request.num_computed_tokens + news[served]
            if tables is not None and written + aheads[served] <= tables.quiet:
                tables.num_written = written
                group: i64 = 0
                while group < groups:
                    group += 1
                    slot += 1
                    new_offsets[slot] = i32(len(new_ids))
                    nulled_offsets[slot] = i32(len(self._nulled))
            else:
                tables = self._serve(request, tables, news[served], aheads[served], None, 0, False)
                if tables is None:
                    break
                group = 0
                while group < groups:
                    blocks = tables.groups[group].blocks
                    held: i64 = i64(self._held[group])
                    while held < i64(len(blocks)):
                        new_ids = append(new_ids, blocks[held])
                        held += 1
                    slot += 1
                    new_offsets[slot] = i32(len(new_ids))
                    nulled_offsets[slot] = self._nulled_ends[group]
                    group += 1
            served += 1
        nulled = self._nulled
        self._nulled = vec[i32]()
        while slot < size * groups:
            slot += 1
            new_offsets[slot] = i32(len(new_ids))
            nulled_offsets[slot] = i32(len(nulled))
        refused = None if served == size else int(served)
        return BatchAllocation(served, refused, new_ids, new_offsets, nulled, nulled_offsets)

    def _check_batch(self, batch: list[Request], news: vec[i64], aheads: vec[i64]) -> None:
        """Check every request of a batch; nothing changes."""
        self._batches += 1
        batch_number = self._batches
        fresh: set[str] = set()
        i: i64 = 0
        size: i64 = len(batch)
        while i < size:
            request: Request = batch[i]
            tables = self._tables_of(request)
            self._check_counts(request, tables, news[i], aheads[i], 0)
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

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish the blocks that the first `num_computed_tokens` tokens fill and that were delayed.

        Complexity: O(blocks published). law: PUB-1, PUB-2.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written or known.
        """
        tables = self._require(request)
        known = min(int(tables.num_written), request.num_tokens)
        if not 0 <= num_computed_tokens <= known:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{known}, the known and written tokens of "
                f"{request.request_id!r}, not {num_computed_tokens}"
            )
        if self.enable_caching:
            for manager, table in zip(self.managers, tables.groups):
                self._publish(manager, table, request, num_computed_tokens)

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Trim now what no token at `num_computed_tokens` or later reads, instead of at the next `allocate_slots`.

        Complexity: O(entries that die). law: TRIM-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written.
        """
        tables = self._require(request)
        if not 0 <= num_computed_tokens <= int(tables.num_written):
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{tables.num_written}, the written tokens of "
                f"{request.request_id!r}, not {num_computed_tokens}"
            )
        for manager, table in zip(self.managers, tables.groups):
            manager.trim(table, num_computed_tokens, vec[i32]())

    # ------------------------------------------------------------------ release

    def free(self, request: Request) -> None:
        """Release all blocks of a request, last first; of one that holds none: nothing. O(blocks). law: REF-1.

        To preempt, free it and set ``request.num_computed_tokens = 0``.

        Raises:
            DuplicateRequestError: another request runs under its id.
        """
        tables = self._tables_of(request)
        if tables is None:
            return
        for manager, table in zip(self.managers, tables.groups):
            manager.release(table)
            manager.close(tables.request_id)
        del self._running[tables.request_id]
        tables.owner = 0
        request._tables = None

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; False, and nothing happens, while any block is held. O(num_blocks)."""
        if not self.block_pool.reset_prefix_cache():
            return False
        self._was_reset = True
        return True

    # ------------------------------------------------------------------ what it says of itself

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have at most."""
        return self._max_len

    @property
    def usage(self) -> float:
        """Share of blocks that are held, 0.0 to 1.0. O(1)."""
        return self.block_pool.get_usage()

    def request_ids(self) -> list[str]:
        """Return the ids of the running requests, oldest first. O(requests)."""
        return list(self._running)

    def num_published(self, request_id: str) -> tuple[int, ...]:
        """Return how many leading table entries publication has passed, per group. O(groups).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return tuple([int(table.num_published) for table in self._named(request_id).groups])

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
        """Return, per group, the leading blocks that exactly `num_running_requests` requests hold. O(blocks).

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        self._named(request_id)
        return [manager.get_num_common_prefix_blocks(request_id, num_running_requests) for manager in self.managers]

    def create_empty_block_list(self) -> KVCacheBlocks:
        """Return blocks of all groups without any block in them."""
        return KVCacheBlocks(self.block_pool, [vec[i32]() for _ in self.managers])

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call; empty unless made with ``enable_kv_cache_events``."""
        return self.block_pool.take_events()

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

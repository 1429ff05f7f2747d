"""The manager an engine talks to: lookups, slots for the next step, release.

One call's order, the same for a single request and for a batch:

    check the arguments            errors leave everything as it was
    count                          new blocks + free hits, as if dead entries were already trimmed
    refuse                         None, and nothing changed, the trim included
    trim, adopt, take, publish     cannot fail any more

Names, arguments and meaning are those of vLLM's `KVCacheManager` (0.11); `allocate_slots_batch` is the faster way in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.blocks import BatchAllocation, KVCacheBlocks
from blockwright.core.index import zeros32
from blockwright.core.managers import SingleTypeKVCacheManager, get_manager_for_kv_cache_spec, refuse_eagle
from blockwright.core.pool import BlockPool, units_per_block
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.core.tables import GroupTable, RequestTables
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    InvariantError,
    StaleHitError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.events import KVCacheEvent
from blockwright.kinds import CrossAttentionSpec, MambaSpec

_owners = [0]


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
class KVCacheManager:
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
            kv_cache_config: pool size and groups; one group for now.
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
        _owners[0] += 1
        self._owner: i64 = _owners[0]
        self.kv_cache_config = kv_cache_config
        if source is not None:
            self._copy_fields(source)
            return
        if isinstance(max_model_len, bool) or not 1 <= max_model_len <= MAX_LENGTH:
            raise InvalidArgumentError(f"max_model_len: must be within 1..{MAX_LENGTH} tokens, not {max_model_len!r}")
        groups = list(kv_cache_config.kv_cache_groups)
        if len(groups) != 1:
            raise UnsupportedError(f"kv_cache_config: one group of layers for now, not {len(groups)}")
        for group in groups:
            if isinstance(group.kv_cache_spec, CrossAttentionSpec):
                raise UnsupportedError("kv_cache_config: cross attention stands beside a decoder group, not alone")
            refuse_eagle(group.kv_cache_spec, use_eagle)
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.log_stats = log_stats
        self.block_pool = BlockPool(
            kv_cache_config.num_blocks,
            enable_caching,
            enable_kv_cache_events=enable_kv_cache_events,
            verify_tokens=verify_tokens,
        )
        self.managers: list[SingleTypeKVCacheManager] = [
            get_manager_for_kv_cache_spec(group.kv_cache_spec, self.block_pool, number, dcp_world_size)
            for number, group in enumerate(groups)
        ]
        self._max_len: i64 = max_model_len
        # Recurrent state cannot be taken back, so it never runs ahead of the known tokens.
        self._exact: bool = any([isinstance(group.kv_cache_spec, MambaSpec) for group in groups])
        self._running: dict[str, RequestTables] = {}
        self._first: SingleTypeKVCacheManager = self.managers[0]
        self._batches: i64 = 0
        self._nulled: vec[i32] = vec[i32]()
        self._num_lookups: int = 0
        self._num_queries: int = 0
        self._num_hits: int = 0
        self._was_reset: bool = False
        self._nothing: KVCacheBlocks = self.create_empty_block_list()

    def _copy_fields(self, source: KVCacheManager) -> None:
        """Become an independent copy of `source`."""
        self.enable_caching = source.enable_caching
        self.use_eagle = source.use_eagle
        self.log_stats = source.log_stats
        self.block_pool = source.block_pool.copy()
        self.managers = [manager.copy(self.block_pool) for manager in source.managers]
        self._max_len = source._max_len
        self._exact = source._exact
        self._running = {}
        for name, tables in source._running.items():
            groups = [manager.existing(name) for manager in self.managers]
            self._running[name] = RequestTables(name, tables.uid, self._owner, tables.num_written, groups)
        self._first = self.managers[0]
        self._batches = source._batches
        self._nulled = vec[i32]()
        self._num_lookups = source._num_lookups
        self._num_queries = source._num_queries
        self._num_hits = source._num_hits
        self._was_reset = source._was_reset
        self._nothing = self.create_empty_block_list()

    def copy(self) -> KVCacheManager:
        """Return an independent copy; pair it with copies of the requests (`Request.copy`). O(num_blocks)."""
        return KVCacheManager(self.kv_cache_config, self._max_len, source=self)

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
        manager = self.managers[0]
        units = self._units(request, manager)
        ids = manager.longest_hit(request.keys(units), request.num_tokens - 1, self.use_eagle)
        num_computed: i64 = i64(len(ids)) * manager._block_size
        if self.log_stats:
            self._num_lookups += 1
            self._num_queries += request.num_tokens
            self._num_hits += num_computed
        if num_computed == 0:
            return self._nothing, 0
        return KVCacheBlocks(self.block_pool, [ids]), num_computed

    def _units(self, request: Request, manager: SingleTypeKVCacheManager) -> i64:
        """Return hashed units per block, after checking that the request's hasher will do."""
        if request._block_size == manager._block_size:
            units: i64 = 1
        else:
            units = units_per_block(request, manager._block_size)
        if not request.hasher.is_collision_resistant and not self.block_pool.verifies_tokens:
            raise InvalidArgumentError(
                f"request: the hasher of {request.request_id!r} is not collision resistant; make the manager with verify_tokens=True"
            )
        if self.block_pool.records_events and not request.hasher.is_portable:
            raise InvalidArgumentError(
                f"request: events need keys that other processes share; make {request.request_id!r} with hasher=Sha256Hasher(seed)"
            )
        return units

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
        new: i64 = self._one_count("num_new_tokens", num_new_tokens)
        ahead: i64 = self._one_count("num_lookahead_tokens", num_lookahead_tokens)
        tables = self._tables_of(request)
        hit: i64 = 0
        if num_new_computed_tokens != 0 or new_computed_blocks is not None:
            hit = self._check_hit(request, tables, num_new_computed_tokens, new_computed_blocks)
        self._check_counts(request, tables, new, ahead, hit)
        held: i64 = 0
        if tables is not None:
            held = len(tables.first.blocks)
        elif hit > 0 and new_computed_blocks is not None:
            held = len(new_computed_blocks.ids[0])
        adopted = new_computed_blocks if hit > 0 else None
        table = self._serve(request, tables, new, ahead, adopted, delay_cache_blocks)
        if table is None:
            return None
        blocks = table.blocks
        return self._nothing if held == i64(len(blocks)) else KVCacheBlocks(self.block_pool, [blocks[held:]])

    def _serve(
        self,
        request: Request,
        tables: RequestTables | None,
        new: i64,
        ahead: i64,
        hit: KVCacheBlocks | None,
        delay: bool,
    ) -> GroupTable | None:
        """Count, refuse or act, after all checks; return the table, or None and nothing changed.

        The entries that trimming nulled are appended to ``self._nulled``.
        """
        manager = self._first
        pool = self.block_pool
        computed: i64 = request.num_computed_tokens
        if tables is None:
            # A new request: nothing to trim, perhaps a hit to adopt.
            held: i64 = 0
            free_hits: i64 = 0
            units: i64 = 0
            if self.enable_caching and request._block_size > 0:
                units = self._units(request, manager)
            if hit is not None:
                held = len(hit.ids[0])
                computed = held * manager._block_size
                free_hits = manager.check_hit(hit.ids[0], request.keys(units))
            written = computed + new
            slots = min(written + ahead, self._max_len)
            if manager.missing(held, slots) + free_hits > pool._num_free:
                return None
            table = manager.open(request.request_id)
            if hit is not None:
                manager.adopt(table, hit.ids[0])
            tables = RequestTables(request.request_id, request._uid, self._owner, written, [table])
            self._running[request.request_id] = tables
            request._tables = tables
        else:
            table = tables.first
            written = computed + new
            slots = min(written + ahead, self._max_len)
            if slots <= tables.quiet:
                tables.num_written = written
                return table
            missing = manager.missing(len(table.blocks), slots)
            if manager.trims(table, computed):
                if missing > pool._num_free + manager.trim_gain(table, computed):
                    return None
                self._nulled = manager.trim(table, computed, self._nulled)
            elif missing > pool._num_free:
                return None
            tables.num_written = written
        manager.grow(table, slots)
        if self.enable_caching and not delay:
            self._publish(manager, table, request, written)
        tables.quiet = manager.quiet_slots(table, self.enable_caching)
        return table

    def _publish(self, manager: SingleTypeKVCacheManager, table: GroupTable, request: Request, written: i64) -> None:
        """Publish what the tokens written so far filled, known tokens only."""
        known: i64 = request._num_prompt + i64(len(request._output))
        count = written if written < known else known
        if manager.publishes(table, count) and request._block_size > 0:
            manager.publish(table, request.keys(manager._block_size // request._block_size), count)

    def _tables_of(self, request: Request) -> RequestTables | None:
        """Return what a request holds here, or None.

        Raises:
            DuplicateRequestError: another request runs under its id.
        """
        tables = request._tables
        if tables is not None and tables.owner == self._owner:
            return tables
        return self._look_up(request)

    def _look_up(self, request: Request) -> RequestTables | None:
        """Do as `_tables_of`, by name; the request then remembers it."""
        tables = self._running.get(request.request_id)
        if tables is None:
            return None
        if tables.uid != request._uid:
            raise DuplicateRequestError(f"request: another request runs under the id {request.request_id!r}; free it first")
        request._tables = tables
        return tables

    def _check_counts(self, request: Request, tables: RequestTables | None, new: i64, ahead: i64, hit: i64) -> None:
        """Check what a request asks for against what it has."""
        written: i64 = 0
        if tables is not None:
            written = tables.num_written
        given = request.num_computed_tokens
        if given < 0 or given > written:
            raise InvalidArgumentError(
                f"num_computed_tokens: request {request.request_id!r} says {given}, but has slots written for "
                f"{written} tokens; a request that was freed starts again at 0"
            )
        computed: i64 = given
        if new == 0 and hit == 0:
            raise InvalidArgumentError("num_new_tokens: must be at least 1 (or 0 together with a hit)")
        if computed + hit + new > self._max_len:
            raise InvalidArgumentError(
                f"num_new_tokens: request {request.request_id!r} would have {computed + hit + new} tokens, "
                f"max_model_len is {self._max_len}"
            )
        if computed < written and tables is not None:
            if self._exact or self._first.first_kept(computed) < tables.first.num_trimmed:
                raise InvalidArgumentError(
                    f"num_computed_tokens: request {request.request_id!r} went back from {written} to {computed}, "
                    "but what those tokens read is gone; free it and start again"
                )
        if self._exact:
            if ahead > 0:
                raise UnsupportedError("num_lookahead_tokens: a recurrent state cannot be taken back, so no drafts for now")
            if computed + hit + new > request.num_tokens:
                raise InvalidArgumentError(
                    f"num_new_tokens: a recurrent state must not run ahead of the {request.num_tokens} known tokens"
                )

    def _check_hit(
        self, request: Request, tables: RequestTables | None, num_new_computed_tokens: int, blocks: KVCacheBlocks | None
    ) -> i64:
        """Check a hit's shape; return its tokens."""
        entries: i64 = 0
        if blocks is not None:
            if not blocks.pool_is(self.block_pool):
                if any([len(ids) for ids in blocks.ids]):
                    raise StaleHitError("new_computed_blocks: the hit is another manager's")
            elif len(blocks.ids) != len(self.managers):
                raise StaleHitError(f"new_computed_blocks: {len(blocks.ids)} groups, the manager has {len(self.managers)}")
            else:
                entries = len(blocks.ids[0])
        expected = entries * self.managers[0]._block_size
        if num_new_computed_tokens != expected:
            raise StaleHitError(
                f"num_new_computed_tokens: the hit holds {expected} tokens, not {num_new_computed_tokens}; "
                "pass both as get_computed_blocks returned them"
            )
        if entries == 0:
            return 0
        if tables is not None:
            raise InvalidArgumentError(
                f"new_computed_blocks: request {request.request_id!r} runs already; only a new request adopts a hit"
            )
        if not self.enable_caching:
            raise InvalidArgumentError("new_computed_blocks: the manager was made without enable_caching")
        if request.num_computed_tokens != 0:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be 0 before a hit is adopted, not {request.num_computed_tokens}"
            )
        if expected >= request.num_tokens:
            raise StaleHitError(
                f"num_new_computed_tokens: a hit of {expected} leaves none of the {request.num_tokens} tokens to compute"
            )
        return expected

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
        news = self._counts("num_new_tokens", num_new_tokens, size)
        aheads = self._counts("num_lookahead_tokens", num_lookahead_tokens, size)
        self._check_batch(batch, news, aheads)
        new_ids = vec[i32]()
        new_offsets = zeros32(size + 1)
        self._nulled = vec[i32]()
        nulled_offsets = zeros32(size + 1)
        served: i64 = 0
        while served < size:
            request: Request = batch[served]
            tables = self._tables_of(request)
            held: i64 = 0
            if tables is not None:
                written: i64 = request.num_computed_tokens + news[served]
                if written + aheads[served] <= tables.quiet:
                    tables.num_written = written
                    served += 1
                    new_offsets[served] = i32(len(new_ids))
                    nulled_offsets[served] = i32(len(self._nulled))
                    continue
                held = len(tables.first.blocks)
            table = self._serve(request, tables, news[served], aheads[served], None, False)
            if table is None:
                break
            blocks = table.blocks
            while held < i64(len(blocks)):
                new_ids = append(new_ids, blocks[held])
                held += 1
            served += 1
            new_offsets[served] = i32(len(new_ids))
            nulled_offsets[served] = i32(len(self._nulled))
        nulled = self._nulled
        i: i64 = served
        while i < size:
            i += 1
            new_offsets[i] = i32(len(new_ids))
            nulled_offsets[i] = i32(len(nulled))
        refused = None if served == size else int(served)
        return BatchAllocation(served, refused, new_ids, new_offsets, nulled, nulled_offsets)

    def _counts(self, name: str, given: int | Sequence[int], size: i64) -> vec[i64]:
        """Return one count per request, each within what 64 bits hold safely."""
        if isinstance(given, int):
            count: i64 = self._one_count(name, given)
            return vec[i64]([count] * size)
        counts = vec[i64](capacity=size)
        for each in given:
            counts = append(counts, self._one_count(name, each))
        if i64(len(counts)) != size:
            raise InvalidArgumentError(f"{name}: {len(counts)} counts for {size} requests; give one each, or one for all")
        return counts

    def _one_count(self, name: str, given: int) -> i64:
        """Return a count, checked to be an integer in a safe range."""
        if not isinstance(given, int) or given < 0 or given > MAX_LENGTH:
            raise InvalidArgumentError(f"{name}: must be an integer within 0..{MAX_LENGTH}, not {given!r}")
        return given

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
                    self._units(request, self.managers[0])
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
                f"num_computed_tokens: must be within 0..{known}, the tokens of {request.request_id!r} that are known and "
                f"written, not {num_computed_tokens}"
            )
        if self.enable_caching:
            self._publish(self.managers[0], tables.groups[0], request, num_computed_tokens)

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Trim now what no token at `num_computed_tokens` or later reads, instead of at the next `allocate_slots`.

        Complexity: O(entries that die). law: TRIM-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: more tokens than are written.
        """
        tables = self._require(request)
        if not 0 <= num_computed_tokens <= tables.num_written:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{tables.num_written}, the tokens written of {request.request_id!r}, "
                f"not {num_computed_tokens}"
            )
        self.managers[0].trim(tables.groups[0], num_computed_tokens, vec[i32]())

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
        manager = self.managers[0]
        manager.release(tables.groups[0])
        manager.close(request.request_id)
        del self._running[request.request_id]
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

    def _named(self, request_id: str) -> RequestTables:
        """Return what a request holds, or raise `UnknownRequestError`."""
        tables = self._running.get(request_id)
        if tables is None:
            raise UnknownRequestError(f"request_id: {request_id!r} holds no blocks here")
        return tables

    def _require(self, request: Request) -> RequestTables:
        """Return what a request holds, or raise `UnknownRequestError`."""
        tables = self._tables_of(request)
        if tables is None:
            raise UnknownRequestError(f"request: {request.request_id!r} holds no blocks here")
        return tables

    # ------------------------------------------------------------------ self-check

    def check(self) -> None:
        """Recompute every invariant from scratch: counters, queue, index, tables. O(num_blocks + blocks held).

        Raises:
            InvariantError: names the law and shows both sides.
        """
        self.block_pool.check()
        holders = zeros32(self.block_pool._count)
        for manager in self.managers:
            manager.check()
            manager.count_holders(holders)
        expected = [int(count) for count in holders]
        actual = self.block_pool.ref_counts()
        if expected != actual:
            raise InvariantError("REF-1", "holders of each block in the tables, and its counter", expected, actual)
        for name, tables in self._running.items():
            for manager, table in zip(self.managers, tables.groups):
                if manager.table_of(name) is not table:
                    raise InvariantError("TABLE-1", f"table of request {name!r}", "the manager's", "another")
                needed = manager.entries_for(tables.num_written)
                if i64(len(table.blocks)) < needed:
                    raise InvariantError("TABLE-1", f"entries of request {name!r}", f">= {needed}", len(table.blocks))

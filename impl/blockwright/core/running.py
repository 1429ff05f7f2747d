"""The requests that run, and the one way in which they get slots.

One call's order, the same for a single request and for a batch:

    check the arguments            errors leave everything as it was
    count                          new blocks + free hits, as if dead entries were already trimmed
    refuse                         None, and nothing changed, the trim included
    trim, adopt, take, publish     cannot fail any more
"""

from __future__ import annotations

from collections.abc import Sequence

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.check import check_table, count_holders, demand
from blockwright.core.index import zeros32
from blockwright.core.managers import SingleTypeKVCacheManager
from blockwright.core.pool import BlockPool
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.core.tables import GroupTable, RequestTables
from blockwright.errors import (
    DuplicateRequestError,
    InvalidArgumentError,
    StaleHitError,
    UnknownRequestError,
    UnsupportedError,
)

_owners = [0]


class RunningRequests:
    """Tables of the running requests over one pool and its groups.

    Attributes:
        block_pool: the pool.
        managers: one per group.
        enable_caching: whether prefixes are shared.
    """

    def __init__(
        self,
        pool: BlockPool,
        managers: list[SingleTypeKVCacheManager],
        max_model_len: i64,
        is_exact: bool,
        source: RunningRequests | None,
    ) -> None:
        """Start without requests, or with those of `source`, whose tables `managers` have copied.

        `is_exact`: some group keeps a recurrent state, which cannot be taken back, so no request may run ahead of its
        known tokens.
        """
        _owners[0] += 1
        self._owner: i64 = _owners[0]
        self.block_pool = pool
        self.managers = managers
        self.enable_caching: bool = pool.enable_caching
        self._num_groups: i64 = len(managers)
        self._max_len: i64 = max_model_len
        self._exact = is_exact
        self._running: dict[str, RequestTables] = {}
        self._batches: i64 = 0
        # What the last call of `_serve` did, per group: entries held before it, and where its nulled entries end.
        self._held: vec[i32] = zeros32(len(managers))
        self._nulled_ends: vec[i32] = zeros32(len(managers))
        self._nulled: vec[i32] = vec[i32]()
        self._nothing: KVCacheBlocks = KVCacheBlocks(pool, [vec[i32]() for _ in managers])
        if source is not None:
            for name, tables in source._running.items():
                groups = [manager.existing(name) for manager in managers]
                self._running[name] = RequestTables(name, tables.uid, self._owner, tables.num_written, groups)
                self._running[name].quiet = tables.quiet

    def _serve(
        self,
        request: Request,
        tables: RequestTables | None,
        new: i64,
        ahead: i64,
        hit: KVCacheBlocks | None,
        hit_length: i64,
        delay: bool,
    ) -> RequestTables | None:
        """Count, refuse or act, after all checks; return the tables, or None and nothing changed.

        Leaves in ``self._held`` the entries that each group's table had before (the hit included), appends the entries
        that trimming nulled to ``self._nulled``, which the caller empties, and their ends to ``self._nulled_ends``.
        """
        written = request.num_computed_tokens + hit_length + new
        slots = min(written + ahead, self._max_len)
        if tables is None:
            tables = self._admit(request, hit, slots)
            if tables is None:
                return None
        elif not self._trim(tables, request.num_computed_tokens, slots):
            return None
        tables.num_written = written
        quiet: i64 = MAX_LENGTH
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            self._held[at] = i32(len(table.blocks))
            manager.grow(table, slots)
            if self.enable_caching and not delay:
                self._publish(manager, table, request, written)
            quiet = min(quiet, manager.quiet_slots(table, self.enable_caching))
            at += 1
        tables.quiet = quiet
        return tables

    def _admit(self, request: Request, hit: KVCacheBlocks | None, slots: i64) -> RequestTables | None:
        """Open a new request's tables with its hit, all groups' before any group grows; None if it does not fit."""
        demand: i64 = 0
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            held: i64 = 0
            if self.enable_caching and request._block_size > 0:
                units = self._units(request, manager)
                if hit is not None:
                    held = len(hit.ids[at])
                    demand += manager.check_hit(hit.ids[at], request.keys(units))
            demand += manager.missing(held, slots)
            at += 1
        if demand > self.block_pool._num_free:
            return None
        groups: list[GroupTable] = []
        at = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = manager.open(request.request_id)
            if hit is not None:
                manager.adopt(table, hit.ids[at])
            groups.append(table)
            self._nulled_ends[at] = i32(len(self._nulled))
            at += 1
        tables = RequestTables(request.request_id, request._uid, self._owner, 0, groups)
        self._running[request.request_id] = tables
        request._tables = tables
        return tables

    def _trim(self, tables: RequestTables, computed: i64, slots: i64) -> bool:
        """Trim a running request's tables if it then fits, all groups before any grows; False if it does not."""
        demand: i64 = 0
        gain: i64 = 0
        dying = False
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            demand += manager.missing(len(table.blocks), slots)
            if manager.trims(table, computed):
                dying = True
                gain += manager.trim_gain(table, computed)
            at += 1
        if demand > self.block_pool._num_free + gain:
            return False
        at = 0
        while at < self._num_groups:
            if dying:
                self._nulled = self.managers[at].trim(tables.groups[at], computed, self._nulled)
            self._nulled_ends[at] = i32(len(self._nulled))
            at += 1
        return True

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
            raise DuplicateRequestError(
                f"request: another request runs under the id {request.request_id!r}; free it first"
            )
        request._tables = tables
        return tables

    def _check_counts(self, request: Request, tables: RequestTables | None, new: i64, ahead: i64, hit: i64) -> None:
        """Check what a request asks for against what it has."""
        written: i64 = 0
        if tables is not None:
            written = tables.num_written
        given = request.num_computed_tokens
        if given < 0 or given > int(written):
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
        if computed < written and tables is not None and not self._can_go_back(tables, computed):
            raise InvalidArgumentError(
                f"num_computed_tokens: request {request.request_id!r} went back from {written} to {computed}, "
                "but what those tokens read is gone; free it and start again"
            )
        if self._exact:
            if ahead > 0:
                raise UnsupportedError(
                    "num_lookahead_tokens: a recurrent state cannot be taken back, so no drafts for now"
                )
            if computed + hit + new > request.num_tokens:
                raise InvalidArgumentError(
                    f"num_new_tokens: a recurrent state must not run ahead of the {request.num_tokens} known tokens"
                )

    def _can_go_back(self, tables: RequestTables, computed: i64) -> bool:
        """Say whether what the tokens from `computed` on read is still there."""
        if self._exact:
            return False
        at: i64 = 0
        while at < self._num_groups:
            if self.managers[at].first_kept(computed) < tables.groups[at].num_trimmed:
                return False
            at += 1
        return True

    def _check_hit(
        self, request: Request, tables: RequestTables | None, num_new_computed_tokens: int, blocks: KVCacheBlocks | None
    ) -> i64:
        """Check a hit's shape; return its tokens."""
        expected: i64 = 0
        if blocks is not None:
            if not blocks.pool_is(self.block_pool):
                if any([len(ids) for ids in blocks.ids]):
                    raise StaleHitError("new_computed_blocks: the hit is another manager's")
            elif len(blocks.ids) != len(self.managers):
                raise StaleHitError(
                    f"new_computed_blocks: {len(blocks.ids)} groups, the manager has {len(self.managers)}"
                )
            else:
                expected = i64(len(blocks.ids[0])) * self.managers[0]._block_size
                for manager, ids in zip(self.managers, blocks.ids):
                    if i64(len(ids)) * manager._block_size != expected:
                        raise StaleHitError("new_computed_blocks: the groups' hits differ in length")
        if num_new_computed_tokens != int(expected):
            raise StaleHitError(
                f"num_new_computed_tokens: the hit holds {expected} tokens, not {num_new_computed_tokens}; "
                "pass both as get_computed_blocks returned them"
            )
        if expected == 0:
            return 0
        if tables is not None:
            raise InvalidArgumentError(
                f"new_computed_blocks: request {request.request_id!r} runs already; only a new request adopts a hit"
            )
        if request._block_size == 0:
            raise InvalidArgumentError(
                f"request: {request.request_id!r} was made without block_size, so it has no keys and adopts no hit"
            )
        if not self.enable_caching:
            raise InvalidArgumentError("new_computed_blocks: the manager was made without enable_caching")
        if request.num_computed_tokens != 0:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be 0 before a hit is adopted, not {request.num_computed_tokens}"
            )
        if expected >= request.num_tokens:
            raise StaleHitError(
                f"num_new_computed_tokens: a hit of {expected} leaves no token to compute of {request.num_tokens}"
            )
        return expected

    def _units(self, request: Request, manager: SingleTypeKVCacheManager) -> i64:
        """Return hashed units per block, after checking that the request's keys will do."""
        return self.block_pool.units_for(request, manager._block_size)

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
        pool = self.block_pool
        pool.check()
        keyed = [pool.is_published(block) for block in range(pool.num_blocks)]
        holders = zeros32(pool.num_blocks)
        for number, manager in enumerate(self.managers):
            tables = manager.all_tables()
            demand("TABLE-1", "requests with a table", list(self._running), list(tables))
            count_holders(list(tables.values()), holders)
            for name, running in self._running.items():
                table = running.groups[number]
                check_table(name, table, manager.is_row(), manager.most_states(), keyed)
                covered = min(len(table.blocks), int(manager.entries_for(running.num_written)))
                demand(
                    "TABLE-1",
                    f"entries that cover what is written of request {name!r}",
                    int(manager.entries_for(running.num_written)),
                    covered,
                )
        counts = [int(n) for n in holders]
        demand("REF-1", "holders of each block in the tables, and its counter", counts, pool.ref_counts())
        shared = [block for block in range(1, pool.num_blocks) if counts[block] > 1 and not keyed[block]]
        demand("WRITE-1", "unpublished blocks with several holders", [], shared)


def counts_of(name: str, given: int | Sequence[int], size: i64) -> vec[i64]:
    """Return one count per request, each within what 64 bits hold safely."""
    if isinstance(given, int):
        count: i64 = count_of(name, given)
        return vec[i64]([count] * size)
    counts = vec[i64](capacity=size)
    for each in given:
        counts = append(counts, count_of(name, each))
    if i64(len(counts)) != size:
        raise InvalidArgumentError(f"{name}: {len(counts)} counts for {size} requests; give one each, or one for all")
    return counts


def count_of(name: str, given: int) -> i64:
    """Return a count, checked to be an integer in a safe range."""
    if not isinstance(given, int) or given < 0 or given > MAX_LENGTH:
        raise InvalidArgumentError(f"{name}: must be an integer within 0..{MAX_LENGTH}, not {given!r}")
    return given

"""The requests that run, and the one way in which they get slots.

One call's order, the same for a single request and for a batch:

    check the arguments            errors leave everything as it was
    count                          new blocks + free hits, as if dead entries were already trimmed
    refuse                         None, and nothing changed, the trim included
    prepare                        all memory that is needed; a MemoryError leaves everything as it was
    trim, adopt, take, publish     cannot fail any more; if they do all the same (an interrupt in uncompiled code, no
                                   memory for events), no later call is served: `InterruptedCallError`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.check import check_table, count_blocks, count_holders, demand
from blockwright.core.index import cut_to, with_room, zeros32
from blockwright.core.managers import SingleTypeKVCacheManager
from blockwright.core.plan import Ask
from blockwright.core.pool import BlockPool
from blockwright.core.request import Request, no_request
from blockwright.core.steps import StepInFlight, held_blocks
from blockwright.core.tables import GroupTable, RequestTables
from blockwright.core.window import FOR_EVER
from blockwright.errors import (
    DuplicateRequestError,
    UnknownRequestError,
)

NOT_RUN: Final = -1
"""Where a step stopped that has still to run."""

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
        most_drafts: i64,
        source: RunningRequests | None,
    ) -> None:
        """Start without requests, or with those of `source`, whose tables `managers` have copied.

        `most_drafts`: drafts that every recurrent layer can take back, -1 where there is no such layer.
        """
        _owners[0] += 1
        self._owner: i64 = _owners[0]
        self.block_pool = pool
        self.managers = managers
        self.enable_caching: bool = pool.enable_caching
        self._num_groups: i64 = len(managers)
        self._max_len: i64 = max_model_len
        self._least_size: i64 = min([manager.block_size for manager in managers])
        self._hash_size: i64 = math.gcd(*[manager.block_size for manager in managers if not manager.is_encoder])
        self._most_drafts = most_drafts
        self._running: dict[str, RequestTables] = {}
        self._batches: i64 = 0
        # Time: whether steps are kept apart, those in flight, and whether publication waits for settlement.
        self._overlaps = False
        self._settles = False
        self._watermark: i64 = 0
        self._num_steps: i64 = 0
        self._steps: list[StepInFlight] = []
        self._loads: dict[str, list[vec[i32]]] = {}
        # Requests whose last step leaves a recurrent state, which is published once it has run; the chain goes through
        # themselves, so that it takes no memory. law: MAMBA-5.
        self._first_due: RequestTables | None = None
        self._last_due: RequestTables | None = None
        # What the last step did, per group: entries held before it, and where its nulled entries end.
        self._held: vec[i32] = zeros32(len(managers))
        self._nulled_ends: vec[i32] = zeros32(len(managers))
        self._nulled: vec[i32] = vec[i32]()
        self._replaced: vec[i32] = vec[i32]()
        self._num_forks: i64 = 0
        self._nothing: KVCacheBlocks = KVCacheBlocks(pool, [vec[i32]() for _ in managers])
        if source is not None:
            for name, tables in source._running.items():
                groups = [manager.existing(name) for manager in managers]
                twin = tables.copy_for(self._owner, groups)
                if source._settles:  # settlement publishes what the request knows, which is not to change with another
                    twin.request = tables.request.copy()
                self._running[name] = twin
            source.block_pool.require_whole()
            self._overlaps = source._overlaps
            self._settles = source._settles
            self._watermark = source._watermark
            self._num_forks = source._num_forks
            self._num_steps = source._num_steps
            self._steps = [step.copy_for(self._owner, self._running) for step in source._steps]
            self._loads = source._loads.copy()
            for tables in source._all_due():
                self._make_due(self._running[tables.request_id])

    # ------------------------------------------------------------------ count, then act

    def _fits(self, request: Request, tables: RequestTables | None, ask: Ask) -> bool:
        """Count what a checked ask takes, and say whether the pool has it; nothing changes. law: PLAN-1."""
        self.block_pool.require_whole()
        ask.slots = min(ask.stop + ask.ahead, self._max_len)
        ask.demand = 0
        if tables is None:
            ask.settled = ask.begin
            self._count_new(request, ask)
            if ask.most > self.block_pool.num_blocks - 1:
                return False
        else:
            ask.settled = tables.num_settled if self._overlaps else ask.begin
            most = self._num_groups * (max(0, ask.slots - tables.num_written) // self._least_size + 2)
            if most <= self.block_pool._num_free and not ask.is_planned:
                return True  # however the groups share the new slots, there is more than enough
            self._count_running(tables, ask)
        return ask.missing <= 0

    def _count_new(self, request: Request, ask: Ask) -> None:
        """Count for a request that does not run yet: new blocks, states of drafts, and hits that are free now."""
        hit = ask.hit
        own: i64 = 0
        whole: i64 = 0
        shared: i64 = 0
        tokens = max(request._num_prompt + i64(len(request._output)), ask.slots)
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            held: i64 = 0
            live: i64 = 0
            if ask.hit_length > 0:
                held = ask.hit_length // manager._block_size
                live = held - manager.first_kept(ask.hit_length)
                own += live
            if self.enable_caching and request._block_size > 0:
                units = self._units(request, manager)
                if hit is not None:
                    free = manager.check_hit(hit.ids[at], request.keys(units))
                    ask.demand += free
                    if manager.keeps_all:
                        shared += live - free
            missing = manager.missing(held, manager.reach(ask)) + manager.num_states
            ask.demand += missing
            own += missing
            if ask.is_whole:
                whole += manager.peak(tokens, ask)
            at += 1
        pool = self.block_pool
        spare = self._watermark + ask.reserve
        if pool._num_free == pool._count - 1:
            spare = 0
        ask.most = max(own, whole)
        ask.missing = max(ask.demand, whole - shared) + spare - pool._num_free

    def _count_running(self, tables: RequestTables, ask: Ask) -> None:
        """Count for a running request, as if its dead entries were already trimmed."""
        gain: i64 = 0
        demand: i64 = 0
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            demand += manager.missing(len(table.blocks), manager.reach(ask))
            if tables.is_forked and manager.shared_entry(table, ask) >= 0:
                demand += 1
            if manager.trims(table, ask.settled):
                gain += manager.trim_gain(table, ask.settled)
            at += 1
        ask.demand = demand
        ask.missing = demand - self.block_pool._num_free - gain

    def _step(self, request: Request, tables: RequestTables | None, ask: Ask) -> KVCacheBlocks:
        """Do what was counted, and return the new blocks."""
        self._note_held(tables)
        has_begun = False
        try:
            ready = self._prepare(request, tables, ask)
            given = self._room_for(ready)
            if self._overlaps and ask.new > 0:  # the last that takes memory
                self._steps[-1].fly(ready, ask.new, ask.drafts)
            has_begun = True
            self._act(request, ready, ask, tables is None)
            self._nulled = vec[i32]()
            self._replaced = vec[i32]()
            at: i64 = 0
            while at < i64(len(given.ids)):
                ids = given.ids[at]
                blocks = ready.groups[at].blocks
                held: i64 = i64(self._held[at])
                i: i64 = 0
                while i < i64(len(ids)):
                    ids[i] = blocks[held + i]
                    i += 1
                at += 1
        except BaseException:
            self._undo(request, tables, has_begun)
            raise
        return given

    def _room_for(self, ready: RequestTables) -> KVCacheBlocks:
        """Return a result with room for the entries that a step appends."""
        grown = False
        ids: list[vec[i32]] = []
        at: i64 = 0
        while at < self._num_groups:
            more = i64(len(ready.groups[at].blocks)) - i64(self._held[at])
            grown = grown or more > 0
            ids.append(zeros32(more))
            at += 1
        return KVCacheBlocks(self.block_pool, ids) if grown else self._nothing

    def _prepare(self, request: Request, tables: RequestTables | None, ask: Ask) -> RequestTables:
        """Take all the memory that doing what was counted needs; what a caller can see does not change.

        Appends null entries for the blocks to come, and to ``self._nulled`` the entries that trimming will null; leaves
        in ``self._nulled_ends`` where those of each group end. The caller has noted what is held (`_note_held`), and
        empties ``self._nulled`` and ``self._replaced``.
        """
        at: i64 = 0
        if tables is None:
            tables = self._opened(request, ask)
            self._note_held(tables)
        if tables.owner != 0 and ask.settled >= tables.trim_at:
            at = 0
            while at < self._num_groups:
                self._nulled = self.managers[at].dying(tables.groups[at], ask.settled, self._nulled)
                self._nulled_ends[at] = i32(len(self._nulled))
                at += 1
        if tables.is_forked:
            self.block_pool.reserve_copies(self._num_groups)
            self._replaced = with_room(self._replaced, 3 * self._num_groups)
        at = 0
        while at < self._num_groups:
            table = tables.groups[at]
            if table.quiet < ask.slots:
                manager = self.managers[at]
                manager.widen(table, manager.reach(ask))
            at += 1
        return tables

    def _note_held(self, tables: RequestTables | None) -> None:
        """Leave in ``self._held`` the entries that each group's table has before a step, the hit included."""
        if tables is None:
            return
        end = i32(len(self._nulled))
        at: i64 = 0
        while at < self._num_groups:
            self._held[at] = i32(len(tables.groups[at].blocks))
            self._nulled_ends[at] = end
            at += 1

    def _opened(self, request: Request, ask: Ask) -> RequestTables:
        """Enter a new request with its hit, of which nothing is held yet."""
        groups: list[GroupTable] = []
        hit = ask.hit
        at: i64 = 0
        while at < self._num_groups:
            groups.append(self.managers[at].headed(None if hit is None else hit.ids[at]))
            at += 1
        tables = RequestTables(request, 0, groups)
        at = 0
        while at < self._num_groups:
            self.managers[at].open(request._request_id, groups[at])
            at += 1
        self._running[request._request_id] = tables
        return tables

    def _undo(self, request: Request, tables: RequestTables | None, has_begun: bool) -> None:
        """Take back what `_prepare` did, however far it came; if the change itself has begun, refuse later calls."""
        if has_begun:
            self._tear()
            return
        try:
            self._nulled = vec[i32]()
            self._replaced = vec[i32]()
            if self._overlaps and len(self._steps) > 0:
                self._steps[-1].ground(self._running.get(request._request_id))
            if tables is None:
                for manager in self.managers:
                    manager.withdraw(request._request_id)
                if request._request_id in self._running:
                    del self._running[request._request_id]
                return
            at: i64 = 0
            while at < self._num_groups:
                table = tables.groups[at]
                table.blocks = cut_to(table.blocks, i64(self._held[at]))
                at += 1
        except BaseException:
            self._tear()
            raise

    def _act(self, request: Request, tables: RequestTables, ask: Ask, is_new: bool) -> None:
        """Do what was counted and prepared: trim or adopt in all groups, and then take and publish. Takes no memory.

        Appends the entries that are copied to ``self._replaced``.
        """
        if is_new:
            self._admit(request, tables, ask)
        else:
            self._trim(tables, ask.settled)
            if tables.is_forked:
                self._unshare(tables, ask)
        publishes = self.enable_caching and not (ask.is_delayed or self._settles or ask.external > 0)
        known: i64 = request._num_prompt + i64(len(request._output))
        quiet: i64 = self._max_len
        is_due = False
        at: i64 = 0
        while at < self._num_groups:
            table = tables.groups[at]
            # law: STEP-1
            if table.quiet < ask.slots:
                manager = self.managers[at]
                if manager.num_states > 0:
                    read = manager.state_block(table, ask.begin)
                    table.num_read = ask.begin
                    table.read_block = read
                manager.fill(table, manager.reach(ask), i64(self._held[at]))
                if publishes:
                    self._publish(manager, table, request, min(ask.stop, known), NOT_RUN)
                    is_due = is_due or (ask.new > 0 and ask.certain <= known and manager.leaves_state(ask.certain))
                table.quiet = manager.quiet_slots(table, self.enable_caching)
            quiet = min(quiet, table.quiet)
            at += 1
        if is_new:
            for manager, table in zip(self.managers, tables.groups):
                manager.fill_states(table)
        self._publish_state(tables, request)
        if is_due:
            tables.request = request  # it knows the tokens that the state stands for
            self._make_due(tables)
        if ask.external > 0:
            quiet = 0
        tables.quiet = min(quiet, tables.trim_at - 1)
        tables.num_loading = ask.external
        self._count_step(request, tables, ask.stop - ask.external, ask.new, ask.drafts)

    def _unshare(self, tables: RequestTables, ask: Ask) -> None:
        """Copy what the step writes to and others hold too, all groups before any grows. law: WRITE-2, COPY-1."""
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            entry = manager.shared_entry(table, ask)
            if entry >= 0:
                block = manager.unshare(table, entry)
                self._replaced = append(append(append(self._replaced, i32(at)), i32(entry)), i32(block))
            at += 1
        tables.is_forked = False

    def _is_quiet(self, request: Request, tables: RequestTables, new: i64, ahead: i64) -> bool:
        """Say whether a step without drafts is right and changes only counts; False where that takes a closer look."""
        given = request._num_computed
        if given != int(tables.num_written) and not int(tables.num_certain) <= given < int(tables.num_written):
            return False
        begin: i64 = given
        if new == 0 or begin + new + ahead > tables.quiet:
            return False
        return not self._overlaps or (len(self._steps) > 0 and tables.last_step != self._num_steps)

    def _count_step(self, request: Request, tables: RequestTables, written: i64, new: i64, drafts: i64) -> None:
        """Count the tokens of a step as written."""
        # law: LEN-1
        known: i64 = request._num_prompt + i64(len(request._output))
        tables.num_written = written
        tables.num_certain = max(written - new, min(written, known))
        tables.num_drafts = drafts
        if self._overlaps:
            tables.num_certain = written
            if new > 0:
                tables.last_step = self._num_steps

    def _count_quiet(self, request: Request, tables: RequestTables, new: i64) -> None:
        """Serve a step that changes only counts."""
        has_begun = False
        try:
            if self._overlaps:
                self._steps[-1].fly(tables, new, 0)
            has_begun = True
            self._count_step(request, tables, request._num_computed + new, new, 0)
        except BaseException:
            if has_begun:
                self._tear()
            elif self._overlaps:
                self._steps[-1].ground(tables)
            raise

    def _admit(self, request: Request, tables: RequestTables, ask: Ask) -> None:
        """Hold a new request's hit, all groups' before any group grows."""
        hit = ask.hit
        if hit is not None:
            at: i64 = 0
            while at < self._num_groups:
                self.managers[at].adopt(hit.ids[at])
                at += 1
        trim_at: i64 = FOR_EVER
        for manager, table in zip(self.managers, tables.groups):
            trim_at = min(trim_at, manager.trim_at(table))
        tables.trim_at = trim_at
        tables.num_settled = ask.begin
        tables.owner = self._owner
        request._held = tables

    def _trim(self, tables: RequestTables, settled: i64) -> None:
        """Trim a running request's tables, all groups before any grows."""
        if settled < tables.trim_at:
            return
        trim_at: i64 = FOR_EVER
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            manager.trim(table, settled, i64(self._held[at]))
            trim_at = min(trim_at, manager.trim_at(table))
            at += 1
        tables.trim_at = trim_at

    def _publish(
        self, manager: SingleTypeKVCacheManager, table: GroupTable, request: Request, count: i64, stopped: i64
    ) -> None:
        """Publish what the first `count` tokens filled, all of them known and written.

        A recurrent layer's state only if a step that has run stopped there, after `stopped` tokens.
        """
        if manager.publishes(table, count) and request._block_size > 0:
            manager.publish(table, request, manager._block_size // request._block_size, count, stopped)

    def _publish_state(self, tables: RequestTables, request: Request) -> None:
        """Publish the state that a request's last step left, if any, now that the step has run. law: MAMBA-5.

        Not before: a request that hit it in the same step would read it while it is written. Other layers may be hit at
        once, since each writes what the step computes in it before it reads.
        """
        if not self._take_due(tables):
            return
        stopped = tables.num_written - tables.num_drafts
        for manager, table in zip(self.managers, tables.groups):
            if not manager.is_row():
                self._publish(manager, table, request, stopped, stopped)

    def _publish_states(self) -> None:
        """Publish the states that all steps up to now have left, in their order. O(requests that left one)."""
        tables = self._first_due
        while tables is not None:
            self._publish_state(tables, tables.request)
            tables = self._first_due

    def _make_due(self, tables: RequestTables) -> None:
        """Note that a request's last step leaves a state, after all others; takes no memory. O(1)."""
        self._take_due(tables)
        last = self._last_due
        if last is None:
            self._first_due = tables
        else:
            last.due_after = tables
        tables.due_before = last
        tables.is_due = True
        self._last_due = tables

    def _take_due(self, tables: RequestTables) -> bool:
        """Say whether a state of a request is due; from now on it is not. O(1)."""
        if not tables.is_due:
            return False
        before = tables.due_before
        after = tables.due_after
        if before is None:
            self._first_due = after
        else:
            before.due_after = after
        if after is None:
            self._last_due = before
        else:
            after.due_before = before
        tables.due_before = None
        tables.due_after = None
        tables.is_due = False
        return True

    def _all_due(self) -> list[RequestTables]:
        """Return the requests of which a state is due, in order. O(requests returned)."""
        found: list[RequestTables] = []
        tables = self._first_due
        while tables is not None:
            found.append(tables)
            tables = tables.due_after
        return found

    # ------------------------------------------------------------------ release

    def _vacate(self, tables: RequestTables, computed: i64) -> None:
        """Release all a request holds; behind a fence while a step or a load still touches it. law: REF-1, FENCE-1.

        A state of its last step is published only if that has run: it is not in flight, and `computed` says so.
        """
        in_flight = len(self._steps) > 0 and tables.last_step >= self._steps[0].number
        # law: FLIGHT-1
        waits = in_flight or tables.num_loading > 0
        batch: list[vec[i32]] = [held_blocks(table) for table in tables.groups] if waits else []
        has_begun = False
        fenced = self._steps[int(tables.last_step - self._steps[0].number)].fenced if in_flight else []
        try:
            if in_flight:
                fenced.append(batch)
            elif waits:
                self._loads[tables.request_id] = batch
            has_begun = True
            if not in_flight and computed >= tables.num_written - tables.num_drafts:
                self._publish_state(tables, tables.request)
            self._take_due(tables)
            for manager, table in zip(self.managers, tables.groups):
                if not waits:
                    manager.release(table)
                manager.close(tables.request_id)
            del self._running[tables.request_id]
            tables.owner = 0
        except BaseException:
            if has_begun:
                self._tear()
            elif len(fenced) > 0 and fenced[-1] is batch:
                fenced.pop()
            elif waits and tables.request_id in self._loads:
                del self._loads[tables.request_id]
            raise

    def _return(self, batch: list[vec[i32]]) -> None:
        """Release a batch that waited behind a fence, in the order in which it would have been at once."""
        for blocks in batch:
            self.block_pool.release(blocks, 0, i64(len(blocks)))

    def _waiting(self) -> list[vec[i32]]:
        """Return the blocks held for a step in flight whose request is gone, and for loads. O(requests + batches)."""
        batches: list[vec[i32]] = []
        for step in self._steps:
            for given_up in step.fenced:
                batches += given_up
        for given_up in self._loads.values():
            batches += given_up
        for tables in self._running.values():
            if tables.num_loading > 0:
                batches += [table.blocks for table in tables.groups]
        return batches

    # ------------------------------------------------------------------ who runs

    def _tables_of(self, request: Request) -> RequestTables | None:
        """Return what a request holds here, or None.

        Raises:
            DuplicateRequestError: another request runs under its id.
        """
        if not isinstance(request, Request):
            raise no_request(request)
        held = request._held
        if held is not None and held.owner == self._owner and isinstance(held, RequestTables):
            return held
        return self._look_up(request)

    def _tear(self) -> None:
        """Refuse later calls: one has ended in the middle of a change."""
        self._owner = -1  # so that every request is looked up
        self.block_pool.tear()

    def _look_up(self, request: Request) -> RequestTables | None:
        """Do as `_tables_of`, by name; the request then remembers it."""
        self.block_pool.require_whole()
        tables = self._running.get(request.request_id)
        if tables is None:
            self._give_keys(request)
            return None
        if tables.uid != request._uid:
            raise DuplicateRequestError(
                f"request: another request runs under the id {request.request_id!r}; free it first"
            )
        request._held = tables
        tables.request = request
        return tables

    def _give_keys(self, request: Request) -> None:
        """Hash a request that was made without a block size of its own, where that is worth something."""
        if self.enable_caching and request._block_size < 0:
            request.hash_by(self._hash_size)

    def _units(self, request: Request, manager: SingleTypeKVCacheManager) -> i64:
        """Return hashed units per block, after checking that the request's keys will do."""
        return self.block_pool.units_for(request, manager._block_size)

    def _named(self, request_id: str) -> RequestTables:
        """Return what a request holds, or raise `UnknownRequestError`."""
        self.block_pool.require_whole()
        tables = self._running.get(request_id)
        if tables is None:
            raise UnknownRequestError(f"request_id: {request_id!r} holds no blocks here")
        return tables

    def _require(self, request: Request) -> RequestTables:
        """Return what a request holds, or raise `UnknownRequestError`."""
        self.block_pool.require_whole()
        tables = self._tables_of(request)
        if tables is None:
            raise UnknownRequestError(f"request: {request.request_id!r} holds no blocks here")
        return tables

    # ------------------------------------------------------------------ self-check

    def _covered(self, tables: RequestTables, manager: SingleTypeKVCacheManager) -> i64:
        """Return the slots that a table must cover."""
        if manager.is_encoder:
            return 0
        if manager.is_row():
            return tables.num_written + tables.num_loading
        return tables.num_written + tables.num_loading - tables.num_drafts

    def check(self, held_elsewhere: Mapping[int, int] | None = None) -> None:
        """Recompute every invariant from scratch: counters, queue, index, tables. O(num_blocks + blocks held).

        What is held through the pool's own names (`BlockPool.touch`), as a connector does, is counted as the pool has
        noted it. `held_elsewhere` says how often each block should be held so: the check then compares that too.

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
                check_table(name, table, manager.is_row(), manager.most_states(self._overlaps), keyed)
                states = [int(block) for block in table.states]
                demand("MAMBA-3", f"states of drafts of request {name!r}", int(manager.num_states), len(states))
                covered = int(manager.entries_for(self._covered(running, manager)))
                demand(
                    "TABLE-1",
                    f"entries that cover what is written of request {name!r}",
                    covered,
                    min(len(table.blocks), covered),
                )
        for step in self._steps:
            for batch in step.fenced:
                count_blocks(batch, holders)
        for batch in self._loads.values():
            count_blocks(batch, holders)
        sharers = [int(n) for n in holders]
        for _, source, destination in pool.pending_copies():
            holders[source] += 1
            holders[destination] += 1
        pinned: dict[int, int] = {}
        for block in range(pool.num_blocks):
            times = pool.num_apart(block)
            if times != 0:
                pinned[block] = int(times)
                holders[i64(block)] += i32(times)
        if held_elsewhere is not None:
            demand("REF-1", "how often each block is held through the pool's names", dict(held_elsewhere), pinned)
        unheld = [block for block, times in pinned.items() if times < 0]
        demand("REF-1", "blocks released through the pool's names that were not held so", [], unheld)
        counts = [int(n) for n in holders]
        demand("REF-1", "holders of each block in the tables, and its counter", counts, pool.ref_counts())
        alone = [block for block in range(1, pool.num_blocks) if sharers[block] > 1 and not keyed[block]]
        for name, running in self._running.items():
            for manager, table in zip(self.managers, running.groups):
                entry = manager.partial_entry(table, running)
                shared = entry >= 0 and sharers[i64(table.blocks[entry])] > 1 and not running.is_forked
                demand("WRITE-1", f"request {name!r} shares the block it writes next, entry {entry}", False, shared)
        noted = {name for name, running in self._running.items() if running.is_due}
        due = {running.request_id for running in self._all_due()}
        demand("MAMBA-5", "requests that run and of which a state is due", noted, due)
        if self._num_forks == 0:
            demand("WRITE-1", "unpublished blocks with several holders, and no request was forked", [], alone)

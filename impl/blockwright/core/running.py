"""The requests that run, and the one way in which they get slots.

One call's order, the same for a single request and for a batch:

    check the arguments            errors leave everything as it was
    count                          new blocks + free hits, as if dead entries were already trimmed
    refuse                         None, and nothing changed, the trim included
    trim, adopt, take, publish     cannot fail any more
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.blocks import KVCacheBlocks
from blockwright.core.check import check_table, count_blocks, count_holders, demand
from blockwright.core.index import zeros32
from blockwright.core.managers import SingleTypeKVCacheManager
from blockwright.core.plan import Ask
from blockwright.core.pool import BlockPool
from blockwright.core.request import Request
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
        # Requests whose last step leaves a recurrent state, which is published once it has run. law: MAMBA-5.
        self._due: dict[str, RequestTables] = {}
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
            self._overlaps = source._overlaps
            self._settles = source._settles
            self._watermark = source._watermark
            self._num_forks = source._num_forks
            self._num_steps = source._num_steps
            self._steps = [step.copy_for(self._owner, self._running) for step in source._steps]
            self._loads = source._loads.copy()
            self._due = {name: self._running[name] for name in source._due}

    # ------------------------------------------------------------------ count, then act

    def _fits(self, request: Request, tables: RequestTables | None, ask: Ask) -> bool:
        """Count what a checked ask takes, and say whether the pool has it; nothing changes. law: PLAN-1."""
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

    def _act(self, request: Request, tables: RequestTables | None, ask: Ask) -> RequestTables:
        """Do what was counted: trim or adopt in all groups, and then take, publish and fly. Cannot fail.

        Leaves in ``self._held`` the entries that each group's table had before (the hit included), appends the entries
        that trimming nulled to ``self._nulled``, which the caller empties, and their ends to ``self._nulled_ends``.
        Entries that were copied are appended to ``self._replaced``, which the caller empties too.
        """
        is_new = False
        if tables is None:
            is_new = True
            tables = self._admit(request, ask)
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
            self._held[at] = i32(len(table.blocks))
            if table.quiet < ask.slots:
                manager = self.managers[at]
                if manager.num_states > 0:
                    read = manager.state_block(table, ask.begin)
                    table.num_read = ask.begin
                    table.read_block = read
                manager.grow(table, manager.reach(ask))
                if publishes:
                    self._publish(manager, table, request, min(ask.stop, known), NOT_RUN)
                    is_due = is_due or (ask.new > 0 and ask.certain <= known and manager.leaves_state(ask.certain))
                table.quiet = manager.quiet_slots(table, self.enable_caching)
            quiet = min(quiet, table.quiet)
            at += 1
        if is_new:
            for manager, table in zip(self.managers, tables.groups):
                manager.take_states(table)
        if len(self._due) > 0:
            self._publish_state(tables, request)
        if is_due:
            tables.request = request  # it knows the tokens that the state stands for
            self._due[request.request_id] = tables
        if ask.external > 0:
            quiet = 0
        tables.quiet = min(quiet, tables.trim_at - 1)
        tables.num_loading = ask.external
        self._count_step(request, tables, ask.stop - ask.external, ask.new, ask.drafts)
        return tables

    def _unshare(self, tables: RequestTables, ask: Ask) -> None:
        """Copy what the step writes to and others hold too, all groups before any grows. law: WRITE-2, COPY-1."""
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            entry = manager.shared_entry(table, ask)
            if entry >= 0:
                for part in (at, entry, manager.unshare(table, entry)):
                    self._replaced = append(self._replaced, i32(part))
            at += 1
        tables.is_forked = False

    def _is_quiet(self, request: Request, tables: RequestTables, new: i64, ahead: i64) -> bool:
        """Say whether a step without drafts is right and changes only counts; False where that takes a closer look."""
        given = request.num_computed_tokens
        if given != int(tables.num_written) and not int(tables.num_certain) <= given < int(tables.num_written):
            return False
        begin: i64 = given
        if new == 0 or begin + new + ahead > tables.quiet:
            return False
        return not self._overlaps or (len(self._steps) > 0 and tables.last_step != self._num_steps)

    def _count_step(self, request: Request, tables: RequestTables, written: i64, new: i64, drafts: i64) -> None:
        """Count the tokens of a step as written, and record it where steps are kept apart."""
        # law: LEN-1
        known: i64 = request._num_prompt + i64(len(request._output))
        tables.num_written = written
        tables.num_certain = max(written - new, min(written, known))
        tables.num_drafts = drafts
        if self._overlaps:
            tables.num_certain = written
            if new > 0:
                self._steps[-1].fly(tables, new, drafts)

    def _admit(self, request: Request, ask: Ask) -> RequestTables:
        """Open a new request's tables with its hit, all groups' before any group grows, and take its states after."""
        groups: list[GroupTable] = []
        hit = ask.hit
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = manager.open(request.request_id)
            if hit is not None:
                manager.adopt(table, hit.ids[at])
            groups.append(table)
            self._nulled_ends[at] = i32(len(self._nulled))
            at += 1
        tables = RequestTables(request, self._owner, groups)
        tables.trim_at = min([manager.trim_at(table) for manager, table in zip(self.managers, groups)])
        tables.num_settled = ask.begin
        self._running[request.request_id] = tables
        request._held = tables
        return tables

    def _trim(self, tables: RequestTables, settled: i64) -> None:
        """Trim a running request's tables, all groups before any grows."""
        ends = self._nulled_ends
        if settled < tables.trim_at:
            at: i64 = 0
            end = i32(len(self._nulled))
            while at < self._num_groups:
                ends[at] = end
                at += 1
            return
        trim_at: i64 = FOR_EVER
        at = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            self._nulled = manager.trim(table, settled, self._nulled)
            ends[at] = i32(len(self._nulled))
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
            manager.publish(table, request.keys(manager._block_size // request._block_size), count, stopped)

    def _publish_state(self, tables: RequestTables, request: Request) -> None:
        """Publish the state that a request's last step left, if any, now that the step has run. law: MAMBA-5.

        Not before: a request that hit it in the same step would read it while it is written. Other layers may be hit at
        once, since each writes what the step computes in it before it reads.
        """
        if self._due.pop(tables.request_id, None) is None:
            return
        stopped = tables.num_written - tables.num_drafts
        for manager, table in zip(self.managers, tables.groups):
            if not manager.is_row():
                self._publish(manager, table, request, stopped, stopped)

    def _publish_states(self) -> None:
        """Publish the states that all steps up to now have left, in their order. O(requests that left one)."""
        for tables in list(self._due.values()):
            self._publish_state(tables, tables.request)

    # ------------------------------------------------------------------ release

    def _vacate(self, tables: RequestTables, computed: i64) -> None:
        """Release all a request holds; behind a fence while a step or a load still touches it. law: REF-1, FENCE-1.

        A state of its last step is published only if that has run: it is not in flight, and `computed` says so.
        """
        in_flight = len(self._steps) > 0 and tables.last_step >= self._steps[0].number
        if len(self._due) > 0:
            if not in_flight and computed >= tables.num_written - tables.num_drafts:
                self._publish_state(tables, tables.request)
            self._due.pop(tables.request_id, None)
        batch: list[vec[i32]] = []
        at: i64 = 0
        while at < self._num_groups:
            manager = self.managers[at]
            table = tables.groups[at]
            # law: FLIGHT-1
            if in_flight or tables.num_loading > 0:
                batch.append(held_blocks(table))
            else:
                manager.release(table)
            manager.close(tables.request_id)
            at += 1
        if in_flight:
            self._steps[int(tables.last_step - self._steps[0].number)].fenced.append(batch)
        elif tables.num_loading > 0:
            self._loads[tables.request_id] = batch
        del self._running[tables.request_id]
        tables.owner = 0

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
        held = request._held
        if held is not None and held.owner == self._owner and isinstance(held, RequestTables):
            return held
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
        request._held = tables
        tables.request = request
        return tables

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
        for name, due in self._due.items():
            demand("MAMBA-5", f"a state of {name!r} is due, and it runs", True, self._running.get(name) is due)
        if self._num_forks == 0:
            demand("WRITE-1", "unpublished blocks with several holders, and no request was forked", [], alone)

"""The parts that a step is made of, down to `serve`: the whole of a step, or none of it.

One call's order, the same for a single request and for a batch:

    check the arguments            errors leave everything as it was
    count                          new blocks + free hits, as if dead entries were already trimmed
    refuse                         None, and nothing changed, the trim included
    prepare                        all memory that is needed; a MemoryError leaves everything as it was
    trim, adopt, take, publish     cannot fail any more; if they do all the same (an interrupt in uncompiled code, no
                                   memory for events), no later call is served: `InterruptedCallError`
"""

from __future__ import annotations

from typing import final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import cut_to, with_room, with_zeros, zeros32
from blockwright.core.keys.request import Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.listener import TRIMMED
from blockwright.core.steps.publication import conclude, count_step, hear, publish_due
from blockwright.core.steps.state import State
from blockwright.core.steps.units import end_tails, next_tail, own_parts, reserve_tails, save_states, tail_lengths
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.table import GroupTable, RequestTables
from blockwright.core.tables.window import FOR_EVER
from blockwright.core.worth.wanted import ALL, SOME

# ---------------------------------------------------------------------- a step in place


def serve_in_place(state: State, request: Request, tables: RequestTables, new: i64) -> None:
    """Serve a step that changes only counts (`is_in_place`). law: CALL-1."""
    has_begun = False
    try:
        if state.config.overlaps:
            # This alone can fail, so it comes before the counts; then there is nothing to take back.
            state.steps[-1].record(tables, new, 0)
        has_begun = True
        count_step(state, request, tables, request._num_computed + new, new, 0)
    except BaseException:
        if has_begun:
            state.tear()
        elif state.config.overlaps:
            state.steps[-1].strike(tables)
        raise


def only_publishes(state: State, tables: RequestTables, ask: StepRequest) -> bool:
    """Return whether a checked step takes, trims and copies nothing; False where that takes a closer look.

    Half of the steps in decoding that do not only count are such.
    """
    return (
        state.uniform_groups
        and not (state.config.overlaps or tables.is_forked)
        and ask.begin < tables.trim_at
        and ask.stop + ask.ahead <= i64(len(tables.by_group[0].blocks)) * state.config.least_size
        and (state.config.unit == 0 or not (tables.is_due or next_tail(tables) <= ask.stop))
    )


# ---------------------------------------------------------------------- any step


class Answer:
    """What a call answers of its steps."""

    def make_room(self, state: State, ready: RequestTables, ask: StepRequest) -> None:
        """Take the memory to answer a prepared step."""

    def write(self, state: State, ready: RequestTables) -> None:
        """Write down what a step has changed in the tables. Takes no memory."""


@final
class NewBlocks(Answer):
    """The blocks that one step appends.

    Attributes:
        given: the answer of the call.
    """

    def __init__(self, given: KVCacheBlocks) -> None:
        self.given = given

    def make_room(self, state: State, ready: RequestTables, ask: StepRequest) -> None:
        changes = state.changes
        copies = ready.is_forked or ask.hit_length % state.config.whole_alignment != 0
        if changes.grown > 0 or len(changes.nulled) > 0 or copies:
            ids: list[vec[i32]] = []
            at: i64 = 0
            while at < state.config.num_groups:
                ids.append(zeros32(i64(len(ready.by_group[at].blocks)) - changes.held_in(at)))
                at += 1
            self.given = KVCacheBlocks(state.pool, ids)
            if len(changes.nulled) > 0:
                self.given.note(changes.nulled, changes.nulled_each[:], changes.runs, changes.replaced)

    def write(self, state: State, ready: RequestTables) -> None:
        given, changes = self.given, state.changes
        if len(changes.replaced) > 0:
            given.note(given._nulled, given._nulled_each, changes.runs, changes.replaced)
        at: i64 = 0
        while changes.grown > 0 and at < i64(len(given.ids)):
            ids = given.ids[at]
            blocks = ready.by_group[at].blocks
            held = i64(len(blocks)) - i64(len(ids))
            i: i64 = 0
            while i < i64(len(ids)):
                ids[i] = blocks[held + i]
                i += 1
            at += 1


def serve(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> KVCacheBlocks:
    """Carry out a step that fits as the only one of its call, and return the new blocks."""
    state.changes.clear()
    state.listeners.begins()
    answer = NewBlocks(state.nothing)
    give(state, request, tables, ask, answer)
    return answer.given


def give(state: State, request: Request, tables: RequestTables | None, ask: StepRequest, answer: Answer) -> None:
    """Carry out a step that was checked and fits: each that does more than count is prepared, recorded and done here.

    The caller has made the keys of the blocks that it fills. An error before anything has changed is undone.
    """
    changes = state.changes
    changes.begin(tables, state.uniform_groups)
    try:
        if tables is not None and only_publishes(state, tables, ask):
            changes.has_begun = True
            state.listeners.goes_on(tables, ask.settled)
            state.listeners.filled(tables, ask)
            conclude(state, request, tables, ask)
            return
        ready = prepare(state, request, tables, ask, changes)
        answer.make_room(state, ready, ask)
        if state.config.overlaps and ask.new > 0:  # the last that takes memory
            state.steps[-1].record(ready, ask.new, ask.drafts)
        # From here on nothing takes memory, so that an error can only come from outside: an interrupt, or an event.
        changes.has_begun = True
        act(state, request, ready, ask, tables is None, changes)
        answer.write(state, ready)
    except BaseException:
        undo(state, request, tables, changes, changes.has_begun)
        raise


def prepare(
    state: State, request: Request, tables: RequestTables | None, ask: StepRequest, changes: StepScratch
) -> RequestTables:
    """Take all the memory that the step needs; a caller sees no change yet.

    Appends null entries for the blocks to come, and to `changes`, which the caller has begun with these tables, the
    entries that trimming will null. `undo` takes all of it back.
    """
    if state.config.unit > 0:
        reserve_tails(state, tables)
    if tables is None:
        return open_tables(state, request, ask, changes)
    if ask.settled >= tables.trim_at:
        note_dead(state, tables, ask.settled, changes)
    if tables.is_forked:
        state.pool._reserve_copies(state.config.num_groups)
        # Every group may have to copy the block that the step writes to first, and no more than that one.
        changes.replaced = with_room(changes.replaced, 4 * state.config.num_groups)
    if ask.outgrown > 0:
        state.pool._reserve_copies(2 * state.config.num_groups)
        changes.saved = with_room(changes.saved, ask.outgrown)
    widen(state, tables, ask, changes)
    return tables


def note_dead(state: State, tables: RequestTables, settled: i64, changes: StepScratch) -> None:
    """Note in `changes` the entries that trimming will null, and take room for them."""
    changes.trim_at = FOR_EVER
    changes.num_dead = 0
    runs = changes.runs
    at: i64 = 0
    while at < state.config.num_groups:
        num_dead = state.groups[at].note_dead(tables.by_group[at], settled, changes)
        changes.num_dead += num_dead * (i64(runs[at]) - at)
        at = i64(runs[at])
    changes.make_room()


def note_prompt(state: State, request: Request) -> None:
    """Note a prompt that is admitted, for those that begin alike and for an order. Takes no memory. law: UNIT-9."""
    size, alignment = request._block_size, state.config.alignment
    if size > 0:
        order = state.pool._order
        if order is not None and order.learns and not request._was_admitted:
            block_size = state.groups[0]._block_size
            known = min(request._num_prompt - 1, request.num_keyed())
            order.admit(request._words, 2 * (block_size // size), known // block_size)
        state.last_prompts.note(request._words, request.num_keyed() // alignment * alignment // size)


def widen(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    num_groups = state.config.num_groups
    at: i64 = 0
    if state.uniform_groups:
        # All groups lack the same number of entries, so it is counted once and not asked of each group.
        size = state.config.least_size
        missing = ask.slots - changes.held_each * size
        if missing > 0:
            more: i64 = 1 if missing <= size else (missing + size - 1) // size
            while at < num_groups:
                table = tables.by_group[at]
                table.blocks = append(table.blocks, 0) if more == 1 else with_zeros(table.blocks, more)
                at += 1
            changes.grown = more * num_groups
        return
    runs = changes.runs
    while at < num_groups:
        stop = i64(runs[at])
        if tables.by_group[at].in_place >= ask.slots:
            at = stop
            continue
        group = state.groups[at]
        slots = group.slots_after(ask)
        held = changes.held_in(at)
        while at < stop:
            table = tables.by_group[at]
            group.widen(table, slots)
            if group.runs_ahead:
                table.first_new = group.first_ahead(ask)
            changes.grown += i64(len(table.blocks)) - held
            at += 1


def open_tables(state: State, request: Request, ask: StepRequest, changes: StepScratch) -> RequestTables:
    """Enter a new request with tables of its hit and of null entries for the blocks to come; it holds no block yet."""
    by_group: list[GroupTable] = []
    hit = ask.hit
    trim_at: i64 = FOR_EVER
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        group = state.groups[at]
        ids = vec[i32]() if hit is None else hit.ids[at]
        table = group.table_from_hit(ids, ask.hit_length, ask.resumed, group.slots_after(ask))
        if group.runs_ahead:
            table.first_new = group.first_ahead(ask)
        by_group.append(table)
        trim_at = min(trim_at, group.trim_at(table.num_trimmed))
        changes.held[at] = i32(len(ids))
        changes.grown += i64(len(table.blocks)) - i64(len(ids))
        at += 1
    # No owner yet: until `act`, the request finds no tables and an undo has only names to take back.
    tables = RequestTables(request, 0, by_group)
    tables.trim_at = trim_at
    order = state.pool._order
    tables.tenant = 0 if order is None else order.tenant(request.cache_salt)
    if state.wanted is not None:
        state.wanted.lengths(request, tables, ask)
    if state.hears_prompts and request._block_size > 0:
        request.hash_until(request.num_keyed() // request._block_size)
    if state.config.unit > 0:
        tables.tails = tail_lengths(state, request, ask.begin)
        tables.end_tails = end_tails(state, request, ask.begin)
    if ask.hit_length % state.config.whole_alignment != 0:
        state.pool._reserve_copies(num_groups)
        changes.replaced = with_room(changes.replaced, 4 * num_groups)
    at = 0
    while at < num_groups:
        state.groups[at].open(request._request_id, by_group[at])
        at += 1
    state.running[request._request_id] = tables
    return tables


def undo(state: State, request: Request, tables: RequestTables | None, changes: StepScratch, has_begun: bool) -> None:
    """Take back what `prepare` did, however far it came; if the change itself has begun, refuse later calls."""
    if has_begun:
        state.tear()
        return
    try:
        if state.config.overlaps and len(state.steps) > 0:
            state.steps[-1].strike(state.running.get(request._request_id))
        if tables is None:
            for group in state.groups:
                group.withdraw(request._request_id)
            if request._request_id in state.running:
                del state.running[request._request_id]
            return
        at: i64 = 0
        while at < state.config.num_groups:
            table = tables.by_group[at]
            # Cut in the same memory, because undoing must not need any.
            table.blocks = cut_to(table.blocks, changes.held_in(at))
            at += 1
    except BaseException:
        state.tear()
        raise


def act(
    state: State, request: Request, tables: RequestTables, ask: StepRequest, is_new: bool, changes: StepScratch
) -> None:
    """Carry out a prepared step: trim or adopt in all groups, then take and publish. Takes no memory.

    Appends the entries that are copied to `changes`.
    """
    # Shares depend on whom a block is taken for, so the pool is told before the first is taken.
    state.pool._serve(tables.tenant)
    state.listeners.goes_on(tables, ask.resumed if is_new else ask.settled)
    if is_new:
        if state.wanted is not None:
            state.wanted.learn(ask)
        if state.hears_prompts:
            note_prompt(state, request)
        if ask.hit is not None:  # held in all groups before any grows
            for group, table in zip(state.groups, tables.by_group):
                group.adopt(table.blocks)
        tables.num_settled = ask.begin
        tables.owner = state.owner
        request._held = tables
        if state.config.runs_ahead:
            note_shared(state, tables)
        if ask.hit_length % state.config.whole_alignment != 0:
            own_parts(state, tables, ask, changes)
    else:
        hear(state, request, tables, ask.begin)
        if ask.settled >= tables.trim_at:
            trim_dead(state, tables, changes)
        if tables.is_forked:
            publish_due(state, tables, request)  # of the block that the step before wrote
            unshare(state, tables, ask, changes)
        if ask.outgrown > 0:
            publish_due(state, tables, request)
            save_states(state, tables, ask, changes)
    if is_new or not state.uniform_groups:
        fill_each(state, tables, ask, changes)
    elif changes.grown > 0:
        fill_alike(state, tables, ask, changes)
    if is_new:
        for group, table in zip(state.groups, tables.by_group):
            group.fill_states(table)
    state.listeners.filled(tables, ask)
    conclude(state, request, tables, ask)
    state.listeners.served(request, tables, ask, is_new, changes)


def fill_each(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    at: i64 = 0
    while at < state.config.num_groups:
        stop: i64 = i64(changes.runs[at])
        # law: STEP-1
        if tables.by_group[at].in_place >= ask.slots:
            at = stop
            continue
        held = changes.held_in(at)
        while at < stop:
            group, table = state.groups[at], tables.by_group[at]
            if group.num_states > 0:
                read = group.state_block(table, ask.begin)
                table.num_read = ask.begin
                table.read_block = read
            group.fill(table, group.slots_after(ask), held, ask.checkpoint)
            if group.runs_ahead:
                group.note_saved(table, ask, tables.num_written)
            at += 1


def fill_alike(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Take the blocks of a running request's step where all groups take the same number of them. law: STEP-1."""
    pool, by_group, held = state.pool, tables.by_group, changes.held_each
    num_groups = state.config.num_groups
    if changes.grown == 1:
        by_group[0].blocks[held] = i32(pool._take_one())
        return
    taken = changes.taken
    is_single = changes.grown == num_groups
    if is_single:
        # One run through the free queue for all groups: it reads ahead, which one block at a time cannot.
        pool._fill(taken, 0, num_groups)
    at: i64 = 0
    while at < num_groups:
        table = by_group[at]
        assert (i64(len(table.blocks)) - held) * num_groups == changes.grown, "groups that grow alike take alike"
        if is_single:
            table.blocks[held] = taken[at]
        else:
            pool._fill(table.blocks, held, i64(len(table.blocks)))
        at += 1


def unshare(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Copy shared blocks that the step writes to, in all groups before any grows. law: WRITE-2, COPY-1."""
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        group = state.groups[at]
        table = tables.by_group[at]
        entry = group.shared_entry(table, ask)
        if entry >= 0:
            block = group.unshare(table, entry)
            replaced = append(append(changes.replaced, changes.request), i32(at))
            changes.replaced = append(append(replaced, i32(entry)), i32(block))
        at += 1
    tables.is_forked = False


def note_shared(state: State, adopted: RequestTables) -> None:
    """Have those who run look at their next step whether it writes over a state that a newcomer has hit. law: WRITE-2.

    Layers that run ahead alone may, where no token behind that state is known yet. O(entries) if somebody holds it.
    """
    for at, group in enumerate(state.groups):
        for block in adopted.by_group[at].blocks:  # entries that are to be taken are null yet
            if group.runs_ahead and block != 0 and state.pool.ref_count(i64(block)) > 1:
                for running in state.running.values():
                    if running is not adopted and block in running.by_group[at].blocks:
                        running.is_forked = True
                        running.in_place = 0


def trim_dead(state: State, tables: RequestTables, changes: StepScratch) -> None:
    """Null the dead entries that `changes` notes, list them there, and release their blocks, before any group grows.

    The groups in order, of each its last entry first. law: TRIM-1, REF-1.
    """
    wanted = state.wanted
    needed = ALL
    if wanted is not None:
        needed = wanted.among_dead(tables, changes)
        if needed != SOME:
            wanted.classes.begin(needed == ALL)
    nulled, dead, by_group = changes.nulled, changes.blocks, tables.by_group
    nulls = needed != SOME
    num_nulled = changes.num_nulled
    first = changes.num_dead  # where the entries of a group begin
    at: i64 = 0
    while at < state.config.num_groups:
        run_end: i64 = i64(changes.runs[at])
        start: i64 = i64(changes.dead[at])
        stop: i64 = i64(changes.dead_ends[at])
        count: i64 = i64(changes.nulled_each[at])
        if start == stop:
            at = run_end
        while at < run_end:
            table, group = by_group[at], state.groups[at]
            # Groups are written from the end on, because the pool releases from the end: so the first group's go first.
            first -= count
            put = first
            blocks = table.blocks
            entry = start
            while entry < stop:
                block = blocks[entry]
                if block != 0 and not group.stays(entry):
                    dead[put] = block
                    nulled[num_nulled] = i32(entry)
                    put += 1
                    num_nulled += 1
                    if nulls:
                        blocks[entry] = 0
                entry += 1
            assert put == first + count, "tables of one shape are trimmed alike"
            if nulls:
                table.num_trimmed = stop
            at += 1
    if not nulls:
        trim_each(state, tables, changes)
    elif changes.num_dead > 0:
        state.pool._release(dead, 0, changes.num_dead, TRIMMED)
    if wanted is not None:
        wanted.classes.end()
    tables.trim_at = changes.trim_at


def trim_each(state: State, tables: RequestTables, changes: StepScratch) -> None:
    """Trim a table of which some of the dead entries are wanted, group by group. law: POLICY-4."""
    at: i64 = 0
    while at < state.config.num_groups:
        stop: i64 = i64(changes.dead_ends[at])
        run_end: i64 = i64(changes.runs[at])
        while at < run_end:
            trim_group(state, tables, at, stop)
            at += 1


def trim_group(state: State, tables: RequestTables, at: i64, stop: i64) -> None:
    """Trim the entries of a group before `stop`, all of them dead. O(entries that die)."""
    group, table, wanted = state.groups[at], tables.by_group[at], state.wanted
    if wanted is not None:
        wanted.begin(group, tables.wants)
    group.trim_until(table, stop)
    if wanted is not None:
        wanted.classes.end()

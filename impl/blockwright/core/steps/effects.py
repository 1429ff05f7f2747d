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

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import cut_to, with_room, with_zeros, zeros32
from blockwright.core.keys.request import Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.facts import ADMIT, EXTERNAL, FREE, GROW, HIT, NUM_HELD, NUM_NEW, PREEMPT, Journal
from blockwright.core.pool.order.order import Wish
from blockwright.core.pool.tape import ADVANCE, GONE, HOLDERS, NULL, WRITE
from blockwright.core.steps.giving_up import give_up, num_kept
from blockwright.core.steps.keeping import (
    ALL,
    NONE,
    SOME,
    all_wanted,
    ask_for,
    begin_wanted,
    end_wanted,
    learn,
    save_states,
    trim_group,
    want_output,
    wanted_dead,
    wanted_lengths,
)
from blockwright.core.steps.publication import (
    count_last,
    kept_inside,
    make_keys,
    note_due,
    publish_alike,
    publish_due,
    publish_last,
    publish_taken,
)
from blockwright.core.steps.state import Lookups, State
from blockwright.core.steps.units import (
    end_tails,
    last_end,
    next_tail,
    own_parts,
    reserve_tails,
    tail_lengths,
)
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.table import GroupTable, RequestTables, held_blocks
from blockwright.core.tables.window import FOR_EVER

# ---------------------------------------------------------------------- a step in place


def count_step(state: State, request: Request, tables: RequestTables, stop: i64, new: i64, drafts: i64) -> None:
    """Count the tokens of a step that ends at `stop` as written: all that a step in place changes. Takes no memory."""
    # law: LEN-1
    tables.num_written = stop
    tables.num_drafts = drafts
    # With steps in flight the engine reports drafts that fail by settling; until then every token counts as certain.
    if state.config.overlaps:
        tables.num_certain = stop
        if new > 0:
            tables.last_step = state.num_steps
    else:
        known: i64 = request._num_prompt + i64(len(request._output))
        tables.num_certain = max(stop - new, min(stop, known))
        # law: GIVEN-1. What the request's count covers now, should this step be given up.
        tables.num_settled = stop - new
        tables.num_given = stop
        if state.config.saves_states:  # tokens that are not known may be drafts, said or not
            tables.num_drafts = max(0, stop - known)


def hear(state: State, request: Request, tables: RequestTables, count: i64) -> None:
    """Count the steps of a request that its engine took within the lease, without a call. law: LEASE-1."""
    if tables.num_written < count:
        count_step(state, request, tables, count, 0, 0)


def note_lease(state: State, request: Request, tables: RequestTables) -> None:
    """Tell a request how far it may go on without a call. law: LEASE-1."""
    request._lease = 0 if state.config.overlaps or tables.is_due else tables.in_place


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
    """Return whether a checked step of a batch takes, trims and copies nothing; False where that takes a closer look.

    Half of the steps in decoding that do not only count are such.
    """
    return (
        state.uniform_groups
        and not (state.config.overlaps or tables.is_forked)
        and ask.begin < tables.trim_at
        and ask.stop + ask.ahead <= i64(len(tables.by_group[0].blocks)) * state.config.least_size
        and (state.config.unit == 0 or not (tables.is_due or next_tail(tables) <= ask.stop))
    )


def publish_step(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Serve a step that only publishes, the keys made. Takes no memory, except for events."""
    in_place = publish_alike(state, request, tables, ask)
    if state.config.unit > 0:
        in_place = note_due(state, request, tables, ask, False, in_place)
    tables.in_place = min(in_place, tables.trim_at)
    count_step(state, request, tables, ask.stop, ask.new, ask.drafts)
    note_lease(state, request, tables)


# ---------------------------------------------------------------------- any other step


def serve(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> KVCacheBlocks:
    """Carry out a step that was counted, and return the new blocks."""
    changes = state.changes
    changes.clear()
    changes.begin(tables, state.uniform_groups)
    if state.journal is not None:
        state.journal._stamp()
    try:
        ready = prepare(state, request, tables, ask, changes)
        given = room_for(state, ready, ask, changes)
        if state.config.overlaps and ask.new > 0:  # the last that takes memory
            state.steps[-1].record(ready, ask.new, ask.drafts)
        # From here on nothing takes memory, so that an error can only come from outside: an interrupt, or an event.
        changes.has_begun = True
        act(state, request, ready, ask, tables is None, changes)
        return filled(given, ready, changes)
    except BaseException:
        undo(state, request, tables, changes, changes.has_begun)
        raise


def room_for(state: State, ready: RequestTables, ask: StepRequest, changes: StepScratch) -> KVCacheBlocks:
    """Return a result with room for the entries that a step appends, and for what else it changes."""
    copies = ready.is_forked or ask.hit_length % state.config.whole_alignment != 0
    if changes.grown == 0 and len(changes.nulled) == 0 and not copies:
        return state.nothing
    ids: list[vec[i32]] = []
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        # The answer is made before the change: handing out blocks and then failing would leak them.
        ids.append(zeros32(i64(len(ready.by_group[at].blocks)) - changes.held_in(at)))
        at += 1
    blocks = KVCacheBlocks(state.pool, ids)
    if len(changes.nulled) > 0:
        blocks.note(changes.nulled, changes.nulled_each[:], changes.runs, changes.replaced)
    return blocks


def filled(given: KVCacheBlocks, ready: RequestTables, changes: StepScratch) -> KVCacheBlocks:
    """Return a result with the blocks that a step has appended."""
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
    return given


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
    """Note a prompt that is admitted, for those that begin alike. Takes no memory. law: UNIT-9."""
    size, alignment = request._block_size, state.config.alignment
    if size > 0:
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
    # No owner yet: until `adopt`, the request finds no tables and an undo has only names to take back.
    tables = RequestTables(request, 0, by_group)
    tables.trim_at = trim_at
    tables.tenant = state.pool.tenant(request.cache_salt)
    wanted_lengths(state, request, tables, ask)
    if state.last_prompts.are_kept() and request._block_size > 0:
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
    num_replaced: i64 = len(changes.replaced)
    # Shares depend on whom a block is taken for, so the pool is told before the first is taken.
    state.pool._serve(tables.tenant)
    tape = state.pool._tape  # asked here, since two calls would cost a step more than all else that a trace does to it
    if tape is not None:
        note_request(state, tables, ADVANCE, ask.resumed if is_new else ask.settled)
    if is_new:
        learn(state, ask)
        note_prompt(state, request)
        adopt(state, request, tables, ask)
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
    if tape is not None:
        note_entries(state, tables, ask)
    # One that was given up is not published any more, though its key may be known now.
    inside: i64 = kept_inside(state, tables, ask.begin) if tables.checkpoint > 0 else 0
    tables.checkpoint = inside
    if state.uniform_groups:
        in_place = publish_alike(state, request, tables, ask)
        if state.config.unit > 0:
            in_place = note_due(state, request, tables, ask, False, in_place)
    else:
        in_place = publish_taken(state, request, tables, ask)
    if ask.external > 0:
        in_place = 0
    tables.in_place = min(in_place, tables.trim_at)
    tables.num_loading = ask.external
    tables.checkpoint = ask.checkpoint if ask.checkpoint > 0 else inside
    count_step(state, request, tables, ask.stop - ask.external, ask.new, ask.drafts)
    note_lease(state, request, tables)
    journal = state.journal
    if journal is not None and is_new:
        note_admission(state, journal, request, tables, ask, changes, num_replaced)
    elif journal is not None and (
        changes.grown > 0 or len(changes.saved) > 0 or i64(len(changes.replaced)) > num_replaced
    ):
        base = note_blocks(state, journal, GROW, request, tables, ask.new, changes)
        journal._add_blocks(base, NUM_NEW, changes.saved, 0, i64(len(changes.saved)))
        while num_replaced < i64(len(changes.replaced)):  # four numbers for each copy, the last is the new block
            journal._add_blocks(base, NUM_NEW, changes.replaced, num_replaced + 3, num_replaced + 4)
            num_replaced += 4
    if is_new:
        count_lookup(state.lookups, request, ask.hit_length)


def note_request(state: State, tables: RequestTables, verb: i64, number: i64) -> None:
    """Trace that a request goes on with some settled tokens, or ends; until the call ends, it is the one that acts."""
    # One that ends while a step or a load is under way leaves its blocks to that, and the number is 1.
    tape = state.pool._tape
    if tape is not None:
        tape.holder = tables.uid % HOLDERS
        if verb == GONE:
            tape.names[int(tape.holder)] = tables.request_id
        tape.put(verb, 0, number, i64(len(tables.by_group[0].blocks)) * state.groups[0]._block_size)


def note_entries(state: State, tables: RequestTables, ask: StepRequest | None) -> None:
    """Trace the leading null entries of a request, and of those that a step may write to blocks and null entries."""
    tape = state.pool._tape
    at: i64 = 0
    while tape is not None and at < state.config.num_groups:
        group, table = state.groups[at], tables.by_group[at]
        if table.num_trimmed > group.sinks:
            tape.put(NULL, at, group.sinks, table.num_trimmed)
        entry: i64 = i64(len(table.blocks))
        if ask is not None and not group.is_encoder:
            # A step that leaves a checkpoint fills the entry before its last as well.
            entry = max(0, group.first_written(ask) - (1 if ask.checkpoint > 0 and not group.is_row() else 0))
        while entry < i64(len(table.blocks)):
            if table.blocks[entry] == 0:
                tape.put(NULL, at, entry, entry + 1)
            else:
                tape.put(WRITE, i64(table.blocks[entry]))
            entry += 1
        at += 1


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
        table = by_group[0]
        block = i32(pool._take_one())
        table.blocks[held] = block
        changes.taken[0] = block
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


def note_blocks(
    state: State,
    journal: Journal,
    kind: i64,
    request: Request,
    tables: RequestTables,
    tokens: i64,
    changes: StepScratch,
) -> i64:
    """Write a fact of a step, with the blocks that it took; return where. Takes no memory. O(blocks taken)."""
    base = journal._add(kind, request._request_id, tokens, state.pool._num_free)
    at: i64 = 0
    while at < state.config.num_groups:
        table = tables.by_group[at]
        journal._add_blocks(base, NUM_NEW, table.blocks, changes.held_in(at), i64(len(table.blocks)))
        if kind == ADMIT:
            journal._add_blocks(base, NUM_NEW, table.states, 0, i64(len(table.states)))
        at += 1
    return base


def note_admission(
    state: State,
    journal: Journal,
    request: Request,
    tables: RequestTables,
    ask: StepRequest,
    changes: StepScratch,
    num_replaced: i64,
) -> None:
    """Write the fact that a request was admitted; where its tokens come from only once a load has ended. law: MET-1."""
    is_resumed = request._was_admitted
    base = note_blocks(state, journal, ADMIT, request, tables, ask.new, changes)
    copied = num_replaced
    while copied < i64(len(changes.replaced)):
        journal._add_blocks(base, NUM_NEW, changes.replaced, copied + 3, copied + 4)
        copied += 4
    at: i64 = 0
    while at < state.config.num_groups:
        # What was copied is no block of the hit any more.
        held = changes.held_in(at)
        copied = num_replaced
        while copied < i64(len(changes.replaced)):
            held -= 1 if i64(changes.replaced[copied + 1]) == at else 0
            copied += 4
        journal._add_blocks(base, NUM_HELD, tables.by_group[at].blocks, 0, held)
        at += 1
    journal._say(base, HIT, ask.hit_length)
    journal._say(base, EXTERNAL, ask.external)
    asked, found = request._num_asked_outside, request._num_found_outside
    if asked == 0 and ask.external != 0:  # the engine did not report its lookup, but it has made one
        asked = request._num_prompt + i64(len(request._output)) - ask.hit_length
        found = asked
    found = min(found, ask.external)  # a hit counts as far as it is loaded
    journal._admit(base, request._num_looked_up, asked, found, is_resumed)
    if ask.external > 0:
        tables.is_resumed = is_resumed
    else:
        know_sources(journal, base, request, ask.hit_length, 0, is_resumed)


def know_sources(journal: Journal, base: i64, request: Request, hit: i64, external: i64, is_resumed: bool) -> None:
    """Count where the tokens of a request come from: those of its prompt, or all known ones if it is resumed."""
    tokens = request._num_prompt
    if is_resumed:
        tokens += i64(len(request._output))
    journal._know_sources(base, tokens, hit, external, is_resumed)


def note_release(state: State, tables: RequestTables, request: Request, was_preempted: bool) -> None:
    """Write the fact that a request has ended, or was preempted; of a load that it gives up, nothing came."""
    journal = state.journal
    if journal is not None:
        base = journal._add(PREEMPT if was_preempted else FREE, tables.request_id, 0, state.pool._num_free)
        if tables.num_loading > 0:
            know_sources(journal, base, request, tables.num_written, 0, tables.is_resumed)


def count_lookup(lookups: Lookups, request: Request, hits: i64) -> None:
    """Count the lookup of a request that is admitted now, apart if it was admitted before. Takes no memory."""
    queries = request._num_looked_up
    request._num_looked_up = 0
    request._answer = None
    request._num_asked_outside = 0
    request._num_found_outside = 0
    if queries > 0:
        if request._was_admitted:
            lookups.preempted_requests += 1
            lookups.preempted_queries += queries
            lookups.preempted_hits += hits
        else:
            lookups.requests += 1
            lookups.queries += queries
            lookups.hits += hits
    request._was_admitted = True


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
        blocks = adopted.by_group[at].blocks
        if group.runs_ahead and len(blocks) > 0 and state.pool.ref_count(i64(blocks[-1])) > 1:
            for running in state.running.values():
                if running is not adopted and blocks[-1] in running.by_group[at].blocks:
                    running.is_forked = True
                    running.in_place = 0


def adopt(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Hold a new request's hit, all groups' before any group grows."""
    if ask.hit is not None:
        for group, table in zip(state.groups, tables.by_group):
            group.adopt(table.blocks)
    tables.num_settled = ask.begin
    tables.owner = state.owner
    request._held = tables


def trim_dead(state: State, tables: RequestTables, changes: StepScratch) -> None:
    """Null the dead entries that `changes` notes, list them there, and release their blocks, before any group grows.

    The groups in order, of each its last entry first. law: TRIM-1, REF-1.
    """
    passing = state.pool._passing
    needed = ALL
    if passing is not None:
        needed = wanted_dead(state, tables, changes)
        if needed == NONE:
            passing.begin()
        elif needed == ALL:
            passing.begin_plain()
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
            table = by_group[at]
            # Groups are written from the end on, because the pool releases from the end: so the first group's go first.
            first -= count
            put = first
            blocks = table.blocks
            entry = start
            while entry < stop:
                block = blocks[entry]
                if block != 0:
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
        trim_passing(state, tables, changes)
    elif changes.num_dead > 0:
        state.pool._release(dead, 0, changes.num_dead)
        state.pool._note_trim(dead, 0, changes.num_dead)
    if passing is not None:
        passing.end()
    tables.trim_at = changes.trim_at


def trim_passing(state: State, tables: RequestTables, changes: StepScratch) -> None:
    """Trim a table where some of the dead entries are passing, group by group. law: POLICY-4."""
    at: i64 = 0
    while at < state.config.num_groups:
        stop: i64 = i64(changes.dead_ends[at])
        run_end: i64 = i64(changes.runs[at])
        while at < run_end:
            trim_group(state, tables, at, stop)
            at += 1


# ---------------------------------------------------------------------- release


def vacate(state: State, tables: RequestTables, computed: i64, resumes: bool) -> None:
    """Release all a request holds; behind a fence while a step or a load still touches it. law: REF-1, FENCE-1.

    What it has computed for certain is published before, and what `computed` does not cover is given up. A state of its
    last step is published only if that has run: it is not in flight, and `computed` covers it.
    """
    in_flight = len(state.steps) > 0 and tables.last_step >= state.steps[0].number
    # law: FLIGHT-1
    waits = in_flight or tables.num_loading > 0
    # The fence keeps copies: the tables are gone with the request, before the blocks are.
    batch: list[vec[i32]] = [held_blocks(table) for table in tables.by_group] if waits else []
    has_begun = False
    wish = tables.wish
    step = state.steps[int(tables.last_step - state.steps[0].number)] if in_flight else None
    request = tables.request
    count = count_last(state, tables, request, computed, in_flight)
    last = last_end(state, tables, request, count)
    wants = all_wanted(state, tables, last)
    if count > 0:
        make_keys(state, request, count)
        reserve_tails(state, tables)
    try:
        if step is not None:
            step.wishes.append(wish)
            step.wants.append(wants)
            step.fenced.append(batch)
        elif waits:
            if wish is not None:
                state.load_wishes[tables.request_id] = wish
            state.load_wants[tables.request_id] = wants
            state.loads[tables.request_id] = batch
        has_begun = True
        if computed < tables.num_certain and state.config.caching:
            give_up(state, tables, num_kept(state, tables, computed))
        run = tables.num_written - tables.num_drafts if state.config.unit == 0 else tables.num_certain
        if not in_flight and computed >= run:
            # The state was computed and is worth finding, though the request that left it is gone.
            publish_due(state, tables, request)
        if count > 0:
            publish_last(state, tables, request, count, last, in_flight)
        state.due.remove(tables)
        want_output(state, tables, wants, resumes, last)
        note_request(state, tables, GONE, 1 if waits else 0)
        for group, table in zip(state.groups, tables.by_group):
            if not waits:
                state.pool._begin_release(wish, group._block_size)
                ask_for(state, group, wants, table.blocks)
                begin_wanted(state, group, wants)
                group.release(table)
                end_wanted(state)
                state.pool._end_release()
            group.close(tables.request_id)
        del state.running[tables.request_id]
        tables.owner = 0
    except BaseException:
        if has_begun:
            state.tear()
        elif step is not None:
            if len(step.fenced) > 0 and step.fenced[-1] is batch:
                step.fenced.pop()
            del step.wishes[len(step.fenced) :]
            del step.wants[len(step.fenced) :]
        elif waits and tables.request_id in state.loads:
            del state.loads[tables.request_id]
        raise


def release_batch(state: State, batch: list[vec[i32]], wish: Wish | None, wants: vec[i64]) -> None:
    """Release a batch that waited behind a fence, in the order in which it would have been at once."""
    for blocks, group in zip(batch, state.groups):
        state.pool._begin_release(wish, group._block_size)
        ask_for(state, group, wants, blocks)
        begin_wanted(state, group, wants)
        state.pool._release(blocks, 0, i64(len(blocks)))
        end_wanted(state)
        state.pool._end_release()


def waiting(state: State) -> dict[int, int]:
    """Return how often blocks wait for steps in flight of released requests, or for loads. O(requests + blocks)."""
    batches: list[vec[i32]] = []
    for step in state.steps:
        for given_up in step.fenced:
            batches += given_up
    for given_up in state.loads.values():
        batches += given_up
    for tables in state.running.values():
        if tables.num_loading > 0:
            batches += [table.blocks for table in tables.by_group]
    times: dict[int, int] = {}
    for blocks in batches:
        for block in blocks:
            times[int(block)] = times.get(int(block), 0) + 1
    return times

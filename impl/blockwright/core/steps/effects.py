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

from blockwright.core.keys.packed import cut_to, with_room, zeros32
from blockwright.core.keys.request import Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.core.pool.order.order import Wish
from blockwright.core.steps.publication import NOT_RUN, make_keys, publish_due, publish_to
from blockwright.core.steps.state import Lookups, State
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
    if state.config.overlaps:
        tables.num_certain = stop
        if new > 0:
            tables.last_step = state.num_steps
    else:
        known: i64 = request._num_prompt + i64(len(request._output))
        tables.num_certain = max(stop - new, min(stop, known))


def serve_in_place(state: State, request: Request, tables: RequestTables, new: i64) -> None:
    """Serve a step that changes only counts (`is_in_place`). law: CALL-1."""
    has_begun = False
    try:
        if state.config.overlaps:
            state.steps[-1].record(tables, new, 0)
        has_begun = True
        count_step(state, request, tables, request._num_computed + new, new, 0)
    except BaseException:
        if has_begun:
            state.tear()
        elif state.config.overlaps:
            state.steps[-1].strike(tables)
        raise


def serve_small(state: State, request: Request, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> bool:
    """Serve a checked step if it is as most that pass a block's end; return False, and nothing has changed, if not.

    Such a step takes one block at most in each group, and fills one, all of them at the same tokens (`State.uniform_groups`);
    the blocks are free before any is trimmed, nobody shares them, and nothing is noted of them. The caller has begun
    `changes` with its tables, and takes back what was prepared if this fails (`undo`). law: STEP-1.
    """
    config, pool, by_group = state.config, state.pool, tables.by_group
    if not state.uniform_groups or tables.is_forked or not pool.is_plain():
        return False
    first = by_group[0]
    size, num_groups = config.least_size, config.num_groups
    slots = min(ask.stop + ask.ahead, config.max_len)
    covered = changes.held_each * size
    grows = slots > covered
    if grows and (slots > covered + size or num_groups > pool._num_free):
        return False
    entry = first.num_published
    end = (entry + 1) * size  # tokens that fill the next entry
    fills = False
    units: i64 = 1  # hashed units of a block
    if config.caching and request._block_size > 0:
        if ask.stop >= end + size:
            return False
        if request._block_size != size:
            units = size // request._block_size
        known: i64 = request._num_prompt + i64(len(request._output))
        fills = min(ask.stop, known) >= end and publishes_now(state, ask)
    settled = tables.num_settled if config.overlaps else ask.begin
    if fills:
        request.hash_until((entry + 1) * units)
    if settled >= tables.trim_at:
        note_dead(state, tables, settled, changes)
    blocks = changes.blocks  # with room for one of each group
    at: i64 = 0
    if grows:
        changes.grown = num_groups
        covered += size
        while at < num_groups:
            table = by_group[at]
            table.blocks = append(table.blocks, 0)
            at += 1
    if config.overlaps and ask.new > 0:  # the last that takes memory
        state.steps[-1].record(tables, ask.new, ask.drafts)
    changes.has_begun = True
    if settled >= tables.trim_at:
        trim_dead(state, tables, changes)
    if grows:
        if num_groups == 1:
            first.num_covered = slots
            first.blocks[changes.held_each] = i32(pool._take_one())
        else:
            pool._fill(blocks, 0, num_groups)
            at = 0
            while at < num_groups:
                table = by_group[at]
                table.num_covered = slots
                table.blocks[changes.held_each] = blocks[at]
                at += 1
    if fills:
        at = 0
        while at < num_groups:
            table = by_group[at]
            table.num_published = entry + 1
            blocks[at] = table.blocks[entry]
            at += 1
        pool._publish_each(blocks, request, units, entry, num_groups)
        end += size
    if config.caching:
        covered = min(covered, end - 1)
    tables.in_place = min(covered, tables.trim_at - 1)
    count_step(state, request, tables, ask.stop, ask.new, ask.drafts)
    return True


# ---------------------------------------------------------------------- any other step


def serve(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> KVCacheBlocks:
    """Do what was counted, and return the new blocks."""
    changes = state.changes
    changes.clear()
    changes.begin(tables, state.uniform_groups)
    try:
        if tables is not None and state.uniform_groups and not tables.is_forked:
            given = room_for_one(state, tables, ask)
            if serve_small(state, request, tables, ask, changes):
                return filled(given, tables, changes)
        ready = prepare(state, request, tables, ask, changes)
        given = room_for(state, ready, changes)
        if state.config.overlaps and ask.new > 0:  # the last that takes memory
            state.steps[-1].record(ready, ask.new, ask.drafts)
        changes.has_begun = True
        act(state, request, ready, ask, tables is None, changes)
        return filled(given, ready, changes)
    except BaseException:
        undo(state, request, tables, changes, changes.has_begun)
        raise


def room_for(state: State, ready: RequestTables, changes: StepScratch) -> KVCacheBlocks:
    """Return a result with room for the entries that a step appends."""
    if changes.grown == 0:
        return state.nothing
    ids: list[vec[i32]] = []
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        ids.append(zeros32(i64(len(ready.by_group[at].blocks)) - changes.held_in(at)))
        at += 1
    return KVCacheBlocks(state.pool, ids)


def room_for_one(state: State, tables: RequestTables, ask: StepRequest) -> KVCacheBlocks:
    """Do so before it is known whether the step of even groups is small: for one entry in each, if any is missing."""
    if ask.slots <= i64(len(tables.by_group[0].blocks)) * state.config.least_size:
        return state.nothing
    return KVCacheBlocks(state.pool, [zeros32(1) for _ in tables.by_group])


def filled(given: KVCacheBlocks, ready: RequestTables, changes: StepScratch) -> KVCacheBlocks:
    """Return a result with the blocks that a step has appended."""
    at: i64 = 0
    while changes.grown > 0 and at < i64(len(given.ids)):
        ids = given.ids[at]
        blocks = ready.by_group[at].blocks
        held: i64 = changes.held_in(at)
        i: i64 = 0
        while i < i64(len(ids)):
            ids[i] = blocks[held + i]
            i += 1
        at += 1
    return given


def prepare(
    state: State, request: Request, tables: RequestTables | None, ask: StepRequest, changes: StepScratch
) -> RequestTables:
    """Take all the memory that doing what was counted needs; what a caller can see does not change.

    Appends null entries for the blocks to come, and to `changes`, which the caller has begun with these tables, the
    entries that trimming will null. `undo` takes all of it back.
    """
    if publishes_now(state, ask):
        make_keys(state, request, ask.stop)
    if tables is None:
        tables = open_tables(state, request, ask)
        changes.begin(tables, state.uniform_groups)
    elif ask.settled >= tables.trim_at:
        note_dead(state, tables, ask.settled, changes)
    if tables.is_forked:
        state.pool._reserve_copies(state.config.num_groups)
        changes.replaced = with_room(changes.replaced, 4 * state.config.num_groups)
    widen(state, tables, ask, changes)
    return tables


def note_dead(state: State, tables: RequestTables, settled: i64, changes: StepScratch) -> None:
    """Append to `changes` the entries that trimming will null, and take room for their blocks."""
    changes.trim_at = FOR_EVER
    for group, table in zip(state.groups, tables.by_group):
        group.note_dead(table, settled, changes)
    changes.make_room()


def widen(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Append null entries for the blocks to come."""
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        table = tables.by_group[at]
        if table.in_place < ask.slots:
            group = state.groups[at]
            group.widen(table, group.slots_after(ask))
            changes.grown += i64(len(table.blocks)) - changes.held_in(at)
        at += 1


def publishes_now(state: State, ask: StepRequest) -> bool:
    """Return whether a step publishes what it fills, and not a later call."""
    config = state.config
    return config.caching and not (ask.is_delayed or config.settles or ask.external > 0)


def open_tables(state: State, request: Request, ask: StepRequest) -> RequestTables:
    """Enter a new request with its hit, of which nothing is held yet."""
    by_group: list[GroupTable] = []
    hit = ask.hit
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        by_group.append(state.groups[at].table_from_hit(None if hit is None else hit.ids[at], ask.resumed))
        at += 1
    tables = RequestTables(request, 0, by_group)
    tables.tenant = state.pool.tenant(request.cache_salt)
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
            table.blocks = cut_to(table.blocks, changes.held_in(at))
            at += 1
    except BaseException:
        state.tear()
        raise


def act(
    state: State, request: Request, tables: RequestTables, ask: StepRequest, is_new: bool, changes: StepScratch
) -> None:
    """Do what was counted and prepared: trim or adopt in all groups, and then take and publish. Takes no memory.

    Appends the entries that are copied to `changes`.
    """
    state.pool._serve(tables.tenant)
    if is_new:
        adopt(state, request, tables, ask)
    else:
        if ask.settled >= tables.trim_at:
            trim_dead(state, tables, changes)
        if tables.is_forked:
            unshare(state, tables, ask, changes)
    at: i64 = 0
    while at < state.config.num_groups:
        table = tables.by_group[at]
        # law: STEP-1
        if table.in_place < ask.slots:
            group = state.groups[at]
            if group.num_states > 0:
                read = group.state_block(table, ask.begin)
                table.num_read = ask.begin
                table.read_block = read
            group.fill(table, group.slots_after(ask), changes.held_in(at))
        at += 1
    if is_new:
        for group, table in zip(state.groups, tables.by_group):
            group.fill_states(table)
        count_lookup(state.lookups, request, ask.hit_length)
    in_place = publish_taken(state, request, tables, ask)
    if ask.external > 0:
        in_place = 0
    tables.in_place = min(in_place, tables.trim_at - 1)
    tables.num_loading = ask.external
    count_step(state, request, tables, ask.stop - ask.external, ask.new, ask.drafts)


def publish_taken(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> i64:
    """Publish what a step fills, and return up to how many slots the next step can be served in place.

    Only now, when all groups have taken their blocks: a candidate that publishing empties, since its content is there
    twice, is the first free block, and the next group would take it before blocks that were empty. law: SHARE-4.
    """
    known: i64 = request._num_prompt + i64(len(request._output))
    is_due = False
    in_place = state.config.max_len
    publishes = publishes_now(state, ask)
    at: i64 = 0
    while at < state.config.num_groups:
        table = tables.by_group[at]
        if table.in_place < ask.slots:
            group = state.groups[at]
            if publishes:
                publish_to(group, table, request, min(ask.stop, known), NOT_RUN)
                is_due = is_due or (ask.new > 0 and ask.certain <= known and group.leaves_state(ask.certain))
            table.in_place = group.in_place_slots(table, state.config.caching)
        in_place = min(in_place, table.in_place)
        at += 1
    publish_due(state, tables, request)
    if is_due:
        tables.request = request  # it knows the tokens that the state stands for
        state.due.add(tables)
    return in_place


def count_lookup(lookups: Lookups, request: Request, hits: i64) -> None:
    """Count the lookup of a request that is admitted now, apart if it was admitted before. Takes no memory."""
    queries = request._num_looked_up
    request._num_looked_up = 0
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
    """Copy what the step writes to and others hold too, all groups before any grows. law: WRITE-2, COPY-1."""
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


def adopt(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Hold a new request's hit, all groups' before any group grows."""
    if ask.hit is not None:
        for group, table in zip(state.groups, tables.by_group):
            group.adopt(table.blocks)
    trim_at: i64 = FOR_EVER
    for group, table in zip(state.groups, tables.by_group):
        trim_at = min(trim_at, group.trim_at(table.num_trimmed))
    tables.trim_at = trim_at
    tables.num_settled = ask.begin
    tables.owner = state.owner
    request._held = tables


def trim_dead(state: State, tables: RequestTables, changes: StepScratch) -> None:
    """Null the entries that are listed in `changes`, and release their blocks, all groups' before any grows.

    The groups in order, of each its last entry first. law: TRIM-1, REF-1.
    """
    nulled, ends, trimmed, dead = changes.nulled, changes.nulled_ends, changes.trimmed, changes.blocks
    count: i64 = i64(len(nulled)) - changes.num_nulled
    first = count  # where the entries of a group begin; the pool releases from the end on
    i: i64 = changes.num_nulled
    at: i64 = 0
    while at < state.config.num_groups:
        table = tables.by_group[at]
        stop: i64 = i64(ends[at])
        first -= stop - i
        put = first
        blocks = table.blocks
        while i < stop:
            entry: i64 = i64(nulled[i])
            dead[put] = blocks[entry]
            blocks[entry] = 0
            put += 1
            i += 1
        table.num_trimmed = i64(trimmed[at])
        at += 1
    if count > 0:
        state.pool._release(dead, 0, count)
        state.pool._note_trim(dead, 0, count)
    tables.trim_at = changes.trim_at


# ---------------------------------------------------------------------- release


def vacate(state: State, tables: RequestTables, computed: i64) -> None:
    """Release all a request holds; behind a fence while a step or a load still touches it. law: REF-1, FENCE-1.

    A state of its last step is published only if that has run: it is not in flight, and `computed` says so.
    """
    in_flight = len(state.steps) > 0 and tables.last_step >= state.steps[0].number
    # law: FLIGHT-1
    waits = in_flight or tables.num_loading > 0
    batch: list[vec[i32]] = [held_blocks(table) for table in tables.by_group] if waits else []
    has_begun = False
    wish = tables.wish
    step = state.steps[int(tables.last_step - state.steps[0].number)] if in_flight else None
    try:
        if step is not None:
            step.wishes.append(wish)
            step.fenced.append(batch)
        elif waits:
            if wish is not None:
                state.load_wishes[tables.request_id] = wish
            state.loads[tables.request_id] = batch
        has_begun = True
        if not in_flight and computed >= tables.num_written - tables.num_drafts:
            publish_due(state, tables, tables.request)
        state.due.remove(tables)
        for group, table in zip(state.groups, tables.by_group):
            if not waits:
                state.pool._begin_release(wish, group._block_size)
                group.release(table)
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
        elif waits and tables.request_id in state.loads:
            del state.loads[tables.request_id]
        raise


def release_batch(state: State, batch: list[vec[i32]], wish: Wish | None) -> None:
    """Release a batch that waited behind a fence, in the order in which it would have been at once."""
    for blocks, group in zip(batch, state.groups):
        state.pool._begin_release(wish, group._block_size)
        state.pool._release(blocks, 0, i64(len(blocks)))
        state.pool._end_release()


def waiting(state: State) -> dict[int, int]:
    """Return how often blocks wait for steps in flight whose request is gone, or for loads. O(requests + blocks)."""
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

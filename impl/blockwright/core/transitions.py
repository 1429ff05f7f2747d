"""The transitions of the first reading, one for each call that an engine makes; its arguments are taken by the manager.

Each checks, counts and acts in the order of the specification's chapter of the same name (see `effects`). What is added
by steps in flight, loads and forks is in `in_time`.
"""

from __future__ import annotations

import operator

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.effects import act, count_step, prepare, serve, undo, vacate
from blockwright.core.index import with_room, zeros32
from blockwright.core.outcomes import Ask, BatchAllocation, Fits, KVCacheBlocks, Plan
from blockwright.core.plans import fits, moment
from blockwright.core.preconditions import check_each, tables_of, tables_running
from blockwright.core.publication import NOT_RUN, make_keys, publish_filled
from blockwright.core.request import Request
from blockwright.core.state import RequestTables, State
from blockwright.core.window import common_hit
from blockwright.errors import InvalidArgumentError, StalePlanError


def find(state: State, request: Request) -> tuple[KVCacheBlocks, int]:
    """Return the longest hit of a request, and its tokens: ``get_computed_blocks``. law: HIT-1, HIT-2."""
    config = state.config
    if not config.caching or request.prompt_logprobs or request._block_size == 0:
        return state.nothing, 0
    state.pool.require_whole()
    # law: HIT-3
    max_length: i64 = request.num_tokens - 1
    probes = [
        manager.probe(request.keys(state.pool.units_for(request, manager._block_size)), max_length, config.eagle)
        for manager in state.managers
    ]
    num_computed = common_hit([manager.rule for manager in state.managers], probes, config.alignment, max_length)
    if config.logs:
        state.num_lookups += 1
        state.num_queries += request.num_tokens
        state.num_hits += num_computed
    if num_computed == 0:
        return state.nothing, 0
    ids = [
        probe.entries(num_computed, manager.first_kept(num_computed)) for probe, manager in zip(probes, state.managers)
    ]
    return KVCacheBlocks(state.pool, ids), num_computed


def commit(state: State, plan: Plan) -> KVCacheBlocks:
    """Do what was planned and return the new blocks: ``commit``."""
    if not isinstance(plan, Fits):
        raise InvalidArgumentError(f"plan: {plan!r} cannot be committed, only one that fits")
    request = plan._request
    if plan._owner != state.owner:
        raise StalePlanError(f"plan: {plan!r} is another manager's, or of this one before it was copied")
    tables = tables_of(state, request)
    if plan._version != state.pool.version or plan._moment != moment(state, request, tables):
        raise StalePlanError(f"plan: the pool or the request has changed since {plan!r}; plan again")
    return serve(state, request, tables, plan._ask)


def grow_each(
    state: State, batch: list[Request], news: vec[i64], aheads: vec[i64], drafts: vec[i64]
) -> BatchAllocation:
    """Grow requests in order until one does not fit; those before it keep their slots: ``allocate_slots_batch``."""
    size: i64 = len(batch)
    ask = Ask()
    stops = check_each(state, batch, news, aheads, drafts, ask)
    state.pool.require_whole()
    done = BatchAllocation(
        0,
        None,
        vec[i32](),
        zeros32(size * state.config.num_groups + 1),
        vec[i32](),
        zeros32(size * state.config.num_groups + 1),
        vec[i32](),
        int(state.num_batches),
        [""] * size,
    )
    try:
        serve_each(state, batch, news, aheads, drafts, ask, stops, done)
    except BaseException:
        if done.num_served > 0:
            state.tear()
        raise
    return done


def serve_each(
    state: State,
    batch: list[Request],
    news: vec[i64],
    aheads: vec[i64],
    drafts: vec[i64],
    ask: Ask,
    stops: vec[i64],
    done: BatchAllocation,
) -> None:
    """Serve the requests of a checked batch, and write down what changed. In place where `stops` says so."""
    changes = state.changes
    changes.clear()
    size: i64 = len(batch)
    groups = state.config.num_groups
    overlaps = state.config.overlaps
    num_nulled: i32 = 0
    new_ids = vec[i32]()
    new_offsets = done.new_block_offsets
    nulled_offsets = done.nulled_offsets
    served: i64 = 0
    slot: i64 = 0
    while served < size:
        request: Request = batch[served]
        stop = stops[served]
        own = request._held
        group: i64 = 0
        if stop > 0 and isinstance(own, RequestTables):
            if overlaps:
                try:
                    state.steps[-1].record(own, news[served], 0)
                    done.num_served = int(served) + 1
                except BaseException:
                    state.steps[-1].strike(own)
                    raise
            else:
                done.num_served = int(served) + 1
            count_step(state, request, own, stop, news[served], 0)
            while group < groups:
                group += 1
                slot += 1
                new_offsets[slot] = i32(len(new_ids))
                nulled_offsets[slot] = num_nulled
        else:
            tables = tables_of(state, request)
            begin: i64 = request._num_computed
            ask.new = news[served]
            ask.ahead = aheads[served]
            ask.drafts = drafts[served]
            ask.begin = begin
            ask.stop = begin + news[served]
            ask.certain = ask.stop - drafts[served]
            if not fits(state, request, tables, ask):
                break
            changes.begin(tables)
            try:
                changes.request = i32(served)
                ready = prepare(state, request, tables, ask, changes)
                grown: i64 = 0
                while group < groups:
                    grown += i64(len(ready.groups[group].blocks)) - i64(changes.held[group])
                    group += 1
                new_ids = with_room(new_ids, grown)
                if overlaps and ask.new > 0:  # the last that takes memory
                    state.steps[-1].record(ready, ask.new, ask.drafts)
                done.num_served = int(served) + 1
            except BaseException:
                undo(state, request, tables, changes, False)
                raise
            act(state, request, ready, ask, tables is None, changes)
            group = 0
            while group < groups:
                blocks = ready.groups[group].blocks
                held: i64 = i64(changes.held[group])
                while held < i64(len(blocks)):
                    new_ids = append(new_ids, blocks[held])
                    held += 1
                slot += 1
                new_offsets[slot] = i32(len(new_ids))
                nulled_offsets[slot] = changes.nulled_ends[group]
                group += 1
            num_nulled = i32(len(changes.nulled))
            done.request_ids[served] = request._request_id
        served += 1
    while slot < size * groups:
        slot += 1
        new_offsets[slot] = i32(len(new_ids))
        nulled_offsets[slot] = num_nulled
    if served < size:
        done.refused = int(served)
    done.new_block_ids = new_ids
    done.nulled_entries = changes.nulled
    done.replaced_entries = changes.replaced


def publish(state: State, request: Request, num_computed_tokens: int) -> None:
    """Publish the blocks filled up to some tokens, after publication was put off: ``cache_blocks``."""
    config = state.config
    tables = tables_running(state, request)
    tables.request = request
    known = min(int(tables.num_settled if config.settles else tables.num_written), request.num_tokens)
    count = operator.index(num_computed_tokens)
    if not 0 <= count <= known:
        raise InvalidArgumentError(
            f"num_computed_tokens: must be within 0..{known}, the known and written tokens of "
            f"{request.request_id!r}, not {num_computed_tokens}"
        )
    make_keys(state, request, count)
    try:
        tables.num_certain = max(tables.num_certain, count)
        if config.caching:
            stopped = tables.num_written - tables.num_drafts
            if config.overlaps and len(state.steps) > 0 and tables.last_step == state.num_steps:  # it has not run
                if count == stopped and any([each.leaves_state(stopped) for each in state.managers]):
                    state.due.add(tables)
                stopped = NOT_RUN
            publish_filled(state, tables, request, count, stopped)
    except BaseException:
        state.tear()
        raise


def trim(state: State, request: Request, num_computed_tokens: int) -> None:
    """Null the entries that are dead at some tokens and release their blocks: ``remove_skipped_blocks``."""
    tables = tables_running(state, request)
    done, what = (tables.num_settled, "settled") if state.config.overlaps else (tables.num_written, "written")
    count = operator.index(num_computed_tokens)
    if not 0 <= count <= int(done):
        raise InvalidArgumentError(
            f"num_computed_tokens: must be within 0..{done}, the {what} tokens of {request.request_id!r}, "
            f"not {num_computed_tokens}"
        )
    try:
        tables.num_certain = max(tables.num_certain, count)
        for manager, table in zip(state.managers, tables.groups):
            manager.trim(table, count, i64(len(table.blocks)))
    except BaseException:
        state.tear()
        raise


def release(state: State, request: Request) -> None:
    """End a request and release its blocks; nothing happens to one that holds none: ``free``."""
    state.pool.require_whole()
    tables = tables_of(state, request)
    if tables is not None:
        vacate(state, tables, request._num_computed)
        request._held = None


def reset(state: State) -> bool:
    """Forget everything published; False, and nothing happens, while any block is held: ``reset_prefix_cache``."""
    try:
        if not state.pool.reset_prefix_cache():
            return False
        state.was_reset = True
    except BaseException:
        if state.pool.is_torn:
            state.tear()
        raise
    return True

"""The end of a request: what it has computed is published, and all that it holds comes free, now or behind a fence."""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.giving_up import give_up, num_kept
from blockwright.core.steps.preconditions import leased, tables_of
from blockwright.core.steps.publication import count_last, hear, make_keys, publish_due, publish_last
from blockwright.core.steps.state import Left, State
from blockwright.core.steps.units import last_end, reserve_tails
from blockwright.core.tables.table import NO_WANTS, RequestTables, held_blocks


def release(state: State, request: Request, was_preempted: bool) -> None:
    """End a request and release its blocks; nothing happens to one that holds none: ``free``."""
    # A torn manager must not release: the counters may already have been changed by half of a call.
    state.pool.require_whole()
    tables = tables_of(state, request)
    if tables is not None:
        state.listeners.begins()
        tables.request = request  # its last tokens are published
        if tables.num_written < request._num_computed <= leased(state, tables):
            hear(state, request, tables, request._num_computed)
        vacate(state, tables, request._num_computed, was_preempted)
        request._held = None
        request._lease = 0
        state.listeners.released(tables, was_preempted)


def vacate(state: State, tables: RequestTables, computed: i64, resumes: bool) -> None:
    """Release all a request holds; behind a fence while a step or a load still touches it. law: REF-1, FENCE-1.

    What it has computed for certain is published before, and what `computed` does not cover is given up. A state of its
    last step is published only if that has run: it is not in flight, and `computed` covers it.
    """
    request, in_flight = tables.request, state.is_in_flight(tables)
    count = count_last(state, tables, request, computed, in_flight)
    last = last_end(state, tables, request, count)
    # All that takes memory comes first. The tables are gone before the blocks are, so what is left is a copy.
    if count > 0:
        make_keys(state, request, count)
        reserve_tails(state, tables)
    wanted = state.wanted
    wants = NO_WANTS if wanted is None else wanted.at_end(tables, last)
    left = Left([held_blocks(table) for table in tables.by_group], tables.wish, wants, not resumes)
    # law: FLIGHT-1
    step = state.steps[int(tables.last_step - state.steps[0].number)] if in_flight else None
    fenced = [] if step is None else [*step.fenced, left]
    loads = state.loads | {tables.request_id: left} if tables.num_loading > 0 else state.loads
    with state:
        if step is not None:
            step.fenced = fenced
        state.loads = loads
        if computed < tables.num_certain and state.config.caching:
            give_up(state, tables, num_kept(state, tables, computed))
        run = tables.num_written - tables.num_drafts if state.config.unit == 0 else tables.num_certain
        if not in_flight and computed >= run:
            # The state was computed and is worth finding, though the request that left it is gone.
            publish_due(state, tables, request)
        if count > 0:
            publish_last(state, tables, request, count, last, in_flight)
        state.due.remove(tables)
        if wanted is not None:
            wanted.put_output(tables, wants, resumes, last)
        waits = in_flight or tables.num_loading > 0
        state.listeners.ends(tables, waits)
        if not waits:
            let_go(state, left)
        for group in state.groups:
            group.close(tables.request_id)
        del state.running[tables.request_id]
        tables.owner = 0


def let_go(state: State, left: Left) -> None:
    """Release what a request has left, all groups in turn, of each the last entry first."""
    order, wanted = state.pool._order, state.wanted
    if order is not None:
        order.is_use = left.is_use
    for blocks, group in zip(left.blocks, state.groups):
        if order is not None:
            order.begin(left.wish, group._block_size)
        if wanted is not None:
            wanted.ask_for(group, left.wants, blocks)
            wanted.begin(group, left.wants)
        state.pool._release(blocks, 0, i64(len(blocks)))
        if order is not None:
            order.end()
        if wanted is not None:
            wanted.classes.end()
    if order is not None:
        order.is_use = False


def waiting(state: State) -> dict[int, int]:
    """Return how often blocks wait for steps in flight of released requests, or for loads. O(requests + blocks)."""
    batches: list[vec[i32]] = []
    for left in state.all_left():
        batches += left.blocks
    for tables in state.running.values():
        if tables.num_loading > 0:
            batches += [table.blocks for table in tables.by_group]
    times: dict[int, int] = {}
    for blocks in batches:
        for block in blocks:
            times[int(block)] = times.get(int(block), 0) + 1
    return times

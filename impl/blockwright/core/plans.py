"""Whether a step fits, and what it takes: counted as if dead entries were already trimmed, and nothing changes.

A request that joins others leaves a watermark and a reserve free; alone it need not, and so is served (law: LIVE-1).
What is counted here is exactly what `effects.serve` takes (law: PLAN-1).
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.group import LAST_STATE, GroupTables, layout_for
from blockwright.core.outcomes import Ask, Fits, Never, NotNow, Plan, count_of
from blockwright.core.pool import BlockPool
from blockwright.core.request import Request
from blockwright.core.state import RequestTables, State
from blockwright.kinds import KVCacheSpec


def fits(state: State, request: Request, tables: RequestTables | None, ask: Ask) -> bool:
    """Count what a checked ask takes, and say whether the pool has it; nothing changes. law: PLAN-1."""
    config = state.config
    state.pool.require_whole()
    ask.slots = min(ask.stop + ask.ahead, config.max_len)
    ask.demand = 0
    if tables is None:
        ask.settled = ask.begin
        count_new(state, request, ask)
        if ask.most > state.pool.num_blocks - 1:
            return False
    else:
        ask.settled = tables.num_settled if config.overlaps else ask.begin
        most = config.num_groups * (max(0, ask.slots - tables.num_written) // config.least_size + 2)
        if most <= state.pool._num_free and not ask.is_planned:
            return True  # however the groups share the new slots, there is more than enough
        count_running(state, tables, ask)
    return ask.missing <= 0


def count_new(state: State, request: Request, ask: Ask) -> None:
    """Count for a request that does not run yet: new blocks, states of drafts, and hits that are free now."""
    hit = ask.hit
    own: i64 = 0
    whole: i64 = 0
    shared: i64 = 0
    known: i64 = request._num_prompt + i64(len(request._output))
    tokens = max(known, ask.stop)
    ask.resumed = min(ask.stop, known - 1) if ask.external > 0 else ask.begin
    pool = state.pool
    groups = state.config.num_groups
    at: i64 = 0
    while at < groups:
        manager = state.managers[at]
        held: i64 = 0
        live: i64 = 0
        kept = manager.first_kept(ask.resumed)
        if ask.hit_length > 0:
            held = ask.hit_length // manager._block_size
            live = held - manager.num_dead(0, min(held, kept))
            own += live
        if state.config.caching and request._block_size > 0:
            units = pool._units_for(request, manager._block_size)
            if hit is not None:
                if not hit.are_found(request):
                    manager.check_hit(hit.ids[at], request.keys(units))
                free = pool.num_candidates(hit.ids[at]) - manager.dead_hits(hit.ids[at], kept)
                ask.demand += free
                if manager.keeps_all:
                    shared += live - free
        # law: READ-1
        missing = manager.missing(held + manager.num_dead(held, kept), manager.reach(ask)) + manager.num_states
        ask.demand += missing
        own += missing
        if ask.is_whole:
            whole += manager.peak(tokens, min(tokens + ask.ahead, state.config.max_len), ask)
        at += 1
    spare = state.config.watermark + ask.reserve
    if pool._num_free == pool._count - 1:
        spare = 0
    ask.most = max(own, whole)
    ask.missing = max(ask.demand, whole - shared) + spare - pool._num_free


def count_running(state: State, tables: RequestTables, ask: Ask) -> None:
    """Count for a running request, as if its dead entries were already trimmed."""
    gain: i64 = 0
    demand: i64 = 0
    groups = state.config.num_groups
    at: i64 = 0
    while at < groups:
        manager = state.managers[at]
        table = tables.groups[at]
        demand += manager.missing(len(table.blocks), manager.reach(ask))
        if tables.is_forked and manager.shared_entry(table, ask) >= 0:
            demand += 1
        if manager.trims(table, ask.settled):
            gain += manager.trim_gain(table, ask.settled)
        at += 1
    ask.demand = demand
    ask.missing = demand - state.pool._num_free - gain


def planned(state: State, request: Request, tables: RequestTables | None, ask: Ask) -> Plan:
    """Return whether a checked ask fits, and what it takes; nothing changes. law: PLAN-1, PLAN-2, LIVE-1."""
    name = request.request_id
    if ask.is_too_long:
        return Never(name, f"{ask.stop} tokens, max_model_len is {state.config.max_len}")
    is_now = fits(state, request, tables, ask)
    if tables is not None:
        ask.most = most_held(state, tables, ask)
    if ask.most > state.pool.num_blocks - 1:
        return Never(name, f"{ask.most} blocks at once, the pool has {state.pool.num_blocks - 1}")
    if not is_now:
        return NotNow(name, ask.missing)
    return Fits(request, ask, state.owner, state.pool._version, moment(state, request, tables))


def can_load(state: State, request: Request, num_new_computed_tokens: int, num_external_computed_tokens: int) -> bool:
    """Return whether a new request could ever load so many tokens after a hit. See `KVCacheManager.can_load`."""
    state.pool.require_whole()
    ask = Ask()
    ask.hit_length = count_of("num_new_computed_tokens", num_new_computed_tokens)
    ask.external = count_of("num_external_computed_tokens", num_external_computed_tokens)
    ask.begin = ask.hit_length
    ask.stop = ask.begin + ask.external
    ask.certain = ask.stop
    ask.slots = ask.stop
    count_new(state, request, ask)
    return bool(ask.stop <= state.config.max_len and ask.most < state.pool.num_blocks)


def moment(state: State, request: Request, tables: RequestTables | None) -> tuple[int, ...]:
    """Return what a plan leans on beside the pool."""
    if tables is None:
        return (int(request._num_computed), request.num_tokens, int(state.num_steps), len(state.steps))
    counts = (
        int(tables.num_written),
        int(tables.num_certain),
        int(tables.num_settled),
        int(tables.last_step),
        int(tables.num_loading),
    )
    return (int(request._num_computed), request.num_tokens, int(state.num_steps), len(state.steps), *counts)


def most_held(state: State, tables: RequestTables, ask: Ask) -> i64:
    """Return the blocks a running request would hold after a step, once nothing is in flight. O(blocks)."""
    most: i64 = 0
    for manager, table in zip(state.managers, tables.groups):
        most += manager.missing(len(table.blocks), manager.reach(ask)) + i64(len(table.states))
        first = manager.first_kept(ask.begin)
        for entry, block in enumerate(table.blocks):
            if block != 0 and (i64(entry) >= first or i64(entry) < manager.sinks):
                most += 1
    return most


def most_blocks(
    spec: KVCacheSpec,
    num_tokens: int,
    step: int,
    enable_caching: bool,
    num_encoder_tokens: int = 0,
    steps_in_flight: int = 1,
) -> int:
    """Return the most blocks of one group that a request holds until `num_tokens` tokens are computed.

    With one step in flight this is what ``allocate_slots(..., full_sequence_must_fit=True)`` counts. With more, windows
    and chunks keep what the oldest of them reads, and a recurrent layer one state more for each.

    Complexity: O(block_size) for windows, O(1) for the others. law: PLAN-2.

    Args:
        spec: the kind.
        num_tokens: tokens of the whole request.
        step: slots that one step fills at most, lookahead included.
        enable_caching: whether prefixes are shared.
        num_encoder_tokens: tokens of the encoder, of cross attention only.
        steps_in_flight: steps that are under way at once, 1 or more.

    Raises:
        InvalidArgumentError: a count is out of range.
        UnsupportedError: no known kind.
    """
    tokens = count_of("num_tokens", num_tokens)
    tables = GroupTables(spec, BlockPool(2, enable_caching), 0, spec.block_size)
    ask = Ask()
    ask.new = count_of("step", min(step * steps_in_flight, num_tokens))
    ask.encoder = count_of("num_encoder_tokens", num_encoder_tokens)
    most = int(tables.peak(tokens, tokens, ask))
    if layout_for(spec, enable_caching) == LAST_STATE:
        more = int(tables.entries_for(tokens)) - 2
        most += max(0, min(steps_in_flight - 1, more))
    return most

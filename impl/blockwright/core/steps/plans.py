"""Check whether a step fits, and count its blocks as if dead entries were already trimmed. Nothing changes.

A request that joins others leaves the watermark and the reserve free. A request that finds the pool idle need not, so
that every request that fits the pool is served in the end (law: LIVE-1). A plan counts exactly the blocks that
`effects.serve` takes (law: PLAN-1). Outside a plan, `fits` counts nothing for a running request if an upper bound of
its demand is free.
"""

from __future__ import annotations

from typing import Any

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros64
from blockwright.core.keys.request import MAX_LENGTH, Request, count_of
from blockwright.core.pool.pool import BlockPool
from blockwright.core.steps.outcomes import Fits, Never, NotNow, Plan
from blockwright.core.steps.publication import trim_end
from blockwright.core.steps.state import State
from blockwright.core.steps.units import count_outgrown, count_part, has_room
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.layouts import group_of
from blockwright.core.tables.table import RequestTables
from blockwright.errors import NeverFitsError
from blockwright.ids import id_given
from blockwright.kinds import KVCacheSpec


def fits(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> bool:
    """Count the blocks of a checked request for slots; return whether they are free. law: PLAN-1."""
    config = state.config
    state.pool.require_whole()
    ask.slots = min(ask.stop + ask.ahead, config.max_len)
    ask.demand = 0
    ask.outgrown = 0
    if ask.is_planned:
        ask.by_group, ask.saved_by_group = zeros64(config.num_groups), zeros64(config.num_groups)
    if tables is None:
        ask.settled = ask.begin
        count_new(state, request, ask)
        if ask.most > state.pool._size - 1:
            return False
    else:
        ask.settled = tables.num_settled if config.overlaps else trim_end(state, tables, ask.begin)
        # Each group takes one block more than its share of the new slots fills, one for an entry that is
        # copied, and those for the states of drafts.
        new = ask.slots - tables.num_written
        most: i64 = 2 if new < config.least_size else new // config.least_size + 2
        is_short = config.num_groups * (most + config.drafts_within) > state.pool._num_free
        if not is_short and not ask.is_planned and not config.saves_states:
            return True
        count_running(state, tables, ask)
    return ask.missing <= 0


def count_new(state: State, request: Request, ask: StepRequest) -> None:
    """Count for a request that does not run yet: new blocks, states of drafts, and hits that are free now."""
    hit = ask.hit
    own: i64 = 0
    whole: i64 = 0
    shared: i64 = 0
    known: i64 = request._num_prompt + i64(len(request._output))
    tokens = max(known, ask.stop)
    ask.resumed = min(ask.stop, known - 1) if ask.external > 0 else ask.begin
    pool = state.pool
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        group = state.groups[at]
        before, saved = ask.demand, ask.outgrown
        held: i64 = 0
        live: i64 = 0
        kept = group.first_kept(ask.resumed)
        if ask.hit_length > 0:
            held = group.num_adopted(ask.hit_length)
            live = held - group.num_dead(0, min(held, kept))
            own += live
        if state.config.caching and request._block_size > 0:
            units = group._block_size // request._block_size  # `check_keys` has checked that it divides
            if hit is not None:
                if not hit.is_fresh(request):
                    group.check_hit(hit.ids[at], request.keys(units), ask.hit_length)
                # A hit that is free leaves the free blocks when it is adopted, so it is demand as much as a new block.
                free = pool.num_candidates(hit.ids[at]) - group.dead_hits(hit.ids[at], kept)
                ask.demand += free
                if group.keeps_all:
                    shared += live - free
                if ask.hit_length % group._block_size != 0 and count_part(state, ask, at) > 0 and group.keeps_all:
                    shared -= 1
        # law: READ-1
        missing = group.missing_in(held + group.num_dead(held, kept), ask) + group.num_states
        ask.demand += missing
        own += missing
        if ask.is_planned:
            ask.by_group[at] = ask.demand - before
            ask.saved_by_group[at] = ask.outgrown - saved
        at += 1
    if ask.is_whole:
        whole = most_in_steps(state, tokens, ask)
    spare = state.watermark + ask.reserve
    # No request holds a block, so none needs the spare ones. A request as large as the pool would never start.
    if pool._num_free == pool._size - 1:
        spare = 0
    ask.most = max(own, whole)
    # Full attention never gives its hit back, so what it shares is not needed again for the whole request.
    ask.missing = max(ask.demand, whole - shared) + spare - pool._num_free
    ask.saves = ask.outgrown > 0 and ask.missing + ask.outgrown <= 0
    if ask.saves:
        ask.demand += ask.outgrown
        ask.missing += ask.outgrown


def most_in_steps(state: State, num_tokens: i64, ask: StepRequest) -> i64:
    """Return the most blocks that a new request holds until `num_tokens` are computed, in steps as large as this.

    Groups reach their peaks in different steps, so all groups are counted in the same one. Full attention never holds
    less in a later step, and the others repeat after their period, unless a step is cut short by the end of the
    request or of the model: so only those, and the last period before them, are looked at.

    Complexity: O(groups x period), at most O(groups x steps). law: PLAN-2.
    """
    size = max(ask.new, 1)
    period: i64 = size
    for group in state.groups:
        # The least common multiple: after so many tokens all groups are in the same phase again.
        period = min(period // gcd(period, group.period()) * group.period(), MAX_LENGTH)
    whole_steps = period // size  # still to be looked at
    start = ask.resumed + (num_tokens - 1 - ask.resumed) // size * size
    most: i64 = 0
    while start >= ask.resumed and whole_steps > 0:
        stop = min(start + size, num_tokens)
        slots = min(stop + ask.ahead, state.config.max_len)
        held: i64 = 0
        for group in state.groups:
            if group.runs_ahead:
                held += group.held_ahead(start, stop, ask.known)
            else:
                held += group.held_in_step(start, stop, slots, ask.encoder)
        most = max(most, held)
        if slots == start + size + ask.ahead:
            whole_steps -= 1
        start -= size
    return most


def gcd(one: i64, other: i64) -> i64:
    while other > 0:
        one, other = other, one % other
    return one


def count_running(state: State, tables: RequestTables, ask: StepRequest) -> None:
    """Count for a running request, as if its dead entries were already trimmed."""
    gain: i64 = 0
    demand: i64 = 0
    num_groups = state.config.num_groups
    at: i64 = 0
    while at < num_groups:
        group = state.groups[at]
        table = tables.by_group[at]
        before = demand
        demand += group.missing_in(len(table.blocks), ask)
        if tables.is_forked and group.shared_entry(table, ask) >= 0:
            demand += 1
        if group.trims(table, ask.settled):
            # Dead entries are trimmed before blocks are taken, so the step may use the blocks that they free.
            gain += group.trim_gain(table, ask.settled)
        if ask.is_planned:
            ask.by_group[at] = demand - before
        at += 1
    ask.demand = demand
    ask.missing = demand - state.pool._num_free - gain
    if state.config.saves_states:
        count_outgrown(state, tables, ask)


def planned(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> Plan:
    """Return whether a checked request for slots fits, and its demand. law: PLAN-1, PLAN-2, LIVE-1."""
    name = request.request_id
    if ask.is_too_long:
        return Never(name, f"{ask.stop} tokens, max_model_len is {state.config.max_len}")
    is_now = fits(state, request, tables, ask)
    if tables is not None:
        ask.most = most_held(state, tables, ask)
    if ask.most > state.pool.num_blocks - 1:
        return Never(name, f"{ask.most} blocks at once, the pool has {state.pool.num_blocks - 1}")
    if not is_now:
        behind_steps, behind_loads = returning_blocks(state)
        outside = int(state.pool.num_held_externally)
        free = int(state.pool._num_free)
        return NotNow(name, int(ask.missing), free, behind_steps, behind_loads, outside, by_group(ask))
    version = request_version(state, request, tables)
    return Fits(request, ask, state.owner, state.pool._version, version, by_group(ask))


def by_group(ask: StepRequest) -> list[int]:
    """Return the blocks that leave the free queue for a planned step, per group."""
    saves: i64 = 1 if ask.saves else 0
    return [int(count + saves * saved) for count, saved in zip(ask.by_group, ask.saved_by_group)]


def returning_blocks(state: State) -> tuple[dict[int, int], dict[Any, int]]:
    """Return how many blocks become free when each step is settled, and when each load of a released request ends.

    A block that several wait for returns with the last of them. O(blocks that wait). law: LIVE-2.
    """
    held: dict[int, int] = {}  # holders that are left, of blocks that wait
    behind_steps: dict[int, int] = {}
    behind_loads: dict[Any, int] = {}
    for step in state.steps:
        count = 0
        for left in step.fenced:
            count += freed_by(state, left.blocks, held)
        if count > 0:
            behind_steps[int(step.number)] = count
    for name, left in state.loads.items():
        count = freed_by(state, left.blocks, held)
        if count > 0:
            behind_loads[id_given(name)] = count
    return behind_steps, behind_loads


def freed_by(state: State, batch: list[vec[i32]], held: dict[int, int]) -> int:
    """Return how many blocks become free once a batch is released too; note it in `held`."""
    count = 0
    for blocks in batch:
        for each in blocks:
            block = int(each)
            if block != 0:
                left = held.get(block, int(state.pool.num_holds(i64(block)))) - 1
                held[block] = left
                # Forks and hits share blocks: one of them returns only with its last holder.
                if left == 0:
                    count += 1
    return count


def refuse_never(state: State, request: Request, tables: RequestTables | None, ask: StepRequest) -> None:
    """Raise an error for a counted ask of a new request that the pool could not hold even alone.

    A running request that has outgrown the pool is not refused so: it is preempted like any other, and then is new.
    """
    most = state.pool.num_blocks - 1
    if tables is None and ask.most > most and state.config.raises_never:
        raise NeverFitsError(
            f"request: {request.request_id!r} needs {ask.most} blocks at once, the pool has {most}; "
            "refuse the request, or make the pool larger",
            int(ask.most),
            most,
        )


def can_load(state: State, request: Request, num_new_computed_tokens: int, num_external_computed_tokens: int) -> bool:
    """Return whether a new request could ever load tokens after a hit. See `KVCacheManager.can_load`."""
    state.pool.require_whole()
    ask = StepRequest()
    hit: i64 = count_of("num_new_computed_tokens", num_new_computed_tokens)
    ask.hit_length = hit // state.config.whole_alignment * state.config.whole_alignment  # law: LOAD-2
    ask.external = hit - ask.hit_length + count_of("num_external_computed_tokens", num_external_computed_tokens)
    ask.begin = ask.hit_length
    ask.stop = ask.begin + ask.external
    ask.known = request.num_tokens
    ask.certain = ask.stop
    # Nothing is computed by a load, so that no slots beyond its tokens are needed.
    ask.slots = ask.stop
    count_new(state, request, ask)
    is_short = ask.stop <= state.config.max_len and ask.most < state.pool.num_blocks
    # The request goes on from there as from a hit.
    return bool(is_short and has_room(state, request.num_tokens, ask.stop))


def request_version(state: State, request: Request, tables: RequestTables | None) -> tuple[int, ...]:
    """Return the facts beside the pool on which a plan depends."""
    counts = [request._num_computed, i64(request.num_tokens), state.num_steps, i64(len(state.steps))]
    if tables is not None:
        counts += [tables.num_written, tables.num_certain, tables.num_settled, tables.last_step, tables.num_loading]
    return tuple([int(count) for count in counts])


def most_held(state: State, tables: RequestTables, ask: StepRequest) -> i64:
    """Return the pool's blocks that a running request holds after a step, once nothing is in flight. O(blocks)."""
    most: i64 = 0
    end = state.pool._size
    for group, table in zip(state.groups, tables.by_group):
        most += group.missing_in(len(table.blocks), ask)
        for block in table.states:
            most += 1 if i64(block) < end else 0
        first = group.first_kept(ask.begin)
        for entry, block in enumerate(table.blocks):
            if 0 < i64(block) < end and (i64(entry) >= first or group.stays(i64(entry))):
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

    Its steps may begin anywhere, so this is at least what ``allocate_slots(..., full_sequence_must_fit=True)`` counts
    for steps of one size. With more steps in flight, windows and chunks keep all blocks that the oldest of them reads,
    and a recurrent layer one more state for each.

    Complexity: O(block_size) for windows, O(chunk) for chunks, O(1) for the others. law: PLAN-2.

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
    tables = group_of(spec, BlockPool(2, enable_caching), 0, spec.block_size)
    most_new = count_of("step", min(step * steps_in_flight, num_tokens))
    most = int(tables.peak(tokens, most_new, count_of("num_encoder_tokens", num_encoder_tokens)))
    if spec.is_recurrent and enable_caching:
        more = int(tables.entries_for(tokens)) - 2
        most += max(0, min(steps_in_flight - 1, more))
    if tables.runs_ahead:
        most = max(most, tables.most_ahead(steps_in_flight))
    return most

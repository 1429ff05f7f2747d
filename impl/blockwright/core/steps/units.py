"""Hits that end inside a block, and the parts of blocks that are published for them.

With a *unit*, a number of tokens that divides every block, a hit may end at each multiple of it. Beside whole blocks,
the parts of a request's blocks up to its *tails* are published: its prompt, its prompt less one token, and all that it
has computed as it lets go. They are found once the step that writes them has run, because a request that hits one gets
it as a copy, and copies run before the step (law: UNIT-1).
"""

from __future__ import annotations

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.state import State
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.table import NO_WANTS, GroupTable, RequestTables
from blockwright.core.tables.window import FOR_EVER
from blockwright.errors import InvalidArgumentError


def check_unit(state: State, request: Request) -> None:
    """Check that a request has a key at each unit."""
    if request._block_size != state.config.unit:
        state.pool._units_for(request, state.config.unit)


def may_end_inside(state: State) -> bool:
    """Return whether some hit may end inside a block. O(groups).

    If no part is published, only where a layer reads nothing of the block: one with a window of one token.
    """
    return state.pool._index.num_parts > 0 or not all([group._reads_back for group in state.groups])


def has_room(state: State, known: i64, length: i64) -> bool:
    """Return whether a request alone fits the pool with a hit of a length in each step in which it fits without.

    Only beside recurrent layers may it not: a step that reads a state holds it beside the one that it writes. They can
    compute or look ahead by as many drafts as they have states for. No shorter hit has room then. O(groups), and in
    pools that the request fills O(groups x drafts x log tokens). law: LIVE-1.
    """
    most, limit = state.config.most_drafts, state.config.max_len
    if most < 0 or length == 0:
        return True
    ahead = most
    slots = min(known + 2 * most, limit)
    if held_alone(state, known, length, min(known + most, slots), slots) < state.pool._size:
        return True
    while ahead >= 0:
        stop = known + ahead
        slots = most_slots(state, known, stop, min(stop + most, limit))
        if slots > length and held_alone(state, known, length, min(stop, slots), slots) >= state.pool._size:
            return False
        ahead -= 1
    return True


def most_slots(state: State, known: i64, stop: i64, slots: i64) -> i64:
    """Return how many slots, of at most so many, a request alone can fill in one step from its start up to a token."""
    first: i64 = 0
    while first < slots:
        middle = (first + slots + 1) // 2
        if held_alone(state, known, 0, min(stop, middle), middle) < state.pool._size:
            first = middle
        else:
            slots = middle - 1
    return first


def held_alone(state: State, known: i64, start: i64, stop: i64, slots: i64) -> i64:
    """Return the blocks that a request of `known` tokens holds in a step over tokens start..stop-1. O(groups)."""
    held: i64 = 0
    for group in state.groups:
        if group.runs_ahead:
            held += group.held_ahead(start, stop, known)
        else:
            held += group.held_in_step(start, stop, slots, 0)
    return held


def tail_lengths(state: State, request: Request, begin: i64) -> vec[i64]:
    """Return the tails that an admitted request is to publish, ascending: none that it has hit.

    Beside its ends these are 1, 2, 4, ... units behind its hit, and behind the start of each block that follows, where
    hits end there or layers that read everything show a junction. O(tokens / block x log2(block / unit)). law: UNIT-6.
    """
    unit, size = state.config.unit, state.config.most_size
    if unit == 0 or request._block_size <= 0:
        return NO_WANTS
    tails = vec[i64]()
    keyed = request.num_keyed()
    first = min(keyed, i64(request.num_tokens) - 1) // unit * unit
    start = begin
    while start < first and shows_partings(state):
        stop = start // size * size + size
        end = start + unit
        while end < min(stop, first):
            tails = append(tails, end)
            end += end - start
        start = stop
    ends = end_tails(state, request, begin)
    at: i64 = 0
    while at < i64(len(ends)):
        tails = with_length(tails, ends[at])
        at += 1
    return tails


def end_tails(state: State, request: Request, begin: i64) -> vec[i64]:
    """Return those of the tails where recurrent layers publish the state: its ends and its junction. O(1)."""
    unit, whole, keyed = state.config.unit, state.config.whole_alignment, request.num_keyed()
    if unit == 0 or request._block_size <= 0:
        return NO_WANTS
    first, last = min(keyed, i64(request.num_tokens) - 1) // unit * unit, keyed // unit * unit
    junction = request._junction if request._num_looked_up > 0 else 0
    ends = vec[i64]()
    for end in (first, last, junction):
        if end > begin and end % whole != 0:
            ends = with_length(ends, end)
    return ends


def with_length(tails: vec[i64], length: i64) -> vec[i64]:
    """Return ascending tails with one more in its place, if it is none of them. O(tails)."""
    at: i64 = 0
    while at < i64(len(tails)) and tails[at] < length:
        at += 1
    if at < i64(len(tails)) and tails[at] == length:
        return tails
    return extend(append(tails[:at], length), tails[at:])


def next_tail(tables: RequestTables) -> i64:
    """Return the next tail that a request is to publish. O(1)."""
    at = tables.num_tails
    if at < i64(len(tables.tails)):
        return tables.tails[at]
    return FOR_EVER


def reserve_tails(state: State, tables: RequestTables | None, count: i64 = 0) -> None:
    """Take the memory to publish the tails of a request within its written or `count` tokens, and its last two."""
    if state.config.unit > 0:
        due: i64 = 2
        if tables is not None:
            due += num_due(tables, max(count, tables.num_written))
        state.pool._reserve_tails(due * state.config.num_groups)


def reserve_all_tails(state: State, those: list[RequestTables]) -> None:
    """Take the memory to publish the tails of some requests that are written. O(requests and tails)."""
    if state.config.unit > 0:
        count: i64 = 0
        for tables in those:
            count += num_due(tables, tables.num_written)
        state.pool._reserve_tails(count * state.config.num_groups)


def num_due(tables: RequestTables, count: i64) -> i64:
    """Return how many of a request's tails lie within `count` tokens, and are not published."""
    at = tables.num_tails
    while at < i64(len(tables.tails)) and tables.tails[at] <= count:
        at += 1
    return at - tables.num_tails


def publish_tails(state: State, tables: RequestTables, request: Request, count: i64) -> None:
    """Publish the tails of a request within `count` tokens, all of them written by steps that have run. law: UNIT-2.

    The caller has made room and keys; takes no memory.
    """
    first = tables.num_tails
    tables.num_tails += num_due(tables, count)
    publish_parts(state, tables, request, tables.tails, first, tables.num_tails, tables.end_tails)


def publish_parts(
    state: State,
    tables: RequestTables,
    request: Request,
    lengths: vec[i64],
    start: i64,
    stop: i64,
    ends: vec[i64],
) -> None:
    """Publish the parts that end with a range of lengths, in each group that reads of them.

    Recurrent layers have only the state where the last step stopped, drafts aside, unless it has run ahead, and publish
    it at one of some `ends`. Layers beside them that do not read everything publish their parts only there, too: no hit
    could need another.
    """
    first, last = start, stop
    if state.config.saves_states:
        while first < last and not (has_state(state, tables, lengths[first]) and is_among(ends, lengths[first])):
            first += 1
        last = min(last, first + 1)
    if start < stop:
        for group, table in zip(state.groups, tables.by_group):
            if group.keeps_all:
                group.publish_parts(table, request, lengths, start, stop, state.config.unit)
            elif first < last:
                group.publish_parts(table, request, lengths, first, last, state.config.unit)


def is_among(lengths: vec[i64], length: i64) -> bool:
    """Return whether a length is one of some. O(lengths)."""
    at: i64 = 0
    while at < i64(len(lengths)) and lengths[at] != length:
        at += 1
    return at < i64(len(lengths))


def shows_partings(state: State) -> bool:
    """Return whether tails tell later prompts where they part: hits end there, or layers that read everything do."""
    return not state.config.saves_states or any([group.keeps_all for group in state.groups])


def publish_last_part(state: State, tables: RequestTables, request: Request, end: i64) -> None:
    """Publish the last part of what a request computed as it ends, and what the same tokens would hit. law: UNIT-4."""
    unit = state.config.unit
    ends = state.changes.ends
    ends[0] = min(end, request.num_tokens - 1) // unit * unit
    ends[1] = end // unit * unit
    publish_parts(state, tables, request, ends, 0 if ends[0] > 0 else 1, 2 if ends[1] > ends[0] else 1, ends)


def last_end(state: State, tables: RequestTables, request: Request, count: i64) -> i64:
    """Return the end of the part that a request publishes as it ends, of so many tokens; 0 if none, or without units.

    Beside recurrent layers only where its last step stopped at a unit: other states inside blocks are not there.
    """
    unit, most = state.config.unit, min(count, request.num_keyed())
    if unit == 0 or not state.config.saves_states:
        return most if unit > 0 else 0
    left = tables.num_written - tables.num_drafts
    return left if left <= most and left % unit == 0 and has_state(state, tables, left) else 0


def has_state(state: State, tables: RequestTables, length: i64) -> bool:
    """Return whether recurrent layers hold the state after some tokens: the last step stopped there, not ahead."""
    drafts = tables.num_drafts
    return length == tables.num_written - drafts and not (state.config.runs_ahead and drafts > 0)


def num_certain(tables: RequestTables, request: Request) -> i64:
    """Return the known tokens that a request has computed for certain."""
    return min(tables.num_certain, i64(request.num_tokens))


def num_parts_to_copy(state: State, ask: StepRequest, at: i64, is_held: bool) -> i64:
    """Return 1 if a group gets the part in which a hit ends as a copy, else 0. See `GroupTables.is_read`.

    A recurrent layer writes over its state, unless the step goes on in another block; then its owner may.
    """
    group, hit = state.groups[at], ask.hit
    if hit is None or not group.ends_in(ask.hit_length) or ask.hit_length % group._block_size == 0:
        return 0
    if not group.is_row():
        is_shared = state.pool.ref_count(i64(hit.ids[at][-1])) > (1 if is_held else 0)
        return 1 if is_shared or group.first_written(ask) == ask.hit_length // group._block_size else 0
    return 1 if group.is_read(i64(hit.ids[at][-1]), ask.hit_length, state.config.unit, is_held) else 0


def count_part(state: State, ask: StepRequest, at: i64) -> i64:
    """Count the copy of the part in which a hit ends; return 1 if it stands for a block that others hold, else 0.

    Of a block that nobody holds it is made only if that fits beside all that the step takes: see `own_parts`. A state
    that is being saved (law: UNIT-7) is copied from where it is.
    """
    group, hit, pool = state.groups[at], ask.hit, state.pool
    if hit is None or not group.ends_in(ask.hit_length):
        return 0
    block = i64(hit.ids[at][-1])
    is_in_table = group.is_row() or pool.ref_count(block) - pool.num_external_holders(block) > 1
    if pool.is_destination(block) and is_in_table:
        raise InvalidArgumentError(
            f"new_computed_blocks: block {block} is the destination of a copy to come, and a step has written to it; "
            "run the copies of take_copies before each step"
        )
    if num_parts_to_copy(state, ask, at, False) == 0:
        return 0
    if pool.ref_count(block) == 0:
        ask.outgrown += 1
        return 0
    ask.demand += 1
    return 1


def own_parts(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Let a request go on in the blocks in which its hit ends, before any group grows. law: COPY-1, UNIT-8.

    It gets copies of those that others read. Where no block is free for that, it takes those that nobody else holds as
    they are, and what is published of them beyond the hit goes.
    """
    if ask.outgrown > 0 and not ask.saves:
        cut_off(state, tables, ask)
    at: i64 = 0
    while at < state.config.num_groups:
        table, entry = tables.by_group[at], ask.hit_length // state.groups[at]._block_size
        if num_parts_to_copy(state, ask, at, True) > 0 and (ask.saves or is_held(state, table, entry)):
            block = state.groups[at].unshare(table, entry)
            replaced = append(append(changes.replaced, changes.request), i32(at))
            changes.replaced = append(append(replaced, i32(entry)), i32(block))
        at += 1


def is_held(state: State, table: GroupTable, entry: i64) -> bool:
    """Return whether others hold the block at an entry of a table, too. O(1)."""
    return state.pool.ref_count(i64(table.blocks[entry])) > 1


def cut_off(state: State, tables: RequestTables, ask: StepRequest) -> None:
    """Take their keys from what a step writes over, where nobody else holds it. law: UNIT-8."""
    at: i64 = 0
    while at < state.config.num_groups:
        group, table = state.groups[at], tables.by_group[at]
        entry = ask.hit_length // group._block_size
        if num_parts_to_copy(state, ask, at, True) > 0 and not is_held(state, table, entry):
            units = ask.hit_length % group._block_size // state.config.unit if group.is_row() else 0
            state.pool._cut_off(i64(table.blocks[entry]), units)
        at += 1


def outgrown_entry(state: State, tables: RequestTables, ask: StepRequest, at: i64) -> i64:
    """Return the entry whose state a step writes over though it is found inside its block, or is to be now; or -1.

    If others hold the block, it stays with them. O(1).
    """
    group, blocks = state.groups[at], tables.by_group[at].blocks
    if group.is_row():
        return -1
    entry = group.first_written(ask)
    if entry >= i64(len(blocks)) or blocks[entry] == 0 or state.pool.num_sharers(i64(blocks[entry])) > 1:
        return -1
    if state.pool.has_tail(i64(blocks[entry])):
        return entry
    end = tables.num_written - tables.num_drafts
    if not tables.is_due or end % group._block_size == 0 or end // group._block_size != entry:
        return -1
    return entry if end >= next_tail(tables) and is_among(tables.end_tails, end) else -1


def save_states(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Let the keys of published states that a step writes over go to copies, or drop them. law: UNIT-7."""
    at: i64 = 0
    while at < state.config.num_groups:
        entry = outgrown_entry(state, tables, ask, at)
        if entry >= 0:
            block = i64(tables.by_group[at].blocks[entry])
            if ask.saves:
                inside = state.pool._index.longest_units(block) * state.config.unit
                length = entry * state.groups[at]._block_size + inside
                new = state.pool._save_tails(block, at)
                if state.wanted is not None:
                    state.wanted.note_copy(tables.wants, length, new)
                changes.saved = append(changes.saved, i32(new))
            else:
                state.pool._drop_tails(block)
        at += 1


def count_outgrown(state: State, tables: RequestTables, ask: StepRequest) -> None:
    """Count the published states that a step writes over; they are copied if that fits beside all it takes."""
    ask.outgrown = 0
    is_copied = True
    at: i64 = 0
    while at < state.config.num_groups:
        entry = outgrown_entry(state, tables, ask, at)
        if entry >= 0:
            ask.outgrown += 1
            if ask.is_planned:
                ask.saved_by_group[at] = 1
            is_copied = is_copied and not state.pool.is_destination(i64(tables.by_group[at].blocks[entry]))
        at += 1
    ask.saves = ask.outgrown > 0 and is_copied and ask.missing + ask.outgrown <= 0
    if ask.saves:
        ask.demand += ask.outgrown
        ask.missing += ask.outgrown

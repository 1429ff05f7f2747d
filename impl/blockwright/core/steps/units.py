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
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import NO_WANTS, RequestTables
from blockwright.core.tables.window import FOR_EVER, Probe
from blockwright.errors import InvalidArgumentError


def check_unit(state: State, request: Request) -> None:
    """Check that a request has a key at each unit.

    Raises:
        InvalidArgumentError: its block size does not divide the unit.
    """
    if request._block_size != state.config.unit:
        state.pool._units_for(request, state.config.unit)


def may_end_inside(state: State) -> bool:
    """Return whether some hit may end inside a block. O(groups).

    If no part is published, only where a layer reads nothing of the block: one with a window of one token.
    """
    return state.pool.num_tails() > 0 or not all([group._reads_back for group in state.groups])


def longest_inside(
    state: State, request: Request, groups: list[GroupTables], probes: list[Probe], length: i64, max_length: i64
) -> i64:
    """Return the longest hit of at most `max_length` tokens that ends inside a block, or `length` if none is longer.

    `length` is the longest hit of whole blocks. O(block / unit) beside layers that read everything; without them, and
    where windows lack what those have, O(tokens / block) and O(block / unit) for each whole block that they have. law:
    HIT-2.
    """
    unit = state.config.unit
    stop = max_length
    for group, probe in zip(groups, probes):
        if group.keeps_all:
            # Nothing is read behind the first whole block that is missing.
            stop = min(stop, probe.run_end * probe.block_size + probe.block_size - unit)
    end = stop // unit * unit
    if end <= length:
        return length
    request.hash_until(end // request._block_size)
    while end > length:
        gap = last_gap(groups, probes, end)
        if gap > 0:
            end = gap // unit * unit  # every length up to here needs the missing block
            continue
        end = last_part(state, request, groups[0], length, end)
        if end <= length:
            break
        if is_hit(state, request, groups, probes, end) and has_room(state, request.num_tokens, end):
            return end
        end -= unit
    return length


def last_part(state: State, request: Request, group: GroupTables, least: i64, most: i64) -> i64:
    """Return the longest length of at most `most` tokens that a group may have inside the block in which `most` ends.

    That is where a part of that block is published, or else where the block begins, or `least`. O(block / unit).
    """
    start = max(least, most // group._block_size * group._block_size)
    if start == most or not group._reads_back:
        return most
    return state.pool.last_tail(request._words, request._block_size, group._group, start, most, state.config.unit)


def last_gap(groups: list[GroupTables], probes: list[Probe], length: i64) -> i64:
    """Return the last token of a block that is missing and that a hit needs just before the block it ends in, or 0.

    That is asked of one block of each group that forgets. O(groups).
    """
    for group, probe in zip(groups, probes):
        if not group.keeps_all:
            entry = length // group._block_size - 1
            is_needed = entry >= group.first_kept(length) or entry < group.sinks
            if entry >= 0 and is_needed and not probe.cached(entry):
                return (entry + 1) * group._block_size - 1
    return 0


def is_hit(state: State, request: Request, groups: list[GroupTables], probes: list[Probe], length: i64) -> bool:
    """Return whether each group has all that a hit needs which ends inside a block."""
    # Parts are asked for first: there are few, and each is asked for once.
    for group in groups:
        needs = length % group._block_size != 0 and group.ends_in(length)
        if needs and find_tail(state, request, group, length) == 0:
            return False
    return all([group.has_blocks(probe, length) for group, probe in zip(groups, probes)])


def find_tail(state: State, request: Request, group: GroupTables, length: i64) -> i64:
    """Return a block that is published as a part which ends after `length` tokens of a request, or 0. O(1)."""
    at = 2 * (length // request._block_size - 1)
    return state.pool.find_tail(request._words[at], request._words[at + 1], group._group)


def has_room(state: State, known: i64, length: i64) -> bool:
    """Return whether a request alone, in one step from a hit to its last token, has a block to spare in each group.

    Otherwise its copies might wait for ever for room that it does not need. O(groups). law: LIVE-1.
    """
    blocks = state.config.num_groups
    for group in state.groups:
        blocks += group.entries_for(known) - group.num_dead(0, group.first_kept(length))
    return blocks < state.pool._count


def with_tail(state: State, request: Request, group: GroupTables, ids: vec[i32], length: i64) -> vec[i32]:
    """Return the blocks of a hit with that of the part in which it ends, if the group reads of it."""
    if length % group._block_size == 0 or not group.ends_in(length):
        return ids
    return append(ids, i32(find_tail(state, request, group, length)))


def tail_lengths(state: State, request: Request, begin: i64) -> vec[i64]:
    """Return the tails that an admitted request is to publish, ascending: none that it has hit.

    Beside its ends these are 1, 2, 4, ... units behind its hit, and behind the start of each block that follows.
    O(tokens / block x log2(block / unit)). law: UNIT-6.
    """
    unit, size = state.config.unit, state.config.most_size
    if unit == 0 or request._block_size <= 0:
        return NO_WANTS
    tails = vec[i64]()
    keyed = request.num_keyed()
    first, last = min(keyed, i64(request.num_tokens) - 1) // unit * unit, keyed // unit * unit
    start = begin
    while start < first and state.config.most_drafts < 0:  # recurrent layers leave no states there
        stop = start // size * size + size
        end = start + unit
        while end < min(stop, first):
            tails = append(tails, end)
            end += end - start
        start = stop
    whole = state.config.whole_alignment
    if first > begin and first % whole != 0:
        tails = append(tails, first)
    if last > begin and last != first and last % whole != 0:
        tails = append(tails, last)
    junction = request._junction if request._num_looked_up > 0 else 0
    return with_length(tails, junction) if junction > begin and junction % whole != 0 else tails


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
    publish_parts(state, tables, request, tables.tails, first, tables.num_tails)


def publish_parts(
    state: State, tables: RequestTables, request: Request, lengths: vec[i64], start: i64, stop: i64
) -> None:
    """Publish the parts that end with a range of lengths, in each group that reads of them.

    Beside recurrent layers only where the last step stopped, drafts aside, unless it has run ahead: no hit could need
    another.
    """
    if state.config.saves_states:
        while start < stop and not has_state(state, tables, lengths[start]):
            start += 1
        stop = min(stop, start + 1)
    if start < stop:
        for group, table in zip(state.groups, tables.by_group):
            group.publish_parts(table, request, lengths, start, stop, state.config.unit)


def publish_last_part(state: State, tables: RequestTables, request: Request, end: i64) -> None:
    """Publish the last part of what a request computed as it ends, and what the same tokens would hit. law: UNIT-4."""
    unit = state.config.unit
    ends = state.changes.ends
    ends[0] = min(end, request.num_tokens - 1) // unit * unit
    ends[1] = end // unit * unit
    publish_parts(state, tables, request, ends, 0 if ends[0] > 0 else 1, 2 if ends[1] > ends[0] else 1)


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


def num_replaced_shares(state: State, ask: StepRequest, at: i64) -> i64:
    """Return 1 if a group that keeps all takes a block in place of the last of its hit, which others hold, else 0."""
    group, hit = state.groups[at], ask.hit
    return 1 if hit is not None and group.keeps_all and state.pool.ref_count(i64(hit.ids[at][-1])) > 0 else 0


def check_part_copied(state: State, ask: StepRequest, at: i64) -> None:
    """Check that the block in which a hit ends is not the destination of a copy to come. law: COPY-1."""
    group, hit = state.groups[at], ask.hit
    if hit is not None and group.ends_in(ask.hit_length) and state.pool.is_destination(i64(hit.ids[at][-1])):
        raise InvalidArgumentError(
            f"new_computed_blocks: block {hit.ids[at][-1]} is the destination of a copy to come; "
            "run those of take_copies first"
        )


def own_parts(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Copy the parts in which a hit ends, where others read their blocks, before any group grows. law: COPY-1."""
    at: i64 = 0
    while at < state.config.num_groups:
        if num_parts_to_copy(state, ask, at, True) > 0:
            table = tables.by_group[at]
            entry = ask.hit_length // state.groups[at]._block_size
            block = state.groups[at].unshare(table, entry)
            replaced = append(append(changes.replaced, changes.request), i32(at))
            changes.replaced = append(append(replaced, i32(entry)), i32(block))
        at += 1


def outgrown_entry(state: State, tables: RequestTables, ask: StepRequest, at: i64) -> i64:
    """Return the entry whose state a step writes over though it is found inside its block, or is to be now; or -1.

    If others hold the block, it stays with them. O(tails).
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
    number = tables.num_tails
    while number < i64(len(tables.tails)) and tables.tails[number] < end:
        number += 1
    return entry if number < i64(len(tables.tails)) and tables.tails[number] == end else -1


def count_outgrown(state: State, tables: RequestTables, ask: StepRequest) -> None:
    """Count the published states that a step writes over; they are copied if that fits beside all it takes."""
    ask.outgrown = 0
    is_copied = True
    at: i64 = 0
    while at < state.config.num_groups:
        entry = outgrown_entry(state, tables, ask, at)
        if entry >= 0:
            ask.outgrown += 1
            is_copied = is_copied and not state.pool.is_destination(i64(tables.by_group[at].blocks[entry]))
        at += 1
    ask.saves = ask.outgrown > 0 and is_copied and ask.missing + ask.outgrown <= 0
    if ask.saves:
        ask.demand += ask.outgrown
        ask.missing += ask.outgrown

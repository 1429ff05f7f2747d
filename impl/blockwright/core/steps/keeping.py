"""Which blocks the next turn will need: what a request wants kept, and what that says of the blocks it lets go of.

A request wants the blocks that hits of a few lengths would need: its prompt, with and without its last token; the hit
that it began with, unless it was the first to go on from there; its junction; and, when it lets go, all that it has
published. Other blocks are passing, and are evicted first (law: POLICY-4).
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.pool.order.passing import AT_PROMPT, NO_TIP, PassingBlocks
from blockwright.core.steps.preconditions import tables_running
from blockwright.core.steps.state import State
from blockwright.core.steps.units import outgrown_entry
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import NO_WANTS, RequestTables
from blockwright.core.tables.window import Probe, common_hit

_PROMPT: Final = 0
_RESEND: Final = 1
_HIT: Final = 2
_JUNCTION: Final = 3
_OUTPUT: Final = 4
"""Where these lengths are in what a request wants, after its prompt with and without the last token; 0: not wanted."""
_LAST: Final = 5
"""Where it has left a state as it ended, if it was at a unit."""
NONE: Final = 0
ALL: Final = 1
SOME: Final = 2
"""What `wanted_dead` returns."""


def wanted_lengths(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Note which lengths, each one that a hit can have, a request wants kept, and what passing blocks are worth to it.

    law: KEEP-1.
    """
    if state.pool._passing is None:
        return
    known: i64 = request._num_prompt + i64(len(request._output))
    alignment = state.config.alignment
    prompt = within(state, known)
    resend = within(state, known - 1)
    hit = (ask.begin + ask.external) // alignment * alignment
    tip: i64 = NO_TIP
    if ask.external == 0 and hit != prompt and hit != resend:
        tip = tip_of(state, ask)
    junction: i64 = request._junction if request._num_looked_up > 0 else 0
    tables.wants = vec[i64]([prompt, resend, hit if tip == NO_TIP else 0, junction])
    tables.wants_end = max(prompt, hit, junction)
    tables.wants_output = tip != AT_PROMPT or junction > 0
    worth(state, request, ask)


def learn(state: State, ask: StepRequest) -> None:
    """Let the pool learn from an admission how many passing blocks to spare. O(1); takes no memory.

    law: POLICY-6.
    """
    if state.pool._passing is not None:
        state.pool._learn(ask.hit_length, ask.served, ask.lacks)


def worth(state: State, request: Request, ask: StepRequest) -> None:
    """Count what passing blocks are worth to a request that is admitted. O(blocks of its hit) if it ends with one.

    law: POLICY-6.
    """
    ask.served = 0
    ask.lacks = False
    passing, hit = state.pool._passing, ask.hit
    if passing is None or passing.whole == 0:
        return
    is_served = False
    if hit is not None:
        for ids in hit.ids:
            is_served = is_served or (len(ids) > 0 and state.pool.is_to_pass(i64(ids[-1])))
    if is_served:
        ask.served = ask.hit_length - ordinary_hit(state, request, ask.hit_length)
    junction: i64 = request._junction if request._num_looked_up > 0 else 0
    if junction > 0:
        ask.lacks = not is_asked(state, request, junction)


def ordinary_hit(state: State, request: Request, length: i64) -> i64:
    """Return the longest hit of at most some tokens that needs no passing candidate. O(blocks) at most."""
    max_length: i64 = min(request.num_tokens - 1, request.num_keyed())
    probes: list[Probe] = []
    for group in state.groups:
        size = group._block_size
        keys = request.keys(state.pool._units_for(request, size))
        # One block more than the hit, since a draft head needs that.
        probe = group.probe(keys, min(max_length, length + size), state.config.eagle)
        probe.leaves_out = not group.keeps_all
        probes.append(probe)
    return common_hit([group.rule for group in state.groups], probes, state.config.whole_alignment, length)


def is_asked(state: State, request: Request, junction: i64) -> bool:
    """Return whether an earlier request asked for a hit that ends at a junction. O(duplicates)."""
    for group in state.groups:
        if group.keeps_all:
            size = group._block_size
            keys = request.keys(state.pool._units_for(request, size))
            return junction >= size and state.pool.is_asked(
                state.pool.find(keys, junction // size - 1, group._group, size)
            )
    return False


def ask_for(state: State, group: GroupTables, wants: vec[i64], blocks: vec[i32]) -> None:
    """Note in a table that is let go of with which blocks of full attention the wanted hits end. O(1)."""
    passing = state.pool._passing
    if passing is not None and passing.whole > 0 and group.keeps_all:
        i: i64 = 0
        while i < min(_LAST, i64(len(wants))):
            entry = wants[i] // group._block_size - 1
            if entry >= 0 and entry < i64(len(blocks)) and state.pool._index.has_key(i64(blocks[entry])):
                passing.ask(i64(blocks[entry]))
            i += 1


def tip_of(state: State, ask: StepRequest) -> i64:
    """Return the tip that a hit ends with, of the first group that has one. O(groups)."""
    hit = ask.hit
    if hit is not None:
        for group, ids in zip(state.groups, hit.ids):
            if not group.keeps_all and len(ids) > 0:
                tip = state.pool.tip(i64(ids[-1]))
                if tip != NO_TIP:
                    return tip
    return NO_TIP


def within(state: State, length: i64) -> i64:
    """Return the longest hit whose blocks, the draft margin among them, lie within so many tokens. O(1)."""
    config = state.config
    return max(length - state.margin, 0) // config.alignment * config.alignment


def all_wanted(state: State, tables: RequestTables, last: i64) -> vec[i64]:
    """Return the lengths that a request wants kept as it ends or is preempted; `want_output` puts its output in. O(1).

    Where hits may end inside blocks, it publishes `last` tokens as it lets go of them.
    """
    if state.pool._passing is None:
        return NO_WANTS
    wants = append(tables.wants[:], 0)
    return append(wants, last) if last > 0 else wants


def want_output(state: State, tables: RequestTables, wants: vec[i64], resumes: bool, last: i64) -> None:
    """Put into these lengths that of all that a request has published by now. O(groups); takes no memory."""
    if state.pool._passing is None:
        return
    count = state.config.max_len
    for group, table in zip(state.groups, tables.by_group):
        if not group.is_encoder:  # of a request that publishes nothing more, nothing is known to end
            count = (
                min(count, table.num_published * group._block_size)
                if table.num_published <= state.config.max_len
                else 0
            )
    end = within(state, max(count, last))
    if not resumes and not tables.wants_output and end >= max(wants[_PROMPT], wants[_HIT], wants[_JUNCTION]):
        end = 0
    wants[_OUTPUT] = end


def begin_wanted(state: State, group: GroupTables, wants: vec[i64]) -> None:
    """Tell the pool which entries of a group's table are wanted, which is let go of next. O(1); takes no memory.

    law: POLICY-5.
    """
    passing = state.pool._passing
    if passing is not None and group.keeps_all:
        passing.begin_plain()
    elif passing is not None:
        passing.begin()
        i: i64 = 0
        while i < min(_LAST, i64(len(wants))):
            group.want(passing, held(group, wants, wants[i]))
            i += 1
        if passing.every > 0:
            group.want_each(passing, passing.every, asked_until(wants))
        note_ends(passing, group, wants)


def asked_until(wants: vec[i64]) -> i64:
    """Return the longest of the lengths that a request wanted kept when it was admitted. O(1)."""
    most: i64 = 0
    i: i64 = 0
    while i < min(_OUTPUT, i64(len(wants))):
        most = max(most, wants[i])
        i += 1
    return most


def held(group: GroupTables, wants: vec[i64], length: i64) -> i64:
    """Return a length if the blocks of a group's table hold what a hit of it needs, else 0. O(1).

    A recurrent layer has no state inside a block but the last one: copies have the others (law: UNIT-7).
    """
    is_last = i64(len(wants)) > _LAST and length == wants[_LAST]
    return length if is_last or length % group._block_size == 0 or group.is_row() else 0


def note_ends(passing: PassingBlocks, group: GroupTables, wants: vec[i64]) -> None:
    """Tell the pool at which entries something ends that no other request is known to have gone on from. O(1)."""
    if len(wants) > 0:
        output: i64 = wants[_OUTPUT] if len(wants) > _OUTPUT else 0
        size = group._block_size
        passing.end_at(
            (held(group, wants, unproven(wants, wants[_PROMPT])) - 1) // size,
            (held(group, wants, unproven(wants, wants[_RESEND])) - 1) // size,
            (held(group, wants, unproven(wants, output)) - 1) // size,
        )


def save_states(state: State, tables: RequestTables, ask: StepRequest, changes: StepScratch) -> None:
    """Let the keys of published states that a step writes over go to copies, or drop them. law: UNIT-7."""
    at: i64 = 0
    while at < state.config.num_groups:
        entry = outgrown_entry(state, tables, ask, at)
        if entry >= 0:
            block = i64(tables.by_group[at].blocks[entry])
            if ask.saves:
                length = entry * state.groups[at]._block_size + state.pool.tail_units(block) * state.config.unit
                new = state.pool._save_tails(block, at)
                note_saved(state, tables.wants, length, new)
                changes.saved = append(changes.saved, i32(new))
            else:
                state.pool._drop_tails(block)
        at += 1


def note_saved(state: State, wants: vec[i64], length: i64, copy: i64) -> None:
    """Note of the copy of a state of some length whether the prompt ended with that. O(1)."""
    passing = state.pool._passing
    if passing is not None:
        passing.note(copy, False)
        if unproven(wants, length) > 0 and (length == wants[_PROMPT] or length == wants[_RESEND]):
            passing.note_tip(copy, AT_PROMPT)


def unproven(wants: vec[i64], length: i64) -> i64:
    """Return a length, or 0 if it is that of the hit or the junction. O(1)."""
    return 0 if length == wants[_HIT] or length == wants[_JUNCTION] else length


def may_be_wanted(state: State, request: Request, at: i64, start: i64, stop: i64) -> bool:
    """See `KVCacheManager.may_be_wanted`. Takes no memory."""
    tables = tables_running(state, request)
    passing, group = state.pool._passing, state.groups[at]
    if passing is None or group.keeps_all or stop * group._block_size > tables.wants[_PROMPT]:
        return True
    begin_wanted(state, group, tables.wants)
    while start < stop and passing.is_passing(start, 0):
        start += 1
    passing.end()
    return start < stop


def end_wanted(state: State) -> None:
    """Tell the pool that what is let go of next is ordinary. O(1)."""
    if state.pool._passing is not None:
        state.pool._passing.end()


def wanted_dead(state: State, tables: RequestTables, changes: StepScratch) -> i64:
    """Return which of the entries that die a wanted hit needs: `NONE`, `ALL`, where nothing ends at one, or `SOME`.

    Most steps that decode are of the first two, and let go of the blocks of all groups at once. O(groups).
    """
    wants, passing = tables.wants, state.pool._passing
    has_multiples = passing is not None and passing.every > 0
    found: i64 = SOME
    at: i64 = 0
    while at < state.config.num_groups:
        if changes.dead[at] < changes.dead_ends[at]:
            group = state.groups[at]
            needed = NONE
            size = group._block_size
            start = i64(changes.dead[at]) * size
            end = i64(changes.dead_ends[at]) * size
            if has_multiples and start <= tables.wants_end:
                return SOME
            k: i64 = i64(len(wants)) if start > tables.wants_end else 0
            while k < i64(len(wants)):
                length: i64 = wants[k]
                if length > 0 and start <= length:
                    first = group.rule.first_needed(length)
                    if first < end:
                        if first >= start + size or end >= length:
                            return SOME
                        needed = ALL
                k += 1
            if found != SOME and found != needed:
                return SOME
            found = needed
        at = i64(changes.runs[at])
    return found


def trim_group(state: State, tables: RequestTables, at: i64, stop: i64) -> None:
    """Trim the entries of a group before `stop`, all of them dead. O(entries that die)."""
    group, table = state.groups[at], tables.by_group[at]
    start = max(table.num_trimmed, group.sinks)
    if stop <= start:
        return
    begin_wanted(state, group, tables.wants)
    group.trim_until(table, stop)
    end_wanted(state)

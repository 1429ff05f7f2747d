"""Which blocks the next turn will need: what a request wants kept, and what that says of the blocks it lets go of.

A request wants the blocks that hits of a few lengths would need: its prompt, with and without its last token; the hit
that it began with, unless it was the first to go on from there; its junction; and, when it lets go, all that it has
published. Other blocks are passing, and are evicted first (law: POLICY-4).
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from blockwright.core.keys.request import Request
from blockwright.core.pool.order.passing import AT_PROMPT, NO_TIP, PassingBlocks
from blockwright.core.steps.preconditions import tables_running
from blockwright.core.steps.state import State
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import NO_WANTS, RequestTables

_PROMPT: Final = 0
_RESEND: Final = 1
_HIT: Final = 2
_JUNCTION: Final = 3
_OUTPUT: Final = 4
"""Where these lengths are in what a request wants, after its prompt with and without the last token; 0: not wanted."""


def wanted_lengths(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Note the lengths that a request wants kept from its admission on, each one that a hit can have. O(groups).

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
    tables.wants_output = tip != AT_PROMPT


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


def all_wanted(state: State, tables: RequestTables, resumes: bool) -> vec[i64]:
    """Return the lengths that a request wants kept as it ends or is preempted. O(groups)."""
    if state.pool._passing is None:
        return NO_WANTS
    count = state.config.max_len
    for group, table in zip(state.groups, tables.by_group):
        if not group.is_encoder:
            count = min(count, table.num_published * group._block_size)
    wants = tables.wants
    end = within(state, count)
    if not resumes and not tables.wants_output and end >= max(wants[_PROMPT], wants[_HIT], wants[_JUNCTION]):
        end = 0
    return append(wants[:], end)


def begin_wanted(state: State, group: GroupTables, wants: vec[i64]) -> None:
    """Tell the pool which entries of a group's table are wanted, which is let go of next. O(1); takes no memory.

    law: POLICY-5.
    """
    passing = state.pool._passing
    if passing is not None and not group.keeps_all:
        passing.begin()
        i: i64 = 0
        while i < i64(len(wants)):
            group.want(passing, wants[i])
            i += 1
        note_ends(passing, group, wants)


def note_ends(passing: PassingBlocks, group: GroupTables, wants: vec[i64]) -> None:
    """Tell the pool at which entries something ends that no other request is known to have gone on from. O(1)."""
    if len(wants) > 0:
        output: i64 = wants[_OUTPUT] if len(wants) > _OUTPUT else 0
        size = group._block_size
        passing.end_at(
            unproven(wants, wants[_PROMPT]) // size - 1,
            unproven(wants, wants[_RESEND]) // size - 1,
            unproven(wants, output) // size - 1,
        )


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


def wants_none(state: State, tables: RequestTables, changes: StepScratch) -> bool:
    """Return whether no wanted hit needs one of the entries that die, as while a request decodes. O(groups)."""
    wants = tables.wants
    i: i64 = changes.num_nulled
    at: i64 = 0
    while at < state.config.num_groups:
        stop: i64 = i64(changes.nulled_ends[at])
        if i < stop:
            group = state.groups[at]
            size = group._block_size
            start = i64(changes.nulled[i]) * size
            if start <= tables.wants_end:
                end = (i64(changes.nulled[stop - 1]) + 1) * size
                k: i64 = 0
                while k < i64(len(wants)):
                    length: i64 = wants[k]
                    if length > 0 and start <= length and group.rule.first_needed(length) < end:
                        return False
                    k += 1
        i = stop
        at += 1
    return True


def trim_group(state: State, tables: RequestTables, at: i64, stop: i64) -> None:
    """Trim the entries of a group before `stop`, all of them dead. O(entries that die)."""
    group, table = state.groups[at], tables.by_group[at]
    start = max(table.num_trimmed, group.sinks)
    if stop <= start:
        return
    passing = state.pool._passing
    wants = tables.wants
    if passing is not None:
        passing.begin()
        if start * group._block_size <= tables.wants_end:
            i: i64 = 0
            while i < i64(len(wants)):
                group.want(passing, wants[i])
                i += 1
            note_ends(passing, group, wants)
    group.trim_until(table, stop)
    end_wanted(state)

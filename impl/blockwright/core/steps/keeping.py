"""Which blocks the next turn will need: what a request wants kept, and what that says of the blocks it lets go of.

A request wants the blocks that hits of a few lengths would need: its prompt, with and without its last token; the hit
that it began with; its junction; and, when it lets go, all that it has published. Other blocks are passing, and are
evicted first (law: POLICY-4).
"""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.state import State
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import NO_WANTS, RequestTables


def wanted_lengths(state: State, request: Request, ask: StepRequest) -> vec[i64]:
    """Return the lengths that a request wants kept from its admission on, each one that a hit can have. O(1).

    law: KEEP-1.
    """
    if state.pool._passing is None:
        return NO_WANTS
    known: i64 = request._num_prompt + i64(len(request._output))
    alignment = state.config.alignment
    wants = vec[i64]([within(state, known), within(state, known - 1)])
    wants = append(wants, (ask.begin + ask.external) // alignment * alignment)
    return append(wants, request._junction) if request._num_looked_up > 0 else wants


def within(state: State, length: i64) -> i64:
    """Return the longest hit whose blocks, the draft margin among them, lie within so many tokens. O(1)."""
    config = state.config
    return max(length - state.margin, 0) // config.alignment * config.alignment


def all_wanted(state: State, tables: RequestTables) -> vec[i64]:
    """Return the lengths that a request wants kept as it ends: also all that every group has published. O(groups)."""
    if state.pool._passing is None:
        return NO_WANTS
    count = state.config.max_len
    for group, table in zip(state.groups, tables.by_group):
        if not group.is_encoder:
            count = min(count, table.num_published * group._block_size)
    return append(tables.wants[:], within(state, count))


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


def end_wanted(state: State) -> None:
    """Tell the pool that what is let go of next is ordinary. O(1)."""
    if state.pool._passing is not None:
        state.pool._passing.end()


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
        i: i64 = 0
        while i < i64(len(wants)):
            # Most entries that die are behind all that is wanted, as a request decodes.
            if start * group._block_size <= wants[i]:
                group.want(passing, wants[i])
            i += 1
    group.trim_until(table, stop)
    end_wanted(state)

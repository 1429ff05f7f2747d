"""Steps that are given up before they have run: what a request published in them is found no more.

Another request that began on such a block within the same step is lost: it publishes nothing more, what it published
from there on goes too, and it is given no more slots.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.steps.publication import make_private
from blockwright.core.steps.state import State
from blockwright.core.tables.table import RequestTables


def num_kept(state: State, tables: RequestTables, computed: i64) -> i64:
    """Return the tokens that stay of a request that ends with a count: no fewer than were said to be done before.

    That is up to where its last step began. A step in place, which notes nothing of that, has published nothing.
    """
    if not state.config.overlaps and tables.num_given != tables.num_written:
        return tables.num_certain
    return max(computed, tables.num_settled)


def give_up(state: State, tables: RequestTables, kept: i64) -> bool:
    """Let nothing be found that a request published behind `kept` tokens, nor what came of that. law: GIVEN-1, GIVEN-2.

    Return whether other requests hold some of it. O(entries behind them); if others do, O(blocks of running requests)
    for each of them.
    """
    gone: set[int] = set()
    unpublish(state, tables, kept, gone)
    for group, table in zip(state.groups, tables.by_group):
        if table.num_published <= state.config.max_len:
            table.num_published = min(table.num_published, kept // group._block_size)
    is_done = len(gone) == 0
    if not is_done:
        state.num_forgets += 1
    while not is_done:
        is_done = True
        for other in list(state.running.values()):
            if other is not tables and not other.is_lost:
                start = first_held(state, other, gone)
                if start >= 0:
                    lose(state, other)
                    unpublish(state, other, max(start, kept), gone)
                    is_done = False
    return len(gone) > 0


def lose(state: State, tables: RequestTables) -> None:
    """Let a request that holds what was given up publish nothing more, and take no more slots."""
    make_private(state, tables)
    tables.is_lost = True
    tables.in_place = tables.request._lease = 0


def unpublish(state: State, tables: RequestTables, start: i64, gone: set[int]) -> None:
    """Take the keys of a request's blocks that are longer than `start` tokens; add those that others hold to `gone`."""
    pool, unit = state.pool, state.config.unit
    for group, table in zip(state.groups, tables.by_group):
        size = group._block_size
        entry = start // size
        while entry < i64(len(table.blocks)):
            block = i64(table.blocks[entry])
            units: i64 = 0
            if unit > 0 and entry * size < start:
                units = (start - entry * size) // unit
            # What was forgotten meanwhile has no key, but whoever has begun on it still reads it.
            is_cut = entry * size >= start or start < tables.num_written
            if block != 0 and (pool._unpublish(block, units) or is_cut) and pool.num_sharers(block) > 1:
                gone.add(int(block))
            entry += 1


def first_held(state: State, tables: RequestTables, gone: set[int]) -> i64:
    """Return the first token of the first entry at which a request holds some of the blocks, or -1."""
    first: i64 = -1
    for group, table in zip(state.groups, tables.by_group):
        entry: i64 = 0
        while entry < i64(len(table.blocks)):
            if int(table.blocks[entry]) in gone:
                start = entry * group._block_size
                first = start if first < 0 else min(first, start)
                break
            entry += 1
    return first

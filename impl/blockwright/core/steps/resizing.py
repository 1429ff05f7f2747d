"""A pool that grows and shrinks while it serves: its end moves, and what is held beyond it is waited for."""

from __future__ import annotations

from typing import Any, NamedTuple

from mypy_extensions import i64

from blockwright.core.steps.publication import make_private
from blockwright.core.steps.state import State
from blockwright.core.tables.table import RequestTables, held_blocks
from blockwright.ids import id_given


class Resizing(NamedTuple):
    """How far a pool is that was resized.

    Attributes:
        num_blocks: blocks of the pool now, the null block included.
        held: blocks with ids of `num_blocks` and above that are still held; their memory is in use. 0: it is all free.
        requests: ids of running requests that hold some of them. Each gives them back when it ends, is preempted, or
            trims them. Others are held by steps in flight, loads, copies to come, or from outside.
    """

    num_blocks: int
    held: int
    requests: tuple[Any, ...]


def resize(state: State, end: i64) -> Resizing:
    """Let the pool end before a block. See `KVCacheManager.resize`. law: RESIZE-1, RESIZE-2, RESIZE-3."""
    private = [tables for tables in state.running.values() if reaches(tables, end)]
    state.listeners.begins()
    with state:
        state.pool._move_end(end)
        state.watermark = int(state.config.watermark * int(end))
        for tables in private:
            # What it would publish comes behind a block that no lookup finds any more.
            make_private(state, tables)
        state.num_forgets += 1
        state.listeners.resized()
    return resizing(state)


def resizing(state: State) -> Resizing:
    """Return how far the pool is. O(blocks beyond its end + blocks that are held)."""
    end, held = state.pool._size, len(state.pool.held_beyond())
    names = [id_given(name) for name, tables in state.running.items() if held > 0 and reaches(tables, end)]
    return Resizing(int(end), held, tuple(names))


def reaches(tables: RequestTables, end: i64) -> bool:
    """Return whether a running request holds a block beyond the end. O(its blocks)."""
    for table in tables.by_group:
        for block in held_blocks(table):
            if i64(block) >= end:
                return True
    return False

"""The requests of a trace: their tokens, the blocks that a step writes to, and null entries. Without a tape nothing."""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.pool.tape import ADVANCE, GONE, HOLDERS, NULL, WRITE
from blockwright.core.steps.state import State
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.table import RequestTables


def go_on(state: State, tables: RequestTables, settled: i64) -> None:
    """Trace how far a request is settled, and how far it has slots; until the call ends it is the one that acts."""
    tape = state.pool._tape
    if tape is not None:
        tape.holder = tables.uid % HOLDERS
        tape.put_both(ADVANCE, 0, settled, i64(len(tables.by_group[0].blocks)) * state.groups[0]._block_size)


def note_nulls(state: State, tables: RequestTables) -> None:
    """Trace the leading entries of a request that are null. O(groups)."""
    tape = state.pool._tape
    at: i64 = 0
    while tape is not None and at < state.config.num_groups:
        if tables.by_group[at].num_trimmed > state.groups[at].sinks:
            tape.put_both(NULL, at, state.groups[at].sinks, tables.by_group[at].num_trimmed)
        at += 1


def note_writes(state: State, tables: RequestTables, ask: StepRequest) -> None:
    """Trace the blocks that a step may write to, and the entries among them that it jumps over. O(entries)."""
    tape = state.pool._tape
    if tape is None:
        return
    note_nulls(state, tables)
    at: i64 = 0
    while at < state.config.num_groups:
        group, blocks = state.groups[at], tables.by_group[at].blocks
        entry: i64 = i64(len(blocks)) if group.is_encoder else max(0, group.first_written(ask))
        while entry < i64(len(blocks)):
            if blocks[entry] != 0:
                tape.put(WRITE, i64(blocks[entry]))
            else:
                tape.put_both(NULL, at, entry, entry + 1)
            entry += 1
        at += 1


def note_gone(state: State, tables: RequestTables, waits: bool) -> None:
    """Trace that a request has ended; if it `waits`, others hold its blocks until a step or a load is done."""
    tape = state.pool._tape
    if tape is not None:
        tape.holder = tables.uid % HOLDERS
        tape.names[int(tape.holder)] = tables.request_id
        tape.put(GONE, 1 if waits else 0)

"""Duplicates that are folded: where requests have computed the same, their tables get the block published first.

Asked once of each full block, after it was computed: `tables.num_folded` tokens have been asked about.
"""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.outcomes import BatchAllocation
from blockwright.core.steps.preconditions import reach, tables_of_each
from blockwright.core.steps.publication import declare
from blockwright.core.steps.state import Left, State
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import NO_WANTS, GroupTable, RequestTables
from blockwright.errors import InvalidArgumentError


def fold_each(state: State, batch: list[Request], counts: vec[i64]) -> BatchAllocation:
    """Fold the duplicates of one request after another: ``fold_duplicates``. law: FOLD-1, FOLD-2."""
    state.pool.require_whole()
    every = tables_of_each(state, batch)
    for at, tables in enumerate(every):
        count = int(counts[i64(at)]) if len(counts) > 0 else 0
        known = min(reach(state, tables, count), batch[at].num_tokens)
        if count > known:
            raise InvalidArgumentError(
                f"num_computed_tokens: must be within 0..{known}, the known and written tokens of "
                f"{batch[at].request_id!r}, not {count}"
            )
    size: i64 = len(batch)
    folds = vec[i32]()
    with state:
        i: i64 = 0
        while i < size:
            tables = every[i]
            tables.request = batch[i]  # which may know more tokens, and their keys
            folds = fold(state, tables, counts[i] if len(counts) > 0 else 0, i, folds)
            i += 1
    nothing = vec[i32]()
    done = BatchAllocation(len(batch), None, nothing, nothing, nothing, nothing, folds, int(state.num_batches))
    done.tell(size * state.config.num_groups, nothing, 0)
    return done


def fold(state: State, tables: RequestTables, count: i64, number: i64, folds: vec[i32]) -> vec[i32]:
    """Fold the duplicates of a request of which some tokens are computed; return `folds` with its entries appended."""
    declare(state, tables.request, tables, count)
    stop = min(count, tables.num_settled)
    if stop <= tables.num_folded:
        return folds
    state.listeners.goes_on(tables, stop)
    batch: list[vec[i32]] = []
    is_any = False
    for at, group in enumerate(state.groups):
        own = vec[i32]()
        # With units a part is found once the step of its writer has run, of which the other request does not know.
        if group.is_row() and not group.is_encoder and state.config.unit == 0:
            own, folds = fold_group(state, tables, group, tables.by_group[at], stop, number, folds)
        is_any = is_any or len(own) > 0
        batch.append(own)
    tables.num_folded = stop
    if is_any and state.is_in_flight(tables):  # law: FLIGHT-1
        step = state.steps[int(tables.last_step - state.steps[0].number)]
        step.fenced.append(Left(batch, None, NO_WANTS, False))
    elif is_any:
        for blocks in batch:
            state.pool._release(blocks, 0, i64(len(blocks)))
    return folds


def fold_group(
    state: State,
    tables: RequestTables,
    group: GroupTables,
    table: GroupTable,
    stop: i64,
    number: i64,
    folds: vec[i32],
) -> tuple[vec[i32], vec[i32]]:
    """Point a table at blocks that others published first; return the blocks that it had, and `folds` with these."""
    pool, blocks, size = state.pool, table.blocks, group._block_size
    keys = tables.request.keys(size // tables.request._block_size) if tables.request._block_size > 0 else None
    own = vec[i32]()
    entry = tables.num_folded // size
    while keys is not None and entry < min(stop // size, i64(len(blocks))):
        block: i64 = i64(blocks[entry])
        first = block if block == 0 else pool.first_held(block, keys, entry, group._group, size)
        if first != block:
            pool._touch_entries(vec[i32]([i32(first)]))
            if pool.ref_count(block) == 1:
                pool._drop_double(block)
            blocks[entry] = i32(first)
            own = append(own, i32(block))
            folds = append(append(folds, i32(number)), i32(group._group))
            folds = append(append(folds, i32(entry)), i32(first))
        entry += 1
    return own, folds

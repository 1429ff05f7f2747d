"""Symmetry of block tables: states that differ only in the names of blocks, in slots, or in the pace of time are one.

Blocks of a device are relabelled by their first appearance in tables and copies; free blocks that can be found are
identified by their content, which is unique, and the others are only counted. Access times are replaced by their ranks,
which is all that eviction compares.
"""

from typing import Any

from blockwright_spec.block_tables.state import Device, Paged, PagedTable, ends, entries_of

from ..kv_cache.symmetry import Names, open_orders
from .abstraction import ranked


def paged_form(state: Paged, names: Names) -> Any:
    marks = marks_of(state, names)
    signed = sorted((signature(state, table, names, marks), slot) for slot, table in enumerate(state.tables))
    forms = [in_order(state, marks, order) for order in open_orders(signed)]
    loose = sorted(
        (block >= state.config.num_gpu, marks[block])
        for block, key in enumerate(state.keys)
        if key is not None and block in state.free
    )
    return min(forms), [each for each, _ in signed], loose, state.null is None


def marks_of(state: Paged, names: Names) -> list[tuple[int, int, int, int]]:
    lives = [key is not None or block not in state.free for block, key in enumerate(state.keys)]
    times = [time if alive else 0 for time, alive in zip(state.times, lives, strict=True)]
    return [
        (0 if key is None else 1 + names.number(key), int(block in state.fresh), state.done[block], rank)
        for block, (key, rank) in enumerate(zip(state.keys, ranked(times), strict=True))
    ]


def signature(state: Paged, table: PagedTable | None, names: Names, marks: list[Any]) -> tuple[Any, ...]:
    """Return a table's signature without the names of blocks; equal signatures leave the order open."""
    if table is None:
        return (0,)
    window, size = state.config.window, state.config.block_size
    dead = 0 if window is None else max(0, table.computed // size - window)
    found = -1 if table.found is None else table.found
    pending = ends(state.copies)
    blocks = tuple(
        (-1,) if block == state.null else (*marks[block], entries_of(state, block), pending.count(block))
        for block in table.entries
    )
    return 1, names.number(table.prefix), table.device is Device.CPU, dead, table.reserved, table.ready, found, blocks


def in_order(state: Paged, marks: list[Any], slots: list[int]) -> Any:
    labels: dict[int | None, int] = {state.null: 0, None: 0}
    tables = [
        [labels.setdefault(block, len(labels)) for block in table.entries]
        for slot in slots
        if (table := state.tables[slot]) is not None
    ]
    copies = [[labels.setdefault(block, len(labels)) for block in pair] for pair in state.copies]
    held = [marks[block] for block in ends(state.copies)]
    contents = [0 if (content := state.contents[block]) is None else len(content[1]) for block in ends(state.copies)]
    return tables, copies, held, contents

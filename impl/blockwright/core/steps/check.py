"""The self-check of a manager: the laws of the tables, recomputed from plain facts.

The ids are those of the specification's list of laws; those of the pool are in `pool`.
"""

from __future__ import annotations

from collections.abc import Mapping

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.core.pool.check import demand_each
from blockwright.core.steps.state import State
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import GroupTable, RequestTables

Fact = tuple[str, str, object, object]
"""A law, what it says something of, what that must be, and what it is."""


def check_state(state: State, held_elsewhere: Mapping[int, int] | None) -> None:
    """Recompute every invariant from scratch: counters, queue, index, tables. See `KVCacheManager.check`."""
    pool = state.pool
    pool.check()
    # Laws are recomputed from the tables and the pool's arrays alone, never from the counters that they judge.
    keyed, whole = pool.published(), pool.published_whole()
    holders = zeros32(len(keyed))
    for number, group in enumerate(state.groups):
        tables = group.all_tables()
        facts: list[Fact] = [("TABLE-1", "requests with a table", list(state.running), list(tables))]
        count_holders(list(tables.values()), holders)
        for name, running in state.running.items():
            table = running.by_group[number]
            is_private = table.num_published > state.config.max_len  # a forgotten one publishes nothing
            useful = [group.is_useful(entry) for entry in range(0 if is_private else int(table.num_published))]
            facts += of_table(
                name,
                table,
                group.is_row(),
                group.most_states(table, state.config.overlaps, running.checkpoint),
                whole,
                useful,
                [entry for entry in range(len(table.blocks)) if group.stays(entry)],
            )
            facts.append(("MAMBA-3", f"states of drafts of request {name!r}", int(group.num_states), len(table.states)))
            holes = group.holes_ahead(table, int(running.num_written))
            facts.append(("MAMBA-6", f"null entries of request {name!r} that its steps may need", [], holes))
            covered = int(group.entries_for(slots_covered(running, group)))
            what = f"entries that cover what is written of request {name!r}"
            facts.append(("TABLE-1", what, covered, min(len(table.blocks), covered)))
        demand_each(facts)
    for left in state.all_left():
        count_blocks(left.blocks, holders)
    # Taken before copies and outside holders are added: only requests that write can violate WRITE-1.
    sharers = [int(n) for n in holders]
    for _, source, destination in pool.pending_copies():
        holders[source] += 1
        holders[destination] += 1
    pinned = {block: times for block, times in enumerate(pool.holders_apart()) if times != 0}
    for block, times in pinned.items():
        holders[i64(block)] += i32(times)
    elsewhere = pinned if held_elsewhere is None else dict(held_elsewhere)
    counts = [int(n) for n in holders]
    facts = [
        ("REF-1", "how often each block is held through the pool's names", elsewhere, pinned),
        ("REF-1", "holders of each block in the tables, and its counter", counts, pool.ref_counts()),
    ]
    facts += of_classes(state, keyed, sharers)
    alone = [block for block in range(1, len(keyed)) if sharers[block] > 1 and not keyed[block]]
    for name, running in state.running.items():
        for group, table in zip(state.groups, running.by_group):
            entry = group.partial_entry(table, running)
            shared = entry >= 0 and sharers[i64(table.blocks[entry])] > 1 and not running.is_forked
            facts.append(("WRITE-1", f"request {name!r} shares the block it writes next, entry {entry}", False, shared))
    noted = {name for name, running in state.running.items() if running.is_due}
    due = {running.request_id for running in state.due.in_order()}
    facts.append(("MAMBA-5", "requests that run and of which a state is due", noted, due))
    if state.num_forks == 0 and state.num_forgets == 0:
        facts.append(("WRITE-1", "unpublished blocks with several holders, and no request was forked", [], alone))
    demand_each(facts)


def slots_covered(tables: RequestTables, group: GroupTables) -> i64:
    if group.is_encoder:
        return 0
    if group.is_row():
        return tables.num_written + tables.num_loading
    return tables.num_written + tables.num_loading - tables.num_drafts


def of_table(
    name: str, table: GroupTable, in_a_row: bool, most: int, keyed: list[bool], useful: list[bool], staying: list[int]
) -> list[Fact]:
    """Return what must be so of one table and its own counters: TABLE-2, MAMBA-1, TRIM-1, TRIM-2 and PUB-2.

    Args:
        name: the request.
        table: its table in one group.
        in_a_row: no entry is ever jumped over.
        most: blocks that the table may hold at most.
        keyed: whether each block of the pool is published.
        useful: whether some hit can need each of the entries that publication has passed.
        staying: entries that trimming leaves.
    """
    entries = [int(block) for block in table.blocks]
    foreign = [block for block in entries if not 0 <= block < len(keyed)]
    blocks = [block for block in entries if block != 0]
    start = int(table.num_trimmed)
    kept = [entry for entry in range(len(entries)) if entry in staying or entry >= start]
    gone = [entries[entry] for entry in range(min(start, len(entries))) if entry not in staying]
    facts: list[Fact] = [
        ("TABLE-2", f"foreign blocks in the table of request {name!r}", [], foreign),
        ("MAMBA-1", f"blocks of request {name!r}, of which there may be {most}", min(len(blocks), most), len(blocks)),
        ("TABLE-2", f"distinct blocks in the table {entries} of request {name!r}", len(blocks), len(set(blocks))),
        ("TRIM-1", f"trimmed entries of request {name!r}", [0] * len(gone), gone),
    ]
    if in_a_row and not foreign:
        nulls = [entries[entry] for entry in kept].count(0)
        passed = [entry for entry in kept if entry < len(useful)]
        full = [entries[entry] for entry in passed]
        wanted, shown = [useful[entry] for entry in passed], [keyed[block] for block in full]
        facts += [
            ("TRIM-2", f"null entries of request {name!r} beyond the trimmed ones, in {entries}", 0, nulls),
            ("PUB-2", f"published blocks of request {name!r}, of {full}", wanted, shown),
        ]
    return facts


def of_classes(state: State, keyed: list[bool], sharers: list[int]) -> list[Fact]:
    """Return what must be so of the classes of blocks, whatever noted them: POLICY-4 and POLICY-5."""
    classes, groups = state.pool._classes(), state.pool.block_groups()
    reads_all = {at for at, group in enumerate(state.groups) if group.keeps_all}
    bare = [block for block in classes if not keyed[block]]
    held = [block for block in classes if sharers[block] > 0]
    needed = [block for block in classes if groups[block] in reads_all]
    return [
        ("POLICY-4", "unpublished blocks that are passing, or where something ended", [], bare),
        ("POLICY-4", "blocks that requests hold that are passing, or where something ended", [], held),
        ("POLICY-5", "passing blocks of layers that read everything, or where something ended", [], needed),
    ]


def count_blocks(batch: list[vec[i32]], holders: vec[i32]) -> None:
    """Add blocks that wait behind a fence to a count per block. O(blocks)."""
    for blocks in batch:
        for block in blocks:
            if 0 < i64(block) < i64(len(holders)):
                holders[i64(block)] += 1


def count_holders(tables: list[GroupTable], holders: vec[i32]) -> None:
    for table in tables:
        count_blocks([table.blocks, table.states], holders)

"""The self-check's questions: each law recomputed from plain facts, both sides shown where they differ.

The ids are those of the specification's list of laws. The pool and the managers gather the facts; nothing here trusts
a counter that it could count itself.
"""

from __future__ import annotations

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.index import PrefixIndex
from blockwright.core.tables import GroupTable
from blockwright.errors import InvariantError


def demand(law: str, what: str, expected: object, actual: object) -> None:
    """Raise `InvariantError` unless both sides are equal."""
    if expected != actual:
        raise InvariantError(law, what, expected, actual)


def check_queue(num_free: int, queue: list[int], backwards: list[int], ref: list[int], keyed: list[bool]) -> None:
    """Check the free queue, read in both directions, against the counters and the published blocks.

    Raises:
        InvariantError: REF-1, QUEUE-1 or NULL-1 is broken.
    """
    demand("QUEUE-1", "blocks in the free queue", num_free, len(queue))
    demand("QUEUE-1", "the queue read backwards", queue[::-1], backwards)
    free = [block for block in range(1, len(ref)) if ref[block] == 0]
    demand("REF-1", "the free blocks are those without holder", free, sorted(queue))
    flags = [keyed[block] for block in queue]
    demand("QUEUE-1", "published blocks come last in the queue", sorted(flags), flags)
    demand("NULL-1", "holders of the null block", 0, ref[0])
    demand("NULL-1", "the null block is published", False, keyed[0])


def check_index(index: PrefixIndex, keyed: list[bool]) -> None:
    """Check that the index's slots and rings hold each published block once, under its own key.

    Raises:
        InvariantError: KEY-1 is broken.
    """
    ringed: list[int] = []
    for oldest in index.slot_blocks():
        low, high, group = index.key(oldest)
        demand("KEY-1", f"the block found under the key of block {oldest}", oldest, int(index.find(low, high, group)))
        block: i64 = oldest
        while block != 0 and len(ringed) <= len(keyed):
            demand("KEY-1", f"block {block} carries its ring's key", True, index.matches(block, low, high, group))
            ringed.append(int(block))
            block = index.next_duplicate(block, oldest)
    published = [block for block in range(len(keyed)) if keyed[block]]
    demand("KEY-1", "the published blocks are those in the index", published, sorted(ringed))
    demand("KEY-1", "the number of published blocks", len(published), int(index.num_keyed))


def check_table(name: str, table: GroupTable, in_a_row: bool, most: int, keyed: list[bool], useful: list[bool]) -> None:
    """Check one table against its own counters.

    Args:
        name: the request.
        table: its table in one group.
        in_a_row: no entry is ever jumped over.
        most: blocks that the table may hold at most.
        keyed: whether each block of the pool is published.
        useful: whether some hit can need each of the entries that publication has passed.

    Raises:
        InvariantError: TABLE-2, TRIM-1, TRIM-2, PUB-2 or MAMBA-1 is broken.
    """
    entries = [int(block) for block in table.blocks]
    foreign = [block for block in entries if not 0 <= block < len(keyed)]
    demand("TABLE-2", f"foreign blocks in the table of request {name!r}", [], foreign)
    blocks = [block for block in entries if block != 0]
    demand("MAMBA-1", f"blocks of request {name!r}, of which there may be {most}", min(len(blocks), most), len(blocks))
    demand("TABLE-2", f"distinct blocks in the table {entries} of request {name!r}", len(blocks), len(set(blocks)))
    start = int(table.num_trimmed)
    demand("TRIM-1", f"trimmed entries of request {name!r}", [0] * start, entries[:start])
    if in_a_row:
        kept = entries[start:]
        demand("TRIM-2", f"null entries of request {name!r} beyond the trimmed ones, in {entries}", 0, kept.count(0))
        full = entries[start : table.num_published]
        shown = [keyed[block] for block in full]
        demand("PUB-2", f"published blocks of request {name!r}, of {full}", useful[start:], shown)


def count_blocks(batch: list[vec[i32]], holders: vec[i32]) -> None:
    """Add blocks that wait behind a fence to a count per block. O(blocks)."""
    for blocks in batch:
        for block in blocks:
            if 0 < i64(block) < i64(len(holders)):
                holders[i64(block)] += 1


def count_holders(tables: list[GroupTable], holders: vec[i32]) -> None:
    """Add the tables' entries to a count per block. O(blocks held)."""
    for table in tables:
        count_blocks([table.blocks, table.states], holders)

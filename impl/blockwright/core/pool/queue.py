"""The free queue: a ring through the rows of free blocks, with the null block where it begins and ends.

The link of a free block has the next one above, and the one before it in the last 32 bits. That of a held block is the
number of its holders, negative.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.pool.index import LINK

BEFORE: Final = 0xFFFFFFFF
"""The part of a link that is the block before."""
AFTER: Final = -0x100000000
"""The part of a link that is the block behind."""


def join(rows: vec[i64], ahead: i64, behind: i64) -> None:
    """Link two blocks of the queue."""
    rows[4 * ahead + LINK] = behind << 32 | rows[4 * ahead + LINK] & BEFORE
    rows[4 * behind + LINK] = rows[4 * behind + LINK] & AFTER | ahead


def join_all(rows: vec[i64], count: i64) -> None:
    """Put all blocks into the queue, by their ids. O(count)."""
    block: i64 = 1
    while block < count:
        join(rows, block - 1, block)
        block += 1
    join(rows, count - 1, 0)


def insert(rows: vec[i64], block: i64, ahead: i64) -> None:
    """Put a block into the queue behind another, in front of all if that is 0."""
    behind = rows[4 * ahead + LINK] >> 32
    rows[4 * block + LINK] = behind << 32 | ahead
    rows[4 * behind + LINK] = rows[4 * behind + LINK] & AFTER | block
    rows[4 * ahead + LINK] = block << 32 | rows[4 * ahead + LINK] & BEFORE


def insert_all(rows: vec[i64], ids: vec[i32], start: i64, stop: i64, ahead: i64) -> i64:
    """Put the blocks of a range of a table into the queue behind another, last entry first; return the last."""
    behind = rows[4 * ahead + LINK] >> 32
    i = stop
    while i > start:
        i -= 1
        block: i64 = i64(ids[i])
        rows[4 * block + LINK] = ahead
        rows[4 * ahead + LINK] = block << 32 | rows[4 * ahead + LINK] & BEFORE
        ahead = block
    join(rows, ahead, behind)
    return ahead


def listed(rows: vec[i64], most: i64, is_backwards: bool = False) -> list[int]:
    """Return the blocks of the queue from its head on, or from its tail; cut off behind `most` if it is no ring."""
    ids: list[int] = []
    block: i64 = 0
    while len(ids) <= most:
        link = max(0, rows[4 * block + LINK])  # the self-check reads a damaged queue too
        block = link & BEFORE if is_backwards else link >> 32
        if block == 0:
            break
        ids.append(int(block))
    return ids

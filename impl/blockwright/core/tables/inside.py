"""Lookup of hits that end inside a block: each group has the whole blocks that they need, and the last part."""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.window import Probe


def longest_inside(
    request: Request, groups: list[GroupTables], probes: list[Probe], unit: i64, length: i64, max_length: i64
) -> i64:
    """Return the longest hit of at most `max_length` tokens that ends inside a block, or `length` if none is longer.

    `length` is the longest hit of whole blocks. O(block / unit) beside layers that read everything; without them, and
    where windows lack what those have, O(tokens / block) and O(block / unit) for each whole block that they have. law:
    HIT-2.
    """
    stop = max_length
    for group, probe in zip(groups, probes):
        if group.keeps_all:
            # Nothing is read behind the first whole block that is missing.
            stop = min(stop, probe.run_end * probe.block_size + probe.block_size - unit)
    end = stop // unit * unit
    if end <= length:
        return length
    request.hash_until(end // request._block_size)
    while end > length:
        gap = last_gap(groups, probes, end)
        if gap > 0:
            end = gap // unit * unit  # every length up to here needs the missing block
            continue
        # Lost parts are in no index.
        end = end if probes[0].is_restored else last_part(request, groups[0], unit, length, end)
        if end <= length:
            break
        if is_hit(request, groups, probes, end):
            return end
        end -= unit
    return length


def last_part(request: Request, group: GroupTables, unit: i64, least: i64, most: i64) -> i64:
    """Return the longest length of at most `most` tokens that a group may have inside the block in which `most` ends.

    That is where a part of that block is published, or else where the block begins, or `least`. O(block / unit).
    """
    start = max(least, most // group._block_size * group._block_size)
    if start == most or not group._reads_back:
        return most
    hashed, index = request._block_size, group.block_pool._index
    return index.last_part(request._words, group._group, start // hashed, most // hashed, unit // hashed) * hashed


def last_gap(groups: list[GroupTables], probes: list[Probe], length: i64) -> i64:
    """Return the last token of a block that is missing and that a hit needs just before the block it ends in, or 0.

    That is asked of one block of each group that forgets. O(groups).
    """
    for group, probe in zip(groups, probes):
        if not group.keeps_all:
            entry = length // group._block_size - 1
            is_needed = entry >= group.first_kept(length) or group.stays(entry)
            if entry >= 0 and is_needed and not probe.cached(entry):
                return (entry + 1) * group._block_size - 1
    return 0


def is_hit(request: Request, groups: list[GroupTables], probes: list[Probe], length: i64) -> bool:
    """Return whether each group has all that a hit needs which ends inside a block."""
    # Parts are asked for first: there are few, and each is asked for once.
    for group, probe in zip(groups, probes):
        if lacks_part(request, group, probe, length):
            return False
    return all([group.has_blocks(probe, length) for group, probe in zip(groups, probes)])


def lacks_part(request: Request, group: GroupTables, probe: Probe, length: i64) -> bool:
    """Return whether a hit of `length` tokens needs a part of a block that a group does not have. O(1)."""
    if length % group._block_size == 0 or not group.ends_in(length):
        return False
    pool = group.block_pool
    if pool.find_part(request, length, group._group) != 0:
        return False
    return not probe.is_restored or pool.part_loss(request, length, group._group) <= 0


def with_part(request: Request, group: GroupTables, ids: vec[i32], length: i64) -> vec[i32]:
    """Return the blocks of a hit with that of the part in which it ends, if the group reads of it."""
    if length % group._block_size == 0 or not group.ends_in(length):
        return ids
    return append(ids, i32(group.block_pool.find_part(request, length, group._group)))

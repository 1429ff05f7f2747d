"""Pairs of block ids, checked before anything moves.

Plain Python: a step brings a handful, and a set answers in the time of one call into torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import torch

from blockwright.device.layout import Blocks
from blockwright.errors import BlockError, InvalidArgumentError

Pairs: TypeAlias = Sequence[tuple[int, int]] | torch.Tensor


def checked_pairs(pairs: Pairs, src: list[Blocks], dst: list[Blocks]) -> list[tuple[int, int]]:
    """Return the pairs as ints, sorted by source. O(n log n).

    Raises:
        InvalidArgumentError: not pairs of integers.
        BlockError: an id that a tensor does not have, or a destination twice.
    """
    if isinstance(pairs, torch.Tensor):
        if pairs.dtype not in (torch.int32, torch.int64) or (pairs.numel() and pairs.shape[1:] != (2,)):
            raise InvalidArgumentError(
                f"pairs is {pairs.dtype} of shape {tuple(pairs.shape)}; pass int64 or int32 of shape (n, 2)"
            )
        pairs = pairs.tolist() if pairs.numel() else []
    checked = sorted((source, destination) for source, destination in pairs)
    if checked:
        _check_range("source", [source for source, _ in checked], src)
        _check_range("destination", [destination for _, destination in checked], dst)
        if len({destination for _, destination in checked}) < len(checked):
            block, count = Counter(destination for _, destination in checked).most_common(1)[0]
            raise BlockError(f"pairs: block {block} is the destination of {count} pairs; each block is written once")
    return checked


def _check_range(role: str, ids: Sequence[int], pool: list[Blocks]) -> None:
    smallest = min(pool, key=lambda blocks: blocks.num_blocks)
    for block in (min(ids), max(ids)):
        if not 0 <= block < smallest.num_blocks:
            raise BlockError(
                f"pairs: {role} {block} is no block of {smallest.name}, which has {smallest.num_blocks}; "
                "ids count from zero in each pool"
            )


def check_no_chain(pairs: list[tuple[int, int]]) -> None:
    """Check that no block is both read and written: the outcome would depend on the order."""
    both = {source for source, _ in pairs} & {destination for _, destination in pairs}
    if both:
        raise BlockError(
            f"pairs: block {min(both)} is both a source and a destination; copy in two calls, in the order meant"
        )


def by_count(
    moves: list[tuple[int, int]], pairs: Pairs, counts: Sequence[int], most: int
) -> dict[int, list[tuple[int, int]]]:
    """Return the checked pairs by the number of tokens of each, which `counts` has in the order of `pairs`.

    Raises:
        InvalidArgumentError: not one count for each pair, of 0 to `most` tokens.
    """
    given = [int(pair[1]) for pair in pairs]
    if len(counts) != len(given):
        raise InvalidArgumentError(
            f"num_tokens has {len(counts)} entries: pass one count of tokens for each of {len(given)} pairs"
        )
    for count in counts:
        if not 0 <= count <= most:
            raise InvalidArgumentError(f"num_tokens: {count} is no count of a block's {most} tokens; pass 0 to {most}")
    to = dict(zip(given, counts, strict=True))
    return {count: [pair for pair in moves if to[pair[1]] == count] for count in sorted(set(counts), reverse=True)}


def runs(ids: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]]:
    """Return the longest stretches (start, stop) of positions along which both count up by one. O(n).

    >>> runs([4, 5, 6, 9], [0, 1, 2, 3])
    [(0, 3), (3, 4)]
    >>> runs([4, 5, 6, 9], [0, 1, 7, 8])
    [(0, 2), (2, 3), (3, 4)]
    """
    breaks = [
        place
        for place in range(1, len(ids))
        if ids[place] != ids[place - 1] + 1 or others[place] != others[place - 1] + 1
    ]
    return list(zip([0, *breaks], [*breaks, len(ids)], strict=True))

"""The slots of a paged cache: writing a step's keys and values to them, and reading those of positions.

The cache of a layer is (num_blocks, 2, block_size, num_kv_heads, head_size): keys, then values, of any strides, so that
it may be a view of padded pages. A table row holds the block of each run of `block_size` positions::

    position p of a request  ->  block  row[p // block_size], place  p % block_size
    its slot                 ->  block * block_size + p % block_size
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockwright.device.operands import (
    FLOATS,
    IDS,
    SMALL_FLOATS,
    as_bytes,
    on_host,
    require_cache,
    require_tensor,
    require_written,
    stored,
)
from blockwright.errors import BlockError, InvalidArgumentError


def write_kv(
    cache: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor, *, check: bool = False
) -> None:
    """Write the keys and values of a step's tokens to their slots.

    >>> cache = torch.zeros(3, 2, 2, 1, 1)
    >>> write_kv(cache, torch.ones(2, 1, 1), torch.full((2, 1, 1), 2.0), torch.tensor([5, -1]))
    >>> cache[2].flatten().tolist()
    [0.0, 1.0, 0.0, 2.0]

    O(tokens * num_kv_heads * head_size), and on the CPU O(tokens log tokens) for the checks. The host does not wait for
    a GPU.

    Args:
        cache: (num_blocks, 2, block_size, num_kv_heads, head_size), any strides that give each element memory of its
            own, any floating-point dtype.
        keys: (tokens, num_kv_heads, head_size), of any floating-point dtype; rounded to the cache's (float8 saturates).
        values: as `keys`.
        slot_mapping: (tokens,), int64 or int32; -1 for a token that is not written.
        check: check the slots on a GPU too; the host waits for them.

    Raises:
        InvalidArgumentError: shapes, strides, dtypes or devices are not as described; nothing is written.
        BlockError: a slot in the null block, beyond the cache, or of two tokens; nothing is written.
    """
    cache = require_cache(cache)
    require_written("cache", cache)
    rows = ("tokens", *cache.shape[3:])
    keys = require_tensor("keys", keys, rows, FLOATS + SMALL_FLOATS, cache.device)
    values = require_tensor("values", values, (keys.shape[0], *rows[1:]), FLOATS + SMALL_FLOATS, cache.device)
    slots = require_tensor("slot_mapping", slot_mapping, (keys.shape[0],), IDS, cache.device)
    checked, block_size = on_host(slots, check), cache.shape[2]
    skips = _check_slots(slots, cache) if checked else bool(cache.shape[0])
    with torch.inference_mode():
        used = slots >= 0
        if skips and checked:
            keys, values, slots = keys[used], values[used], slots[used]
        elif skips:
            slots = slots.clamp(min=0)  # the null block's first slot, which gets what it holds
        places = (slots // block_size, slots % block_size)
        for kept, rows_new in ((cache[:, 0], keys), (cache[:, 1], values)):
            words, new = as_bytes(kept), as_bytes(stored(rows_new, cache.dtype))
            if skips and not checked:
                new = torch.where(used[:, None, None], new, words[0, 0])
            words.index_put_(places, new)


def _check_slots(slots: torch.Tensor, cache: torch.Tensor) -> bool:
    """Check the slots of `write_kv`, and return True if any token is to be skipped."""
    if not slots.numel():
        return False
    block_size, num_slots = cache.shape[2], cache.shape[0] * cache.shape[2]
    ordered = slots.sort().values
    low, high = int(ordered[0]), int(ordered[-1])
    if low < -1 or high >= num_slots:
        raise BlockError(
            f"slot_mapping: slot {low if low < -1 else high} is not within the cache's {num_slots}; pass slots of its "
            f"{cache.shape[0]} blocks, or -1 for a token that is not written"
        )
    if low < block_size:
        first = int(torch.searchsorted(ordered, 0))
        if first < ordered.numel() and int(ordered[first]) < block_size:
            raise BlockError(
                f"slot_mapping: slot {int(ordered[first])} lies in the null block, which holds no token; "
                "give the request its slots before the step, or pass -1"
            )
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    if bool(same.any()):
        slot = int(ordered[1:][same][0])
        raise BlockError(f"slot_mapping: slot {slot} is written by two tokens; each slot holds one")
    return low < 0


def gather_kv(
    cache: torch.Tensor, block_ids: torch.Tensor | Sequence[int], start: int, stop: int, *, check: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values of positions start..stop-1 of one table row.

    >>> cache = torch.arange(12.0).reshape(3, 2, 2, 1, 1)
    >>> gather_kv(cache, [2, 1], 1, 3)[0].flatten().tolist()
    [9.0, 4.0]

    O((stop - start) * num_kv_heads * head_size). Only those positions' slots are read.

    Args:
        cache: as for `write_kv`; elements may share memory, for nothing is written.
        block_ids: one row of a block table: (width,) int32 or int64, or a sequence of ids.
        start: first position.
        stop: the one after the last.
        check: check the ids on a GPU too; the host waits for them.

    Returns:
        Keys and values, each (stop - start, num_kv_heads, head_size), of the cache's dtype, in new memory.

    Raises:
        InvalidArgumentError: shapes, dtypes or devices are not as described, or positions that the row does not cover.
        BlockError: one of the positions lies in the null block, or in none of the cache's.
    """
    cache = require_cache(cache)
    if not isinstance(block_ids, torch.Tensor):
        try:
            block_ids = torch.tensor(list(block_ids), dtype=torch.int64)
        except (ValueError, OverflowError, RuntimeError):  # which of them depends on torch's version
            raise InvalidArgumentError("block_ids: holds an integer of more than 64 bits") from None
        block_ids = block_ids.to(cache.device)
    row = require_tensor("block_ids", block_ids, ("entries",), IDS, cache.device)
    block_size = cache.shape[2]
    if not 0 <= start <= stop <= row.shape[0] * block_size:
        raise InvalidArgumentError(
            f"start={start!r}, stop={stop!r}: block_ids has {row.shape[0]} entries of {block_size} positions; "
            "pass 0 <= start <= stop within them"
        )
    if on_host(row, check):
        entries = row[start // block_size : -(-stop // block_size)][None] if stop > start else row[None, :0]
        first = torch.tensor([start // block_size], device=row.device)
        check_blocks("block_ids", entries, first, torch.ones_like(entries, dtype=torch.bool), cache)
    positions = torch.arange(start, stop, device=cache.device)
    keys, values = gathered(cache, row[positions // block_size], positions % block_size, cache.dtype)
    return keys, values


def gathered(
    cache: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of these slots, in `dtype`: each of the shape of `blocks`, and (num_kv_heads, size)."""
    words = as_bytes(cache)
    keys, values = words[:, 0][blocks, places], words[:, 1][blocks, places]
    return keys.view(cache.dtype).to(dtype), values.view(cache.dtype).to(dtype)


def check_blocks(
    name: str, entries: torch.Tensor, first: torch.Tensor, read: torch.Tensor, cache: torch.Tensor
) -> None:
    wrong = read & ((entries <= 0) | (entries >= cache.shape[0]))
    if not bool(wrong.any()):
        return
    request, place = wrong.nonzero()[0].tolist()
    block, entry = int(entries[request, place]), int(first[request]) + place
    if block:
        raise BlockError(
            f"{name}: entry {entry} of request {request} is block {block}, and the cache has {cache.shape[0]}; "
            "pass the table of this cache's group"
        )
    raise BlockError(
        f"{name}: entry {entry} of request {request} is the null block, and positions from {entry * cache.shape[2]} "
        "are read there; give the request its slots before the step, and compute nothing below what was trimmed"
    )

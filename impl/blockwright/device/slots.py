"""The slots of a paged cache: writing a step's keys and values to them, and reading those of positions.

The cache of a layer is a tensor (num_blocks, 2, block_size, num_kv_heads, head_size): keys, then values, of any
strides, so that it may be a view of padded pages; or `KVCacheStorage.pages`, for tokens in any form (`paged`). A table
row holds the block of each run of `block_size` positions::

    position p of a request  ->  block  row[p // block_size], place  p % block_size
    its slot                 ->  block * block_size + p % block_size
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from blockwright.device.operands import FLOATS, IDS, SMALL_FLOATS, as_bytes, on_host, require_tensor, require_written
from blockwright.device.paged import KVPages, pages_of
from blockwright.errors import BlockError, InvalidArgumentError


def write_kv(
    cache: torch.Tensor | KVPages,
    keys: torch.Tensor,
    values: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    check: bool = False,
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
            own, any floating-point dtype; or `KVCacheStorage.pages` of a layer.
        keys: (tokens, num_kv_heads, head_size), of any floating-point dtype; rounded to the cache's (float8 saturates),
            after a division by the scales where the layer has them. Scales by token are chosen here: the largest number
            of a token and head becomes the largest of the dtype.
        values: (tokens, num_kv_heads, head_size_v), as `keys`.
        slot_mapping: (tokens,), int64 or int32; -1 for a token that is not written.
        check: check the slots on a GPU too; the host waits for them.

    Raises:
        InvalidArgumentError: shapes, strides, dtypes or devices are not as described; nothing is written.
        BlockError: a slot in the null block, beyond the cache, or of two tokens; nothing is written.
    """
    pages = pages_of(cache)
    if pages.is_latent:
        raise InvalidArgumentError("cache: latent attention keeps no values; use write_latent")
    for part in (cache,) if isinstance(cache, torch.Tensor) else pages.tensors:
        require_written("cache", part)
    device, dtypes = pages.keys.device, FLOATS + SMALL_FLOATS
    keys = require_tensor("keys", keys, ("tokens", pages.num_kv_heads, pages.head_size), dtypes, device)
    shape = (keys.shape[0], pages.num_kv_heads, pages.value_size)
    _write(pages, keys, require_tensor("values", values, shape, dtypes, device), slot_mapping, check)


def write_latent(
    cache: KVPages, latent: torch.Tensor, rope: torch.Tensor, slot_mapping: torch.Tensor, *, check: bool = False
) -> None:
    """Write the latents of a step's tokens, and their rotary parts, to their slots: latent attention's `write_kv`.

    >>> from blockwright import FullAttentionSpec
    >>> from blockwright.device import KVCacheStorage, plan_kv_cache
    >>> layers = {"mla": FullAttentionSpec.latent(4, kv_lora_rank=2, qk_rope_head_dim=1, dtype="float32")}
    >>> storage = KVCacheStorage(plan_kv_cache(layers, 256, max_model_len=8))
    >>> write_latent(storage.pages("mla"), torch.ones(1, 2), torch.zeros(1, 1), torch.tensor([5]))
    >>> storage.kv("mla")[1].tolist()[1]
    [1.0, 1.0, 0.0]

    Args:
        cache: `KVCacheStorage.pages` of a layer of latent attention.
        latent: (tokens, kv_lora_rank), of any floating-point dtype; rounded and scaled as by `write_kv`.
        rope: (tokens, qk_rope_head_dim), as `latent`; with scales by token it keeps 16 bits and has no scale.
        slot_mapping, check: as for `write_kv`.

    Raises:
        InvalidArgumentError, BlockError: as `write_kv`.
    """
    if not isinstance(cache, KVPages) or not cache.is_latent:
        raise InvalidArgumentError("cache: must be storage.pages(layer) of latent attention; use write_kv for others")
    rank, dtypes = cache.value_size, FLOATS + SMALL_FLOATS
    latent = require_tensor("latent", latent, ("tokens", rank), dtypes, cache.keys.device)
    shape = (latent.shape[0], cache.head_size - rank)
    rope = require_tensor("rope", rope, shape, dtypes, cache.keys.device)
    both = torch.cat([latent.to(wide := torch.promote_types(_wide(latent), _wide(rope))), rope.to(wide)], dim=-1)
    _write(cache, both[:, None], None, slot_mapping, check)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.dtype in SMALL_FLOATS else tensor.dtype  # these promote to nothing


def _write(
    pages: KVPages, keys: torch.Tensor, values: torch.Tensor | None, slot_mapping: torch.Tensor, check: bool
) -> None:
    slots = require_tensor("slot_mapping", slot_mapping, (keys.shape[0],), IDS, pages.keys.device)
    checked, block_size = on_host(slots, check), pages.block_size
    skips = _check_slots(slots, pages) if checked else bool(pages.num_blocks)
    with torch.inference_mode():
        used = slots >= 0
        if skips and checked:
            keys, values, slots = keys[used], None if values is None else values[used], slots[used]
        elif skips:
            slots = slots.clamp(min=0)  # the null block's first slot, which gets what it holds
        places = (slots // block_size, slots % block_size)
        for kept, rows_new in pages.written(keys, values):
            words, new = as_bytes(kept), as_bytes(rows_new)
            if skips and not checked:
                new = torch.where(used.view(-1, *[1] * (new.dim() - 1)), new, words[0, 0])
            words.index_put_(places, new)


def _check_slots(slots: torch.Tensor, pages: KVPages) -> bool:
    """Check the slots of `write_kv`, and return True if any token is to be skipped."""
    if not slots.numel():
        return False
    block_size, num_slots = pages.block_size, pages.num_blocks * pages.block_size
    # Sorted once: range, null block and duplicates are then seen at the ends and between neighbours.
    ordered = slots.sort().values
    low, high = int(ordered[0]), int(ordered[-1])
    if low < -1 or high >= num_slots:
        raise BlockError(
            f"slot_mapping: slot {low if low < -1 else high} is not within the cache's {num_slots}; pass slots of its "
            f"{pages.num_blocks} blocks, or -1 for a token that is not written"
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
    cache: torch.Tensor | KVPages,
    block_ids: torch.Tensor | Sequence[int],
    start: int,
    stop: int,
    *,
    check: bool = False,
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
        Keys and values, (stop - start, num_kv_heads, head_size) and (..., head_size_v), of the cache's dtype; in new
        memory, but that values of latent attention are a part of the keys. With scales they are float32, scaled.

    Raises:
        InvalidArgumentError: shapes, dtypes or devices are not as described, or positions that the row does not cover.
        BlockError: one of the positions lies in the null block, or in none of the cache's.
    """
    pages = pages_of(cache)
    device = pages.keys.device
    if not isinstance(block_ids, torch.Tensor):
        try:
            block_ids = torch.tensor(list(block_ids), dtype=torch.int64)
        except (ValueError, OverflowError, RuntimeError):  # which of them depends on torch's version
            raise InvalidArgumentError("block_ids: holds an integer of more than 64 bits") from None
        block_ids = block_ids.to(device)
    row = require_tensor("block_ids", block_ids, ("entries",), IDS, device)
    block_size = pages.block_size
    if not 0 <= start <= stop <= row.shape[0] * block_size:
        raise InvalidArgumentError(
            f"start={start!r}, stop={stop!r}: block_ids has {row.shape[0]} entries of {block_size} positions; "
            "pass 0 <= start <= stop within them"
        )
    if on_host(row, check):
        entries = row[start // block_size : -(-stop // block_size)][None] if stop > start else row[None, :0]
        first = torch.tensor([start // block_size], device=row.device)
        check_blocks("block_ids", entries, first, torch.ones_like(entries, dtype=torch.bool), pages)
    positions = torch.arange(start, stop, device=device)
    dtype = pages.keys.dtype if pages.key_scales is None else torch.float32
    return pages.read(row[positions // block_size], positions % block_size, dtype)


def check_blocks(name: str, entries: torch.Tensor, first: torch.Tensor, read: torch.Tensor, pages: KVPages) -> None:
    wrong = read & ((entries <= 0) | (entries >= pages.num_blocks))
    if not bool(wrong.any()):
        return
    request, place = wrong.nonzero()[0].tolist()
    block, entry = int(entries[request, place]), int(first[request]) + place
    if block:
        raise BlockError(
            f"{name}: entry {entry} of request {request} is block {block}, and the cache has {pages.num_blocks}; "
            "pass the table of this cache's group"
        )
    raise BlockError(
        f"{name}: entry {entry} of request {request} is the null block, and positions from {entry * pages.block_size} "
        "are read there; give the request its slots before the step, and compute nothing below what was trimmed"
    )

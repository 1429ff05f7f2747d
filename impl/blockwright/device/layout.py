"""The KV tensors of a pool, whatever their layout, as tensors whose first dimension counts blocks.

Each layer brings one tensor, or keys and values apart; one dimension of each counts blocks and the rest moves whole, so
that no other fact about a layout is needed here:

| layout | shape | block_dim |
|---|---|---|
| keys and values stacked | (2, num_blocks, block_size, heads, head_size) | 1 |
| block-major | (num_blocks, 2, block_size, heads, head_size) | 0 |
| keys, values apart | (num_blocks, block_size, heads, head_size) each | 0 |
| packed keys | (num_blocks, heads, head_size / x, block_size, x) | 0 |
| recurrent state | (num_blocks, ...) | 0 |

Everything here reads shapes, strides and addresses, never an element.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from blockwright.arguments import shown
from blockwright.errors import InvalidArgumentError

Caches: TypeAlias = torch.Tensor | Sequence[torch.Tensor | Sequence[torch.Tensor]]

# Integers of each width: bytes that every operation of torch can move, float8 or not, without a look at them.
WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True, slots=True)
class Blocks:
    """One tensor of a pool.

    Attributes:
        name: its place in the argument, for messages.
        view: the tensor with its blocks first; shape (num_blocks, ...).
    """

    name: str
    view: torch.Tensor

    @property
    def num_blocks(self) -> int:
        return int(self.view.shape[0])


def blocks_of(name: str, caches: Caches, block_dim: int | Sequence[int]) -> list[Blocks]:
    """Return the tensors of a pool, in order, keys before values.

    Args:
        name: of the argument, for messages.
        caches: one tensor, or per layer a tensor or a sequence of tensors; all on one device.
        block_dim: the dimension that counts blocks, for all tensors or one for each.
    """
    tensors = _flat(name, caches)
    if not tensors:
        raise InvalidArgumentError(f"{name} holds no tensor; pass at least one")
    device = tensors[0][1].device
    dims = dims_of(block_dim, len(tensors))
    if len(dims) != len(tensors):
        raise InvalidArgumentError(
            f"block_dim has {len(dims)} entries for {len(tensors)} tensors in {name}; pass one int, or one per tensor"
        )
    blocks = []
    for (where, tensor), dim in zip(tensors, dims, strict=True):
        # The bytes of such a tensor are not where its shape and strides say.
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            raise InvalidArgumentError(f"{where} is no plain strided tensor; pass the tensor that holds the bytes")
        if tensor.device != device:
            raise InvalidArgumentError(
                f"{where} is on {tensor.device}, and {tensors[0][0]} on {device}; pass one device's layers per call"
            )
        if isinstance(dim, bool) or not isinstance(dim, int) or not -tensor.dim() <= dim < tensor.dim():
            raise InvalidArgumentError(
                f"block_dim={dim!r} not in {where}, which has {tensor.dim()}; pass the one that counts blocks"
            )
        blocks.append(Blocks(where, tensor.movedim(dim, 0)))
    return blocks


def dims_of(block_dim: int | Sequence[int], count: int) -> list[int]:
    return list(block_dim) if isinstance(block_dim, Sequence) else [block_dim] * count


def token_dims_of(pool: list[Blocks], block_dim: int | Sequence[int], token_dim: int | Sequence[int]) -> list[int]:
    """Return the dimension of each view of a pool, made with `block_dim`, that counts the tokens of a block."""
    dims = dims_of(token_dim, len(pool))
    if len(dims) != len(pool):
        raise InvalidArgumentError(
            f"token_dim has {len(dims)} entries for {len(pool)} tensors; pass one int, or one per tensor"
        )
    found = []
    for blocks, dim, apart in zip(pool, dims, dims_of(block_dim, len(pool)), strict=True):
        rank = blocks.view.dim()
        if not -rank <= dim < rank or (dim - apart) % rank == 0:
            raise InvalidArgumentError(
                f"token_dim={dim} of {blocks.name}, which has {rank} dimensions and counts blocks by "
                f"block_dim={apart}; pass the one that counts the tokens of a block"
            )
        # The dimension of blocks was moved to the front: those before it have moved back by one.
        found.append(dim % rank + (dim % rank < apart % rank))
    return found


def _flat(name: str, caches: object, depth: int = 2) -> list[tuple[str, torch.Tensor]]:
    if isinstance(caches, torch.Tensor):
        return [(name, caches)]
    if not depth or not isinstance(caches, Iterable) or isinstance(caches, (str, bytes, Mapping, Iterator)):
        raise InvalidArgumentError(f"{name}: must be a Tensor{' or a sequence' if depth else ''}, not {shown(caches)}")
    return [found for index, item in enumerate(caches) for found in _flat(f"{name}[{index}]", item, depth - 1)]


def check_alike(src: list[Blocks], dst: list[Blocks]) -> None:
    """Check that a block of one pool fits the other: equal numbers of tensors, dtypes, and shapes of a block."""
    if len(src) != len(dst):
        raise InvalidArgumentError(f"src has {len(src)} tensors and dst {len(dst)}; pass the same layers of both pools")
    for one, other in zip(src, dst, strict=True):
        if one.view.dtype != other.view.dtype:
            raise InvalidArgumentError(
                f"{one.name} is {one.view.dtype} and {other.name} {other.view.dtype}; blocks are moved, never converted"
            )
        if one.view.shape[1:] != other.view.shape[1:]:
            raise InvalidArgumentError(
                f"a block of {one.name} is {tuple(one.view.shape[1:])} and one of {other.name} "
                f"{tuple(other.view.shape[1:])}; pass pools of one layout, and the block_dim of both"
            )


def check_writable(pool: list[Blocks]) -> None:
    """Check that no two elements of a tensor share memory, as those of an expanded tensor do."""
    for blocks in pool:
        if not is_injective(list(blocks.view.shape), list(blocks.view.stride())):
            raise InvalidArgumentError(
                f"{blocks.name} has elements that share memory (strides {blocks.view.stride()}); pass a copy of it"
            )


def check_apart(src: list[Blocks], dst: list[Blocks]) -> None:
    """Check that two pools share no memory. O(n log n) for n tensors on one device, nothing for two devices.

    Two views with interleaved addresses pass if they are disjoint ranges of the blocks of one tensor, as the halves of
    a stacked one are; other interleaved views are refused, since they may overlap.
    """
    if src[0].view.device != dst[0].view.device:
        return
    # A sweep over addresses: only a span that begins before another ends can overlap it.
    spans = sorted(
        (*addresses(blocks.view), side, index)
        for side, pool in enumerate((src, dst))
        for index, blocks in enumerate(pool)
        if blocks.view.numel()
    )
    pools = (src, dst)
    open_spans: list[tuple[int, int, int, int]] = []
    for span in spans:
        open_spans = [other for other in open_spans if other[1] > span[0]]
        for other in open_spans:
            if other[2] != span[2] and not _are_ranges_of_one(pools[other[2]][other[3]], pools[span[2]][span[3]]):
                names = sorted((pools[other[2]][other[3]].name, pools[span[2]][span[3]].name), reverse=True)
                raise InvalidArgumentError(
                    f"{names[0]} and {names[1]} overlap in memory; use copy_blocks within a pool, or give each its own"
                )
        open_spans.append(span)


def addresses(view: torch.Tensor) -> tuple[int, int]:
    elements = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return int(view.data_ptr()), int(view.data_ptr()) + elements * int(view.element_size())


def is_injective(shape: list[int], strides: list[int]) -> bool:
    """Return True if each stride clears all that lies within it; then no two elements share memory."""
    extent = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < extent:
            return False
        extent += (size - 1) * stride
    return True


def _are_ranges_of_one(one: Blocks, other: Blocks) -> bool:
    low, high = sorted((one, other), key=lambda blocks: int(blocks.view.data_ptr()))
    if low.view.stride() != high.view.stride() or low.view.shape[1:] != high.view.shape[1:]:
        return False
    step = low.view.stride(0) * low.view.element_size()
    ahead, rest = divmod(high.view.data_ptr() - low.view.data_ptr(), step) if step else (0, 1)
    whole = [ahead + high.num_blocks, *low.view.shape[1:]]
    return rest == 0 and ahead >= low.num_blocks and is_injective(whole, list(low.view.stride()))


def as_words(src: torch.Tensor, dst: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as integers, as wide as their strides and addresses allow: fewer elements, and any dtype can move."""
    for width, dtype in WORDS.items():
        if all(_fits(view, width) for view in (src, dst)):
            return src.view(dtype), dst.view(dtype)
    return src, dst  # elements wider than any integer, which torch moves as they are


def _fits(view: torch.Tensor, width: int) -> bool:
    size = view.element_size()
    if width == size:
        return True
    if width < size or view.dim() < 2 or view.stride(-1) != 1:
        return False
    counts = (view.shape[-1], view.storage_offset(), *view.stride()[:-1])
    return view.data_ptr() % width == 0 and all(count * size % width == 0 for count in counts)


def row_pieces(host: torch.Tensor, other: torch.Tensor, limit: int) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """Split two pools alike so that each block of each piece of `host` is one stretch of memory.

    ::

        (num_blocks, 2, 16, 8, 128) of a stacked tensor    ->  keys (num_blocks, 16, 8, 128), and values

    Args:
        host: blocks first; its strides decide.
        other: blocks first, of the same shape except for the first dimension; any strides.
        limit: the most pieces.

    Returns:
        The pieces of both, in pairs; None if there would be more than `limit`.
    """
    # The largest stride first: the dimensions that lie together in memory are then at the end.
    inner = sorted(range(1, host.dim()), key=lambda dim: host.stride()[dim], reverse=True)
    host, other = host.permute(0, *inner), other.permute(0, *inner)
    whole = host.dim()
    extent = 1
    while whole > 1 and (host.shape[whole - 1] == 1 or host.stride(whole - 1) == extent):
        whole -= 1
        extent *= int(host.shape[whole])
    outer = host.shape[1:whole]
    if outer.numel() > limit:
        return None
    pieces = [(host, other)]
    for size in outer:
        pieces = [(one.select(1, place), two.select(1, place)) for one, two in pieces for place in range(size)]
    return pieces

"""The pool on the host that a GPU's blocks are swapped to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar, cast

import torch

from blockwright.arguments import integer
from blockwright.device.layout import Blocks, Caches, blocks_of, dims_of

C = TypeVar("C", bound=Caches)


def empty_host_caches_like(
    caches: C, num_blocks: int, *, block_dim: int | Sequence[int] = 0, pin_memory: bool | None = None
) -> C:
    """Make tensors on the host for `num_blocks` blocks of the same layout, nested as `caches` is.

    The order of the dimensions in memory is kept, without gaps. The contents are undefined.

    torch rounds each pinned allocation up to a power of two of bytes; choose `num_blocks` with that in mind, or make
    the memory otherwise, since any host tensor will do.

    Args:
        caches: as for `copy_blocks`.
        num_blocks: blocks on the host.
        block_dim: as for `copy_blocks`.
        pin_memory: pinned memory, without which no copy overlaps with anything; None for "if torch finds a GPU".

    Raises:
        InvalidArgumentError: as `copy_blocks`, or a negative count.
    """
    integer("num_blocks", num_blocks)
    blocks = blocks_of("caches", caches, block_dim)
    dims = dims_of(block_dim, len(blocks))
    pinned = torch.cuda.is_available() if pin_memory is None else pin_memory
    made = iter([_made(one, num_blocks, dim, pinned) for one, dim in zip(blocks, dims, strict=True)])
    return cast("C", nested(caches, made))


def _made(blocks: Blocks, num_blocks: int, dim: int, pinned: bool) -> torch.Tensor:
    shape = [num_blocks, *blocks.view.shape[1:]]
    strides, extent = [0] * len(shape), 1
    # From the innermost dimension outwards, so that the host has the device's order of elements.
    for place in sorted(range(len(shape)), key=lambda place: (blocks.view.stride(place), -place)):
        strides[place] = extent
        extent *= max(1, shape[place])
    tensor = torch.empty_strided(shape, strides, dtype=blocks.view.dtype, device="cpu", pin_memory=pinned)
    return tensor.movedim(0, dim)


def nested(like: Caches, made: Iterator[torch.Tensor]) -> Caches:
    """Return the tensors of `made` in lists and tuples as those of `like` are."""
    if isinstance(like, torch.Tensor):
        return next(made)
    items = [nested(item, made) for item in like]
    return cast("Caches", tuple(items) if isinstance(like, tuple) else items)

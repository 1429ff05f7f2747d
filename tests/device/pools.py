"""Pools in every layout, filled with random bytes, and the plain loop that they are compared with."""

import random
from collections.abc import Callable

import torch

LAYOUTS: dict[str, tuple[int, Callable[[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]]]] = {}
"""Name -> (block_dim, function of the number of blocks and the dtype that makes (all the memory, the pool in it))."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8)


def memory(elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(256, (elements * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def layout(name: str, block_dim: int, *shape: int, view: Callable[[torch.Tensor], torch.Tensor] = lambda t: t) -> None:
    """Note a layout: a view of a contiguous tensor of `shape`, in which 0 stands for the number of blocks."""

    def make(num_blocks: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        whole = [size or num_blocks for size in shape]
        flat = memory(torch.Size(whole).numel(), dtype)
        return flat, view(flat.reshape(whole))

    LAYOUTS[name] = block_dim, make


layout("stacked", 1, 2, 0, 4, 3, 8)
layout("block-major", 0, 0, 2, 4, 3, 8)
layout("keys or values", 0, 0, 4, 3, 8)
layout("packed keys", 0, 0, 3, 2, 4, 8)
layout("recurrent state", -2, 0, 5)
layout("one element a block", 0, 0)
layout("blocks last", -1, 3, 4, 0)
layout("heads outside, seen as tokens outside", 1, 2, 0, 3, 4, 8, view=lambda t: t.transpose(2, 3))
layout("some of the heads", 0, 0, 4, 5, 8, view=lambda t: t[:, :, 1:4])
layout("every other element", 1, 2, 0, 4, 16, view=lambda t: t[..., ::2])
layout("every other block", 0, 0, 2, 4, 8, view=lambda t: t[:, 1])
layout("padded pages, off the start", 0, 0, 33, view=lambda t: t[:, 1:25].unflatten(1, (3, 8)))
layout("a dimension of one", 0, 0, 1, 3, 8, view=lambda t: t.as_strided((t.shape[0], 3, 1, 8), (24, 8, 3, 1)))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, which compare and copy without a look at what they mean."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def moved_plainly(src: torch.Tensor, dst: torch.Tensor, pairs: list[tuple[int, int]], block_dim: int) -> None:
    for source, destination in pairs:
        bits(dst).select(block_dim, destination)[...] = bits(src).select(block_dim, source)


def parts(pool: torch.Tensor, dims: tuple[int, int], pairs: list[tuple[int, int]], seed: int) -> list[int]:
    """Move the first tokens of some blocks, so many of each as is returned; `dims` count blocks, and tokens."""
    draw, counts = random.Random(seed), []
    for pair in pairs:
        counts.append(draw.randrange(pool.shape[dims[1]] + 1))
        part = pool.narrow(dims[1], 0, counts[-1])
        moved_plainly(part, part, [pair], dims[0])
    return counts


def twin(flat: torch.Tensor, view: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    copy = flat.clone()
    return copy, copy.as_strided(view.shape, view.stride(), view.storage_offset())


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.equal(bits(one), bits(other)))


def pair_lists(seed: int, sources: int, destinations: int, *, apart: bool) -> list[list[tuple[int, int]]]:
    """Pairs in runs, scattered, with a source to several places, and none at all; `apart`: no block in both roles."""
    draw = random.Random(seed)
    lists: list[list[tuple[int, int]]] = [[]]
    for count in (1, 3, min(sources, destinations) // 2):
        targets = draw.sample(range(destinations), count)
        allowed = [block for block in range(sources) if not apart or block not in targets]
        lists.append([(draw.choice(allowed), target) for target in targets])
    half = min(sources, destinations) // 2
    lists.append([(block, half + block) for block in range(half)])
    lists.append([(block, half + block) for block in reversed(range(half))])
    return lists

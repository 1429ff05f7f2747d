"""Blocks between a device that is the CPU itself and a `HostPool`.

Three facts, measured (see `benchmarks.offload.host`), choose the ways of copying:

- A plain copy of memory is the fastest there is, if stretches are long; a call of torch per stretch costs twice the
  time, and `index_copy_` a fifth more. So long stretches are moved by `memmove`, from several threads, which do not
  hold the interpreter's lock meanwhile; but they take it between two stretches, so that a thread which computes in
  Python without a pause slows them down.
- Short stretches are moved by index, many in one call: `blockwright.device.swap_blocks` does that, with torch's own
  threads.
- So it does where a block's elements lie in another order on the device than on the host.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from functools import partial
from typing import NamedTuple

import torch

from blockwright.offload.host.moves import Sides
from blockwright.offload.jobs import Part, ThreadedHandler
from blockwright.offload.worker import TransferSpec

# Shorter stretches than this are moved by index.
STRETCH_BYTES = 16 << 10

# So much is moved between two looks at timeouts and cancellation, or one block of the host if that is more.
PART_BYTES = 4 << 20
PART_BYTES_BY_INDEX = 32 << 20

copy_bytes = ctypes.memmove


class Stretch(NamedTuple):
    """A run of bytes of one tensor's block that is contiguous on the device and on the host.

    Attributes:
        address: of its first byte in block 0 of the device's tensor.
        step: bytes from one block of that tensor to the next.
        offset: bytes from the beginning of the host's copy of the block.
        size: in bytes.
    """

    address: int
    step: int
    offset: int
    size: int


class CopyHandler(ThreadedHandler):
    """Moves blocks between the tensors of a CPU and a pool that fits them."""

    def __init__(self, sides: Sides, threads: int | None, max_queued: int, timeout: float | None) -> None:
        """Choose the way of copying, and start the threads; see `HostHandler` for the arguments."""
        self._sides = sides  # keeps the tensors, whose memory is known by its addresses
        places = zip(sides.tensors, sides.pool.offsets, strict=True)
        found = [stretch for tensor, at in places for stretch in stretches(tensor, at)]
        self._stretches = found if min((stretch.size for stretch in found), default=0) >= STRETCH_BYTES else []
        # By index torch brings its own threads; a second one of ours would only compete with them.
        if threads is None:
            threads = int(torch.get_num_threads()) if self._stretches else 1  # torch has threads of its own
        super().__init__(threads=threads, max_queued=max_queued, timeout=timeout)

    def parts(self, spec: TransferSpec) -> list[Part]:
        """Check a transfer and return the movements of a few of its blocks each."""
        to_host, pairs = self._sides.moves_of(spec)
        pool, most = self._sides.pool, PART_BYTES if self._stretches else PART_BYTES_BY_INDEX
        length = pool.device_blocks_per_block * max(1, most // max(1, pool.bytes_per_block))
        move = self._move_stretches if self._stretches else self._move_by_index
        return [partial(move, to_host, pairs[at : at + length]) for at in range(0, len(pairs), length)]

    def _move_stretches(self, to_host: bool, pairs: list[tuple[int, int]]) -> int:
        copy, pool = copy_bytes, self._sides.pool
        size, first = pool.bytes_per_block // pool.device_blocks_per_block, pool.buffer.data_ptr()
        for block, row in pairs:
            begin = first + row * size
            for address, step, offset, length in self._stretches:
                if to_host:
                    copy(begin + offset, address + block * step, length)
                else:
                    copy(address + block * step, begin + offset, length)
        return len(pairs) * size

    def _move_by_index(self, to_host: bool, pairs: list[tuple[int, int]]) -> int:
        self._sides.swap(to_host, pairs)
        return self._sides.num_bytes(pairs)


def stretches(tensor: torch.Tensor, offset: int) -> list[Stretch]:
    """Return the longest stretches of a block of one tensor that the host keeps in one piece, too.

    ::

        (num_blocks, 2, 16, 8, 128) of a stacked tensor  ->  keys, and values
        the same with tokens and heads exchanged         ->  one of 128 elements for each of them

    Args:
        tensor: blocks first.
        offset: where the host's copy of it begins in a block.
    """
    width, whole, extent = tensor.element_size(), tensor.dim(), 1
    # From the last dimension outwards, as long as the elements lie one behind the other.
    while whole > 1 and (tensor.shape[whole - 1] == 1 or tensor.stride(whole - 1) == extent):
        whole -= 1
        extent *= int(tensor.shape[whole])
    size = width * extent
    outer, strides = tensor.shape[1:whole], tensor.stride()[1:whole]
    if not size or not math.prod(outer):
        return []
    places = itertools.product(*map(range, outer))
    starts = [sum(place * stride for place, stride in zip(at, strides, strict=True)) * width for at in places]
    step = tensor.stride(0) * width
    return [Stretch(tensor.data_ptr() + start, step, offset + at * size, size) for at, start in enumerate(starts)]

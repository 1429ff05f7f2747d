"""Blocks in the host's memory, each in one piece, so that a disk or a store can take it as it is."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from blockwright.arguments import integer
from blockwright.device.host import nested
from blockwright.device.layout import Caches, blocks_of, dims_of
from blockwright.device.reserved import ReservedMemory
from blockwright.errors import BlockError, InvalidArgumentError, UnsupportedError


class HostPool:
    """Memory for `num_blocks` blocks, each as large as `device_blocks_per_block` blocks of the device.

    ::

        host block 0: | device block                  | device block                  | ... | host block 1 ...
                      | tensor 0 | tensor 1 | ... pad | tensor 0 | tensor 1 | ... pad |

    A tensor's part of a block has its elements in the order of its dimensions, whatever their order on the device; so
    the bytes depend on shapes and dtypes alone. Padding is there only for tensors of different widths; it is zero.

    Attributes:
        num_blocks: blocks on the host.
        max_blocks: the most that it may have; `buffer`, `memory` and `caches` are of these.
        device_blocks_per_block: blocks of the device in one of the host.
        bytes_per_block: of a block on the host.
        buffer: all the memory: uint8, (max_blocks, bytes_per_block), contiguous.
        memory: the same memory as bytes, writable.
        caches: the same memory as tensors of device blocks, nested as the device's caches: block ``b * k + i`` of it is
            the i-th of the k device blocks in host block ``b``.
        offsets: first byte of each tensor's part in a device block, keys before values.
    """

    def __init__(
        self,
        device_caches: Caches,
        num_blocks: int,
        *,
        device_blocks_per_block: int = 1,
        block_dim: int | Sequence[int] = 0,
        pin_memory: bool | None = None,
        max_blocks: int | None = None,
    ) -> None:
        """Allocate the memory, all zero. torch may round pinned memory up to a power of two of bytes.

        Args:
            device_caches: the device's tensors, as for `blockwright.device.swap_blocks`.
            num_blocks: blocks on the host.
            device_blocks_per_block: blocks of the device in one of the host.
            block_dim: as for `swap_blocks`, here and in `caches`.
            pin_memory: pinned memory, which copies of a GPU need to be asynchronous; None for "if torch finds a GPU".
            max_blocks: the most blocks that `resize` may ask for; None for `num_blocks`. Their addresses are reserved
                now, and pages are taken as they are written.

        Raises:
            InvalidArgumentError: as `swap_blocks`, a negative number of blocks, less than one block per block, or fewer
                blocks at most than now.
            UnsupportedError: `max_blocks` with pinned memory, which is not given back page by page.
        """
        num_blocks = integer("num_blocks", num_blocks)
        device_blocks_per_block = integer("device_blocks_per_block", device_blocks_per_block, 1)
        tensors = [blocks.view for blocks in blocks_of("device_caches", device_caches, block_dim)]
        self._dtypes = {tensor.dtype for tensor in tensors}
        self.num_blocks = num_blocks
        self.max_blocks = num_blocks if max_blocks is None else integer("max_blocks", max_blocks, num_blocks)
        self.device_blocks_per_block = device_blocks_per_block
        self.offsets, size = _offsets(tensors)
        self.bytes_per_block = size * device_blocks_per_block
        # Pinning pageable memory later would copy it; without a GPU it would only cost.
        pinned = torch.cuda.is_available() if pin_memory is None else pin_memory
        if pinned and max_blocks is not None:
            raise UnsupportedError("max_blocks: pinned memory has one size for ever; leave it out, or pin_memory=False")
        shape, count = (self.max_blocks, self.bytes_per_block), self.max_blocks
        self._reserved: ReservedMemory | None = None
        try:
            if max_blocks is None:
                self.buffer = torch.zeros(shape, dtype=torch.uint8, pin_memory=pinned)
            else:
                self._reserved = ReservedMemory(math.prod(shape))
                self.buffer = self._reserved.tensor.view(shape)
        except (RuntimeError, MemoryError) as error:
            raise InvalidArgumentError(
                f"num_blocks={count}: there are no {math.prod(shape)} bytes; ask for fewer"
            ) from error
        rows = self.buffer.view(count * device_blocks_per_block, size)
        made = [_as_tensor(rows, offset, like) for offset, like in zip(self.offsets, tensors, strict=True)]
        dims = dims_of(block_dim, len(tensors))
        self.caches = nested(
            device_caches, iter([tensor.movedim(0, dim) for tensor, dim in zip(made, dims, strict=True)])
        )
        self.memory = _bytes_of(self.buffer)

    @property
    def is_resizable(self) -> bool:
        """Whether it was made with `max_blocks`."""
        return self._reserved is not None

    def resize(self, num_blocks: int) -> int:
        """Have another number of blocks, and return the bytes given back. O(bytes that go).

        The addresses stay the same. Blocks that go are zeroed, and whole pages of them take no memory: call it once no
        transfer uses them, as `OffloadingConnector.resize_host` does. A store must not have registered the memory.

        Raises:
            InvalidArgumentError: more than `max_blocks`, or negative.
            UnsupportedError: the pool was made without `max_blocks`.
        """
        if self._reserved is None:
            raise UnsupportedError("resize: the pool has one size for ever; make it with max_blocks")
        self.num_blocks = integer("num_blocks", num_blocks, 0, self.max_blocks)
        return self._reserved.give_back(num_blocks * self.bytes_per_block)

    def check_dtype(self, name: str) -> None:
        """Check that an element type that an identity names is one of the tensors'.

        Nothing is known of tensors of bytes (uint8), and of a name that torch does not have.

        Raises:
            InvalidArgumentError: the tensors hold other types.
        """
        short = name.removeprefix("torch.")
        if short == "fp8":
            fits = any(dtype.is_floating_point and dtype.itemsize == 1 for dtype in self._dtypes)
        else:
            named = getattr(torch, short, None)
            fits = named in self._dtypes or not isinstance(named, torch.dtype)
        if not fits and torch.uint8 not in self._dtypes:
            found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in self._dtypes))
            raise InvalidArgumentError(f"identity: its dtype is {name}, and the tensors hold {found}; name theirs")

    def block_view(self, block_id: int) -> memoryview:
        """Return the bytes of one block, writable, without a copy; it keeps the memory alive. O(1).

        Raises:
            BlockError: no such block.
        """
        if not 0 <= block_id < self.num_blocks:
            raise BlockError(f"host block {block_id}: ids count from 0 to {self.num_blocks - 1}")
        return self.memory[block_id * self.bytes_per_block : (block_id + 1) * self.bytes_per_block]


def _offsets(tensors: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Return where each tensor's part of a block begins, and the bytes of all, so that elements lie aligned."""
    offsets, end, widest = [], 0, 1
    for tensor in tensors:
        width = tensor.element_size()
        # An element that straddles its alignment cannot be viewed in its dtype.
        offsets.append(_rounded_up(end, width))
        end = offsets[-1] + width * math.prod(tensor.shape[1:])
        widest = max(widest, width)
    return offsets, _rounded_up(end, widest)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _as_tensor(rows: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """Return one tensor's part of all rows, in its dtype and shape, blocks first."""
    part = rows[:, offset : offset + like.element_size() * math.prod(like.shape[1:])]
    return part.view(like.dtype).unflatten(1, like.shape[1:]) if like.dim() > 1 else part.view(like.dtype).squeeze(1)


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor of bytes; it lives as long as the view does."""
    # torch gives no memoryview of a tensor; numpy, which would, is not needed otherwise.
    array = (ctypes.c_ubyte * buffer.numel()).from_address(buffer.data_ptr())
    array.owner = buffer  # type: ignore[attr-defined]
    return memoryview(array).cast("B")

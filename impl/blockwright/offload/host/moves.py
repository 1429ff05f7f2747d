"""Which blocks a transfer between a device and a `HostPool` moves, checked before any of them is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from blockwright.device import Caches, Transfer, swap_blocks
from blockwright.device.layout import blocks_of, check_alike, check_apart, check_writable
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.offload.host.pool import HostPool
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.worker import TransferSpec


class Moves(NamedTuple):
    """Blocks to move in one direction.

    Attributes:
        to_host: the direction.
        pairs: (block of the device, block of `HostPool.caches`); those of one block of the host are neighbours.
    """

    to_host: bool
    pairs: list[tuple[int, int]]


class Sides:
    """The device's tensors and a pool that fits them, between which blocks move.

    Attributes:
        tensors: of the device, blocks first.
        pool: the host's blocks.
        num_blocks: blocks of the device.
    """

    def __init__(self, device_caches: Caches, pool: HostPool, block_dim: int | Sequence[int]) -> None:
        """Take both sides; see `HostHandler` for the arguments.

        Raises:
            InvalidArgumentError: the pool does not fit the caches, or shares memory with them.
        """
        device, host = (
            blocks_of("device_caches", device_caches, block_dim),
            blocks_of("pool.caches", pool.caches, block_dim),
        )
        check_alike(device, host)
        check_writable(device)
        check_apart(device, host)
        self.tensors = [blocks.view for blocks in device]
        self.pool = pool
        self.num_blocks = min(int(tensor.shape[0]) for tensor in self.tensors)
        self._caches, self._block_dim = device_caches, block_dim

    def moves_of(self, spec: TransferSpec) -> Moves:
        """Return the moves of a transfer. O(its blocks).

        Raises:
            InvalidArgumentError: not one side on the device and one on the host, or numbers that do not fit.
            BlockError: an id out of range, or a block that is written twice.
        """
        source, destination = spec
        if isinstance(source, GPULoadStoreSpec) and isinstance(destination, CPULoadStoreSpec):
            to_host, on_device, on_host = True, source.block_ids, destination.block_ids
        elif isinstance(source, CPULoadStoreSpec) and isinstance(destination, GPULoadStoreSpec):
            to_host, on_device, on_host = False, destination.block_ids, source.block_ids
        else:
            raise InvalidArgumentError(f"{source!r} to {destination!r}: pass one on the device and one on the host")
        k = self.pool.device_blocks_per_block
        if len(on_device) != k * len(on_host):
            raise InvalidArgumentError(
                f"{len(on_device)} blocks of the device for {len(on_host)} of the host; pass {k} for each"
            )
        _check_ids("device", on_device, self.num_blocks)
        _check_ids("host", on_host, self.pool.num_blocks)
        written = on_host if to_host else on_device
        if len(set(written)) < len(written):
            raise BlockError("a block is the destination twice; each is written once")
        rows = [block * k + place for block in on_host for place in range(k)]
        return Moves(to_host, list(zip(on_device, rows, strict=True)))

    def swap(self, to_host: bool, pairs: list[tuple[int, int]], stream: torch.cuda.Stream | None = None) -> Transfer:
        """Move blocks by index, on a stream if one is given."""
        if to_host:
            return swap_blocks(self._caches, self.pool.caches, pairs, block_dim=self._block_dim, stream=stream)
        back = [(row, block) for block, row in pairs]
        return swap_blocks(self.pool.caches, self._caches, back, block_dim=self._block_dim, stream=stream)

    def num_bytes(self, pairs: Collection[tuple[int, int]]) -> int:
        return len(pairs) * self.pool.bytes_per_block // self.pool.device_blocks_per_block


def _check_ids(where: str, ids: Collection[int], count: int) -> None:
    for block in (min(ids), max(ids)) if ids else ():
        if not 0 <= block < count:
            raise BlockError(f"{where} block {block} is not there; ids count from 0 to {count - 1}")

"""Which blocks a transfer between a device and a `HostPool` moves, checked before any of them is."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

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


def checked_moves(spec: TransferSpec, num_device_blocks: int, pool: HostPool) -> Moves:
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
    k = pool.device_blocks_per_block
    if len(on_device) != k * len(on_host):
        raise InvalidArgumentError(
            f"{len(on_device)} blocks of the device for {len(on_host)} of the host; pass {k} for each"
        )
    _check_ids("device", on_device, num_device_blocks)
    _check_ids("host", on_host, pool.num_blocks)
    written = on_host if to_host else on_device
    if len(set(written)) < len(written):
        raise BlockError("a block is the destination twice; each is written once")
    rows = [block * k + place for block in on_host for place in range(k)]
    return Moves(to_host, list(zip(on_device, rows, strict=True)))


def _check_ids(where: str, ids: Collection[int], count: int) -> None:
    for block in (min(ids), max(ids)) if ids else ():
        if not 0 <= block < count:
            raise BlockError(f"{where} block {block} is not there; ids count from 0 to {count - 1}")

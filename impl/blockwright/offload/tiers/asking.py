"""What may be asked of a chain of tiers: arguments, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blockwright.arguments import integer
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.offload.tiers.interfaces import OffloadingManager
from blockwright.offload.tiers.keys import keys_of, shown
from blockwright.worker.rows import listed


def checked_tiers(tiers: Sequence[OffloadingManager]) -> list[OffloadingManager]:
    """Return the tiers of a chain.

    Raises:
        InvalidArgumentError: there is none, or one is given twice.
        UnsupportedError: the first has no places, so that the device's blocks cannot come to it or go from it.
    """
    chained = list(tiers)
    if len({id(tier) for tier in chained}) < len(chained):
        raise InvalidArgumentError("tiers: one manager is given twice")
    if len(chained) == 0:
        raise InvalidArgumentError("tiers: a chain has at least one tier")
    chained[0].places_of([])
    return chained


def checked_reserve(reserve: object, num_tiers: int) -> list[int]:
    """Return how many places each tier but the last keeps free.

    Raises:
        InvalidArgumentError: not a number or numbers of at least 0, too many or too few, or one for the last tier.
    """
    if isinstance(reserve, int):
        return [integer("reserve", reserve)] * (num_tiers - 1)
    numbers = [integer("reserve", each) for each in listed("reserve", reserve, "an int or a sequence of int")]
    if len(numbers) == num_tiers and numbers[-1] == 0:
        return numbers[:-1]
    if len(numbers) != num_tiers - 1:
        raise InvalidArgumentError(f"reserve: {len(numbers)} numbers for {num_tiers} tiers, of which the last has none")
    return numbers


def distinct_keys(block_hashes: object) -> list[bytes]:
    """Return the hashes of a store or load, in a new list.

    Raises:
        InvalidArgumentError: a hash is not bytes, is empty, or is given twice.
    """
    keys = keys_of(block_hashes).copy()
    if len(set(keys)) < len(keys):
        twice = [key for key in keys if keys.count(key) > 1]
        raise InvalidArgumentError(f"block_hashes: block {shown(twice[0])} is given twice")
    return keys


def checked_device_ids(device_ids: Iterable[int], num_blocks: int, span: int) -> list[int]:
    """Return the blocks of the device that a store or load names.

    Raises:
        InvalidArgumentError: there are not `span` for each block.
        BlockError: one is negative.
    """
    blocks = list(device_ids)
    if len(blocks) != num_blocks * span:
        raise InvalidArgumentError(f"device_ids: {len(blocks)} given, {num_blocks} blocks span {num_blocks * span}")
    for each in blocks:
        if each < 0:
            raise BlockError(f"device_ids: there is no block {each}")
    return blocks

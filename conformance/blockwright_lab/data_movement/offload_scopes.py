"""Worlds of offloading that are too large to visit whole: chains of three tiers, whose blocks are real bytes.

Each tier's medium holds the bytes of its places. A medium may lose what it was given, as a shared store does; whoever
reads it then learns so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from blockwright_spec.offload.chain_state import ChainConfig
from blockwright_spec.offload.tier_state import Key

NUM_BYTES = 24
"""Of a block of the device."""


def bytes_of(key: Key, part: int) -> bytes:
    return blake2b(key, digest_size=NUM_BYTES, salt=bytes([part])).digest()


class Medium(Protocol):
    """The seam: what keeps the bytes of a tier. A test of real media brings its own."""

    def write(self, place: int, key: Key, parts: Sequence[bytes]) -> bool:
        """Write a block to a place, and tell whether that went well."""

    def read(self, place: int, key: Key) -> list[bytes] | None:
        """Read the block in a place, part by part; None if it is not there."""

    def overwrite(self, place: int) -> None:
        """Begin to write a place: what was there is gone."""

    def lose(self, place: int) -> None:
        """Lose what is in a place, if this medium may."""


class Memory:
    """A medium of byte arrays; under a key it gives what is in the place, whatever that is."""

    def __init__(self, capacity: int, span: int) -> None:
        self.places = [[bytearray(NUM_BYTES) for _ in range(span)] for _ in range(capacity)]

    def write(self, place: int, key: Key, parts: Sequence[bytes]) -> bool:
        for into, part in zip(self.places[place], parts, strict=True):
            into[:] = part
        return True

    def read(self, place: int, key: Key) -> list[bytes] | None:
        return [bytes(part) for part in self.places[place]]

    def overwrite(self, place: int) -> None:
        """Leave bytes that are no key's."""
        for part in self.places[place]:
            part[:] = b"\xff" * NUM_BYTES

    def lose(self, place: int) -> None:
        """Lose nothing."""


class Lossy(Memory):
    """A medium that finds blocks by their keys, and may have lost them."""

    def __init__(self, capacity: int, span: int) -> None:
        super().__init__(capacity, span)
        self.keys: list[Key | None] = [None] * capacity

    def write(self, place: int, key: Key, parts: Sequence[bytes]) -> bool:
        self.keys[place] = key
        return super().write(place, key, parts)

    def read(self, place: int, key: Key) -> list[bytes] | None:
        return super().read(place, key) if self.keys[place] == key else None

    def lose(self, place: int) -> None:
        self.keys[place] = None


@dataclass(frozen=True, slots=True)
class OffloadWorld:
    """A chain of three tiers, and what its engine does."""

    config: ChainConfig
    media: tuple[type[Memory], ...] = (Memory, Memory, Lossy)
    branches: int = 3
    """Ways in which a prefix goes on, at each of its keys."""
    longest: int = 4
    """Keys in a request."""


def world(capacities: tuple[int, int, int], num_groups: int, **rest: Any) -> OffloadWorld:
    """Give a world whose device has room for so many blocks."""
    return OffloadWorld(ChainConfig(capacities, num_groups * rest.get("span", 1), **rest))


OFFLOAD_HISTORIES: dict[str, OffloadWorld] = {
    "write back, reserve 2 and 3": world((6, 8, 12), 10, reserve=(2, 3, 0)),
    "write back, reserve 0": world((4, 4, 4), 10),
    "write back, loads free": world((5, 6, 9), 12, reserve=(3, 2, 0), frees=True),
    "write through": world((5, 7, 10), 10, through=True),
    "write through, span 2, at most 6 transfers": world((5, 7, 9), 8, through=True, span=2, most=6),
    "write back, span 3": world((4, 5, 7), 7, reserve=(2, 1, 0), span=3),
}
"""The worlds, by what is told of them."""

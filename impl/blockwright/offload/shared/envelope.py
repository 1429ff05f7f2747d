"""A block as a shared store keeps it: a header with its identity and key, then its bytes.

    magic  version  algorithm  length of identity, of key, of the data | identity | key | checksum | data

The checksum covers all that comes before it and the data. A reader knows everything but the algorithm and the bytes, so
that it compares the header as a whole: another version, engine, layout, key or length differs somewhere. The checksum
finds damage, not forgery: all writers to the store are trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import StrEnum

from blockwright.offload.checksum import CHECKSUMS, DIGEST_SIZE, checksum

MAGIC = b"BWKV"
VERSION = 1
ALGORITHMS = {1: "blake2b_128", 2: "xxh3_128"}
"""Names of checksums by the number that a header has for them; not every one can be verified everywhere."""

_FIXED = struct.Struct("<4sBBHHQ")
_PREFERRED = next(number for number, name in ALGORITHMS.items() if name == CHECKSUMS[0])


class Fault(StrEnum):
    """Why stored bytes are not the block that was asked for."""

    TRUNCATED = "truncated"
    FOREIGN = "foreign"
    CORRUPT = "corrupt"


class Envelope:
    """Writes and reads the values of one cache identity.

    Attributes:
        identity: what all engines that may share these blocks agree on, as bytes.
    """

    def __init__(self, identity: bytes, algorithm: int = _PREFERRED) -> None:
        """Name the identity, and the checksum to write; any that is known is read."""
        self.identity = identity
        self._algorithm = algorithm

    def size(self, key: bytes, length: int) -> int:
        """Return how many bytes a value has that holds `length` bytes of data."""
        return _FIXED.size + len(self.identity) + len(key) + DIGEST_SIZE + length

    def sealed(self, key: bytes, parts: Sequence[memoryview]) -> bytes:
        """Return the value to store; `parts` are copied once."""
        length = sum(part.nbytes for part in parts)
        header = self._header(self._algorithm, key, length)
        return b"".join([header, checksum(ALGORITHMS[self._algorithm], header, parts), *parts])

    def opened(self, key: bytes, value: bytes | memoryview, into: Sequence[memoryview]) -> Fault | None:
        """Verify a stored value and copy its data into `into`; otherwise return the fault, and copy nothing."""
        length = sum(part.nbytes for part in into)
        view = memoryview(value)
        start = self.size(key, 0)
        if view.nbytes < start:
            return Fault.TRUNCATED
        header = self._header(view[5], key, length)
        if view[: len(header)] != header or ALGORITHMS.get(view[5]) not in CHECKSUMS:
            return Fault.FOREIGN
        if view.nbytes != start + length:
            return Fault.TRUNCATED if view.nbytes < start + length else Fault.CORRUPT
        data = view[start:]
        if checksum(ALGORITHMS[view[5]], header, [data]) != view[len(header) : start]:
            return Fault.CORRUPT
        for part in into:
            part[:], data = data[: part.nbytes], data[part.nbytes :]
        return None

    def _header(self, algorithm: int, key: bytes, length: int) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, algorithm, len(self.identity), len(key), length)
        return fixed + self.identity + key

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
    """Why stored bytes cannot be used as the block."""

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

    def head(self, key: bytes, parts: Sequence[memoryview]) -> bytes:
        """Return what comes before the data in a value: the header and the checksum. `parts` are the data."""
        header = self._header(self._algorithm, key, sum(part.nbytes for part in parts))
        return header + checksum(ALGORITHMS[self._algorithm], header, parts)

    def sealed(self, key: bytes, parts: Sequence[memoryview]) -> bytes:
        """Return the value to store; `parts` are copied once."""
        return b"".join([self.head(key, parts), *parts])

    def opened(self, key: bytes, value: bytes | memoryview, into: Sequence[memoryview]) -> Fault | None:
        """Verify a stored value and copy its data into `into`; otherwise return the fault, and copy nothing."""
        length = sum(part.nbytes for part in into)
        view, start = memoryview(value), self.size(key, 0)
        fault = self.fault(key, view[:start], [view[start : start + length]], view.nbytes, length)
        if fault is None:
            data = view[start:]
            for part in into:
                part[:], data = data[: part.nbytes], data[part.nbytes :]
        return fault

    def fault(
        self, key: bytes, head: bytes | memoryview, parts: Sequence[memoryview], size: int, length: int
    ) -> Fault | None:
        """Verify data where it lies.

        Args:
            key: of the block.
            head: the first bytes of the value, as far as there are any.
            parts: the bytes after them; not read unless the value has the right size.
            size: bytes of the value.
            length: bytes of data that it should hold.
        """
        start = self.size(key, 0)
        if size < start:
            return Fault.TRUNCATED
        # The header is compared as bytes: a field that is added later cannot be forgotten here.
        header = self._header(head[5], key, length)
        if head[: len(header)] != header or ALGORITHMS.get(head[5]) not in CHECKSUMS:
            return Fault.FOREIGN
        if size != start + length:
            return Fault.TRUNCATED if size < start + length else Fault.CORRUPT
        return None if checksum(ALGORITHMS[head[5]], header, parts) == head[len(header) :] else Fault.CORRUPT

    def _header(self, algorithm: int, key: bytes, length: int) -> bytes:
        fixed = _FIXED.pack(MAGIC, VERSION, algorithm, len(self.identity), len(key), length)
        return fixed + self.identity + key

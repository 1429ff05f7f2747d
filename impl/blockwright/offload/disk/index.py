"""The index of a directory of blocks: for each slot a record of the block in it.

A record has a fixed size and place, so that the index never grows, and a checksum that covers the number of its slot: a
record that is torn or misplaced is ignored. Zeros are a slot without a block.

    bytes  0..15  checksum of the slot's number and of all that follows
          16..31  checksum of the block
          32..39  when it was written: a count that goes up with every block
          40..47  bytes in the block
          48..49  bytes in the key
          50..255 the key, then zeros
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from blockwright.offload.checksum import DIGEST_SIZE, checksum
from blockwright.offload.disk.files import BlockFile

RECORD_SIZE: Final = 256
KEY_SIZE_MAX: Final = RECORD_SIZE - 50
EMPTY: Final = bytes(RECORD_SIZE)
COUNT_MAX: Final = 2**62
"""No count of writes or uses comes so far."""

_LAYOUT: Final = struct.Struct(f"<{DIGEST_SIZE}sQQH{KEY_SIZE_MAX}s")
_SLOT: Final = struct.Struct("<Q")
_RECENCY: Final = struct.Struct("<QQ")
_RECORDS_AT_ONCE: Final = 4096


class Record(NamedTuple):
    """Which block lies in a slot.

    Attributes:
        key: of the block, 1 to `KEY_SIZE_MAX` bytes.
        digest: checksum of the block.
        written: count that goes up with every block, below `COUNT_MAX`.
        length: bytes in the block.
    """

    key: bytes
    digest: bytes
    written: int
    length: int

    def encode(self, slot: int, checksum_name: str) -> bytes:
        body = _LAYOUT.pack(self.digest, self.written, self.length, len(self.key), self.key)
        return checksum(checksum_name, _SLOT.pack(slot), [memoryview(body)]) + body


def decoded(data: bytes, slot: int, checksum_name: str) -> Record | None:
    """Return the record that these bytes are; None if they are damaged or another slot's.

    That a count comes from here alone, and not too high, lets the next record be written. law: DISK-5.
    """
    body = data[DIGEST_SIZE:]
    if checksum(checksum_name, _SLOT.pack(slot), [memoryview(body)]) != data[:DIGEST_SIZE]:
        return None
    digest, written, length, key_size, key = _LAYOUT.unpack(body)
    if not 0 < key_size <= KEY_SIZE_MAX or any(key[key_size:]) or written >= COUNT_MAX:
        return None
    return Record(key[:key_size], digest, written, length)


def scan(file: BlockFile, num_slots: int, checksum_name: str) -> Iterator[tuple[int, Record | None]]:
    """Yield slot and record of all that are not empty, None for a damaged one."""
    for first in range(0, num_slots, _RECORDS_AT_ONCE):
        # In large reads: an index of a million slots would take minutes record by record.
        data = bytearray(min(_RECORDS_AT_ONCE, num_slots - first) * RECORD_SIZE)
        file.read(first * RECORD_SIZE, [memoryview(data)])
        for slot, start in enumerate(range(0, len(data), RECORD_SIZE), first):
            record = bytes(data[start : start + RECORD_SIZE])
            if record != EMPTY:
                yield slot, decoded(record, slot, checksum_name)


def encoded_recency(uses: Iterable[tuple[int, int]]) -> bytes:
    """Return the bytes of a list that has, for each slot, when its block was written and when it was last used."""
    return b"".join(_RECENCY.pack(written, used) for written, used in uses)


def decoded_recency(data: bytes | None, num_slots: int) -> tuple[list[tuple[int, int]], int]:
    """Return that list, and how many entries cannot be true; they are replaced by zeros, as is a missing list.

    It is a hint: of one of another size nothing is true.
    """
    unknown = [(0, 0)] * num_slots
    if data is None:
        return unknown, 0
    if len(data) != num_slots * _RECENCY.size:
        return unknown, num_slots
    uses = [use if use[0] <= use[1] < COUNT_MAX else None for use in _RECENCY.iter_unpack(data)]
    return [use or (0, 0) for use in uses], uses.count(None)


def recency_size(num_slots: int) -> int:
    return num_slots * _RECENCY.size

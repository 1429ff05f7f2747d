"""A check of a store's directory while no store uses it: each record, and each block's bytes against their checksum.

A store needs none: what is damaged is a miss when it is read. A check finds it before, and says how much there is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload.checksum import checksum
from blockwright.offload.disk.files import REMEDY, BlockFile, Folder
from blockwright.offload.disk.folder import HEADER, Header, described
from blockwright.offload.disk.index import (
    EMPTY,
    RECORD_SIZE,
    Record,
    decoded_recency,
    recency_size,
    scan,
)
from blockwright.offload.disk.store import BLOCKS, INDEX, RECENCY, stride_of


class StoreCheck(NamedTuple):
    """What a check found.

    Attributes:
        num_blocks: places of the directory.
        blocks: places with a record that names a block, sound or not.
        bytes_read: bytes of blocks that were read and compared.
        damaged_records: places whose record is torn or damaged, in ascending order.
        damaged_blocks: places with a block whose bytes are not those that were written, likewise.
        damaged_hints: impossible entries of the order of use, which cost that order and no block; a store that closes
            writes all of them anew.
        is_repaired: whether what is damaged was forgotten.
        seconds: the time that it took.
    """

    num_blocks: int
    blocks: int
    bytes_read: int
    damaged_records: tuple[int, ...]
    damaged_blocks: tuple[int, ...]
    damaged_hints: int
    is_repaired: bool
    seconds: float

    @property
    def is_sound(self) -> bool:
        """Whether each record and each block is as it was written."""
        return not (self.damaged_records or self.damaged_blocks)


def check_store(
    path: str | os.PathLike[str],
    *,
    repair: bool = False,
    advance: Callable[[int], object] = lambda count: None,
) -> StoreCheck:
    """Check the directory of a `DiskStore`; O(bytes of its blocks), with one block in memory at a time. law: DISK-8.

    Args:
        path: the directory, which no store has open. Without `repair` nothing in it changes but its lock, and access of
            others, which is taken away.
        repair: forget what is damaged: a store that opens the directory then finds sound blocks alone. A block whose
            bytes are damaged cannot be brought back; it is computed again.
        advance: called with the number of places that were looked at since.

    Raises:
        InvalidArgumentError: there is no such directory.
        StoreDirectoryError: it is no store's or not this user's alone, is in use, has a header that cannot be read, or
            is to be repaired though no block of it is sound; it is left as it is.
    """
    began, where = time.perf_counter(), Path(path)
    if not where.is_dir():
        raise InvalidArgumentError(f"path: there is no directory {where}; name one that a DiskStore has made")
    folder = Folder(where)
    try:
        described(folder)
        with folder.lock():
            found = _checked(folder, described(folder), advance)
            if repair and not found.is_sound:
                _repair(folder, found)
                found = found._replace(is_repaired=True)
    except OSError as error:
        raise StoreDirectoryError(f"{where}: cannot be checked: {error.strerror}; {REMEDY}") from error
    finally:
        folder.close()
    return found._replace(seconds=time.perf_counter() - began)


def _checked(folder: Folder, header: Header, advance: Callable[[int], object]) -> StoreCheck:
    there, stride = -(-folder.size(INDEX) // RECORD_SIZE), stride_of(header.block_bytes)
    torn, wrong = list[int](), list[int]()
    blocks = bytes_read = looked = 0
    data, end = memoryview(b""), folder.size(BLOCKS)
    with _file(folder, BLOCKS) if end else nullcontext() as file:  # opening would make one that is gone
        for slot, record in _records(folder, there, header.checksum):
            advance(slot + 1 - looked)
            looked = slot + 1
            if record is None or record.length > header.block_bytes:
                torn.append(slot)
                continue
            blocks += 1
            # A length may be damaged as well: no more memory is taken than the file has bytes there.
            if slot * stride + record.length > end:
                wrong.append(slot)
                continue
            if record.length > len(data):
                data = memoryview(bytearray(record.length))
            part = data[: record.length]
            bytes_read += record.length
            is_whole = file is not None and file.read(slot * stride, [part])
            if not is_whole or checksum(header.checksum, record.key, [part]) != record.digest:
                wrong.append(slot)
    advance(there - looked)
    hints = _damaged_hints(folder, header, there)
    return StoreCheck(there, blocks, bytes_read, tuple(torn), tuple(wrong), hints, False, 0.0)


def _file(folder: Folder, name: str) -> BlockFile:
    return folder.open(name, folder.size(name))


def _records(folder: Folder, there: int, name: str) -> Iterator[tuple[int, Record | None]]:
    if there:
        with _file(folder, INDEX) as file:
            yield from scan(file, there, name)


def _damaged_hints(folder: Folder, header: Header, there: int) -> int:
    noted = folder.size(RECENCY)
    # It is of as many places as the directory had when it was closed, which an index cut short has no more.
    count = next((each for each in (there, header.num_blocks) if recency_size(each) == noted), there)
    try:
        hint = folder.read(RECENCY, recency_size(count) + 1)
    except StoreDirectoryError:
        hint = b"\0"  # a link, or no file at all
    return decoded_recency(hint, count)[1]


def _repair(folder: Folder, found: StoreCheck) -> None:
    if found.blocks > 1 and len(found.damaged_blocks) == found.blocks:
        raise StoreDirectoryError(
            f"{folder.path}: no block of it is sound, so that {HEADER} may be what is damaged; {REMEDY}"
        )
    with _file(folder, INDEX) as file:
        for slot in (*found.damaged_records, *found.damaged_blocks):
            file.write(slot * RECORD_SIZE, [memoryview(EMPTY)])
        file.sync()

"""The store of the disk tier: blocks in numbered slots of one directory, which a restart finds again.

    header.json  format, version, geometry, identity; published first, it makes the directory a store's
    blocks       the slots: the bytes of a block and nothing else, each slot from a multiple of 4096 on
    index        a record for each slot: key, length and checksum of its block
    recency      when each block was last used; written at the end of a run, and a hint: of the order, and of no more
    lock         held by the process that uses the directory

A block's bytes are made durable before the record that names them is written, and the record before the block is
acknowledged:

    withdraw record -> write bytes -> sync blocks -> write record -> sync index -> acknowledge

A crash anywhere on this way loses no acknowledged block but the one that was being overwritten. No wrong byte is served
even if the disk keeps writes in another order: a read checks all bytes against the record's checksum.

Assumed of a disk: synced data stays, and a write changes no byte beside it. Where that fails, blocks are lost that lie
there, and no more: whatever the files hold, the store serves no wrong byte and goes on to write, or, for a header that
is damaged, is refused. Opening the directory makes sure that no other process writes to it; checksums would not keep
out an attacker who can.

Source: section 6 of the named systems. For a failed sync being reported only once, with the unwritten data dropped:
Rebello et al., "Can applications recover from fsync failures?" (2020).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final, Self

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError, StoreDirectoryError
from blockwright.offload.checksum import checksum
from blockwright.offload.disk.files import BlockFile, Folder, Lock
from blockwright.offload.disk.folder import HEADER, NUM_BYTES_MAX, Header, opened
from blockwright.offload.disk.index import (
    EMPTY,
    KEY_SIZE_MAX,
    RECORD_SIZE,
    Record,
    decoded_recency,
    encoded_recency,
    recency_size,
    scan,
)
from blockwright.offload.disk.slots import DiskCounts, SlotTable
from blockwright.offload.failures import name_of
from blockwright.offload.identity import CacheIdentity, checked_identity
from blockwright.offload.media import ByteStore, Item

BLOCKS: Final = "blocks"
INDEX: Final = "index"
RECENCY: Final = "recency"

_ALIGNMENT: Final = 4096
_log = logging.getLogger(__name__)


class DiskStore(ByteStore):
    """Keeps blocks in the slots of one directory; a slot is a place, numbered from 0.

    Threads may use it at once. A directory has one store at a time, and a process that is forked off may not use its
    parent's. Besides the blocks it takes at most 272 bytes of disk for each slot, and memory for each record.

    >>> import tempfile
    >>> identity = CacheIdentity("llama", "layers, heads, tokens", "bfloat16", 16, b"seed")
    >>> with tempfile.TemporaryDirectory() as folder, DiskStore(folder, identity, block_bytes=4, num_blocks=2) as store:
    ...     store.put(b"key", 1, [memoryview(b"kv"), memoryview(b"kv")])
    ...     store.get(b"key", 1, [memoryview(bytearray(4))]), store.get(b"other", 1, [memoryview(bytearray(4))])
    (True, False)

    Attributes:
        block_bytes: bytes in a slot.
        num_blocks: slots.
        identity: the identity of its blocks.
    """

    folder_class: ClassVar[type[Folder]] = Folder

    def __init__(
        self, path: str | os.PathLike[str], identity: CacheIdentity, block_bytes: int, num_blocks: int
    ) -> None:
        """Open a directory, or make it in a parent that exists; only the small index is read, about 5 us a block.

        Args:
            path: the directory; empty, absent, or made by a store of the same identity and size of blocks.
            identity: the identity of its blocks. block_bytes: bytes in a slot, the most that a block may have.
            num_blocks: slots. Their room is taken as they are first written. A directory that had fewer or more keeps
                its blocks, of more than there are slots now those used last; these are copied, which takes a while.

        Raises:
            InvalidArgumentError: a number is too low, the path is none, or the identity.
            StoreDirectoryError: the directory is not this store's or not this user's alone, is in use, or cannot be
                read and written; the message names the remedy. Foreign files are left as they were.
        """
        block_bytes = integer("block_bytes", block_bytes, 1, NUM_BYTES_MAX)
        num_blocks = integer("num_blocks", num_blocks)
        if not isinstance(path, str | os.PathLike) or os.fspath(path) in ("", b"") or "\0" in str(path):
            raise InvalidArgumentError(f"path: must name a directory, not be {path!r}")
        self.block_bytes = block_bytes
        self.num_blocks = num_blocks
        self._stride = stride_of(block_bytes)
        self._slots = SlotTable(num_blocks)
        self._process = os.getpid()
        self._is_closed = False
        try:
            self.identity = checked_identity(identity)
            self._open(Path(path), Header.of(self.identity, block_bytes, num_blocks))
        except OSError as error:
            raise StoreDirectoryError(
                f"{os.fspath(path)}: cannot be used: {_reason(error)}; name a directory that this process may write, "
                "in one that exists, on a disk with room"
            ) from error

    def _open(self, path: Path, wanted: Header) -> None:
        """Take the directory and read its index."""
        self._folder = self.folder_class(path)
        try:
            header, self._held = opened(self._folder, wanted)
            self._checksum = header.checksum
            # The index, not the header, says how many slots there are: a damaged header may name any number, and an
            # ended `_resize` leaves one that differs.
            there = -(-self._folder.size(INDEX) // RECORD_SIZE) or self.num_blocks
            most = max(self.num_blocks, there)
            self._slots = SlotTable(most)
            self._data = self._folder.open(BLOCKS, most * self._stride)
            self._index = self._folder.open(INDEX, most * RECORD_SIZE)
            self._folder.sync()
            # The order of use is that of the directory before the resize, or before its index was cut.
            noted = self._folder.size(RECENCY)
            numbers = (there, self.num_blocks, header.num_blocks)
            self._recover(there, next((count for count in numbers if recency_size(count) == noted), there))
            if there != self.num_blocks or header.num_blocks != self.num_blocks:
                self._resize(replace(header, num_blocks=self.num_blocks))
        except BaseException:
            self._close_files()
            raise

    def _resize(self, wanted: Header) -> None:
        """Copy the blocks used last from slots that are to go to those that stay, and give the directory its new size.

        Until the header is written the directory has its old size, and a copied block is there twice. law: DISK-7.
        """
        # The list is in order of use, so that its end is what was used last.
        kept = self.blocks()[max(0, len(self.blocks()) - self.num_blocks) :]
        there = {slot for _, slot in kept}
        free = [slot for slot in range(self.num_blocks) if slot not in there]
        for _, slot in kept:
            record = self._slots.get(slot)
            if slot >= self.num_blocks and record is not None:
                self._copy(slot, free.pop(), record)
        self._folder.publish(HEADER, wanted.encode())
        self._data.resize(self.num_blocks * self._stride)
        self._index.resize(self.num_blocks * RECORD_SIZE)
        self._slots.shorten(self.num_blocks)

    def _copy(self, slot: int, to: int, record: Record) -> None:
        """Copy a block, unless it is damaged; its bytes are durable before the record that names them."""
        data = memoryview(bytearray(record.length))
        if (
            not self._data.read(slot * self._stride, [data])
            or checksum(self._checksum, record.key, [data]) != record.digest
        ):
            return
        self._index.write(to * RECORD_SIZE, [memoryview(EMPTY)])
        self._index.sync()
        self._data.write(to * self._stride, [data])
        self._data.sync()
        self._index.write(to * RECORD_SIZE, [memoryview(record.encode(to, self._checksum))])
        self._index.sync()
        self._slots.move(slot, to)

    def _recover(self, num_blocks: int, num_hints: int) -> None:
        """Read the index; records and hints that are damaged are counted and passed over. law: DISK-2."""
        found = list(scan(self._index, num_blocks, self._checksum))
        sound = [(slot, record) for slot, record in found if record and record.length <= self.block_bytes]
        uses, self.counts.damaged_hints = decoded_recency(self._hint(num_hints), num_hints)
        self._slots.recover(sound, uses + [(0, 0)] * (num_blocks - num_hints))
        self.counts.damaged_records = len(found) - len(sound)
        if len(sound) < len(found):
            _log.warning("%d damaged records were passed over", len(found) - len(sound))

    def _hint(self, num_blocks: int) -> bytes | None:
        """Return the content of the file of the order of use; invalid content if it cannot be read."""
        try:
            return self._folder.read(RECENCY, recency_size(num_blocks) + 1)
        except (OSError, StoreDirectoryError) as error:
            _log.warning("when the blocks were used is not known: %s", name_of(error))
            return b"\0"

    @property
    def counts(self) -> DiskCounts:
        """Return the counts since the store was opened; it goes on counting."""
        return self._slots.counts

    def blocks(self) -> list[tuple[bytes, int]]:
        """Return key and place of each block, least recently used first; after opening these are the recovered ones.

        Whether the bytes of a recovered block are sound is found out when they are read.
        """
        return self._slots.blocks()

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        """Write a block durably, for two syncs, which threads that write at once share.

        Raises:
            InvalidArgumentError: place, length or key do not fit; nothing was written.
            BlockNotReadyError: another thread is writing this place; nothing was written.
            OSError: the disk is full or fails, now or, as `StoreUnavailableError`, earlier. The place holds no block.
        """
        (outcome,) = self._write([(key, place, parts)])
        if isinstance(outcome, OSError):
            raise outcome

    def put_many(self, items: Sequence[Item]) -> list[bool]:
        """Write many blocks durably, with two syncs for all of them; return which were written.

        Raises:
            InvalidArgumentError: place, length or key of one do not fit, or two name one place; nothing was written.
            BlockNotReadyError: another thread is writing one of the places; nothing was written.
        """
        outcomes = self._write(items)
        failed = [outcome for outcome in outcomes if isinstance(outcome, OSError)]
        if failed:
            _log.warning("%d of %d blocks could not be written: %s", len(failed), len(items), _reason(failed[0]))
        return [isinstance(outcome, Record) for outcome in outcomes]

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        """Read a block; True if all its bytes are there and are those that were written under this key. law: DISK-1.

        Raises:
            InvalidArgumentError: there is no such place.
            OSError: the disk cannot read.
        """
        slot = self._slot(place)
        record = self._slots.get(slot)
        if record is None or record.key != key or record.length != _length(into):
            self._slots.missed()
            return False
        # A slot that is written meanwhile gives bytes that the record read before does not fit.
        whole = self._data.read(slot * self._stride, into)
        if not whole or checksum(self._checksum, key, into) != record.digest:
            if self._slots.damaged(slot, record):
                _log.warning("the block in place %d is damaged", slot)
            return False
        self._slots.hit(slot, record)
        return True

    def discard(self, place: int) -> None:
        """Forget the block in a place, if there is one; after a loss of power it may be back.

        Raises:
            InvalidArgumentError: there is no such place.
            BlockNotReadyError: another thread is writing it.
            OSError: the disk fails; a later store may find the block.
        """
        slot = self._slot(place)
        with self._slots.writing([slot]):
            self._index.write(slot * RECORD_SIZE, [memoryview(EMPTY)])

    def close(self) -> None:
        """Note when the blocks were used, and give the directory back; no other call may come after or meanwhile."""
        if self._is_closed:
            return
        self._is_closed = True
        if os.getpid() != self._process:  # the directory is the parent's
            self._close_files()
            return
        try:
            self._folder.publish(RECENCY, encoded_recency(self._slots.uses()))
        except (OSError, StoreDirectoryError) as error:
            _log.warning("when the blocks were used could not be noted: %s", _reason(error))
        finally:
            self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_files(self) -> None:
        """Close all open files, the lock last."""
        for name in ("_data", "_index"):
            file: BlockFile | None = getattr(self, name, None)
            if file is not None:
                file.close()
        held: Lock | None = getattr(self, "_held", None)
        if held is not None:
            held.close()
        self._folder.close()

    def _write(self, items: Sequence[Item]) -> list[Record | OSError]:
        """Write blocks; return the record of each, or why it was not written."""
        if os.getpid() != self._process:
            raise StoreDirectoryError("the store was opened by another process, which has its directory; use it there")
        slots = [self._slot(place) for _, place, _ in items]
        for key, _, parts in items:
            self._check(key, parts)
        with self._slots.writing(slots):
            outcomes = [self._write_bytes(slot, key, parts) for slot, (key, _, parts) in zip(slots, items, strict=True)]
            outcomes = _durable(self._data, outcomes)
            outcomes = [self._write_record(slot, each) for slot, each in zip(slots, outcomes, strict=True)]
            outcomes = _durable(self._index, outcomes)
            self._slots.publish(slots, outcomes)
        return outcomes

    def _write_bytes(self, slot: int, key: bytes, parts: Sequence[memoryview]) -> Record | OSError:
        """Withdraw the slot's record and write the block's bytes; return the record that will name them."""
        try:
            self._index.write(slot * RECORD_SIZE, [memoryview(EMPTY)])
            self._data.write(slot * self._stride, parts)
        except OSError as error:
            return error
        return Record(key, checksum(self._checksum, key, parts), self._slots.tick(), _length(parts))

    def _write_record(self, slot: int, outcome: Record | OSError) -> Record | OSError:
        """Name the bytes of a block, if they are durable."""
        try:
            if isinstance(outcome, Record):
                self._index.write(slot * RECORD_SIZE, [memoryview(outcome.encode(slot, self._checksum))])
        except OSError as error:
            return error
        return outcome

    def _slot(self, place: int | None) -> int:
        if not isinstance(place, int) or not 0 <= place < self.num_blocks:
            raise InvalidArgumentError(f"place: must be from 0 to {self.num_blocks - 1}, not {place!r}")
        return place

    def _check(self, key: bytes, parts: Sequence[memoryview]) -> None:
        if not 0 < len(key) <= KEY_SIZE_MAX:
            raise InvalidArgumentError(f"key: must have from 1 to {KEY_SIZE_MAX} bytes, not {len(key)}")
        if _length(parts) > self.block_bytes:
            raise InvalidArgumentError(f"parts: must have at most {self.block_bytes} bytes, not {_length(parts)}")


def stride_of(block_bytes: int) -> int:
    """Return the bytes from the start of a slot to that of the next."""
    return -(-block_bytes // _ALIGNMENT) * _ALIGNMENT


def _durable(file: BlockFile, outcomes: list[Record | OSError]) -> list[Record | OSError]:
    """Sync the blocks that were written. If the sync fails, so has each of them."""
    if all(isinstance(outcome, OSError) for outcome in outcomes):
        return outcomes
    try:
        file.sync()
    except OSError as error:
        return [outcome if isinstance(outcome, OSError) else error for outcome in outcomes]
    return outcomes


def _length(parts: Sequence[memoryview]) -> int:
    return sum(part.nbytes for part in parts)


def _reason(error: OSError | StoreDirectoryError) -> str:
    """Return what went wrong, without paths or contents."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

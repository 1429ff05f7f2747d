"""The calls to the file system that the disk medium makes, and no others: a test puts a disk that fails in their place.

What is written is durable after `sync`: of the file for its bytes, of the folder for names. Calls raise `OSError`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from blockwright.errors import StoreDirectoryError, StoreUnavailableError

_PARTS_MAX: Final = 1024
"""Pieces of memory in one call (IOV_MAX)."""

LOCK: Final = "lock"
UNPUBLISHED: Final = ".new"
"""Ending of a file that is to be renamed when it is complete."""


class BlockFile:
    """A file of fixed size, read and written at offsets by any number of threads.

    Nobody else may read it: the bytes of a cache tell what was asked.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Open or create the file, and let it have `size` bytes; those never written are zero and take no room."""
        self._file = open(path, "r+b", buffering=0, opener=_opener)  # noqa: SIM115
        self._fd = self._file.fileno()
        self._asking, self._syncing = threading.Lock(), threading.Lock()
        self._syncs_asked = self._syncs_done = 0
        self._is_broken = False
        if os.fstat(self._fd).st_size != size:
            self.resize(size)

    def write(self, offset: int, parts: Sequence[memoryview]) -> None:
        """Write the parts one after the other."""
        left = [part for part in parts if part.nbytes]
        while left:
            done = self.write_some(offset, left[:_PARTS_MAX])
            if not done:
                raise OSError(errno.EIO, "nothing could be written")
            offset, left = offset + done, _after(left, done)

    def read(self, offset: int, into: Sequence[memoryview]) -> bool:
        """Fill the parts one after the other; False if the file ends before."""
        left = [part for part in into if part.nbytes]
        while left:
            done = os.preadv(self._fd, left[:_PARTS_MAX], offset)
            if not done:
                return False
            offset, left = offset + done, _after(left, done)
        return True

    def sync(self) -> None:
        """Let all that was written before this call survive a loss of power; threads share one call where they can.

        Raises:
            OSError: it may be lost.
            StoreUnavailableError: it may be lost, since the disk failed at this earlier. It tells so only once, and
                drops what it could not write, so that only a new `BlockFile` may be trusted.
        """
        with self._asking:
            self._syncs_asked = ticket = self._syncs_asked + 1
        with self._syncing:
            if self._is_broken:
                raise StoreUnavailableError("the disk failed to keep what was written; open the directory anew")
            if self._syncs_done >= ticket:
                return  # another thread's call began after this thread had written
            covered = self._syncs_asked
            try:
                self.sync_now()
            except BaseException:
                self._is_broken = True
                raise
            self._syncs_done = covered

    def close(self) -> None:
        """Close the file; a later call raises `OSError`."""
        self._fd = -1
        self._file.close()

    def resize(self, size: int) -> None:
        """Let the file have this many bytes."""
        os.ftruncate(self._fd, size)

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Write at least a byte of the parts by one call; return how many."""
        return os.pwritev(self._fd, parts, offset)

    def sync_now(self) -> None:
        """Let the disk keep what was written."""
        _sync(self._fd)


class Folder:
    """The directory of a store.

    Attributes:
        path: where it is.
    """

    file_class: ClassVar[type[BlockFile]] = BlockFile

    def __init__(self, path: Path) -> None:
        """Make the directory, unless it is there."""
        self.path = path
        if not path.is_dir():
            path.mkdir(mode=0o700)
            _sync_directory(path.parent)

    def names(self) -> set[str]:
        """Return the names of all entries."""
        return set(os.listdir(self.path))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def publish(self, name: str, content: bytes) -> None:
        """Let a file have this content, durably: after a crash it has the old content or all of the new."""
        self.create(name + UNPUBLISHED, content)
        self.rename(name + UNPUBLISHED, name)
        self.sync()

    def open(self, name: str, size: int) -> BlockFile:
        """Open or create a file of this size."""
        return self.file_class(self.path / name, size)

    def lock(self) -> Lock:
        """Keep other processes, and other stores of this process, away until the lock is closed."""
        return Lock(self.path / LOCK)

    def create(self, name: str, content: bytes) -> None:
        """Write a file whose bytes, but not whose name, are durable."""
        with open(self.path / name, "wb", buffering=0, opener=_opener) as file:
            file.write(content)
            _sync(file.fileno())

    def rename(self, name: str, to: str) -> None:
        """Rename a file; what had the name is gone."""
        os.replace(self.path / name, self.path / to)

    def sync(self) -> None:
        """Let the names of the files survive a loss of power."""
        _sync_directory(self.path)


class Lock:
    """A lock on a file that ends with the process, at the latest. A process that is forked off holds it as well."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StoreDirectoryError: somebody has it.
        """
        self._file = open(path, "ab", buffering=0, opener=_opener)  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise StoreDirectoryError(
                f"{path.parent}: in use by another store; end it, or give each store a directory of its own"
            ) from None

    def close(self) -> None:
        """Give the lock back."""
        self._file.close()


def _opener(path: str, flags: int) -> int:
    """Open a file, or create it for its owner alone."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _sync(fd: int) -> None:
    """Let the disk keep a file's bytes, and its size if that has changed."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the disk's own cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def _sync_directory(path: Path) -> None:
    """Let the disk keep the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _after(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return what is left of the parts after so many bytes."""
    for index, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[index + 1 :]]
        done -= part.nbytes
    return []

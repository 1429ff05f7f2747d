"""The calls to the file system that the disk medium makes, and no others: a test puts a disk that fails in their place.

Written bytes are durable after `sync` of the file, and names after `sync` of the folder. Calls raise `OSError`.

A directory and its files are their owner's alone. All names are looked up in the directory that was opened, no link is
followed, and files that other users own, may have written or reach by another name are refused. law: DISK-6.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, Final, Self, cast

from blockwright.errors import StoreDirectoryError, StoreUnavailableError

# Pieces of memory in one call (IOV_MAX).
_PARTS_MAX: Final = 1024

LOCK: Final = "lock"
UNPUBLISHED: Final = ".new"
"""Ending of a file that is to be renamed when it is complete."""

REMEDY: Final = "name another directory, or delete this one to start with an empty cache"

_OTHERS: Final = 0o077
_OTHERS_WRITE: Final = 0o022
# How a system says that a name is a link, a directory, or something else that cannot be opened as a file.
_NO_FILE: Final = (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO)

_log = logging.getLogger(__name__)


class BlockFile:
    """A file of fixed size, read and written at offsets by any number of threads.

    No other user may read it, because the bytes of a cache reveal the prompts.

    Attributes:
        name: in its directory.
    """

    def __init__(self, folder: Folder, name: str, size: int) -> None:
        """Open or create the file, and let it have `size` bytes; those never written are zero and take no room."""
        self.name = name
        self._file = folder.file(name, os.O_RDWR | os.O_CREAT, "r+b")
        self._fd = self._file.fileno()
        self._asking, self._syncing = threading.Lock(), threading.Lock()
        self._syncs_asked = self._syncs_done = 0
        self._is_broken = False
        if os.fstat(self._fd).st_size != size:
            self.resize(size)

    def write(self, offset: int, parts: Sequence[memoryview]) -> None:
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
            StoreUnavailableError: it may be lost, since the disk failed at this earlier. The system reports a failure
                only once, and drops the unwritten data, so that only a new `BlockFile` may be trusted.
        """
        with self._asking:
            # A ticket: a sync that begins after it was drawn covers what this thread has written.
            self._syncs_asked = ticket = self._syncs_asked + 1
        with self._syncing:
            if self._is_broken:
                raise StoreUnavailableError("the disk failed to keep written data; open the directory anew")
            if self._syncs_done >= ticket:
                return  # another thread's call began after this thread had written
            covered = self._syncs_asked
            try:
                self.sync_now()
            except BaseException:
                # Once failed, the system has dropped the data and reports success from then on.
                self._is_broken = True
                raise
            self._syncs_done = covered

    def close(self) -> None:
        """Close the file; a later call raises `OSError`."""
        self._fd = -1
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resize(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Write at least a byte of the parts by one call; return how many."""
        return os.pwritev(self._fd, parts, offset)

    def sync_now(self) -> None:
        _sync(self._fd)


class Folder:
    """The directory of a store, which must belong to the current user alone.

    Attributes:
        path: where it is.
    """

    file_class: ClassVar[type[BlockFile]] = BlockFile

    def __init__(self, path: Path) -> None:
        """Make the directory, unless it is there, and open it; a link to it is followed, one within it never.

        Raises:
            StoreDirectoryError: it is another user's, or others may write to it.
        """
        self.path = path
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            path.chmod(0o700)  # whatever the umask
            _sync_directory(path.parent)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._closed = weakref.finalize(self, os.close, self._fd)
        self._closed.atexit = False
        try:
            self._check_owned(path, os.fstat(self._fd))
        except BaseException:
            self.close()
            raise

    def keep_private(self, *names: str) -> None:
        """Take other users' access to the directory and its files, which an older version or a copy may have given."""
        if os.fstat(self._fd).st_mode & _OTHERS:
            _log.warning("%s: others could look into it; it is private now", self.path)
            os.fchmod(self._fd, 0o700)
        for name in names:
            self.file(name, os.O_RDONLY, "rb").close()

    def names(self) -> set[str]:
        return set(os.listdir(self._fd))

    def is_file(self, name: str) -> bool:
        """Return whether there is a file of this name, and no link to one."""
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def size(self, name: str) -> int:
        """Return the bytes of a file; 0 if there is none."""
        try:
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def read(self, name: str, most: int) -> bytes | None:
        """Return at most the first `most` bytes of a file; None if there is no such file.

        Raises:
            StoreDirectoryError: the file with this name is not the store's.
        """
        try:
            fd = self._opened(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            return file.read(most)

    def publish(self, name: str, content: bytes) -> None:
        """Let a file have this content, durably: after a crash it has the old content or all of the new."""
        self.create(name + UNPUBLISHED, content)
        self.rename(name + UNPUBLISHED, name)
        self.sync()

    def open(self, name: str, size: int) -> BlockFile:
        return self.file_class(self, name, size)

    def file(self, name: str, flags: int, mode: str) -> BinaryIO:
        """Open a file that its owner alone may use; a link, or another user's file, is a `StoreDirectoryError`."""
        fd = self._opened(name, flags)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != 0o600:
                os.fchmod(fd, 0o600)
            return cast("BinaryIO", os.fdopen(fd, mode, buffering=0))
        except BaseException:
            os.close(fd)
            raise

    def lock(self) -> Lock:
        """Keep other processes, and other stores of this process, away until the lock is closed."""
        return Lock(self)

    def create(self, name: str, content: bytes) -> None:
        """Write a new file with durable bytes; its name is not durable yet.

        An older file of this name is replaced, not changed.
        """
        with suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=self._fd)  # somebody's mistake, if there is nothing in it
        with self.file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb") as file:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            self.sync_file(file.fileno())

    def rename(self, name: str, to: str) -> None:
        """Rename a file; what had the name is gone."""
        os.replace(name, to, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def sync(self) -> None:
        """Let the names of the files survive a loss of power."""
        os.fsync(self._fd)

    def sync_file(self, fd: int) -> None:
        """Let the bytes of a file survive it."""
        _sync(fd)

    def close(self) -> None:
        """Close the directory; a later call raises `OSError`."""
        self._closed()
        self._fd = -1

    def _opened(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor, if it is one that only this user may have written."""
        # a FIFO must not keep us waiting, nor a terminal become ours
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise StoreDirectoryError(f"{self.path / name}: is a link or no file; {REMEDY}") from None
            raise
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StoreDirectoryError(f"{self.path / name}: is a link or no file; {REMEDY}")
            if found.st_nlink > 1:
                raise StoreDirectoryError(f"{self.path / name}: has another name as well (a hard link); {REMEDY}")
            self._check_owned(self.path / name, found)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_owned(self, path: Path, found: os.stat_result) -> None:
        """Raise a `StoreDirectoryError` for a file that another user owns, or may have written."""
        if found.st_uid != os.geteuid():
            raise StoreDirectoryError(
                f"{path}: belongs to user {found.st_uid}, not to {os.geteuid()}, who runs this; "
                "name a directory that is not there yet, in one where this user may make it"
            )
        if found.st_mode & _OTHERS_WRITE:
            raise StoreDirectoryError(
                f"{path}: other users may write to it (mode {stat.S_IMODE(found.st_mode):o}), so it cannot be trusted; "
                "name another directory, or, if this one is the store's alone and no other user has written to it, "
                "take their permission away (chmod go-w)"
            )


class Lock:
    """A lock on a file that ends with the process, at the latest. A process that is forked off holds it as well."""

    def __init__(self, folder: Folder) -> None:
        """Take the lock; raise a `StoreDirectoryError` if another process has it."""
        self._file = folder.file(LOCK, os.O_RDWR | os.O_CREAT, "r+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise StoreDirectoryError(
                f"{folder.path}: in use by another store; end it, or give each store a separate directory"
            ) from None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sync(fd: int) -> None:
    """Let the disk keep a file's bytes, and its size if that has changed."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the disk's own cache
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


def _sync_directory(path: Path) -> None:
    """Let the disk keep the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _after(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """Return the parts without their first `done` bytes."""
    for index, part in enumerate(parts):
        if done < part.nbytes:
            return [part[done:], *parts[index + 1 :]]
        done -= part.nbytes
    return []

"""Blocks as files of any file system that `fsspec` knows, shared by several engines."""

from __future__ import annotations

import errno
import math
import os
import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from itertools import accumulate
from threading import Lock
from typing import Any, Final, TypeVar

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError, StoreUnavailableError, UnsupportedError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.breaker import CircuitBreaker
from blockwright.offload.shared.store import MOST_BYTES, Unreadable, Value, ValueStore

T = TypeVar("T")

RENAMES = frozenset({"file", "local"})
"""Protocols whose `mv` replaces a file at once. Object stores publish whole objects as it is, and copy to rename."""

MISSING = (FileNotFoundError, NotADirectoryError)


OURS: Final = re.compile(r"[0-9a-f]{32,}/[0-9a-f]{2}/[0-9a-f]+")
"""Identity, first byte and hash: the end of the name of a block's file, and of no other that is counted or removed."""
LEFT: Final = re.compile(r"(?:[0-9a-f]{32,}/[0-9a-f]{2}/\.[0-9a-f]{32}|.*/[0-9a-f]{32,}/\.probe-[0-9a-f]{32})")
"""The end of the name of a file that is being written."""


class FileSystemStore(ValueStore):
    """Keeps each block as one file, at ``root/identity/first byte of the hash/hash``.

    Where the file system can rename, a file is written beside its place and moved there; elsewhere it is put there, and
    a torn one is found out when it is read, as any damage is. With `most_bytes` the files of the folder, all identities
    together, are kept below it: those written, or on local disks read, longest ago are removed first. Several engines
    may each be a sixteenth beyond it. A file whose name starts with a dot is a write under way or, if it is older than
    ten times `timeout`, the leftover of a killed writer: `sweep` removes leftovers, as does an engine's first write.

    The operator chooses who may read and write the files, since other engines read them: on local disks they are made
    by the umask.

    A call that does not end in time is left behind in its thread; while all threads hang, further calls fail in time. A
    process cannot end before its threads.
    """

    def __init__(
        self,
        target: str | Any,
        identity: CacheIdentity,
        *,
        root: str | None = None,
        rename: bool | None = None,
        timeout: float = 10.0,
        lookup_timeout: float = 0.5,
        threads: int = 8,
        failures: int = 3,
        backoff: float = 0.5,
        longest_backoff: float = 30.0,
        batch_bytes: int = 8 << 20,
        most_bytes: int | None = None,
        **options: Any,
    ) -> None:
        """Set up, without asking the file system; `ping` does that.

        Args:
            target: a URL such as ``s3://bucket/folder``, or a file system of fsspec.
            identity: what engines that share blocks agree on; another identity's blocks are never found.
            root: the folder, where `target` is a file system.
            rename: whether to write beside and move; None to do so on local disks.
            timeout: seconds that one batch of reads or writes may take.
            lookup_timeout: seconds that a lookup may take; it keeps the engine waiting.
            threads: transfers that may be under way, and lookups.
            failures, backoff, longest_backoff, batch_bytes: as for `ValkeyStore`.
            most_bytes: of all files in the folder; None for no bound.
            options: of the file system, credentials for example, where `target` is a URL.

        Raises:
            InvalidArgumentError: fsspec knows no such file system, or a number is not positive; no secret is repeated.
            UnsupportedError: fsspec is not installed.
        """
        for name, number in {"timeout": timeout, "lookup_timeout": lookup_timeout, "threads": threads}.items():
            if not isinstance(number, int | float) or not 0 < number < 1e9:
                raise InvalidArgumentError(f"{name}={number!r}: pass a positive number")
        if most_bytes is not None:
            integer("most_bytes", most_bytes, 1, MOST_BYTES)
        self._fs, path = _file_system(target, root, options)
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        shown = path.partition("?")[0].rpartition("@")[2]  # some keep credentials in the path
        address = f"{min(protocols)}://{shown.lstrip('/')}"
        super().__init__(address, identity, CircuitBreaker(failures, backoff, longest_backoff), batch_bytes)
        self._root = path.rstrip("/")
        self._start = f"{self._root}/{self._identity.hex()}"
        self._is_local = bool(protocols & RENAMES)
        self._most_bytes = most_bytes
        self._sweeping = Lock()
        self._unswept: int | None = None  # bytes written since the files were counted; None before the first time
        self._counted = 0
        self._rename = bool(protocols & RENAMES) if rename is None else rename
        self._timeout, self._lookup_timeout = timeout, lookup_timeout
        self._transfers = ThreadPoolExecutor(threads, thread_name_prefix="blockwright-store")
        self._lookups = ThreadPoolExecutor(threads, thread_name_prefix="blockwright-lookup")  # wait for no transfer

    def close(self) -> None:
        """Take no more calls; wait for none that hang."""
        for pool in (self._transfers, self._lookups):
            pool.shutdown(wait=False, cancel_futures=True)

    def sweep(self) -> int:
        """Remove leftovers of killed writers and, with `most_bytes`, the excess; return how many files were removed.

        Raises:
            StoreUnavailableError: the file system fails, or does not answer within `timeout`.
        """
        swept, kind = self._tried(lambda: self._transfer(self._sweep, 0))
        if swept is None:
            raise StoreUnavailableError(f"the store at {self.address} cannot be swept: {kind}")
        return swept

    def _transfer(self, work: Callable[..., T], *arguments: Any) -> T:
        return _in_time(self._timeout, self._transfers.submit(work, *arguments))

    def _lookup(self, work: Callable[..., T], *arguments: Any) -> T:
        return _in_time(self._lookup_timeout, self._lookups.submit(work, *arguments))

    def _name(self, key: bytes) -> str:
        return f"{self._start}/{key[:1].hex()}/{key.hex()}"

    def _probe(self) -> None:
        name = f"{self._start}/.probe-{uuid.uuid4().hex}"
        self._transfer(self._put_file, name, b"")
        self._transfer(self._remove_file, name)

    def _write(self, values: Sequence[tuple[str, bytes]]) -> list[bool]:
        return self._transfer(self._put_files, values)

    def _read(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        return self._transfer(self._values, wanted)

    def _present(self, names: Sequence[str]) -> list[bool]:
        return self._lookup(lambda: [self._is_file(name) for name in names])

    def _run(self, names: Sequence[str]) -> int:
        return self._lookup(self._leading_files, names)

    def _delete(self, names: Sequence[str]) -> int:
        return self._lookup(lambda: sum(self._remove_file(name) for name in names))

    # In a thread of the pool.

    def _put_files(self, values: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Write the first values that the bound has room for; return which were written."""
        ends = [0, *accumulate(len(value) for _, value in values)]
        # Values of one call beyond the bound are refused: they would push out those just written.
        count = bisect_right(ends, math.inf if self._most_bytes is None else self._most_bytes) - 1
        self._make_room(ends[count])
        return [self._put_file(name, value) for name, value in values[:count]] + [False] * (len(values) - count)

    def _make_room(self, num_bytes: int) -> None:
        """Sweep before the first write, and before one that may come beyond the bound. One thread at a time."""
        with self._sweeping:
            most, written = self._most_bytes, self._unswept
            is_due = written is None or (
                most is not None and (self._counted + written + num_bytes > most or written + num_bytes > most // 16)
            )
            if is_due:
                self._sweep(num_bytes)
            self._unswept = (self._unswept or 0) + num_bytes

    def _sweep(self, num_bytes: int) -> int:
        """Remove leftovers, and the oldest blocks until `num_bytes` more fit; return the number of files removed."""
        found = self._fs.find(self._root, detail=True) if self._fs.isdir(self._root) else {}
        now, gone, total = time.time(), 0, 0
        blocks: list[tuple[float, str, int]] = []
        for name, info in found.items():
            end = "/".join(f"/{name}".split("/")[-3:])
            is_ours = info.get("type") == "file" and OURS.fullmatch(end) is not None
            is_left = info.get("type") == "file" and LEFT.fullmatch(end) is not None
            changed = _changed(info)
            if is_left and now - changed > 10 * self._timeout:
                gone += self._remove_file(name)
            elif is_ours or is_left:
                total += int(info.get("size") or 0)
                if is_ours:
                    blocks.append((changed, name, int(info.get("size") or 0)))
        most = self._most_bytes
        if most is not None and total + num_bytes > most:
            for _, name, size in sorted(blocks):
                if total + num_bytes <= most - most // 8:  # so that the next write need not look again
                    break
                gone += self._remove_file(name)
                total -= size
        self._counted, self._unswept = total, 0
        return gone

    def _put_file(self, name: str, value: bytes) -> bool:
        """Write a file; False if a folder has its name."""
        folder = name.rpartition("/")[0]
        # A name of its own: two engines may write one block at the same time.
        target = f"{folder}/.{uuid.uuid4().hex}" if self._rename else name
        try:
            self._fs.pipe_file(target, value)
        except FileNotFoundError:  # the folder is not there yet
            self._fs.makedirs(folder, exist_ok=True)
            self._fs.pipe_file(target, value)
        except IsADirectoryError:
            return False
        return not self._rename or self._move(target, name)

    def _move(self, source: str, name: str) -> bool:
        try:
            if not self._fs.isdir(name):  # a move would go into it
                self._fs.mv(source, name)
                return True
        except BaseException:
            self._remove_file(source)
            raise
        self._remove_file(source)
        return False

    def _values(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        if self._is_local:  # opening a FIFO would wait for a writer
            kinds = [self._kind(name) for name, _ in wanted]
            files = iter(self._values_of([each for each, kind in zip(wanted, kinds, strict=True) if kind == "file"]))
            return [
                next(files) if kind == "file" else None if kind is None else Unreadable("wrong_type") for kind in kinds
            ]
        return self._values_of(wanted)

    def _values_of(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        names, ends = [name for name, _ in wanted], [size + 1 for _, size in wanted]
        if not names:
            return []
        values = [_value(each) for each in self._fs.cat_ranges(names, [0] * len(names), ends, on_error="return")]
        if self._is_local and self._most_bytes is not None:
            for name, value in reversed(list(zip(names, values, strict=True))):  # the first is the last to go
                if isinstance(value, bytes):
                    with suppress(OSError):
                        os.utime(name)
        return values

    def _kind(self, name: str) -> str | None:
        """Return what lies under a name; None if nothing does."""
        try:
            return str(self._fs.info(name)["type"])
        except MISSING:
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return "link"  # to itself
            raise

    def _is_file(self, name: str) -> bool:
        return self._kind(name) == "file"

    def _leading_files(self, names: Sequence[str]) -> int:
        return next((at for at, name in enumerate(names) if not self._is_file(name)), len(names))

    def _remove_file(self, name: str) -> bool:
        try:
            self._fs.rm_file(name)
        except MISSING:
            return False
        return True


def _changed(info: dict[str, Any]) -> float:
    """Return when a file was last written, in seconds; now where the file system does not record it."""
    for name in ("mtime", "modified", "LastModified", "last_modified", "updated", "created"):
        found = info.get(name)
        if isinstance(found, int | float):
            return float(found)
        if isinstance(found, datetime):
            return found.timestamp()
    return time.time()


def _in_time(seconds: float, future: Future[T]) -> T:
    try:
        return future.result(seconds)
    finally:
        future.cancel()  # it may not have begun


def _value(read: object) -> Value:
    """Classify the result of a read; raise the exceptions that say nothing about the block."""
    if isinstance(read, MISSING):
        return None
    if isinstance(read, IsADirectoryError):
        return Unreadable("wrong_type")
    if isinstance(read, PermissionError):
        return Unreadable("refused")
    if isinstance(read, BaseException):
        raise read
    return bytes(read) if isinstance(read, bytes | bytearray | memoryview) else Unreadable("wrong_type")


def _file_system(target: Any, root: str | None, options: dict[str, Any]) -> tuple[Any, str]:
    if not isinstance(target, str) and hasattr(target, "protocol"):
        return target, root or ""
    if not target or not isinstance(target, str):
        raise InvalidArgumentError("target: pass a URL, or a file system of fsspec")
    try:
        import fsspec
    except ImportError:
        raise UnsupportedError("fsspec is not installed: pip install fsspec") from None
    made: tuple[Any, str] | None
    try:
        made = fsspec.core.url_to_fs(target, **options)
    except Exception:  # its text may quote the URL and the options
        made = None
    if made is None:
        raise InvalidArgumentError("target: fsspec cannot open this URL; are its protocol's package and options right?")
    return made

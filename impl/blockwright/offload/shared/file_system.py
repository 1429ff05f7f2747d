"""Blocks as files of any file system that `fsspec` knows, shared by several engines."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from blockwright.errors import InvalidArgumentError, UnsupportedError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.breaker import CircuitBreaker
from blockwright.offload.shared.store import SharedStore, Unreadable, Value

T = TypeVar("T")

RENAMES = frozenset({"file", "local"})
"""Protocols whose `mv` replaces a file at once. Object stores publish whole objects as it is, and copy to rename."""

MISSING = (FileNotFoundError, NotADirectoryError)


class FileSystemStore(SharedStore):
    """Keeps each block as one file, at ``root/identity/first byte of the hash/hash``.

    Where the file system can rename, a file is written beside its place and moved there; elsewhere it is put there, and
    a torn one is found out when it is read, as any damage is. Nothing is evicted: let the file system expire what is
    old, or bound a directory of one's own by `DiskStore`. A file whose name starts with a dot is a write under way, or,
    if it is older than any timeout, what a crash has left.

    Who may read and write the files is the operator's choice, since other engines are to read them: on local disks they
    are made as the umask says.

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
            failures: calls in a row that fail until the store counts as down.
            backoff: seconds for which it does, at first; they double up to `longest_backoff`.
            longest_backoff: see there.
            batch_bytes: of blocks that are read or written by one call, unless one alone is larger.
            options: of the file system, credentials for example, where `target` is a URL.

        Raises:
            InvalidArgumentError: fsspec knows no such file system, or a number is not positive; no secret is repeated.
            UnsupportedError: fsspec is not installed.
        """
        for name, number in {"timeout": timeout, "lookup_timeout": lookup_timeout, "threads": threads}.items():
            if not isinstance(number, int | float) or not 0 < number < 1e9:
                raise InvalidArgumentError(f"{name}={number!r}: pass a positive number")
        self._fs, path = _file_system(target, root, options)
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        shown = path.partition("?")[0].rpartition("@")[2]  # some keep credentials in the path
        address = f"{min(protocols)}://{shown.lstrip('/')}"
        super().__init__(address, identity, CircuitBreaker(failures, backoff, longest_backoff), batch_bytes)
        self._start = f"{path.rstrip('/')}/{self._identity.hex()}"
        self._rename = bool(protocols & RENAMES) if rename is None else rename
        self._timeout, self._lookup_timeout = timeout, lookup_timeout
        self._transfers = ThreadPoolExecutor(threads, thread_name_prefix="blockwright-store")
        self._lookups = ThreadPoolExecutor(threads, thread_name_prefix="blockwright-lookup")  # wait for no transfer

    def close(self) -> None:
        """Take no more calls; wait for none that hang."""
        for pool in (self._transfers, self._lookups):
            pool.shutdown(wait=False, cancel_futures=True)

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
        self._transfer(self._put_files, values)
        return [True] * len(values)

    def _read(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        return self._transfer(self._values, wanted)

    def _present(self, names: Sequence[str]) -> list[bool]:
        return self._lookup(lambda: [self._is_file(name) for name in names])

    def _run(self, names: Sequence[str]) -> int:
        return self._lookup(self._leading_files, names)

    def _delete(self, names: Sequence[str]) -> int:
        return self._lookup(lambda: sum(self._remove_file(name) for name in names))

    # In a thread of the pool.

    def _put_files(self, values: Sequence[tuple[str, bytes]]) -> None:
        for name, value in values:
            self._put_file(name, value)

    def _put_file(self, name: str, value: bytes) -> None:
        folder = name.rpartition("/")[0]
        target = f"{folder}/.{uuid.uuid4().hex}" if self._rename else name
        try:
            self._fs.pipe_file(target, value)
        except FileNotFoundError:  # the folder is not there yet
            self._fs.makedirs(folder, exist_ok=True)
            self._fs.pipe_file(target, value)
        if self._rename:
            self._move(target, name)

    def _move(self, source: str, name: str) -> None:
        try:
            if self._fs.isdir(name):  # a move would go into it
                raise IsADirectoryError
            self._fs.mv(source, name)
        except BaseException:
            self._remove_file(source)
            raise

    def _values(self, wanted: Sequence[tuple[str, int]]) -> list[Value]:
        names, ends = [name for name, _ in wanted], [size + 1 for _, size in wanted]
        return [_value(each) for each in self._fs.cat_ranges(names, [0] * len(names), ends, on_error="return")]

    def _is_file(self, name: str) -> bool:
        try:
            return bool(self._fs.info(name)["type"] == "file")
        except MISSING:
            return False

    def _leading_files(self, names: Sequence[str]) -> int:
        return next((at for at, name in enumerate(names) if not self._is_file(name)), len(names))

    def _remove_file(self, name: str) -> bool:
        try:
            self._fs.rm_file(name)
        except MISSING:
            return False
        return True


def _in_time(seconds: float, future: Future[T]) -> T:
    try:
        return future.result(seconds)
    finally:
        future.cancel()  # it may not have begun


def _value(read: object) -> Value:
    """Sort what a read gave.

    Raises:
        Exception: as the file system has returned it.
    """
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

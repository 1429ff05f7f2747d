"""Property: a disk that is full or fails costs what was being written, and threads do not disturb each other.

How: calls to the disk are made to fail, or are interrupted by another use of the same slot; threads write at once.
Not covered: real disks that are full or break.
"""

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from tests.offload.stores.disk_support import SLOTS, STRIDE, Counting, data_of, opened, parts, read, with_files

from blockwright.errors import (
    BlockNotReadyError,
    StoreDirectoryError,
    StoreUnavailableError,
)
from blockwright.offload.disk import DiskStore
from blockwright.offload.disk.files import BlockFile, Folder
from blockwright.offload.disk.index import RECORD_SIZE

# --- disks that fail


class Failing(BlockFile):
    """Raises what it is told to, in writing or syncing, at the end of a file of this name."""

    writes: ClassVar[dict[tuple[str, int], OSError]] = {}
    syncs: ClassVar[dict[str, OSError]] = {}
    store: ClassVar[type[DiskStore]]

    def write_some(self, offset: int, parts: Sequence[memoryview]) -> int:
        size = STRIDE if self.name == "blocks" else RECORD_SIZE
        error = self.writes.get((self.name, offset // size))
        if error is not None and offset % size:
            raise error
        return super().write_some(offset, [parts[0][:3]] if error is not None else parts)

    def sync_now(self) -> None:
        if self.name in self.syncs:
            raise self.syncs.pop(self.name)
        super().sync_now()


Failing.store = with_files(Failing)
FULL = OSError(errno.ENOSPC, "No space left on device", "/some/path")
BROKEN = OSError(errno.EIO, "Input/output error")


@pytest.fixture
def failing(path: Path) -> Iterator[DiskStore]:
    with opened(path, Failing.store) as store:
        store.put(b"old", 1, parts(data_of(9)))
        store.put(b"kept", 3, parts(data_of(8)))
        yield store
        Failing.writes, Failing.syncs = {}, {}


@pytest.mark.parametrize("name", ["blocks", "index"])
def test_a_full_disk_is_a_failed_put(
    failing: DiskStore, path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    Failing.writes = {(name, 1): FULL}
    with pytest.raises(OSError, match="No space left") as caught:
        failing.put(b"new", 1, parts(data_of(1)))
    assert caught.value.errno == errno.ENOSPC
    items = [(b"%d" % i, i, parts(data_of(i))) for i in range(3)]
    assert failing.put_many(items) == [True, False, True]
    assert [read(failing, b"%d" % i, i) for i in range(3)] == [data_of(0), None, data_of(2)]
    assert (read(failing, b"old", 1), read(failing, b"new", 1), read(failing, b"kept", 3)) == (None, None, data_of(8))
    assert failing.counts.failures == 2
    assert "1 of 3 blocks could not be written: No space left on device" in caplog.text
    assert "/some/path" not in caplog.text
    Failing.writes = {}
    failing.put(b"new", 1, parts(data_of(1)))
    failing.close()
    with opened(path) as store:
        assert len(store.blocks()) == SLOTS
        assert read(store, b"new", 1) == data_of(1)


@pytest.mark.parametrize("name", ["blocks", "index"])
def test_after_a_failed_sync_nothing_is_acknowledged_until_the_next_run(
    failing: DiskStore, path: Path, name: str
) -> None:
    Failing.syncs = {name: BROKEN}
    assert failing.put_many([(b"1", 1, parts(data_of(1))), (b"2", 2, parts(data_of(2)))]) == [False, False]
    with pytest.raises(StoreUnavailableError, match="open the directory anew"):
        failing.put(b"1", 1, parts(data_of(1)))
    assert read(failing, b"1", 1) is None
    assert read(failing, b"kept", 3) == data_of(8)
    failing.close()
    with opened(path) as store:
        store.put(b"1", 1, parts(data_of(1)))
        assert read(store, b"kept", 3) == data_of(8)


def test_an_order_of_use_that_cannot_be_kept_is_no_error(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Folder, name: str, content: bytes) -> None:
        raise FULL

    monkeypatch.setattr(Folder, "create", full)
    store.close()
    assert "could not be noted: No space left on device" in caplog.text


def test_a_disk_that_takes_nothing_is_an_error(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockFile, "write_some", lambda self, offset, parts: 0)
    with pytest.raises(OSError, match="nothing could be written"):
        store.put(b"key", 0, parts(b"x"))


def test_a_directory_that_fails_while_it_is_opened_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "sync", broken)
        for _ in range(2):  # before the header is there, and after
            with pytest.raises(StoreDirectoryError, match="Input/output error"):
                opened(path)
    opened(path).close()


def broken(self: object) -> None:
    raise BROKEN


# --- threads


def test_threads_write_and_read_at_once(path: Path) -> None:
    faults: list[str] = []
    store = opened(path, Counting.store, slots=8)

    def work(first: int) -> None:
        for i in range(40):
            slot, number = first + 4 * (i % 2), 100 * first + i
            key = b"%d" % number
            if i % 3:
                store.put(key, slot, parts(data_of(number)))
            elif (
                store.put_many([(key, slot, parts(data_of(number))), (b"x" + key, slot ^ 4, parts(b"x"))]) != [True] * 2
            ):
                faults.append(f"{number} was not written")
            if read(store, key, slot) != data_of(number) or read(store, b"no", slot) is not None:
                faults.append(f"{number} was not read")

    Counting.syncs = 0
    with store:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert 2 * 40 <= Counting.syncs <= 2 * 160


def test_threads_share_syncs(path: Path) -> None:
    file, begun, go_on = Slow(Folder(path), "file", 8), Slow.begun, Slow.go_on
    threads = [threading.Thread(target=file.sync) for _ in range(5)]
    threads[0].start()
    begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    while file._syncs_asked < 5:
        threads[1].join(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert Slow.count == 2  # the one under way began too early for the others, who share the next
    file.close()


class Slow(BlockFile):
    """Syncs when it is told to."""

    begun: ClassVar[threading.Event] = threading.Event()
    go_on: ClassVar[threading.Event] = threading.Event()
    count: ClassVar[int] = 0

    def sync_now(self) -> None:
        Slow.count += 1
        Slow.begun.set()
        Slow.go_on.wait(60)


def test_a_slot_that_is_being_written_is_neither_read_nor_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        store.put(b"old", 0, parts(data_of(1)))
        met: list[object] = []

        def meanwhile(self: BlockFile) -> None:
            monkeypatch.undo()
            met.append(read(store, b"old", 0))
            met.append(read(store, b"new", 0))
            calls: list[Callable[[], None]] = [lambda: store.put(b"else", 0, parts(b"x")), lambda: store.discard(0)]
            for call in calls:
                with pytest.raises(BlockNotReadyError, match="place 0 is being written"):
                    call()

        monkeypatch.setattr(BlockFile, "sync_now", meanwhile)
        store.put(b"new", 0, parts(data_of(2)))
        assert met == [None, None]
        assert read(store, b"new", 0) == data_of(2)


def test_a_slot_that_is_written_while_it_is_read_is_a_miss(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(b"old", 0, parts(data_of(1)))
    before = BlockFile.read

    def overtaken(self: BlockFile, offset: int, into: Sequence[memoryview]) -> bool:
        monkeypatch.undo()
        store.put(b"new", 0, parts(data_of(2)))
        return before(self, offset, into)

    monkeypatch.setattr(BlockFile, "read", overtaken)
    assert read(store, b"old", 0) is None
    assert (store.counts.misses, store.counts.corrupt) == (1, 0)
    assert read(store, b"new", 0) == data_of(2)

"""Property: a directory gives back what was written to it, whole or not at all, and refuses to be anybody else's.

How: blocks are written, overwritten and read in one run and over several; bytes, records and headers are damaged; calls
to the disk are made to fail; threads write at once; and other processes try to share.
Not covered: processes that are killed and power that fails (tests/conformance/test_offload_crash.py); real disks that
are full or break.
"""

import doctest
import errno
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from blockwright.errors import (
    BlockError,
    BlockNotReadyError,
    InvalidArgumentError,
    StoreDirectoryError,
    StoreUnavailableError,
)
from blockwright.offload import checksum, disk, disk_folder, disk_store
from blockwright.offload.disk import DiskBackend, DiskStore
from blockwright.offload.disk_files import BlockFile, Folder
from blockwright.offload.disk_index import KEY_SIZE_MAX, RECORD_SIZE
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import DiskLoadStoreSpec
from blockwright.offload.tiers.lru import LRUOffloadingManager

SEED = b"a seed that nobody is to see"
IDENTITY = CacheIdentity("llama", "layers, heads", "bfloat16", 16, SEED, {"tp_rank": 0})
SIZE, SLOTS = 5000, 4
STRIDE = 8192


def opened(path: Path, kind: type[DiskStore] = DiskStore, slots: int = SLOTS) -> DiskStore:
    return kind(path, IDENTITY, SIZE, slots)


def data_of(number: int, size: int = SIZE) -> bytes:
    return bytes((number + i * i) % 251 for i in range(size))


def parts(data: bytes | bytearray, *cuts: int) -> list[memoryview]:
    ends = [*cuts, len(data)]
    return [memoryview(data)[first:last] for first, last in zip([0, *cuts], ends, strict=True)]


def read(store: DiskStore, key: bytes, place: int, size: int = SIZE) -> bytes | None:
    data = bytearray(size)
    return bytes(data) if store.get(key, place, parts(data, size // 2)) else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Iterator[DiskStore]:
    with opened(path) as store:
        yield store


# --- one run


def test_a_block_comes_back_however_it_is_cut(store: DiskStore) -> None:
    store.put(b"key", 2, parts(data_of(1), 0, 1, 4096, 4096))
    assert read(store, b"key", 2) == data_of(1)
    assert store.counts == disk.DiskCounts(hits=1, writes=1)


def test_what_is_not_there_is_a_miss(store: DiskStore) -> None:
    store.put(b"key", 2, parts(data_of(1)))
    assert read(store, b"key", 1) is None
    assert read(store, b"other", 2) is None
    assert read(store, b"key", 2, SIZE - 1) is None
    assert (store.counts.misses, store.counts.hits, store.counts.corrupt) == (3, 0, 0)


def test_overwriting_leaves_only_the_new_block(store: DiskStore) -> None:
    store.put(b"old", 0, parts(data_of(1)))
    store.put(b"new", 0, parts(data_of(2, 10)))
    assert read(store, b"old", 0) is None
    assert read(store, b"new", 0, 10) == data_of(2, 10)


def test_many_blocks_are_written_for_two_syncs(path: Path) -> None:
    Counting.syncs = 0
    with opened(path, Counting.store) as store:
        items = [(b"%d" % i, i, parts(data_of(i, 100 * i))) for i in range(SLOTS)]
        assert store.put_many(items) == [True] * SLOTS
        assert Counting.syncs == 2
        assert [read(store, b"%d" % i, i, 100 * i) for i in range(SLOTS)] == [data_of(i, 100 * i) for i in range(SLOTS)]
        assert store.put_many([]) == []
        assert Counting.syncs == 2
        found = bytearray(100)
        assert store.get_many([(b"1", 1, [memoryview(found)]), (b"1", 2, [memoryview(found)])]) == [True, False]


def test_thousands_of_parts_are_more_than_one_call(store: DiskStore) -> None:
    data, into = data_of(3), bytearray(SIZE)
    store.put(b"key", 0, parts(data, *range(1, SIZE)))
    assert store.get(b"key", 0, parts(into, *range(2, SIZE, 2)))
    assert into == data


def test_a_discarded_block_is_gone(path: Path) -> None:
    with opened(path) as store:
        store.put(b"key", 0, parts(data_of(1)))
        store.discard(0)
        store.discard(1)
        assert read(store, b"key", 0) is None
        assert store.blocks() == []
    with opened(path) as store:
        assert store.blocks() == []


@pytest.mark.parametrize("place", [-1, SLOTS, None, "0", 1.0])
def test_places_that_are_none_are_refused(store: DiskStore, place: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(b"key", place, parts(b"x")),
        lambda: store.put_many([(b"first", 0, parts(b"x")), (b"key", place, parts(b"x"))]),
        lambda: store.get(b"key", place, parts(bytearray(1))),
        lambda: store.discard(place),
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="place: must be from 0 to 3"):
            call()
    assert store.blocks() == []


def test_what_does_not_fit_is_refused_and_nothing_is_written(store: DiskStore) -> None:
    store.put(b"key", 0, parts(b"x"))
    with pytest.raises(InvalidArgumentError, match="at most 5000 bytes, not 5001"):
        store.put(b"long", 0, parts(bytes(SIZE + 1)))
    for key in (b"", bytes(KEY_SIZE_MAX + 1)):
        with pytest.raises(InvalidArgumentError, match="key: must have from 1 to"):
            store.put(key, 0, parts(b"x"))
    with pytest.raises(InvalidArgumentError, match="named twice"):
        store.put_many([(b"1", 0, parts(b"x")), (b"2", 0, parts(b"x"))])
    assert read(store, b"key", 0, 1) == b"x"
    store.put(bytes(KEY_SIZE_MAX), 1, parts(b"y"))
    assert read(store, bytes(KEY_SIZE_MAX), 1, 1) == b"y"


@pytest.mark.parametrize(("block_bytes", "num_blocks"), [(0, 1), (-1, 1), (True, 1), (1.0, 1), (1, -1), (1, None)])
def test_sizes_are_checked(path: Path, block_bytes: Any, num_blocks: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be an integer of at least"):
        DiskStore(path, IDENTITY, block_bytes, num_blocks)
    assert not path.exists()


def test_a_store_may_have_no_slots(path: Path) -> None:
    for _ in range(2):
        with opened(path, slots=0) as store:
            assert store.blocks() == []
            assert LRUOffloadingManager(DiskBackend(16, store)).prepare_store([b"key"]) is None


def test_a_closed_store_reads_and_writes_no_file(path: Path) -> None:
    store = opened(path)
    store.put(b"key", 0, parts(b"x"))
    store.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        store.get(b"key", 0, parts(bytearray(1)))
    with pytest.raises(OSError, match="Bad file descriptor"):
        store.put(b"key", 0, parts(b"x"))


# --- the next run


def test_a_restart_finds_all_blocks_least_recently_used_first(path: Path) -> None:
    with opened(path) as store:
        for i in range(SLOTS):
            store.put(b"%d" % i, SLOTS - 1 - i, parts(data_of(i)))
        assert read(store, b"1", 2) == data_of(1)
    with opened(path) as store:
        assert store.blocks() == [(b"0", 3), (b"2", 1), (b"3", 0), (b"1", 2)]
        assert store.counts == disk.DiskCounts(recovered=SLOTS)
        assert all(read(store, b"%d" % i, SLOTS - 1 - i) == data_of(i) for i in range(SLOTS))


@pytest.mark.parametrize("hint", [None, b"", b"\xff" * 16 * (SLOTS + 1), b"\xff" * 16 * SLOTS])
def test_without_the_order_of_use_that_of_writing_counts(path: Path, hint: bytes | None) -> None:
    with opened(path) as store:
        for i in (2, 0, 1):
            store.put(b"%d" % i, i, parts(data_of(i)))
        assert read(store, b"2", 2) == data_of(2)
    (path / "recency").unlink()
    if hint is not None:
        (path / "recency").write_bytes(hint)
    with opened(path) as store:
        assert [slot for _, slot in store.blocks()] == [2, 0, 1]
        store.put(b"3", 3, parts(data_of(3)))
        assert store.blocks()[-1] == (b"3", 3)


def test_of_two_records_of_one_key_the_later_counts(path: Path) -> None:
    with opened(path) as store:
        store.put(b"key", 2, parts(data_of(1)))
        store.put(b"other", 3, parts(data_of(2)))
        store.put(b"key", 1, parts(data_of(1)))
        store.put(b"key", 0, parts(data_of(1)))
        store.discard(0)
    with opened(path) as store:
        assert store.blocks() == [(b"other", 3), (b"key", 1)]
        assert read(store, b"key", 2) is None


def test_what_lies_there_is_for_its_owner_alone(store: DiskStore, path: Path) -> None:
    store.put(b"key", 0, parts(b"x"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


def test_the_directory_is_bounded_and_room_is_taken_when_it_is_written(path: Path) -> None:
    with opened(path, slots=1000) as store:
        store.put(b"key", 999, parts(data_of(1)))
    assert (path / "blocks").stat().st_size == 1000 * STRIDE
    assert (path / "blocks").stat().st_blocks * 512 < 100_000
    assert (path / "index").stat().st_size == 1000 * RECORD_SIZE


def test_the_seed_is_neither_in_the_directory_nor_in_errors(path: Path) -> None:
    with opened(path) as store:
        store.put(b"key", 0, parts(b"x"))
    content = b"".join(file.read_bytes() for file in path.iterdir())
    assert SEED not in content
    assert SEED.hex().encode() not in content
    with pytest.raises(StoreDirectoryError, match="hash_seed is blake2b:") as caught:
        DiskStore(path, CacheIdentity("llama", "layers, heads", "bfloat16", 16, b"else", {"tp_rank": 0}), SIZE, SLOTS)
    assert SEED.decode() not in str(caught.value)


# --- damage


@pytest.mark.parametrize("offset", [0, 17, SIZE - 1])
def test_a_flipped_bit_is_a_miss_and_counted(path: Path, offset: int, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as store:
        store.put(b"key", 1, parts(data_of(1)))
    flip(path / "blocks", STRIDE + offset)
    with opened(path) as store:
        assert store.blocks() == [(b"key", 1)]
        assert [read(store, b"key", 1), read(store, b"key", 1)] == [None, None]
        assert (store.counts.corrupt, store.counts.misses) == (1, 1)
        assert store.blocks() == []
        store.put(b"key", 1, parts(data_of(1)))
        assert read(store, b"key", 1) == data_of(1)
    assert "the block in place 1 is damaged" in caplog.text


@pytest.mark.parametrize("offset", range(0, RECORD_SIZE, 5))
def test_a_damaged_record_is_passed_over_and_counted(path: Path, offset: int) -> None:
    with opened(path) as store:
        for i in range(2):
            store.put(b"%d" % i, i, parts(data_of(i)))
    flip(path / "index", RECORD_SIZE + offset)
    with opened(path) as store:
        assert store.blocks() == [(b"0", 0)]
        assert store.counts.damaged_records == 1


def test_a_record_in_another_slot_says_nothing(path: Path) -> None:
    with opened(path) as store:
        store.put(b"key", 0, parts(data_of(1)))
    index = (path / "index").read_bytes()
    (path / "index").write_bytes(index[:RECORD_SIZE] * SLOTS)
    with opened(path) as store:
        assert store.blocks() == [(b"key", 0)]
        assert store.counts.damaged_records == SLOTS - 1


@pytest.mark.parametrize("name", ["blocks", "index"])
@pytest.mark.parametrize("cut", [True, False])
def test_a_file_that_is_short_or_gone_loses_blocks_and_nothing_else(path: Path, name: str, cut: bool) -> None:
    with opened(path) as store:
        for i in range(SLOTS):
            store.put(b"%d" % i, i, parts(data_of(i)))
    if cut:
        os.truncate(path / name, (path / name).stat().st_size // 2)
    else:
        (path / name).unlink()
    with opened(path) as store:
        found = [read(store, b"%d" % i, i) for i in range(SLOTS)]
    assert found == [data_of(0), data_of(1), None, None] if cut else [None] * SLOTS


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 4
    file.write_bytes(data)


# --- whose directory


def snapshot(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def refused(path: Path, message: str, *arguments: Any) -> None:
    """The directory is refused with this message, and left as it was."""
    before = snapshot(path)
    with pytest.raises(StoreDirectoryError, match=message) as caught:
        DiskStore(path, *(arguments or (IDENTITY, SIZE, SLOTS)))
    assert str(path) in str(caught.value)
    assert snapshot(path) == before


def test_somebody_elses_directory_is_left_alone(path: Path) -> None:
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    refused(path, r"holds other files, such as 'thesis.tex'; name another directory")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "another"}', "\0"])
def test_a_header_that_is_damaged_or_of_something_else_is_refused(path: Path, content: str) -> None:
    path.mkdir()
    (path / "header.json").write_text(content)
    refused(path, "damaged or no store's; name another directory, or delete this one")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version 2 of the format, and this program 1"),
        ({"version": None}, "has version None"),
        ({"checksum": "crc32"}, "checksums 'crc32', which cannot be computed here; install xxhash"),
        ({"block_bytes": 1}, "block_bytes is 1 there and 5000 here"),
        ({"num_blocks": "4"}, "num_blocks is '4' there and 4 here"),
        ({"identity_digest": "00"}, "its identity differs"),
        ({"identity_digest": "00", "identity": []}, "dtype is none there and bfloat16 here"),
    ],
)
def test_another_header_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    opened(path).close()
    header = json.loads((path / "header.json").read_text())
    (path / "header.json").write_text(json.dumps({**header, **change}))
    refused(path, message)


def test_another_cache_is_refused_and_all_differences_are_named(path: Path) -> None:
    opened(path).close()
    other = CacheIdentity("llama", "layers, heads", "float16", 16, SEED, {"tp_rank": 1})
    refused(path, "dtype is bfloat16 there and float16 here; extras.tp_rank is 0 there and 1 here", other, SIZE, SLOTS)
    refused(path, "block_bytes is 5000 there and 5001 here; num_blocks is 4 there and 5 here", IDENTITY, SIZE + 1, 5)


def test_a_directory_whose_making_was_cut_short_is_taken(path: Path) -> None:
    path.mkdir()
    for name in ("lock", "header.json.new"):
        (path / name).write_text("{")
    (path / "lost+found").mkdir()
    opened(path).close()


def test_a_directory_that_cannot_be_used_is_a_typed_error(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for bad in (file, path / "absent" / "store", file / "store"):
        with pytest.raises(StoreDirectoryError, match=r"cannot be used: .*; name a directory that this process may"):
            opened(bad)
    path.mkdir(mode=0o500)
    if os.geteuid():
        with pytest.raises(StoreDirectoryError, match="cannot be used: Permission denied"):
            opened(path)


def test_one_store_at_a_time(path: Path) -> None:
    with opened(path) as store:
        store.put(b"key", 0, parts(data_of(1)))
        with pytest.raises(StoreDirectoryError, match="in use by another store; end it, or give each"):
            opened(path)
        program = OTHER.format(path=str(path), seed=SEED)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert "in use by another store" in done.stdout
        assert read(store, b"key", 0) == data_of(1)
    opened(path).close()


OTHER = """
from blockwright.errors import StoreDirectoryError
from blockwright.offload.disk import DiskStore
from blockwright.offload.identity import CacheIdentity
try:
    DiskStore({path!r}, CacheIdentity("llama", "layers, heads", "bfloat16", 16, {seed!r}, {{"tp_rank": 0}}), 5000, 4)
except StoreDirectoryError as error:
    print(error)
"""


def test_a_fork_may_not_write_to_its_parents_store(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreDirectoryError, match="opened by another process"):
        store.put(b"key", 0, parts(b"x"))


def test_another_checksum_than_the_preferred_one_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk_folder, "CHECKSUMS", ("blake2b_128",))
        with opened(path) as store:
            store.put(b"key", 0, parts(data_of(1)))
    assert json.loads((path / "header.json").read_text())["checksum"] == "blake2b_128"
    with opened(path) as store:
        assert read(store, b"key", 0) == data_of(1)


def test_without_the_library_its_checksums_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert list(checksum._makers()) == ["blake2b_128"]
    monkeypatch.undo()
    opened(path).close()
    monkeypatch.setattr(disk_folder, "CHECKSUMS", ("blake2b_128",))
    refused(path, "install xxhash")


# --- disks that fail


class Counting(BlockFile):
    """Counts syncs."""

    syncs: ClassVar[int] = 0
    store: ClassVar[type[DiskStore]]

    def sync_now(self) -> None:
        Counting.syncs += 1
        super().sync_now()


class Failing(BlockFile):
    """Raises what it is told to, in writing or syncing, at the end of a file of this name."""

    writes: ClassVar[dict[tuple[str, int], OSError]] = {}
    syncs: ClassVar[dict[str, OSError]] = {}
    store: ClassVar[type[DiskStore]]

    def __init__(self, path: Path, size: int) -> None:
        self.name = path.name
        super().__init__(path, size)

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


def with_files(kind: type[BlockFile]) -> type[DiskStore]:
    folder = type("OddFolder", (Folder,), {"file_class": kind})
    return type("OddStore", (DiskStore,), {"folder_class": folder})


Counting.store, Failing.store = with_files(Counting), with_files(Failing)
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
    file, begun, go_on = Slow(path, 8), Slow.begun, Slow.go_on
    threads = [threading.Thread(target=file.sync) for _ in range(5)]
    threads[0].start()
    begun.wait(5)
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
        Slow.go_on.wait(5)


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


# --- the backend


def test_the_backend_knows_what_the_directory_holds(path: Path) -> None:
    with opened(path) as store:
        store.put(b"old", 2, parts(data_of(1)))
        store.put(b"new", 0, parts(data_of(2)))
    with opened(path) as store:
        backend = DiskBackend(16, store)
        assert (backend.medium, backend.block_size, backend.get_num_free_blocks()) == ("DISK", 16, 2)
        manager = LRUOffloadingManager(backend, enable_events=True)
        assert [manager.lookup([key]) for key in (b"old", b"new", b"else")] == [1, 1, 0]
        spec = manager.prepare_load([b"new", b"old"])
        assert isinstance(spec, DiskLoadStoreSpec)
        assert spec.items() == [(b"new", 0), (b"old", 2)]
        manager.complete_load([b"new", b"old"])
        output = manager.prepare_store([b"1", b"2", b"3"])
        assert output is not None
        assert output.block_hashes_evicted == [b"old"]
        assert isinstance(output.store_spec, DiskLoadStoreSpec)
        assert sorted(output.store_spec.block_ids) == [1, 2, 3]
        assert output.store_spec.block_hashes == [b"1", b"2", b"3"]
        with pytest.raises(BlockError):
            backend.claim_place(0)


@pytest.mark.parametrize("module", [disk, disk_store])
def test_examples(module: Any) -> None:
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)


def test_no_call_to_the_file_system_passes_the_seam() -> None:
    """What the crash tests replace is all there is."""
    names = ("pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "replace", "unlink", "open(")
    for module in (disk, disk_store, disk_folder):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert not [name for name in names if f"os.{name}" in source]

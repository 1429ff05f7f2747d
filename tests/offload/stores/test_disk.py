"""Property: a directory gives back what was written to it, whole or not at all, in the same run and in the next.

How: blocks are written, overwritten and read in one run and over several; the backend is asked what is there.
Not covered: damage (test_disk_directory.py), failures and threads (test_disk_failures.py), processes that are killed
and power that fails (tests/conformance/test_offload_crash.py).
"""

import doctest
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.offload.stores.disk_support import (
    IDENTITY,
    SEED,
    SIZE,
    SLOTS,
    STRIDE,
    Counting,
    data_of,
    opened,
    parts,
    read,
)

from blockwright.errors import (
    BlockError,
    InvalidArgumentError,
    StoreDirectoryError,
)
from blockwright.offload.disk import DiskBackend, DiskCounts, DiskStore
from blockwright.offload.disk import backend as disk_backend
from blockwright.offload.disk import folder as disk_folder
from blockwright.offload.disk import store as disk_store
from blockwright.offload.disk.index import KEY_SIZE_MAX, RECORD_SIZE
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.media import DiskLoadStoreSpec
from blockwright.offload.tiers.lru import LRUOffloadingManager

# --- one run


def test_a_block_comes_back_however_it_is_cut(store: DiskStore) -> None:
    store.put(b"key", 2, parts(data_of(1), 0, 1, 4096, 4096))
    assert read(store, b"key", 2) == data_of(1)
    assert store.counts == DiskCounts(hits=1, writes=1)


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


@pytest.mark.parametrize("place", [-1, SLOTS])
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


@pytest.mark.parametrize(("block_bytes", "num_blocks"), [(0, 1), (-1, 1), (1, -1)])
def test_sizes_are_checked(path: Path, block_bytes: Any, num_blocks: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="must be an integer within"):
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
    with opened(path):
        store.close()  # again, and nothing is touched
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
        assert store.counts == DiskCounts(recovered=SLOTS)
        assert all(read(store, b"%d" % i, SLOTS - 1 - i) == data_of(i) for i in range(SLOTS))


NONE = b"\xff" * 16 * SLOTS


@pytest.mark.parametrize(
    ("hint", "damaged"), [(None, 0), (b"", SLOTS), (NONE + b"\xff", SLOTS), (NONE, SLOTS), (bytes(16 * SLOTS), 0)]
)
def test_without_the_order_of_use_that_of_writing_counts(path: Path, hint: bytes | None, damaged: int) -> None:
    with opened(path) as store:
        for i in (2, 0, 1):
            store.put(b"%d" % i, i, parts(data_of(i)))
        assert read(store, b"2", 2) == data_of(2)
    (path / "recency").unlink()
    if hint is not None:
        (path / "recency").write_bytes(hint)
    with opened(path) as store:
        assert store.counts.damaged_hints == damaged
        assert [slot for _, slot in store.blocks()] == [2, 0, 1]
        store.put(b"3", 3, parts(data_of(3)))
        assert store.blocks()[-1] == (b"3", 3)


@pytest.mark.parametrize("used", [0, 1, 2**32, 2**62 - 1, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("written", [None, 0, 2**64 - 1])
def test_whatever_the_order_of_use_says_blocks_are_read_and_written(path: Path, used: int, written: int | None) -> None:
    with opened(path) as store:
        for i in range(SLOTS):
            store.put(b"%d" % i, i, parts(data_of(i)))
    hint = bytearray((path / "recency").read_bytes())
    hint[8:16] = struct.pack("<Q", used)
    if written is not None:
        hint[0:8] = struct.pack("<Q", written)
    (path / "recency").write_bytes(hint)
    for run in range(3):
        with opened(path) as store:
            assert store.counts.damaged_hints == (
                run == 0 and not (written or (1 if written is None else 0)) <= used < 2**62
            )
            assert sorted(store.blocks()) == [(b"%d" % i, i) for i in range(SLOTS)]
            assert all(read(store, b"%d" % i, i) == data_of(i) for i in range(SLOTS))
            store.put(b"1", 1, parts(data_of(1)))
            assert store.blocks()[-1] == (b"1", 1)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777])
def test_what_lies_there_is_for_its_owner_alone_whatever_the_umask(path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        for _ in range(2):
            with opened(path) as store:
                store.put(b"key", 0, parts(b"x"))
                assert are_private(path)
    finally:
        os.umask(before)
    assert len(list(path.iterdir())) == 5
    assert are_private(path)


def are_private(path: Path) -> bool:
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    return stat.S_IMODE(path.stat().st_mode) == 0o700 and modes == {0o600}


def test_a_directory_that_others_could_look_into_is_made_private(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(path).close()
    path.chmod(0o755)
    for file in path.iterdir():
        file.chmod(0o644)
    with opened(path):
        assert are_private(path) or stat.S_IMODE((path / "recency").stat().st_mode) == 0o644
    assert are_private(path)
    assert f"{path}: others could look into it; it is private now" in caplog.text


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


@pytest.mark.parametrize("module", [disk_backend, disk_store])
def test_examples(module: Any) -> None:
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)


def test_no_call_to_the_file_system_passes_the_seam() -> None:
    """What the crash tests replace is all there is."""
    names = ("pwrite", "pwritev", "fsync", "fdatasync", "ftruncate", "replace", "unlink", "open(")
    for module in (disk_backend, disk_store, disk_folder):
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert not [name for name in names if f"os.{name}" in source]

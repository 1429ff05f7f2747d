"""Property: a directory that is damaged loses what is damaged and nothing else, and somebody else's is left as it is.

How: bytes, records and headers are altered; other stores, in this process and another, try to share; what was refused
is compared with what it was before.
Not covered: damage to the file system itself; every byte (the gate `faults` alters each).
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.offload.stores.disk_support import IDENTITY, SEED, SIZE, SLOTS, STRIDE, data_of, opened, parts, read

from blockwright.errors import (
    StoreDirectoryError,
)
from blockwright.offload import checksum
from blockwright.offload.disk import DiskStore
from blockwright.offload.disk import folder as disk_folder
from blockwright.offload.disk.files import BlockFile
from blockwright.offload.disk.index import RECORD_SIZE
from blockwright.offload.identity import CacheIdentity
from blockwright_spec.offload.directory import Resized, law_other_size_keeps_blocks

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


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": "another"}', "\0", "[" * 30_000, "1" * 5000, " " * 100_000 + "{}"]
)
def test_a_header_that_is_damaged_or_of_something_else_is_refused(path: Path, content: str) -> None:
    path.mkdir(mode=0o700)
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
    refused(path, "block_bytes is 5000 there and 5001 here", IDENTITY, SIZE + 1, 5)


def test_a_directory_whose_making_was_cut_short_is_taken(path: Path) -> None:
    path.mkdir(mode=0o700)
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


# --- what is not the store's own


NAMES = ["header.json", "index", "blocks", "lock"]
HINTS = ["recency", "recency.new", "header.json.new"]


@pytest.fixture
def victim(path: Path, tmp_path: Path) -> Iterator[Path]:
    """A store with a block, and a file outside that must stay as it is."""
    with opened(path) as store:
        store.put(b"key", 0, parts(data_of(1)))
    victim = tmp_path / "precious"
    victim.write_bytes(b"precious" * 5000)
    before = victim.stat()
    yield victim
    assert victim.read_bytes() == b"precious" * 5000
    assert (victim.stat().st_mode, victim.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["precious", "store"]


def link(file: Path, victim: Path) -> None:
    file.symlink_to(victim)


def dangling(file: Path, victim: Path) -> None:
    file.symlink_to(victim.with_name("made"))


def hard_link(file: Path, victim: Path) -> None:
    os.link(victim, file)


def fifo(file: Path, victim: Path) -> None:
    os.mkfifo(file)


def socket_there(file: Path, victim: Path) -> None:
    before = os.getcwd()
    os.chdir(file.parent)  # its path may be too long for a socket
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(file.name)
    finally:
        os.chdir(before)


def folder(file: Path, victim: Path) -> None:
    file.mkdir()


STANDS = [link, dangling, hard_link, fifo, socket_there, folder]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stands", STANDS)
def test_what_stands_in_the_place_of_a_file_is_refused(stands: Any, name: str, path: Path, victim: Path) -> None:
    (path / name).unlink()
    stands((path / name), victim)
    with pytest.raises(StoreDirectoryError, match=r"a link or no file|a hard link") as caught:
        opened(path)
    assert str(path / name) in str(caught.value)
    assert "name another directory, or delete this one" in str(caught.value)


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("stands", STANDS)
def test_what_stands_in_the_place_of_a_hint_costs_an_order(stands: Any, name: str, path: Path, victim: Path) -> None:
    (path / name).unlink(missing_ok=True)
    stands((path / name), victim)
    for _ in range(2):
        with opened(path) as store:
            assert read(store, b"key", 0) == data_of(1)
            store.put(b"new", 1, parts(data_of(2)))
    with opened(path) as store:
        assert read(store, b"new", 1) == data_of(2)


@pytest.mark.parametrize("name", ["lock", "header.json.new"])
@pytest.mark.parametrize("stands", [link, dangling, fifo])
def test_a_directory_to_be_made_a_store_has_no_links(stands: Any, name: str, tmp_path: Path) -> None:
    path, outside = tmp_path / "store", tmp_path / "precious"
    path.mkdir(mode=0o700)
    outside.write_text("precious")
    stands(path / name, outside)
    with pytest.raises(StoreDirectoryError, match=f"holds other files, such as '{name}'"):
        opened(path)
    assert (outside.read_text(), list(path.iterdir())) == ("precious", [path / name])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(path: Path, mode: int) -> None:
    path.mkdir()
    for _ in range(2):
        path.chmod(mode)
        refused(path, r"other users may write to it \(mode \d+\).*name another directory.*chmod go-w")
        path.chmod(0o700)
        opened(path).close()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_others_may_write_to_is_refused(path: Path, name: str) -> None:
    opened(path).close()
    (path / name).chmod(0o620)
    refused(path, rf"{name}: other users may write to it \(mode 620\).*chmod go-w")


def test_another_users_directory_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(path).close()
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    refused(path, rf"belongs to user {uid}, not to {uid + 1}, who runs this; name a directory that is not there yet")


def test_a_link_to_the_directory_is_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    path.symlink_to(tmp_path / "disk")
    opened(path).close()
    assert (tmp_path / "disk" / "header.json").is_file()


def test_a_store_goes_on_in_the_directory_that_it_has_opened(path: Path, tmp_path: Path) -> None:
    """Whoever may rename it cannot put another in its place."""
    with opened(path) as store:
        path.rename(tmp_path / "moved")
        path.mkdir(mode=0o700)
        store.put(b"key", 0, parts(data_of(1)))
    assert list(path.iterdir()) == []
    assert (tmp_path / "moved" / "recency").is_file()


def test_a_store_leaves_nothing_open(path: Path) -> None:
    def descriptors() -> set[str]:
        return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and alive(fd)}

    def alive(fd: str) -> bool:
        return os.path.lexists(f"/proc/self/fd/{fd}")

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    opened(path).close()
    with pytest.raises(StoreDirectoryError):
        DiskStore(path, IDENTITY, SIZE + 1, SLOTS)
    assert not [each for each in descriptors() if each.startswith(str(path))]


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


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4, 5, 6])
def test_a_directory_of_another_size_keeps_its_blocks(path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    """Of more than fit those used last (DISK-7); also if an opening ends after any of its syncs, and is repeated."""
    content = {b"%d" % at: bytearray([at]) * (SIZE - at) for at in range(8)}
    with DiskStore(path, IDENTITY, SIZE, 8) as store:
        for at, (key, data) in enumerate(content.items()):
            store.put(key, at, [memoryview(data)])
        assert store.get(b"2", 2, [memoryview(bytearray(SIZE - 2))])
    used = (*(key for key in content if key != b"2"), b"2")
    real, left = BlockFile.sync_now, [stop]

    def sync(file: BlockFile) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "the process ends here")
        real(file)

    monkeypatch.setattr(BlockFile, "sync_now", sync)
    with contextlib.suppress(StoreDirectoryError), DiskStore(path, IDENTITY, SIZE, 5):
        pass
    monkeypatch.undo()
    for places in (5, 20, 3):
        with DiskStore(path, IDENTITY, SIZE, places) as store:
            wrong = False
            for key, place in store.blocks():
                data = bytearray(len(content[key]))
                wrong |= not store.get(key, place, [memoryview(data)]) or data != content[key]
            found = tuple(key for key, _ in store.blocks())
        assert law_other_size_keeps_blocks(Resized(used, places, found, wrong))
        used = used[-places:]

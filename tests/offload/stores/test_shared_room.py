"""Property: a folder of shared blocks stays within its bound, and only its own files are ever taken away.

How: files on a local disk whose times are set by hand, so that their order is known; two engines under two identities
write, read and are counted after every call.
Not covered: object stores, which tell times of their own; a file system that fails (test_shared_faults.py).
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

from tests.offload.stores.shared_spaces import OURS, THEIRS, FileSpace, parts, read

from blockwright.errors import StoreUnavailableError

DATA = bytes(range(200))
OLD = (1000, 1000)
"""Times of a file that was used long ago."""


@pytest.fixture
def space(tmp_path: Path) -> Iterator[FileSpace]:
    one = FileSpace(f"file://{tmp_path}/shared")
    yield one
    one.close()


def file_of(space: FileSpace, key: bytes) -> Path:
    """Where our block lies, as the documentation of the class says."""
    return Path(space.root) / OURS.digest().hex() / key[:1].hex() / key.hex()


def bytes_in(folder: str) -> int:
    return sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())


def test_the_oldest_go_and_what_is_read_stays(space: FileSpace) -> None:
    space.open().put(b"\xff" * 16, None, parts(DATA))
    size = bytes_in(space.root)
    file_of(space, b"\xff" * 16).unlink()
    store, keys = space.open(most_bytes=10 * size), [bytes([number]) * 16 for number in range(11)]
    for number, key in enumerate(keys[:10]):
        store.put(key, None, parts(DATA))
        os.utime(file_of(space, key), (number, number))
    assert store.contains(keys[:10]) == [True] * 10  # as many as have room
    assert read(store, keys[0], len(DATA)) == DATA
    store.put(keys[10], None, parts(DATA))
    assert store.contains(keys) == [number not in (1, 2, 3) for number in range(11)]  # an eighth is left free


def test_two_engines_are_at_most_a_sixteenth_each_beyond_it(space: FileSpace) -> None:
    rng, most = random.Random(3), 20_000
    stores = [space.open(identity, most_bytes=most) for identity in (OURS, THEIRS)]
    written: dict[tuple[int, bytes], bytes] = {}
    found = 0
    for _ in range(300):
        engine, key = rng.randrange(2), bytes([rng.randrange(40)]) * 16
        data = rng.randbytes(rng.randrange(1, 2000))
        stores[engine].put(key, None, parts(data))
        written[engine, key] = data
        assert bytes_in(space.root) <= most + 2 * (most // 16)
        engine, key = rng.choice(list(written))
        data = written[engine, key]
        if stores[engine].contains([key]) == [True]:
            assert read(stores[engine], key, len(data)) == data
            found += 1
    assert 0 < found < 300


def test_a_block_beyond_the_bound_is_refused_and_drives_nothing_out(space: FileSpace) -> None:
    store = space.open(most_bytes=1000)
    store.put(b"k", None, parts(DATA))
    with pytest.raises(StoreUnavailableError):
        store.put(b"large", None, parts(bytes(2000)))
    assert read(store, b"k", len(DATA)) == DATA
    for _ in range(9):
        many = [(bytes([number]) * 16, None, parts(DATA)) for number in range(9)]
        assert store.put_many(many) == [number < 3 for number in range(9)]  # the first of them, and never none
        assert store.contains([key for key, *_ in many[:4]]) == [True, True, True, False]
    assert not store.is_down


def test_a_folder_in_the_place_of_a_block_stops_no_other(space: FileSpace) -> None:
    store = space.open()
    file_of(space, b"k").mkdir(parents=True)
    for _ in range(9):
        assert store.put_many([(key, None, parts(DATA)) for key in (b"k", b"l")]) == [False, True]
    assert (store.stats().refused, store.is_down) == (9, False)


@pytest.mark.parametrize("asked", [True, False], ids=["sweep", "first write"])
def test_leftovers_of_killed_writers_go_and_nothing_else(space: FileSpace, asked: bool) -> None:
    writer = space.open()
    for key in (b"k", b"l"):
        writer.put(key, None, parts(DATA))
    folder = file_of(space, b"k").parent
    theirs = Path(space.root) / THEIRS.digest().hex() / "ab"
    theirs.mkdir(parents=True)
    left = [folder / f".{'0' * 32}", theirs / f".{'1' * 32}", folder.parent / f".probe-{'2' * 32}"]
    others = [Path(space.root) / "notes", folder / ".hidden", theirs / "README", Path(space.root) / f".{'3' * 32}"]
    for path in left + others:
        path.write_bytes(b"bytes")
        os.utime(path, OLD)
    young = folder / f".{'4' * 32}"
    young.write_bytes(b"a write under way")
    store = space.open(most_bytes=1 << 20)
    if asked:
        assert store.sweep() == len(left)  # type: ignore[attr-defined]
        assert store.sweep() == 0  # type: ignore[attr-defined]
    else:
        store.put(b"m", None, parts(DATA))
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in [*others, young])
    assert [read(store, key, len(DATA)) for key in (b"k", b"l")] == [DATA, DATA]


def test_a_fifo_in_the_place_of_a_block_is_a_miss_that_waits_for_nobody(space: FileSpace) -> None:
    store = space.open()
    file_of(space, b"k").parent.mkdir(parents=True)
    os.mkfifo(file_of(space, b"k"))
    store.put(b"l", None, parts(DATA))
    assert store.contains([b"k", b"l"]) == [False, True]
    assert store.get_many([(key, None, [memoryview(bytearray(len(DATA)))]) for key in (b"k", b"l")]) == [False, True]
    assert (store.stats().wrong_type, store.stats().unavailable) == (1, 0)
    store.put(b"k", None, parts(DATA))
    assert read(store, b"k", len(DATA)) == DATA


def test_a_clock_that_jumps_costs_no_right_byte(space: FileSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store reads a clock to find leftovers and old files: wrong times cost blocks, and never a byte of one."""
    rng, offset, time_of = random.Random(5), [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: time_of() + offset[0])
    stores = [space.open(OURS, most_bytes=4_000), space.open(OURS, most_bytes=4_000)]
    found = 0
    for _ in range(400):
        offset[0] = rng.choice((0.0, -1e9, 1e9, 1e-3, -1e-3))
        store, key = rng.choice(stores), bytes([rng.randrange(12)]) * 16
        if rng.random() < 0.5:
            store.put(key, None, parts(key * 20))
        else:
            data = read(store, key, 320)
            assert data in (None, key * 20)
            found += data is not None
        assert bytes_in(space.root) <= 4_000 + 2 * 4_000 // 16 + 1_000
    assert found > 50

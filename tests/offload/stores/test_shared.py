"""Property: a shared store gives back the bytes that were put under a key, or says that it has none.

How: the same tests on a real server, on fsspec's file system in memory and on a local folder: blocks of many sizes and
cuts, values damaged byte by byte, cut off at every length, written by another identity, version or checksum; leading
runs with holes in every place.
Not covered: a network or server that fails (test_shared_faults.py), the manager's own state (test_shared_manager.py).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

from tests.offload.stores.mooncake_support import MooncakeSpace
from tests.offload.stores.shared_spaces import OURS, THEIRS, ServerSpace, Space, parts, read, space_of

from blockwright.errors import InvalidArgumentError, StoreUnavailableError, UnsupportedError
from blockwright.offload.checksum import CHECKSUMS
from blockwright.offload.media import StoreHandler
from blockwright.offload.shared import envelope
from blockwright.offload.shared.envelope import ALGORITHMS, Envelope, Fault
from blockwright.offload.shared.file_system import FileSystemStore
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.shared.store import MOST_KEY_BYTES
from blockwright.offload.shared.valkey import GROUP, ValkeyStore
from blockwright.offload.shared.valkey_client import Deadline
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, LoadStoreSpec

KEY, DATA = b"\x01" * 32, bytes(range(200))


@pytest.fixture(params=["server", "memory", "local", "mooncake"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    if request.param == "mooncake":  # a client that answers as the library does; the library in test_mooncake.py
        with closing(MooncakeSpace()) as fake:
            yield fake
        return
    url = request.getfixturevalue("server").url if request.param == "server" else ""
    one = space_of(request.param, url, tmp_path)
    yield one
    one.close()


@pytest.fixture
def server_space(server: Any) -> Iterator[ServerSpace]:
    one = ServerSpace(server.url)
    yield one
    one.close()


@pytest.mark.parametrize("length", [0, 1, 5999, 6001, 300_000])
def test_what_was_put_is_found(space: Space, length: int) -> None:
    data = os.urandom(length)
    store, other = space.open(), space.open()
    assert read(store, KEY, length) is None
    store.put(KEY, None, parts(data, length // 3, length // 2))
    assert read(other, KEY, length, length // 5) == data
    assert store.contains([KEY, b"other"]) == [True, False]
    assert other.stats().found == 1
    assert other.stats().bytes_read == length
    assert store.stats().absent == 1
    assert store.stats().bytes_written == length


def test_the_last_put_is_found(space: Space) -> None:
    store = space.open()
    for data in (DATA, b"other" + DATA):
        store.put(KEY, None, parts(data))
        assert read(store, KEY, len(data)) == data


def test_another_identity_finds_nothing(space: Space) -> None:
    ours, theirs = space.open(), space.open(THEIRS)
    ours.put(KEY, None, parts(DATA))
    assert theirs.contains([KEY]) == [False]
    assert read(theirs, KEY, len(DATA)) is None
    space.replace(theirs, KEY, b"") if isinstance(space, ServerSpace) else theirs.put(KEY, None, parts(DATA))
    space.replace(theirs, KEY, space.value(ours, KEY))  # even where it lies under their name
    assert read(theirs, KEY, len(DATA)) is None
    assert theirs.stats().foreign == 1


def test_no_damaged_byte_is_served(space: Space) -> None:
    store = space.open()
    store.put(KEY, None, parts(DATA))
    good = space.value(store, KEY)
    for at in range(0, len(good), 1 if space.__class__ is ServerSpace else 7):
        space.replace(store, KEY, good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        assert read(store, KEY, len(DATA)) is None
        space.replace(store, KEY, good[:at])
        assert read(store, KEY, len(DATA)) is None
    space.replace(store, KEY, good + b"x")
    assert read(store, KEY, len(DATA)) is None
    stats = store.stats()
    assert stats.found == 0
    assert min(stats.foreign, stats.corrupt) > 1
    assert stats.truncated > 1 or isinstance(space, MooncakeSpace)  # whose sizes are known before a byte is read
    store.put(KEY, None, parts(DATA))
    assert read(store, KEY, len(DATA)) == DATA


def test_another_length_or_key_is_a_miss(space: Space) -> None:
    store = space.open()
    store.put(KEY, None, parts(DATA))
    store.put(b"key two", None, parts(DATA[1:]))
    assert read(store, KEY, len(DATA) - 1) is None
    assert read(store, KEY, len(DATA) + 1) is None
    space.replace(store, b"key two", space.value(store, KEY))
    assert read(store, b"key two", len(DATA)) is None
    assert store.stats().foreign == 3


def test_something_else_under_the_name_is_a_miss(space: Space) -> None:
    store = space.open()
    store.put(KEY, None, parts(DATA))
    space.confuse(store, KEY)
    assert read(store, KEY, len(DATA)) is None
    assert not store.is_down
    if isinstance(space, ServerSpace):
        assert store.stats().wrong_type == 1
        store.put(KEY, None, parts(DATA))
        assert read(store, KEY, len(DATA)) == DATA


@pytest.mark.parametrize("batch_bytes", [1, 700, 1 << 20])
def test_many_at_once(space: Space, batch_bytes: int) -> None:
    store = space.open(batch_bytes=batch_bytes)
    blocks = {bytes([at + 1]): os.urandom(at * 37) for at in range(20)}
    assert store.put_many([(key, None, parts(data)) for key, data in blocks.items()]) == [True] * 20
    assert store.remove([b"\x03", b"\x09", b"not there"])
    into = [bytearray(len(data)) for data in blocks.values()]
    found = store.get_many([(key, None, [memoryview(to)]) for key, to in zip(blocks, into, strict=True)])
    assert found == [key not in (b"\x03", b"\x09") for key in blocks]
    assert all(to == data for to, data, ok in zip(into, blocks.values(), found, strict=True) if ok)
    assert store.put_many([]) == store.get_many([]) == store.contains([]) == []
    assert store.leading([]) == 0


def test_leading_runs(space: Space) -> None:
    store = space.open()
    count = 2 * GROUP + 3
    keys = [b"%04d" % at for at in range(count)]
    store.put_many([(key, None, parts(DATA)) for key in keys])
    assert store.leading(keys) == count
    assert store.leading([*keys, keys[0]]) == count + 1
    for hole in (0, 1, GROUP - 1, GROUP, count - 1):
        store.remove([keys[hole]])
        assert store.leading(keys) == hole
        assert store.leading(keys[hole + 1 :]) == count - hole - 1
        store.put(keys[hole], None, parts(DATA))


def test_threads_share_a_store(space: Space) -> None:
    store = space.open()
    wrong: list[bytes] = []

    def work(number: int) -> None:
        for turn in range(15):
            key = bytes([1 + (number + turn) % 5])
            data = key * (20_000 + key[0])
            store.put(key, None, parts(data))
            if read(store, key, len(data)) not in (data, None):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    if not isinstance(space, MooncakeSpace):  # there an old object is removed before the new one is written
        assert store.stats().found == 60


class Host:
    """Blocks in memory, as a handler sees them."""

    def __init__(self, blocks: list[bytes]) -> None:
        self.blocks = [bytearray(each) for each in blocks]
        self.num_blocks = len(blocks)

    def block_view(self, block_id: int) -> memoryview:
        return memoryview(self.blocks[block_id])


def moved(handler: StoreHandler, source: LoadStoreSpec, destination: LoadStoreSpec) -> bool:
    assert handler.transfer_async(1, (source, destination))
    handler.wait([1])
    ((job_id, success),) = handler.get_finished()
    assert job_id == 1
    return success


def test_the_handler_and_the_manager_go_with_it(space: Space) -> None:
    """Store two blocks, load them into other places, let one vanish: the load fails, and it is stored anew."""
    keys, data = [b"one", b"two"], [os.urandom(5000), os.urandom(5000)]
    store, host = space.open(), Host([*data, bytes(5000), bytes(5000)])
    manager, handler = SharedStoreManager(store, 16), StoreHandler(host, store)
    output = manager.prepare_store(keys)
    assert output is not None
    assert output.block_hashes_to_store == keys
    manager.complete_store(keys, moved(handler, CPULoadStoreSpec([0, 1]), output.store_spec))
    assert manager.lookup(keys) == 2
    manager.complete_load(keys, moved(handler, manager.prepare_load(keys), CPULoadStoreSpec([3, 2])))
    assert host.blocks == [*data, *reversed(data)]

    spec = manager.prepare_load(keys)
    store.remove(keys[:1])
    manager.complete_load(keys, moved(handler, spec, CPULoadStoreSpec([3, 2])))
    assert manager.lookup(keys) == 0
    output = manager.prepare_store(keys)
    assert output is not None
    assert output.block_hashes_to_store == keys
    manager.complete_store(keys, moved(handler, CPULoadStoreSpec([0, 1]), output.store_spec))
    assert manager.lookup(keys) == 2
    handler.close()


def test_pings(space: Space) -> None:
    space.open().ping()


@pytest.mark.parametrize("length", [0, MOST_KEY_BYTES + 1])
def test_odd_keys_are_refused(space: Space, length: int) -> None:
    store, key = space.open(), b"k" * length
    for call in (store.leading, store.contains, store.remove):
        with pytest.raises(InvalidArgumentError, match="key"):
            call([b"fine", key])
    with pytest.raises(InvalidArgumentError, match="key"):
        store.put(key, None, parts(DATA))
    with pytest.raises(InvalidArgumentError, match="key"):
        store.get(key, None, [])


def test_the_longest_key(space: Space) -> None:
    store = space.open()
    store.put(b"k" * MOST_KEY_BYTES, None, parts(DATA))
    assert read(store, b"k" * MOST_KEY_BYTES, len(DATA)) == DATA


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_checksum_is_read(algorithm: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if ALGORITHMS[algorithm] not in CHECKSUMS:
        pytest.skip("needs xxhash")
    value, into = Envelope(b"us", algorithm).sealed(KEY, parts(DATA, 7)), bytearray(len(DATA))
    assert Envelope(b"us").opened(KEY, value, [memoryview(into)]) is None
    assert into == DATA
    monkeypatch.setattr(envelope, "CHECKSUMS", ())
    assert Envelope(b"us").opened(KEY, value, [memoryview(into)]) is Fault.FOREIGN


def test_blocks_expire(server_space: ServerSpace) -> None:
    store = server_space.open(ttl=100.0)
    store.put(KEY, None, parts(DATA))
    assert 90_000 < server_space.client.pttl(store._name(KEY)) <= 100_000
    assert server_space.open(prefix="elsewhere").contains([KEY]) == [False]


def test_a_value_larger_than_any_block_is_not_read_whole(server_space: ServerSpace) -> None:
    store = server_space.open()
    server_space.replace(store, KEY, bytes(50_000_000))
    sent = server_space.client.info("stats")["total_net_output_bytes"]
    assert read(store, KEY, 10) is None
    assert server_space.client.info("stats")["total_net_output_bytes"] - sent < 100_000


def test_a_client_lends_its_address_and_credentials(server_space: ServerSpace) -> None:
    valkey: Any = pytest.importorskip("valkey")
    ours = ValkeyStore(server_space.client, OURS)
    ours.ping()
    assert ours.address == f"127.0.0.1:{server_space.url.rpartition(':')[2]}"
    assert ours._client is not server_space.client
    ours.close()
    with pytest.raises(UnsupportedError, match="clusters"):
        ValkeyStore(object(), OURS)
    sentinel = valkey.Sentinel([("127.0.0.1", 1)]).master_for("name")
    with pytest.raises(UnsupportedError, match="sentinels"):
        ValkeyStore(sentinel, OURS)


BAD_NUMBERS: list[dict[str, Any]] = [
    {"timeout": 0},
    {"timeout": None},
    {"lookup_timeout": float("nan")},
    {"ttl": -1},
    {"backoff": "1"},
    {"batch_bytes": 0},
    {"failures": 0},
]


@pytest.mark.parametrize("options", BAD_NUMBERS)
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    pytest.importorskip("valkey")
    with pytest.raises(InvalidArgumentError):
        ValkeyStore("valkey://127.0.0.1:1", OURS, **options)
    with pytest.raises(InvalidArgumentError):
        FileSystemStore("memory://x", OURS, **({"timeout": 0} if "ttl" in options else options))


def test_files_are_moved_into_place(tmp_path: Path) -> None:
    store = FileSystemStore(f"file://{tmp_path}", OURS)
    store.put(KEY, None, parts(DATA))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [KEY.hex()]
    (tmp_path / store._identity.hex() / "02" / ("02" * 3)).mkdir(parents=True)
    with pytest.raises(StoreUnavailableError):  # a folder is in the way
        store.put(b"\x02" * 3, None, parts(DATA))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [KEY.hex()]  # nothing is left beside it
    store.close()


def test_a_deadline_within_another_ends_no_later() -> None:
    deadline = Deadline()
    with deadline.within(1.0):
        outer = deadline.until
        with deadline.within(100.0):
            assert deadline.until == outer
        with deadline.within(0.1):
            assert deadline.until < outer
        assert deadline.until == outer
    assert deadline.until == float("inf")

"""Property: whatever a Mooncake store or its processes do, no wrong byte is found and each call ends in bounded time.

How: each test runs on a client that answers with the library's codes, and, where the package is installed, on a real
master and a process that lends memory. Those are killed, stopped, filled and restarted; the library's own calls show
that the pitfalls are there: a put that writes nothing, a health check that is content.
Not covered: RDMA, several machines, a master with a standby.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

from tests.offload.stores.mooncake_support import MooncakeSpace
from tests.offload.stores.shared_spaces import OURS, THEIRS, parts

from blockwright import Request, Sha256Hasher
from blockwright.errors import InvalidArgumentError, StoreUnavailableError, UnsupportedError
from blockwright.offload import BlockHint, CacheIdentity
from blockwright.offload.hits import offload_key
from blockwright.offload.media import StoreHandler
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.shared.mooncake import ABSENT, BOUNDS, MooncakeStore
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec
from blockwright_lab.media.cluster import WAIT, FakeCluster, RealCluster, missing
from blockwright_lab.media.lent_memory import mooncake_run

KEYS = [bytes([number]) * 32 for number in range(16)]
DATA = [random.Random(number).randbytes(200_000) for number in range(16)]
LONGEST = 20.0
"""Seconds of a call while a process is stopped: the bounds add up to 8, and the library's own timeouts begin at 30."""

Cluster = FakeCluster | RealCluster


@pytest.fixture(scope="module", params=["fake", "real"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.param == "real" and (why := missing()):
        pytest.skip(why)
    one = {"fake": FakeCluster, "real": RealCluster}[request.param](tmp_path_factory.mktemp("mooncake"))
    yield one
    one.close()


@pytest.fixture
def space(cluster: Cluster) -> Iterator[MooncakeSpace]:
    one = MooncakeSpace(cluster)
    yield one
    one.open().remove(KEYS)
    one.open(THEIRS).remove(KEYS)
    one.close()


def opened(space: MooncakeSpace, **options: Any) -> MooncakeStore:
    store = space.open(**{"failures": 1000} | options)
    assert isinstance(store, MooncakeStore)
    return store


def put(store: MooncakeStore, count: int = 16) -> list[bool]:
    return store.put_many([(KEYS[at], None, parts(DATA[at], 7)) for at in range(count)])


def get(store: MooncakeStore, count: int = 16) -> int:
    """Read blocks; check that those found have their bytes, and return how many there are."""
    into = [bytearray(len(DATA[at])) for at in range(count)]
    found = store.get_many([(KEYS[at], None, [memoryview(into[at])]) for at in range(count)])
    assert all(into[at] == DATA[at] for at in range(count) if found[at])
    return sum(found)


def in_time(call: Callable[[], Any]) -> Any:
    began = time.monotonic()
    result = call()
    assert time.monotonic() - began < LONGEST
    return result


def recovers(store: MooncakeStore) -> bool:
    """Write and read all blocks until that works, by use alone."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if all(put(store)) and get(store) == 16:
            return True
        time.sleep(0.1)
    return False


def test_blocks_are_shared_and_identities_are_apart(space: MooncakeSpace) -> None:
    store, other = opened(space), opened(space)
    assert put(store) == [True] * 16
    assert other.leading(KEYS) == 16
    assert get(other) == 16
    assert get(opened(space, identity=THEIRS)) == 0
    assert opened(space, identity=THEIRS).contains(KEYS) == [False] * 16
    assert (other.stats().found, other.stats().bytes_read) == (16, 16 * 200_000)


def test_a_damaged_block_is_replaced_though_a_put_would_write_nothing(space: MooncakeSpace) -> None:
    store = opened(space)
    put(store, 2)
    damaged = bytearray(space.value(store, KEYS[0]))
    damaged[-1] ^= 1
    space.replace(store, KEYS[0], bytes(damaged))
    name = store._name(KEYS[0])
    assert store._client.put(name, b"anything") == 0
    assert space.value(store, KEYS[0]) == damaged, "the library's put replaces now: nothing need be removed before"
    assert get(store, 2) == 1
    assert store.stats().corrupt == 1
    assert put(store, 1) == [True]
    assert get(store, 2) == 2


def test_a_block_that_was_just_read_is_replaced_and_removed_within_its_lease(space: MooncakeSpace) -> None:
    store = opened(space)
    put(store, 2)
    name = store._name(KEYS[0])
    deadline = time.monotonic() + WAIT
    code = 0
    while code != -706 and time.monotonic() < deadline:  # a busy machine may come too late for a lease of half a second
        assert get(store, 2) == 2
        (code,) = store._client.batch_remove([name], False)
        put(store, 1)
    assert code == -706, "the library removes what was just read: nothing need be forced"
    assert get(store, 2) == 2
    assert put(store, 1) == [True]
    assert get(store, 2) == 2
    assert store.remove(KEYS)
    assert store.contains(KEYS) == [False] * 16
    assert store.stats().refused == 0


def test_the_library_takes_all_settings_and_is_quiet_unless_it_is_asked_to_speak(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    program = "from blockwright.offload import *; import os, sys\n"
    program += "store = MooncakeStore(sys.argv[1], CacheIdentity('m', 'l', 'bfloat16', 16, b's'), lookup_timeout=5.0)\n"
    program += "item = b'k' * 32, None, [memoryview(bytearray(300_000))]\n"
    program += "for _ in range(50): assert store.put_many([item]) == store.get_many([item]) == [True]\n"
    program += "store.close()\n"
    cluster, told = RealCluster(tmp_path), {}
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("MC_")}
    quiet["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        for level in ("", "INFO"):
            environment = quiet | ({"MC_LOG_LEVEL": level} if level else {})
            command = [sys.executable, "-c", program, cluster.address]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            told[level] = done.stderr
    finally:
        cluster.close()
    assert len(told["INFO"].splitlines()) > 10, "the library says little by itself: nothing need be set"
    assert len(told[""].splitlines()) < 5
    assert "Invalid" not in told["INFO"], "the library passes over a setting of ours"


@pytest.mark.parametrize("length", [1, 199_999, 200_001, 400_000])
def test_another_length_is_a_miss_and_no_failure(space: MooncakeSpace, length: int) -> None:
    store = opened(space)
    put(store, 2)
    into = [memoryview(bytearray(length)), memoryview(bytearray(200_000))]
    assert store.get_many([(KEYS[at], None, [into[at]]) for at in range(2)]) == [False, True]
    assert (store.stats().foreign, store.stats().failures) == (1, 0)


def test_a_stopped_owner_holds_no_call_and_writes_nothing_later(space: MooncakeSpace) -> None:
    store, manager = opened(space), SharedStoreManager(opened(space), 16)
    put(store)
    into = [bytearray(200_000) for _ in KEYS]
    space.cluster.stop("owner")
    try:
        reads = [(key, None, [memoryview(each)]) for key, each in zip(KEYS, into, strict=True)]
        assert in_time(lambda: store.get_many(reads)) == [False] * 16
        for each in into:
            each[:] = b"\xdd" * 200_000  # the engine uses the memory for something else
        in_time(lambda: put(store))
        in_time(lambda: manager.lookup(KEYS))
        assert store.stats().failures > 0
        assert store.stats().unavailable >= 16
    finally:
        space.cluster.resume("owner")
    assert recovers(store)
    assert all(each == b"\xdd" * 200_000 for each in into)


def test_the_fault_runs_see_a_damaged_block_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright_lab.media.faults.RECOVERY", 0.3)
    monkeypatch.setattr(MooncakeStore, "_removed", lambda self, names: [ABSENT] * len(names))
    assert "of no use" in mooncake_run("mooncake client: damaged values", "pr").detail


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_a_master_that_is_away_makes_misses_until_it_is_back(space: MooncakeSpace, fault: str) -> None:
    store = opened(space)
    put(store)
    if fault == "kill":
        space.cluster.kill("master")
    else:
        space.cluster.stop("master")
    try:
        assert store._client.health_check() == 0, "the library tells now that the master is away: `ping` could use it"
        with pytest.raises(StoreUnavailableError):
            in_time(store.ping)
        assert in_time(lambda: get(store)) == 0
        assert in_time(lambda: put(store)) == [False] * 16
        assert in_time(lambda: store.contains(KEYS)) is None
        assert in_time(lambda: store.leading(KEYS)) == 0
        assert not in_time(lambda: store.remove(KEYS))
        stats = store.stats()
        assert (stats.failures, stats.found) == (6, 0)
    finally:
        if fault == "kill":
            space.cluster.start("master")
        else:
            space.cluster.resume("master")
    assert recovers(store)


def test_a_store_without_a_master_is_not_opened(space: MooncakeSpace) -> None:
    space.cluster.kill("master")
    try:
        with pytest.raises(StoreUnavailableError, match="cannot be used: code"):
            in_time(lambda: opened(space))
    finally:
        space.cluster.start("master")
    assert recovers(opened(space))


def test_a_full_store_refuses_and_is_not_down(space: MooncakeSpace) -> None:
    store, large = opened(space, failures=1), bytes(6 << 20)
    keys = [b"large%d" % number for number in range(16)]
    done = store.put_many([(key, None, parts(large)) for key in keys])  # more than all the memory, at once
    assert False in done
    assert True in done
    stats = store.stats()
    assert (stats.refused, stats.failures) == (done.count(False), 0)
    assert not store.is_down
    buffers = [bytearray(len(large)) for _ in keys]
    found = store.get_many([(key, None, [memoryview(each)]) for key, each in zip(keys, buffers, strict=True)])
    assert all(not ok or at for ok, at in zip(found, done, strict=True)), "a block that was refused is found"
    store.remove(keys)
    assert recovers(store)


def test_hinted_blocks_are_pinned_within_the_bound(space: MooncakeSpace) -> None:
    store = opened(space, most_pinned_bytes=450_000)
    manager = SharedStoreManager(store, 16)
    forever = BlockHint("tenant", 5, float("inf"))
    hints = [forever, None, BlockHint("tenant", 5, 9.0), forever, forever, *[None] * 11]
    assert manager.prepare_store_hinted(KEYS, hints) is not None
    assert put(store) == [True] * 16
    assert [store._name(key) in store._pinned for key in KEYS] == [at in (0, 3) for at in range(16)]
    if isinstance(space.cluster, FakeCluster):
        assert space.cluster.pinned == set(store._pinned)
    else:
        filler = [(b"filler%d" % number, None, parts(bytes(1 << 20))) for number in range(16)]
        for turn in range(40):  # ten times the memory, block by block, so that others are evicted
            store.put_many([(b"%d" % turn + key, place, data) for key, place, data in filler])
            time.sleep(0.05)
        found = store.contains(KEYS)
        assert found is not None
        assert found[0]
        assert found[3]
        assert not all(found), "nothing was evicted, so that the test shows nothing"
    assert store.remove(KEYS)
    assert store.contains(KEYS) == [False] * 16
    assert store._pinned == {}


@pytest.mark.parametrize("options", [{"replicas": 0}, {"segment_bytes": -1}, {"most_pinned_bytes": True}])
def test_numbers_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        MooncakeStore("127.0.0.1:1", OURS, **options)


def test_a_library_without_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", sys)
    monkeypatch.delenv(next(iter(BOUNDS)), raising=False)
    with pytest.raises(UnsupportedError, match="MC_TCP_PROGRESS_TIMEOUT_SEC"):
        MooncakeStore("127.0.0.1:1", OURS)


def test_what_the_system_lacks_is_named(tmp_path: Path) -> None:
    """A package that cannot be loaded, and none at all."""
    program = "from blockwright.offload import *; from blockwright.offload import MooncakeStore, CacheIdentity\n"
    program += "try: MooncakeStore('127.0.0.1:1', CacheIdentity('m', 'l', 'bfloat16', 16, b's'))\n"
    program += "except Exception as error: print(type(error).__name__, error)"
    (tmp_path / "mooncake").mkdir()
    for text, named in (
        ("raise ImportError('libibverbs.so.1: cannot open shared object file')", "libibverbs1"),
        ("raise ModuleNotFoundError('mooncake')", "pip install 'blockwright[mooncake]'"),
    ):
        (tmp_path / "mooncake" / "__init__.py").write_text("")
        (tmp_path / "mooncake" / "store.py").write_text(text)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert "UnsupportedError" in told.stdout, told
        assert named in told.stdout


def test_the_host_of_a_handler_is_registered_once(space: MooncakeSpace) -> None:
    class Host:
        num_blocks, memory = 4, memoryview(bytearray(4 * 200_000))

        def block_view(self, block_id: int) -> memoryview:
            return self.memory[block_id * 200_000 :][:200_000]

    store, host = opened(space), Host()
    host.memory[:200_000] = DATA[0]
    manager = SharedStoreManager(store, 16)
    with StoreHandler(host, store) as handler, StoreHandler(host, store):
        output = manager.prepare_store(KEYS[:1])
        assert output is not None
        handler.transfer_async(1, (CPULoadStoreSpec([0]), output.store_spec))
        handler.wait([1])
        assert handler.get_finished() == [(1, True)]
        manager.complete_store(KEYS[:1])
        handler.transfer_async(2, (manager.prepare_load(KEYS[:1]), CPULoadStoreSpec([3])))
        handler.wait([2])
        assert handler.get_finished() == [(2, True)]
    assert host.memory[600_000:] == DATA[0]
    assert [size for _, size in store._memory].count(800_000) == 1


class EngineProcess:
    """`mooncake_engine.py`, in a process of its own."""

    def __init__(self, master: str, model: str = "model") -> None:
        program = Path(__file__).with_name("mooncake_engine.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), master, model],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "MC_LOG_LEVEL": "FATAL"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def serve(self, name: str) -> list[int]:
        """Return the tokens loaded, and the slots that are wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return [int(word) for word in self._process.stdout.readline().split()]

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_engines_in_two_processes_share_a_store(tmp_path: Path) -> None:
    """One loads what the other stored, through everything that may happen to the store's processes."""
    pytest.importorskip("torch")
    if why := missing():
        pytest.skip(why)
    cluster = RealCluster(tmp_path)
    one, other, foreign = (EngineProcess(cluster.address, model) for model in ("model", "model", "another"))
    try:
        assert one.serve("first") == [0, 0]
        assert other.serve("first") == [20 * 32, 0]
        assert foreign.serve("first") == [0, 0]
        keys = [
            offload_key(digest, 0)
            for prompt in range(20)
            for numbers in (random.Random(prompt),)
            for digest in Request(
                f"{prompt}", [numbers.randrange(100) for _ in range(33)], 4, hasher=Sha256Hasher(b"seed")
            ).block_hashes
        ]
        large = [(b"large%d" % number, None, parts(bytes(6 << 20))) for number in range(16)]
        direct = cluster.open(CacheIdentity("model", "4, 256", "float32", 4, b"seed"))

        def damage() -> None:
            for name in map(direct._name, keys):
                value = bytearray(direct._client.get(name))
                value[-1] ^= 1
                direct._client.remove(name, True)
                assert direct._client.put(name, bytes(value)) == 0

        faults: Any = (
            (damage, lambda: None),
            (lambda: direct.put_many(large), lambda: direct.remove([key for key, *_ in large])),
            *((partial(cluster.kill, name), partial(cluster.start, name)) for name in ("owner", "master")),
            *((partial(cluster.stop, name), partial(cluster.resume, name)) for name in ("owner", "master")),
        )
        for stop, resume in faults:
            stop()
            assert in_time(lambda: other.serve("away"))[1] == 0
            resume()
            end, loaded = time.monotonic() + WAIT, 0
            while loaded < 20 * 32 and time.monotonic() < end:
                assert one.serve("back")[1] == 0
                loaded, wrong = other.serve("back")
                assert wrong == 0
            assert loaded == 20 * 32
    finally:
        for engine in (one, other, foreign):
            engine.end()
        cluster.close()

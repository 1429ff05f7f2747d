"""Property: whatever a server or network does, calls end in time, nothing wrong is found, and no secret is told.

How: a real server that is killed, frozen, short of memory, locked; a proxy that spoils what passes; file systems that
fail and hang. The fault run of the kit is shown to see stores that check nothing, wait for ever, or tell the password.
Not covered: long runs (the gate `faults`), name servers that hang (nothing bounds them).
"""

import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")
pytest.importorskip("valkey", reason="needs a client: pip install valkey")

from fsspec.implementations.memory import MemoryFileSystem
from tests.offload.stores.shared_spaces import OURS, parts, read

from blockwright.errors import InvalidArgumentError, StoreUnavailableError
from blockwright.offload.shared import envelope, valkey_client
from blockwright.offload.shared import store as shared_store
from blockwright.offload.shared.file_system import FileSystemStore
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.shared.valkey import ValkeyStore
from blockwright_lab.media.faults import store_run
from blockwright_lab.media.proxy import FAULTS, FaultProxy
from blockwright_lab.media.server import LocalServer, free_port

KEY, DATA = b"\x01" * 32, bytes(range(200))
SECRET = "open-sesame"
PATIENT = {"timeout": 60.0, "lookup_timeout": 60.0, "connect_timeout": 60.0}
QUICK = {"timeout": 0.2, "lookup_timeout": 0.1, "connect_timeout": 0.2}
"""Seconds that calls may take: where a server answers, however busy the machine is, and where it never will."""


@contextmanager
def opened(target: Any, **options: Any) -> Iterator[ValkeyStore]:
    store = ValkeyStore(target, OURS, **PATIENT | options)
    try:
        yield store
    finally:
        store.close()


def eventually(holds: Callable[[], object]) -> bool:
    """Wait for something to hold, for as long as a very busy machine may take."""
    end = time.monotonic() + 120.0
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.01)
    return False


def is_stored(store: ValkeyStore) -> bool:
    """Put the data, and say whether it is read back."""
    with suppress(StoreUnavailableError):
        store.put(KEY, None, parts(DATA))
    return read(store, KEY, 200) == DATA


def everything_about(error: BaseException) -> str:
    """All that a log may show of an error: it, what it came from, and the way."""
    return repr(error) + "".join(traceback.format_exception(error)) + repr((error.__cause__, error.__context__))


def test_an_unreachable_server_is_a_counted_miss(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with opened(
        f"valkey://me:{SECRET}@127.0.0.1:{free_port()}", failures=2, backoff=60.0, longest_backoff=60.0
    ) as store:
        with pytest.raises(
            StoreUnavailableError, match=r"127\.0\.0\.1:\d+/0 cannot be used: ConnectionError"
        ) as refused:
            store.ping()
        assert SECRET not in everything_about(refused.value)
        assert refused.value.__context__ is None
        assert SharedStoreManager(store, 16).lookup([KEY]) == 0
        assert store.is_down
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        with pytest.raises(StoreUnavailableError):
            store.put(KEY, None, parts(DATA))
        assert read(store, KEY, 200) is None
        assert store.contains([KEY]) is None
        assert not store.remove([KEY])
        assert SharedStoreManager(store, 16).prepare_store([KEY]) is None
        stats = store.stats()
    assert (stats.failures, stats.unavailable, stats.down) == (2, 1, 4)
    assert SECRET not in caplog.text + repr(store) + str(vars(store))


@pytest.mark.parametrize("password", ["", f"{SECRET}x"])
def test_wrong_credentials(password: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with LocalServer(password=SECRET) as server:
        with opened(server.url) as store:
            store.ping()
        url = f"valkey://:{password}@127.0.0.1:{server.port}" if password else f"valkey://127.0.0.1:{server.port}"
        with opened(url) as store:
            with pytest.raises(StoreUnavailableError, match="AuthenticationError") as refused:
                store.ping()
            assert SECRET not in everything_about(refused.value)
            assert read(store, KEY, 200) is None
            assert store.stats().unavailable == 1
        with opened(url, username="default", password=SECRET) as store:
            store.ping()
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        f"valkey://me:{SECRET}/@host:1",
        f"http://me:{SECRET}@host",
        f"valkey://me:x@host:{SECRET}",
        f"valkey://host?db={SECRET}",
        f"valkey://host?password=x&{SECRET}=1",
        f"valkey://host?socket_timeout=1000&client_name={SECRET}",
        SECRET,
    ],
)
def test_bad_urls_are_refused_without_a_word_of_them(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="url") as refused:
        ValkeyStore(url, OURS)
    assert refused.value.__context__ is None
    assert SECRET not in everything_about(refused.value).replace(f'"{url}"', "")


def test_the_store_is_used_again_after_a_restart() -> None:
    with LocalServer() as server, opened(server.url, failures=1, backoff=0.01, longest_backoff=0.05) as store:
        store.put(KEY, None, parts(DATA))
        server.stop()
        assert read(store, KEY, 200) is None
        assert server.start()
        assert eventually(lambda: is_stored(store))


def test_a_trickle_of_bytes_does_not_hold_a_caller() -> None:
    """Each byte arrives within the timeout of a socket, and they never end: that the call returns shows the bound."""

    def trickle(listener: socket.socket) -> None:
        with suppress(OSError), listener, listener.accept()[0] as link:
            link.recv(1 << 16)
            link.sendall(b"$100000\r\n")
            while True:
                link.sendall(b"x")
                time.sleep(0.02)

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=trickle, args=(listener,))
    thread.start()
    with opened(f"valkey://127.0.0.1:{port}", **QUICK) as store:
        assert read(store, KEY, 100) is None
    thread.join()


@pytest.mark.parametrize("fault", ["drop replies", "delay replies"])
def test_calls_end_in_time(fault: str, server: LocalServer) -> None:
    """The fault lasts until the test ends it: that the calls return shows the bound."""
    with FaultProxy(server.port) as proxy, opened(f"valkey://127.0.0.1:{proxy.port}", failures=100, **QUICK) as store:
        assert eventually(lambda: is_stored(store))
        proxy.fault = fault
        store.leading([KEY])
        read(store, KEY, 200)
        proxy.fault = ""
        assert eventually(lambda: is_stored(store))


def test_a_full_server_refuses_and_still_serves() -> None:
    with LocalServer("maxmemory 4mb", "maxmemory-policy noeviction") as server, opened(server.url, failures=1) as store:
        big = bytes(400_000)
        done = store.put_many([(bytes([at + 1]), None, parts(big)) for at in range(20)])
        assert True in done
        assert False in done
        assert not store.is_down
        assert store.stats().refused == done.count(False)
        assert [read(store, bytes([at + 1]), len(big)) == big for at in range(20)] == done


def test_a_server_that_evicts_makes_misses() -> None:
    with LocalServer("maxmemory 4mb", "maxmemory-policy allkeys-lru") as server, opened(server.url) as store:
        big = bytes(400_000)
        for at in range(20):
            store.put(bytes([at + 1]), None, parts(big))
        found = [read(store, bytes([at + 1]), len(big)) for at in range(20)]
        assert 0 < found.count(big) < 20
        assert store.stats().absent == 20 - found.count(big)


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """A file system that fails, or hangs, when it is told to."""

    protocol, cachable = "moody", False
    mood: Any = None

    def cat_file(self, *arguments: Any, **options: Any) -> bytes:
        self._feel()
        return bytes(super().cat_file(*arguments, **options))

    def pipe_file(self, *arguments: Any, **options: Any) -> None:
        self._feel()
        super().pipe_file(*arguments, **options)

    def info(self, *arguments: Any, **options: Any) -> Any:
        self._feel()
        return super().info(*arguments, **options)

    def _feel(self) -> None:
        if isinstance(self.mood, Exception):
            raise self.mood
        if self.mood is not None:
            self.mood.wait(60.0)


def test_a_file_system_that_fails() -> None:
    fs = Moody()
    store = FileSystemStore(fs, OURS, root="/moody", failures=100)
    store.put(KEY, None, parts(DATA))
    fs.mood = OSError(f"cannot reach host with {SECRET}")
    assert read(store, KEY, 200) is None
    assert store.leading([KEY]) == 0
    with pytest.raises(StoreUnavailableError, match="moody://moody cannot be used: OSError") as refused:
        store.ping()
    assert SECRET not in everything_about(refused.value)
    fs.mood = PermissionError("no")
    assert read(store, KEY, 200) is None
    fs.mood = None
    assert read(store, KEY, 200) == DATA
    assert (store.stats().failures, store.stats().refused, store.stats().unavailable) == (3, 1, 2)
    store.close()


def test_a_file_system_that_hangs() -> None:
    fs, released = Moody(), threading.Event()
    store = FileSystemStore(fs, OURS, root="/moody", timeout=0.1, lookup_timeout=0.05, threads=2, failures=100)
    store.put(KEY, None, parts(DATA))
    fs.mood = released
    for _ in range(4):  # two in threads that hang, two for which none is left
        assert store.leading([KEY]) == 0
        assert read(store, KEY, 200) is None
    fs.mood = None
    released.set()
    assert eventually(lambda: read(store, KEY, 200) == DATA)
    store.close()


def test_file_systems_that_cannot_be_opened_are_refused_without_a_word() -> None:
    with pytest.raises(InvalidArgumentError, match="target") as refused:
        FileSystemStore(f"nosuch://me:{SECRET}@host", OURS, key=SECRET)
    assert refused.value.__context__ is None
    store = FileSystemStore(MemoryFileSystem(), OURS, root=f"https://me:{SECRET}@host/folder?token={SECRET}")
    assert SECRET not in repr(store)
    store.close()


@pytest.mark.usefixtures("server")
class TestTheFaultRun:
    """It sees what it is there to see; that it is green is seen by the gate, and in tests/conformance."""

    def test_sees_damage_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unverified(self: Any, key: bytes, value: bytes, into: Any) -> None:
            data = memoryview(value)[self.size(key, 0) :]
            for part in into:
                part[: len(data)] = data[: part.nbytes]

        monkeypatch.setattr(envelope.Envelope, "opened", unverified)
        assert "with other bytes" in store_run("store: foreign values", "pr").detail

    def test_sees_calls_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("blockwright_lab.media.faults.SLACK", 0.2)
        monkeypatch.setattr(
            valkey_client.BoundedSocket, "_arm", lambda self: self._limit and self._sock.settimeout(1.0)
        )
        # Whether a call meets the frozen server depends on the pace of the machine: some run of a few does.
        assert any(" took " in store_run("store: freeze the server", "quick").detail for _ in range(8))

    def test_sees_a_secret_in_a_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried = shared_store.SharedStore._tried

        def talkative(self: Any, work: Any) -> Any:
            logging.getLogger("blockwright").debug("asking %s", self._client.connection_pool.connection_kwargs)
            return tried(self, work)

        monkeypatch.setattr(shared_store.SharedStore, "_tried", talkative)
        assert "password" in store_run("store: forget everything", "quick").detail

    def test_sees_a_store_that_stays_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("blockwright_lab.media.faults.RECOVERY", 0.3)
        monkeypatch.setattr("blockwright_lab.media.faults.BACKOFF", 1e6)
        monkeypatch.setattr("blockwright_lab.media.faults.time.sleep", lambda _: None)
        assert "of no use" in store_run("store: refuse", "quick").detail


def test_only_known_faults() -> None:
    with pytest.raises(ValueError, match="no fault"):
        FaultProxy(1).fault = "boredom"
    assert all(direction in ("", "reply", "request") for direction, _ in FAULTS.values())


def test_temporary_files_of_a_failed_write_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileSystemStore(f"file://{tmp_path}", OURS)
    monkeypatch.setattr(type(store._fs), "mv", lambda *_: (_ for _ in ()).throw(OSError("disk on fire")))
    with pytest.raises(StoreUnavailableError):
        store.put(KEY, None, parts(DATA))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    store.close()


@pytest.mark.parametrize("reply", [b":7\r\n", b"+OK\r\n", b"$2\r\nok\r\n", b"*0\r\n", b"-ERR out of range\r\n"])
def test_replies_out_of_step_are_no_answers(reply: bytes) -> None:
    """A server that gives one reply to everything: nothing is found, and only a refusal to write is an answer."""

    def parrot(listener: socket.socket) -> None:
        with suppress(OSError), listener:
            while True:
                with listener.accept()[0] as link:
                    while data := link.recv(1 << 16):
                        link.sendall(reply * data.count(b"*"))

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    thread = threading.Thread(target=parrot, args=(listener,))
    thread.start()
    with opened(f"valkey://127.0.0.1:{port}", failures=100) as store:
        assert store.leading([KEY] * 70) == 0
        assert store.contains([KEY]) in (None, [False])
        assert read(store, KEY, 200) is None
        written = store.put_many([(KEY, None, parts(DATA))])
        assert written == [reply == b"+OK\r\n"]
        assert store.stats().failures > 0 or reply.startswith(b"-")
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_nothing_is_copied_for_a_store_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(f"valkey://127.0.0.1:{free_port()}", failures=1, backoff=60.0, longest_backoff=60.0) as store:
        assert store.leading([KEY]) == 0
        monkeypatch.setattr(envelope.Envelope, "sealed", None)
        assert store.put_many([(KEY, None, parts(DATA))]) == [False]
        assert store.stats().down == 1

"""A fault run: blocks are put, read and looked up in a shared store while everything between goes wrong.

Whatever happens, a block that is found has its own bytes, each call returns in its time, the store is used again once
the fault is over, and neither a log record nor an error holds the password.
"""

import io
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any

from blockwright.errors import StoreUnavailableError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.manager import SharedStoreManager
from blockwright.offload.shared.valkey import ValkeyStore
from blockwright_conformance.gates import GateResult

from .proxy import FAULTS, FaultProxy
from .server import LocalServer, missing

ADMIN, PASSWORD = "administrator-only", "correct-horse-battery"
IDENTITY = CacheIdentity("model", "layers, tokens", "bfloat16", 16, b"seed")
SIZES = (1, 100, 5_000, 600_000)
TIMEOUT, LOOKUP_TIMEOUT, SLACK = 0.2, 0.1, 30.0
"""Seconds that calls may take, and that a busy machine may add: a fault lasts until it is ended, so that a call which
waits for its end never returns."""
BACKOFF = 0.02
RECOVERY = 120.0
"""Seconds after a fault in which the store must be of use again."""
OPERATIONS = {"quick": 6, "pr": 24, "nightly": 400}

STORE_EVERYTHING = frozenset(
    "put load store lookup found missed absent truncated foreign corrupt wrong_type refused unavailable down".split()
)


class StoreFaultError(AssertionError):
    """The store broke a promise."""


def content(key: bytes) -> bytes:
    random = Random(key)
    return random.randbytes(SIZES[key[0] % len(SIZES)])


class FaultRun:
    """One server, one proxy, one store, and the operations on it."""

    def __init__(self, server: LocalServer, proxy: FaultProxy, seed: int) -> None:
        self.server, self.proxy, self.random = server, proxy, Random(seed)
        self.direct: Any = ValkeyStore(server.url, IDENTITY)
        self._client = self.direct._client
        self._allow()
        self.fired: Counter[str] = Counter()
        self.store: Any = ValkeyStore(
            f"valkey://engine:{PASSWORD}@127.0.0.1:{proxy.port}/0",
            IDENTITY,
            timeout=TIMEOUT,
            lookup_timeout=LOOKUP_TIMEOUT,
            connect_timeout=TIMEOUT,
            failures=3,
            backoff=BACKOFF,
            longest_backoff=4 * BACKOFF,
            batch_bytes=500_000,
        )
        self.manager = SharedStoreManager(self.store, 16)
        self.keys = [bytes([number]) + b"block" for number in range(16)]

    def close(self) -> None:
        self.store.close()
        self.direct.close()

    def timed(self, what: str, seconds: float, work: Callable[[], Any]) -> Any:
        """Do work; it must end in time, and raise nothing but what a put may."""
        began = time.monotonic()
        try:
            return work()
        except StoreUnavailableError as error:
            if what != "put" or PASSWORD in repr(error) or error.__context__ is not None:
                raise StoreFaultError(f"{what} raised {type(error).__name__}") from None
            return None
        finally:
            took = time.monotonic() - began
            if took > seconds + SLACK:
                raise StoreFaultError(f"{what} took {took:.2f} s of {seconds} s")

    def operate(self) -> None:
        if self.store.is_down and self.random.random() < 0.7:  # see more of the fault than a store that rests
            time.sleep(BACKOFF)
        what = self.random.choice(("put", "load", "store", "lookup"))
        keys = self.random.sample(self.keys, self.random.randint(1, 6))
        self.fired[what] += 1
        getattr(self, f"_{what}")(keys)

    def _put(self, keys: list[bytes]) -> None:
        self.timed("put", TIMEOUT, lambda: self.store.put(keys[0], None, [memoryview(content(keys[0]))]))

    def _lookup(self, keys: list[bytes]) -> None:
        self.timed("lookup", LOOKUP_TIMEOUT, lambda: self.manager.lookup(keys))

    def _store(self, keys: list[bytes]) -> None:
        output = self.timed("prepare_store", LOOKUP_TIMEOUT, lambda: self.manager.prepare_store(keys))
        if output is None or not output.block_hashes_to_store:
            return
        items = [(key, place, [memoryview(content(key))]) for key, place in output.store_spec.items()]
        most = TIMEOUT * len(items)  # of each batch
        done = self.timed("put_many", most, lambda: self.store.put_many(items))
        for (key, _, _), written in zip(items, done, strict=True):
            self.manager.complete_store([key], written)

    def _load(self, keys: list[bytes]) -> None:
        keys = [key for key in keys if self.manager.status_of(key) is None][: self.manager.lookup(keys) or 1]
        self.read(keys)

    def read(self, keys: list[bytes]) -> int:
        into = [bytearray(len(content(key))) for key in keys]
        items = [(key, None, [memoryview(buffer)]) for key, buffer in zip(keys, into, strict=True)]
        found = self.timed("get_many", TIMEOUT * len(items), lambda: self.store.get_many(items))
        for key, buffer, ok in zip(keys, into, found, strict=True):
            self.fired["found" if ok else "missed"] += 1
            if ok and buffer != content(key):
                raise StoreFaultError(f"block {key!r} was found with other bytes")
        return sum(found)

    def recover(self) -> None:
        end = time.monotonic() + RECOVERY
        key = self.random.choice(self.keys)
        while time.monotonic() < end:
            self._put([key])
            if self.read([key]):
                return
            time.sleep(0.02)
        raise StoreFaultError(f"the store was of no use {RECOVERY} s after the fault: {self.store.stats()}")

    def under(self, begin: "Act", end: "Act", operations: int) -> None:
        for key in self.random.sample(self.keys, 8):
            self._put([key])
        begin(self)
        for _ in range(operations):
            self.operate()
        end(self)
        self.recover()
        self.manager.check()

    def row(self, name: str, found: str, began: float) -> GateResult:
        stats = {
            each: count for each, count in asdict(self.store.stats()).items() if count and not each.startswith("bytes")
        }
        done, seconds = sum(self.fired[what] for what in ("put", "load", "store", "lookup")), time.monotonic() - began
        law, keys, kind = "STORE-1" if found else "", len(self.keys), type(self.store).__name__
        fired = {**self.fired, **stats}
        return GateResult("faults", name, kind, keys, done, int(bool(found)), seconds, law, found, fired=fired)

    def spoil(self, fault: str) -> None:
        self.proxy.fault = fault

    def _set_user(self, password: str, rules: str) -> None:
        self._client.execute_command("ACL", "SETUSER", "engine", "on", "resetpass", password, *rules.split())

    def _allow(self) -> None:
        self._set_user(f">{PASSWORD}", "~* +@all")

    def _deny(self, password: str) -> None:
        self._set_user(password, "-get -getrange")
        self.store._client.connection_pool.disconnect()

    def _restart(self) -> None:
        if not self.server.start():
            raise StoreFaultError(f"the server did not start again: {self.server.log()}")
        self._allow()

    def _mistype_values(self) -> None:
        for name in map(self.direct._name, self.keys):
            self._client.delete(name)
            self.random.choice((self._client.rpush, self._client.sadd))(name, "1", "2")

    def _replace_values(self, spoiled: Callable[[bytes], bytes]) -> None:
        for key in self.keys:
            self._client.set(self.direct._name(key), spoiled(key))

    def _damaged(self, key: bytes) -> bytes:
        value = bytearray(self.direct._envelope.sealed(key, [memoryview(content(key))]))
        at = self.random.randrange(len(value))
        if self.random.random() < 0.5:
            value[at] ^= 0x10
        else:
            del value[at:]
        return bytes(value)

    def _foreign(self, key: bytes) -> bytes:
        foreign = CacheIdentity("another model", "layers, tokens", "bfloat16", 16, b"seed")
        data = self.random.randbytes(len(content(key)))
        return bytes(type(self.direct._envelope)(foreign.digest()).sealed(key, [memoryview(data)]))

    def _limit_memory(self, policy: str) -> None:
        self._client.config_set("maxmemory-policy", policy)
        self._client.config_set("maxmemory", self._client.info("memory")["used_memory"] + 100_000)

    def _give_memory(self, tries: int = 5) -> None:
        """End the shortage of memory; seen once in many runs: a server that is short closes the connection instead."""
        for left in reversed(range(tries)):
            try:
                self._client.config_set("maxmemory", 0)
                return
            except Exception:
                if not left:
                    raise
                time.sleep(0.1)


Act = Callable[[Any], object]

SERVER_FAULTS: dict[str, tuple[Act, Act]] = {
    "kill the server": (lambda run: run.server.stop(), FaultRun._restart),
    "freeze the server": (lambda run: run.server.freeze(), lambda run: run.server.thaw()),
    "out of memory": (lambda run: run._limit_memory("noeviction"), FaultRun._give_memory),
    "evict": (lambda run: run._limit_memory("allkeys-lru"), FaultRun._give_memory),
    "forget everything": (lambda run: run._client.flushall(), lambda run: None),
    "wrong types": (FaultRun._mistype_values, lambda run: None),
    "damaged values": (lambda run: run._replace_values(run._damaged), lambda run: None),
    "foreign values": (lambda run: run._replace_values(run._foreign), lambda run: None),
    "change the password": (lambda run: run._deny(f">{PASSWORD}x"), FaultRun._allow),
    "take the permission": (lambda run: run._deny(f">{PASSWORD}"), FaultRun._allow),
}

STORE_RUNS = tuple(f"store: {fault}" for fault in (*FAULTS, *SERVER_FAULTS))


@contextmanager
def everything_logged() -> Iterator[io.StringIO]:
    text, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(text), root.level
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)s"))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def store_run(name: str, profile: str, seed: int = 0) -> GateResult:
    why, fault = missing(), name.partition(": ")[2]
    if why:
        return GateResult("faults", name, "ValkeyStore", 0, 0, 0, 0.0, detail=f"not run: {why}", left_out=True)
    began, found = time.monotonic(), ""
    with everything_logged() as log, LocalServer(password=ADMIN) as server, FaultProxy(server.port, seed) as proxy:
        run = FaultRun(server, proxy, seed)
        try:
            run.store.ping()
            on_the_way = partial(FaultRun.spoil, fault=fault), partial(FaultRun.spoil, fault="")
            run.under(*SERVER_FAULTS.get(fault, on_the_way), OPERATIONS[profile])
        except StoreFaultError as error:
            found = str(error)
        finally:
            run.close()
        said = log.getvalue()
    if not found and PASSWORD in said + repr(run.store) + repr(run.manager):
        found = "a log record or a representation holds the password"
    return run.row(name, found, began)

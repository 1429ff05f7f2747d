"""A Mooncake store to test with: real processes on loopback, or a client that answers with the library's codes.

The real one listens on other interfaces as well, for as long as a test takes; `unshare -rn` around it prevents that.
"""

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from blockwright.errors import UnsupportedError
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared import mooncake
from blockwright.offload.shared.mooncake import MooncakeStore

from .server import free_port

WAIT = 120.0
"""Seconds in which a process starts, or the store is of use again, on a very busy machine."""

OWNER = """
import os, sys
os.environ.setdefault("MC_TCP_BIND_ADDRESS", "127.0.0.1")
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
print(store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1]), flush=True)
sys.stdin.read()
store.close()
"""
"""A process that lends memory to the store until its input ends."""


class RealCluster:
    """A master and one process that lends memory. Objects have a lease of half a second, processes one of three."""

    kind = "real"

    def __init__(self, folder: Path, owned: int = 64 << 20) -> None:
        self._log, self._owned = folder / "log", owned
        self._processes: dict[str, subprocess.Popen[Any]] = {}
        self._ports = [free_port() for _ in range(2)]
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.start("master")
        self.start("owner")

    def open(self, identity: CacheIdentity, **options: Any) -> MooncakeStore:
        return MooncakeStore(self.address, identity, **{"lookup_timeout": 5.0} | options)

    def start(self, name: str) -> None:
        self._start_master() if name == "master" else self._start_owner()

    def _start_master(self) -> None:
        package = importlib.util.find_spec("mooncake")
        assert package is not None
        assert package.submodule_search_locations
        flags = {"rpc_address": "127.0.0.1", "rpc_port": self._ports[0], "rpc_thread_num": 2, "logtostderr": "true"}
        flags |= {"metrics_host": "127.0.0.1", "metrics_port": self._ports[1]}
        flags |= {"client_ttl": 3, "default_kv_lease_ttl": 500}
        binary = Path(package.submodule_search_locations[0], "mooncake_master")
        with self._log.open("ab") as log:
            command = [str(binary), *(f"--{name}={value}" for name, value in flags.items())]
            self._processes["master"] = subprocess.Popen(command, stdout=log, stderr=log)

    def _start_owner(self) -> None:
        command = [sys.executable, "-c", OWNER, self.address, str(self._owned)]
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            with self._log.open("ab") as log:
                owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
            self._processes["owner"] = owner
            assert owner.stdout is not None
            if owner.stdout.readline().strip() == "0":
                return
            self.kill("owner")
        raise RuntimeError(f"no master: {self._log.read_text(errors='replace')[-2000:]}")

    def kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait(WAIT)

    def stop(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)
        os.waitpid(self._processes[name].pid, os.WUNTRACED)  # until then it may answer a call

    def resume(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for name in self._processes:
            self.kill(name)


class FakeCluster:
    """Objects in a dict, and the codes that the library gives."""

    kind = "fake"
    address = "127.0.0.1:0"

    def __init__(self, folder: Path | None = None, owned: int = 64 << 20) -> None:
        self.objects: dict[str, bytes] = {}
        self.pinned: set[str] = set()
        self.leased: set[str] = set()  # read, so that they are not removed unless by force
        self.owned = owned
        self.running = {"master", "owner"}

    def open(self, identity: CacheIdentity, **options: Any) -> MooncakeStore:
        kept = mooncake._library
        mooncake._library = lambda: SimpleNamespace(
            MooncakeDistributedStore=lambda: FakeClient(self), ReplicateConfig=SimpleNamespace
        )
        try:
            return MooncakeStore(self.address, identity, **{"lookup_timeout": 5.0} | options)
        finally:
            mooncake._library = kept

    def start(self, name: str) -> None:
        """Start a process: what was in the memory of the one before is lost."""
        self.objects.clear()
        if name == "master":
            self.pinned.clear()
        self.running.add(name)

    def kill(self, name: str) -> None:
        self.running.discard(name)

    stop = kill

    def resume(self, name: str) -> None:
        self.running.add(name)

    def close(self) -> None:
        return


class FakeClient:
    """The calls of the library that a store makes, and `get` and `put` for a test."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._at = cluster

    def _has(self, name: str) -> bool:
        return name in self._at.running

    def setup(self, *_: object) -> int:
        return 0 if self._has("master") else -1

    def register_buffer(self, address: int, size: int) -> int:
        return 0 if address and size else -600

    def unregister_buffer(self, address: int) -> int:
        return 0 if address else -600

    def health_check(self) -> int:
        return 0

    def close(self) -> int:
        return 0

    def get(self, name: str) -> bytes:
        self._at.leased.add(name)
        return self._at.objects.get(name, b"")

    def put(self, name: str, value: bytes) -> int:
        self._at.objects.setdefault(name, value)
        return 0

    def batch_is_exist(self, names: list[str]) -> list[int]:
        return [int(name in self._at.objects) if self._has("master") else -900 for name in names]

    def batch_remove(self, names: list[str], force: bool) -> list[int]:
        if not self._has("master"):
            return [-900] * len(names)
        if not force:
            return [-706 if name in self._at.leased else self.batch_remove([name], True)[0] for name in names]
        self._at.pinned.difference_update(names)
        self._at.leased.difference_update(names)
        return [-704 if self._at.objects.pop(name, None) is None else 0 for name in names]

    def batch_put_from_multi_buffers(
        self, names: list[str], places: list[list[int]], sizes: list[list[int]], config: Any
    ) -> list[int]:
        codes = []
        for name, where, lengths in zip(names, places, sizes, strict=True):
            used = sum(map(len, self._at.objects.values())) + sum(lengths)
            if not self._has("master"):
                codes.append(-900)
            elif name in self._at.objects:
                codes.append(0)
            elif not self._has("owner"):
                codes.append(-800)
            elif used > self._at.owned:
                codes.append(-200)
            else:
                self._at.objects[name] = b"".join(map(ctypes.string_at, where, lengths))
                if config.with_hard_pin:
                    self._at.pinned.add(name)
                codes.append(0)
        return codes

    def batch_get_into_multi_buffers(
        self, names: list[str], places: list[list[int]], sizes: list[list[int]]
    ) -> list[int]:
        codes = []
        for name, where, lengths in zip(names, places, sizes, strict=True):
            value = self._at.objects.get(name)
            if not self._has("master"):
                codes.append(-900)
            elif value is None:
                codes.append(-704)
            elif len(value) > sum(lengths):
                codes.append(-600)
            elif len(value) < sum(lengths) or not self._has("owner"):
                codes.append(-800)
            else:
                codes.append(len(value))
                self._at.leased.add(name)
                for address, length in zip(where, lengths, strict=True):
                    ctypes.memmove(address, value[:length], length)
                    value = value[length:]
        return codes

    def batch_get_replica_desc(self, names: list[str]) -> dict[str, list[Any]]:
        described = {}
        for name in names:
            buffer = SimpleNamespace(size=len(self._at.objects.get(name, b"")))
            memory = SimpleNamespace(buffer_descriptor=buffer)
            described[name] = [
                SimpleNamespace(is_memory_replica=lambda: True, get_memory_descriptor=lambda memory=memory: memory)
            ]
        return described if self._has("master") else {}


def missing() -> str:
    """Return what prevents real processes here; empty if nothing does."""
    if importlib.util.find_spec("mooncake") is None:
        return "no mooncake: pip install mooncake-transfer-engine-non-cuda"
    try:
        mooncake._library()
    except UnsupportedError as error:
        return str(error)
    return ""

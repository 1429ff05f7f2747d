"""Places where several stores of one kind meet, with a way to look and meddle behind their backs."""

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec

from blockwright.offload.identity import CacheIdentity
from blockwright.offload.shared.file_system import FileSystemStore
from blockwright.offload.shared.store import SharedStore, ValueStore
from blockwright.offload.shared.valkey import ValkeyStore

OURS = CacheIdentity("model", "layers, heads, tokens", "bfloat16", 16, b"seed")
THEIRS = CacheIdentity("model", "layers, heads, tokens", "float16", 16, b"seed")


class Space(ABC):
    """One place, and the stores on it; all are closed at the end."""

    def __init__(self) -> None:
        self.stores: list[SharedStore] = []

    def open(self, identity: CacheIdentity = OURS, **options: Any) -> SharedStore:
        self.stores.append(self.made(identity, **options))
        return self.stores[-1]

    def close(self) -> None:
        for store in self.stores:
            store.close()

    @abstractmethod
    def made(self, identity: CacheIdentity, **options: Any) -> SharedStore: ...

    @abstractmethod
    def value(self, store: SharedStore, key: bytes) -> bytes:
        """What lies under the name of a key, as bytes."""

    @abstractmethod
    def replace(self, store: SharedStore, key: bytes, value: bytes) -> None:
        """Put other bytes there."""

    @abstractmethod
    def confuse(self, store: SharedStore, key: bytes) -> None:
        """Put something there that is no string of bytes at all."""


class ServerSpace(Space):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        import valkey

        self.client: Any = valkey.Valkey.from_url(url)
        self.client.flushall()

    def close(self) -> None:
        super().close()
        self.client.close()

    def made(self, identity: CacheIdentity, **options: Any) -> SharedStore:
        return ValkeyStore(self.url, identity, **{"lookup_timeout": 2.0} | options)

    def value(self, store: SharedStore, key: bytes) -> bytes:
        return bytes(self.client.get(store._name(key)))

    def replace(self, store: SharedStore, key: bytes, value: bytes) -> None:
        self.client.set(store._name(key), value)

    def confuse(self, store: SharedStore, key: bytes) -> None:
        self.client.delete(store._name(key))
        self.client.rpush(store._name(key), "a", "b")


class FileSpace(Space):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.fs, self.root = fsspec.core.url_to_fs(url)

    def close(self) -> None:
        super().close()
        if self.fs.exists(self.root):
            self.fs.rm(self.root, recursive=True)

    def made(self, identity: CacheIdentity, **options: Any) -> SharedStore:
        return FileSystemStore(self.url, identity, **{"lookup_timeout": 2.0} | options)

    def value(self, store: SharedStore, key: bytes) -> bytes:
        return bytes(self.fs.cat_file(store._name(key)))

    def replace(self, store: SharedStore, key: bytes, value: bytes) -> None:
        self.fs.pipe_file(store._name(key), value)

    def confuse(self, store: SharedStore, key: bytes) -> None:
        if self.fs.exists(store._name(key)):
            self.fs.rm_file(store._name(key))
        self.fs.makedirs(f"{store._name(key)}/folder")


def space_of(kind: str, url: str, folder: Path) -> Space:
    if kind == "server":
        return ServerSpace(url)
    return FileSpace({"memory": "memory://blockwright-tests", "local": f"file://{folder}/shared"}[kind])


def parts(data: bytes, *cuts: int) -> list[memoryview]:
    """The data in pieces, cut at these places."""
    bounds = [0, *cuts, len(data)]
    return [memoryview(data)[start:end] for start, end in pairwise(bounds)]


def read(store: SharedStore, key: bytes, length: int, *cuts: int) -> bytes | None:
    """What the store has under a key; checks that a miss leaves the destination alone, where there is a copy."""
    buffer = bytearray(b"\xee" * length)
    whole, bounds = memoryview(buffer), [0, *cuts, length]
    found = store.get(key, None, [whole[start:end] for start, end in pairwise(bounds)])
    assert found or buffer == b"\xee" * length or not isinstance(store, ValueStore)
    return bytes(buffer) if found else None

"""What the tests of the disk tier share: small stores, blocks, and files that do more than ours."""

from pathlib import Path
from typing import ClassVar

from blockwright.offload.disk import DiskStore
from blockwright.offload.disk.files import BlockFile, Folder
from blockwright.offload.identity import CacheIdentity

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


class Counting(BlockFile):
    """Counts syncs."""

    syncs: ClassVar[int] = 0
    store: ClassVar[type[DiskStore]]

    def sync_now(self) -> None:
        Counting.syncs += 1
        super().sync_now()


def with_files(kind: type[BlockFile]) -> type[DiskStore]:
    folder = type("OddFolder", (Folder,), {"file_class": kind})
    return type("OddStore", (DiskStore,), {"folder_class": folder})


Counting.store = with_files(Counting)

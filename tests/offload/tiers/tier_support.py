"""What the tests of tiers share: keys, tiers with blocks in them, and a backend that anyone might write."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright.offload import (
    ARCOffloadingManager,
    Backend,
    BlockStatus,
    CPUBackend,
    LoadStoreSpec,
    LRUOffloadingManager,
)

BLOCK_SIZE = 16
MANAGERS = [LRUOffloadingManager, ARCOffloadingManager]


def keys(names: str) -> list[bytes]:
    """Return a key for each letter, each of another length."""
    return [name.encode() * (ord(name) % 7 + 1) for name in names]


def lru(num_blocks: int, names: str = "", enable_events: bool = True) -> LRUOffloadingManager:
    """Return a tier in which some blocks are ready."""
    manager = LRUOffloadingManager(CPUBackend(BLOCK_SIZE, num_blocks), enable_events)
    store(manager, names)
    return manager


def store(manager: LRUOffloadingManager | ARCOffloadingManager, names: str) -> list[bytes]:
    """Store blocks completely; return what was evicted."""
    output = manager.prepare_store(keys(names))
    assert output is not None
    if output.block_hashes_to_store:
        manager.complete_store(output.block_hashes_to_store)
    return output.block_hashes_evicted


class Shelf(BlockStatus):
    """A place that has a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class ShelfSpec(LoadStoreSpec):
    """Named places."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @staticmethod
    def medium() -> str:
        return "SHELF"


class ShelfBackend(Backend):
    """A backend in plain Python, which knows nothing of ours."""

    def __init__(self, names: str) -> None:
        super().__init__(BLOCK_SIZE, "SHELF")
        self.free_names = list(names)
        self.given: list[Shelf] = []

    def get_num_free_blocks(self) -> int:
        return len(self.free_names)

    def allocate_blocks(self, block_hashes: list[bytes]) -> list[BlockStatus]:
        shelves = [Shelf(self.free_names.pop(0)) for _ in block_hashes]
        self.given += shelves
        return list(shelves)

    def free(self, block: BlockStatus) -> None:
        assert isinstance(block, Shelf)
        self.given.remove(block)  # a second time would raise
        self.free_names.append(block.name)

    def get_load_store_spec(self, block_hashes: Iterable[bytes], blocks: Iterable[BlockStatus]) -> LoadStoreSpec:
        return ShelfSpec([block.name for block in blocks if isinstance(block, Shelf)])

    def counts(self) -> dict[str, int]:
        """Return what each status says, by the name of its place."""
        return {shelf.name: shelf.ref_cnt for shelf in self.given}

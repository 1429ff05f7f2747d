"""The paths of the bookkeeping of one offload tier: the life of a block, and its parts.

LRU over a host of 4,096 places, keys of 32 bytes, 64 blocks (a prompt of 1,024 tokens) in each call, no events. A block
that is stored evicts another unless a row says otherwise. Every sample checks, outside the timed region, that the work
was done.
"""

import random
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.measure import Sample, now, require, since
from benchmarks.path import OFFLOAD, Path
from benchmarks.sides import BLOCK_SIZE

TARGET = 10
"""Ratio over the peer to reach for the whole life of a block."""
PLACES = 4_096
"""Blocks that the tier holds."""
BATCH = 64
"""Blocks in each call."""


class OffloadSide(Protocol):
    """A manager under measurement; it has the names of `blockwright.offload.LRUOffloadingManager`."""

    def manager(self, num_blocks: int) -> Any:
        """Return a new manager over so many places in the host's memory, without events."""


class OursOffload:
    """`blockwright.offload`, as installed."""

    def manager(self, num_blocks: int) -> Any:
        # Imported late: it is not part of what other paths measure.
        from blockwright.offload import CPUBackend, LRUOffloadingManager

        return LRUOffloadingManager(CPUBackend(BLOCK_SIZE, num_blocks))


class Run:
    """A tier, and two sets of blocks that fill it in turn: storing one evicts the other."""

    def __init__(self, side: OffloadSide) -> None:
        draw = random.Random(0)
        self.side = side
        self.manager = side.manager(PLACES)
        self.sets = [[[draw.randbytes(32) for _ in range(BATCH)] for _ in range(PLACES // BATCH)] for _ in range(2)]
        self.store_all()

    def turn(self) -> list[list[bytes]]:
        """Return the blocks, in calls, that are not stored now."""
        self.sets.reverse()
        return self.sets[0]

    def store_all(self) -> None:
        for keys in self.turn():
            self.manager.prepare_store(keys)
            self.manager.complete_store(keys)

    def finish(self) -> None:
        """Check that exactly the set whose turn it was can be read."""
        stored, evicted = self.sets
        require(all(self.manager.lookup(keys) == BATCH for keys in stored))
        require(all(self.manager.lookup(keys) == 0 for keys in evicted))


def life(side: OffloadSide) -> Sample:
    run = Run(side)
    manager = run.manager

    def sample() -> float:
        calls = run.turn()
        begin = now()
        for keys in calls:
            manager.prepare_store(keys)
            manager.complete_store(keys)
            manager.touch(keys)
            manager.lookup(keys)
            manager.prepare_load(keys)
            manager.complete_load(keys)
        spent = since(begin)
        run.finish()
        return spent / PLACES

    return sample


def store_evicting(side: OffloadSide) -> Sample:
    run = Run(side)
    manager = run.manager

    def sample() -> float:
        calls = run.turn()
        begin = now()
        for keys in calls:
            manager.prepare_store(keys)
            manager.complete_store(keys)
        spent = since(begin)
        run.finish()
        return spent / PLACES

    return sample


def store_failing(side: OffloadSide) -> Sample:
    run = Run(side)
    manager = run.manager = side.manager(PLACES)
    calls = run.sets[0]

    def sample() -> float:
        begin = now()
        for keys in calls:
            manager.prepare_store(keys)
            manager.complete_store(keys, False)
        spent = since(begin)
        together = [key for keys in calls for key in keys]
        require(manager.lookup(together) == 0)
        require(manager.prepare_store(together).block_hashes_to_store == together)
        manager.complete_store(together, False)
        return spent / PLACES

    return sample


def _each_stored(side: OffloadSide, call: Callable[[Any, list[bytes]], object]) -> Sample:
    run = Run(side)
    manager = run.manager
    calls = run.sets[0]

    def sample() -> float:
        begin = now()
        for keys in calls:
            call(manager, keys)
        spent = since(begin)
        run.finish()
        return spent / PLACES

    return sample


def lookup(side: OffloadSide) -> Sample:
    return _each_stored(side, lambda manager, keys: manager.lookup(keys))


def touch(side: OffloadSide) -> Sample:
    return _each_stored(side, lambda manager, keys: manager.touch(keys))


def load(side: OffloadSide) -> Sample:
    def both(manager: Any, keys: list[bytes]) -> None:
        manager.prepare_load(keys)
        manager.complete_load(keys)

    return _each_stored(side, both)


def _line(name: str, title: str, target: float | None, make: Callable[[Any], Sample]) -> Path:
    return Path(f"offload-{name}", title, "block", target, lambda: make(OursOffload()), make, system=OFFLOAD)


def all_paths() -> list[Path]:
    return [
        _line("life", "store, touch, look up, load; each evicting", TARGET, life),
        _line("store", "store that fails, places free", None, store_failing),
        _line("evict", "store, each evicting", None, store_evicting),
        _line("touch", "touch", None, touch),
        _line("lookup", "look up", None, lookup),
        _line("load", "load", None, load),
    ]

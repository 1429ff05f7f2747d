"""A Mooncake store below vLLM's host tier: blocks that engines share come up to the host before they are offered.

vLLM ends when a block that it was offered cannot be loaded. So a block of the store is offered only once it is on the
host and verified. Until then `ask` has the scheduler look again in its next step. Blocks move between the store and the
host's memory in a thread, and the step goes on meanwhile. After `LONGEST` seconds a request waits no longer for them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from blockwright.offload import LRUOffloadingManager, MooncakeStore
from blockwright.offload.media import Item

LONGEST = 10.0
"""Seconds that a request waits for blocks on their way from the store: reads from a stopped process are shorter."""


class SharedTier:
    """The blocks of one store that an engine asks for, brings to its host, and writes from there.

    Attributes:
        memory: of the host's blocks, uint8, (blocks, bytes), which the store reads and writes without a copy.
    """

    def __init__(self, store: MooncakeStore, num_host_blocks: int, block_bytes: int) -> None:
        """Take an open store, which `close` closes."""
        self.memory = torch.zeros((num_host_blocks, block_bytes), dtype=torch.uint8)
        self._store = store
        if self.memory.numel():
            store.register(self.memory.view(-1).numpy().data)
        self._thread = ThreadPoolExecutor(1, "blockwright-store")
        self._asked: dict[bytes, set[str]] = {}
        self._answered: dict[str, set[bytes]] = {}
        self._moving: list[tuple[Future[list[bool]], float, list[bytes]]] = []  # with the time of a read, 0 of a write

    def ask(self, key: bytes, request_id: str) -> bool:
        """Ask for a block that the host does not have; return False if the request has asked for it before."""
        # Once is enough: on a small host, requests that wait would drive out each other's blocks for ever.
        if key in self._answered.get(request_id, ()):
            return False
        self._asked.setdefault(key, set()).add(request_id)
        return True

    def forget(self, request_id: str) -> None:
        """Forget what a request has asked for."""
        self._answered.pop(request_id, None)
        for waiting in self._asked.values():
            waiting.discard(request_id)

    def is_late(self, key: bytes) -> bool:
        """Return whether a block has been on its way from the store for too long."""
        then = time.monotonic() - LONGEST
        return any(0 < began < then and key in keys for _, began, keys in self._moving)

    @property
    def is_busy(self) -> bool:
        """Whether blocks are moving, or were asked for."""
        return bool(self._moving or self._asked)

    def fetch(self, host: LRUOffloadingManager) -> None:
        """Take in what has come, and begin to bring the blocks that were asked for to the host, as far as they fit."""
        self.collect(host)
        wanted = [key for key in self._asked if host.status_of(key) is None]
        there = self._store.contains(wanted) or [False] * len(wanted)
        found = [key for key, is_there in zip(wanted, there, strict=True) if is_there]
        prepared = host.prepare_store(found)
        while prepared is None:
            found = found[: len(found) // 2]
            prepared = host.prepare_store(found)
        if found:
            items = self._items(found, prepared.store_spec.block_ids)  # type: ignore[attr-defined]
            self._moving.append((self._thread.submit(self._store.get_many, items), time.monotonic(), found))
        self._answer([key for key in self._asked if host.status_of(key) != -1])

    def write(self, host: LRUOffloadingManager, keys: Sequence[bytes]) -> None:
        """Begin to write blocks from the host to the store; they stay on the host until that has ended."""
        kept = [key for key in keys if host.lookup([key])]
        if kept:
            items = self._items(kept, host.prepare_load(kept).block_ids)  # type: ignore[attr-defined]
            self._moving.append((self._thread.submit(self._store.put_many, items), 0.0, kept))

    def collect(self, host: LRUOffloadingManager, wait: bool = False) -> None:
        """Take in the moves that have ended, or wait for all."""
        moving, self._moving = self._moving, []
        for future, began, keys in moving:
            if not (wait or future.done()):
                self._moving.append((future, began, keys))
            elif began:
                for key, arrived in zip(keys, future.result(), strict=True):
                    host.complete_store([key], arrived)
                self._answer(keys)
            else:
                future.result()
                host.complete_load(keys)

    def close(self) -> None:
        """Close the store, once nothing moves."""
        self._thread.shutdown()
        self._store.close()

    def _answer(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            for request_id in self._asked.pop(key, ()):
                self._answered.setdefault(request_id, set()).add(key)

    def _items(self, keys: Sequence[bytes], places: Sequence[int]) -> list[Item]:
        return [(key, None, [self.memory[place].numpy().data]) for key, place in zip(keys, places, strict=True)]

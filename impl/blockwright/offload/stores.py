"""Stores of device blocks: of those that a step has filled, or of those that the device is about to lose."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright.core.candidates.order import BlockHint
from blockwright.core.journal import Eviction
from blockwright.core.manager import KVCacheManager
from blockwright.core.request import Request
from blockwright.errors import UnknownRequestError
from blockwright.offload.hits import GroupBlocks, offload_key
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.transfers import Finished


class Stores:
    """Stores of one connector that are under way, and how far each request is stored.

    Attributes:
        copies: stores under way that read evicted blocks: they must run before the next step.
        num_stored, num_known, num_refused, num_failed: offloaded blocks, see `ConnectorStats`.
    """

    def __init__(self, manager: KVCacheManager, chain: OffloadChain, is_early: bool) -> None:
        """Store what steps fill if `is_early`, else what is evicted."""
        self._manager = manager
        self._chain = chain
        self._is_early = is_early
        self._per_block = chain.device_blocks_per_block
        self._next: dict[str, list[int]] = {}  # per request and group: the first offloaded block not looked at
        self._held: dict[int, list[int]] = {}  # per store: the device blocks held for it
        self._now = 0.0
        self.copies: set[int] = set()
        self.num_stored = self.num_known = self.num_refused = self.num_failed = 0

    @property
    def under_way(self) -> bool:
        """Whether a store has not been told to have ended."""
        return bool(self._held or self.copies)

    def forget(self, request_id: str) -> None:
        """Start again with a request: its first blocks may be gone from the tiers."""
        self._next.pop(request_id, None)

    def held_blocks(self) -> dict[int, int]:
        """Return how often stores hold each device block."""
        held: dict[int, int] = {}
        for blocks in self._held.values():
            for block in blocks:
                held[block] = held.get(block, 0) + 1
        return held

    # ------------------------------------------------------------------ what is stored when

    def store_evicted(self) -> None:
        """Store what the device has taken for other content; of equal content the first, which a step has written."""
        if self._is_early:
            return
        self._pass_time()
        victims: dict[bytes, Eviction] = {}
        for each in self._manager.take_evictions():
            victims.setdefault(offload_key(each.block_hash, each.group), each)
        if victims:
            found = victims.values()
            self._store(list(victims), [each.block_id for each in found], [each.hint for each in found])

    def _pass_time(self) -> None:
        """Tell the tiers what time it is, if it has been said: hints end there as on the device."""
        now = self._manager.block_pool.now
        if now > self._now:
            self._chain.advance_time(now)
            self._now = now

    def store_filled(self, requests: Iterable[Request]) -> None:
        """Store the blocks of running requests that steps have filled since the last call; others are passed over."""
        if not self._is_early:
            return
        self._pass_time()
        for request in requests:
            if request.block_size is not None:
                self._store_request(request)

    def _store_request(self, request: Request) -> None:
        manager, name = self._manager, request.request_id
        try:
            published = manager.num_published(name)
        except UnknownRequestError:
            return
        done = manager.num_settled(name) if manager.overlap_steps else request.num_computed_tokens
        done = min(done, request.num_tokens)
        groups = [GroupBlocks(each, at, request, self._per_block) for at, each in enumerate(manager.managers)]
        stops = [
            min(blocks.count(done), count // self._per_block) for blocks, count in zip(groups, published, strict=True)
        ]
        starts = self._next.setdefault(name, [0] * len(groups))
        if all(stop <= start for start, stop in zip(starts, stops, strict=True)):
            return
        tables = manager.get_block_ids(name)
        keys: list[bytes] = []
        ids: list[int] = []
        hints: list[BlockHint | None] = []
        for blocks, table, start, stop in zip(groups, tables, starts, stops, strict=True):
            for index in range(start, stop):
                parts = table[index * self._per_block : (index + 1) * self._per_block]
                if self._are_readable(blocks, index, parts):
                    keys.append(blocks.key(index))
                    hints.append(manager.hint_of(request, index * blocks.tokens))
                    ids += parts
        self._next[name] = [max(start, stop) for start, stop in zip(starts, stops, strict=True)]
        if keys:
            self._store(keys, ids, hints)

    def _are_readable(self, blocks: GroupBlocks, index: int, parts: list[int]) -> bool:
        """Return whether an offloaded block is of use to a hit and all its parts are there; a state may be jumped over.

        What no hit needs is not published, but as full as what it stands beside.
        """
        pool, first = self._manager.block_pool, index * self._per_block
        useful = [block for at, block in enumerate(parts) if blocks.manager.is_useful(first + at)]
        return bool(useful) and all(parts) and all(pool.is_published(block) for block in useful)

    # ------------------------------------------------------------------ one store

    def _store(self, keys: list[bytes], ids: list[int], said: list[BlockHint | None]) -> None:
        """Store blocks, or where there is no room the last of them, which were used last; hold what is being read."""
        per_block, first = self._per_block, 0
        hints = said if any(said) else None
        start = self._chain.store(keys, ids, hints)
        while start is None and first < len(keys) - 1:
            first += (len(keys) - first + 1) // 2
            start = self._chain.store(keys[first:], ids[first * per_block :], hints and hints[first:])
        if start is None:
            self.num_refused += len(keys)
            return
        self.num_refused += first
        self.num_known += len(keys) - first - len(start.block_hashes_to_store)
        if start.job_id is None:
            return
        if not self._is_early:
            self.copies.add(start.job_id)
            return
        places = {key: ids[at * per_block : (at + 1) * per_block] for at, key in enumerate(keys)}
        held = [block for key in start.block_hashes_to_store for block in places[key]]
        self._manager.block_pool.touch(held)
        self._held[start.job_id] = held

    def end(self, done: Finished) -> None:
        """Let go of the blocks of a store that has ended, the last first, so that the longest prefixes stay longest."""
        if done.success:
            self.num_stored += len(done.block_hashes)
        else:
            self.num_failed += len(done.block_hashes)
        self.copies.discard(done.job_id)
        held = self._held.pop(done.job_id, None)
        if held:
            self._manager.block_pool.free_blocks(held[::-1])

"""The tier that evicts the block used least recently, after what hints and the shares of tenants let go first.

Source: section 6 of the named systems (`LRUOffloadingManager`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.core.pool.order import BlockHint
from blockwright.core.worth.retained import check_shares
from blockwright.errors import InvalidArgumentError
from blockwright.offload.tiers.entries import READY
from blockwright.offload.tiers.interfaces import Backend, OffloadingManager, PrepareStoreOutput
from blockwright.offload.tiers.keys import keys_of
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.tiers.retained import TierRetention, checked_hints


@mypyc_attr(allow_interpreted_subclasses=True)
class LRUOffloadingManager(TierManager):
    """Keeps track of the blocks of a backend, and evicts the least recently used.

    >>> from blockwright.offload import CPUBackend
    >>> manager = LRUOffloadingManager(CPUBackend(block_size=16, num_blocks=1))
    >>> manager.prepare_store([b"first"]).store_spec
    CPULoadStoreSpec([0])
    >>> manager.lookup([b"first"])
    0
    >>> manager.complete_store([b"first"])
    >>> manager.lookup([b"first"])
    1
    >>> manager.prepare_store([b"second"]).block_hashes_evicted
    [b'first']
    """

    def __init__(
        self,
        backend: Backend,
        enable_events: bool = False,
        *,
        shares: Mapping[str, int] | None = None,
        hint_guard: float = 0.0,
    ) -> None:
        """Take over a backend, and the blocks that it recovered.

        Args:
            backend: where the places come from; this manager's alone.
            enable_events: keep events for `take_events`.
            shares: blocks that tenants may count on here, by cache salt.
            hint_guard: part of the tier, within 0.0 .. 1.0, that no hint affects: the blocks that were used last.

        Raises:
            InvalidArgumentError: not a backend, or it recovered one block twice; or the shares are more than it has, or
                the guard is no part.
        """
        if not 0.0 <= hint_guard <= 1.0:
            raise InvalidArgumentError(f"hint_guard: must be a part within 0.0..1.0, not {hint_guard!r}")
        super().__init__(backend, enable_events)
        self._hint_guard = float(hint_guard)
        self._guard: i64 = i64(int(hint_guard * float(self._capacity)))
        self._now = 0.0
        self._retention: TierRetention | None = None
        if shares is not None:
            check_shares(shares, int(self._capacity))
            self._retain(shares)

    def copy(self) -> OffloadingManager:
        return self._copied_to(LRUOffloadingManager(self._copied_backend()))

    # ------------------------------------------------------------------ hints

    def prepare_store_hinted(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None]
    ) -> PrepareStoreOutput | None:
        """Prepare a store with a hint for each block, those that are present included.

        Hints of several callers for a block are joined: the higher priority, the later time. A time that is over is
        passed over.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty; or there is not one hint for each.
        """
        self._whole.require()
        keys = keys_of(block_hashes)
        said = checked_hints(keys, hints)
        # Handed over beside the call, whose signature has no hints.
        retention = self._retain({})
        try:
            retention.coming = dict(zip(keys, said))
            return self.prepare_store(keys)
        finally:
            retention.coming = {}

    def would_evict(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None
    ) -> list[bytes] | None:
        self._whole.require()
        retention = self._retention
        # Where no hint was ever given, hints of new blocks alone change no victim.
        if hints is None or retention is None:
            return super().would_evict(block_hashes)
        keys = keys_of(block_hashes)
        said = checked_hints(keys, hints)
        try:
            retention.coming = dict(zip(keys, said))
            return super().would_evict(keys)
        finally:
            retention.coming = {}

    def hint_of(self, block_hash: bytes) -> BlockHint | None:
        self._whole.require()
        slot = self._entries.index.find(keys_of([block_hash])[0])
        retention = self._retention
        return None if slot == 0 or retention is None else retention.hint_of(slot)

    def advance_time(self, now: float) -> None:
        """Say what time it is; it does not go back. Hints that end with it count no more.

        Raises:
            InvalidArgumentError: `now` is no time.
        """
        self._whole.require()
        if now != now:  # it is no number
            raise InvalidArgumentError(f"now: must be a time, not {now!r}")
        self._now = max(self._now, now)

    def _retain(self, shares: Mapping[str, int]) -> TierRetention:
        """Return the record of hints and shares, kept from now on."""
        retention = self._retention
        if retention is None:
            retention = TierRetention(shares, self._guard)
            retention.grow(self._entries.index.size)
            self._retention = retention
        return retention

    def _note_entered(self, slots: vec[i32]) -> None:
        retention = self._retention
        if retention is not None:
            retention.grow(self._entries.index.size)
            for key, hint in retention.coming.items():
                retention.join(self._entries.index.find(key), hint, self._now)

    def _note_leaving(self, slots: vec[i32], is_evicted: bool) -> None:
        if self._retention is not None:
            self._retention.forget(slots)

    def _fewest(self) -> int:
        return 0 if self._retention is None else int(self._retention.promised())

    def _note_resized(self) -> None:
        self._guard = i64(int(self._hint_guard * float(self._capacity)))
        if self._retention is not None:
            self._retention.guard = self._guard

    def check(self) -> None:
        super().check()
        if self._retention is not None:
            self._retention.check(self._entries.recency.members())

    # ------------------------------------------------------------------ what goes

    def _victims(self, count: i64, new: list[bytes], call: i64) -> vec[i32]:
        """Return the idle blocks used least recently, below hints and shares. law: TIER-6."""
        entries = self._entries
        if self._retention is not None:
            return self._retention.victims(entries, count, new, call, self._now)
        newer = entries.recency.newer
        state = entries.state
        readers = entries.readers
        named = entries.named
        victims = vec[i32]()
        # Without hints the order of use is the order of eviction, so that the first idle blocks are the answer.
        slot: i64 = i64(newer[0])
        while slot != 0 and i64(len(victims)) < count:
            if state[slot] == READY and readers[slot] == 0 and named[slot] != call:
                victims = append(victims, i32(slot))
            slot = i64(newer[slot])
        return victims

"""The books of one tier: their properties, and the entries that every call makes in them.

The laws (TIER-1 to TIER-11) are those of the specification.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.arguments import integer
from blockwright.errors import (
    InvalidArgumentError,
    OffloadError,
    UnsupportedError,
)
from blockwright.offload.tiers.backend import SlotBackend, packed_backend
from blockwright.offload.tiers.entries import DOOMED, READY, WRITING, Entries
from blockwright.offload.tiers.interfaces import (
    Backend,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
)
from blockwright.offload.tiers.keys import keys_of, shown
from blockwright.offload.tiers.selfcheck import check_entries
from blockwright.offload.tiers.wholeness import Wholeness

_FEWEST_TOLD: Final = 1024
"""Keys in events that wait, before any are left out."""


@mypyc_attr(allow_interpreted_subclasses=True)
class TierBooks(OffloadingManager):
    """Which blocks of a backend are present, in which state and place.

    Attributes:
        backend: where the places come from; this manager's alone.
    """

    def __init__(self, backend: Backend, enable_events: bool = False) -> None:
        """Take over a backend, and the blocks that it recovered.

        Raises:
            InvalidArgumentError: not a backend, or it recovered one block twice.
        """
        if not isinstance(backend, Backend):
            raise InvalidArgumentError(f"backend: must be a Backend, not {type(backend).__name__}")
        self.backend = backend
        self._packed: SlotBackend | None = packed_backend(backend)
        self._keeps_events: bool = bool(enable_events)
        self._events: list[OffloadingEvent] = []
        self._num_told: i64 = 0  # keys in the events
        self._calls: i64 = 0  # of prepare_store
        self._whole: Wholeness = Wholeness()
        self._entries = Entries(self._packed is None)
        self._adopt()
        self._capacity: i64 = i64(self.num_free) + self._entries.index.count

    def _adopt(self) -> None:
        """Enter the blocks that the backend recovered, oldest first, as ready."""
        entries = self._entries
        for key, status in self.backend.recovered_blocks():
            keys_of([key])
            count = entries.index.count
            slot = entries.put_after(0, key)
            if entries.index.count == count:
                raise InvalidArgumentError(f"backend: it recovered block {shown(key)} twice")
            if entries.has_statuses:
                entries.statuses[slot] = status
            else:
                entries.place[slot] = i32(status.block_id)
            entries.enter_all(vec[i32]([i32(slot)]), READY)
            entries.show(slot)

    # ------------------------------------------------------------------ what a policy says

    def _victims(self, count: i64, new: list[bytes], call: i64) -> vec[i32]:
        """Return up to `count` idle blocks to evict before `new` ones come; this call names none of them."""
        raise NotImplementedError

    def _note_used(self, keys: list[bytes]) -> None:
        """Note that keys were asked for, present or not, the first as the most recent."""

    def _note_entered(self, slots: vec[i32]) -> None:
        """Blocks have come."""

    def _note_leaving(self, slots: vec[i32], is_evicted: bool) -> None:
        """Blocks are about to go: evicted, or since a transfer of them failed."""

    # ------------------------------------------------------------------ what it says of itself

    @property
    def num_free(self) -> int:
        """How many places are free."""
        packed = self._packed
        return self.backend.get_num_free_blocks() if packed is None else int(packed.num_free_places())

    def status_of(self, block_hash: bytes) -> int | None:
        """Return -1 for a block being written, its readers if it is ready, -2 if it is doomed, None if not present."""
        self._whole.require()
        slot = self._entries.index.find(keys_of([block_hash])[0])
        if slot == 0:
            return None
        state = self._entries.state[slot]
        if state == READY:
            return int(self._entries.readers[slot])
        return -1 if state == WRITING else -2

    def places_of(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
        """Return where blocks lie that are present, whatever their status; nothing changes. O(blocks).

        Raises:
            UnknownBlockHashError: a block is not present.
        """
        self._whole.require()
        keys = keys_of(block_hashes)
        return self._spec_of(keys, self._entries.slots_of(keys))

    def idle_blocks(self, count: int) -> list[bytes]:
        """Return up to `count` blocks that could be evicted, the next one first; nothing changes. O(blocks).

        Raises:
            InvalidArgumentError: `count` is negative.
        """
        self._whole.require()
        wanted: i64 = integer("count", count)
        return [self._entries.index.keys[i64(slot)] for slot in self._victims(wanted, [], -1)]

    def erase(self, block_hashes: Iterable[bytes]) -> int:
        """Delete those of some blocks that are ready from a medium that outlives the process; nothing changes here.

        Returns how many the medium did not delete. O(blocks).
        """
        self._whole.require()
        entries = self._entries
        keys = [key for key in keys_of(block_hashes) if entries.state[entries.index.find(key)] in (READY, DOOMED)]
        return 0 if len(keys) == 0 else self.backend.erase(self._spec_of(keys, entries.slots_of(keys)))

    def recency(self) -> list[bytes]:
        """Return the blocks that are present, least recently used first. O(blocks)."""
        self._whole.require()
        return [self._entries.index.keys[slot] for slot in self._entries.recency.members()]

    @property
    def keeps_events(self) -> bool:
        """Whether events are kept for `take_events`."""
        return self._keeps_events

    def take_events(self) -> list[OffloadingEvent]:
        """Return the events since the last call, oldest first; empty unless they were enabled. law: TIER-5.

        A block that came and went since the last call may be left out, so that they are never more than a few times the
        places of the tier.
        """
        self._whole.require()
        events, self._events = self._events, []
        self._num_told = 0
        return events

    def check(self) -> None:
        """Recompute the invariants from the plain facts. O(blocks).

        Raises:
            InvariantError: one is broken.
        """
        self._whole.require()
        check_entries(self._entries, self._packed, int(self._capacity), self.num_free)

    # ------------------------------------------------------------------ within

    def _copied_backend(self) -> Backend:
        """Return a copy of the backend.

        Raises:
            UnsupportedError: it gives statuses, which a copy could not distinguish, or cannot be copied.
        """
        self._whole.require()
        if self._packed is None:
            raise UnsupportedError(f"copy: the statuses of {type(self.backend).__name__} belong to one manager")
        return self.backend.copy()

    def _copy_books_to(self, twin: TierBooks) -> None:
        """Put a copy of the books into a manager of the copied backend."""
        twin._entries = self._entries.copy()
        twin._events.extend(self._events)
        twin._num_told = self._num_told
        twin._calls = self._calls
        twin._capacity = self._capacity

    def _spec_of(self, keys: list[bytes], slots: vec[i32]) -> LoadStoreSpec:
        """Return where blocks lie."""
        entries = self._entries
        packed = self._packed
        if packed is None:
            return self.backend.get_load_store_spec(keys, [entries.status_of(i64(slot)) for slot in slots])
        place = entries.place
        return packed.spec_of(keys, [int(place[i64(slot)]) for slot in slots])

    def _place(self, new: list[bytes], slots: vec[i32]) -> LoadStoreSpec:
        """Give new blocks their places, enter them as being written, and return where they lie."""
        entries = self._entries
        packed = self._packed
        at: i64 = 0
        if packed is None:
            self._take_statuses(new, slots)
        else:
            places = entries.place
            for place in packed.take_places(i64(len(new))):
                places[i64(slots[at])] = place
                at += 1
        entries.enter_all(slots, WRITING)
        self._show_all(slots)
        self._note_entered(slots)
        return self._spec_of(new, slots)

    def _take_statuses(self, new: list[bytes], slots: vec[i32]) -> None:
        """Take places as statuses; if the backend fails at that, forget the new blocks."""
        statuses = self._entries.statuses
        try:
            given = self.backend.allocate_blocks(list(new))
            if len(given) != len(new):
                raise OffloadError(f"allocate_blocks: {len(given)} places for {len(new)} blocks")
        except MemoryError:  # nobody knows what the backend has given
            raise
        except Exception:
            self._forget(slots)
            self._whole.done()
            raise
        for at, status in enumerate(given):
            statuses[i64(slots[at])] = status

    def _forget(self, slots: vec[i32]) -> None:
        """Take back keys that have not become blocks."""
        self._entries.index.drop_all(slots)

    def _let_go(self, slots: vec[i32], is_evicted: bool) -> None:
        """End the lives of blocks, and return their places in this order. law: TIER-7."""
        entries = self._entries
        packed = self._packed
        self._note_leaving(slots, is_evicted)
        if packed is not None:
            packed.return_places(entries.places_of(slots))
            entries.drop_all(slots)
            return
        given = [entries.status_of(i64(slot)) for slot in slots]
        entries.drop_all(slots)
        for status in given:
            self.backend.free(status)

    def _show_all(self, slots: vec[i32]) -> None:
        """Update the backend's statuses, if there are any."""
        if self._packed is None:
            for slot in slots:
                self._entries.show(i64(slot))

    def _tell(self, keys: list[bytes], removed: bool) -> None:
        """Note an event, if they are wanted. law: TIER-5."""
        if not self._keeps_events or len(keys) == 0:
            return
        self._events.append(OffloadingEvent(keys, self.backend.block_size, self.backend.medium, removed))
        self._num_told += i64(len(keys))
        if self._num_told > 4 * self._capacity + _FEWEST_TOLD:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out of the events all that is undone by a later one. O(events); then they are O(capacity)."""
        first: dict[bytes, bool] = {}
        last: dict[bytes, bool] = {}
        for event in self._events:
            for key in event.block_hashes:
                first.setdefault(key, event.removed)
                last.pop(key, None)
                last[key] = event.removed
        events: list[OffloadingEvent] = []
        size, medium = self.backend.block_size, self.backend.medium
        for removed in (True, False):
            keys = [key for key, is_gone in last.items() if is_gone == removed and first[key] == removed]
            if len(keys) > 0:
                events.append(OffloadingEvent(keys, size, medium, removed))
        self._events = events
        self._num_told = sum([len(event.block_hashes) for event in events])

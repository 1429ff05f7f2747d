"""One tier: the calls that are the same whichever block is evicted.

Every call checks first and acts afterwards, so that an error leaves the tier as it was; hashes are read once. The laws
(TIER-1 to TIER-14) are those of the specification.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright._copies import copy_fields
from blockwright.arguments import integer
from blockwright.core.pool.order import BlockHint
from blockwright.errors import (
    BlockNotReadyError,
    InvalidArgumentError,
    NotPreparedError,
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
    PrepareStoreOutput,
)
from blockwright.offload.tiers.keys import keys_of, shown
from blockwright.offload.tiers.selfcheck import check_entries
from blockwright.offload.tiers.wholeness import Wholeness

# Keys in events that wait, before any are left out.
_FEWEST_TOLD: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)
class TierManager(OffloadingManager):
    """Keeps track of the blocks of a backend; a subclass chooses the next victim.

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
        self._whole: Wholeness = Wholeness(forgives=False)  # a backend may fail in the middle of a change
        self._entries = Entries(self._packed is None)
        self._adopt()
        # Counted, and not the backend's number: an engine's own backend does not say how many places it has in all.
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
        """Note that blocks have come."""

    def _note_leaving(self, slots: vec[i32], is_evicted: bool) -> None:
        """Note that blocks are about to go: evicted, or since a transfer of them failed."""

    # ------------------------------------------------------------------ reading

    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many of the first blocks, in a row, are ready. O(blocks looked at). law: TIER-1.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty; so in every call.
        """
        self._whole.require()
        index = self._entries.index
        state = self._entries.state
        length: i64 = 0
        slot: i64 = 0
        for key in keys_of(block_hashes):
            slot = index.find_after(slot, key)
            if state[slot] != READY:
                break
            length += 1
        return int(length)

    def prepare_load(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
        """Begin to read blocks: each has one reader more for each time it is named. O(blocks). law: TIER-1.

        Raises:
            UnknownBlockHashError: a block is not present.
            BlockNotReadyError: a block is being written, or a load of it has failed.
        """
        self._whole.require()
        entries = self._entries
        keys = keys_of(block_hashes)
        slots = entries.index.find_all(keys)
        state = entries.state
        for slot in slots:
            if state[i64(slot)] != READY:
                self._refuse_read(keys)
        spec = self._spec_of(keys, slots)
        readers = entries.readers
        with self._whole:
            for named in slots:
                readers[i64(named)] += 1
            self._show_all(slots)
        return spec

    def complete_load(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End a reader of each block for each time it is named; after a failure they are found no more. O(blocks).

        Raises:
            UnknownBlockHashError: a block is not present.
            NotPreparedError: a block is named more often than it has readers.
        """
        self._whole.require()
        entries = self._entries
        slots = entries.slots_of(keys_of(block_hashes))
        readers = entries.readers
        state = entries.state
        size: i64 = len(slots)
        at: i64 = 0
        was_read = bool(success)
        all_stay = was_read
        with self._whole:
            while at < size:
                slot: i64 = i64(slots[at])
                if readers[slot] == 0:
                    break
                readers[slot] -= 1
                if state[slot] != READY:
                    all_stay = False
                at += 1
            # One was named too often: give the readers before it back, since a refused call changes nothing.
            if at < size:
                key = entries.index.keys[i64(slots[at])]
                while at > 0:
                    at -= 1
                    readers[i64(slots[at])] += 1
                self._whole.done()
                raise NotPreparedError(f"complete_load: block {shown(key)} is named more often than it is being read")
            self._show_all(slots)
            if not all_stay:
                self._end_doomed(slots, was_read)

    def _end_doomed(self, slots: vec[i32], success: bool) -> None:
        """Doom unreadable blocks, and drop doomed blocks without readers. law: TIER-3."""
        entries = self._entries
        state = entries.state
        doomed: list[bytes] = []
        gone = vec[i32]()
        for named in slots:
            slot: i64 = i64(named)
            if state[slot] == READY and not success:
                state[slot] = DOOMED
                doomed.append(entries.index.keys[slot])
        for named in slots:
            slot = i64(named)
            if state[slot] == DOOMED and entries.readers[slot] == 0:
                state[slot] = 0
                gone = append(gone, named)
        if len(gone) > 0:
            self._let_go(gone, False)
        self._tell(doomed, True)

    def touch(self, block_hashes: Iterable[bytes]) -> None:
        """Count blocks as just used, the first as the most recent; others are passed over. O(blocks). law: TIER-9."""
        self._whole.require()
        keys = keys_of(block_hashes)
        slots = self._entries.index.find_all(keys)
        with self._whole:
            self._entries.recency.refresh_all(slots)
            self._note_used(keys)

    # ------------------------------------------------------------------ writing

    def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
        """Begin to write those blocks that are not present; None, and no effect, if there is no room for them.

        Room is made by evicting blocks that are ready, have no reader and are not named. O(blocks, and those passed
        over). law: TIER-2, TIER-6.
        """
        keys = keys_of(block_hashes)
        with self._whole:
            new: list[bytes] = []
            slots = self._name(keys, new)
            victims = self._making_way(new)
            # `_name` has given the new blocks slots already; without room they are taken back.
            if i64(len(new)) - i64(self.num_free) > i64(len(victims)):
                self._forget(slots)
                return None
            evicted = [self._entries.index.keys[i64(victim)] for victim in victims]
            if len(evicted) > 0:
                self._let_go(victims, True)
                self._tell(evicted, True)
            spec = self._place(new, slots)
        return PrepareStoreOutput(new, spec, evicted)

    def would_evict(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None
    ) -> list[bytes] | None:
        keys = keys_of(block_hashes)
        with self._whole:
            new: list[bytes] = []
            slots = self._name(keys, new)
            victims = self._making_way(new)
            has_room = i64(len(new)) - i64(self.num_free) <= i64(len(victims))
            evicted = [self._entries.index.keys[i64(victim)] for victim in victims]
            self._forget(slots)
        return evicted if has_room else None

    def _name(self, keys: list[bytes], new: list[bytes]) -> vec[i32]:
        """Mark the blocks of a call; append those that are not present to `new`, and return slots for them.

        Stops once they are more than the tier has places.
        """
        entries = self._entries
        index = entries.index
        before = index.count
        most = i64(self.num_free) + before
        call = self._calls + 1
        self._calls = call
        slots = vec[i32](capacity=i64(len(keys)))
        slot: i64 = 0
        count = before
        for key in keys:
            slot = entries.put_after(slot, key)
            entries.named[slot] = call
            if index.count == count:
                continue
            count += 1
            slots = append(slots, i32(slot))
            new.append(key)
            # More than would fit into the empty tier: the rest need not be looked at.
            if count - before > most:
                break
        return slots

    def _making_way(self, new: list[bytes]) -> vec[i32]:
        """Return the slots of what goes for the new blocks of the last call; fewer than needed if there is no room."""
        size = i64(len(new))
        needed = size - i64(self.num_free)
        if needed <= 0 or needed > self._entries.index.count - size:
            return vec[i32]()
        return self._victims(needed, new, self._calls)

    def complete_store(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End the writing of blocks: they become ready, or, after a failure, are gone. O(blocks). law: TIER-1, TIER-8.

        Raises:
            UnknownBlockHashError: a block is not present.
            NotPreparedError: none of them is being written. Blocks that are ready already may be among them.
        """
        self._whole.require()
        entries = self._entries
        keys = keys_of(block_hashes)
        slots = entries.slots_of(keys)
        state = entries.state
        written = vec[i32](capacity=i64(len(slots)))
        late = vec[i32]()
        # 0 while it leaves, so that the policy counts it among no candidates.
        after: i32 = READY if success else 0
        with self._whole:
            for named in slots:
                if state[i64(named)] != WRITING:
                    continue
                if self._is_beyond(i64(named)):
                    state[i64(named)] = 0
                    late = append(late, named)
                else:
                    state[i64(named)] = after
                    written = append(written, named)
            if len(written) == 0 and len(late) == 0 and len(keys) > 0:
                self._whole.done()
                raise NotPreparedError(f"complete_store: not one of the blocks is being written, as {shown(keys[0])}")
            if len(late) > 0:
                self._let_go(late, False)
            if after == 0:
                self._let_go(written, False)
            else:
                self._show_all(written)
                if self._keeps_events:
                    self._tell([entries.index.keys[i64(slot)] for slot in written], False)

    def remove(self, block_hashes: Iterable[bytes]) -> None:
        """Let go of blocks that are ready and have no reader. O(blocks). law: TIER-6.

        Raises:
            UnknownBlockHashError: a block is not present.
            BlockNotReadyError: a block is being written or read.
        """
        self._whole.require()
        entries = self._entries
        slots = entries.slots_of(keys_of(block_hashes))
        for slot in slots:
            if not entries.is_idle(i64(slot)):
                key = entries.index.keys[i64(slot)]
                raise BlockNotReadyError(f"remove: block {shown(key)} is being written or read")
        gone = vec[i32]()
        with self._whole:
            for slot in slots:
                if entries.state[i64(slot)] == READY:
                    entries.state[i64(slot)] = 0
                    gone = append(gone, slot)
            keys = [entries.index.keys[i64(slot)] for slot in gone]
            self._let_go(gone, True)
            self._tell(keys, True)

    # ------------------------------------------------------------------ its size

    def resize(self, num_blocks: int) -> list[bytes]:
        """Let the tier end before a place, and return the blocks that were evicted for it, in order. O(blocks).

        Beyond the end idle blocks are evicted. Blocks that are read are found no more, and go with their last reader;
        those that are written go when that has ended. `beyond` returns both. law: TIER-13, TIER-14.

        Raises:
            InvalidArgumentError: less than the shares of tenants, or beyond 2**31 - 1.
            UnsupportedError: the backend cannot.
        """
        evicted = self.would_leave(num_blocks)
        entries = self._entries
        state = entries.state
        packed = self._packed
        hidden: list[bytes] = []
        with self._whole:
            if packed is not None:
                packed.resize(num_blocks)
            self._capacity = num_blocks
            self._let_go(entries.slots_of(evicted), True)
            self._tell(evicted, True)
            for each in entries.recency.members():
                if state[each] == READY and self._is_beyond(each):
                    state[each] = DOOMED
                    hidden.append(entries.index.keys[each])
            self._tell(hidden, True)
            self._note_resized()
        return evicted

    def would_leave(self, num_blocks: int) -> list[bytes]:
        self._whole.require()
        end: i64 = integer("num_blocks", num_blocks, self._fewest())
        packed = self._packed
        if packed is None or not packed.is_resizable():
            raise UnsupportedError(f"resize: {type(self.backend).__name__} has one number of places for ever")
        entries = self._entries
        idle = self._victims(entries.index.count, [], -1)
        return [entries.index.keys[i64(slot)] for slot in idle if i64(entries.place[i64(slot)]) >= end]

    @property
    def num_blocks(self) -> int:
        return int(self._capacity)

    def beyond(self) -> list[bytes]:
        return [self._entries.index.keys[slot] for slot in self._entries.recency.members() if self._is_beyond(slot)]

    def _is_beyond(self, slot: i64) -> bool:
        return self._packed is not None and i64(self._entries.place[slot]) >= self._capacity

    def _fewest(self) -> int:
        """Return how many places the tier has at least."""
        return 0

    def _note_resized(self) -> None:
        """Note that the tier has another number of places."""

    # ------------------------------------------------------------------ what it says of itself

    @property
    def num_free(self) -> int:
        packed = self._packed
        return self.backend.get_num_free_blocks() if packed is None else int(packed.num_free_places())

    def status_of(self, block_hash: bytes) -> int | None:
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
        self._whole.require()
        check_entries(self._entries, self._packed, int(self._capacity), self.num_free)

    # ------------------------------------------------------------------ within

    def _copied_backend(self) -> Backend:
        """Copy the backend; an `UnsupportedError` if it gives statuses, which a copy mixes up, or cannot be copied."""
        self._whole.require()
        if self._packed is None:
            raise UnsupportedError(f"copy: the statuses of {type(self.backend).__name__} belong to one manager")
        return self.backend.copy()

    def _copied_to(self, twin: TierManager) -> TierManager:
        """Give a manager of the copied backend copies of these books."""
        copy_fields(self, twin, "backend", "_packed", "_whole")
        return twin

    def _spec_of(self, keys: list[bytes], slots: vec[i32]) -> LoadStoreSpec:
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
        # Read before the entries go, and given back after: a backend that fails finds books that are in order.
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
        # Nobody may ever take them: bounded, at an amortized cost of O(1) a key.
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

    def _refuse_read(self, keys: list[bytes]) -> None:
        """Say why one of the blocks cannot be read; above all, that one is not present."""
        state = self._entries.state
        for at, slot in enumerate(self._entries.slots_of(keys)):
            if state[i64(slot)] != READY:
                why = "is being written" if state[i64(slot)] == WRITING else "could not be read before"
                raise BlockNotReadyError(f"prepare_load: block {shown(keys[at])} {why}")

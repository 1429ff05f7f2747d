"""One tier: the calls that are the same whichever block is evicted.

Every call checks first and acts afterwards, so that an error leaves the tier as it was; hashes are read once. The laws
(TIER-1 to TIER-11) are those of the specification.
"""

from __future__ import annotations

from collections.abc import Iterable

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.core.pool.order.order import BlockHint
from blockwright.errors import BlockNotReadyError, NotPreparedError
from blockwright.offload.tiers.books import TierBooks
from blockwright.offload.tiers.entries import DOOMED, READY, WRITING
from blockwright.offload.tiers.interfaces import LoadStoreSpec, PrepareStoreOutput
from blockwright.offload.tiers.keys import keys_of, shown


@mypyc_attr(allow_interpreted_subclasses=True)
class TierManager(TierBooks):
    """Keeps track of the blocks of a backend; a subclass chooses the next victim.

    Attributes:
        backend: where the places come from; this manager's alone.
    """

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
        self._whole.begin()
        for named in slots:
            readers[i64(named)] += 1
        self._show_all(slots)
        self._whole.done()
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
        self._whole.begin()
        while at < size:
            slot: i64 = i64(slots[at])
            if readers[slot] == 0:
                break
            readers[slot] -= 1
            if state[slot] != READY:
                all_stay = False
            at += 1
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
        self._whole.done()

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
        self._whole.begin()
        self._entries.recency.refresh_all(slots)
        self._note_used(keys)
        self._whole.done()

    # ------------------------------------------------------------------ writing

    def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
        """Begin to write those blocks that are not present; None, and no effect, if there is no room for them.

        Room is made by evicting blocks that are ready, have no reader and are not named. O(blocks, and those passed
        over). law: TIER-2, TIER-6.
        """
        self._whole.require()
        keys = keys_of(block_hashes)
        self._whole.begin()
        new: list[bytes] = []
        slots = self._name(keys, new)
        victims = self._making_way(new)
        if i64(len(new)) - i64(self.num_free) > i64(len(victims)):
            self._forget(slots)
            self._whole.done()
            return None
        evicted = [self._entries.index.keys[i64(victim)] for victim in victims]
        if len(evicted) > 0:
            self._let_go(victims, True)
            self._tell(evicted, True)
        spec = self._place(new, slots)
        self._whole.done()
        return PrepareStoreOutput(new, spec, evicted)

    def would_evict(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None
    ) -> list[bytes] | None:
        """Return the blocks that `prepare_store` would evict for these now; None if it has no room. Nothing changes.

        O(blocks, and those passed over).
        """
        self._whole.require()
        keys = keys_of(block_hashes)
        self._whole.begin()
        new: list[bytes] = []
        slots = self._name(keys, new)
        victims = self._making_way(new)
        has_room = i64(len(new)) - i64(self.num_free) <= i64(len(victims))
        evicted = [self._entries.index.keys[i64(victim)] for victim in victims]
        self._forget(slots)
        self._whole.done()
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
            NotPreparedError: not one of them is being written (some may be ready already).
        """
        self._whole.require()
        entries = self._entries
        keys = keys_of(block_hashes)
        slots = entries.slots_of(keys)
        state = entries.state
        written = vec[i32](capacity=i64(len(slots)))
        after: i32 = READY if success else 0
        self._whole.begin()
        for named in slots:
            if state[i64(named)] == WRITING:
                state[i64(named)] = after
                written = append(written, named)
        if len(written) == 0:
            self._whole.done()
            if len(keys) > 0:
                raise NotPreparedError(f"complete_store: not one of the blocks is being written, as {shown(keys[0])}")
            return
        if after == 0:
            self._let_go(written, False)
        else:
            self._show_all(written)
            if self._keeps_events:
                self._tell([entries.index.keys[i64(slot)] for slot in written], False)
        self._whole.done()

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
        self._whole.begin()
        for slot in slots:
            if entries.state[i64(slot)] == READY:
                entries.state[i64(slot)] = 0
                gone = append(gone, slot)
        keys = [entries.index.keys[i64(slot)] for slot in gone]
        self._let_go(gone, True)
        self._tell(keys, True)
        self._whole.done()

    # ------------------------------------------------------------------ within

    def _refuse_read(self, keys: list[bytes]) -> None:
        """Say why one of the blocks cannot be read; above all, that one is not present."""
        state = self._entries.state
        for at, slot in enumerate(self._entries.slots_of(keys)):
            if state[i64(slot)] != READY:
                why = "is being written" if state[i64(slot)] == WRITING else "could not be read before"
                raise BlockNotReadyError(f"prepare_load: block {shown(keys[at])} {why}")

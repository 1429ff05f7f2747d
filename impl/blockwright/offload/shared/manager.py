"""The manager of a tier that engines share: it tracks what this engine reads and writes; the store knows its blocks."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

from blockwright.arguments import integer
from blockwright.core.pool.order import BlockHint
from blockwright.errors import (
    BlockNotReadyError,
    InvariantError,
    JournalGapError,
    NotPreparedError,
    UnknownBlockHashError,
)
from blockwright.offload.media import SharedLoadStoreSpec
from blockwright.offload.tiers.interfaces import OffloadingEvent, OffloadingManager, PrepareStoreOutput
from blockwright.offload.tiers.keys import keys_of
from blockwright.offload.tiers.retained import checked_hints

WRITING, DOOMED = -1, -2
_MOST_BLAMED = _MOST_EVENTS = 1 << 16


class Presence(Protocol):
    """The interface of a store for the manager: `SharedStore` implements it, and never raises."""

    def leading(self, keys: Sequence[bytes]) -> int:
        """Return how many of the first blocks, in a row, seem to be there."""
        ...

    def contains(self, keys: Sequence[bytes]) -> list[bool] | None:
        """Return which blocks seem to be there, or None if the store does not know."""
        ...

    def remove(self, keys: Sequence[bytes]) -> bool:
        """Delete blocks; False if the store did not answer."""
        ...

    def pin(self, keys: Sequence[bytes]) -> None:
        """Keep these blocks once they have been written, as far as the store can."""
        ...


class SharedStoreManager(OffloadingManager):
    """Answers as the manager of any tier does, for a store with blocks that come and go without its doing.

    - A lookup asks the store, and is a hint: blocks that it finds may be gone before they are read. Such a load fails,
      and that is a miss. `prepare_load` does not ask again.
    - There are no places and nothing is evicted from here: `prepare_store` refuses only while `max_writing` blocks are
      being written, or the store does not answer. Such a tier can be any but the nearest to the device.
    - A block with a failed transfer is *blamed*: it is not found here any more, whatever the store answers, until it
      has been written anew. This also replaces damaged values, which the store would keep for ever.
    - `touch` does nothing: the server counts reads as use, and the engine need not wait for another answer.
    - Events report blocks that this engine has written, and those that it blames; the store's evictions and other
      engines' writes make none.

    Not for several threads at once, as all managers. A call takes time in proportion to the blocks named, and a lookup
    or `prepare_store` a bounded time of waiting for the store.
    """

    def __init__(
        self, store: Presence, block_size: int, *, max_writing: int | None = None, enable_events: bool = False
    ) -> None:
        """Manage what this engine does with `store`.

        Args:
            store: the store, asked by keys; it must not raise.
            block_size: tokens in a block.
            max_writing: blocks that may be being written; None for no bound.
            enable_events: record events for `take_events`.

        Raises:
            InvalidArgumentError: a bound that is no int of 0 or more, or a block size that is no positive int.
        """
        self.block_size, self._store = integer("block_size", block_size, 1), store
        self._max_writing = None if max_writing is None else integer("max_writing", max_writing)
        self._writing: set[bytes] = set()
        self._readers: Counter[bytes] = Counter()
        self._blamed: dict[bytes, None] = {}  # oldest first
        self._events: list[OffloadingEvent] | None = [] if enable_events else None
        self._num_lost = 0  # events that no call has returned

    @property
    def num_free(self) -> int:
        """How many more blocks may be being written."""
        return sys.maxsize if self._max_writing is None else self._max_writing - len(self._writing)

    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many of the first blocks, in a row, the store seems to have; 0 if it does not answer."""
        hashes = keys_of(block_hashes)
        away = (at for at, each in enumerate(hashes) if each in self._writing or each in self._blamed)
        return self._store.leading(hashes[: next(away, len(hashes))])

    def prepare_load(self, block_hashes: Iterable[bytes]) -> SharedLoadStoreSpec:
        """Begin to read blocks; whether they are still there shows when they are read.

        Raises:
            BlockNotReadyError: one is being written, or a transfer of it failed while another reads it.
            UnknownBlockHashError: a transfer of one failed.
        """
        hashes = keys_of(block_hashes)
        for each in hashes:
            if each in self._writing or (each in self._blamed and each in self._readers):
                raise BlockNotReadyError(f"block {each.hex()} of the store cannot be read now")
            if each in self._blamed:
                raise UnknownBlockHashError(f"block {each.hex()} of the store failed to be moved")
        self._readers.update(hashes)
        return SharedLoadStoreSpec(list(hashes))

    def complete_load(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End what `prepare_load` began; after a failure the blocks are blamed.

        Raises:
            NotPreparedError: one is named more often than it is being read.
        """
        hashes = keys_of(block_hashes)
        for each, count in Counter(hashes).items():
            if self._readers[each] < count:
                raise NotPreparedError(f"block {each.hex()} of the store is read {self._readers[each]} times")
        self._readers.subtract(hashes)
        # Drops the zeros, so that a key is in it exactly while it is read.
        self._readers = +self._readers
        if not success:
            self._blame(hashes)

    def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
        """Begin to write the blocks that the store does not have; None if it does not answer, or too many are written.

        Nothing is evicted for it.
        """
        # What is read now must not be replaced under the reader.
        here = self._writing | self._readers.keys()
        candidates = [each for each in dict.fromkeys(keys_of(block_hashes)) if each not in here]
        there = self._store.contains([each for each in candidates if each not in self._blamed])
        if there is None:
            return None
        answers = iter(there)
        missing = [each for each in candidates if each in self._blamed or not next(answers)]
        if len(missing) > self.num_free:
            return None
        self._writing.update(missing)
        return PrepareStoreOutput(missing, SharedLoadStoreSpec(list(missing)), [])

    def prepare_store_hinted(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None]
    ) -> PrepareStoreOutput | None:
        """Prepare a store, and pin the blocks with hints that have no end: the store cannot end a pin by itself.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty; or there is not one hint for each.
        """
        keys = keys_of(block_hashes)
        lasting = {
            key
            for key, hint in zip(keys, checked_hints(keys, hints), strict=True)
            if hint.priority and hint.until == math.inf
        }
        prepared = self.prepare_store(keys)
        if prepared is not None and lasting:
            self._store.pin([key for key in prepared.block_hashes_to_store if key in lasting])
        return prepared

    def complete_store(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End what `prepare_store` began; blocks named that are not being written are passed over.

        After a failure the blocks are blamed: whether they arrived is not known.

        Raises:
            NotPreparedError: blocks are named, and none of them is being written.
        """
        hashes = dict.fromkeys(keys_of(block_hashes))
        written = [each for each in hashes if each in self._writing]
        if hashes and not written:
            raise NotPreparedError("none of these blocks is being written to the store")
        self._writing.difference_update(written)
        if not success:
            self._blame(written, announced=False)
            return
        for each in written:
            self._blamed.pop(each, None)
        self._tell(written, removed=False)

    def remove(self, block_hashes: Iterable[bytes]) -> None:
        """Delete blocks from the store, for every engine; if it does not answer they are not found here.

        Raises:
            BlockNotReadyError: one is being read or written here.
        """
        hashes = list(dict.fromkeys(keys_of(block_hashes)))
        for each in hashes:
            if each in self._writing or each in self._readers:
                raise BlockNotReadyError(f"block {each.hex()} of the store is being moved")
        if self._store.remove(hashes):
            self._tell(hashes, removed=True)
        else:
            self._blame(hashes)

    def erase(self, block_hashes: Iterable[bytes]) -> int:
        """Delete blocks from the store, for every engine; return how many, if it does not answer.

        Those that are being written here are left alone, and a transfer that reads one fails.
        """
        hashes = [each for each in dict.fromkeys(keys_of(block_hashes)) if each not in self._writing]
        if not hashes:
            return 0
        if self._store.remove(hashes):
            self._tell(hashes, removed=True)
            return 0
        self._blame(hashes)
        return len(hashes)

    def idle_blocks(self, count: int) -> list[bytes]:
        """Return an empty list: the server chooses its victims."""
        return []

    def status_of(self, block_hash: bytes) -> int | None:
        """Return -1 while this engine writes the block, -2 while it reads a blamed one, else how many reads it does.

        None if it does neither; the store is not asked.
        """
        if block_hash in self._writing:
            return WRITING
        if block_hash not in self._readers:
            return None
        return DOOMED if block_hash in self._blamed else self._readers[block_hash]

    @property
    def keeps_events(self) -> bool:
        return self._events is not None

    def take_events(self) -> list[OffloadingEvent]:
        """Return the events since the last call, oldest first.

        Raises:
            JournalGapError: more have come in between than are kept. The next call returns the last ones.
        """
        lost, self._num_lost = self._num_lost, 0
        if lost:
            raise JournalGapError(lost, _MOST_EVENTS)
        events, self._events = self._events or [], None if self._events is None else []
        return events

    def copy(self) -> Self:
        twin = type(self)(self._store, self.block_size, max_writing=self._max_writing)
        twin._writing, twin._readers, twin._blamed = set(self._writing), Counter(self._readers), dict(self._blamed)
        twin._events = None if self._events is None else list(self._events)
        twin._num_lost = self._num_lost
        return twin

    def check(self) -> None:
        both = self._writing & self._readers.keys()
        if both:
            raise InvariantError("TIER-3", "blocks that are both read and written", [], sorted(both))
        if min(self._readers.values(), default=1) < 1:
            raise InvariantError("TIER-3", "fewest readers of a block that is read", 1, min(self._readers.values()))

    def _blame(self, hashes: Iterable[bytes], announced: bool = True) -> None:
        fresh = [each for each in dict.fromkeys(hashes) if each not in self._blamed]
        self._blamed.update(dict.fromkeys(fresh))
        while len(self._blamed) > _MOST_BLAMED:  # the oldest may be found again, and fail again
            del self._blamed[next(iter(self._blamed))]
        if announced:
            self._tell(fresh, removed=True)

    def _tell(self, hashes: list[bytes], *, removed: bool) -> None:
        if self._events is not None and hashes:
            if len(self._events) >= _MOST_EVENTS:
                self._num_lost += _MOST_EVENTS // 2
                del self._events[: _MOST_EVENTS // 2]
            self._events.append(OffloadingEvent(hashes, self.block_size, SharedLoadStoreSpec.medium(), removed))

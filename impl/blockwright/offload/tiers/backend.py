"""Backends of a medium with numbered places: fresh ones are given first, then freed ones, last in first out.

Source: section 6 of the named systems (`CPUBackend`).
"""

from __future__ import annotations

from collections.abc import Iterable

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.arguments import integer
from blockwright.core.keys.packed import zeros32
from blockwright.errors import BlockError, NoFreeBlocksError, UnsupportedError
from blockwright.offload.status import BlockStatus, PlacedBlockStatus
from blockwright.offload.tiers.interfaces import Backend, CPULoadStoreSpec, LoadStoreSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class SlotBackend(Backend):
    """Places 0 to ``num_blocks - 1`` of one medium.

    A manager takes the places packed (`take_places`, `return_places`, `spec_of`) unless a subclass overrides
    `allocate_blocks`, `free` or `get_load_store_spec`: then it goes through these. A subclass for another medium than
    the host's memory overrides `spec_of`.

    Attributes:
        num_blocks: how many places there are.
    """

    def __init__(self, block_size: int, medium: str, num_blocks: int) -> None:
        """Make a backend with every place free.

        Raises:
            InvalidArgumentError: `block_size` is not positive, or `num_blocks` negative or beyond 2**31 - 1.
        """
        super().__init__(integer("block_size", block_size, 1), medium)
        self.num_blocks = integer("num_blocks", num_blocks)
        self._used: vec[i32] = vec[i32]()  # per place that is not fresh: 1 while it is given out
        self._freed: vec[i32] = vec[i32]()  # a stack, of which the first `_num_freed` count
        self._num_freed: i64 = 0

    def copy(self) -> Backend:
        if type(self) is not SlotBackend:
            raise UnsupportedError(f"copy: {type(self).__name__} does not define its copy")
        twin = SlotBackend(self.block_size, self.medium, self.num_blocks)
        self.copy_to(twin)
        return twin

    def copy_to(self, twin: SlotBackend) -> None:
        """Give out the same places in another backend of the same size."""
        twin._used = self._used[:]
        twin._freed = self._freed[: self._num_freed]
        twin._num_freed = self._num_freed

    # ------------------------------------------------------------------ places by their numbers

    def num_free_places(self) -> i64:
        """Return how many places are free. O(1)."""
        fresh = i64(self.num_blocks) - i64(len(self._used))
        return (fresh if fresh > 0 else 0) + self._num_freed

    def is_used(self, place: i64) -> bool:
        """Return whether a place is given out. O(1)."""
        return 0 <= place < i64(len(self._used)) and self._used[place] == 1

    def take_places(self, count: i64) -> vec[i32]:
        """Give out places; the caller has checked that there are enough. O(count). law: TIER-2."""
        places = zeros32(count)
        used = self._used
        fresh: i64 = len(used)
        at: i64 = 0
        limit = i64(self.num_blocks)
        # Fresh places first and freed ones after them, as the named system gives them out.
        while at < count and fresh < limit:
            places[at] = i32(fresh)
            used = append(used, 1)
            fresh += 1
            at += 1
        self._used = used
        freed = self._freed
        last = self._num_freed
        while at < count:
            last -= 1
            place = freed[last]
            used[i64(place)] = 1
            places[at] = place
            at += 1
        self._num_freed = last
        return places

    def return_places(self, places: vec[i32]) -> None:
        """Take back places that are given out; those beyond the end are no places any more. O(places). law: TIER-7."""
        freed = self._freed
        used = self._used
        last = self._num_freed
        wanted = last + i64(len(places))
        if wanted > i64(len(freed)):
            # Doubled, so that giving places back one by one stays O(1) each.
            freed = extend(freed, zeros32(2 * wanted - i64(len(freed))))
        for place in places:
            used[i64(place)] = 0
            if i64(place) < i64(self.num_blocks):
                freed[last] = place
                last += 1
        self._freed = freed
        self._num_freed = last

    def claim_place(self, place: int) -> None:
        """Give out one certain place, where a medium holds a block of an earlier run; places before it stay free.

        Raises:
            BlockError: there is no such place, or it is given out.
        """
        if not 0 <= place < self.num_blocks or self.is_used(place):
            raise BlockError(f"place: {place} is given out or not one of {self.num_blocks}")
        wanted: i64 = place
        if wanted < i64(len(self._used)):
            # A freed place lies anywhere in the stack; this happens once per block that a disk has kept.
            kept = vec[i32]()
            for free in self._freed[: self._num_freed]:
                if i64(free) != wanted:
                    kept = append(kept, free)
            self._freed = kept
            self._num_freed = i64(len(kept))
            self._used[wanted] = 1
            return
        passed = vec[i32]()
        at: i64 = wanted
        fresh: i64 = len(self._used)
        while at > fresh:
            at -= 1
            passed = append(passed, i32(at))
        self._used = append(extend(self._used, zeros32(wanted - fresh)), 1)
        self.return_places(passed)

    def is_resizable(self) -> bool:
        """Return whether there may be another number of places: a subclass for another medium says so itself."""
        return type(self) is SlotBackend

    def resize(self, num_blocks: int) -> None:
        """End before another place: places beyond it are given out no more. O(free places, and those that come).

        The caller has asked `is_resizable`. law: TIER-13, TIER-14.
        """
        old: i64 = self.num_blocks
        end: i64 = num_blocks
        kept = vec[i32]()
        for place in self._freed[: self._num_freed]:
            if i64(place) < end:
                kept = append(kept, place)
        # Places that were beyond the end come back as freed ones, so that the lowest is given out first.
        at = min(end, i64(len(self._used)))
        while at > old:
            at -= 1
            if self._used[at] == 0:
                kept = append(kept, i32(at))
        self._freed = kept
        self._num_freed = i64(len(kept))
        self.num_blocks = num_blocks

    def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> LoadStoreSpec:
        """Return where blocks lie, for a worker.

        Raises:
            UnsupportedError: the medium is not the host's memory, and the subclass does not override this.
        """
        if self.medium != CPULoadStoreSpec.medium():
            raise UnsupportedError(f"spec_of: a backend for {self.medium!r} must define its specs")
        return CPULoadStoreSpec(block_ids)

    # ------------------------------------------------------------------ places as statuses

    def get_num_free_blocks(self) -> int:
        return int(self.num_free_places())

    def allocate_blocks(self, block_hashes: list[bytes]) -> list[BlockStatus]:
        """Return a place, not ready, for each block. O(len(block_hashes)).

        Raises:
            NoFreeBlocksError: fewer places are free.
        """
        if i64(len(block_hashes)) > self.num_free_places():
            raise NoFreeBlocksError(f"allocate_blocks: {len(block_hashes)} asked for, {self.num_free_places()} free")
        return [PlacedBlockStatus(int(place)) for place in self.take_places(i64(len(block_hashes)))]

    def free(self, block: BlockStatus) -> None:
        """Take back a place that `allocate_blocks` gave. O(1).

        Raises:
            BlockError: it is not given out.
        """
        place = block.block_id if isinstance(block, PlacedBlockStatus) else -1
        if not self.is_used(place):
            raise BlockError(f"free: place {place} of {self.medium!r} is not given out")
        self.return_places(vec[i32]([i32(place)]))

    def get_load_store_spec(self, block_hashes: Iterable[bytes], blocks: Iterable[BlockStatus]) -> LoadStoreSpec:
        return self.spec_of(list(block_hashes), [block.block_id for block in blocks])


@mypyc_attr(allow_interpreted_subclasses=True)
class CPUBackend(SlotBackend):
    """Places in the host's memory.

    >>> backend = CPUBackend(block_size=16, num_blocks=2)
    >>> [block.block_id for block in backend.allocate_blocks([b"first", b"second"])]
    [0, 1]
    """

    def __init__(self, block_size: int, num_blocks: int) -> None:
        """Make a backend with every place free.

        Raises:
            InvalidArgumentError: as for `SlotBackend`.
        """
        super().__init__(block_size, CPULoadStoreSpec.medium(), num_blocks)

    def is_resizable(self) -> bool:
        return True

    def copy(self) -> Backend:
        if type(self) is not CPUBackend:
            raise UnsupportedError(f"copy: {type(self).__name__} does not define its copy")
        twin = CPUBackend(self.block_size, self.num_blocks)
        self.copy_to(twin)
        return twin


def packed_backend(backend: Backend) -> SlotBackend | None:
    """Return a backend as one whose places may be taken packed, or None if it must be asked for statuses."""
    if not isinstance(backend, SlotBackend):
        return None
    # A subclass that overrides one of these wants to be asked: taking places behind its back would pass it over.
    kind: type = type(backend)
    for name in ("allocate_blocks", "free", "get_load_store_spec", "get_num_free_blocks"):
        if getattr(kind, name) is not getattr(SlotBackend, name):
            return None
    return backend

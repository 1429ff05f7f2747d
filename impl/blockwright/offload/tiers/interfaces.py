"""The interfaces of an offloading manager, a backend and a place on a medium.

Engines may bring their own of each. The classes are no `abc.ABC`: compiled ones would share one cache of `isinstance`
among all subclasses, and so be taken for each other by uncompiled code.

Source: section 6 of the named systems (`Backend`, `OffloadingManager`, `LoadStoreSpec`, `PrepareStoreOutput`,
`OffloadingEvent`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from blockwright.core.pool.order import BlockHint
from blockwright.errors import UnsupportedError
from blockwright.events import BlockRemoved, BlockStored
from blockwright.offload.status import BlockStatus


@mypyc_attr(allow_interpreted_subclasses=True)
class LoadStoreSpec:
    """The places of blocks on a medium, from which a worker reads or writes them."""

    @staticmethod
    def medium() -> str:
        """Return the name of the medium, by which a worker chooses the handler of a transfer."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockIDsLoadStoreSpec(LoadStoreSpec):
    """Blocks in numbered places.

    Attributes:
        block_ids: the places, in order of the blocks: a plain list, since the bookkeeping imports no numpy; a handler
            that calculates with arrays takes ``numpy.asarray(spec.block_ids)``.
    """

    def __init__(self, block_ids: list[int]) -> None:
        self.block_ids = block_ids

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids})"


@mypyc_attr(allow_interpreted_subclasses=True)
class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks of the device's pool."""

    @staticmethod
    def medium() -> str:
        return "GPU"


@mypyc_attr(allow_interpreted_subclasses=True)
class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks in the host's memory."""

    @staticmethod
    def medium() -> str:
        return "CPU"


class PrepareStoreOutput(NamedTuple):
    """The blocks that a store has to write, their places, and the blocks that were evicted for them.

    Attributes:
        block_hashes_to_store: those that are not there yet, in the order given; the others need no writing.
        store_spec: their places.
        block_hashes_evicted: blocks that are gone from now on.
    """

    block_hashes_to_store: list[bytes]
    store_spec: LoadStoreSpec
    block_hashes_evicted: list[bytes]


class TierResizing(NamedTuple):
    """How far a tier is that was resized.

    Attributes:
        num_blocks: places of the tier now.
        held: blocks in places of `num_blocks` and above that are still read or written; their memory is in use.
        transfers: numbers of the transfers under way that use them, those among them that carry blocks down.
    """

    num_blocks: int
    held: int
    transfers: tuple[int, ...]


class OffloadingEvent(NamedTuple):
    """Blocks became readable on a medium, or are gone from it.

    Replaying all events of a manager gives the blocks that can be read.

    Attributes:
        block_hashes: of which blocks.
        block_size: tokens in each.
        medium: where.
        removed: True if they are gone, False if they were stored.
        told: the same for routers, with the contents of the blocks. The connector adds it, since a tier knows keys
            alone (None). It also reports blocks here whose content became known later, with no `block_hashes` then.
    """

    block_hashes: list[bytes]
    block_size: int
    medium: str
    removed: bool
    told: tuple[BlockStored | BlockRemoved, ...] | None = None


@mypyc_attr(allow_interpreted_subclasses=True)
class Backend:
    """Hands out places for blocks on one medium.

    Attributes:
        block_size: tokens in an offloaded block.
        medium: name of the medium.
    """

    def __init__(self, block_size: int, medium: str) -> None:
        self.block_size = block_size
        self.medium = medium

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be allocated now."""
        raise NotImplementedError

    def allocate_blocks(self, block_hashes: list[bytes]) -> list[BlockStatus]:
        """Return a place, not ready, for each block; the caller has checked that there is room."""
        raise NotImplementedError

    def free(self, block: BlockStatus) -> None:
        """Take back a place that `allocate_blocks` gave, once."""
        raise NotImplementedError

    def get_load_store_spec(self, block_hashes: Iterable[bytes], blocks: Iterable[BlockStatus]) -> LoadStoreSpec:
        """Return where these blocks lie, for a worker."""
        raise NotImplementedError

    def erase(self, places: LoadStoreSpec) -> int:
        """Delete the blocks in these places, where they outlive the process; return how many were not deleted."""
        return 0

    def recovered_blocks(self) -> list[tuple[bytes, BlockStatus]]:
        """Return blocks that the medium still holds from an earlier run, least recently used first, ready."""
        return []

    def copy(self) -> Backend:
        """Return an independent copy.

        Raises:
            UnsupportedError: this backend cannot be copied.
        """
        raise UnsupportedError(f"copy: {type(self).__name__} does not define its copy")


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadingManager:
    """Keeps track of the blocks on one medium: which are there, which are being written, which are being read.

    A block is *being written* from `prepare_store` to `complete_store`, then *ready* with a number of readers, and
    *gone* when it is evicted or a transfer of it fails. Hashes are opaque; equal ones name equal contents.
    """

    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many of the first blocks, in a row, are ready."""
        raise NotImplementedError

    def prepare_load(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
        """Begin to read blocks that are ready; until `complete_load` none of them is evicted."""
        raise NotImplementedError

    def touch(self, block_hashes: Iterable[bytes]) -> None:
        """Count blocks as just used, the first as the most recent; others than those present are passed over."""
        return

    def complete_load(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End what `prepare_load` began; after a failure the blocks are found no more."""
        return

    def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
        """Begin to write those blocks that are not present; None, and no effect, if there is no room for them."""
        raise NotImplementedError

    def prepare_store_hinted(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None]
    ) -> PrepareStoreOutput | None:
        """Prepare a store with a hint for each block; a manager without hints ignores them."""
        return self.prepare_store(block_hashes)

    def would_evict(
        self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None
    ) -> list[bytes] | None:
        """Return the blocks that `prepare_store` would evict for these now; None if it has no room. Nothing changes."""
        named = list(dict.fromkeys(block_hashes))
        lacking = len([key for key in named if self.status_of(key) is None]) - self.num_free
        if lacking <= 0:
            return []
        idle = [key for key in self.idle_blocks(lacking + len(named)) if key not in named]
        return idle[:lacking] if len(idle) >= lacking else None

    def hint_of(self, block_hash: bytes) -> BlockHint | None:
        """Return the hint for a block that is present, or None."""
        return None

    def advance_time(self, now: float) -> None:
        """Say what time it is, for hints that end."""
        return

    def complete_store(self, block_hashes: Iterable[bytes], success: bool = True) -> None:
        """End what `prepare_store` began: the blocks become ready, or, after a failure, are gone."""
        return

    @property
    def keeps_events(self) -> bool:
        """Whether events are kept for `take_events`."""
        return False

    def take_events(self) -> list[OffloadingEvent]:
        """Return the events since the last call, oldest first."""
        return []

    # ------------------------------------------------------------------ what a chain of tiers asks besides

    @property
    def num_free(self) -> int:
        """How many places are free; 0 for a tier without places."""
        return 0

    def status_of(self, block_hash: bytes) -> int | None:
        """Return the number of readers of a ready block, -1 while it is written, -2 if it is doomed, None if absent."""
        return 0 if self.lookup([block_hash]) == 1 else None

    def places_of(self, block_hashes: Iterable[bytes]) -> LoadStoreSpec:
        """Return where blocks lie that are present, whatever their status; nothing changes."""
        raise UnsupportedError(f"places_of: {type(self).__name__} cannot be the tier nearest to the device")

    def idle_blocks(self, count: int) -> list[bytes]:
        """Return up to `count` blocks that could be evicted, the next one first; nothing changes."""
        return []

    def remove(self, block_hashes: Iterable[bytes]) -> None:
        """Evict these blocks; they must be ready, without a reader."""
        raise UnsupportedError(f"remove: {type(self).__name__} lets nothing go on demand")

    @property
    def num_blocks(self) -> int:
        """How many places there are, free or not; 0 for a tier without places."""
        return 0

    def would_leave(self, num_blocks: int) -> list[bytes]:
        """Return the blocks that `resize` would evict now, in order; it raises the same errors. Nothing changes."""
        raise UnsupportedError(f"resize: {type(self).__name__} has one size for ever")

    def resize(self, num_blocks: int) -> list[bytes]:
        """Let the tier end before a place, and return the blocks that were evicted for it, in order."""
        raise UnsupportedError(f"resize: {type(self).__name__} has one size for ever")

    def beyond(self) -> list[bytes]:
        """Return the blocks beyond the end of a tier that was resized: something still reads or writes each."""
        return []

    def erase(self, block_hashes: Iterable[bytes]) -> int:
        """Delete blocks from a medium that outlives the process; return how many it did not delete."""
        return 0

    def copy(self) -> OffloadingManager:
        """Return an independent copy, places included."""
        raise UnsupportedError(f"copy: {type(self).__name__} does not define its copy")

    def check(self) -> None:
        """Recompute the invariants; raise `InvariantError` for one that is broken."""
        return

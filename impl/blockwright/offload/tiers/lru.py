"""The tier that evicts the block used least recently.

Source: section 6 of the named systems (`LRUOffloadingManager`).
"""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i32, i64, mypyc_attr

from blockwright.offload.tiers.entries import READY
from blockwright.offload.tiers.interfaces import Backend, OffloadingManager
from blockwright.offload.tiers.manager import TierManager


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
        self, backend: Backend, enable_events: bool = False, *, source: LRUOffloadingManager | None = None
    ) -> None:
        """Take over a backend, and the blocks that it recovered; or, for `copy`, be like `source`.

        Raises:
            InvalidArgumentError: not a backend, or it recovered one block twice.
        """
        super().__init__(backend, enable_events, source=source)

    def copy(self) -> OffloadingManager:
        """Return an independent copy, backend included. O(blocks).

        Raises:
            UnsupportedError: the backend cannot be copied.
        """
        return LRUOffloadingManager(self._copied_backend(), self._keeps_events, source=self)

    def _victims(self, count: i64, new: list[bytes], call: i64) -> vec[i32]:
        """Return the idle blocks used least recently. law: TIER-6."""
        entries = self._entries
        newer = entries.recency.newer
        state = entries.state
        readers = entries.readers
        named = entries.named
        victims = vec[i32]()
        slot: i64 = i64(newer[0])
        while slot != 0 and i64(len(victims)) < count:
            if state[slot] == READY and readers[slot] == 0 and named[slot] != call:
                victims = append(victims, i32(slot))
            slot = i64(newer[slot])
        return victims

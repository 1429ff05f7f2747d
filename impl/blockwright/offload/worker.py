"""The side of offloading that moves bytes: handlers of transfers, and the worker that chooses among them.

Source: section 6 of the named systems (`OffloadingHandler`, `OffloadingWorker`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from blockwright.offload.tiers.interfaces import LoadStoreSpec

TransferSpec = tuple[LoadStoreSpec, LoadStoreSpec]
"""Where a transfer reads, and where it writes."""

TransferResult = tuple[int, bool]
"""Which transfer has ended, and whether all of it arrived."""


class OffloadingHandler(ABC):
    """Moves blocks from one medium to another, asynchronously."""

    @abstractmethod
    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Begin a transfer; False if it is refused, for example since too many wait already."""

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that have ended since the last call; nothing touches their blocks any more."""

    def cancel(self, job_id: int) -> bool:
        """Ask a transfer to end early, as a failure that `get_finished` reports; False if it cannot or has ended."""
        return False

    def wait(self, job_ids: Collection[int]) -> None:
        """Let what comes later on the host, or on the current stream of a GPU, come after these transfers."""
        raise NotImplementedError

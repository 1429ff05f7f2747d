"""The transfers under way in a chain of tiers, and which blocks of the device they pin.

A transfer is under way from the call that begins it until it ends; in between it is handed out, once. Numbers are given
in order of beginning, and dicts keep that order.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from blockwright._copies import copy_fields
from blockwright.errors import BlockError, UnknownTransferError
from blockwright.offload.tiers.interfaces import GPULoadStoreSpec, LoadStoreSpec

STORE: Final = "store"
LOAD: Final = "load"
DEMOTE: Final = "demote"
PROMOTE: Final = "promote"
DEVICE: Final = -1


class Transfer(NamedTuple):
    """A transfer for a worker to run.

    Attributes:
        job_id: its number, for `OffloadChain.finish`.
        kind: "store" (device to tier 0), "load" (tier 0 to device), "demote" (a tier to the next) or "promote" (a lower
            tier to tier 0).
        source: where it reads.
        destination: where it writes.
        block_hashes: which blocks.
    """

    job_id: int
    kind: str
    source: LoadStoreSpec
    destination: LoadStoreSpec
    block_hashes: list[bytes]


class StoreStart(NamedTuple):
    """The outcome of the call that begins a store.

    Attributes:
        job_id: the transfer's number; None if every block is in tier 0 already.
        block_hashes_to_store: the blocks that it writes.
        block_hashes_evicted: what had to leave tier 0 for them.
    """

    job_id: int | None
    block_hashes_to_store: list[bytes]
    block_hashes_evicted: list[bytes]


class Finished(NamedTuple):
    """A transfer that has ended.

    Attributes:
        job_id: its number.
        kind: as in `Transfer`.
        block_hashes: which blocks.
        device_ids: the blocks of the device that it read or wrote, which it no longer pins.
        success: whether all of it arrived.
        was_started: whether it was handed out; a load that was not was cancelled, or a block could not be brought up.
    """

    job_id: int
    kind: str
    block_hashes: list[bytes]
    device_ids: list[int]
    success: bool
    was_started: bool = True


@final
class Job:
    """A transfer under way.

    Attributes:
        job_id, kind, hashes, device_ids: as in `Finished`.
        above: the tier nearer to the device that it reads or writes; for a store or load tier 0.
        below: the tier at its other end, or DEVICE.
        source, destination: as in `Transfer`; a source that is only known when the transfer is handed out is None.
        awaited: blocks that promotions have to bring to tier 0 first.
        is_started: whether it was handed out.
    """

    def __init__(
        self,
        kind: str,
        hashes: list[bytes],
        device_ids: list[int],
        above: int,
        below: int,
        source: LoadStoreSpec | None,
        destination: LoadStoreSpec,
        awaited: set[bytes],
    ) -> None:
        self.job_id = -1
        self.kind = kind
        self.hashes = hashes
        self.device_ids = device_ids
        self.above = above
        self.below = below
        self.source = source
        self.destination = destination
        self.awaited = awaited
        self.is_started = False

    def copy(self) -> Job:
        """Return an independent copy."""
        twin = Job("", [], [], 0, 0, None, self.destination, set())
        copy_fields(self, twin)
        return twin

    def held(self) -> list[bytes]:
        """Return the blocks of tier 0 that a load holds: those that it does not wait for."""
        if len(self.awaited) == 0:
            return self.hashes
        return [key for key in self.hashes if key not in self.awaited]

    def ended(self, success: bool) -> Finished:
        return Finished(self.job_id, self.kind, self.hashes, self.device_ids, success, self.is_started)


@final
class Jobs:
    """The transfers under way, in order of beginning.

    Attributes:
        under_way: all of them, by number.
        waiting: those that were not handed out yet, by number.
        readers: the number of stores that read each block of the device, 1 or more.
        writers: the number of the load that writes a block of the device, by block.
        promoted: blocks on their way up to tier 0.
    """

    def __init__(self) -> None:
        self.under_way: dict[int, Job] = {}
        self.waiting: dict[int, Job] = {}
        self.readers: dict[int, int] = {}
        self.writers: dict[int, int] = {}
        self.promoted: set[bytes] = set()
        self._begun: int = 0

    def copy(self) -> Jobs:
        """Return an independent copy. O(transfers, and blocks of the device that they pin)."""
        twin = Jobs()
        copy_fields(self, twin)
        twin.under_way = {number: job.copy() for number, job in self.under_way.items()}
        twin.waiting = {number: twin.under_way[number] for number in self.waiting}
        return twin

    def begin(self, job: Job) -> int:
        """Put a transfer under way; return its number. law: CHAIN-1."""
        number = job.job_id = self._begun
        self._begun += 1
        self.under_way[number] = job
        self.waiting[number] = job
        if job.kind == STORE:
            for block in set(job.device_ids):
                self.readers[block] = self.readers.get(block, 0) + 1
        elif job.kind == LOAD:
            for block in job.device_ids:
                self.writers[block] = number
        elif job.kind == PROMOTE:
            self.promoted.update(job.hashes)
        return number

    def cut(self, load: Job, length: int) -> None:
        """Leave a load its first blocks alone, and unpin the device's blocks of the others."""
        kept = len(load.device_ids) // len(load.hashes) * length
        for block in load.device_ids[kept:]:
            del self.writers[block]
        load.hashes = load.hashes[:length]
        load.device_ids = load.device_ids[:kept]
        load.destination = GPULoadStoreSpec(load.device_ids)
        load.awaited.intersection_update(load.hashes)

    def end(self, job: Job) -> None:
        """Take a transfer away, and its pins with it. law: CHAIN-1."""
        del self.under_way[job.job_id]
        if job.job_id in self.waiting:
            del self.waiting[job.job_id]
        if job.kind == STORE:
            for block in set(job.device_ids):
                count = self.readers[block] - 1
                if count == 0:
                    del self.readers[block]
                else:
                    self.readers[block] = count
        elif job.kind == LOAD:
            for block in job.device_ids:
                del self.writers[block]
        elif job.kind == PROMOTE:
            self.promoted.difference_update(job.hashes)

    def started(self, job_id: int) -> Job:
        """Return a transfer that was handed out and is under way; raise an `UnknownTransferError` for any other."""
        job = self.under_way.get(job_id)
        if job is None or not job.is_started:
            raise UnknownTransferError(f"job_id: transfer {job_id} has ended, or was never handed out")
        return job

    def may_start(self, job: Job) -> bool:
        """Return whether nothing has to land before a transfer. law: CHAIN-4."""
        # A load may not write where a store still reads; without stores there is nothing to look for.
        if job.kind != LOAD or len(self.readers) == 0:
            return len(job.awaited) == 0
        return len(job.awaited) == 0 and not any([block in self.readers for block in job.device_ids])

    def check_unwritten(self, device_ids: list[int]) -> None:
        """Raise a `BlockError` if a load writes one of these blocks of the device. law: CHAIN-2."""
        # law: CHAIN-5
        if len(self.writers) > 0:
            for block in device_ids:
                if block in self.writers:
                    raise BlockError(f"device_ids: load {self.writers[block]}, under way, writes block {block}")

    def pins(self) -> dict[int, int]:
        """Return how many transfers under way read or write each block of the device."""
        counts = self.readers.copy()
        for block in self.writers:
            counts[block] = counts.get(block, 0) + 1
        return counts

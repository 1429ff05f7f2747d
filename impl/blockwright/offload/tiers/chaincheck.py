"""The self-check of a chain: its transfers counted against the tiers' blocks and the device's pins."""

from __future__ import annotations

from blockwright.core.pool.check import demand
from blockwright.offload.tiers.interfaces import OffloadingManager
from blockwright.offload.tiers.keys import shown
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.tiers.transfers import DEMOTE, LOAD, PROMOTE, STORE, Job, Jobs


def check_chain(tiers: list[OffloadingManager], jobs: Jobs, held: list[tuple[int, bytes]]) -> None:
    """Check that readers, writers and pins are those of the transfers under way, and of blocks held for a load.

    A tier that is no `TierManager` is not looked at: its blocks may go at any time.

    Raises:
        InvariantError: CHAIN-1, CHAIN-2 or CHAIN-4 is broken.
    """
    check_pins(jobs)
    for at, tier in enumerate(tiers):
        if isinstance(tier, TierManager):
            check_users(at, tier, list(jobs.under_way.values()), [key for number, key in held if number == at])


def check_pins(jobs: Jobs) -> None:
    """Check pins, waiting transfers and promotions against the transfers under way."""
    stores: dict[int, int] = {}
    loads: dict[int, int] = {}
    promoted: set[bytes] = set()
    for job in jobs.under_way.values():
        if job.kind == STORE:
            for block in set(job.device_ids):
                stores[block] = stores.get(block, 0) + 1
        elif job.kind == LOAD:
            for block in job.device_ids:
                demand("CHAIN-2", f"the load that writes block {block} of the device", None, loads.get(block))
                loads[block] = job.job_id
            if job.is_started:
                demand("CHAIN-4", f"what load {job.job_id}, handed out, waits for", set(), job.awaited)
        elif job.kind == PROMOTE:
            promoted.update(job.hashes)
    demand("CHAIN-1", "stores that read blocks of the device", stores, jobs.readers)
    demand("CHAIN-1", "loads that write blocks of the device", loads, jobs.writers)
    demand("CHAIN-1", "blocks on their way up", promoted, jobs.promoted)
    idle = [number for number, job in jobs.under_way.items() if not job.is_started]
    demand("CHAIN-1", "transfers that were not handed out", idle, list(jobs.waiting))


def reads(at: int, job: Job) -> list[bytes]:
    """Return the blocks of a tier that a transfer reads."""
    if job.kind == LOAD:
        return job.held() if at == 0 else []
    if job.kind == DEMOTE:
        return job.hashes if at == job.above else []
    return job.hashes if job.kind == PROMOTE and at == job.below else []


def writes(at: int, job: Job) -> list[bytes]:
    """Return the blocks of a tier that a transfer writes."""
    if job.kind == DEMOTE:
        return job.hashes if at == job.below else []
    return job.hashes if job.kind in (STORE, PROMOTE) and at == 0 else []


def check_users(at: int, tier: TierManager, jobs: list[Job], held: list[bytes]) -> None:
    """Check the readers of each block of a tier, and which are being written."""
    readers: dict[bytes, int] = {key: held.count(key) for key in held}
    writers: set[bytes] = set()
    for job in jobs:
        for key in reads(at, job):
            readers[key] = readers.get(key, 0) + 1
        for key in writes(at, job):
            demand("CHAIN-2", f"another transfer writes block {shown(key)} of tier {at}", False, key in writers)
            writers.add(key)
    for key in tier.recency():
        status = tier.status_of(key)
        count = readers.pop(key, 0)
        if status == -2:
            demand("CHAIN-1", f"the doomed block {shown(key)} of tier {at} is being read", True, count > 0)
        else:
            # A block that is written has no readers yet, whatever waits for it.
            expected = -1 if key in writers else count
            demand("CHAIN-1", f"who reads or writes block {shown(key)} of tier {at}", expected, status)
        writers.discard(key)
    demand("CHAIN-1", f"blocks being read that tier {at} lacks", {}, readers)
    demand("CHAIN-1", f"blocks being written that tier {at} lacks", set(), writers)

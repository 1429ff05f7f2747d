"""Blocks on their way between the tiers of a chain: what goes down, what comes up, and what each landing means."""

from __future__ import annotations

from typing import final

from blockwright.core.keys.request import MAX_LENGTH
from blockwright.offload.tiers.interfaces import OffloadingManager
from blockwright.offload.tiers.transfers import DEMOTE, LOAD, PROMOTE, STORE, Finished, Job, Jobs
from blockwright.offload.tiers.wholeness import Wholeness


@final
class TierMoves:
    """Tiers, and the transfers under way among them and the device; `OffloadChain` checks arguments and calls it.

    Attributes:
        tiers: nearest to the device first.
        num_dropped: blocks that were to be written through while the tier below had no room.
        num_not_erased: forgotten blocks that a medium did not delete.
    """

    def __init__(self, tiers: list[OffloadingManager], reserve: list[int], through: bool, frees: bool) -> None:
        """Begin with no transfer."""
        self.tiers = tiers
        self.num_dropped: int = 0
        self._refused: int = -1  # the tier that had no room for the last block
        self.num_not_erased: int = 0
        self._reserve = reserve
        self._through = through
        self._frees = frees
        self._stuck: list[set[bytes]] = [set() for _ in tiers]
        self._forgotten: set[bytes] = set()  # to be forgotten, and still being written
        self._held: list[tuple[int, bytes]] = []  # for a load that is about to begin
        self._jobs: Jobs = Jobs()
        self._finished: list[Finished] = []
        self._whole: Wholeness = Wholeness()

    # ------------------------------------------------------------------ down

    def _make_room(self) -> None:
        """Send idle blocks down where fewer places are, or will be, free than the reserve says; oldest first."""
        # law: CHAIN-10
        if self._through:
            return
        for at, reserve in enumerate(self._reserve):
            if reserve > 0:
                self._make_room_in(at, reserve)

    def _make_room_in(self, at: int, reserve: int) -> None:
        """Send idle blocks of one tier down. O(blocks that go, and those passed over)."""
        tier = self.tiers[at]
        leaving = self._num_leaving(at)
        seen: set[bytes] = set()
        while True:
            lacking = reserve - tier.num_free - leaving
            if lacking <= 0:
                return
            idle = [key for key in tier.idle_blocks(len(seen) + lacking) if key not in seen]
            if len(idle) == 0:
                return
            for key in idle:
                seen.add(key)
                lacking = reserve - tier.num_free - leaving
                below = self.tiers[at + 1]
                if lacking <= 0 or (below.num_free <= 0 and len(below.idle_blocks(1)) == 0):
                    return
                if self._waits(at + 1, lacking):
                    return
                self._refused = -1
                if self._lower(at, key):
                    leaving += 1
                elif self._refused == at + 1:  # a store that is down refuses all of them
                    return

    def _num_leaving(self, at: int) -> int:
        """Return how many blocks are on their way down from a tier. O(transfers under way)."""
        return sum([len(job.hashes) for job in self._jobs.under_way.values() if job.kind == DEMOTE and job.above == at])

    def _waits(self, at: int, lacking: int) -> bool:
        """Return whether a tier is full until blocks have gone further down, and enough are on their way."""
        tier = self.tiers[at]
        if tier.num_free > 0 or len(self._losing(at, tier.idle_blocks(1))) == 0:
            return False
        further = lacking - self._num_leaving(at)
        return further <= 0 or self._waits(at + 1, further)

    def _lower(self, at: int, key: bytes) -> bool:
        """Begin to copy a block to the tier below; return False if it is there already, or there is no room.

        Written back, a block that is readable below leaves at once, and what would be lost below for it is sent further
        down first: the block itself stays for now.
        """
        upper = self.tiers[at]
        lower = self.tiers[at + 1]
        status = lower.status_of(key)
        if status is not None:
            if status >= 0 and not self._through:
                self._take_away(at, [key])
            return False
        hint = upper.hint_of(key)  # law: CHAIN-13
        if at + 2 < len(self.tiers) and lower.num_free == 0:
            lost = self._losing(at + 1, lower.would_evict([key], [hint]))
            if len(lost) > 0:
                self._lower(at + 1, lost[0])
                return False
        prepared = lower.prepare_store([key]) if hint is None else lower.prepare_store_hinted([key], [hint])
        if prepared is None:
            self._refused = at + 1
            self.num_dropped += 1 if self._through else 0
            return False
        if len(prepared.block_hashes_to_store) > 0:
            self._left(at + 1, prepared.block_hashes_evicted)
            source = upper.prepare_load([key])
            self._jobs.begin(DEMOTE, [key], [], at, at + 1, source, prepared.store_spec, set())
            return True
        if not self._through:
            self._take_away(at, [key])
        return False

    def _offer(self, at: int, hashes: list[bytes]) -> None:
        """Offer blocks that came to a tier to the next one if all is written through; the first is evicted last."""
        # law: CHAIN-11
        if self._through and at + 1 < len(self.tiers):
            for key in hashes:
                self._lower(at, key)
            self.tiers[at + 1].touch(hashes)

    def _take_away(self, at: int, hashes: list[bytes]) -> None:
        """Take those blocks out of a tier that are idle there."""
        tier = self.tiers[at]
        idle = [key for key in hashes if tier.status_of(key) == 0]
        if len(idle) > 0:
            tier.remove(idle)
            self._left(at, idle)

    # ------------------------------------------------------------------ what is forgotten

    def _forget(self, keys: list[bytes]) -> None:
        """Let no lookup find blocks; those that are being written go when that has ended. law: FORGET-3, FORGET-4."""
        for at, tier in enumerate(self.tiers):
            self.num_not_erased += tier.erase(keys)
            states = [tier.status_of(key) for key in keys]
            self._take_away(at, [key for key, state in zip(keys, states) if state == 0])
            read = [key for key, state in zip(keys, states) if state is not None and state > 0]
            if len(read) > 0:
                # A load that fails has the same effect: the block is found no more, and stays for its other readers.
                tier.prepare_load(read)
                tier.complete_load(read, False)
                self._left(at, read)
        self._forgotten.difference_update(keys)
        self._forgotten.update([key for key in keys if self._is_written(key)])

    def _is_written(self, key: bytes) -> bool:
        """Return whether a transfer writes a block."""
        return any([tier.status_of(key) == -1 for tier in self.tiers])

    def _settle(self) -> None:
        """Forget blocks that were being written when they were to be forgotten: a transfer has landed."""
        if len(self._forgotten) > 0:
            self._forget(sorted(self._forgotten))

    # ------------------------------------------------------------------ what may be lost

    def _may_go(self, at: int, key: bytes) -> bool:
        """Return whether a block may be evicted: nothing is lost by it that the tier below could keep. law: CHAIN-14.

        Where all is written through, each block was offered to the tier below when it came.
        """
        if self._through or at + 1 == len(self.tiers) or key in self._stuck[at]:
            return True
        below = self.tiers[at + 1]
        return below.status_of(key) is not None or not (below.num_free > 0 or len(below.idle_blocks(1)) > 0)

    def _losing(self, at: int, evicted: list[bytes] | None) -> list[bytes]:
        """Return those of some blocks of a tier that may not be evicted; empty where there is no room anyway."""
        if evicted is None or self._through:
            return []
        return [key for key in evicted if not self._may_go(at, key)]

    def _left(self, at: int, hashes: list[bytes]) -> None:
        """Forget of blocks that are gone from a tier whether they could be written below."""
        stuck = self._stuck[at]
        if len(stuck) > 0:
            stuck.difference_update([key for key in hashes if self.tiers[at].status_of(key) is None])

    def _fitting(self, keys: list[bytes], sources: list[int]) -> int:
        """Return how many of the first blocks one load can bring up: tier 0 has room for those from below.

        While a block of tier 0 has to move down before it may be evicted, only free places are room. law: CHAIN-15.
        """
        nearest = self.tiers[0]
        free = nearest.num_free
        coming = len(sources) - sources.count(0)
        if coming <= free:
            return len(sources)
        first = nearest.idle_blocks(64)
        waiting = len(self._losing(0, first)) > 0
        if not waiting and not self._through and len(self.tiers) > 1:
            waiting = len(self._losing(0, nearest.idle_blocks(MAX_LENGTH))) > 0
        idle = set() if waiting else set(nearest.idle_blocks(coming + len(keys)))
        length = coming = 0
        while length < len(sources):
            idle.discard(keys[length])
            coming += 1 if sources[length] > 0 else 0
            if coming > free + len(idle) and coming > free:
                break
            length += 1
        return length

    # ------------------------------------------------------------------ what can be read, and where

    def _sources(self, keys: list[bytes]) -> list[int]:
        """Return from which tier each of the first blocks, in a row, can be read; 0 also if it is on its way there.

        A lower tier is asked about many blocks at once, since it may be far away.
        """
        nearest = self.tiers[0]
        sources = [0] * nearest.lookup(keys)
        known = [0] * len(self.tiers)  # up to where each lower tier is known to be readable
        at = len(sources)
        while at < len(keys):
            status = nearest.status_of(keys[at])
            if status is not None:
                if status < 0 and (keys[at] not in self._jobs.promoted or keys[at] in self._forgotten):
                    break
                sources.append(0)
            else:
                source = self._lower_source(keys, at, known)
                if source == 0:
                    break
                sources.append(source)
            at += 1
        return sources

    def _lower_source(self, keys: list[bytes], at: int, known: list[int]) -> int:
        """Return the first tier below the nearest where a block is readable, or 0."""
        for number in range(1, len(self.tiers)):
            if known[number] <= at:
                known[number] = at + self.tiers[number].lookup(keys[at : at + 64])
            if known[number] > at:
                return number
        return 0

    # ------------------------------------------------------------------ landings

    def _end(self, job: Job, success: bool) -> Finished:
        """End a transfer, and do what follows."""
        self._jobs.end(job)
        if job.kind == STORE:
            self._land_store(job, success)
        elif job.kind == DEMOTE:
            self._land_demotion(job, success)
        elif job.kind == PROMOTE:
            self._land_promotion(job, success)
        else:
            self._land_load(job, success)
        self._settle()
        if success:  # after a failure the same block would be sent again, and fail for ever
            self._make_room()
        finished = job.ended(success)
        if job.kind == STORE or job.kind == LOAD:
            self._finished.append(finished)
        return finished

    def _land_store(self, job: Job, success: bool) -> None:
        """Let the blocks be readable in tier 0, or gone after a failure. law: CHAIN-7."""
        self.tiers[0].complete_store(job.hashes, success)
        if success:
            self._offer(0, job.hashes)

    def _land_demotion(self, job: Job, success: bool) -> None:
        """Let the block leave the tier above unless written through; after a failure it stays there. law: CHAIN-8."""
        self.tiers[job.below].complete_store(job.hashes, success)
        self.tiers[job.above].complete_load(job.hashes)
        if not success:
            if not self._through:
                self._stuck[job.above].update(job.hashes)
            self._left(job.above, job.hashes)
            return
        if self._through:
            self._offer(job.below, job.hashes)
        else:
            self._stuck[job.above].difference_update(job.hashes)
            self._take_away(job.above, job.hashes)

    def _land_promotion(self, job: Job, success: bool) -> None:
        """Let loads that waited hold the blocks. law: CHAIN-7.

        If one of several blocks failed, each is tried again alone, except those that are forgotten: their source is
        gone. If a single one failed, the source is blamed, and the loads are cut before it. law: CHAIN-17.
        """
        nearest = self.tiers[0]
        below = self.tiers[job.below]
        ended = job.hashes
        if not success and len(ended) > 1:
            again = [key for key in ended if key not in self._forgotten]
            for key in again:
                source = below.prepare_load([key])
                self._jobs.begin(PROMOTE, [key], [], 0, job.below, source, nearest.places_of([key]), set())
            below.complete_load(again)
            ended = [key for key in ended if key in self._forgotten]
            if len(ended) == 0:
                return
        nearest.complete_store(ended, success)
        below.complete_load(ended, success)
        self._left(job.below, ended)
        hashes = set(ended)
        for load in list(self._jobs.waiting.values()):
            landed = [key for key in load.hashes if key in load.awaited and key in hashes]
            if len(landed) == 0:
                continue
            if success:
                nearest.prepare_load(landed)
                load.awaited.difference_update(landed)
            else:
                self._cut(load, load.hashes.index(landed[0]))

    def _land_load(self, job: Job, success: bool) -> None:
        """Release the blocks; after a failure they are blamed, and found in tier 0 no more. law: CHAIN-7."""
        # law: CHAIN-6, CHAIN-12
        self.tiers[0].complete_load(job.hashes, success)
        self._left(0, job.hashes)
        if success and self._frees:
            self._take_away(0, job.hashes)

    def _cut(self, load: Job, length: int) -> None:
        """Let a load that was not handed out go on with its first blocks alone; with none it ends."""
        if length == 0:
            self._drop_load(load)
            return
        kept = set(load.hashes[:length])
        rest = [key for key in load.held() if key not in kept]
        self._jobs.cut(load, length)
        self.tiers[0].complete_load(rest)
        self._left(0, rest)

    def _drop_load(self, load: Job) -> None:
        """End a load that was not handed out, and release its blocks. law: CHAIN-3."""
        self._jobs.end(load)
        self.tiers[0].complete_load(load.held())
        self._left(0, load.hashes)
        self._finished.append(load.ended(False))

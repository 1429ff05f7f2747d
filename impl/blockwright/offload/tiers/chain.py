"""A chain of tiers below the device: host, disk, shared store.

Tier 0 is the nearest to the device, the only one that stores come to and loads go from; blocks go down to make room and
come up to be loaded. This module keeps the books and moves no byte: `take_transfers` returns the transfers for a worker
to run, and `finish` reports how each ended.

A block is counted once for each tier that it is in. From the call that begins a transfer until its end, the blocks that
it reads have a reader, those that it writes are being written, and the device's blocks are pinned. The laws (CHAIN-1 to
CHAIN-17) are those of the specification.

Source: LMCache's and SGLang HiCache's tiers; vLLM's `OffloadingConnector` for the transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mypy_extensions import mypyc_attr

from blockwright._copies import copy_fields
from blockwright.arguments import integer
from blockwright.core.keys.request import MAX_LENGTH
from blockwright.core.pool.order import BlockHint
from blockwright.errors import (
    BlockError,
    BlockNotReadyError,
    BlockwrightError,
    InvalidArgumentError,
    NoFreeBlocksError,
    UnknownBlockHashError,
)
from blockwright.offload.tiers.chaincheck import check_chain, reads, writes
from blockwright.offload.tiers.interfaces import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
    TierResizing,
)
from blockwright.offload.tiers.keys import keys_of, shown
from blockwright.offload.tiers.retained import checked_hints
from blockwright.offload.tiers.transfers import (
    DEMOTE,
    DEVICE,
    LOAD,
    PROMOTE,
    STORE,
    Finished,
    Job,
    Jobs,
    StoreStart,
    Transfer,
)
from blockwright.offload.tiers.wholeness import Wholeness
from blockwright.worker.rows import listed


@mypyc_attr(allow_interpreted_subclasses=True)
class OffloadChain:
    """Keeps the books of several tiers and of the transfers among them and the device.

    >>> from blockwright.offload import CPUBackend, LRUOffloadingManager
    >>> chain = OffloadChain([LRUOffloadingManager(CPUBackend(16, 4)), LRUOffloadingManager(CPUBackend(16, 8))])
    >>> chain.store([b"first"], [7]).job_id
    0
    >>> [(each.kind, each.source, each.destination) for each in chain.take_transfers()]
    [('store', GPULoadStoreSpec([7]), CPULoadStoreSpec([0]))]
    >>> chain.lookup([b"first"]), chain.pins()
    (0, {7: 1})
    >>> chain.finish(0, True).success, chain.lookup([b"first"]), chain.pins()
    (True, 1, {})

    Attributes:
        tiers: nearest to the device first.
        device_blocks_per_block: blocks of the device that one block of a tier spans.
        num_dropped: blocks that were to be written through while the tier below had no room.
        num_not_erased: forgotten blocks that a medium did not delete, since it failed.
    """

    def __init__(
        self,
        tiers: Sequence[OffloadingManager],
        *,
        device_blocks_per_block: int = 1,
        write: str = "back",
        reserve: int | Sequence[int] = 0,
        on_load: str = "keep",
        max_transfers: int | None = None,
    ) -> None:
        """Chain tiers.

        Args:
            tiers: nearest to the device first; they are the chain's from now on.
            device_blocks_per_block: blocks of the device that one block of a tier spans.
            write: "back": blocks go to the next tier when room is needed; "through": as soon as they have landed.
            reserve: places to keep free in every tier but the last, or in each (with write="back").
            on_load: "keep" a block in tier 0 that was loaded, or "free" it.
            max_transfers: refuse stores while this number of transfers is under way.

        Raises:
            InvalidArgumentError: an argument is not as described.
            UnsupportedError: the first tier has no places, as a shared store has none.
        """
        chained = list(tiers)
        if len({id(tier) for tier in chained}) < len(chained):
            raise InvalidArgumentError("tiers: one manager is given twice")
        if len(chained) == 0:
            raise InvalidArgumentError("tiers: a chain has at least one tier")
        chained[0].places_of([])  # refused by a tier without places: the device's blocks could not come to it
        if write not in ("back", "through"):
            raise InvalidArgumentError(f"write: must be 'back' or 'through', not {write!r}")
        if on_load not in ("keep", "free"):
            raise InvalidArgumentError(f"on_load: must be 'keep' or 'free', not {on_load!r}")
        self.tiers: list[OffloadingManager] = chained
        self.num_dropped: int = 0
        self.num_not_erased: int = 0
        self._reserve: list[int] = _reserves(reserve, len(chained))
        self._through: bool = write == "through"
        self._frees: bool = on_load == "free"
        self._refused: int = -1  # the tier that had no room for the last block
        self._stuck: list[set[bytes]] = [set() for _ in chained]
        self._forgotten: set[bytes] = set()  # to be forgotten, and still being written
        self._held: list[tuple[int, bytes]] = []  # for a load that is about to begin
        self._jobs: Jobs = Jobs()
        self._finished: list[Finished] = []
        self._whole: Wholeness = Wholeness(forgives=False)  # a tier may fail in the middle of a change
        self.device_blocks_per_block: int = integer("device_blocks_per_block", device_blocks_per_block, 1)
        self._most: int | None = None if max_transfers is None else integer("max_transfers", max_transfers)

    def copy(self) -> OffloadChain:
        """Return an independent copy, tiers included. O(blocks).

        Raises:
            UnsupportedError: a tier cannot be copied.
        """
        self._whole.require()
        twin = OffloadChain([tier.copy() for tier in self.tiers])
        copy_fields(self, twin, "tiers", "_whole", "_stuck", "_held", "_refused")
        twin._stuck = [each.copy() for each in self._stuck]
        return twin

    @property
    def writes_through(self) -> bool:
        """Whether blocks go to the next tier as soon as they have landed."""
        return self._through

    @property
    def num_under_way(self) -> int:
        """Number of transfers that have begun and not ended, handed out or not."""
        return len(self._jobs.under_way)

    # ------------------------------------------------------------------ what the engine asks

    def lookup(self, block_hashes: Iterable[bytes], *, room_made: bool = False) -> int:
        """Return how many of the first blocks, in a row, one load could bring now: readable in a tier, or coming up.

        A block that is present in tier 0 is judged by that alone: one being stored there cannot be loaded yet. Blocks
        in lower tiers count up to the room in tier 0: that which it has, or, with `room_made`, that which it will have
        once `make_room` was called for them and what then goes down has landed.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty; so in every call.
        """
        self._whole.require()
        keys = keys_of(block_hashes)
        return self._fitting(keys, self._sources(keys), room_made)

    def touch(self, block_hashes: Iterable[bytes]) -> None:
        """Count blocks as just used, in every tier, the first as the most recent."""
        keys = keys_of(block_hashes)
        with self._whole:
            for tier in self.tiers:
                tier.touch(keys)

    def advance_time(self, now: float) -> None:
        """Say in every tier what time it is, for hints that end.

        Raises:
            InvalidArgumentError: `now` is no time.
        """
        self._whole.require()
        for tier in self.tiers:
            tier.advance_time(now)

    def store(
        self, block_hashes: Iterable[bytes], device_ids: Iterable[int], hints: Iterable[BlockHint | None] | None = None
    ) -> StoreStart | None:
        """Begin to copy blocks of the device to tier 0, those that are not there; None, and no effect, if it is full.

        Written back, it is full as well where a block would have to go that the tier below could keep: `make_room`
        sends such blocks down.

        Args:
            block_hashes: each once, in the order of the prefix; those in tier 0 are touched there, and later evicted
                last to first.
            device_ids: `device_blocks_per_block` blocks of the device for each hash, in order.
            hints: the hint for each block, or None; it moves with the block from tier to tier.

        Raises:
            InvalidArgumentError: a hash is given twice, or the number of blocks or hints is wrong.
            BlockError: a load under way writes one of the device's blocks.
        """
        self._whole.require()
        keys, blocks = self._named(block_hashes, device_ids)
        said = None if hints is None else checked_hints(keys, hints)
        self._jobs.check_unwritten(blocks)
        if self._most is not None and len(self._jobs.under_way) >= self._most:
            return None
        nearest = self.tiers[0]
        if not self._can_take(keys, said):
            return None
        with self._whole:
            prepared = nearest.prepare_store(keys) if said is None else nearest.prepare_store_hinted(keys, said)
            if prepared is None:
                return None
            self._left(0, prepared.block_hashes_evicted)
            nearest.touch(keys)  # law: CHAIN-16
            new = prepared.block_hashes_to_store
            if len(new) == 0:
                return StoreStart(None, [], prepared.block_hashes_evicted)
            read = blocks if len(new) == len(keys) else self._blocks_of(set(new), keys, blocks)
            number = self._jobs.begin(
                Job(STORE, new, read, 0, DEVICE, GPULoadStoreSpec(read), prepared.store_spec, set())
            )
            self._make_room()
            return StoreStart(number, new, prepared.block_hashes_evicted)

    def load(self, block_hashes: Iterable[bytes], device_ids: Iterable[int]) -> int:
        """Begin to copy blocks to the device, from lower tiers through tier 0; return the transfer's number.

        Args:
            block_hashes: each once.
            device_ids: as for `store`; nothing else may write or read them until the load has ended.

        Raises:
            InvalidArgumentError: a hash is given twice, or the number of blocks is wrong.
            BlockError: a block of the device is given twice, or a load under way writes it.
            UnknownBlockHashError: one of them is neither readable nor coming up.
            NoFreeBlocksError: tier 0 has no room for the blocks that come up or, with write="back", would have to drop
                a block for which the tier below has room.
        """
        self._whole.require()
        keys, blocks = self._named(block_hashes, device_ids)
        self._jobs.check_unwritten(blocks)
        # Two keys into one block: whichever came last would stay.
        if len(set(blocks)) < len(blocks):
            raise BlockError("device_ids: a load writes each block of the device once")
        sources = self._sources(keys)
        if len(sources) < len(keys):
            raise UnknownBlockHashError(f"load: block {shown(keys[len(sources)])} is readable in no tier")
        missing = [key for key, source in zip(keys, sources) if source > 0]
        ready = [key for key, source in zip(keys, sources) if source == 0 and key not in self._jobs.promoted]
        # Those that are coming up for another load are awaited too, and held once they have landed.
        awaited = set(keys).difference(ready)
        with self._whole:
            self.tiers[0].prepare_load(ready)
            if len(missing) > 0:
                self._raise(keys, sources, missing, ready)
            self.tiers[0].touch(keys)
            number = self._jobs.begin(Job(LOAD, keys, blocks, 0, DEVICE, None, GPULoadStoreSpec(blocks), awaited))
            if len(missing) > 0:
                self._make_room()
        return number

    def has_room(self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None) -> bool:
        """Return whether `store` would find room for these blocks now; nothing changes. O(blocks).

        Raises:
            InvalidArgumentError: a hash is given twice, or the number of hints is wrong.
        """
        self._whole.require()
        keys = _distinct(block_hashes)
        return self._can_take(keys, None if hints is None else checked_hints(keys, hints))

    def make_room(self, count: int) -> None:
        """Send idle blocks of tier 0 down, in the order of eviction, until `count` places are or will be free.

        For stores and loads that find no room. Where all is written through, or nothing is below, it does nothing.

        Raises:
            InvalidArgumentError: `count` is no number of at least 0.
        """
        wanted = integer("count", count)
        with self._whole:
            if not self._through and len(self.tiers) > 1:
                self._make_room_in(0, wanted)

    def resize(self, num_blocks: int) -> TierResizing:
        """Let tier 0 end before a place, whatever runs; return how far that is. O(blocks of tier 0).

        Of the places that go, idle blocks are evicted in the order of the tier; written back, they go down one by one,
        if there is room, and are found again once they are there. Blocks that transfers use wait for these, and are
        found no more: call `resizing` until `held` is 0, and give their memory back then. Other blocks keep their
        places, and the reserve stays the same number of places. law: TIER-13, TIER-14.

        Raises:
            InvalidArgumentError: less than the shares of tenants, or beyond 2**31 - 1.
            UnsupportedError: the tier has one size for ever.
        """
        self._whole.require()
        nearest = self.tiers[0]
        leaving = nearest.would_leave(num_blocks)  # refused before anything goes down
        with self._whole:
            if not self._through and len(self.tiers) > 1:
                for key in leaving:
                    self._lower(0, key)
            self._left(0, nearest.resize(num_blocks))
        return self.resizing()

    def resizing(self) -> TierResizing:
        """Return how far tier 0 is that was resized. O(its blocks, and transfers under way if some are held)."""
        self._whole.require()
        nearest = self.tiers[0]
        late = set(nearest.beyond())
        jobs = self._jobs.under_way.values() if len(late) > 0 else []
        numbers = [job.job_id for job in jobs if not late.isdisjoint([*reads(0, job), *writes(0, job)])]
        return TierResizing(nearest.num_blocks, len(late), tuple(numbers))

    def _keep(self, block_hashes: list[bytes]) -> None:
        """Protect these blocks alone from eviction, as they are about to be loaded; an empty list ends it. O(blocks).

        Each is held in the lowest tier that could give it up, so that the tiers above keep their room. Call it again
        once transfers have landed: the blocks may have moved.
        """
        held = self._held
        with self._whole:
            for at, key in held:
                self.tiers[at].complete_load([key])
            held.clear()
            left = block_hashes
            for number in range(len(self.tiers) - 1, -1, -1):  # what is held below decides what may go from above
                above: list[bytes] = []
                for key in left:
                    status = self.tiers[number].status_of(key)
                    if status is None or status < 0:
                        above.append(key)
                    elif status > 0 or self._may_go(number, key):  # a load that ends may free it
                        self.tiers[number].prepare_load([key])
                        held.append((number, key))
                left = above

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Let no later lookup find some blocks, in any tier. O(blocks). law: FORGET-3, FORGET-4.

        A transfer that reads such a block reads on; one that writes it lands, and then the block goes.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty.
        """
        keys = list(dict.fromkeys(keys_of(block_hashes)))
        with self._whole:
            self._forget(keys)

    # ------------------------------------------------------------------ what the worker is told, and tells

    def take_transfers(self) -> list[Transfer]:
        """Return the transfers that may start now and were not returned before, in the order to start them in."""
        transfers: list[Transfer] = []
        jobs = self._jobs
        with self._whole:
            for job in list(jobs.waiting.values()):
                if not jobs.may_start(job):
                    continue
                source = job.source if job.source is not None else self.tiers[0].places_of(job.hashes)
                job.is_started = True
                del jobs.waiting[job.job_id]
                transfers.append(Transfer(job.job_id, job.kind, source, job.destination, job.hashes))
        return transfers

    def finish(self, job_id: int, success: bool) -> Finished:
        """End a transfer that was handed out, once nothing touches its blocks any more, and return its record.

        Raises:
            UnknownTransferError: it has ended, or was never handed out.
        """
        self._whole.require()
        job = self._jobs.started(job_id)
        did_arrive = bool(success)
        with self._whole:
            try:
                return self._end(job, did_arrive)
            except BlockwrightError:  # of a tier that is wrong: nothing was interrupted, and `check` can say more
                self._whole.done()
                raise

    def cancel(self, job_id: int) -> bool:
        """Drop a store or load that was not handed out, as a failure; False if it is too late or no such thing."""
        self._whole.require()
        job = self._jobs.waiting.get(job_id)
        if job is None or job.kind not in (STORE, LOAD):
            return False
        with self._whole:
            if job.kind == LOAD:
                self._drop_load(job)
                self._settle()
            else:
                self._end(job, False)
        return True

    def take_finished(self) -> list[Finished]:
        """Return the stores and loads that have ended, in whatever way, since the last call, in order of ending."""
        self._whole.require()
        finished, self._finished = self._finished, []
        return finished

    # ------------------------------------------------------------------ what it says of itself

    def pins(self) -> dict[int, int]:
        """Return, for each block of the device that a transfer under way reads or writes, how many do. law: CHAIN-1."""
        self._whole.require()
        return self._jobs.pins()

    def take_events(self) -> list[OffloadingEvent]:
        """Return the events of all tiers since the last call, tier by tier."""
        events: list[OffloadingEvent] = []
        with self._whole:
            for tier in self.tiers:
                events.extend(tier.take_events())
        return events

    def check(self) -> None:
        """Recompute the invariants, in every tier as well. O(blocks).

        Raises:
            InvariantError: one is broken.
        """
        self._whole.require()
        for tier in self.tiers:
            tier.check()
        check_chain(self.tiers, self._jobs, self._held)

    # ------------------------------------------------------------------ within

    def _named(self, block_hashes: object, device_ids: Iterable[int]) -> tuple[list[bytes], list[int]]:
        """Return the blocks that a store or load names, and those of the device.

        Raises:
            InvalidArgumentError: a hash is given twice, or the number of the device's blocks is wrong.
            BlockError: one of these is negative.
        """
        keys = _distinct(block_hashes)
        blocks = list(device_ids)
        span = len(keys) * self.device_blocks_per_block
        if len(blocks) != span:
            raise InvalidArgumentError(f"device_ids: {len(blocks)} given, {len(keys)} blocks span {span}")
        for each in blocks:
            if each < 0:
                raise BlockError(f"device_ids: there is no block {each}")
        return keys, blocks

    def _can_take(self, keys: list[bytes], said: list[BlockHint] | None) -> bool:
        """Return whether tier 0 has room for those of these blocks that it does not have. law: CHAIN-14."""
        nearest = self.tiers[0]
        if nearest.num_free >= len(keys):
            return True
        evicted = nearest.would_evict(keys, said)
        return evicted is not None and len(self._losing(0, evicted)) == 0

    def _blocks_of(self, new: set[bytes], keys: list[bytes], blocks: list[int]) -> list[int]:
        span = self.device_blocks_per_block
        chosen: list[int] = []
        for at, key in enumerate(keys):
            if key in new:
                chosen.extend(blocks[at * span : (at + 1) * span])
        return chosen

    def _raise(self, keys: list[bytes], sources: list[int], missing: list[bytes], ready: list[bytes]) -> None:
        """Begin to bring blocks up to tier 0; else release the blocks that the load holds. law: CHAIN-2.

        Raises:
            NoFreeBlocksError: tier 0 has no room for them.
            UnknownBlockHashError: a tier has lost a block since it was asked.
        """
        nearest = self.tiers[0]
        held: list[tuple[int, list[bytes], LoadStoreSpec]] = []
        try:
            places = dict(zip(keys, sources))
            hints = [self.tiers[places[key]].hint_of(key) for key in missing]  # law: CHAIN-13
            has_hints = any([hint is not None for hint in hints])
            # Asked before anything is held: a load that finds no room must leave every tier as it was.
            evicted = nearest.would_evict(missing, hints if has_hints else None)
            if evicted is None or len(self._losing(0, evicted)) > 0:  # law: CHAIN-14
                raise NoFreeBlocksError(f"load: tier 0 has no room for {len(missing)} blocks from below")
            for number in range(1, len(self.tiers)):
                chosen = [key for key, source in zip(keys, sources) if source == number]
                if len(chosen) > 0:
                    held.append((number, chosen, self.tiers[number].prepare_load(chosen)))
            prepared = nearest.prepare_store_hinted(missing, hints) if has_hints else nearest.prepare_store(missing)
            if prepared is None:
                raise NoFreeBlocksError(f"load: tier 0 has no room for {len(missing)} blocks from below")
            self._left(0, prepared.block_hashes_evicted)
        except MemoryError:
            raise
        except Exception as error:
            self._release(held, ready)
            self._whole.done()
            if isinstance(error, (UnknownBlockHashError, BlockNotReadyError)):
                raise UnknownBlockHashError(f"load: a tier has lost a block meanwhile: {error}") from error
            raise
        for number, chosen, spec in held:
            self.tiers[number].touch(chosen)
            self._jobs.begin(Job(PROMOTE, chosen, [], 0, number, spec, nearest.places_of(chosen), set()))

    def _release(self, held: list[tuple[int, list[bytes], LoadStoreSpec]], ready: list[bytes]) -> None:
        for number, chosen, _ in held:
            self.tiers[number].complete_load(chosen)
        self.tiers[0].complete_load(ready)

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
        leaving = len(self._lowering(at))
        # What cannot go down now is offered again by every look at the order: it is passed over from then on.
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

    def _lowering(self, at: int) -> list[bytes]:
        """Return the blocks on their way down from a tier; each goes by itself. O(transfers under way)."""
        return [job.hashes[0] for job in self._jobs.under_way.values() if job.kind == DEMOTE and job.above == at]

    def _waits(self, at: int, lacking: int) -> bool:
        """Return whether a tier is full until blocks have gone further down, and enough are on their way."""
        tier = self.tiers[at]
        if tier.num_free > 0 or len(self._losing(at, tier.idle_blocks(1))) == 0:
            return False
        further = lacking - len(self._lowering(at))
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
                # One at a time: its end makes room here, and the next landing looks again.
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
            self._jobs.begin(Job(DEMOTE, [key], [], at, at + 1, source, prepared.store_spec, set()))
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
        """Remove blocks from all tiers, those being written once they have landed. law: FORGET-3, FORGET-4."""
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

    def _fitting(self, keys: list[bytes], sources: list[int], room_made: bool) -> int:
        """Return how many of the first blocks one load can bring up: tier 0 has room for those from below.

        While a block of tier 0 has to move down before it may be evicted, only free places are room, unless room is to
        be made first. law: CHAIN-15, CHAIN-18.
        """
        nearest = self.tiers[0]
        free = nearest.num_free
        coming = len(sources) - sources.count(0)
        if coming <= free:
            return len(sources)
        waiting = False
        if not room_made and not self._through and len(self.tiers) > 1:
            waiting = (
                len(self._losing(0, nearest.idle_blocks(64))) > 0
                or len(self._losing(0, nearest.idle_blocks(MAX_LENGTH))) > 0
            )
        others = set() if waiting else set(nearest.idle_blocks(coming + len(keys)))
        if room_made:
            # A block whose only reader is its way down leaves a place behind.
            others.update([key for key in self._lowering(0) if nearest.status_of(key) == 1])  # no load reads it, too
        length = coming = 0
        while length < len(sources):
            others.discard(keys[length])
            coming += 1 if sources[length] > 0 else 0
            if coming > free + len(others):
                break
            length += 1
        return length

    # ------------------------------------------------------------------ what can be read, and where

    def _sources(self, keys: list[bytes]) -> list[int]:
        """Return the tier from which each of the first blocks, in a row, can be read; 0 for one on its way there, too.

        A lower tier is asked about many blocks at once, since it may be far away.
        """
        nearest = self.tiers[0]
        # One call for the usual case: all that is there from the first on.
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
        nearest = self.tiers[0]
        nearest.complete_store(job.hashes, success)
        if success:
            self._offer(
                0, [key for key in job.hashes if nearest.status_of(key) is not None]
            )  # beyond its end none stays

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
        gone. If a single one failed, the source is blamed, and the loads are cut before it. law: CHAIN-17. They are cut
        too before a block for which tier 0 has become too small.
        """
        nearest = self.tiers[0]
        below = self.tiers[job.below]
        ended = job.hashes
        if not success and len(ended) > 1:
            # One damaged block must not take the others with it, and which one it was is not known.
            again = [key for key in ended if key not in self._forgotten]
            for key in again:
                source = below.prepare_load([key])
                self._jobs.begin(Job(PROMOTE, [key], [], 0, job.below, source, nearest.places_of([key]), set()))
            below.complete_load(again)
            ended = [key for key in ended if key in self._forgotten]
            if len(ended) == 0:
                return
        nearest.complete_store(ended, success)
        below.complete_load(ended, success)
        self._left(job.below, ended)
        hashes = set(ended)
        came = {key for key in ended if nearest.status_of(key) is not None}
        for load in list(self._jobs.waiting.values()):
            landed = [key for key in load.hashes if key in load.awaited and key in hashes]
            if len(landed) == 0:
                continue
            lost = [key for key in landed if key not in came]
            landed = [key for key in landed if key in came]
            nearest.prepare_load(landed)
            load.awaited.difference_update(landed)
            if len(lost) > 0:
                self._cut(load, load.hashes.index(lost[0]))

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


def _reserves(reserve: object, num_tiers: int) -> list[int]:
    """Return how many places each tier but the last keeps free; numbers for all may end with the last one's 0.

    Raises:
        InvalidArgumentError: not a number or numbers of at least 0, too many or too few, or one for the last tier.
    """
    if isinstance(reserve, int):
        return [integer("reserve", reserve)] * (num_tiers - 1)
    numbers = [integer("reserve", each) for each in listed("reserve", reserve, "an int or a sequence of int")]
    if len(numbers) == num_tiers and numbers[-1] == 0:
        return numbers[:-1]
    if len(numbers) != num_tiers - 1:
        raise InvalidArgumentError(f"reserve: {len(numbers)} numbers for {num_tiers} tiers, of which the last has none")
    return numbers


def _distinct(block_hashes: object) -> list[bytes]:
    """Return hashes in a new list; raise an `InvalidArgumentError` if one is not bytes, is empty, or is given twice."""
    keys = keys_of(block_hashes).copy()
    if len(set(keys)) < len(keys):
        twice = [key for key in keys if keys.count(key) > 1]
        raise InvalidArgumentError(f"block_hashes: block {shown(twice[0])} is given twice")
    return keys

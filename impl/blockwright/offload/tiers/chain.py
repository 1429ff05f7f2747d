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

from blockwright.arguments import integer
from blockwright.core.pool.order.order import BlockHint
from blockwright.errors import (
    BlockError,
    BlockNotReadyError,
    BlockwrightError,
    InvalidArgumentError,
    NoFreeBlocksError,
    UnknownBlockHashError,
)
from blockwright.offload.tiers.asking import (
    checked_device_ids,
    checked_reserve,
    checked_tiers,
    distinct_keys,
)
from blockwright.offload.tiers.chaincheck import check_chain
from blockwright.offload.tiers.interfaces import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingEvent,
    OffloadingManager,
)
from blockwright.offload.tiers.keys import keys_of, shown
from blockwright.offload.tiers.moves import TierMoves
from blockwright.offload.tiers.retained import checked_hints
from blockwright.offload.tiers.transfers import DEVICE, LOAD, PROMOTE, STORE, Finished, StoreStart, Transfer


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
        chained = checked_tiers(tiers)
        if write not in ("back", "through"):
            raise InvalidArgumentError(f"write: must be 'back' or 'through', not {write!r}")
        if on_load not in ("keep", "free"):
            raise InvalidArgumentError(f"on_load: must be 'keep' or 'free', not {on_load!r}")
        self.tiers: list[OffloadingManager] = chained
        self._moves = TierMoves(chained, checked_reserve(reserve, len(chained)), write == "through", on_load == "free")
        self.device_blocks_per_block: int = integer("device_blocks_per_block", device_blocks_per_block, 1)
        self._most: int | None = None if max_transfers is None else integer("max_transfers", max_transfers)

    def copy(self) -> OffloadChain:
        """Return an independent copy, tiers included. O(blocks).

        Raises:
            UnsupportedError: a tier cannot be copied.
        """
        self._moves._whole.require()
        twin = OffloadChain(
            [tier.copy() for tier in self.tiers],
            device_blocks_per_block=self.device_blocks_per_block,
            write="through" if self._moves._through else "back",
            reserve=self._moves._reserve,
            on_load="free" if self._moves._frees else "keep",
            max_transfers=self._most,
        )
        twin._moves._jobs = self._moves._jobs.copy()
        twin._moves._finished = self._moves._finished.copy()
        twin._moves._stuck = [each.copy() for each in self._moves._stuck]
        twin._moves.num_dropped = self._moves.num_dropped
        twin._moves.num_not_erased = self._moves.num_not_erased
        twin._moves._forgotten = self._moves._forgotten.copy()
        return twin

    @property
    def writes_through(self) -> bool:
        """Whether blocks go to the next tier as soon as they have landed."""
        return self._moves._through

    @property
    def num_dropped(self) -> int:
        """Blocks that were to be written through while the tier below had no room."""
        return self._moves.num_dropped

    @property
    def num_not_erased(self) -> int:
        """Forgotten blocks that a medium did not delete, since it failed."""
        return self._moves.num_not_erased

    # ------------------------------------------------------------------ what the engine asks

    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        """Return how many of the first blocks, in a row, one load could bring now: readable in a tier, or coming up.

        A block that is present in tier 0 is judged by that alone: one being stored there cannot be loaded yet. Blocks
        in lower tiers count up to the room in tier 0 (see `make_room`).

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty; so in every call.
        """
        self._moves._whole.require()
        keys = keys_of(block_hashes)
        return self._moves._fitting(keys, self._moves._sources(keys))

    def touch(self, block_hashes: Iterable[bytes]) -> None:
        """Count blocks as just used, in every tier, the first as the most recent."""
        self._moves._whole.require()
        keys = keys_of(block_hashes)
        self._moves._whole.begin()
        for tier in self.tiers:
            tier.touch(keys)
        self._moves._whole.done()

    def advance_time(self, now: float) -> None:
        """Say in every tier what time it is, for hints that end.

        Raises:
            InvalidArgumentError: `now` is no time.
        """
        self._moves._whole.require()
        for tier in self.tiers:
            tier.advance_time(now)

    def store(
        self,
        block_hashes: Iterable[bytes],
        device_ids: Iterable[int],
        hints: Iterable[BlockHint | None] | None = None,
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
        self._moves._whole.require()
        keys = distinct_keys(block_hashes)
        blocks = checked_device_ids(device_ids, len(keys), self.device_blocks_per_block)
        said = None if hints is None else checked_hints(keys, hints)
        self._moves._jobs.check_unwritten(blocks)
        if self._most is not None and len(self._moves._jobs.under_way) >= self._most:
            return None
        nearest = self.tiers[0]
        if not self._can_take(keys, said):
            return None
        self._moves._whole.begin()
        prepared = nearest.prepare_store(keys) if said is None else nearest.prepare_store_hinted(keys, said)
        if prepared is None:
            self._moves._whole.done()
            return None
        self._moves._left(0, prepared.block_hashes_evicted)
        nearest.touch(keys)  # law: CHAIN-16
        new = prepared.block_hashes_to_store
        if len(new) == 0:
            self._moves._whole.done()
            return StoreStart(None, [], prepared.block_hashes_evicted)
        read = blocks if len(new) == len(keys) else self._blocks_of(set(new), keys, blocks)
        number = self._moves._jobs.begin(
            STORE, new, read, 0, DEVICE, GPULoadStoreSpec(read), prepared.store_spec, set()
        )
        self._moves._make_room()
        self._moves._whole.done()
        return StoreStart(number, new, prepared.block_hashes_evicted)

    def load(self, block_hashes: Iterable[bytes], device_ids: Iterable[int]) -> int:
        """Begin to copy blocks to the device, those of lower tiers by way of tier 0; return the transfer's number.

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
        self._moves._whole.require()
        keys = distinct_keys(block_hashes)
        blocks = checked_device_ids(device_ids, len(keys), self.device_blocks_per_block)
        self._moves._jobs.check_unwritten(blocks)
        if len(set(blocks)) < len(blocks):
            raise BlockError("device_ids: a load writes each block of the device once")
        sources = self._moves._sources(keys)
        if len(sources) < len(keys):
            raise UnknownBlockHashError(f"load: block {shown(keys[len(sources)])} is readable in no tier")
        missing = [key for key, source in zip(keys, sources) if source > 0]
        ready = [key for key, source in zip(keys, sources) if source == 0 and key not in self._moves._jobs.promoted]
        awaited = set(keys).difference(ready)
        self._moves._whole.begin()
        self.tiers[0].prepare_load(ready)
        if len(missing) > 0:
            self._raise(keys, sources, missing, ready)
        self.tiers[0].touch(keys)
        number = self._moves._jobs.begin(LOAD, keys, blocks, 0, DEVICE, None, GPULoadStoreSpec(blocks), awaited)
        if len(missing) > 0:
            self._moves._make_room()
        self._moves._whole.done()
        return number

    def has_room(self, block_hashes: Iterable[bytes], hints: Iterable[BlockHint | None] | None = None) -> bool:
        """Return whether `store` would find room for these blocks now; nothing changes. O(blocks).

        Raises:
            InvalidArgumentError: a hash is given twice, or the number of hints is wrong.
        """
        self._moves._whole.require()
        keys = distinct_keys(block_hashes)
        return self._can_take(keys, None if hints is None else checked_hints(keys, hints))

    def make_room(self, count: int) -> None:
        """Send idle blocks of tier 0 down, in the order of eviction, until `count` places are or will be free.

        For stores and loads that find no room. Where all is written through, or nothing is below, it does nothing.

        Raises:
            InvalidArgumentError: `count` is no number of at least 0.
        """
        self._moves._whole.require()
        wanted = integer("count", count)
        if self._moves._through or len(self.tiers) == 1:
            return
        self._moves._whole.begin()
        self._moves._make_room_in(0, wanted)
        self._moves._whole.done()

    def _keep(self, block_hashes: list[bytes]) -> None:
        """Keep only these blocks, which are about to be loaded, from being evicted; none ends it. O(blocks).

        Each is held in the lowest tier that could give it up, so that the tiers above keep their room. Call it again
        once transfers have landed: the blocks may have moved.
        """
        held = self._moves._held
        self._moves._whole.begin()
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
                elif status > 0 or self._moves._may_go(number, key):  # a load that ends may free it
                    self.tiers[number].prepare_load([key])
                    held.append((number, key))
            left = above
        self._moves._whole.done()

    def forget(self, block_hashes: Iterable[bytes]) -> None:
        """Let no later lookup find some blocks, in any tier. O(blocks). law: FORGET-3, FORGET-4.

        A transfer that reads such a block reads on; one that writes it lands, and then the block goes.

        Raises:
            InvalidArgumentError: a hash is not bytes, or empty.
        """
        self._moves._whole.require()
        keys = list(dict.fromkeys(keys_of(block_hashes)))
        self._moves._whole.begin()
        self._moves._forget(keys)
        self._moves._whole.done()

    # ------------------------------------------------------------------ what the worker is told, and tells

    def take_transfers(self) -> list[Transfer]:
        """Return the transfers that may start now, each once, in the order in which they must start."""
        transfers: list[Transfer] = []
        jobs = self._moves._jobs
        self._moves._whole.require()
        self._moves._whole.begin()
        for job in list(jobs.waiting.values()):
            if not jobs.may_start(job):
                continue
            source = job.source if job.source is not None else self.tiers[0].places_of(job.hashes)
            job.is_started = True
            del jobs.waiting[job.job_id]
            transfers.append(Transfer(job.job_id, job.kind, source, job.destination, job.hashes))
        self._moves._whole.done()
        return transfers

    def finish(self, job_id: int, success: bool) -> Finished:
        """End a transfer that was handed out, once nothing touches its blocks any more, and return its record.

        Raises:
            UnknownTransferError: it has ended, or was never handed out.
        """
        self._moves._whole.require()
        job = self._moves._jobs.started(job_id)
        did_arrive = bool(success)
        self._moves._whole.begin()
        try:
            finished = self._moves._end(job, did_arrive)
        except BlockwrightError:  # of a tier that is wrong: nothing was interrupted, and `check` can say more
            self._moves._whole.done()
            raise
        self._moves._whole.done()
        return finished

    def cancel(self, job_id: int) -> bool:
        """Drop a store or load that was not handed out, as a failure; False if it is too late or no such thing."""
        self._moves._whole.require()
        job = self._moves._jobs.waiting.get(job_id)
        if job is None or job.kind not in (STORE, LOAD):
            return False
        self._moves._whole.begin()
        if job.kind == LOAD:
            self._moves._drop_load(job)
            self._moves._settle()
        else:
            self._moves._end(job, False)
        self._moves._whole.done()
        return True

    def take_finished(self) -> list[Finished]:
        """Return the stores and loads that have ended, in whatever way, since the last call, in order of ending."""
        self._moves._whole.require()
        finished, self._moves._finished = self._moves._finished, []
        return finished

    # ------------------------------------------------------------------ what it says of itself

    def pins(self) -> dict[int, int]:
        """Return, for each block of the device that a transfer under way reads or writes, how many do. law: CHAIN-1."""
        self._moves._whole.require()
        return self._moves._jobs.pins()

    def take_events(self) -> list[OffloadingEvent]:
        """Return the events of all tiers since the last call, tier by tier."""
        self._moves._whole.require()
        events: list[OffloadingEvent] = []
        self._moves._whole.begin()
        for tier in self.tiers:
            events.extend(tier.take_events())
        self._moves._whole.done()
        return events

    def check(self) -> None:
        """Recompute the invariants, in every tier as well. O(blocks).

        Raises:
            InvariantError: one is broken.
        """
        self._moves._whole.require()
        for tier in self.tiers:
            tier.check()
        check_chain(self.tiers, self._moves._jobs, self._moves._held)

    # ------------------------------------------------------------------ within

    def _can_take(self, keys: list[bytes], said: list[BlockHint] | None) -> bool:
        """Return whether tier 0 has room for those of these blocks that it does not have. law: CHAIN-14."""
        nearest = self.tiers[0]
        if nearest.num_free >= len(keys):
            return True
        evicted = nearest.would_evict(keys, said)
        return evicted is not None and len(self._moves._losing(0, evicted)) == 0

    def _blocks_of(self, new: set[bytes], keys: list[bytes], blocks: list[int]) -> list[int]:
        """Return the blocks of the device that belong to some of the keys."""
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
            evicted = nearest.would_evict(missing, hints if has_hints else None)
            if evicted is None or len(self._moves._losing(0, evicted)) > 0:  # law: CHAIN-14
                raise NoFreeBlocksError(f"load: tier 0 has no room for {len(missing)} blocks from below")
            for number in range(1, len(self.tiers)):
                chosen = [key for key, source in zip(keys, sources) if source == number]
                if len(chosen) > 0:
                    held.append((number, chosen, self.tiers[number].prepare_load(chosen)))
            prepared = nearest.prepare_store_hinted(missing, hints) if has_hints else nearest.prepare_store(missing)
            if prepared is None:
                raise NoFreeBlocksError(f"load: tier 0 has no room for {len(missing)} blocks from below")
            self._moves._left(0, prepared.block_hashes_evicted)
        except MemoryError:
            raise
        except Exception as error:
            self._release(held, ready)
            self._moves._whole.done()
            if isinstance(error, (UnknownBlockHashError, BlockNotReadyError)):
                raise UnknownBlockHashError(f"load: a tier has lost a block meanwhile: {error}") from error
            raise
        for number, chosen, spec in held:
            self.tiers[number].touch(chosen)
            self._moves._jobs.begin(PROMOTE, chosen, [], 0, number, spec, nearest.places_of(chosen), set())

    def _release(self, held: list[tuple[int, list[bytes], LoadStoreSpec]], ready: list[bytes]) -> None:
        """Release the blocks of a load that is not possible."""
        for number, chosen, _ in held:
            self.tiers[number].complete_load(chosen)
        self.tiers[0].complete_load(ready)

"""The connector that a scheduler with a `KVCacheManager` calls to keep evicted or published blocks on other tiers.

One step of a single-process engine::

    admit     get_computed_blocks, get_num_new_matched_tokens, allocate_slots, update_state_after_alloc
    grow      allocate_slots_batch for what runs
    before    start_step: copies of evicted blocks run, before the step writes over them; then loads begin
    the step
    after     finish_step: blocks that the step filled are stored (``store_on="publish"``)
    any time  poll: collect ended transfers: loads go to the manager, stores release their blocks

The names are those of vLLM's connectors where the meaning is the same.
"""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Final, TypeVar

from blockwright.arguments import integer
from blockwright.core.keys.block_hash import Sha256Hasher
from blockwright.core.keys.request import Request
from blockwright.core.manager import KVCacheManager
from blockwright.errors import InvalidArgumentError, NoFreeBlocksError, OffloadError, UnsupportedError
from blockwright.offload.hits import NeededBlock, external_hit, groups_of
from blockwright.offload.identity import CacheIdentity
from blockwright.offload.loads import FoundHit, Load, destinations, end_load
from blockwright.offload.media import ByteStore
from blockwright.offload.metrics import Pair
from blockwright.offload.naming import BlockNames
from blockwright.offload.results import ConnectorStats, Forgotten, HostResizing, LoadResult
from blockwright.offload.stores import LONGEST_WAIT, Stores
from blockwright.offload.tiers.chain import OffloadChain
from blockwright.offload.tiers.interfaces import OffloadingEvent
from blockwright.offload.tiers.manager import TierManager
from blockwright.offload.tiers.transfers import Transfer
from blockwright.offload.tiers.wholeness import Wholeness
from blockwright.offload.transfers import LONGEST_PAUSE, TransferDesk
from blockwright.offload.wiring import check_hasher, check_wiring, identity_of
from blockwright.offload.worker import OffloadingWorker, PairStats

if TYPE_CHECKING:
    from blockwright.offload.assembly import HostMemory, Tensors

WHEN: Final = ("publish", "evict")

T = TypeVar("T")


def _given(value: T | EllipsisType | None) -> T | None:
    """Return an argument, None if it was left out."""
    return None if isinstance(value, EllipsisType) else value


class _Offers:
    """What a load is offered of a chain: all that there is room for once the load has made some. law: CHAIN-18."""

    def __init__(self, chain: OffloadChain) -> None:
        self._chain = chain

    def lookup(self, block_hashes: Iterable[bytes]) -> int:
        return self._chain.lookup(block_hashes, room_made=True)


class OffloadingConnector:
    """Stores blocks of one manager through a chain of tiers, and loads them back.

    Called from the scheduler's thread only. All requests must be hashed in units that divide the blocks (as for hits).

    After a call that was ended in its middle, by an interrupt or for want of memory, every later one raises
    `InterruptedCallError`, and in a process that was forked off `UnsupportedError`; `close` alone still works.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        chain: OffloadChain,
        worker: OffloadingWorker,
        *,
        store_on: str = "publish",
        store_passing: bool = False,
        most_waiting: int | None = None,
        media: Sequence[ByteStore] = (),
        host: HostMemory | None = None,
    ) -> None:
        """Stand between these three.

        Args:
            manager: of the device's blocks; for ``store_on="evict"`` made with ``track_evictions=True``.
            chain: of the tiers; the connector is its only caller.
            worker: with a handler for each pair of neighbouring media; the connector is its only caller.
            store_on: ``"publish"``: blocks are stored once a step has computed them, and held until that has ended.
                ``"evict"``: blocks are stored when the device takes them for other content.
            store_passing: also store blocks that no likely hit needs (`Eviction.is_passing`): the windows that running
                requests have moved past. With ``"publish"``, those of prompts; which of an output are needed is
                known only as the request ends, so all are stored.
            most_waiting: with ``"publish"``, blocks of the device that are held at most while they wait for room in the
                tiers; None for no bound. What waits beyond that is lost if the device takes it.
            media: closed by `close`, after the handlers.
            host: the memory of the first tier, which follows `resize_host`.

        Raises:
            InvalidArgumentError: the manager does not cache, or does not track evictions; an unknown `store_on`; a pair
                of media without a handler; a tier with more places than its handler reaches.
            UnsupportedError: offloaded blocks of several device blocks, stored on eviction (which takes blocks one by
                one) or with hits that end inside blocks (``prefix_match_unit``); a manager that verifies tokens
                (offloaded blocks are known by their hash only) or recomputes the end of a hit (``use_eagle``).
        """
        if store_on not in WHEN:
            raise InvalidArgumentError(f"store_on: must be one of {', '.join(WHEN)}, not {store_on!r}")
        if not manager.enable_caching:
            raise InvalidArgumentError("manager: offloaded blocks are found by hash; make it with enable_caching")
        if store_on == "evict" and not manager.block_pool.tracks_evictions:
            raise InvalidArgumentError("manager: store_on='evict' needs one made with track_evictions=True")
        if store_on == "evict" and chain.device_blocks_per_block > 1:
            raise UnsupportedError(
                f"store_on: blocks are evicted one by one, not {chain.device_blocks_per_block} at once; use 'publish'"
            )
        if manager.block_pool.verifies_tokens or manager.use_eagle:
            raise UnsupportedError("manager: offloading goes neither with verify_tokens nor with use_eagle")
        if manager.prefix_match_unit is not None and chain.device_blocks_per_block > 1:
            raise UnsupportedError(
                f"manager: with prefix_match_unit a tier's block is one of the device, not "
                f"{chain.device_blocks_per_block}; make the chain with device_blocks_per_block=1"
            )
        check_wiring(manager.block_pool.num_blocks, chain.tiers, worker)
        self._identity = identity_of(worker)
        self._worker = worker
        self._media = tuple(media)
        self._host = host
        self._manager = manager
        self._chain = chain
        self._per_block = chain.device_blocks_per_block
        self._desk = TransferDesk(chain, worker)
        self._names = BlockNames(chain.tiers)
        most = manager.block_pool.num_blocks if most_waiting is None else integer("most_waiting", most_waiting)
        self._stores = Stores(manager, chain, self._desk, self._names, store_on == "publish", store_passing, most)
        self._found: dict[str, FoundHit] = {}
        self._loads: dict[int, Load] = {}
        self._ended: list[Load] = []  # loads that never began, until the engine asks
        self._told: list[LoadResult] = []  # not returned yet
        self._recompute: set[str] = set()
        self._failures: Counter[str] = Counter()
        self._lookups = self._lookups_hit = self._num_loads = self._loads_in_part = self._loaded_blocks = 0
        self._process = os.getpid()
        self._whole = Wholeness("close the connector, and make a new one with a new manager")

    @classmethod
    def build(
        cls,
        manager: KVCacheManager,
        tensors: Tensors,
        *,
        host_blocks: int,
        disk: str | os.PathLike[str] | None = None,
        disk_blocks: int | None = None,
        identity: CacheIdentity | None = None,
        store_on: str = "publish",
        write: str = "through",
        block_dim: int | Sequence[int] = 0,
        events: bool = False,
        shares: Mapping[str, int] | None = None,
        hint_guard: float = 0.0,
        waiting_bytes: int | None = None,
        max_host_blocks: int | None = None,
    ) -> OffloadingConnector:
        """Make a connector with all its parts: the host's memory and, if it is named, a directory on a disk below it.

        Requests must be hashed by its `hasher`, if it has one. `close` closes all that it has made. Needs torch.

        Args:
            manager: as above.
            tensors: the device's, as for `HostPool`: block `b` of each is block `b` of the manager's pool.
            host_blocks: blocks to keep on the host.
            disk: a directory for a `DiskStore`; then `disk_blocks`, its size, and `identity` are needed too.
            disk_blocks: blocks to keep on the disk.
            identity: the identity of the blocks on the disk; its `block_size` is the manager's, the largest of its
                groups.
            store_on: as above; with ``"evict"`` the host gives up the blocks that it loads.
            write: when blocks go to the disk: ``"through"``, as soon as they are on the host, so that a restart finds
                all; or ``"back"``, when the host has less than an eighth of its places free.
            block_dim: as for `HostPool`.
            events: keep the events of the tiers for `take_events`. With ``store_on="evict"`` the manager must be made
                with ``enable_kv_cache_events=True``, since it alone knows the tokens of an evicted block.
            shares: blocks of the host that tenants may count on, by cache salt; of the disk they have the same part.
            hint_guard: part of each tier, within 0.0 .. 1.0, that no hint affects, as for `KVCacheManager`.
            waiting_bytes: `most_waiting`, in bytes of the device.
            max_host_blocks: the most blocks that `resize_host` may ask for, as for `HostPool`; None for one size.

        Raises:
            InvalidArgumentError: as above, or an argument is not as described.
            StoreDirectoryError: the directory is not this store's, as for `DiskStore`.
        """
        from blockwright.offload.assembly import build_connector

        stores = host_blocks, disk, disk_blocks, identity
        kept = shares or {}, hint_guard, waiting_bytes, max_host_blocks
        return build_connector(manager, tensors, *stores, store_on, write, block_dim, events, *kept)

    def _require(self) -> None:
        """Refuse calls in a forked process, and after an interrupted call.

        Raises:
            UnsupportedError: this process was forked off the one that made the connector.
            InterruptedCallError: an earlier call ended in the middle of a change.
        """
        if os.getpid() != self._process:
            raise UnsupportedError(
                "connector: it belongs to the process that made it, and its threads do not run here; make a new one"
            )
        self._whole.require()

    def _changing(self) -> Wholeness:
        self._require()
        return self._whole

    @property
    def hasher(self) -> Sha256Hasher | None:
        """How requests must be hashed, since their blocks leave the process; None if any hasher will do."""
        return None if self._identity is None else Sha256Hasher(self._identity.hash_seed)

    def transfer_stats(self) -> dict[Pair, PairStats]:
        """Return what became of the transfers, for each pair of media that is served or was asked for."""
        return self._worker.stats()

    def close(self) -> None:
        """Close the worker's handlers, and then the media that it was given; `drain` before, to lose nothing."""
        self._worker.close()
        for medium in self._media:
            medium.close()

    # ------------------------------------------------------------------ the host's size

    def resize_host(self, num_blocks: int) -> HostResizing:
        """Let the host keep another number of blocks, while it serves; return how far that is. O(blocks of the host).

        Of the blocks that go, those that nothing uses are evicted in the order of the tier or, written back, go down to
        the disk if it has room. The others wait for their transfers: `poll` and `finish_step` give the memory back once
        those have ended, and `host_resizing` reports how far they are. Shares and the reserve stay the same numbers.
        law: TIER-13, TIER-14.

        Raises:
            InvalidArgumentError: more than the host's memory was made for, or less than the shares of tenants.
            UnsupportedError: the connector was made without `host`, or its pool without `max_blocks`.
        """
        host = self._host
        if host is None or not host.is_resizable:
            raise UnsupportedError("resize_host: the host has one size for ever; build it with max_host_blocks")
        with self._changing():
            integer("num_blocks", num_blocks, 0, host.max_blocks)
            self._chain.resize(num_blocks)
            if num_blocks > host.num_blocks:  # the memory is reserved, and is taken as it is written
                host.resize(num_blocks)
            self._end_host()
            self._desk.submit()
        return self.host_resizing()

    def host_resizing(self) -> HostResizing:
        """Return how far the host is that was resized. O(its blocks)."""
        self._require()
        told = self._chain.resizing()
        names = [load.request.request_id for number, load in self._loads.items() if number in told.transfers]
        return HostResizing(told.num_blocks, told.held, tuple(names))

    def _end_host(self) -> None:
        """Give back the memory beyond the host's end once no transfer uses it."""
        host, end = self._host, self._chain.tiers[0].num_blocks
        if host is not None and host.is_resizable and host.num_blocks > end and self._chain.resizing().held == 0:
            host.resize(end)

    # ------------------------------------------------------------------ admission

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """Return the number of tokens that can be loaded after the device's own hit, and whether the load takes time.

        Every load takes time, so the second value is True whenever the first is above 0. The call holds no block: pass
        the number to `allocate_slots` as ``num_external_computed_tokens``, with no new tokens, and then to
        `update_state_after_alloc`. The answer is ``(0, False)`` while a load of the request is under way, and once
        after a load has failed, so that the request computes the missing tokens.

        The number is at most what an empty pool can hold, so that a request that waits for blocks is served in the end,
        and at most what the host can hold at once, because blocks of lower tiers pass through it. If the hit is longer,
        it offers the longest part that fits, and the rest is computed. Complexity: at most one lookup per block; with
        windows, and a hit that is longer than the host, O(log blocks) of them. law: HIT-1, LIVE-1.

        Raises:
            InvalidArgumentError: the request was made with another block size or hasher, or blocks leave the process
                and it is hashed under a secret of this one, or under another seed than the stores' identity names; or
                the request has fewer tokens than `num_computed_tokens`.
        """
        self._require()
        num_computed_tokens = integer("num_computed_tokens", num_computed_tokens, 0, request.num_tokens)
        name = request.request_id
        request.hash_by(self._manager.hash_block_size)
        is_asked = not (
            request.prompt_logprobs or request.block_size is None or self._is_loading(name) or name in self._recompute
        )
        if is_asked:
            self._check_keys(request)
        with self._changing():
            # It starts anew: its first blocks may have left the tiers since they were stored.
            self._found.pop(name, None)
            self._stores.forget(name)
            if not is_asked:
                if not self._is_loading(name):
                    self._recompute.discard(name)
                return 0, False
            self._lookups += 1
            length, needed = self._hit(request, num_computed_tokens)
            num_external = length - num_computed_tokens
            queried = request.num_tokens - num_computed_tokens
            self._manager.found_outside(request, queried, max(0, num_external))
            if num_external <= 0:
                return 0, False
            self._lookups_hit += 1
            self._name(request, needed)
            self._found[name] = FoundHit(num_computed_tokens, num_external, needed)
            return num_external, True

    def _hit(self, request: Request, num_computed: int) -> tuple[int, list[NeededBlock]]:
        """Return the longest length that one load can bring, and the blocks that it brings."""
        managers = self._manager.managers

        offers = _Offers(self._chain)

        def found(most: int) -> tuple[int, list[NeededBlock]]:
            return external_hit(
                offers,
                managers,
                request,
                num_computed,
                self._per_block,
                lambda length: length <= most and self._manager.can_load(request, num_computed, length - num_computed),
                self._manager.prefix_match_unit,
            )

        def has_room(needed: list[NeededBlock]) -> bool:
            return offers.lookup([each.key for each in needed]) == len(needed)

        length, needed = found(request.num_tokens)
        if len(self._chain.tiers) == 1 or (len(managers) == 1 and managers[0].keeps_all) or has_room(needed):
            return length, needed
        # Each block was found alone; the nearest tier lacks room for all. A shorter hit needs other blocks of windows.
        unit = math.lcm(*[manager.block_size for manager in managers])
        shorter = range(num_computed + unit, length, unit)
        count = bisect_right(shorter, False, key=lambda most: not has_room(found(most)[1]))
        length, needed = found(num_computed + count * unit)
        return (length, needed) if has_room(needed) else (num_computed, [])

    def _name(self, request: Request, needed: list[NeededBlock]) -> None:
        """Note the contents of blocks from an earlier run, now that a request names them."""
        asked = [block for block in needed if self._names.asks(block.key)]
        groups = groups_of(self._manager, request, self._per_block) if asked else []
        for block in asked:
            blocks = groups[block.group]
            end = next(end for end in blocks.parts(block.end_token) if blocks.key_to(end) == block.key)
            self._names.note(block.key, blocks.stored(end))

    def _check_keys(self, request: Request) -> None:
        """Refuse a request with keys that are not those of the blocks."""
        self._check_hasher(request)
        for manager in self._manager.managers:
            self._manager.block_pool._units_for(request, manager.block_size)

    def _check_hasher(self, request: Request) -> None:
        if self._identity is not None and request.block_size is not None:
            check_hasher(self._identity, request)

    def _is_loading(self, name: str) -> bool:
        return any(load.request.request_id == name for load in [*self._loads.values(), *self._ended])

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        """Begin to load the hit of `get_num_new_matched_tokens` into the blocks that the request was given.

        With 0 tokens nothing is loaded. If blocks are gone again, or the host has no room any more, the first part is
        loaded: `poll` reports it, and `stats` the reason. Complexity: O(blocks).

        Raises:
            InvalidArgumentError: the number of tokens is not the one offered last.
            UnknownRequestError: the request holds no blocks.
        """
        with self._changing():
            found = self._found.get(request.request_id)
            if num_external_tokens and (found is None or found.num_external != num_external_tokens):
                offered = 0 if found is None else found.num_external
                raise InvalidArgumentError(
                    f"num_external_tokens: {num_external_tokens} of {request.request_id!r}, which was offered {offered}"
                )
            tables = self._manager.get_block_ids(request.request_id) if num_external_tokens else ()
            self._found.pop(request.request_id, None)
            if num_external_tokens and found is not None:
                self._load(self._load_of(request, found), tables)

    def _load_of(self, request: Request, found: FoundHit) -> Load:
        """Return the load of a hit: it begins with a block, in which the device's own hit may end. law: LOAD-2."""
        rest = found.num_computed % math.lcm(*[manager.block_size for manager in self._manager.managers])
        return Load(request, found.num_external + rest, found.num_computed - rest, found.needed)

    def _load(self, load: Load, tables: tuple[list[int], ...]) -> None:
        """Begin a load of all that was found, or of its first part, if the rest is gone or has no room."""
        managers = self._manager.managers
        starts = [load.num_computed // manager.block_size for manager in managers]
        stops = [-(-(load.num_computed + load.num_tokens) // manager.block_size) for manager in managers]
        places = destinations(load.needed, tables, starts, stops, self._per_block)
        keys = [block.key for block in load.needed]
        self._chain.touch(keys)
        self._chain._keep(keys)  # lest making room for what was just evicted drives them out
        self._stores.store_evicted(keys)
        # Within one bound for all attempts: the engine waits here.
        end = time.monotonic() + LONGEST_WAIT
        while not self._try_to_load(load, keys, places):
            if load.reason == "no room":  # blocks that are still to go down have it, or what was just evicted
                self._chain.make_room(sum(self._chain.tiers[0].status_of(key) is None for key in keys))
                if self._desk.landed(end - time.monotonic()):
                    self._chain._keep(keys)
                    continue
            # The first part alone: what comes is kept, and the request computes the rest.
            count = self._chain.lookup(keys)
            if count == 0 or not self._try_to_load(load, keys[:count], places[: count * self._per_block]):
                self._ended.append(load)
            break
        self._chain._keep([])

    def _try_to_load(self, load: Load, keys: list[bytes], places: list[int | None]) -> bool:
        """Begin a load of these blocks; False, and note why, if that cannot be."""
        spare: list[int] = []
        try:
            spare = self._take_spare(places.count(None))
            left = iter(spare)
            job_id = self._chain.load(keys, [next(left) if place is None else place for place in places])
        except (NoFreeBlocksError, OffloadError) as error:
            load.reason = "no room" if isinstance(error, NoFreeBlocksError) else "gone"
            self._manager.block_pool.free_blocks(spare)
            return False
        load.job_id, load.spare = job_id, spare
        self._num_loads += 1
        self._loads[job_id] = load
        return True

    def _take_spare(self, count: int) -> list[int]:
        return [block.block_id for block in self._manager.block_pool.get_new_blocks(count)] if count else []

    def request_finished(self, request: Request) -> None:
        """Forget a request that has ended or was aborted; call it beside `KVCacheManager.free`.

        A load that has not begun is dropped; one under way runs to its end, and its blocks return then. O(its blocks).
        """
        name = request.request_id
        with self._changing():
            self._found.pop(name, None)
            self._recompute.discard(name)
            self._stores.end_request(request)
            for job_id, load in self._loads.items():
                if load.request.request_id == name and self._chain.cancel(job_id):
                    load.reason = "cancelled"

    # ------------------------------------------------------------------ the step

    def start_step(self) -> None:
        """Do what must be done after all slots are given and before the step runs: copies first, then loads begin.

        Returns when the copies of evicted blocks have ended, or, on a GPU, come before what its current stream does
        next. If these blocks find no room, it waits up to a second for tiers to make some. With steps in flight call it
        before each step is launched: none of them touches the evicted blocks.

        Raises:
            Whatever a handler raises when it is waited for: the step must not run then.
        """
        with self._changing():
            # From here on the step may write to blocks that still wait to be stored.
            self._stores.behind.clear()
            self._stores.store_evicted()
            failure = self._desk.run_first(self._stores.copies)
            self._desk.submit()
        if failure is not None:
            raise failure

    def pending_copies(self) -> list[Transfer]:
        """Return the copies of evicted blocks that have not begun, for an engine that runs them itself.

        It runs them before the step and reports each by `copy_finished`; `start_step`, which it still calls, then
        leaves them alone.
        """
        with self._changing():
            self._stores.store_evicted()
            return self._desk.take(self._stores.copies)

    def copy_finished(self, job_id: int, success: bool) -> None:
        """Say that a copy of `pending_copies` has ended.

        Raises:
            UnknownTransferError: no such transfer is under way.
        """
        with self._changing():
            self._chain.finish(job_id, success)

    def finish_step(self, requests: Iterable[Request]) -> None:
        """Report that a step of these requests is computed; with ``store_on="publish"`` its full blocks are stored.

        Call it once their counts include the step or, with steps in flight, after `settle_step`. Complexity:
        O(requests), and O(blocks) for those that filled one.

        Raises:
            InvalidArgumentError: blocks leave the process, and other processes would not hash a request in the same
                way.
        """
        self._require()
        requests = list(requests)
        for request in requests:
            self._check_hasher(request)
        with self._changing():
            if not self._manager.overlap_steps:
                self._manager.new_step_starts()  # what it left is computed, recurrent states too
            self._stores.store_late(self._desk.collect())  # what has landed makes room, for those first that wait
            self._stores.store_filled(requests)
            self._desk.submit()

    # ------------------------------------------------------------------ what has ended

    def poll(self) -> list[LoadResult]:
        """Collect ended transfers, and return the loads among them, for requests that still wait for them.

        A request goes on if its whole load came. If a part is missing, the manager has freed the request, which waits
        again; the tokens before the missing part are then its hit on the device.
        """
        with self._changing():
            self._look()
        told, self._told = self._told, []  # last, lest an interrupt on the way out loses them
        return told

    def _look(self) -> bool:
        """Collect ended transfers; return whether there were any."""
        has_landed = self._desk.collect()
        ended, self._ended = self._ended, []
        for done in self._chain.take_finished():
            if done.kind == "store":
                self._stores.end(done)
                continue
            load = self._loads.pop(done.job_id)
            if done.success:
                load.arrive(len(done.block_hashes))
                self._loaded_blocks += len(done.block_hashes)
            if not done.success or load.num_arrived < load.num_tokens:
                load.reason = load.reason or (
                    "not copied" if done.was_started and not done.success else "not brought up"
                )
            ended.append(load)
        self._told += [result for load in ended if (result := self._end_load(load)) is not None]
        self._stores.store_late(has_landed)
        self._desk.submit()
        self._end_host()
        return has_landed

    def _end_load(self, load: Load) -> LoadResult | None:
        if load.spare:
            self._manager.block_pool.free_blocks(load.spare)
        result = end_load(self._manager, load)
        if load.num_arrived < load.num_tokens:
            self._failures[load.reason] += 1
            self._loads_in_part += load.num_arrived > 0
            if result is not None:
                self._recompute.add(load.request.request_id)
        return result

    def drain(self, timeout: float = 60.0) -> list[LoadResult]:
        """Wait until nothing is under way, for a shutdown; return the loads that ended, as `poll`.

        Gives up after `timeout` seconds, since a handler may have lost a transfer; `is_idle` is False then. It returns
        one `poll` and `LONGEST_PAUSE` (10 ms) later at most, and in that poll waits for no transfer; a shared store may
        take its `lookup_timeout`.

        Raises:
            InvalidArgumentError: a time below 0, or no time.
        """
        if not timeout >= 0:
            raise InvalidArgumentError(f"timeout: must be seconds, at least 0, not {timeout!r}")
        end, pause = time.monotonic() + timeout, 0.0001
        while True:
            with self._changing():
                has_landed = self._look()
            left = end - time.monotonic()
            # The last poll reports what has ended meanwhile; after the time is up it waits for nothing.
            if self._is_quiet() or left <= 0:
                return self.poll()
            # Where something has landed, what waited for it may end at once.
            if has_landed:
                pause = 0.0001
            else:
                time.sleep(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE)

    def _is_quiet(self) -> bool:
        return self._desk.is_idle and not (self._loads or self._ended or self._stores.under_way)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, waits to begin, or is still to be reported by `poll`."""
        self._require()
        return self._is_quiet() and not self._told

    def forget(
        self,
        request: Request | EllipsisType | None = ...,
        *,
        cache_salt: str | EllipsisType | None = ...,
        lora_name: str | EllipsisType | None = ...,
    ) -> Forgotten:
        """Let no later lookup find what a request, a tenant or an adapter has cached, on the device and in every tier.

        Without arguments everything is forgotten, while requests run: for new weights.

        See `KVCacheManager.forget`, which this calls. Transfers under way go on: a block that is being stored goes when
        its store has landed, and a request that is being loaded keeps what it is given, and publishes nothing. Of a
        store that engines share, and of a disk's blocks from an earlier run, the owner may not be known: the answer
        reports these. A request's blocks are deleted there too. If everything is forgotten, a disk's blocks go as well,
        and in a store that engines share those that this engine knows of; new weights need a new `CacheIdentity` there.
        Complexity: O(blocks of device and tiers). law: FORGET-1 to FORGET-6.

        Raises:
            InvalidArgumentError: a request together with one of the others, or only None was given; or a request that
                is hashed otherwise than the blocks, as for `get_num_new_matched_tokens`.
        """
        if request is ... and cache_salt is ... and lora_name is ...:
            return self._forget_everything()
        request, cache_salt, lora_name = _given(request), _given(cache_salt), _given(lora_name)
        if (request is None) == (cache_salt is None and lora_name is None):
            raise InvalidArgumentError(
                "request: give a request, or else cache_salt, lora_name or both, or no argument at all to forget "
                "everything"
            )
        self._require()
        if request is not None:
            request.hash_by(self._manager.hash_block_size)
            if request.block_size is not None:
                self._check_keys(request)
        with self._changing():
            self._stores.store_evicted()  # else it would be stored later
            if request is not None:
                groups = groups_of(self._manager, request, self._per_block) if request.block_size is not None else []
                keys = [each.key(index) for each in groups for index in range(each.count(request.num_tokens))]
            else:
                wanted = {"cache_salt": cache_salt, "lora_name": lora_name}
                named = [(name, value) for name, value in wanted.items() if value is not None]
                keys = self._names.named(lambda each: all(getattr(each, name) == value for name, value in named))
            count = self._manager.forget(request, cache_salt=cache_salt, lora_name=lora_name)
            return self._forget(keys, count, 0, {} if request is not None else self._names.not_searched())

    def reset_prefix_cache(self, *, tiers: bool = True) -> Forgotten:
        """Forget all prefixes: on the device, unless blocks are held there, and in the tiers.

        A store that engines share is left as it is, and reported. Complexity: O(blocks of device and tiers).
        """
        with self._changing():
            pool = self._manager.block_pool
            self._stores.store_evicted()
            self._stores.hold_no_late()
            count, held = sum(pool.published()), pool.num_blocks - 1 - pool.get_num_free_blocks()
            was_reset = self._manager.reset_prefix_cache()
            keys, left = self._all_keys() if tiers else ([], {})
            return self._forget(keys, count if was_reset else 0, 0 if was_reset else held, left)

    def _forget_everything(self) -> Forgotten:
        with self._changing():
            self._stores.store_evicted()
            keys, left = self._all_keys()
            return self._forget(keys, self._manager.forget(), 0, left)

    def _all_keys(self) -> tuple[list[bytes], dict[str, int]]:
        """Return the blocks of the tiers, those on their way too, and the media with blocks that are not listed."""
        books = [tier for tier in self._chain.tiers if isinstance(tier, TierManager)]
        left = {medium: number for medium, number in self._names.not_searched().items() if number < 0}
        return list(dict.fromkeys(key for tier in books for key in tier.recency())), left

    def _forget(self, keys: list[bytes], device: int, held: int, not_searched: dict[str, int]) -> Forgotten:
        """Forget keys in the tiers, and let requests that are being loaded with some of them publish nothing more."""
        chain, gone = self._chain, set(keys)
        # Counted before they go.
        count = sum(tier.status_of(key) is not None for tier in chain.tiers for key in keys)
        for load in self._loads.values():
            if any(block.key in gone for block in load.needed):
                self._manager._publish_no_more(load.request.request_id)
        before = chain.num_not_erased
        chain.forget(keys)
        self._names.forget(keys)
        return Forgotten(device, count, held, chain.num_not_erased - before, not_searched)

    def take_events(self) -> list[OffloadingEvent]:
        """Return the blocks that became readable on the tiers, and those that left them, since the last call.

        Give them to `EventStream.record` after those of the manager: routers then know each block by its tokens, its
        parent, group, adapter, salt and items, as on the device. A block that came and went in between may be left out,
        so that they take a bounded amount of memory. law: EV-6.

        Raises:
            JournalGapError: a store that engines share has lost events. The next call returns the others.
        """
        with self._changing():
            self._names.collect()
        return self._names.take()

    def stats(self) -> ConnectorStats:
        stores = self._stores
        return ConnectorStats(
            self._lookups,
            self._lookups_hit,
            self._num_loads,
            self._failures.total(),
            self._loaded_blocks,
            stores.num_stored,
            stores.num_known,
            stores.num_refused,
            stores.num_failed,
            self._desk.num_refused,
            self._loads_in_part,
            dict(self._failures),
            stores.num_late,
        )

    def check(self) -> None:
        """Recompute the invariants of the manager, with the blocks that stores and loads hold, and of the chain.

        Raises:
            InvariantError: names the law and shows both sides.
        """
        self._require()
        held = self._stores.held_blocks()
        for load in [*self._loads.values(), *self._ended]:
            for block in load.spare:
                held[block] = held.get(block, 0) + 1
        self._manager.check(held)
        self._chain.check()

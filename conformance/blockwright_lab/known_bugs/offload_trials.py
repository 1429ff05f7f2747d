"""Trials of the connector and of names, in which known bugs of offloading show.

HASH-1    of what leaves the process: another model, data type, layout or rank has another identity, another prefix or
          group another key
CHAIN-6   of the connector: what a load has brought is what the request's tokens name, whatever became of the blocks
LIVE-1    of the connector: what is offered to a request could be loaded, were nothing else there
CHAIN-14  of the connector: of a running request nothing is refused or waits while the tiers have room
CHAIN-18  of the connector: all that the tiers hold is offered, and comes, while the host can pass it through
CALL-1    of the connector: results and events that an interrupted call did not return are returned by the next one
PUB-4     of the connector: it asks for no key that a request does not have yet
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from math import inf
from types import ModuleType
from typing import Any

from blockwright_conformance.kv_cache.blockwright import kv_cache_config
from blockwright_spec.manager.state import Config
from blockwright_spec.reads import Full, Group, Sliding

from ..numerics.engine.below import LateHandler
from .known_bug import Fault
from .watch import rearm

# --- names


def names(package: ModuleType) -> Iterator[Fault]:
    """Name caches, and blocks, that differ in one thing each: no two have one name (HASH-1)."""
    offload: Any = package.offload
    base = offload.identity.CacheIdentity("model", "layout", "dtype", 16, b"seed", {"rank": 0})
    others: list[dict[str, Any]] = [{name: "other"} for name in ("model", "layout", "dtype")]
    others += [{"block_size": 32}, {"hash_seed": b"other"}, {"extras": {}}, {"extras": {"rank": 1}}]
    others += [{"extras": {"rank": True}}, {"extras": {"ran": "k"}}, {"model": "modellayout", "layout": ""}]
    named = [base, *(replace(base, **other) for other in others)]
    for one, other in combinations(named, 2):
        if one.digest() == other.digest():
            yield Fault("HASH-1", f"one identity for {one} and {other}", 2)
            return
    blocks = [(bytes([digest]) * 16, group) for digest in range(2) for group in (0, 1, 256)]
    if len({offload.hits.offload_key(*block) for block in blocks}) < len(blocks):
        yield Fault("HASH-1", f"one key for two of {blocks}", 2)


# --- the connector

KINDS = (Full(), Sliding(4))
SIZE = 2
LENGTH = 7


class Copies(LateHandler):
    """A handler that moves contents, and at any time: what changes while it is being read arrives torn."""

    def __init__(self, contents: dict[str, list[object]], fails: bool, at_once: bool = False) -> None:
        super().__init__()
        self.contents, self.fails, self.at_once = contents, fails, at_once
        self.first: dict[int, list[object]] = {}

    def read(self, spec: Any) -> list[object]:
        return [self.contents[spec.medium()][block] for block in spec.block_ids]

    def polls_of(self, spec: Any) -> float:
        return -1 if self.at_once else inf  # they land when the engine waits for them

    def transfer_async(self, job_id: int, spec: Any) -> bool:
        self.first[job_id] = self.read(spec[0])
        return super().transfer_async(job_id, spec)

    def carry(self, job_id: int, source: Any, destination: Any) -> bool:
        is_bad = self.fails and destination.medium() == "GPU"
        for block, was, now in zip(destination.block_ids, self.first[job_id], self.read(source), strict=True):
            self.contents[destination.medium()][block] = was if was == now and not is_bad else "torn"
        return not is_bad


def shelf(offload: Any, num_blocks: int) -> Any:
    interfaces = offload.tiers.interfaces
    places = type("Places", (interfaces.BlockIDsLoadStoreSpec,), {"medium": staticmethod(lambda: "SHELF")})
    kind = type("Shelf", (offload.tiers.backend.SlotBackend,), {"spec_of": lambda _, keys, ids: places(ids)})
    return kind(SIZE, "SHELF", num_blocks)


def worker_of(offload: Any, handler: Any, *below: type) -> Any:
    worker = offload.OffloadingWorker()
    for kind in dict.fromkeys((offload.GPULoadStoreSpec, *below)):
        worker.register_handler(offload.CPULoadStoreSpec, kind, handler)
        worker.register_handler(kind, offload.CPULoadStoreSpec, handler)
    return worker


class Engine:
    """A scheduler with a connector and one host tier; a block holds what its group and the prefix up to it name."""

    def __init__(
        self,
        package: ModuleType,
        store_on: str,
        num_blocks: int,
        fails: bool = False,
        lookahead: int = 0,
        kinds: tuple[Any, ...] = KINDS,
        sizes: tuple[int, ...] = (16,),
        events: bool = False,
        **options: Any,
    ) -> None:
        self.core: Any = package
        self.store_on = store_on
        self.hasher = package.SipHasher(key_lookahead=lookahead)
        offload: Any = package.offload
        config = kv_cache_config(Config(tuple(Group(kind, SIZE) for kind in kinds), num_blocks, 16), package)
        self.manager = self.core.KVCacheManager(config, 16, track_evictions=store_on == "evict", keep_wanted=False)
        self.contents: dict[str, list[object]] = {"GPU": [None] * num_blocks}
        self.contents |= {medium: [None] * size for medium, size in zip(("CPU", "SHELF"), sizes, strict=False)}
        offload.OffloadingHandler.register(LateHandler)  # of a changed package it is another class
        self.handler: Any = Copies(self.contents, fails, len(sizes) > 1)
        backends = [offload.CPUBackend(SIZE, sizes[0]), *(shelf(offload, size) for size in sizes[1:])]
        chain = offload.OffloadChain([offload.LRUOffloadingManager(each, events) for each in backends], **options)
        worker = worker_of(offload, self.handler, *(type(each.spec_of([], [])) for each in backends[1:]))
        self.connector = offload.OffloadingConnector(self.manager, chain, worker, store_on=store_on)

    def admit(self, name: str, token: int) -> Any:
        request = self.core.Request(name, [token] * LENGTH, SIZE, hasher=self.hasher)
        if self.manager.allocate_slots(request, LENGTH) is None:
            self.settle()
            self.manager.allocate_slots(request, LENGTH)
        return request

    def compute(self, *requests: Any) -> None:
        self.connector.start_step()
        for each in requests:
            for block, content in self.named(each):
                self.contents["GPU"][block] = content
            each.num_computed_tokens = LENGTH

    def named(self, request: Any) -> list[tuple[int, tuple[int, tuple[int, ...]]]]:
        """Return the whole blocks of a request that are no null entries, with what each must hold."""
        tables = self.manager.get_block_ids(request.request_id)
        whole = [
            (group, at, block) for group, table in enumerate(tables) for at, block in enumerate(table[: LENGTH // SIZE])
        ]
        return [(block, (of, tuple(request.all_token_ids[: (at + 1) * SIZE]))) for of, at, block in whole if block]

    def end(self, request: Any) -> None:
        self.manager.free(request)
        self.connector.request_finished(request)

    def serve(self, name: str, token: int, settles: bool = False) -> None:
        """Serve a request whole; where blocks are stored as they are published, they are, and `settles`: at once."""
        request = self.admit(name, token)
        self.compute(request)
        if self.store_on == "publish":
            self.connector.finish_step([request])
        if settles:
            self.settle()
        self.end(request)

    def load(self, request: Any, hit: Any = None, length: int = 0) -> int:
        """Begin to load what the tiers offer after a hit; return how many tokens that is."""
        external, _ = self.connector.get_num_new_matched_tokens(request, length)
        if external:
            self.manager.allocate_slots(request, 0, length, hit, num_external_computed_tokens=external)
            self.connector.update_state_after_alloc(request, external)
            self.connector.start_step()
        return int(external)

    def settle(self) -> list[Any]:
        self.handler.wait(list(self.handler.waiting))
        results: list[Any] = self.connector.poll()
        return results

    def back(self, token: int) -> Iterator[str]:
        """Forget all on the device, admit a request on the stored blocks, and return the wrong ones. Blocks that the
        device then finds by itself are checked as well.
        """
        self.settle()
        self.manager.reset_prefix_cache()
        request = self.core.Request("back", [token] * LENGTH, SIZE, hasher=self.hasher)
        if self.load(request):
            results = [each.num_tokens for each in self.settle()]
            yield from self.wrong(request) if results != [0] else ()
        again = self.core.Request("again", [token] * LENGTH, SIZE, hasher=self.hasher)
        hit, length = self.manager.get_computed_blocks(again)
        if length and self.manager.allocate_slots(again, LENGTH - length, length, hit) is not None:
            yield from self.wrong(again, length)

    def wrong(self, request: Any, length: int = LENGTH) -> Iterator[str]:
        for block, content in self.named(request):
            if len(content[1]) <= length and self.contents["GPU"][block] != content:
                yield f"block {block} must hold {content} and holds {self.contents['GPU'][block]}"


def faults_of(engine: Engine, token: int, length: int) -> Iterator[Fault]:
    if wrong := "; ".join(engine.back(token)):
        yield Fault("CHAIN-6", wrong, length)


def taken_over(package: ModuleType, store_on: str, num_blocks: int) -> Iterator[Fault]:
    rearm()
    engine = Engine(package, store_on, num_blocks)
    for name, token in (("first", 1), ("other", 2)):
        engine.serve(name, token)
    yield from faults_of(engine, 1, 8)


def reused(package: ModuleType) -> Iterator[Fault]:
    """Store a request, and let another one take its blocks meanwhile (CHAIN-6)."""
    yield from taken_over(package, "publish", 12)


def evicted(package: ModuleType) -> Iterator[Fault]:
    """Store a request as its blocks are taken by another one, which a step writes to at once (CHAIN-6)."""
    yield from taken_over(package, "evict", 10)


def not_yet_computed(package: ModuleType) -> Iterator[Fault]:
    """Report that a step has ended while another request has its slots and has not been computed (CHAIN-6)."""
    rearm()
    engine = Engine(package, "publish", 24)
    first, later = engine.admit("first", 1), engine.admit("later", 2)
    engine.compute(first)
    engine.connector.finish_step([first, later])
    engine.settle()
    engine.compute(later)
    engine.end(first)
    engine.end(later)
    yield from faults_of(engine, 2, 8)


def looks_ahead(package: ModuleType) -> Iterator[Fault]:
    """Store a request, and find it again, whose last whole block has no key, since it looks two tokens ahead."""
    rearm()
    engine = Engine(package, "publish", 24, lookahead=2)
    try:
        engine.serve("first", 1)
        yield from faults_of(engine, 1, 8)
    except LookupError as error:
        yield Fault("PUB-4", f"the connector asks for a key that the request does not have: {error}", 8)


def offered(package: ModuleType) -> Iterator[Fault]:
    """Offer what the tiers hold, and load it while the device gives up other blocks for it (LIVE-1)."""
    rearm()
    for write, blocks, tokens in (("back", 2, "22232"), ("through", 3, "1121")):
        options: dict[str, Any] = {"write": write, "reserve": int(write == "back"), "on_load": "free"}
        engine = Engine(package, "evict", 5, kinds=KINDS[:1], sizes=(3, blocks), **options)
        for number, token in enumerate(map(int, tokens)):
            request = engine.core.Request(f"r{number}", [token] * LENGTH, SIZE)
            hit, length = engine.manager.get_computed_blocks(request)
            if external := engine.load(request, hit, length):
                results = [each for _ in range(3) for each in engine.settle()]
                if [each.num_tokens for each in results] != [external]:
                    yield Fault("LIVE-1", f"{external} tokens were offered, and {results} came", number)
                    return
                request.num_computed_tokens = length = results[0].num_computed_tokens
                hit = None
            engine.manager.allocate_slots(request, LENGTH - length, length if hit else 0, hit)
            engine.compute(request)
            engine.end(request)


def grown(package: ModuleType) -> Iterator[Fault]:
    """Serve a request that an earlier one has begun, forget the tiers, and let it grow (CHAIN-14)."""
    rearm()
    engine = Engine(package, "publish", 12, kinds=KINDS[:1], sizes=(2, 4), write="through")
    for lengths in ((2 * SIZE,), (4 * SIZE, 5 * SIZE)):
        request = engine.core.Request("grows", [1] * lengths[0], SIZE)
        for length in lengths:
            engine.connector.reset_prefix_cache() if length == 5 * SIZE else None
            request.append_output_token_ids([1] * (length - request.num_tokens))
            engine.manager.allocate_slots(request, length - request.num_computed_tokens)
            engine.connector.start_step()
            request.num_computed_tokens = length
            engine.connector.finish_step([request])
            stats = engine.connector.stats()
            if stats.refused_blocks or stats.waiting_blocks:
                yield Fault("CHAIN-14", f"with {length // SIZE} blocks, beside free or idle places: {stats}", length)
                return
            for _ in range(3):
                engine.settle()
        engine.end(request)


def filled(package: ModuleType) -> Iterator[Fault]:
    """Load prompts by way of a host that is full of blocks which are still to go down (CHAIN-18)."""
    rearm()
    for kinds, host in ((KINDS[:1], 4), (KINDS, 6)):
        engine = Engine(package, "publish", 24, kinds=kinds, sizes=(host, 40), write="back", reserve=0)
        for token in range(4):
            engine.serve(f"first {token}", token, settles=True)
            for _ in range(3):
                engine.settle()
        for token in range(4):
            engine.manager.reset_prefix_cache()
            request = engine.core.Request(f"again {token}", [token] * LENGTH, SIZE, hasher=engine.hasher)
            external = engine.load(request)
            results = [each.num_tokens for _ in range(4) for each in engine.settle()]
            if results != [LENGTH // SIZE * SIZE]:
                yield Fault("CHAIN-18", f"{external} tokens of {LENGTH} were offered, and {results} came", token)
                return
            engine.end(request)


def crowded(package: ModuleType) -> Iterator[Fault]:
    """Write prompts through a host that holds one of them, beside an empty tier below (CHAIN-14)."""
    rearm()
    engine = Engine(package, "publish", 10, kinds=KINDS[:1], sizes=(3, 40), write="through")
    engine.handler.at_once = False
    for token in range(4):
        while engine.manager.block_pool.get_num_free_blocks() < LENGTH // SIZE + 1:
            engine.settle()
        engine.serve(f"first {token}", token)
    for _ in range(12):
        engine.settle()
    engine.manager.reset_prefix_cache()
    asked = (engine.core.Request(f"a{token}", [token] * LENGTH, SIZE, hasher=engine.hasher) for token in range(4))
    found = [engine.connector.get_num_new_matched_tokens(each, 0)[0] for each in asked]
    if min(found) < LENGTH // SIZE * SIZE:
        yield Fault("CHAIN-14", f"of four prompts with room below {found} tokens are found", 4)


class InterruptError(BaseException):
    """An interrupt of a call."""


class OnTheWayOut:
    """Stands before the books of a connector, and interrupts its next call once that has changed them."""

    def __init__(self, connector: Any) -> None:
        self.connector, self.books = connector, connector._whole
        connector._whole = self

    def require(self) -> None:
        self.books.require()

    def __enter__(self) -> None:
        self.books.__enter__()

    def __exit__(self, *error: object) -> None:
        self.books.__exit__(*error)
        self.connector._whole = self.books
        raise InterruptError


def interrupted(package: ModuleType) -> Iterator[Fault]:
    """Interrupt the calls that return results and events, and call them again (CALL-1)."""
    rearm()
    engine = Engine(package, "publish", 24, kinds=KINDS[:1], events=True)
    engine.serve("first", 1, settles=True)
    engine.manager.reset_prefix_cache()
    request = engine.core.Request("again", [1] * LENGTH, SIZE, hasher=engine.hasher)
    engine.load(request)
    engine.handler.wait(list(engine.handler.waiting))
    for call in (engine.connector.poll, engine.connector.take_events):
        OnTheWayOut(engine.connector)
        with suppress(InterruptError):
            call()
        if not call():
            yield Fault("CALL-1", f"what {call.__name__} was to return is lost", LENGTH)
            return


def failed_load(package: ModuleType) -> Iterator[Fault]:
    """Let a load of two groups fail after it has written something (CHAIN-6)."""
    rearm()
    engine = Engine(package, "publish", 24, fails=True)
    engine.serve("first", 1, settles=True)
    yield from faults_of(engine, 1, 8)

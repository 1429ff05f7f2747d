"""The calls of tiers, by LRU, by ARC and of a backend that anyone might write, and of chains of them.

Not covered: tiers of an engine's own; stores, handlers and connectors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.interrupts.ended import AS_THEY_ARE, Call, Given, require_refused
from tests.offload.tiers.tier_support import BLOCK_SIZE, ShelfBackend, ShelfSpec

from blockwright.offload import (
    ARCOffloadingManager,
    Backend,
    BlockHint,
    CPUBackend,
    LoadStoreSpec,
    LRUOffloadingManager,
    OffloadChain,
)

T = TypeVar("T")


def places(spec: LoadStoreSpec | None) -> object:
    """Where blocks lie, to be compared."""
    return spec.names if isinstance(spec, ShelfSpec) else getattr(spec, "block_ids", None)


def list_of(given: Given, items: list[T]) -> list[T]:
    handed: list[T] = given.sequence(items)
    return handed


class Keys:
    """Keys of blocks, as they are handed over."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.extra: Any = None

    def keys(self, names: str) -> list[bytes]:
        return list_of(self.given, [self.given.key(name.encode() * 3) for name in names])


def tier_dump(tier: LRUOffloadingManager | ARCOffloadingManager) -> object:
    """Everything observable of a tier, places to be given next included; its own check passes."""
    tier.check()
    there, backend = tier.recency(), tier.backend
    free = (
        (list(backend._freed[: backend._num_freed]), list(backend._used))
        if isinstance(backend, CPUBackend)
        else (backend.free_names[:], backend.counts())
        if isinstance(backend, ShelfBackend)
        else None
    )
    learned = tier.policy_state() if isinstance(tier, ARCOffloadingManager) else None
    lie = [places(tier.places_of([key])) for key in there]
    said = [tier.hint_of(key) for key in there]
    return there, [tier.status_of(key) for key in there], lie, free, learned, said, list(tier._events)


class TierWorld(Keys):
    """A tier with blocks that are ready, read, written and doomed, and some that were evicted."""

    def __init__(self, given: Given = AS_THEY_ARE, *, policy: type, backend: Callable[[], Backend]) -> None:
        super().__init__(given)
        self.tier = tier = policy(backend(), True)
        for names in ("xyz", "abcdefg"):
            tier.prepare_store(self.keys(names))
            tier.complete_store(self.keys(names))
            tier.touch(self.keys(names[1:3]))
        tier.prepare_store(self.keys("w"))
        tier.prepare_load(self.keys("ccee"))
        tier.complete_load(self.keys("e"), False)

    def dump(self) -> object:
        return tier_dump(self.tier)

    def require_refusals(self) -> None:
        """See that a torn tier serves no call."""
        tier = self.tier
        require_refused(
            *(partial(act, self) for act in TIER_ACTS.values()),
            tier.check,
            tier.recency,
            lambda: tier.status_of(b"a"),
            lambda: tier.places_of([]),
            lambda: tier.idle_blocks(1),
        )


TIER_ACTS: dict[str, Callable[[TierWorld], object]] = {
    "look up": lambda w: w.tier.lookup(w.keys("abc")),
    "load": lambda w: w.tier.prepare_load(w.keys("bcd")),
    "loaded": lambda w: w.tier.complete_load(w.keys("cc")),
    "not loaded": lambda w: w.tier.complete_load(w.keys("cc"), False),
    "doomed": lambda w: w.tier.complete_load(w.keys("e")),
    "touch": lambda w: w.tier.touch(w.keys("afx")),
    "store one": lambda w: w.tier.prepare_store(w.keys("az")),
    "store": lambda w: w.tier.prepare_store(w.keys("wxyzh")),
    "store too many": lambda w: w.tier.prepare_store(w.keys("hijklmnop")),
    "store with hints": lambda w: w.tier.prepare_store_hinted(w.keys("azh"), [BlockHint("t", 2, 9)] * 3),
    "stored": lambda w: w.tier.complete_store(w.keys("w")),
    "not stored": lambda w: w.tier.complete_store(w.keys("w"), False),
    "remove": lambda w: w.tier.remove(w.keys("bd")),
    "events": lambda w: w.tier.take_events(),
}


class ChainWorld(Keys):
    """Two tiers, with stores, loads, promotions and demotions under way or waiting."""

    def __init__(self, given: Given = AS_THEY_ARE, *, write: str) -> None:
        super().__init__(given)
        tiers = [
            LRUOffloadingManager(CPUBackend(BLOCK_SIZE, 10), True),
            ARCOffloadingManager(CPUBackend(BLOCK_SIZE, 9)),
        ]
        tiers[1].prepare_store(self.keys("xyz"))
        tiers[1].complete_store(self.keys("xyz"))
        self.chain = chain = OffloadChain(tiers, write=write, reserve=4 if write == "back" else 0)
        chain.store(self.keys("abcd"), self.numbers(0, 1, 2, 3))
        for each in chain.take_transfers():
            chain.finish(each.job_id, True)
        chain.store(self.keys("ef"), self.numbers(4, 5))
        chain.load(self.keys("ax"), self.numbers(6, 7))
        self.under_way = {(each.kind, len(each.block_hashes)): each.job_id for each in chain.take_transfers()}
        begun = chain.store(self.keys("g"), self.numbers(8))
        self.waiting = -1 if begun is None or begun.job_id is None else begun.job_id

    def numbers(self, *ids: int) -> list[int]:
        return list_of(self.given, [self.given.number(each) for each in ids])

    def ends(self, kind: str, is_good: bool = True) -> object:
        """End the first transfer of a kind that is under way."""
        jobs = self.chain._jobs.under_way.values()
        return self.chain.finish(next((job.job_id for job in jobs if job.kind == kind and job.is_started), -1), is_good)

    def dump(self) -> object:
        chain = self.chain
        chain.check()
        jobs = [
            (each.job_id, each.kind, each.hashes, each.device_ids, places(each.source), places(each.destination))
            for each in chain._jobs.under_way.values()
        ]
        state = [(each.is_started, sorted(each.awaited)) for each in chain._jobs.under_way.values()]
        books = chain._jobs.waiting.keys(), chain._jobs.promoted, chain._jobs._begun
        return [tier_dump(tier) for tier in chain.tiers], jobs, state, books, chain.pins(), list(chain._finished)  # type: ignore[arg-type]

    def require_refusals(self) -> None:
        """See that a torn chain serves no call; of its tiers one may be torn, or none."""
        chain = self.chain
        require_refused(*(partial(act, self) for act in CHAIN_ACTS.values()), chain.check, chain.pins)


CHAIN_ACTS: dict[str, Callable[[ChainWorld], object]] = {
    "look up": lambda w: w.chain.lookup(w.keys("abxyq")),
    "touch": lambda w: w.chain.touch(w.keys("bx")),
    "store": lambda w: w.chain.store(w.keys("hia"), w.numbers(10, 11, 12)),
    "store with hints": lambda w: w.chain.store(w.keys("hi"), w.numbers(10, 11), [BlockHint("t", 2, 9), None]),
    "load": lambda w: w.chain.load(w.keys("ab"), w.numbers(20, 21)),
    "raise and load": lambda w: w.chain.load(w.keys("byx"), w.numbers(20, 21, 22)),
    "transfers": lambda w: w.chain.take_transfers(),
    "stored": lambda w: w.ends("store"),
    "not stored": lambda w: w.ends("store", False),
    "promoted": lambda w: w.ends("promote"),
    "not promoted": lambda w: w.ends("promote", False),
    "cancel": lambda w: w.chain.cancel(w.waiting),
    "finished": lambda w: w.chain.take_finished(),
    "events": lambda w: w.chain.take_events(),
}


def _loaded(world: ChainWorld) -> None:
    """Let everything land but a load and what goes down."""
    for kind in ("store", "promote"):
        world.ends(kind)
    world.chain.take_transfers()


CHAIN_LATER: dict[str, Callable[[ChainWorld], object]] = {
    "loaded": lambda w: w.ends("load"),
    "not loaded": lambda w: w.ends("load", False),
    "demoted": lambda w: w.ends("demote"),
    "not demoted": lambda w: w.ends("demote", False),
}

TIERS: dict[str, Callable[[Given], TierWorld]] = {
    "LRU": partial(TierWorld, policy=LRUOffloadingManager, backend=partial(CPUBackend, BLOCK_SIZE, 9)),
    "ARC": partial(TierWorld, policy=ARCOffloadingManager, backend=partial(CPUBackend, BLOCK_SIZE, 9)),
    "shelf": partial(TierWorld, policy=LRUOffloadingManager, backend=partial(ShelfBackend, "qrstuvwxy")),
}
CHAINS: dict[str, Callable[[Given], ChainWorld]] = {
    "back": partial(ChainWorld, write="back"),
    "through": partial(ChainWorld, write="through"),
}
CALLS: dict[str, Call] = {
    **{f"tier, {kind}: {name}": Call(make, act) for kind, make in TIERS.items() for name, act in TIER_ACTS.items()},
    **{f"tier, {kind}: copy": Call(TIERS[kind], lambda w: w.tier.copy()) for kind in ("LRU", "ARC")},
    **{f"chain, {kind}: {name}": Call(make, act) for kind, make in CHAINS.items() for name, act in CHAIN_ACTS.items()},
    **{
        f"chain, {kind}: {name}": Call(make, act, _loaded)
        for kind, make in CHAINS.items()
        for name, act in CHAIN_LATER.items()
    },
    "chain: copy": Call(CHAINS["back"], lambda w: w.chain.copy()),
}

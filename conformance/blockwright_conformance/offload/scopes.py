"""Scopes of offloading: one tier alone, and chains of two and three tiers with requests that share a prefix.

A tier's keys are interchangeable, so that two or three suffice. In a chain each request has its own blocks of the
device, one for each of its keys (times the span), and stores and loads slices of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from blockwright_spec.offload.chain_state import ChainConfig
from blockwright_spec.offload.tier_state import Key

KEYS: tuple[Key, ...] = (b"p", b"q", b"r", b"s")
"""The first is what requests share."""


@dataclass(frozen=True, slots=True)
class TierScope:
    """One tier, the keys that calls name, and how many calls may read a block at once."""

    name: str
    manager: str
    """Which manager: a key of `MANAGERS` of `offload_tiers`."""
    capacity: int
    named: tuple[tuple[Key, ...], ...]
    """What calls name, each of them in every call."""
    readers: int = 1
    recovered: tuple[Key, ...] = ()
    misuse: bool = True
    """Whether calls are made that are wrong."""

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(sorted({key for keys in self.named for key in keys}))


def lists(keys: int, longest: int) -> tuple[tuple[Key, ...], ...]:
    """Return every list of keys up to a length, repetitions among them, the empty one too."""
    return tuple(named for length in range(longest + 1) for named in product(KEYS[:keys], repeat=length))


THREE = (*lists(3, 1), KEYS[:2], KEYS[1:3], (KEYS[2], KEYS[0]), KEYS[:3], (KEYS[1], KEYS[1]))
"""Lists of three keys that are named in some order, and one that repeats a key."""

TIER_PR: tuple[TierScope, ...] = (
    TierScope("LRU, 2 blocks: all lists of 2 keys", "LRU", 2, lists(2, 2), readers=2),
    TierScope("LRU, 2 blocks: 3 keys", "LRU", 2, THREE, readers=2),
    TierScope("LRU, 3 blocks: 3 keys", "LRU", 3, (*lists(3, 1), KEYS[:3]), readers=1),
    TierScope("LRU, no blocks", "LRU", 0, lists(2, 2)),
    TierScope("LRU, events off: 2 keys", "LRU silent", 1, lists(2, 2)),
    TierScope("LRU, foreign backend: 2 keys", "LRU foreign", 2, lists(2, 1), readers=2),
    TierScope("LRU, foreign backend: 3 keys", "LRU foreign", 1, (*lists(3, 1), KEYS[:2]), recovered=KEYS[2:3]),
    TierScope("ARC, 2 blocks: 3 keys", "ARC", 2, lists(3, 1), misuse=False),
    TierScope("ARC, 1 block: 3 keys", "ARC", 1, lists(3, 2)),
    TierScope("ARC, no blocks", "ARC", 0, lists(2, 1)),
    TierScope("ARC, foreign backend: 2 keys", "ARC foreign", 1, (*lists(2, 1), KEYS[:2])),
)

TIER_LARGE: tuple[TierScope, ...] = (
    TierScope("LRU, 3 blocks: 4 keys", "LRU", 3, (*lists(4, 1), KEYS[:2], KEYS[2:], KEYS[:3]), readers=1),
    TierScope("LRU, 2 blocks: all lists of 3 keys", "LRU", 2, lists(3, 3), readers=2),
    TierScope("ARC, 2 blocks: 3 keys, many lists", "ARC", 2, THREE),
    TierScope("ARC, 3 blocks: 4 keys", "ARC", 3, (*lists(4, 1), KEYS[:2])),
)

TIER_PROFILES: dict[str, tuple[TierScope, ...]] = {
    "quick": tuple(each for each in TIER_PR if "no blocks" in each.name or "events off" in each.name),
    "pr": TIER_PR,
    "nightly": (*TIER_PR, *TIER_LARGE),
}
"""The scopes of one tier, of each profile."""

Slice = tuple[tuple[Key, tuple[int, ...]], ...]
"""Some keys of a request in order, each with its blocks of the device."""


@dataclass(frozen=True, slots=True)
class ChainScope:
    """A chain, and what its engine does: which keys it stores and loads, between which blocks of the device."""

    name: str
    config: ChainConfig
    stores: tuple[Slice, ...]
    loads: tuple[Slice, ...]
    under_way: int = 3
    """Transfers that there may be at once, but for those that the chain begins by itself."""
    eager: bool = True
    """Whether transfers are handed out as soon as they may start; else by an action, and some are cancelled."""
    touched: tuple[tuple[Key, ...], ...] = ()
    misuse: bool = False

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(sorted({key for each in (*self.stores, *self.loads) for key, _ in each}))


def request(span: int, *keys: tuple[Key, int]) -> Slice:
    """Return a request: its keys, each with the number of its group of `span` blocks of the device."""
    return tuple((key, tuple(range(at * span, (at + 1) * span))) for key, at in keys)


P, Q, R, _S = KEYS
FIRST = request(1, (P, 0), (Q, 1))
SECOND = request(1, (P, 0), (R, 1))
APART = request(1, (P, 2), (R, 1))


def chain_scope(name: str, capacities: tuple[int, ...], num_device: int = 2, **rest: Any) -> ChainScope:
    """Return a scope in which two requests with a common first key share the blocks of the device."""
    own = {key: rest.pop(key) for key in ("span", "reserve", "through", "frees", "most") if key in rest}
    config = ChainConfig(capacities, num_device, **own)
    options: dict[str, Any] = {"stores": (FIRST[:1], FIRST[1:], SECOND[1:]), "loads": (FIRST, SECOND), **rest}
    return ChainScope(name, config, **options)


def chains() -> Iterator[ChainScope]:
    """Yield the chains that are visited whole in every run."""
    wide = request(2, (P, 0), (Q, 1))
    whole: dict[str, Any] = {"stores": (FIRST, SECOND), "loads": (FIRST, SECOND)}
    yield chain_scope("write back, reserve 1: 2 + 1 blocks", (2, 1), reserve=(1,))
    yield chain_scope("write back, reserve 1: 2 + 2 blocks", (2, 2), reserve=(1,), under_way=2)
    yield chain_scope(
        "write back, reserve 1: 3 + 2 blocks, whole requests", (3, 2), 3, reserve=(1,), **whole, under_way=2
    )
    yield chain_scope("write back, reserve 0: 2 + 1 blocks", (2, 1), reserve=(0,), misuse=True, most=2)
    yield chain_scope("write through: 1 + 2 blocks", (1, 2), through=True, loads=(FIRST[:1], SECOND[1:]))
    yield chain_scope("write through, reserve 1: 2 + 1 blocks", (2, 1), reserve=(1,), through=True, under_way=2)
    yield chain_scope("write back, reserve 1, three tiers: 2 + 1 + 1 blocks", (2, 1, 1), reserve=(1, 1), under_way=2)
    yield chain_scope(
        "write through, three tiers: 1 + 1 + 1 blocks", (1, 1, 1), through=True, loads=(FIRST[:1],), under_way=2
    )
    yield chain_scope("loads free: 2 + 2 blocks", (2, 2), reserve=(1,), frees=True, under_way=1)
    yield chain_scope("loads free: 1 + 2 blocks", (1, 2), through=True, frees=True, loads=(FIRST[:1], SECOND[1:]))
    yield chain_scope("write through, loads free: 2 + 1 blocks", (2, 1), through=True, frees=True, under_way=2)
    late: dict[str, Any] = {"eager": False, "under_way": 2, "touched": ((Q, P),)}
    yield chain_scope("handed out late: 2 + 1 blocks", (2, 1), reserve=(1,), misuse=True, **late)
    yield chain_scope("handed out late, write through: 1 + 2 blocks", (1, 2), through=True, loads=(FIRST[:1],), **late)
    yield chain_scope("two readers: 2 + 1 blocks", (2, 1), 3, through=True, loads=(FIRST, APART), under_way=2)
    yield chain_scope(
        "two readers, write back: 2 + 1 blocks", (2, 1), 3, reserve=(1,), loads=(FIRST, APART), under_way=2
    )
    parts = (wide[:1], wide[1:])
    yield chain_scope("span 2: 1 + 2 blocks", (1, 2), 4, span=2, through=True, stores=parts, loads=parts)
    yield chain_scope("nothing below: 1 + 0 blocks", (1, 0), reserve=(1,), under_way=2, misuse=True)
    yield chain_scope("nothing above: 0 + 1 blocks", (0, 1), through=True, under_way=1, misuse=True)


def larger_chains() -> Iterator[ChainScope]:
    """Yield the chains that only long runs visit."""
    yield chain_scope(
        "write back, reserve 2: 2 + 3 blocks", (2, 3), reserve=(2,), under_way=2, loads=(FIRST, SECOND[1:])
    )
    yield chain_scope("write through: 2 + 1 blocks", (2, 1), through=True)
    yield chain_scope("write through: 2 + 2 blocks", (2, 2), through=True, under_way=2)
    whole: dict[str, Any] = {"stores": (FIRST, SECOND), "loads": (FIRST, SECOND)}
    yield chain_scope("write back, reserve 1: 3 + 3 blocks, whole requests", (3, 3), 3, reserve=(1,), **whole)
    yield chain_scope("two readers, write through: 2 + 2 blocks", (2, 2), 3, through=True, loads=(FIRST, APART))
    yield chain_scope("handed out late: 2 + 2 blocks", (2, 2), reserve=(1,), eager=False, under_way=2)


CHAIN_PR: tuple[ChainScope, ...] = tuple(chains())

CHAIN_PROFILES: dict[str, tuple[ChainScope, ...]] = {
    "quick": tuple(each for each in CHAIN_PR if "nothing" in each.name or "reserve 0" in each.name),
    "pr": CHAIN_PR,
    "nightly": (*CHAIN_PR, *larger_chains()),
}
"""The scopes of chains, of each profile."""

"""Scopes of offloading: one tier alone, and chains of two and three tiers with requests that share a prefix.

``scopes.toml`` lists them. In a chain each request has its own blocks of the device, one for each of its keys (times
the span), and stores and loads slices of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from blockwright_spec.hints import Said
from blockwright_spec.offload.chain_state import ChainConfig
from blockwright_spec.offload.tier_state import Key

from ..kv_cache.scopes import options, profiles, rows_of

KEYS: tuple[Key, ...] = (b"p", b"q", b"r", b"s")
"""The first is what requests share."""


@dataclass(frozen=True, slots=True)
class TierScope:
    name: str
    manager: str
    """Which manager: see `tier_adapter.made`."""
    capacity: int
    named: tuple[tuple[Key, ...], ...]
    """What calls name, each of them in every call."""
    readers: int = 1
    recovered: tuple[Key, ...] = ()
    misuse: bool = True
    said: tuple[Any, ...] = ()
    sizes: tuple[int, ...] = ()
    """How many places it is given while it serves."""

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(sorted({key for keys in self.named for key in keys}))


def lists(keys: int, longest: int) -> tuple[tuple[Key, ...], ...]:
    return tuple(named for length in range(longest + 1) for named in product(KEYS[:keys], repeat=length))


def keys_of(letters: str) -> tuple[Key, ...]:
    return tuple(letter.encode() for letter in letters)


def said_in(rows: tuple[Any, ...]) -> dict[Key, Said]:
    """Return the hints for keys; a row has for each: tenant, priority, until."""
    return {key.encode(): Said(*each) for key, *each in rows}


def tier_of_row(name: str, manager: str, capacity: int, every: list[int], more: list[str], *rest: Any) -> TierScope:
    own = options(rest)
    own |= {"recovered": keys_of(own["recovered"])} if "recovered" in own else {}
    return TierScope(name, manager, capacity, (*lists(*every), *map(keys_of, more)), **own)


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
    forgets: tuple[tuple[Key, ...], ...] = ()
    media: tuple[str, ...] = ()
    """The medium of each tier, where routers are told of them."""
    rooms: tuple[int, ...] = ()
    """How many places of tier 0 are asked for, by calls that make room."""
    sizes: tuple[int, ...] = ()
    """How many places tier 0 is given while it serves."""
    misuse: bool = False
    said: tuple[Any, ...] = ()

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple(sorted({key for each in (*self.stores, *self.loads) for key, _ in each}))


def request(span: int, *keys: tuple[Key, int]) -> Slice:
    return tuple((key, tuple(range(at * span, (at + 1) * span))) for key, at in keys)


def slices(texts: Iterable[str], span: int = 1) -> tuple[Slice, ...]:
    """Return slices: "p0 q1" is of the key p in the first group of blocks, and of q in the second."""
    named = ([(each[:1].encode(), int(each[1:])) for each in text.split()] for text in texts)
    return tuple(request(span, *each) for each in named)


FIRST, SECOND = slices(("p0 q1", "p0 r1"))


CHAIN_OPTIONS = tuple(each.name for each in fields(ChainConfig))[2:]
"""What a row says of the chain itself, behind the blocks of its tiers and of the device."""


def chain_of_row(name: str, capacities: list[int], *rest: Any) -> ChainScope:
    """Return a scope in which, unless its row says otherwise, two requests with a common first key share the device."""
    num_device = next((each for each in rest if isinstance(each, int)), 2)
    own = {"stores": (FIRST[:1], FIRST[1:], SECOND[1:]), "loads": (FIRST, SECOND)}
    given = options(each for each in rest if isinstance(each, dict))
    given |= {each: slices(given[each], given.get("span", 1)) for each in ("stores", "loads") if each in given}
    given |= {each: tuple(map(keys_of, given[each])) for each in ("touched", "forgets") if each in given}
    of_chain = {key: given.pop(key) for key in CHAIN_OPTIONS if key in given}
    return ChainScope(name, ChainConfig(tuple(capacities), num_device, **of_chain), **own | given)


ROWS = rows_of(__file__)
TIER_PR, TIER_LARGE = (tuple([tier_of_row(*row) for row in ROWS["tiers"][name]]) for name in ("pr", "nightly"))
CHAIN_PR, CHAIN_LARGE = (tuple([chain_of_row(*row) for row in ROWS["chains"][name]]) for name in ("pr", "nightly"))
TIER_PROFILES = profiles(TIER_PR, TIER_LARGE, "no blocks", "events off")
CHAIN_PROFILES = profiles(CHAIN_PR, CHAIN_LARGE, "nothing", "reserve 0")

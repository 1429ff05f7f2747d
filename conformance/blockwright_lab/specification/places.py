"""Where mutants of the specification are looked for: small worlds of each part, alone and beside the implementation."""

import marshal
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.block_tables.world import TablesWorld as Tables
from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain import ChainWorld, plain
from blockwright_conformance.offload.scopes import ChainScope, TierScope
from blockwright_conformance.offload.tier import TierNow, TierWorld
from blockwright_spec.offload import chain_state, tier_state
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS

from .. import scopes
from ..data_movement.offload_scopes import OFFLOAD_HISTORIES
from ..data_movement.tables_scopes import World as TablesWorld
from ..known_bugs import places
from ..known_bugs.watch import OutOfTimeError, watch
from .beside import Silent, Walk, imported, in_chain_walk, in_histories, in_lockstep, in_walk, nowhere
from .plans import RIGHT_PLANS, Shelf, ShelfWorld
from .refusals import refuses
from .refusals_parts import chain_refuses, desk_refuses, tables_refuse, tier_refuses
from .search import Enough, Judge, Judging, Noticed
from .workers import Workers

AnyScope = Scope | PagedScope | TierScope | ChainScope | Walk | Shelf


@dataclass(frozen=True, slots=True)
class SpecPlace:
    """A small scope of one part of the specification; `makes` gives its world."""

    gate: str
    """The gate that looks at such scopes beside the implementation."""
    scope: AnyScope
    makes: Callable[[Any], World[Any, Any]]
    beside: Callable[[Any, int], str]
    """Says in what a scope's specification differs from the implementation, looking so far; empty if in nothing."""
    refused: Callable[[Any], bool] | None = None
    """Tells whether a state refuses wrong calls, where nothing else is judged."""

    @property
    def name(self) -> str:
        return f"{self.gate}: {self.scope.name}"

    def alone(self, enough: Enough, limit: int) -> Noticed:
        """Return what its laws notice of the specification alone."""
        with watch():
            return Judging(self.makes(self.scope), enough, limit, self.refused).run()

    def differs(self, limit: int) -> str:
        """Return in what the specification differs from the implementation, or that it fails."""
        imported(self.beside)
        try:
            with watch():
                return self.beside(self.scope, limit)
        except (Exception, OutOfTimeError) as error:
            return f"{type(error).__name__}: {error}"


def tier_name(now: tier_state.Tier) -> bytes:
    """Name a state of a tier by all of it: contents and announcements do not follow from the rest if it is wrong."""
    entries = [(each.key, each.place, each.phase.name, each.readers, repr(each.said)) for each in now.entries]
    return marshal.dumps((entries, now.freed, now.contents, sorted(now.announced), now.now), 2)


class OneTier(TierWorld):
    """One tier, of which states are told apart by all that is in them."""

    laws: Any = tuple(Judge(law.id, lambda now, law=law: law.holds(now.tier)) for law in TIER_LAWS)
    step_laws: ClassVar[Any] = tuple(
        Judge(law.id, lambda now, done, law=law: law.holds(now.tier, done)) for law in TIER_STEP_LAWS
    )

    def digest(self, state: TierNow) -> bytes:
        return tier_name(state.tier)


class Chains(ChainWorld):
    """A chain; the laws of one tier hold in each of its tiers."""

    laws: Any = (
        *ChainWorld.laws,
        *(Judge(law.id, lambda now, law=law: all(map(law.holds, now.tiers))) for law in TIER_LAWS),
    )

    def digest(self, state: chain_state.Chain) -> bytes:
        named = (marshal.dumps(plain(state, each), 2) for each in ({}, *self.alike))
        return blake2b(min(named) + b"".join(map(tier_name, state.tiers)) * (not self.alike)).digest()


ROWS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("scopes.toml").read_text(encoding="utf-8"))


def known(*kinds: type) -> dict[str, Any]:
    """Return the scopes of some kinds in which known bugs show, by the names of their places."""
    return {name: each.scope for name, each in places.PLACES.items() if isinstance(each.scope, kinds)}


KNOWN_BUGS = {name: each for name, each in known(Scope).items() if name != "FORKED" and "told" not in each.name}
"""The small scopes in which known bugs of the manager show."""
_NAMED = {each.name: each for each in KNOWN_BUGS.values()}

MANAGERS: tuple[Scope, ...] = (
    *_NAMED.values(),
    *(scopes.managers(*row) for row in ROWS["managers"]),
    *(
        replace(each, name=f"{each.name}, {constant.lower()}")  # another scope of known bugs has the same name
        for constant, each in KNOWN_BUGS.items()
        if _NAMED[each.name] is not each
    ),
)
"""Small scopes of part one: those of known bugs, and more."""

TABLES: tuple[PagedScope, ...] = (
    *known(PagedScope).values(),
    *(scopes.tables(*row) for row in ROWS["tables"]),
)
"""Small scopes of part two."""

WALKED: dict[str, TablesWorld] = {
    "naive": TablesWorld(2, 10, 6, False, slots=5, max_tokens=12, watermark=0.1),
    "caching": TablesWorld(2, 10, 6, True, slots=5, max_tokens=12, watermark=0.1),
    "naive under a window": TablesWorld(2, 9, 6, False, 3, slots=4, max_tokens=16, watermark=0.2),
    "caching under a window": TablesWorld(1, 8, 5, True, 2, slots=4, max_tokens=9, watermark=0.2),
    "spec, nothing is dead": TablesWorld(1, 5, 4, False, 20, watermark=0.4, slots=3, max_tokens=9),
}
"""Worlds in which random walks are taken, the last one so small that some prompts never fit."""

OFFLOAD: tuple[TierScope | ChainScope, ...] = (
    *known(TierScope, ChainScope).values(),
    *(scopes.tiers(*row) for row in ROWS["tiers"]),
    *(scopes.chains(*row) for row in ROWS["chains"]),
)
"""Small scopes of part three."""

WORKERS = tuple(scopes.managers(*row) for row in ROWS["workers"])
"""Small scopes of part four."""
ASKED = tuple(scopes.managers(*row) for row in ROWS["asked"])
"""Small scopes in which what no manager can be asked is asked of the specification."""


LATE = ("spec, late", "spec, back", "spec, span 2", "spec, three tiers", "spec, whole")
"""Chains on which wrong calls are made."""


def named(*names: str) -> Iterator[AnyScope]:
    """Return scopes of tables and of offloading by a part of their names."""
    return (each for each in (*TABLES, *OFFLOAD) if any(name in each.name for name in names))


def asked(scopes: Iterable[AnyScope], makes: Any, refused: Callable[[Any], bool]) -> Iterator[SpecPlace]:
    """Return places in which wrong calls must be refused, and nothing else is judged."""
    return (SpecPlace("spec", each, makes, nowhere, refused) for each in scopes)


PLACES: tuple[SpecPlace, ...] = (
    *(SpecPlace("lockstep", each, KVCacheWorld, in_lockstep) for each in MANAGERS),
    *(SpecPlace("paged", each, Tables, in_lockstep) for each in TABLES),
    *(SpecPlace("offload", each, OneTier if isinstance(each, TierScope) else Chains, in_lockstep) for each in OFFLOAD),
    *(SpecPlace("inputs", each, Workers, in_histories) for each in WORKERS),
    *asked(ASKED, KVCacheWorld, refuses),
    *asked(WORKERS[:3], Workers, desk_refuses),
    *asked(named("spec, swap"), Tables, tables_refuse),
    SpecPlace("plans", Shelf("right ones", RIGHT_PLANS), ShelfWorld, nowhere),
    *(SpecPlace("paged", Walk(name, each), Silent, in_walk) for name, each in WALKED.items()),
    *(SpecPlace("offload", each, Silent, in_chain_walk) for each in OFFLOAD_HISTORIES.values()),
    *asked(named("spec, LRU"), OneTier, lambda now: tier_refuses(now.tier)),
    *asked(named(*LATE), Chains, chain_refuses),
)
BY_NAME = {place.name: place for place in PLACES}

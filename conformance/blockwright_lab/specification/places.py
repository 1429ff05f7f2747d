"""Where mutants of the specification are looked for: small worlds of each part, alone and beside the implementation."""

import marshal
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.block_tables.world import TablesWorld as Tables
from blockwright_conformance.checker.world import World as PartWorld
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import LOOKUP_LAWS, KVCacheWorld, lookup_view
from blockwright_conformance.offload.chain import ChainWorld, plain
from blockwright_conformance.offload.scopes import ChainScope, TierScope
from blockwright_conformance.offload.tier import TierNow, TierWorld
from blockwright_spec.offload import chain_state, tier_state
from blockwright_spec.offload.tier_laws import TIER_LAWS

from .. import scopes
from ..data_movement.offload_scopes import OFFLOAD_HISTORIES
from ..data_movement.tables_scopes import World as TablesWorld
from ..known_bugs import places
from ..known_bugs.watch import OutOfTimeError, watch
from .beside import Walk, imported, in_chain_walk, in_histories, in_lockstep, in_walk, nowhere, silent
from .plans import RIGHT_PLANS, Shelf, shelf
from .refusals import REFUSED, refuses
from .refusals_parts import chain_refuses, desk_refuses, tables_refuse, tier_refuses
from .search import Came, Enough, Judge, Noticed, World, judged
from .workers import workers

AnyScope = Scope | PagedScope | TierScope | ChainScope | Walk | Shelf


@dataclass(frozen=True, slots=True)
class SpecPlace:
    """A small scope of one part of the specification; `makes` gives its world."""

    gate: str
    """The gate that looks at such scopes beside the implementation."""
    scope: AnyScope
    makes: Callable[[Any], World]
    beside: Callable[[Any, int], str]
    """Says in what a scope's specification differs from the implementation, looking so far; empty if in nothing."""

    @property
    def name(self) -> str:
        return f"{self.gate}: {self.scope.name}"

    def alone(self, enough: Enough, limit: int) -> Noticed:
        """Return what its laws notice of the specification alone."""
        with watch():
            return judged(self.makes(self.scope), enough, limit)

    def differs(self, limit: int) -> str:
        """Say in what the specification differs from the implementation, or that it fails."""
        imported(self.beside)
        try:
            with watch():
                return self.beside(self.scope, limit)
        except (Exception, OutOfTimeError) as error:
            return f"{type(error).__name__}: {error}"


def judges(*laws: tuple[Any, ...]) -> tuple[Judge, ...]:
    return tuple(Judge(law.id, law.holds) for each in laws for law in each)


def managers(scope: Scope) -> World:
    return replace(part(KVCacheWorld(scope)), view=lookup_view, viewed=LOOKUP_LAWS)


def part(world: PartWorld[Any, Any]) -> World:
    """Return the world of a part: what a world of the checker says of the specification."""

    def told(now: Any, action: Any) -> Came:
        outcome = world.meaning(now, action)
        return Came(outcome.steps, outcome.state)

    return World(
        world.scope.name,
        world.initial,
        world.enabled,
        told,
        lambda: world.digest,
        judges(world.laws),
        judges(world.step_laws),
    )


def tables(scope: PagedScope) -> World:
    return part(Tables(scope))


def tier_name(now: tier_state.Tier) -> bytes:
    """Name a state of a tier by all of it: contents and announcements do not follow from the rest if it is wrong."""
    entries = [(each.key, each.place, each.phase.name, each.readers) for each in now.entries]
    return marshal.dumps((entries, now.freed, now.contents, sorted(now.announced)), 2)


def one_tier(scope: TierScope) -> World:

    def of_state(law: Judge) -> Judge:
        return Judge(law.id, lambda now: law.holds(now.tier))

    def of_step(law: Judge) -> Judge:
        return Judge(law.id, lambda now, done: law.holds(now.tier, done))

    world = part(TierWorld(scope))
    return replace(
        world,
        start=lambda: TierNow(tier_state.tier(scope.capacity, scope.recovered)),
        digest=lambda: lambda now: tier_name(now.tier),
        state_laws=tuple(map(of_state, world.state_laws)),
        step_laws=tuple(map(of_step, world.step_laws)),
    )


def chains(scope: ChainScope) -> World:
    """Return the world of a chain; the laws of one tier hold in each of its tiers."""
    world = ChainWorld(scope)

    def name(now: chain_state.Chain) -> bytes:
        named = (marshal.dumps(plain(now, each), 2) for each in ({}, *world.alike))
        return blake2b(min(named) + b"".join(map(tier_name, now.tiers)) * (not world.alike)).digest()

    def in_each(law: Judge) -> Judge:
        return Judge(law.id, lambda now: all(law.holds(each) for each in now.tiers))

    found = part(world)
    laws = found.state_laws + tuple(map(in_each, judges(TIER_LAWS)))
    return replace(found, digest=lambda: name, state_laws=laws)


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


def asked(
    scopes: Iterable[AnyScope], makes: Callable[[Any], World], refused: Callable[[Any], bool]
) -> Iterator[SpecPlace]:
    """Return places in which wrong calls must be refused, and nothing else is judged."""

    def refusing(scope: AnyScope) -> World:
        return replace(makes(scope), state_laws=(Judge(REFUSED, refused),), step_laws=())

    return (SpecPlace("spec", each, refusing, nowhere) for each in scopes)


PLACES: tuple[SpecPlace, ...] = (
    *(SpecPlace("lockstep", each, managers, in_lockstep) for each in MANAGERS),
    *(SpecPlace("paged", each, tables, in_lockstep) for each in TABLES),
    *(SpecPlace("offload", each, one_tier if isinstance(each, TierScope) else chains, in_lockstep) for each in OFFLOAD),
    *(SpecPlace("inputs", each, workers, in_histories) for each in WORKERS),
    *asked(ASKED, managers, refuses),
    *asked(WORKERS[:3], workers, desk_refuses),
    *asked(named("spec, swap"), tables, tables_refuse),
    SpecPlace("plans", Shelf("right ones", RIGHT_PLANS), shelf, nowhere),
    *(SpecPlace("paged", Walk(name, each), silent, in_walk) for name, each in WALKED.items()),
    *(SpecPlace("offload", each, silent, in_chain_walk) for each in OFFLOAD_HISTORIES.values()),
    *asked(named("spec, LRU"), one_tier, lambda now: tier_refuses(now.tier)),
    *asked(named(*LATE), chains, chain_refuses),
)
BY_NAME = {place.name: place for place in PLACES}

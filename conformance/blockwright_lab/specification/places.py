"""Where mutants of the specification are looked for: small worlds of each part, alone and beside the implementation."""

import marshal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain as joined
from types import ModuleType
from typing import Any

from blockwright_conformance.block_tables.scopes import PagedScope, paged_scope
from blockwright_conformance.block_tables.world import TablesWorld as Tables
from blockwright_conformance.checker.world import World as PartWorld
from blockwright_conformance.kv_cache.actions import enabled, meaning
from blockwright_conformance.kv_cache.scopes import Scope, of_groups, scope, strings
from blockwright_conformance.kv_cache.symmetry import Names
from blockwright_conformance.kv_cache.world import LOOKUP_LAWS, lookup_view
from blockwright_conformance.offload.chain import ChainWorld, plain
from blockwright_conformance.offload.scopes import (
    FIRST,
    KEYS,
    SECOND,
    ChainScope,
    TierScope,
    chain_scope,
    lists,
    request,
)
from blockwright_conformance.offload.tier import TierNow, TierWorld
from blockwright_spec.manager import state
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.offload import chain_state, tier_state
from blockwright_spec.offload.tier_laws import TIER_LAWS
from blockwright_spec.reads import Chunked, Cross, Full, Kind, Mamba, Sliding

from ..data_movement.offload_scopes import OFFLOAD_HISTORIES
from ..data_movement.tables_scopes import World as TablesWorld
from ..known_bugs import offload_places, paged_places, places
from ..known_bugs.known_bug import Place
from ..known_bugs.watch import OutOfTimeError, watch
from .beside import Models, Walk, imported, in_chain_walk, in_histories, in_lockstep, in_plans, in_walk, nowhere, silent
from .plans import RIGHT_PLANS, Shelf, shelf
from .refusals import REFUSED, refuses
from .refusals_parts import chain_refuses, desk_refuses, tables_refuse, tier_refuses
from .search import Came, Enough, Judge, Noticed, World, judged
from .workers import WORKERS, workers

AnyScope = Scope | PagedScope | TierScope | ChainScope | Walk | Models | Shelf


@dataclass(frozen=True, slots=True)
class SpecPlace:
    """A small scope of one part of the specification; `makes` gives its world."""

    gate: str
    """The gate that looks at such scopes beside the implementation; `plans` are looked at by gate `movement`."""
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

    def told(now: state.State, action: Any) -> Came:
        said = meaning(now, action)
        return Came(said.steps, said.state)

    return World(
        scope.name,
        lambda: state.initial(scope.config, scope.slots),
        partial(enabled, scope),
        told,
        lambda: Names().digest,
        judges(LAWS),
        judges(STEP_LAWS),
        lookup_view,
        LOOKUP_LAWS,
    )


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


def scopes_of(module: ModuleType, kinds: Any) -> Iterator[Any]:
    """Return the scopes of some kinds that a module of known bugs names."""
    places = (each for each in vars(module).values() if isinstance(each, Place))
    return (each.scope for each in places if isinstance(each.scope, kinds))


_FEW: dict[str, Any] = {"prompts": strings(1, 1, 2), "max_model_len": 4}
_TWOS: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 4}
_DRAFTED: dict[str, Any] = {"prompts": strings(1, 1, 1), "max_model_len": 6, "drafts": 2}
_ONE: dict[str, Any] = {"prompts": strings(1, 1, 1), "max_model_len": 4}
_LONG_ENCODER: dict[str, Any] = {"encoder": 5, "caching": False}
_APART = ((0, (0, 0, 0)), (0, (0, 1)), (0, (1,)))
_BOTH: tuple[tuple[Kind, int], ...] = ((Full(), 2), (Sliding(2), 1))
_STATES: tuple[tuple[Kind, int], ...] = ((Full(), 1), (Mamba(), 2))

KNOWN_BUGS = {
    constant: each.scope
    for constant, each in vars(places).items()
    if isinstance(each, Place) and each is not places.FORKED and "told" not in each.scope.name
}
"""The small scopes in which known bugs of the manager show, by the names of their constants."""
_NAMED = {each.name: each for each in KNOWN_BUGS.values()}

MANAGERS: tuple[Scope, ...] = (
    *_NAMED.values(),
    scope(Full(), 1, "spec, wrong calls", 4, 3, "batch misuse preempt hold adopt unasked reset", **_FEW),
    scope(Sliding(3), 2, "spec, wrong calls", 4, 5, "chunks misuse trim", slots=1),
    scope(Mamba(), 1, "spec, wrong calls", 4, 3, "chunks misuse trim later"),
    scope(Mamba(), 2, "spec", 4, 5, "chunks preempt batch trim", caching=False),
    scope(Full(), 1, "spec, two symbols", 4, 3, "reset hold", prompts=strings(2, 1, 2), outputs=(0, 1)),
    scope(Full(), 2, "spec, extra keys", 4, 3, "reset misuse", prompts=strings(1, 2, 3, (0, 1))),
    scope(Sliding(2), 1, "spec, eagle", 4, 5, "", eagle=True),
    scope(Sliding(2), 2, "spec, drafts", 5, 5, "", slots=1, drafts=2, max_model_len=7, lookaheads=(0, 2)),
    scope(Chunked(4), 2, "spec", 5, 8, "chunks", slots=1, prompts=strings(1, 5, 7)),
    *(scope(kind, 1, "spec, explained", 4, 4, "explain reset", prompts=strings(1, 2, 3)) for kind in (Full(), Mamba())),
    scope(Full(), 1, "spec, explained, eagle", 4, 4, "explain reset", prompts=strings(1, 2, 4), eagle=True),
    of_groups(_BOTH, "spec, explained", 8, 4, "explain reset", prompts=((0, (0,) * 4), (0, (0, 0, 1, 1)))),
    of_groups(_BOTH, "spec, admitted", 6, 4, "whole plan", **_TWOS, watermark=1),
    scope(Full(), 1, "spec, watermark", 4, 3, "whole plan", watermark=1, **_FEW),
    scope(Full(), 1, "spec, too small", 3, 4, "plan preempt hold", prompts=strings(1, 1, 3)),
    scope(Full(), 3, "spec, forks of copies", 5, 3, "fork misuse", prompts=strings(1, 1, 1), slots=3, caching=False),
    scope(Full(), 1, "spec, uncached", 4, 3, "preempt", caching=False, **_FEW),
    of_groups(_STATES, "spec, wrong calls", 7, 3, "misuse load", in_flight=1, drafts=1, slots=1, **_TWOS),
    scope(Mamba(1), 1, "spec, wrong calls", 7, 3, "misuse", in_flight=2, drafts=1, slots=1, **_TWOS),
    scope(
        Mamba(2), 2, "spec, in flight", 6, 3, "misuse", in_flight=2, drafts=1, slots=1, **{**_TWOS, "max_model_len": 5}
    ),
    scope(Mamba(1), 2, "spec, drafts", 6, 4, "misuse batch", drafts=2, lookaheads=(0, 1), **_TWOS),
    scope(Full(), 2, "spec, drafts put off", 5, 5, "misuse later", slots=1, **_DRAFTED),
    scope(Mamba(2), 2, "spec, drafts put off", 5, 5, "misuse later trim", slots=1, **_DRAFTED),
    scope(Full(), 1, "spec, late drafts", 6, 3, "", in_flight=2, settles=True, drafts=1, slots=1, **_FEW),
    of_groups(((Full(), 1), (Cross(), 2)), "spec, encoder", 7, 3, "misuse", encoder=3, caching=False, **_FEW),
    scope(Full(), 2, "spec, forked", 5, 4, "fork batch plan", prompts=strings(1, 3, 3), slots=3),
    scope(Full(), 2, "spec, forked, uncached", 5, 4, "fork misuse", prompts=strings(1, 1, 3), caching=False),
    scope(Full(), 2, "spec, forked in flight", 4, 3, "fork load", in_flight=1, **_TWOS),
    scope(Mamba(1), 2, "spec, forked", 6, 5, "fork", drafts=1, prompts=strings(1, 2, 2), max_model_len=5),
    scope(Mamba(1), 2, "spec, forked, tight", 3, 3, "fork", prompts=strings(1, 1, 2)),
    of_groups(((Full(), 1), (Cross(), 2)), "spec, encoder, forked", 9, 3, "fork", encoder=3, caching=False, **_FEW),
    of_groups(
        ((Full(), 1), (Cross(), 2)), "spec, encoder, admitted", 6, 3, "whole plan", encoder=3, caching=False, **_FEW
    ),
    scope(Mamba(1), 1, "spec, side by side", 9, 3, "", in_flight=1, drafts=1, **_TWOS),
    scope(Full(), 1, "spec, loads", 6, 4, "load reset", prompts=strings(1, 3, 4)),
    scope(Mamba(), 2, "spec, eagle", 4, 5, "explain", eagle=True),
    scope(Full(), 1, "spec, explained, uncached", 4, 3, "explain", caching=False),
    scope(Full(), 1, "spec, drafts in flight", 8, 4, "", in_flight=2, drafts=2, slots=1),
    of_groups(_STATES, "spec, forked", 7, 3, "fork", prompts=strings(1, 2, 2), caching=False),
    scope(Mamba(1), 1, "spec, drafts known", 6, 3, "misuse", in_flight=1, drafts=1, slots=1, **_ONE),
    scope(Mamba(1), 1, "spec, drafts settled", 6, 3, "misuse", in_flight=1, settles=True, drafts=1, slots=1, **_ONE),
    scope(Mamba(1), 1, "spec, drafts accepted", 7, 5, "", drafts=1, slots=1, prompts=strings(1, 1, 1)),
    scope(Full(), 1, "spec, taken back", 6, 1, "", in_flight=2, drafts=1, slots=1, **_ONE),
    scope(Mamba(), 2, "spec, long", 5, 6, "chunks", slots=1, prompts=strings(1, 5, 5)),
    scope(Mamba(), 1, "spec, loads", 5, 3, "load", slots=1, prompts=strings(1, 3, 3)),
    scope(Full(), 1, "spec, forked, put off", 6, 4, "fork later misuse trim", drafts=1, lookaheads=(0, 1), **_ONE),
    scope(Full(), 2, "spec, forked part in flight", 5, 3, "fork", in_flight=1, prompts=strings(1, 1, 1)),
    scope(Mamba(1), 1, "spec, forked, evicting", 4, 2, "fork", prompts=strings(2, 1, 1)),
    scope(Full(), 2, "spec, copies", 5, 2, "fork", prompts=strings(1, 1, 1), slots=3, caching=False),
    scope(Full(), 1, "spec, whole", 4, 3, "whole plan chunks", prompts=_APART),
    scope(Sliding(2), 1, "spec, whole", 5, 4, "whole plan chunks", prompts=strings(1, 3, 3)),
    scope(Sliding(2), 2, "spec, tight", 2, 3, "plan", slots=1, prompts=strings(1, 1, 1)),
    scope(Mamba(1), 1, "spec, whole", 3, 3, "whole plan chunks", prompts=strings(1, 1, 2)),
    of_groups(((Full(), 1), (Cross(), 2)), "spec, whole", 5, 3, "whole plan chunks", **{**_TWOS, **_LONG_ENCODER}),
    of_groups(((Full(), 1), (Cross(), 1)), "spec, no encoder", 6, 3, "", caching=False, **_ONE),
    of_groups(((Mamba(1), 1), (Mamba(2), 1)), "spec, drafts of two", 9, 4, "", drafts=2, slots=1, **_ONE),
    scope(Full(), 1, "spec, batches", 5, 2, "batch", prompts=strings(1, 1, 1)),
    *(
        replace(each, name=f"{each.name}, {constant.lower()}")  # another scope of known bugs has the same name
        for constant, each in KNOWN_BUGS.items()
        if _NAMED[each.name] is not each
    ),
)
"""Small scopes of part one: those of known bugs, and more."""

_SOME: dict[str, Any] = {"prompts": strings(1, 1, 2)}
TABLES: tuple[PagedScope, ...] = (
    *scopes_of(paged_places, PagedScope),
    *(
        paged_scope(f"spec, {theme}", size, gpu, cpu, tokens, words, caching=caching, **rest)
        for caching in (True, False)
        for theme, size, gpu, cpu, tokens, words, rest in (
            ("wrong calls", 1, 3, 0, 2, "ensure misuse", {**_SOME, "lookaheads": (0, 2)}),
            ("window", 1, 4, 0, 4, "late misuse", {**_SOME, "window": 1, "slots": 1}),
            ("windows shared", 2, 4, 0, 5, "late", {**_SOME, "window": 1}),
            ("swap", 1, 2, 2, 2, "swap host misuse delay", {**_SOME, "lookaheads": (0, 1)}),
            ("swap under a window", 1, 3, 2, 3, "swap late", {**_SOME, "window": 1}),
            ("two symbols", 1, 3, 0, 2, "delay mark reset", {"outputs": ((0,), (1,)), "prompts": strings(2, 1, 1)}),
            ("chunks", 2, 3, 0, 4, "delay", {"outputs": ((), (0,), (0, 0, 0)), "lookaheads": (0, 3), **_SOME}),
        )
    ),
    paged_scope("spec, copies of copies", 3, 3, 0, 3, "delay misuse", prompts=strings(1, 1, 1)),
    paged_scope("spec, copies swapped", 2, 3, 2, 3, "delay swap misuse", prompts=strings(1, 1, 1)),
    paged_scope("spec, access", 1, 3, 0, 2, "access reset misuse", slots=1, prompts=strings(1, 1, 2)),
    paged_scope("spec, access, swap", 1, 2, 1, 2, "access swap mark misuse", slots=1, prompts=strings(2, 1, 2)),
    paged_scope("spec, slots asked for", 1, 3, 0, 3, "ensure late misuse", window=1, slots=1, lookaheads=(0, 1)),
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

WIDE = (request(2, (KEYS[0], 0)), request(2, (KEYS[1], 1)))
OFFLOAD: tuple[TierScope | ChainScope, ...] = tuple(
    dict.fromkeys(
        joined(
            scopes_of(offload_places, (TierScope, ChainScope)),
            (
                TierScope("spec, LRU", "LRU", 2, (*lists(2, 2), KEYS[2:3]), readers=2),
                TierScope("spec, recovered", "LRU foreign", 2, lists(2, 1), recovered=KEYS[1:2]),
                TierScope("spec, ARC", "ARC", 1, (*lists(3, 1), KEYS[:2])),
                chain_scope("spec, wrong calls", (2, 1), reserve=(0,), misuse=True, most=2),
                chain_scope("spec, through", (1, 1), through=True, under_way=2),
                chain_scope("spec, late", (1, 1), through=True, loads=(FIRST[:1],), eager=False, under_way=2),
                chain_scope("spec, freed", (1, 1), through=True, frees=True, loads=(FIRST[:1],), under_way=2),
                chain_scope("spec, back", (2, 1), reserve=(1,), stores=(FIRST,), loads=(FIRST,), under_way=1),
                chain_scope(
                    "spec, three tiers", (2, 1, 1), reserve=(1, 1), stores=(FIRST,), loads=(FIRST,), under_way=2
                ),
                chain_scope("spec, through three", (1, 1, 1), through=True, loads=(FIRST[:1],), under_way=2),
                chain_scope("spec, span 2", (1, 1), 4, span=2, stores=WIDE, loads=WIDE, under_way=2),
                chain_scope(
                    "spec, whole", (3, 2), reserve=(1,), stores=(FIRST, SECOND[1:]), loads=(FIRST[:1], SECOND[1:])
                ),
                chain_scope(
                    "spec, dropped", (3, 0), reserve=(2,), stores=(FIRST, SECOND[1:]), loads=(FIRST[:1],), under_way=1
                ),
            ),
        )
    )
)
"""Small scopes of part three."""

ASKED: tuple[Scope, ...] = (
    of_groups(
        ((Sliding(2), 1),), "spec, wrong calls", 4, 3, "trim preempt batch later chunks", prompts=strings(1, 1, 3)
    ),
    of_groups(((Full(), 1),), "spec, wrong calls, loads", 5, 3, "load preempt", prompts=strings(1, 2, 3)),
    of_groups(((Full(), 1), (Cross(), 2)), "spec, wrong calls", 7, 3, "preempt", encoder=3, caching=False, **_FEW),
    of_groups(((Full(), 1),), "spec, wrong calls", 4, 3, "preempt", in_flight=1, settles=True, drafts=1, **_FEW),
    of_groups(((Full(), 2),), "spec, wrong calls", 5, 3, "fork preempt", prompts=strings(1, 1, 1)),
    of_groups(((Mamba(1), 1),), "spec, wrong calls", 6, 3, "fork preempt", drafts=1, **_FEW),
    of_groups(((Mamba(1), 1),), "spec, wrong calls, drafts", 6, 5, "", drafts=1, slots=1, prompts=strings(1, 1, 1)),
    of_groups(((Mamba(2), 1),), "spec, wrong calls, tight", 5, 3, "hold", drafts=1, **_ONE),
    of_groups(((Full(), 1),), "spec, wrong calls, drafts", 6, 3, "", in_flight=2, drafts=1, slots=1, **_ONE),
    of_groups(((Mamba(1), 1),), "spec, wrong calls, in flight", 6, 3, "", in_flight=1, drafts=1, slots=1, **_ONE),
    of_groups(((Full(), 1),), "spec, wrong calls, duplicates", 3, 3, "unasked hold", prompts=_APART[1:]),
)
"""Small scopes in which what no manager can be asked is asked of the specification."""


def refusing(scope: Scope) -> World:
    """Return the world of part one in which wrong calls must be refused, and nothing else is judged."""
    return replace(managers(scope), state_laws=(Judge(REFUSED, refuses),), step_laws=())


def refusing_tables(scope: PagedScope) -> World:
    return replace(tables(scope), state_laws=(Judge(REFUSED, tables_refuse),), step_laws=())


def refusing_tier(scope: TierScope) -> World:
    return replace(one_tier(scope), state_laws=(Judge(REFUSED, lambda now: tier_refuses(now.tier)),), step_laws=())


def refusing_chain(scope: ChainScope) -> World:
    return replace(chains(scope), state_laws=(Judge(REFUSED, chain_refuses),), step_laws=())


def refusing_workers(scope: Scope) -> World:
    return replace(workers(scope), state_laws=(Judge(REFUSED, desk_refuses),), step_laws=())


LATE = ("spec, late", "spec, back", "spec, span 2", "spec, three tiers", "spec, whole")
"""Chains on which wrong calls are made."""
PLACES: tuple[SpecPlace, ...] = (
    *(SpecPlace("lockstep", each, managers, in_lockstep) for each in MANAGERS),
    *(SpecPlace("paged", each, tables, in_lockstep) for each in TABLES),
    *(SpecPlace("offload", each, one_tier if isinstance(each, TierScope) else chains, in_lockstep) for each in OFFLOAD),
    *(SpecPlace("inputs", each, workers, in_histories) for each in WORKERS),
    *(SpecPlace("spec", each, refusing, nowhere) for each in ASKED),
    *(SpecPlace("spec", each, refusing_workers, nowhere) for each in WORKERS[:3]),
    *(SpecPlace("spec", each, refusing_tables, nowhere) for each in TABLES if "spec, swap" in each.name),
    SpecPlace("plans", Shelf("right ones", RIGHT_PLANS), shelf, nowhere),
    SpecPlace("plans", Models("of models", range(12)), silent, in_plans),
    *(SpecPlace("paged", Walk(name, each), silent, in_walk) for name, each in WALKED.items()),
    *(SpecPlace("offload", each, silent, in_chain_walk) for each in OFFLOAD_HISTORIES.values()),
    *(SpecPlace("spec", each, refusing_tier, nowhere) for each in OFFLOAD if each.name == "spec, LRU"),
    *(SpecPlace("spec", each, refusing_chain, nowhere) for each in OFFLOAD if each.name in LATE),
)
BY_NAME = {place.name: place for place in PLACES}

"""The crossings: small worlds, generated from one table, in which every two features of a manager meet.

A *covering array* is a list of worlds in which every two of some items appear together, unless they exclude each other.
Items are kinds of layers, block sizes, options and calls (``crossings.toml``). Random walks go through each world in
lock-step, and a pair counts only where both happened in one walk. What is generated is the same in every run.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from itertools import chain, combinations, product
from math import lcm
from pathlib import Path
from random import Random
from typing import Any, Final

from blockwright._terminal import Advance
from blockwright.exclusions import EXCLUSIONS
from blockwright_spec.manager.outcomes import Reason

from ..checker.history import History, walks
from ..gates import GateResult, Profile
from ..rows import Exploration, covered, ran
from .actions import NAMES as ACTIONS
from .blockwright import BlockwrightAdapter
from .calls import KINDS as CALLS
from .fitting import FEATURES, NAMES
from .scopes import Scope, layers, of_groups, options, sized
from .world import Factory, KVCacheWorld

TABLE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KINDS, SIZES, OPTIONS, NEEDS = (TABLE[name] for name in ("kinds", "sizes", "options", "needs"))
ITEMS: Final = (*KINDS, *SIZES, *OPTIONS, *(name for name in NAMES["calls"] if name not in OPTIONS))
LAYERS: Final = {*KINDS, *SIZES}
MOST, SIDES = 12, 2
"""Items of a world, and its kinds and sizes of layers, at most."""
WALKS, STEPS, OFTEN = 6, 200, 6
"""Walks through each world, each with more blocks than the one before, actions of each, and how often the calls that a
world is about are drawn."""
CALLS_MADE: Final = frozenset((*ACTIONS, *Reason.__members__)).__contains__

Items = frozenset[str]


@cache
def excluded() -> dict[Items, str]:
    """Return the pairs that cannot meet, each with the reason."""
    named = TABLE["manager"]
    options = (
        (a, b, each.why)
        for a, b in combinations(named, 2)
        for each in EXCLUSIONS
        if {each.option, each.other} == {named[a], named[b]}
    )
    own = ((a, b, each["why"]) for each in TABLE["excluded"] for a, b in product(each["of"], each["with"]))
    return {frozenset((a, *b.split(" + "))): why for a, b, why in (*options, *own)}


def whole(items: Items) -> Items:
    """Return items with all that they are never without."""
    for each in sorted(items):
        for needed in NEEDS.get(each, ()):
            choices = [needed] if isinstance(needed, str) else needed
            if items.isdisjoint(choices):
                return whole(items | {choices[0]})
    return items


def can_meet(items: Items) -> bool:
    is_small = len(items) <= MOST and all(len(items & each.keys()) <= SIDES for each in (KINDS, SIZES))
    return is_small and not any(pair <= items for pair in excluded())


@cache
def wanted() -> frozenset[Items]:
    """Return all pairs that can meet."""
    return frozenset(each for each in map(frozenset, combinations(ITEMS, 2)) if can_meet(whole(each)))


@cache
def arrayed(number: int = 0) -> tuple[Items, ...]:
    """Return a covering array: each world is begun with a pair that is not covered yet, and filled greedily.

    Arrays of other numbers have other worlds, in which other triples meet.
    """
    left, found, order = set(wanted()), list[Items](), Random(number).sample(ITEMS, len(ITEMS))
    place = {item: at for at, item in enumerate(order)}
    while left:
        weights = Counter(item for each in left for item in each)
        items = whole(
            max(left, key=lambda each: (sum(weights[one] for one in each), sorted(place[one] for one in each)))
        )
        for choices in (KINDS.keys(), SIZES.keys(), frozenset(ITEMS)):
            while len(choices) == len(ITEMS) or items.isdisjoint(choices):
                some = [each for each in order if each in choices and each not in items]
                fits = [more for each in some if can_meet(more := whole(items | {each}))]
                gains = [sum(each <= more for each in left) for more in fits]
                if not fits or (len(choices) == len(ITEMS) and max(gains) == sum(each <= items for each in left)):
                    break
                items = fits[gains.index(max(gains))]
        found.append(items)
        left -= {each for each in left if each <= items}
    return tuple(found)


def layer(kind: str, size: int, drafts: bool) -> str:
    return f"{KINDS[kind].format(twice=2 * size)}{' +1' * (drafts and kind in ('mamba', 'ahead'))}, block {size}"


@cache
def world_of(items: Items) -> Scope:
    """Return the scope of a world."""
    kinds, sizes = ([each for each in names if each in items] for names in (KINDS, SIZES))
    turns = range(max(len(kinds), len(sizes)))
    sides = [layer(kinds[at % len(kinds)], SIZES[sizes[at % len(sizes)]], "drafts" in items) for at in turns]
    own: dict[str, Any] = dict(TABLE["scope"])
    for each in OPTIONS:
        own |= OPTIONS[each] if each in items else {}
    if "every" in own:
        own["every"] = lcm(*(SIZES[each] for each in sizes))
    words = " ".join(each for each in NAMES["calls"] if each in items)
    theme = f"crossing {', '.join(each for each in ITEMS if each in items and each not in LAYERS)}"
    return of_groups(layers(" + ".join(sides)), theme, TABLE["blocks"], TABLE["longest"], words, **options([own]))


def met_in(items: Items, fired: Counter[str]) -> Items:
    """Return what a walk has met: the calls and features that happened, and the rest if anything was served."""
    happened = {name.partition(" ")[2] for name in fired if name.startswith(("call ", "feature "))}
    dynamic = {*NAMES["calls"], *FEATURES}
    return frozenset(each for each in items if each in happened or (happened and each not in dynamic))


ARRAYS: Final = {"pr": 1, "nightly": 20}


@cache
def worlds(profile: str) -> dict[str, Items]:
    """Return the worlds of a profile by their names: of its arrays, and those of single pairs."""
    arrays = chain(*map(arrayed, range(ARRAYS.get(profile, 1))))
    apart = (whole(frozenset(each.split(", "))) for each in TABLE["apart"])
    return {world_of(items).name: items for items in (*arrays, *apart)}


class Crossings(Exploration):
    """The gate of the array: in `pr` of one, by night of several."""

    def chosen(self, profile: Profile) -> list[Scope]:
        found = worlds(profile.name) if profile.is_ours else {}
        return [world_of(items) for name, items in found.items() if profile.scope in name]

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        results, is_whole = super().run(profile, progress), profile.is_ours and not profile.scope
        pairs = frozenset(map(named, wanted()))
        met = [replace(each, fired={name: 1 for name in each.fired if name in pairs}) for each in results]
        return [*results, covered("crossed", self.about, met, pairs)] if is_whole else results

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        items = worlds(profile.name)[scope.name]
        return ran("crossings", scope.name, [walking(scope, items, number) for number in range(WALKS)], CALLS_MADE)


def named(items: Iterable[str]) -> str:
    return " x ".join(sorted(items))


def begun(world: KVCacheWorld, items: Items) -> History[Any, Any]:
    history = History(world)
    history.weights = {**history.weights, **{name: OFTEN for name, each in CALLS.items() if each.word in items}}
    return history


def walking(
    scope: Scope, items: Items, number: int, factory: Factory = BlockwrightAdapter
) -> Callable[[], Counter[str]]:
    """Return a walk of a world, which counts what happened, and the pairs that it met."""

    def walked() -> Counter[str]:
        world = KVCacheWorld(sized(scope, number), factory, is_long=True)
        world.declares = True
        fired = walks(partial(begun, world, items), 1, STEPS, number)
        return fired + Counter(map(named, combinations(met_in(items, fired), 2)))

    return walked


GATE = Crossings(__name__, "crossings", "pairs that meet", lambda profile: (), KVCacheWorld, frozenset())

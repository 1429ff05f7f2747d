"""The crossings: small worlds, generated from one table, in which every two features of a manager meet.

A *covering array* is a list of worlds in which every two of some items appear together, unless they exclude each other.
Items are kinds of layers, block sizes, options and calls (``crossings.toml``). Random walks go through each world in
lock-step, and a pair counts only where both happened in one walk. What is generated is the same in every run.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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

from ..capabilities import Capabilities
from ..checker.diagnose import diagnosed
from ..checker.history import History, HistoryError, walks
from ..gates import GateResult, Profile, factory_of
from ..rows import LONG, Exploration, covered, ran, rows_of_calls
from .actions import NAMES as ACTIONS
from .blockwright import BlockwrightAdapter
from .calls import KINDS as CALLS
from .fitting import FEATURES, NAMES, QUESTIONS, capabilities_of, lacking
from .scopes import Scope, layers, of_groups, options, sized
from .world import Factory, KVCacheWorld

TABLE: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
KINDS, SIZES, OPTIONS, NEEDS = (TABLE[name] for name in ("kinds", "sizes", "options", "needs"))
ITEMS: Final = (*KINDS, *SIZES, *OPTIONS, *(name for name in NAMES["calls"] if name not in OPTIONS))
LAYERS: Final = {*KINDS, *SIZES}
WINDOWS, MOST, SIDES = TABLE["windows"], 12, 2
"""Windows, of which a manager gets the first that it takes; the most items of a world, and of its kinds and sizes."""
WALKS, STEPS, OFTEN = 6, 200, 6
"""Walks through each world, each with more blocks than the one before, actions of each, and how often the calls that a
world is about are drawn."""
STRENGTHS: Final = {"quick": 2, "pr": 2, "nightly": 3}
FLOORS: Final = {2: ("pairs that meet", 1.0), 3: ("triples that meet", 0.97)}
"""How many items are to meet; of so many, their row in the report, and which part of them has to happen: of 10,764
triples in every eighth world 97.9 per cent did."""
UNDECLARED: Final = "not declared"
CALLS_MADE: Final = frozenset((*ACTIONS, *Reason.__members__)).__contains__

Items = frozenset[str]
Together = tuple[str, ...]
"""Items that meet, in the order of all."""


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


def together(items: Items, strength: int) -> Iterable[Together]:
    return combinations([each for each in ITEMS if each in items], strength)


def tabled(items: Items) -> str:
    return next((why for pair, why in excluded().items() if pair <= items), "")


class Array:
    """The worlds of a manager, from all that it declares."""

    def __init__(self, can: Capabilities | None = None) -> None:
        self.can, self.why = can, dict[Items, str]()
        """Of each pair that cannot meet, the reason; of an item that the manager does not have, of all its pairs."""
        self.items: tuple[str, ...] = ITEMS
        is_found = can is None or "empty hits" in can.features  # else chunks stand beside a layer that finds none
        self.needs = NEEDS if is_found else NEEDS | {"chunked": ["full"]}
        taken: Any = can.lengths.get("window", WINDOWS) if can else WINDOWS
        self.window = next((each for each in WINDOWS if each in taken), WINDOWS[0])
        lacks = dict[str, str]()
        for some in (LAYERS, frozenset(ITEMS) - LAYERS):  # layers first: all others are tried in those
            lacks |= {each: why for each in ITEMS if each in some and (why := self.lacks(frozenset({each})))}
            self.items = tuple([each for each in ITEMS if each not in lacks])
        pairs = map(frozenset, combinations(ITEMS, 2))
        self.wanted = frozenset(each for each in pairs if not self.excludes(each, lacks))

    def excludes(self, pair: Items, lacks: dict[str, str]) -> str:
        """Return why a pair cannot meet, and note it."""
        more, gone = self.whole(pair), [each for each in sorted(pair) if each in lacks]
        why = f"{UNDECLARED}: {lacks[gone[0]]}" if gone else tabled(more) or self.lacks(pair)
        why = why or ("" if self.can_meet(more) else "too much for one small world")
        self.why |= {pair: why} if why else {}
        return why

    def whole(self, items: Items) -> Items:
        """Return items with all that they are never without."""
        for each in sorted(items):
            for needed in self.needs.get(each, ()):
                choices = [needed] if isinstance(needed, str) else needed
                if items.isdisjoint(choices):
                    return self.whole(items | {next((one for one in choices if one in self.items), choices[0])})
        return items

    def lacks(self, items: Items) -> str:
        """Return what a manager does not have of a world with some items, of its own layers where these name none."""
        if self.can is None:
            return ""
        more, reasons = self.whole(items), list[str]()
        mine = (
            [each for each in names if each in (more if {*names} & more else self.items)] for names in (KINDS, SIZES)
        )
        for pair in product(*mine):
            world = self.whole(more.union(pair))
            if not (why := tabled(world)):
                absent = [f"call {each}" for each in sorted(QUESTIONS & world - self.can.calls)]
                why = ", ".join(lacking(self.world_of(world), self.can) + absent)
            if not why:
                return ""
            reasons.append(why)
        return min(reasons, key=len, default="no layer of any size")

    def can_meet(self, items: Items) -> bool:
        is_small = len(items) <= MOST and all(len(items & each.keys()) <= SIDES for each in (KINDS, SIZES))
        if not is_small or not items.issubset(self.items) or tabled(items):
            return False
        if self.can is None or any(pair <= items for pair in self.why):
            return self.can is None
        excludes, is_named = self.can.excludes, not (items.isdisjoint(KINDS) or items.isdisjoint(SIZES))
        return not (excludes and is_named and excludes(self.world_of(items).config))

    @cache  # noqa: B019  # an array is made once
    def able(self, strength: int) -> frozenset[Together]:
        """Return all pairs, or triples, that can meet."""
        found = (
            each for each in combinations(ITEMS, strength) if {*map(frozenset, combinations(each, 2))} <= self.wanted
        )
        return frozenset(each for each in found if strength == 2 or self.can_meet(self.whole(frozenset(each))))

    @cache  # noqa: B019
    def arrayed(self, strength: int) -> tuple[Items, ...]:
        """Return a covering array: each world is begun with a pair, or triple, not covered yet, and filled greedily."""
        left, found, order = set(self.able(strength)), list[Items](), Random(0).sample(ITEMS, len(ITEMS))
        place = {item: at for at, item in enumerate(order)}

        def gain(items: Items) -> int:
            return sum(each in left for each in together(items, strength))

        while left:
            weights = Counter(item for each in left for item in each)
            first = max(left, key=lambda each: (sum(weights[one] for one in each), sorted(place[one] for one in each)))
            items = self.whole(frozenset(first))
            for choices in (KINDS.keys(), SIZES.keys(), frozenset(ITEMS)):
                while len(choices) == len(ITEMS) or items.isdisjoint(choices):
                    some = [each for each in order if each in choices and each not in items]
                    fits = [more for each in some if self.can_meet(more := self.whole(items | {each}))]
                    gains = [gain(more) for more in fits]
                    if not fits or (len(choices) == len(ITEMS) and max(gains) == gain(items)):
                        break
                    items = fits[gains.index(max(gains))]
            found.append(items)
            left.difference_update(together(items, strength))
        return tuple(found)

    def alone(self, pair: Items) -> Items:
        """Return a world with little beside a pair: the first layer that goes with it, and large blocks."""
        own = self.whole(pair)
        kinds, sizes = ([*(own & each.keys() or [one for one in each if one in self.items])] for each in (KINDS, SIZES))
        worlds = (self.whole(own | {*each}) for each in product(kinds, sizes[::-1]))
        return next(filter(self.can_meet, worlds))

    @cache  # noqa: B019
    def world_of(self, items: Items) -> Scope:
        """Return the scope of a world."""
        kinds, sizes = ([each for each in names if each in items] for names in (KINDS, SIZES))
        turns, drafts = range(max(len(kinds), len(sizes))), " +1" * ("drafts" in items)
        sides = [(kinds[at % len(kinds)], SIZES[sizes[at % len(sizes)]]) for at in turns]
        names = [
            f"{KINDS[kind].format(twice=2 * size, window=self.window, drafts=drafts)}, block {size}"
            for kind, size in sides
        ]
        own: dict[str, Any] = dict(TABLE["scope"])
        for each in OPTIONS:
            own |= OPTIONS[each] if each in items else {}
        if "every" in own:
            own["every"] = lcm(*(SIZES[each] for each in sizes))
        words = " ".join(each for each in NAMES["calls"] if each in items)
        theme = f"crossing {', '.join(each for each in ITEMS if each in items and each not in LAYERS)}"
        scope = of_groups(layers(" + ".join(names)), theme, TABLE["blocks"], TABLE["longest"], words, **options([own]))
        return scope if self.can is None else replace(scope, ways=self.can.ways)

    @cache  # noqa: B019
    def worlds(self, profile: str) -> dict[str, Items]:
        """Return the worlds of a profile by their names: of its arrays, and those of single pairs."""
        apart = (self.whole(frozenset(each.split(", "))) for each in TABLE["apart"])
        every = chain(*map(self.arrayed, range(2, STRENGTHS[profile] + 1)), filter(self.can_meet, apart))
        return {self.world_of(items).name: items for items in every}


@cache
def array_of(implementation: str) -> Array:
    return Array(capabilities_of(factory_of(implementation)))


def met_in(items: Items, fired: Counter[str]) -> Items:
    """Return what a walk has met: the calls and features that happened, and the rest if anything was served."""
    happened = {name.partition(" ")[2] for name in fired if name.startswith(("call ", "feature "))}
    dynamic = {*NAMES["calls"], *FEATURES}
    return frozenset(each for each in items if each in happened or (happened and each not in dynamic))


class Crossings(Exploration):
    """The gate of the arrays: in `pr` of pairs, by night of triples too."""

    def chosen(self, profile: Profile) -> list[Scope]:
        array = array_of(profile.implementation)
        return [array.world_of(items) for name, items in array.worlds(profile.name).items() if profile.scope in name]

    def run(self, profile: Profile, progress: Advance) -> list[GateResult]:
        results, array = super().run(profile, progress), array_of(profile.implementation)
        if profile.scope:
            return results
        met = {name for each in results for name in each.fired}
        able = () if any(each.violations for each in results) else array.able(2)
        names = sorted({", ".join(sorted(array.alone(frozenset(pair)))) for pair in able if named(pair) not in met})
        results += rows_of_calls(row_alone, self.kind, names, [(each, profile) for each in names], profile, progress)
        return [*results, *self.met(profile, results, array)]

    def met(self, profile: Profile, results: list[GateResult], array: Array) -> Iterator[GateResult]:
        """Yield a row of pairs, and by night one of triples; behind a violation nothing happens, so none is missed."""
        is_sure = not any(each.violations for each in results)
        for strength in range(2, STRENGTHS[profile.name] + 1):
            about, floor = FLOORS[strength]
            every = frozenset(map(named, array.able(strength)))
            met = [replace(each, fired={name: 1 for name in each.fired if name in every}) for each in results]
            row = covered("crossed", about, met, every)
            is_red = is_sure and row.passed < floor * row.tried
            yield replace(row, detail=row.detail[:LONG]) if is_red else replace(row, violations=0, law="", detail="")

    def row(self, scope: Scope, profile: Profile) -> GateResult:
        return row_of_world(array_of(profile.implementation).worlds(profile.name)[scope.name], profile)


def row_of_world(items: Items, profile: Profile, walks: int = WALKS) -> GateResult:
    scope, factory = array_of(profile.implementation).world_of(items), factory_of(profile.implementation)
    runs = [walking(scope, items, number, factory, STRENGTHS[profile.name]) for number in range(walks)]
    return ran("crossings", scope.name, runs, CALLS_MADE)


def row_alone(items: str, profile: Profile) -> GateResult:
    """Walk through a world that has little beside a pair that no other world has met."""
    own = frozenset(items.split(", "))
    row, pairs = row_of_world(own, profile), array_of(profile.implementation).able(2)
    is_met = all(named(pair) in row.fired for pair in pairs if own.issuperset(pair))
    return row if is_met else row_of_world(own, profile, 4 * WALKS)


def pairs_of(profile: Profile, rows: Iterable[GateResult]) -> dict[str, Any]:
    """Return the pairs that happened, those that did not (triples too, by night), and why others cannot meet."""
    every = {each.scope: each.fired for each in rows if each.kind == "crossed"}
    if not every:
        return {}
    array, (pairs, triples) = array_of(profile.implementation), (about for about, _ in FLOORS.values())
    found = {"met": sorted(every[pairs]), "missed": sorted({*map(named, array.wanted)} - every[pairs].keys())}
    if triples in every:
        found["missed triples"] = sorted({*map(named, array.able(3))} - every[triples].keys())
    return found | {"excluded": {named(each): why for each, why in array.why.items()}}


def named(items: Iterable[str]) -> str:
    return " x ".join(sorted(items))


def begun(world: KVCacheWorld, items: Items) -> History[Any, Any]:
    history = History(world)
    history.weights = {**history.weights, **{name: OFTEN for name, each in CALLS.items() if each.word in items}}
    return history


def walking(
    scope: Scope, items: Items, number: int, factory: Factory = BlockwrightAdapter, strength: int = 2
) -> Callable[[], Counter[str]]:
    """Return a walk of a world, which counts what happened, and the pairs, or triples too, that it met."""

    def walked() -> Counter[str]:
        world = KVCacheWorld(sized(scope, number), factory, is_long=True)
        world.declares = True
        try:
            fired = walks(partial(begun, world, items), 1, STEPS, number)
        except HistoryError as error:
            found = diagnosed(world, error.violation)
            raise HistoryError(scope, found, world.script(found.actions, f"{found.law}: {found.detail}")) from error
        met = (together(met_in(items, fired), size) for size in range(2, strength + 1))
        return fired + Counter(map(named, chain(*met)))

    return walked


GATE = Crossings(__name__, "crossings", "", lambda profile: (), KVCacheWorld, frozenset())

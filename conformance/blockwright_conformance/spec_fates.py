"""What becomes of a mutant of the specification: the laws that notice it, and whether lock-step does.

First it is looked for in the place where it was found before (`spec_hints.json`, if it takes long to find), and in the
places of its chapter, not far, last killers of its function first; laws judge the wrong specification alone, and are
wrong too if the function is one of theirs. What is not noticed there is looked for further in some places where it
makes a difference at all (`spec_reach`); then, where laws are silent, beside the implementation as it is; then in all
other places where it makes a difference (or, if none was seen to, where it is asked), alone and beside. What is excused
as the same is only looked for nearby.
"""

import gc
import json
import re
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from .mutation import Mutation
from .offload_scopes import ChainScope, TierScope
from .paged_scopes import PagedScope
from .spec_beside import search_of, silent
from .spec_excused import reason_for
from .spec_mutation import Exchange, of_mutation, put_in
from .spec_places import BY_NAME, PLACES, SpecPlace
from .spec_plans import Shelf
from .spec_reach import is_reached, matters
from .spec_refusals import REFUSED
from .spec_search import UNDEFINED, Noticed
from .watch import OutOfTimeError

NEAR, NEAR_PLACES = 400, 12
"""How many transitions of how many places are looked at first."""
FAR, FAR_PLACES = 2000, 6
"""The same of those in which a mutant makes a difference."""
BEYOND = 150
"""How many transitions more once something was noticed."""
BESIDE_PLACES = 3
"""In how many places lock-step looks."""
WIDE = 400
"""How many transitions of all other places are looked at last."""

GATES = {
    "paged": "paged",
    "tier": "offload",
    "chain": "offload",
    "rows": "inputs",
    "inputs": "inputs",
    "storage": "plans",
}
"""Which places belong to a chapter, by the first word of its name; those of part one else."""


@dataclass(slots=True)
class Fate:
    """What became of a mutant."""

    mutation: Mutation
    reached: int = 0
    """In how many places its function is asked anything, if that was looked at."""
    different: int = 0
    """In how many of those it answers differently."""
    laws: dict[str, str] = field(default_factory=dict)
    """The laws that notice it, each with a place."""
    alone: list[str] = field(default_factory=list)
    """Those of them that are the only ones broken in some step."""
    together: list[list[str]] = field(default_factory=list)
    """Which of them were broken together in one step."""
    beside: str = ""
    """A place in which it differs from the implementation, if no law notices it."""
    transitions: int = 0
    seconds: float = 0.0

    @property
    def is_judged(self) -> bool:
        """Tell whether the laws notice it, or it fails by itself."""
        return bool(self.laws)

    @property
    def is_noticed(self) -> bool:
        """Tell whether anything notices it."""
        return self.is_judged or bool(self.beside)

    @property
    def noticed_by(self) -> str:
        """Say by what it is noticed: laws, having no outcome, wrong calls, or something beside the implementation."""
        if self.seen_by - {REFUSED}:
            return "laws"
        if self.laws:
            return "wrong calls" if REFUSED in self.laws else "having no outcome"
        return BESIDES.get(self.beside.partition(": ")[0], "lock-step")

    @property
    def seen_by(self) -> frozenset[str]:
        """The laws that notice it."""
        return frozenset(self.laws) - {UNDEFINED}


BESIDES = {"inputs": "histories of workers", "plans": "plans of models"}
"""What stands beside the implementation, by gates."""


class Memory:
    """In which order to visit places: the last killers of a function first."""

    def __init__(self) -> None:
        self.orders: dict[tuple[str, str], list[SpecPlace]] = {}

    def order(self, mutation: Mutation) -> list[SpecPlace]:
        """Give the places of a mutant's chapter."""
        own = (mutation.file, mutation.before if "Refusal" in mutation.before else mutation.function)
        if own not in self.orders:
            gate = GATES.get(mutation.file.removesuffix(".py").partition("_")[0], "lockstep")
            places = [each for each in PLACES if each.gate == gate or is_asked(each, gate)]
            places += [each for each in PLACES if gate == "lockstep" and each.gate == "plans"]
            reason = re.search(r"(?:Reason|RowRefusal)[.](\w+)", mutation.before)
            self.orders[own] = (
                sorted(places, key=lambda each: reason and not refuses(each, reason[1])) if reason else places
            )
        return self.orders[own]

    def killed(self, mutation: Mutation, place: SpecPlace) -> None:
        """Remember a killer."""
        order = self.order(mutation)
        if place in order:
            order.remove(place)
            order.insert(0, place)


def is_asked(place: SpecPlace, gate: str) -> bool:
    """Tell whether a place in which wrong calls must be refused is one of a gate's part."""
    parts = {PagedScope: "paged", TierScope: "offload", ChainScope: "offload"}
    own = "inputs" if "workers" in place.name else parts.get(type(place.scope), "lockstep")
    return place.gate == "spec" and own == gate


@cache
def refusals_in(place: SpecPlace) -> frozenset[str]:
    """Give the reasons for which calls are refused in a place."""
    if place.gate == "inputs" or place.makes is silent or isinstance(place.scope, Shelf):
        return frozenset()
    fired = search_of(place.scope, NEAR, alone=True).run().fired  # type: ignore[arg-type]
    return frozenset(name.rpartition(": ")[2] for name in fired)


def refuses(place: SpecPlace, reason: str) -> bool:
    """Tell whether a call is refused for a reason in a place, or must be."""
    return place.gate == "spec" or reason in refusals_in(place)


MEMORY = Memory()


@cache
def hints() -> dict[str, str]:
    """Give the places of what was found far from where one looks first."""
    found: dict[str, str] = json.loads((files(__package__) / HINTS).read_text(encoding="utf-8"))
    return found


HINTS = "spec_hints.json"


def nearest(mutation: Mutation) -> list[SpecPlace]:
    """Give the places in which a mutant is looked for first."""
    hint = BY_NAME.get(hints().get(mutation.key, ""))
    return [*([hint] if hint else []), *MEMORY.order(mutation)[:NEAR_PLACES]]


def fate_of(mutation: Mutation) -> Fate:
    """Look for a mutant."""
    started, fate, exchange = time.process_time(), Fate(mutation), of_mutation(mutation)
    near, is_same = nearest(mutation), reason_for(mutation) is not None
    if not (look(fate, exchange, near[:1], FAR) or look(fate, exchange, near[1:], NEAR)):
        if is_same or mutation.key in hints():
            fate.beside = differing(exchange, besides(near if is_same else near[:1]))
        if not (is_same or fate.is_noticed):
            look_far(fate, exchange, near)
    fate.seconds = time.process_time() - started
    return fate


def look_far(fate: Fate, exchange: Exchange, near: list[SpecPlace]) -> None:
    """Look for a mutant in the places where it makes a difference: in some far, in all the others not so far.

    What is asked there is a sample: where it shows no difference anywhere, all places that ask are looked at far.
    """
    reached = [place for place in MEMORY.order(fate.mutation) if is_reached(place, exchange)]
    different = [place for place in reached if matters(place, exchange)]
    fate.reached, fate.different = len(reached), len(different)
    if not look(fate, exchange, different[:FAR_PLACES], FAR):
        fate.beside = differing(exchange, besides([*near[:1], *(different or near)]))
    places, far = (different, WIDE) if different else (reached, FAR)
    for place in places if not fate.is_noticed else ():
        if not look(fate, exchange, [place], far):
            fate.beside = differing(exchange, [place], far)
        if fate.is_noticed:
            return


def differing(exchange: Exchange, places: list[SpecPlace], far: int = FAR) -> str:
    """Give the first place in which a wrong specification differs from the implementation."""
    return next((place.name for place in places if differs_in(place, exchange, far)), "")


def look(fate: Fate, exchange: Exchange, places: list[SpecPlace], far: int) -> SpecPlace | None:
    """Have the laws look for a mutant in some places; give the first in which they notice something."""
    for place in places:
        noticed = noticed_in(place, exchange, far=far)
        fate.transitions += noticed.transitions
        for law in noticed.lengths:
            fate.laws.setdefault(law, place.name)
        if noticed.lengths:
            MEMORY.killed(fate.mutation, place)
            fate.alone = sorted({law for laws in noticed.together if len(laws) == 1 for law in laws})
            fate.together = sorted(sorted(laws) for laws in noticed.together)
            return place
    return None


def besides(places: list[SpecPlace]) -> list[SpecPlace]:
    """Give the places in which to look beside the implementation; the histories of workers are all one."""
    once = [place for gate in ("inputs", "plans") for place in [each for each in places if each.gate == gate][-1:]]
    return [place for place in places if place.gate not in ("inputs", "plans", "spec")][:BESIDE_PLACES] + once


def noticed_in(place: SpecPlace, exchange: Exchange, law: str = "", far: int = FAR, *, alone: bool = False) -> Noticed:
    """Give what the laws notice of a wrong specification in a place; if a law is named, no further than that.

    No further than to where that law is broken `alone`, if so asked.
    """
    first: list[int] = []

    def enough(noticed: Noticed) -> bool:
        if law:
            return frozenset((law,)) in noticed.together if alone else law in noticed.lengths
        first.append(noticed.transitions)
        return noticed.transitions > first[0] + BEYOND

    gc.disable()
    try:
        with put_in(exchange):
            return place.alone(enough, far)
    except OutOfTimeError:
        return Noticed({UNDEFINED: 0})
    finally:
        gc.enable()


def differs_in(place: SpecPlace, exchange: Exchange, far: int = FAR) -> str:
    """Say in what a wrong specification differs from the implementation in a place."""
    gc.disable()
    try:
        with put_in(exchange):
            return place.differs(far)
    finally:
        gc.enable()

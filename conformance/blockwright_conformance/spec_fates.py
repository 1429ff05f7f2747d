"""What becomes of a mutant of the specification: the laws that notice it, and whether lock-step does.

A mutant is looked for where it makes a difference (`spec_reach`), in few places and not far: first by the laws, of the
wrong specification alone; then beside the implementation as it is. Laws are wrong too if the function is one of theirs.
"""

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .mutation import Mutation
from .spec_mutation import Exchange, of_mutation, put_in
from .spec_places import PLACES, SpecPlace
from .spec_reach import is_reached, matters
from .spec_search import UNDEFINED, Noticed
from .watch import OutOfTimeError

PLACES_JUDGED, PLACES_NOTICED, PLACES_BESIDE = 6, 2, 2
"""In how many places laws are asked, until so many have noticed; and in how many lock-step is."""
FAR = 1200
"""How many transitions of a place are looked at."""
BEYOND = 200
"""How many more once something was noticed."""


@dataclass(slots=True)
class Fate:
    """What became of a mutant."""

    mutation: Mutation
    reached: int = 0
    """In how many places its function is asked anything."""
    different: int = 0
    """In how many of those looked at it answers differently."""
    laws: dict[str, str] = field(default_factory=dict)
    """The laws that notice it, each with a place."""
    alone: list[str] = field(default_factory=list)
    """Those of them that are the only ones broken in some step."""
    beside: str = ""
    """A place in which it differs from the implementation."""
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
    def seen_by(self) -> frozenset[str]:
        """The laws that notice it."""
        return frozenset(self.laws) - {UNDEFINED}


def fate_of(mutation: Mutation, places: tuple[SpecPlace, ...] = PLACES) -> Fate:
    """Look for a mutant."""
    started, fate, exchange = time.process_time(), Fate(mutation), of_mutation(mutation)
    own = [place for place in places if is_reached(place, exchange)]
    fate.reached = len(own)
    different = list(several(differing(own, exchange), PLACES_JUDGED))
    fate.different = len(different)
    noticed = 0
    for place in different:
        found = noticed_in(place, exchange)
        fate.transitions += found.transitions
        for law in found.lengths:
            fate.laws.setdefault(law, place.name)
        fate.alone += [law for laws in found.together if len(laws) == 1 for law in laws if law not in fate.alone]
        noticed += bool(found.lengths)
        if noticed == PLACES_NOTICED:
            break
    fate.beside = next((place.name for place in besides(different) if differs_in(place, exchange)), "")
    fate.seconds = time.process_time() - started
    return fate


def besides(places: list[SpecPlace]) -> list[SpecPlace]:
    """Give the places in which to look beside the implementation; the histories of workers are all one."""
    workers = [place for place in places if place.gate == "inputs"][:1]
    return [place for place in places if place.gate not in ("inputs", "spec")][:PLACES_BESIDE] + workers


def differing(places: list[SpecPlace], exchange: Exchange) -> Iterator[SpecPlace]:
    """Give the places in which a mutant answers differently; where it runs on and on, too."""
    for place in places:
        if matters(place, exchange):
            yield place


def several(places: Iterator[SpecPlace], count: int) -> Iterator[SpecPlace]:
    """Give the first places."""
    for _ in range(count):
        if (place := next(places, None)) is None:
            return
        yield place


def noticed_in(place: SpecPlace, exchange: Exchange, law: str = "", far: int = FAR) -> Noticed:
    """Give what the laws notice of a wrong specification in a place; if a law is named, no further than that."""
    first: list[int] = []

    def enough(noticed: Noticed) -> bool:
        if law:
            return law in noticed.lengths
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

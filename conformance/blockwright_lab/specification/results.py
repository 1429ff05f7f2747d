"""What becomes of a mutant of the specification: the laws that notice it, and whether lock-step does.

It is looked for in the places of its chapter, last killers of its function first. Laws judge the wrong specification
alone, and are wrong too if the function is one of theirs; where they are silent, it is put beside the implementation
as it is. First a few places are looked at, and not far, then all.
"""

import time
from dataclasses import dataclass, field

from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.offload.scopes import ChainScope, TierScope

from ..known_bugs.watch import OutOfTimeError
from ..mutation.mutator import Mutation
from ..mutation.survivors import known_killers
from .mutator import Exchange, of_mutation, put_in
from .places import BY_NAME, PLACES, ROWS, SpecPlace
from .refusals import REFUSED
from .search import UNDEFINED, Noticed

STAGES = ((16, False, 400), (6, True, 600), (200, False, 400), (200, True, 400), (200, False, 2000), (200, True, 2000))
"""How many places are looked at, whether beside the implementation, and for how many transitions each."""
BEYOND = 150
"""How many transitions more once laws have noticed something: which others do?"""
GATES = {"block_tables": "paged", "offload": "offload", "worker": "inputs", "worker/storage": "plans"}
"""Which places belong to a chapter, or to a part; those of part one else."""


@dataclass(slots=True)
class Result:
    """What became of a mutant."""

    mutation: Mutation
    laws: dict[str, str] = field(default_factory=dict)
    """The laws that notice it, each with a place."""
    beside: str = ""
    """A place in which it differs from the implementation, if no law notices it."""
    transitions: int = 0
    seconds: float = 0.0

    @property
    def is_noticed(self) -> bool:
        return bool(self.laws or self.beside)

    @property
    def place(self) -> str:
        return next(iter(self.laws.values()), self.beside)

    @property
    def noticed_by(self) -> str:
        """Return by what it is noticed: laws, no outcome, wrong calls, or something beside the implementation."""
        if self.seen_by - {REFUSED}:
            return "laws"
        if self.laws:
            return "wrong calls" if REFUSED in self.laws else "having no outcome"
        return "histories of workers" if self.beside.startswith("inputs") else "lock-step"

    @property
    def seen_by(self) -> frozenset[str]:
        return frozenset(self.laws) - {UNDEFINED}


FIRST: list[str] = ROWS["first"]
"""Places in which one looks first: those that notice most."""

LAST: dict[str, list[SpecPlace]] = {}
"""Places that noticed mutants of a function or of a chapter, in this process: the last first."""


def order(mutation: Mutation) -> list[SpecPlace]:
    """Return the places of a mutant's chapter, those first that are known to notice mutants like it."""
    part = mutation.file.partition("/")[0]
    gate = GATES.get(mutation.file.removesuffix(".py"), GATES.get(part, "lockstep"))
    places = [each for each in PLACES if each.gate == gate or is_asked(each, gate)]
    places += [each for each in PLACES if gate == "lockstep" and each.gate == "plans"]
    places.sort(key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST))
    if "Refusal" in mutation.before:
        places.sort(key=lambda each: each.gate != "spec")
    known = [BY_NAME[name] for name in known_killers(mutation) if name in BY_NAME]
    last = [*LAST.get(f"{mutation.file} {mutation.function}", ())[:6], *LAST.get(mutation.file, ())[:3]]
    return list(dict.fromkeys([*known[:1], *last, *known, *places]))


def is_asked(place: SpecPlace, gate: str) -> bool:
    """Return whether a place in which wrong calls must be refused is one of a gate's part."""
    parts = {PagedScope: "paged", TierScope: "offload", ChainScope: "offload"}
    own = "inputs" if "workers" in place.name else parts.get(type(place.scope), "lockstep")
    return place.gate == "spec" and own == gate


def noticed_at(mutation: Mutation, place: SpecPlace) -> None:
    for name in (f"{mutation.file} {mutation.function}", mutation.file):
        LAST[name] = [place, *(each for each in LAST.get(name, ()) if each is not place)]


def result_of(mutation: Mutation) -> Result:
    started, result, exchange = time.process_time(), Result(mutation), of_mutation(mutation)
    places = order(mutation)
    for count, beside, far in STAGES:
        if place := seen_in(result, exchange, places[:count], beside, far):
            noticed_at(mutation, place)
            break
    result.seconds = time.process_time() - started
    return result


def seen_in(result: Result, exchange: Exchange, places: list[SpecPlace], beside: bool, far: int) -> SpecPlace | None:
    """Look for a mutant in some places, by laws alone or beside the implementation; return the first to notice it."""
    for place in places:
        if beside:
            result.beside = place.name if differs_in(place, exchange, far) else ""
        else:
            noticed = noticed_in(place, exchange, far)
            result.transitions += noticed.transitions
            result.laws = dict.fromkeys(noticed.lengths, place.name)
        if result.is_noticed:
            return place
    return None


def noticed_in(place: SpecPlace, exchange: Exchange, far: int = 2000) -> Noticed:
    """Return what the laws notice of a wrong specification in a place."""
    first: list[int] = []

    def enough(noticed: Noticed) -> bool:
        first.append(noticed.transitions)
        return noticed.transitions > first[0] + BEYOND

    try:
        with put_in(exchange):
            return place.alone(enough, far)
    except OutOfTimeError:
        return Noticed({UNDEFINED: 0})


def differs_in(place: SpecPlace, exchange: Exchange, far: int = 2000) -> str:
    """Return in what a wrong specification differs from the implementation in a place."""
    with put_in(exchange):
        return place.differs(far)

"""What becomes of a mutant: the places that execute it are visited, until one shows a difference; then, the proofs."""

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from .mutant_places import difference, memory_taken, prepared
from .mutant_proofs import refuted
from .mutant_realm import title_of
from .mutation import Mutation
from .realms import parsed, realm_of
from .variants import load
from .watch import OutOfTimeError, alarm

MEMORY = 3 << 30
"""Bytes that a process may take for mutants."""

IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: who killed it and how (both empty: it lives), and how far it went."""

    mutation: Mutation
    killer: str
    how: str
    place: int | None
    visited: int
    """Places that it was put through."""
    transitions: int
    seconds: float
    whole: bool = True
    """Whether all places that execute it were visited, unless it was killed."""

    @property
    def unreached(self) -> bool:
        """Tell whether no place executes it."""
        return not self.killer and not self.visited and self.whole


class Memory:
    """Which places killed the last mutants of a function."""

    def __init__(self) -> None:
        self.killers: dict[tuple[str, str], list[int]] = {}

    def order(self, mutation: Mutation, numbers: list[int]) -> list[int]:
        """Give places, the last killers of the mutant's function first."""
        first = [number for number in self.killers.get((mutation.file, mutation.function), ()) if number in numbers]
        return [*first, *(number for number in numbers if number not in first)]

    def killed(self, mutation: Mutation, number: int) -> None:
        """Remember a killer."""
        known = self.killers.setdefault((mutation.file, mutation.function), [])
        if number in known:
            known.remove(number)
        known.insert(0, number)


MEMORY_OF_KILLERS = Memory()


def fate_of(mutation: Mutation, numbers: list[int], limit: float = float("inf")) -> Fate:
    """Look for a difference of one mutant in some places, and where there is none, for a theorem that it refutes."""
    fate = visited(mutation, numbers, limit)
    statement, how = ("", "") if fate.killer else refuted(mutation)
    return replace(fate, killer=statement, how=how) if statement else fate


def visited(mutation: Mutation, numbers: list[int], limit: float) -> Fate:
    """Look for a difference of one mutant in some places, one after another, for so much processor time in them."""
    started, spent, count, transitions = time.perf_counter(), 0.0, 0, 0

    def fate(killer: str, how: str, place: int | None = None, whole: bool = True) -> Fate:
        gc.collect()
        return Fate(mutation, killer, how, place, count, transitions, time.perf_counter() - started, whole)

    if not numbers:
        return Fate(mutation, "", "", None, 0, 0, 0.0)
    try:
        with alarm():
            package = load({mutation.file: parsed(mutation.file).compiled(mutation.key)})
    except (Exception, OutOfTimeError) as error:
        return fate(IMPORT, f"{type(error).__name__}: {error}")
    places = realm_of(mutation.file).places
    for number in MEMORY_OF_KILLERS.order(mutation, numbers):
        if spent > limit:
            return fate("", "", whole=False)
        prepared(places[number])
        began = time.process_time()
        how, steps = difference(places[number], package)
        spent += time.process_time() - began
        count, transitions = count + 1, transitions + steps
        if how:
            MEMORY_OF_KILLERS.killed(mutation, number)
            return fate(title_of(places[number]), how, number)
    return fate("", "")


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let a mutant that fills the memory fail instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_taken() + MEMORY, hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

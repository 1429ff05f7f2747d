"""What becomes of a mutant: places are visited until one shows a difference; then the proofs are asked."""

import gc
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache

from ..known_bugs.variants import load
from ..known_bugs.watch import LOADING, OutOfTimeError, alarm, rearm
from .mutator import Mutation
from .places import difference, keep, memory_taken, prepared
from .proofs import refuted
from .survivors import known_killers
from .targets import parsed, target, target_of, title_of

MEMORY = 3 << 30
"""Bytes that a process may take for mutants."""
IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant: who killed it and how (both empty: it lives), and how far it went."""

    mutation: Mutation
    killer: str = ""
    how: str = ""
    place: int | None = None
    visited: int = 0
    """Places that it was put through, and tests."""
    transitions: int = 0
    seconds: float = 0.0


Work = list[tuple[Mutation, list[int]]]
"""Mutants, each with the numbers of its places."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of some mutants, and how the places that killed one fail without a mutant, if they do."""

    results: list[Result]
    faults: dict[tuple[str, int], str]


def tried(work: Work, most: float) -> Tried:
    """Try some mutants, and the unchanged implementation wherever one was killed."""
    keep_once()
    with limited_memory():
        results = [result_of(mutation, numbers, most) for mutation, numbers in work]
        places = {(target_of(each.mutation.file).name, each.place) for each in results if each.place is not None}
        return Tried(results, {place: unchanged(*place) for place in sorted(places)})


@cache
def keep_once() -> None:
    """Keep what a process has loaded from the garbage collector."""
    keep()


@cache
def unchanged(name: str, number: int) -> str:
    """Say how the unchanged implementation fails in a place, if it does; once per process."""
    return difference(target(name).places[number], load())[0]


@cache
def numbers_of(name: str) -> dict[str, int]:
    """Return the numbers of a target's places by title."""
    return {title_of(where): number for number, where in enumerate(target(name).places)}


LAST: dict[str, list[int]] = {}
"""Places that killed mutants of a function, or of a source, in this process: the last first."""


def order(mutation: Mutation, numbers: list[int]) -> list[int]:
    """Return places: those known to have killed the mutant, or others of its function or source, first."""
    titles = numbers_of(target_of(mutation.file).name)
    known = [titles[title] for title in known_killers(mutation) if title in titles]
    last = [*LAST.get(f"{mutation.file} {mutation.function}", ()), *LAST.get(mutation.file, ())[:4]]
    first = [number for number in dict.fromkeys((*known[:1], *last, *known)) if number in numbers]
    return [*first, *(number for number in numbers if number not in first)]


def killed_in(mutation: Mutation, number: int) -> None:
    """Remember a killer."""
    for name in (f"{mutation.file} {mutation.function}", mutation.file):
        LAST[name] = [number, *(each for each in LAST.get(name, ()) if each != number)]


def result_of(mutation: Mutation, numbers: list[int], limit: float = float("inf")) -> Result:
    """Look for a difference of one mutant in some places, and where there is none, for a theorem that it refutes."""
    result = visited(mutation, numbers, limit)
    statement, how = ("", "") if result.killer else refuted(mutation)
    return replace(result, killer=statement, how=how) if statement else result


def visited(mutation: Mutation, numbers: list[int], limit: float) -> Result:
    """Look for a difference of one mutant in some places, one after another, for so much processor time in them."""
    started, spent, count, transitions = time.perf_counter(), 0.0, 0, 0

    def result(killer: str, how: str, place: int | None = None) -> Result:
        gc.collect()
        return Result(mutation, killer, how, place, count, transitions, time.perf_counter() - started)

    if not numbers:
        return Result(mutation)
    try:
        with alarm():
            rearm(LOADING)
            package = load({mutation.file: parsed(mutation.file).compiled(mutation.key)})
    except (Exception, OutOfTimeError) as error:
        return result(IMPORT, f"{type(error).__name__}: {error}")
    places = target_of(mutation.file).places
    for number in order(mutation, numbers):
        if spent > limit:
            break
        prepared(places[number])
        began = time.process_time()
        how, steps = difference(places[number], package)
        spent += time.process_time() - began
        count, transitions = count + 1, transitions + steps
        if how:
            killed_in(mutation, number)
            return result(title_of(places[number]), how, number)
    return result("", "")


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

"""Gate 4, mutants: every small wrong change of the bookkeeping must make the lock-step fail.

Each mutant is a variant of the implementation, loaded in process; it is put through small places, its function's last
killers first, until one shows a difference, an error, or an action that runs on and on. One that passes everywhere
lives: it is shown, with what was changed, and counts against the score, unless `equivalents` says why nothing can tell
it from the original. The unchanged implementation must then pass wherever one was killed: a place that always fails
says nothing. The gate fails below `FLOOR`; the sorting of the survivors into equivalents and missing scopes is not
finished, so the floor is not yet 100 %.

The profile ``pr`` draws a fixed sample; ``nightly`` takes all, the listed equivalents included: none may be caught.
Mutants are uncompiled, whatever build the process runs.
"""

import gc
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from types import ModuleType

from blockwright._terminal import Advance

from .equivalents import EQUIVALENT
from .exhibit import OffloadPlace, Place, Trial
from .gates import GateResult, Profile
from .museum import explored
from .mutant_limits import FILES, LEFT_OUT, OFFLOAD
from .mutant_scopes import OFF, WHERE
from .mutation import Mutation, parsed
from .parallel import in_parallel
from .recording import Recording
from .scopes import Scope
from .variants import load
from .watch import Limited, OutOfTimeError, watch
from .watched import adapter_on

SAMPLE = {"smoke": 6, "pr": 12}
"""How many mutants a profile takes; others take all."""
FLOOR = 70
"""Per cent of the mutants, listed equivalents aside, that must be killed."""
SEED = 2

MEMORY = 3 << 30
"""Bytes that a process with mutants may take."""
CORE = "uncompiled core"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: who killed it and how (both empty: it lives), where, and how far it went."""

    mutation: Mutation
    killer: str
    how: str
    place: int | None
    transitions: int
    seconds: float


def title_of(where: Place | OffloadPlace | Trial) -> str:
    """Give the name of a place."""
    return where.scope.name if isinstance(where, Place | OffloadPlace) else f"trial: {where.__name__}"


def places_of(file: str) -> list[int]:
    """Give the numbers of the places in which a source is at work."""
    is_offload = file in OFFLOAD
    return [number for number, where in enumerate(WHERE) if (where in OFF) == is_offload]


class Memory:
    """In which order to visit places: the last killers of the function first, then those of the file."""

    def __init__(self) -> None:
        self.files: dict[str, list[int]] = {file: places_of(file) for file in FILES}
        self.functions: dict[tuple[str, str], list[int]] = {}

    def order(self, mutation: Mutation) -> list[int]:
        """Give the numbers of the places for a mutant."""
        return self.functions.get((mutation.file, mutation.function)) or self.files[mutation.file]

    def killed(self, mutation: Mutation, number: int) -> None:
        """Remember a killer."""
        rest = [other for other in self.order(mutation) if other != number]
        self.functions[mutation.file, mutation.function] = [number, *rest]
        self.files[mutation.file] = [number, *(other for other in self.files[mutation.file] if other != number)]


MEMORY_OF_KILLERS = Memory()


def fate_of(mutation: Mutation) -> Fate:
    """Look for a difference of one mutant in every place, until one shows it."""
    started, transitions = time.perf_counter(), 0

    def fate(killer: str, how: str, place: int | None = None) -> Fate:
        gc.collect()
        return Fate(mutation, killer, how, place, transitions, time.perf_counter() - started)

    try:
        with watch():
            package = load({mutation.file: parsed(mutation.file).compiled(mutation.key)})
    except (Exception, OutOfTimeError) as error:
        return fate("import", f"{type(error).__name__}: {error}")
    for number in MEMORY_OF_KILLERS.order(mutation):
        how, steps = difference(WHERE[number], package)
        transitions += steps
        if how:
            MEMORY_OF_KILLERS.killed(mutation, number)
            return fate(title_of(WHERE[number]), how, number)
    return fate("", "")


def difference(where: Place | OffloadPlace | Trial, package: ModuleType) -> tuple[str, int]:
    """Say how a place shows that a package is wrong, if it does, and after how many transitions (0: unknown)."""
    recording = recorded(where.scope) if isinstance(where, Place) else None
    gc.disable()
    try:
        with watch():
            if isinstance(where, OffloadPlace):
                result = explored(where, package)
                return result.violation.detail if result.violation else "", result.transitions
            if not isinstance(where, Place) or recording is None:
                fault = next(where(package), None) if not isinstance(where, Place) else None
                return (f"{fault.law}: {fault.detail}" if fault else ""), 0
            base = adapter_on(package, where.adapter)
            faults, steps = recording.replay(type(base.__name__, (Limited, base), {}))
            return "; ".join(faults), steps
    except OutOfTimeError:
        return "runs on and on", 0
    except Exception as error:
        return f"{type(error).__name__}: {error}", 0
    finally:
        gc.enable()


@cache
def recorded(scope: Scope) -> Recording:
    """Give a scope's recording, made once per process and kept from the garbage collector."""
    recording = Recording(scope)
    gc.collect()
    gc.freeze()
    return recording


@contextmanager
def limited_memory() -> Iterator[None]:
    """Let a mutant that fills the memory fail instead."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, hard))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def fates_of(mutations: list[Mutation]) -> list[Fate]:
    """Try some mutants, one after another."""
    with limited_memory():
        return [fate_of(mutation) for mutation in mutations]


def chosen(profile: Profile) -> list[Mutation]:
    """Give the mutants of a profile, in the order of the sources.

    A sample is drawn by a digest of each mutant's key, so that an edit elsewhere hardly changes it.
    """
    everything = [mutation for file in FILES for mutation in parsed(file).mutations if profile.scope in mutation.key]
    size = SAMPLE.get(profile.name)
    if size is None:
        return everything
    able = [mutation for mutation in everything if mutation.key not in EQUIVALENT]
    picked = {mutation.key for mutation in sorted(able, key=lambda mutation: drawn(mutation.key))[:size]}
    return [mutation for mutation in able if mutation.key in picked]


def drawn(key: str) -> bytes:
    """Give the lot of a mutant."""
    return blake2b(f"{SEED} {key}".encode(), digest_size=8).digest()


def parcels(mutations: list[Mutation], size: int = 12) -> list[list[Mutation]]:
    """Divide mutants so that those of one function are tried by one process, if they are not too many."""
    by_function: dict[tuple[str, str], list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        by_function[mutation.file, mutation.function].append(mutation)
    return [group[at : at + size] for group in by_function.values() for at in range(0, len(group), size)]


def control(numbers: list[int]) -> list[GateResult]:
    """Put the implementation itself through places that killed: one that fails without a mutant kills nothing."""
    package, rows = load(), []
    for where in (WHERE[number] for number in numbers):
        started = time.perf_counter()
        how, steps = difference(where, package)
        seconds = time.perf_counter() - started
        law = "MUTANT-0" if how else ""
        rows.append(GateResult("mutants", title_of(where), CORE, 0, steps, int(bool(how)), seconds, law, how))
    return rows


def work_of(profile: Profile) -> list[tuple[list[Mutation]]]:
    """Give the parcels of a profile's mutants."""
    return [(parcel,) for parcel in parcels(chosen(profile))] if profile.is_ours else []


def killing(fates: list[Fate], size: int = 3) -> list[tuple[list[int]]]:
    """Give the numbers of the places that killed a mutant, in parcels."""
    numbers = sorted({fate.place for fate in fates if fate.place is not None})
    return [(numbers[at : at + size],) for at in range(0, len(numbers), size)]


def size(profile: Profile) -> int:
    """Count the parcels, and the control after them."""
    work = work_of(profile)
    return len(work) + bool(work)


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try the profile's mutants; a row per source, and one for each mutant that lives."""
    work = work_of(profile)
    if not work:
        return []
    fates: list[Fate] = []
    for _, parcel in in_parallel(fates_of, work, profile.jobs):
        fates += parcel
        progress(1, parcel[0].mutation.function)
    places = [row for _, rows in in_parallel(control, killing(fates), profile.jobs) for row in rows]
    progress(1, "the unchanged implementation")
    fates.sort(key=lambda fate: (fate.mutation.file, fate.mutation.line))
    rows = [of_file(file, [fate for fate in fates if fate.mutation.file == file]) for file in FILES]
    rows.append(of_all(fates))
    wrong = [*(row for row in places if row.violations), *(row for fate in fates if (row := of_fate(fate)))]
    return [unchanged(places), *(row for row in rows if row.states), *wrong, *(() if profile.scope else stale())]


def unchanged(places: list[GateResult]) -> GateResult:
    """Give the row of the places in which the implementation itself passes."""
    able = [row for row in places if not row.violations]
    steps, seconds = sum(row.transitions for row in able), sum(row.seconds for row in able)
    return GateResult("mutants", f"unchanged, in {len(able)} places", CORE, 0, steps, 0, seconds)


def of_file(file: str, fates: list[Fate]) -> GateResult:
    """Give the row of a source: its mutants, and how many of them were killed."""
    able = [fate for fate in fates if fate.mutation.key not in EQUIVALENT]
    killed = [fate for fate in able if fate.killer]
    endless = sum(fate.how == "runs on and on" for fate in killed)
    score = 100 * len(killed) / len(able) if able else 100.0
    listed = sum(mutation.key in EQUIVALENT for mutation in parsed(file).mutations)
    detail = (
        f"{len(killed)} of {len(able)} killed ({score:.1f} %), {endless} of them ran on and on; {listed} equivalent"
    )
    steps, seconds = sum(fate.transitions for fate in fates), sum(fate.seconds for fate in fates)
    return GateResult("mutants", file, CORE, len(fates), steps, 0, seconds, detail=detail)


def of_all(fates: list[Fate]) -> GateResult:
    """Give the row of the score, which fails below the floor."""
    able = [fate for fate in fates if fate.mutation.key not in EQUIVALENT]
    killed = sum(bool(fate.killer) for fate in able)
    score = 100 * killed / len(able) if able else 100.0
    low = score < FLOOR
    detail = f"score {score:.1f} %: {killed} of {len(able)} killed, at least {FLOOR} % must be"
    return GateResult("mutants", detail, CORE, len(able), 0, int(low), 0.0, "MUTANT-1" if low else "", detail)


def of_fate(fate: Fate) -> GateResult | None:
    """Give the row of a mutant that lives, or that was killed although it is listed: only the latter is a violation."""
    mutation = fate.mutation
    listed = mutation.key in EQUIVALENT
    if bool(fate.killer) != listed:
        return None
    change = f"{mutation.before} -> {mutation.after}"
    detail = f"listed as equivalent, killed by {fate.killer}: {change}" if listed else f"lives: {change}"
    place = f"{mutation.file}:{mutation.line} {mutation.function}: {detail}"
    law = "MUTANT-1" if listed else ""
    return GateResult("mutants", place, CORE, 1, fate.transitions, int(listed), fate.seconds, law, detail)


def stale() -> Iterator[GateResult]:
    """Give a row for each listed name that the sources do not have any more."""
    keys = {mutation.key for file in FILES for mutation in parsed(file).mutations}
    names = {name for file in FILES for name in parsed(file).names}
    for name in [key for key in EQUIVALENT if key not in keys] + [name for name in LEFT_OUT if bare(name) not in names]:
        yield GateResult("mutants", "lists", CORE, 0, 0, 1, 0.0, "MUTANT-2", f"listed, and no longer there: {name}")


def bare(name: str) -> str:
    """Give the function or class that an entry of `LEFT_OUT` is about."""
    return name.removeprefix("guards of ")

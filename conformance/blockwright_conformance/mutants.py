"""Mutants: every small wrong change of the bookkeeping must make the lock-step fail.

Each mutant is a variant of the implementation, loaded in process; it is put through small places, its function's last
killers first, until one shows a difference, an error, or an action that runs on and on. One that passes wherever its
statement is executed lives, one whose statement no place executes is unreached: both count against the score, unless
the lists of their realm say why nothing can tell them from the original. The unchanged implementation must pass
wherever a mutant was killed: a place that always fails says nothing.

The profile ``pr`` draws a fixed sample; ``nightly`` takes all. Those that are listed are put in together, a few at a
time, at different statements, and none may be caught. Mutants are uncompiled, whatever build the process runs.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from math import inf

from blockwright._terminal import Advance

from . import abstraction_mutants
from .gates import GateResult, Profile
from .mutant_fate import Fate, fate_of, limited_memory
from .mutant_hints import first_places
from .mutant_listed import groups, listed_fates
from .mutant_places import ENDLESS, difference, keep
from .mutant_reach import Reach, able, reach
from .mutant_realm import Realm, title_of
from .mutant_retry import is_known, retried
from .mutation import Mutation
from .parallel import in_parallel
from .realms import REALMS, all_mutations, excuse, parsed, realm, realm_of
from .variants import load

SAMPLE = {"quick": 6, "pr": 200}
"""How many mutants a profile takes; others take all."""
ABSTRACTION = {"quick": 2, "pr": 60}
"""How many mutants of the abstraction it takes."""
FLOOR = {"quick": 0, "pr": 97, "nightly": 100}
"""Per cent of the mutants, listed equivalents aside, that must be killed in the time they are given."""
MOST = {"quick": 0.5, "pr": 0.5}
"""Processor seconds in places that a mutant of a sample is given; what lives that long is not killed."""
SEED = 2

CORE = "uncompiled core"

Work = list[tuple[Mutation, list[int]]]
"""Mutants, each with the numbers of its places."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of some mutants, and which of the places that killed one fail without a mutant, too."""

    fates: list[Fate]
    faults: dict[tuple[str, int], str]


def tried(work: Work, most: float) -> Tried:
    """Try some mutants, and the unchanged implementation wherever one was killed."""
    keep_once()
    with limited_memory():
        fates = [fate_of(mutation, numbers, most) for mutation, numbers in work]
        places = {(realm_of(fate.mutation.file).name, fate.place) for fate in fates if fate.place is not None}
        return Tried(fates, {place: unchanged(*place) for place in sorted(places)})


@cache
def keep_once() -> None:
    """Keep what a process has loaded from the garbage collector."""
    keep()


@cache
def unchanged(name: str, number: int) -> str:
    """Say how the unchanged implementation fails in a place, if it does; once per process."""
    return difference(realm(name).places[number], load())[0]


def tried_listed(file: str, keys: tuple[str, ...], numbers: list[int]) -> Tried:
    """Try mutants that are listed as equivalent."""
    with limited_memory():
        return Tried(listed_fates(file, keys, numbers), {})


def chosen(profile: Profile) -> list[Mutation]:
    """Give the mutants of a profile, in the order of the sources, without those that are listed as equivalent.

    A sample is drawn by a digest of each mutant's key, so that an edit elsewhere hardly changes it.
    """
    able = [mutation for mutation in all_mutations() if profile.scope in mutation.key and not excuse(mutation)]
    size = SAMPLE.get(profile.name)
    if size is None:
        return able
    picked = {mutation.key for mutation in sorted(able, key=lambda mutation: drawn(mutation.key))[:size]}
    return [mutation for mutation in able if mutation.key in picked]


def excused(profile: Profile) -> list[Mutation]:
    """Give the mutants of a profile that are listed as equivalent."""
    return [mutation for mutation in all_mutations() if profile.scope in mutation.key and excuse(mutation)]


def drawn(key: str) -> bytes:
    """Give the lot of a mutant."""
    return blake2b(f"{SEED} {key}".encode(), digest_size=8).digest()


def sampled(profile: Profile, size: int = 10) -> list[tuple[Work, float]]:
    """Divide a sample so that mutants that are looked for in the same place first are tried by one process."""
    work = [(mutation, [] if is_known(mutation) else first_places(mutation)) for mutation in chosen(profile)]
    work.sort(key=lambda each: (realm_of(each[0].file).name, each[1][:1]))
    return [(work[at : at + size], MOST[profile.name]) for at in range(0, len(work), size)]


def of_functions(mutations: list[Mutation], size: int = 12) -> list[list[Mutation]]:
    """Divide mutants so that those of one function are tried by one process, if they are not too many."""
    functions: dict[tuple[str, str], list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        functions[mutation.file, mutation.function].append(mutation)
    return [each[at : at + size] for each in functions.values() for at in range(0, len(each), size)]


def parcels(mutations: list[Mutation], places: dict[str, dict[int, list[int]]]) -> list[tuple[Work, float]]:
    """Give every mutant the places that execute it, its function's last killers first."""

    def work(mutation: Mutation) -> tuple[Mutation, list[int]]:
        numbers = places[mutation.file].get(mutation.line, [])
        return mutation, [number for number in first_places(mutation) if number in numbers]

    return [([work(mutation) for mutation in each], inf) for each in of_functions(mutations)]


def size(profile: Profile) -> int:
    """Count the steps."""
    if not profile.is_ours:
        return 0
    others = len(REALMS) + len(of_abstraction(profile))
    if profile.name in SAMPLE:
        return len(sampled(profile)) + others
    places = sum(len(owner.places) for owner in owners(profile))
    alike = len(groups(excused(profile), defaultdict(dict)))
    return len(of_functions(chosen(profile))) + places + alike + others


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try the profile's mutants; a row per source, and one for each mutant that lives."""
    if not profile.is_ours:
        return []
    found = run_sample(profile, progress) if profile.name in SAMPLE else run_all(profile, progress)
    fates = [fate for each in found for fate in each.fates]
    fates = retried(fates, profile.jobs, profile.name not in SAMPLE, progress)
    if profile.name in SAMPLE:
        found += (again := second_look(fates, profile))
        seen = {fate.mutation.key: fate for each in again for fate in each.fates}
        fates = [seen.get(fate.mutation.key, fate) for fate in fates]
    fates.sort(key=lambda fate: fate.mutation.line)
    faults = {place: fault for each in found for place, fault in each.faults.items()}
    if not fates:
        return abstraction(profile, progress)
    files = [file for each in REALMS for file in each.files]
    rows = [of_file(file, [fate for fate in fates if fate.mutation.file == file]) for file in files]
    wrong = [row for fate in fates if (row := of_fate(fate))]
    return [
        control(faults),
        *(row for row in rows if row.tried),
        of_all(fates, FLOOR[profile.name]),
        *(of_place(*place, fault) for place, fault in faults.items() if fault),
        *wrong,
        *abstraction(profile, progress),
        *(() if profile.scope else stale()),
    ]


def of_abstraction(profile: Profile, size: int = 8) -> list[tuple[tuple[str, ...]]]:
    """Divide the mutants of the abstraction, those of one module together."""
    keys = abstraction_mutants.drawn_keys(ABSTRACTION.get(profile.name), drawn, profile.scope)
    return [(tuple(keys[at : at + size]),) for at in range(0, len(keys), size)]


def abstraction(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try mutants of the abstraction."""
    found = []
    for _, some in in_parallel(abstraction_mutants.verdicts, of_abstraction(profile), profile.jobs):
        found += some
        progress(1, "the abstraction")
    return list(abstraction_mutants.rows_of(found))


def run_sample(profile: Profile, progress: Advance) -> list[Tried]:
    """Try a sample."""
    found = []
    for _, each in in_parallel(tried, sampled(profile), profile.jobs):
        found.append(each)
        progress(1, each.fates[0].mutation.function)
    return found


def second_look(fates: list[Fate], profile: Profile, most: int = 8) -> list[Tried]:
    """Put what the tests that are remembered did not notice through the first places of its realm."""
    left = [fate.mutation for fate in fates if not fate.killer and is_known(fate.mutation)]
    work = [(mutation, places) for mutation in left if (places := first_places(mutation)[:most])]
    return [each for _, each in in_parallel(tried, [(work, MOST[profile.name])], profile.jobs)] if work else []


def owners(profile: Profile) -> list[Realm]:
    """Give the realms of which mutants are tried."""
    scope = profile.scope
    return [each for each in REALMS if any(scope in one.key for file in each.files for one in parsed(file).mutations)]


def run_all(profile: Profile, progress: Advance) -> list[Tried]:
    """Try all mutants, each where it is executed, and then those that are listed."""
    mutations, found = chosen(profile), []
    places: dict[str, dict[int, list[int]]] = {}
    for owner in owners(profile):
        reaches: list[Reach] = []
        for _, one in in_parallel(reach, [(owner.name, number) for number in range(len(owner.places))], profile.jobs):
            reaches.append(one)
            progress(1, "what each place executes")
        places |= able(owner, reaches)
    for _, each in in_parallel(tried, parcels(mutations, places), profile.jobs):
        found.append(each)
        progress(1, each.fates[0].mutation.function)
    for _, each in in_parallel(tried_listed, groups(excused(profile), places), profile.jobs):
        found.append(each)
        progress(1, "what is listed as equivalent")
    return found


# --- the report


def control(faults: dict[tuple[str, int], str]) -> GateResult:
    """Give the row of the places in which the implementation itself passes."""
    able = sum(not fault for fault in faults.values())
    return GateResult("mutants", f"unchanged, in {able} places that killed", CORE, 0, 0, 0, 0.0)


def of_place(name: str, number: int, fault: str) -> GateResult:
    """Give the row of a place that fails without a mutant."""
    return GateResult("mutants", title_of(realm(name).places[number]), CORE, 0, 0, 1, 0.0, "MUTANT-0", fault)


def of_file(file: str, fates: list[Fate]) -> GateResult:
    """Give the row of a source: its mutants, and how many of them were killed."""
    able = [fate for fate in fates if not excuse(fate.mutation)]
    killed = [fate for fate in able if fate.killer]
    endless = sum(fate.how == ENDLESS for fate in killed)
    score = 100 * len(killed) / len(able) if able else 100.0
    listed = sum(bool(excuse(mutation)) for mutation in parsed(file).mutations)
    detail = (
        f"{len(killed)} of {len(able)} killed ({score:.1f} %), {endless} of them ran on and on; {listed} equivalent"
    )
    steps, seconds = sum(fate.transitions for fate in fates), sum(fate.seconds for fate in fates)
    return GateResult("mutants", file, CORE, 0, steps, 0, seconds, detail=detail, tried=len(able), passed=len(killed))


def of_all(fates: list[Fate], floor: int) -> GateResult:
    """Give the row of the score, which fails below the floor."""
    able = [fate for fate in fates if not excuse(fate.mutation)]
    killed = sum(bool(fate.killer) for fate in able)
    score = 100 * killed / len(able) if able else 100.0
    low = score < floor
    detail = f"score {score:.1f} %: {killed} of {len(able)} killed, at least {floor} % must be"
    return GateResult("mutants", detail, CORE, 0, 0, int(low), 0.0, "MUTANT-1" if low else "", detail)


def of_fate(fate: Fate) -> GateResult | None:
    """Give the row of a mutant that lives, or that was killed although it is listed: only the latter is a violation."""
    mutation = fate.mutation
    listed = bool(excuse(mutation))
    if bool(fate.killer) != listed:
        return None
    change = f"{mutation.before} -> {mutation.after}"
    lives = "unreached" if fate.unreached else "lives" if fate.whole else "not killed in its time"
    detail = f"listed as equivalent, killed by {fate.killer}: {change}" if listed else f"{lives}: {change}"
    place = f"{mutation.file}:{mutation.line} {mutation.function}: {detail}"
    law = "MUTANT-1" if listed else ""
    return GateResult("mutants", place, CORE, 0, 0, int(listed), 0.0, law, detail)


def stale() -> Iterator[GateResult]:
    """Give a row for each listed name, key or family that the sources do not have any more."""
    for owner in REALMS:
        keys = {mutation.key for file in owner.files for mutation in parsed(file).mutations}
        names = {name for file in owner.files for name in parsed(file).names}
        gone = [key for key in owner.equivalent if key not in keys]
        gone += [rule.pattern for rule in owner.rules if not any(rule.holds(key) for key in keys)]
        gone += [name for name in owner.left_out if name.removeprefix("guards of ") not in names]
        for name in gone:
            yield GateResult("mutants", "lists", CORE, 0, 0, 1, 0.0, "MUTANT-2", f"listed, and no longer there: {name}")
    for key in abstraction_mutants.stale_keys():
        yield GateResult("mutants", "lists", CORE, 0, 0, 1, 0.0, "MUTANT-2", f"listed, and no longer there: {key}")

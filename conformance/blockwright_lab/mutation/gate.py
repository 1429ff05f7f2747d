"""Gate `mutants`: small wrong changes of the bookkeeping must be noticed by lock-step, trials, proofs or unit tests.

Each mutant is a variant of the implementation, loaded in process; it is put through small places, last killers first,
until one shows a difference, an error, or an action that runs on and on. What no place notices is put before the unit
tests. The unchanged implementation must pass wherever a mutant was killed: a place that always fails says nothing.

The profile ``pr`` draws a fixed sample; ``nightly`` takes all. What must hold is a rate: so many per cent of them are
killed, or listed as survivors with a reason. Mutants are uncompiled, whatever build the process runs.
"""

from collections import defaultdict
from hashlib import blake2b
from math import inf

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.gates import GateResult, Profile

from .mutator import Mutation
from .places import ENDLESS
from .reach import by_line, reach
from .results import Result, Work, tried
from .survivors import is_test, known_killers, reason_for, remember, share
from .targets import TARGETS, Target, all_mutations, target, target_of, title_of
from .unit_tests import Tested, judged

SAMPLE = {"quick": 6, "pr": 200}
"""How many mutants a profile draws; others take all."""
FLOOR = {"quick": 0, "pr": 95, "nightly": 99}
"""Per cent of the mutants that must be killed or listed."""
MOST, LAST = 1.5, 20.0
"""Processor seconds in places that a mutant of a sample is given before it goes to the unit tests, and after them."""
SEED = 2
CORE = "uncompiled core"


def drawn(digest: str) -> bytes:
    """Return the lot of a mutant: a sample is drawn by it, so that an edit elsewhere hardly changes the sample."""
    return blake2b(f"{SEED} {digest}".encode(), digest_size=8).digest()


def chosen(profile: Profile) -> list[Mutation]:
    """Return the mutants of a profile, in the order of the sources."""
    able = [mutation for mutation in all_mutations() if profile.scope in mutation.key]
    size = SAMPLE.get(profile.name, len(able))
    picked = {mutation.digest for mutation in sorted(able, key=lambda each: drawn(each.digest))[:size]}
    return [mutation for mutation in able if mutation.digest in picked]


def batches(mutations: list[Mutation], size: int = 10) -> list[list[Mutation]]:
    """Divide mutants so that those of one source are tried by one process, one after another, a few at a time."""
    by_file: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        by_file[mutation.file].append(mutation)
    return [each[at : at + size] for each in by_file.values() for at in range(0, len(each), size)]


def size(profile: Profile) -> int:
    """Count the steps."""
    return len([each for each in chosen(profile) if not reason_for(each)]) if profile.is_ours else 0


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try the profile's mutants; a row per source, one of the score, and one for each mutant that lives."""
    mutations = chosen(profile) if profile.is_ours else []
    if not mutations:
        return []
    results, faults = attempt([each for each in mutations if not reason_for(each)], profile, progress)
    remember((each.mutation, each.killer) for each in results if each.place is not None or is_test(each.killer))
    listed = [each for each in mutations if reason_for(each)]
    files = dict.fromkeys(mutation.file for mutation in mutations)
    return [
        control(faults),
        *(of_file(file, results, listed) for file in files),
        of_all(results, len(listed), FLOOR[profile.name]),
        *(of_place(*place, fault) for place, fault in faults.items() if fault),
        *(of_survivor(each.mutation) for each in results if not each.killer),
    ]


Faults = dict[tuple[str, int], str]


def attempt(mutations: list[Mutation], profile: Profile, progress: Advance) -> tuple[list[Result], Faults]:
    """Try mutants: before tests known to kill them, in places, and before all tests that execute them."""
    found = {each.key: Result(each) for each in mutations}

    def left() -> list[Mutation]:
        return [each.mutation for each in found.values() if not each.killer]

    def told(results: list[Result]) -> None:
        progress(sum(bool(each.killer) for each in results), results[0].mutation.function if results else "")
        found.update((each.mutation.key, each) for each in results)

    known = [each for each in left() if any(map(is_test, known_killers(each)[:1]))]
    told(before_tests(known, profile.jobs, known=True))
    faults: Faults = {}

    def visit(work: list[tuple[Work, float]]) -> None:
        for _, each in in_parallel(tried, work, profile.jobs):
            told(each.results)
            faults.update(each.faults)

    visit(in_places(left(), profile, progress))
    progress(0, "unit tests")
    if profile.name != "quick":  # a survey of all tests takes longer than the rest of it
        told(before_tests(left(), profile.jobs))
    if profile.name in SAMPLE:
        visit([([(each, numbers(each))], LAST) for each in left()])
    progress(len(left()), "")
    return list(found.values()), faults


def in_places(mutations: list[Mutation], profile: Profile, progress: Advance) -> list[tuple[Work, float]]:
    """Give every mutant its places: by night those that execute its statement, otherwise all, in a limited time."""
    if profile.name in SAMPLE:
        return [([(each, numbers(each)) for each in some], MOST) for some in batches(mutations)]
    lines = reached(mutations, profile, progress)
    return [([(each, lines.get((each.file, each.line), [])) for each in some], inf) for some in batches(mutations)]


def numbers(mutation: Mutation) -> list[int]:
    """Return the numbers of all places of a mutant's target."""
    return list(range(len(target_of(mutation.file).places)))


def reached(mutations: list[Mutation], profile: Profile, progress: Advance) -> dict[tuple[str, int], list[int]]:
    """Return by file and line the places that execute it, in the targets of some mutants."""
    lines: dict[tuple[str, int], list[int]] = {}
    for owner in dict.fromkeys(target_of(mutation.file).name for mutation in mutations):
        progress(0, f"what each place of {owner} executes")
        calls = [(owner, number) for number in range(len(target(owner).places))]
        lines |= by_line(target(owner), [each for _, each in in_parallel(reach, calls, profile.jobs)])
    return lines


def before_tests(mutations: list[Mutation], jobs: int, known: bool = False) -> list[Result]:
    """Put mutants before the unit tests of their targets; targets without any, or away from the tree, kill nothing.

    Raises:
        RuntimeError: a test fails without a mutant.
    """
    calls = [
        (owner.name, part, known)
        for owner in TARGETS
        for part in divided([each for each in mutations if target_of(each.file) is owner], owner, jobs)
    ]
    found: dict[str, Tested] = {}
    for _, each in in_parallel(judged, calls, jobs):
        found |= each
    return [
        Result(each, found[each.key].test, found[each.key].how, visited=found[each.key].tests)
        for each in mutations
        if each.key in found
    ]


def divided(mutations: list[Mutation], owner: Target, jobs: int) -> list[list[Mutation]]:
    """Divide mutants of a target among processes if they are many: each collects the tests, and may survey them."""
    if not mutations or not owner.tests:
        return []
    parts = min(jobs, 1 + len(mutations) // 400)
    return [mutations[at::parts] for at in range(parts)]


# --- the report


def control(faults: Faults) -> GateResult:
    """Return the row of the places in which the implementation itself passes."""
    able = sum(not fault for fault in faults.values())
    return GateResult("mutants", f"unchanged, in {able} places that killed", CORE, 0, 0, 0, 0.0)


def of_place(name: str, number: int, fault: str) -> GateResult:
    """Return the row of a place that fails without a mutant."""
    return GateResult("mutants", title_of(target(name).places[number]), CORE, 0, 0, 1, 0.0, "MUTANT-0", fault)


def of_file(file: str, results: list[Result], listed: list[Mutation]) -> GateResult:
    """Return the row of a source: its mutants, and how many of them were killed."""
    own = [each for each in results if each.mutation.file == file]
    killed = [each for each in own if each.killer]
    endless = sum(each.how == ENDLESS for each in killed)
    known = sum(mutation.file == file for mutation in listed)
    detail = f"{len(killed)} of {len(own)} killed, {endless} of them ran on and on; {known} listed"
    steps, seconds = sum(each.transitions for each in own), sum(each.seconds for each in own)
    return GateResult("mutants", file, CORE, 0, steps, 0, seconds, detail=detail, tried=len(own), passed=len(killed))


def of_all(results: list[Result], listed: int, floor: int) -> GateResult:
    """Return the row of the score, which fails below the floor."""
    killed, total = sum(bool(each.killer) for each in results), len(results) + listed
    score = share(killed, listed, total)
    low = score < floor
    detail = f"score {score:.1f} %: {killed} killed and {listed} listed of {total}, at least {floor} % must be"
    return GateResult("mutants", detail, CORE, 0, 0, int(low), 0.0, "MUTANT-1" if low else "", detail)


def of_survivor(mutation: Mutation) -> GateResult:
    """Return the row of a mutant that lives: no violation by itself."""
    name = f"{mutation.file}:{mutation.line} {mutation.function}"
    detail = f"lives: {mutation.before} -> {mutation.after} ({mutation.digest})"
    return GateResult("mutants", name, CORE, 0, 0, 0, 0.0, detail=detail)

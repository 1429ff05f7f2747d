"""Gate `mutants`: small wrong changes must be noticed by lock-step, laws, unit tests or contracts.

Each mutant, of the implementation or of the specification, is put in place of the original, uncompiled, and the tests
that execute its statement are run, scopes of lock-step among them; what no test notices is put before the contracts
that run its file. The unchanged sources must pass wherever a mutant was killed: a test that always fails says nothing.

The profile ``pr`` draws a fixed sample of three hundred, ``nightly`` takes all. What must hold is a rate: so many per
cent of them are killed, or listed as survivors with a reason. The plug-in's manager, which needs vLLM, is not in it:
``python -m blockwright_lab.mutation.gate plug-in MOST`` puts so many mutants of it before its tests, where vLLM is.
"""

import sys
from hashlib import blake2b

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.gates import GateResult, Profile

from .judge import ENDLESS, Result, judged
from .mutator import Mutation
from .survivors import reason_for
from .targets import ROWS, TARGETS, all_mutations, target, target_of

SAMPLE: dict[str, dict[str, int]] = ROWS["sample"]
"""How many mutants a profile draws; others take all."""
FLOOR: dict[str, dict[str, int]] = ROWS["floor"]
"""Per cent of the mutants that must be killed or listed."""
SEED = 2


def drawn(digest: str) -> bytes:
    """Return the lot of a mutant: a sample is drawn by it, so that an edit elsewhere hardly changes the sample."""
    return blake2b(f"{SEED} {digest}".encode(), digest_size=8).digest()


def sampled(of: str, profile: Profile) -> list[Mutation]:
    able = [each for each in all_mutations() if each.of == of and profile.scope in each.key]
    size = SAMPLE[profile.name].get(of, len(able))
    picked = {mutation.digest for mutation in sorted(able, key=lambda each: drawn(each.digest))[:size]}
    return [mutation for mutation in able if mutation.digest in picked]


def chosen(profile: Profile) -> list[Mutation]:
    return [each for of in FLOOR[profile.name] for each in sampled(of, profile)] if profile.is_ours else []


def size(profile: Profile) -> int:
    return len([each for each in chosen(profile) if not reason_for(each)])


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    mutations = chosen(profile)
    results = attempt([each for each in mutations if not reason_for(each)], profile, progress)
    rows = []
    for of, floor in FLOOR[profile.name].items():
        own = [each for each in results if each.mutation.of == of]
        rows += report(of, [each for each in mutations if each.of == of], own, floor)
    return rows


def report(name: str, mutations: list[Mutation], results: list[Result], floor: int) -> list[GateResult]:
    listed, files = list(filter(reason_for, mutations)), dict.fromkeys(each.file for each in mutations)
    rows = [of_file(file, results, listed) for file in files]
    rows += [of_survivor(each.mutation) for each in results if not each.killer]
    return rows + [of_all(name, results, len(listed), floor)] * bool(files)


def attempt(mutations: list[Mutation], profile: Profile, progress: Advance) -> list[Result]:
    calls = []
    for owner in TARGETS:
        own = [each for each in mutations if target_of(each.file) is owner]
        parts = min(profile.jobs, -(-len(own) // 400))
        calls += [(owner.name, own[at::parts]) for at in range(parts)]
    results: list[Result] = []
    for _, some in in_parallel(judged, calls, profile.jobs):
        progress(len(some), target_of(some[0].mutation.file).name)
        results += some
    return results


def alone(name: str, most: int) -> list[GateResult]:
    owner = target(name)
    able = [each for each in all_mutations() if target_of(each.file) is owner]
    picked = sorted(able, key=lambda each: drawn(each.digest))[:most]
    return report(name, picked, judged(name, [each for each in picked if not reason_for(each)]), owner.floor)


# --- the report


def of_file(file: str, results: list[Result], listed: list[Mutation]) -> GateResult:
    own = [each for each in results if each.mutation.file == file]
    killed = [each for each in own if each.killer]
    endless = sum(each.how == ENDLESS for each in killed)
    known = sum(mutation.file == file for mutation in listed)
    detail = f"{len(killed)} of {len(own)} killed, {endless} of them ran on and on; {known} listed"
    seconds = sum(each.seconds for each in own)
    return GateResult(
        "mutants", file, "uncompiled", 0, 0, 0, seconds, detail=detail, tried=len(own), passed=len(killed)
    )


def of_all(of: str, results: list[Result], listed: int, floor: int) -> GateResult:
    killed, total = sum(bool(each.killer) for each in results), len(results) + listed
    score = 100 * (killed + listed) / max(total, 1)
    low = score < floor
    detail = (
        f"score of the {of} {score:.1f} %: {killed} killed and {listed} listed of {total}, at least {floor} % must be"
    )
    return GateResult("mutants", detail, "uncompiled", 0, 0, int(low), 0.0, "MUTANT-1" if low else "", detail)


def of_survivor(mutation: Mutation) -> GateResult:
    name = f"{mutation.file}:{mutation.line} {mutation.function}"
    detail = f"lives: {mutation.before} -> {mutation.after} ({mutation.digest})"
    return GateResult("mutants", name, "uncompiled", 0, 0, 0, 0.0, detail=detail)


if __name__ == "__main__":
    rows = alone(sys.argv[1], int(sys.argv[2]))
    print(*(f"{row.scope}: {row.detail}" for row in rows), sep="\n")
    sys.exit(any(row.violations for row in rows))

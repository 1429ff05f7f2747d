"""Gate `spec`: wrong specifications must be noticed, most of them by their own laws, with no implementation asked.

A law that nothing breaks says nothing. Small changes of the specification are made, the leaving out of each refusal
among them; what no law notices must differ from the implementation. The laws of plans have altered plans instead: each
must break the law named for it. The profile ``pr`` draws a fixed sample; ``nightly`` takes all mutants, and then
nearly every law must notice one. What must hold is a rate: so many per cent are noticed, or listed with a reason.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.gates import GateResult, Profile
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.offload.directory import DIRECTORY_LAWS
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS, STORAGE_LAWS

from ..mutation.gate import sampled
from ..mutation.mutator import Mutation
from ..mutation.survivors import TREE, reason_for, remember, share
from .mutator import CHAPTERS, all_mutations
from .plans import PLANS, RIGHT
from .results import Result, result_of

ALL_LAWS: tuple[Any, ...] = tuple(
    law
    for law in (*LAWS, *STEP_LAWS, *PAGED_LAWS, *PAGED_STEP_LAWS, *OFFLOAD_LAWS, *PART_FOUR_LAWS)
    if law not in DIRECTORY_LAWS
)
"""Every law of the book."""

SPEC = "specification"
SAMPLE = {"quick": 8, "pr": 80}
"""How many mutants a profile draws; others take all."""
FLOOR = {"quick": 0, "pr": 98, "nightly": 99}
"""Per cent of the mutants that must be noticed or listed."""
LAWS_FLOOR = {"quick": 0, "pr": 50, "nightly": 60}
"""Per cent of those tried that the specification must notice by itself."""
WITNESSED = 90
"""Per cent of the laws that must notice a mutant when all are looked for."""
MEASURED = TREE / "docs" / "data" / "spec_mutants.json"
"""What nightly finds of each law, for documents."""


def chosen(profile: Profile) -> list[Mutation]:
    return sampled(all_mutations(), profile, SAMPLE)


def tried(profile: Profile) -> list[tuple[int, ...]]:
    """Divide the mutants that are not listed, by their numbers in the book: those of one function stay together."""
    keys = {mutation.key for mutation in chosen(profile) if not reason_for(mutation, SPEC)}
    numbers = [number for number, mutation in enumerate(all_mutations()) if mutation.key in keys]
    return [tuple(numbers[at : at + 8]) for at in range(0, len(numbers), 8)]


def results_of(*numbers: int) -> list[Result]:
    mutations = all_mutations()
    return [result_of(mutations[number]) for number in numbers]


def size(profile: Profile) -> int:
    return len(tried(profile)) if profile.is_ours else 0


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Look for the profile's mutants: a row per chapter, the score, and a row for each that nothing notices."""
    if not profile.is_ours or not chosen(profile):
        return []
    results: list[Result] = []
    for _, some in in_parallel(results_of, tried(profile), profile.jobs):
        results += some
        progress(1, some[0].mutation.file)
    remember((each.mutation, each.place) for each in results if each.is_noticed)
    rows = [of_chapter(f"{name}.py", results) for name in CHAPTERS]
    rows = [*(row for row in rows if row.tried), score(results, len(chosen(profile)) - len(results), profile.name)]
    rows += [of_survivor(each) for each in results if not each.is_noticed]
    if profile.name == "nightly" and not profile.scope:
        measured(results)
        rows.append(laws_notice(results))
    return rows if profile.scope else [*rows, plans_are_judged()]


def of_chapter(file: str, results: list[Result]) -> GateResult:
    own = [each for each in results if each.mutation.file == file]
    noticed = [each for each in own if each.is_noticed]
    counts = Counter(each.noticed_by for each in noticed)
    by = ", ".join(f"{count} by {what}" for what, count in counts.most_common())
    steps, seconds = sum(each.transitions for each in own), sum(each.seconds for each in own)
    detail = f"{len(noticed)} of {len(own)} noticed ({by})"
    return GateResult("spec", file, SPEC, len(own), steps, 0, seconds, "", detail, tried=len(own), passed=len(noticed))


def score(results: list[Result], listed: int, profile: str) -> GateResult:
    """Return the row of the score, which fails below the floors."""
    noticed, judged = sum(each.is_noticed for each in results), sum(bool(each.laws) for each in results)
    shares = share(noticed, listed, len(results) + listed), share(judged, 0, len(results))
    low = shares[0] < FLOOR[profile] or shares[1] < LAWS_FLOOR[profile]
    detail = (
        f"score {shares[0]:.1f} %: {noticed} noticed and {listed} listed of {len(results) + listed}, at least "
        f"{FLOOR[profile]} % must be; {shares[1]:.1f} % without the implementation, at least {LAWS_FLOOR[profile]} %"
    )
    return GateResult("spec", "score", SPEC, len(results), 0, int(low), 0.0, "SPEC-1" if low else "", detail)


def of_survivor(result: Result) -> GateResult:
    """Return the row of a mutant that nothing notices: no violation by itself."""
    detail = f"lives ({result.mutation.digest})"
    return GateResult("spec", result.mutation.key, SPEC, 1, result.transitions, 0, result.seconds, "", detail)


def laws_notice(results: list[Result]) -> GateResult:
    """Return the row of the laws that notice no mutant, which fails if they are many."""
    silent = [law.id for law in ALL_LAWS if law.id not in PLANS and not any(law.id in each.laws for each in results)]
    row = missing("laws that notice a mutant", "SPEC-2", silent, len(ALL_LAWS))
    few = share(row.passed, 0, row.tried) < WITNESSED
    return row if few else replace(row, violations=0, law="")


def plans_are_judged() -> GateResult:
    """Return the row of the laws of plans: the right plan breaks none, and each altered one that named for it."""
    wrong = [law.id for law in STORAGE_LAWS if not law.holds(RIGHT) or law.holds(PLANS[law.id])]
    return missing("each law of plans notices an altered plan", "SPEC-3", wrong, len(STORAGE_LAWS))


def missing(title: str, law: str, names: list[str], tried: int) -> GateResult:
    """Return a row that fails if something is missing."""
    detail = f"missing: {', '.join(names)}" if names else ""
    passed = tried - len(names)
    return GateResult(
        "spec", title, SPEC, 0, 0, len(names), 0.0, law if names else "", detail, tried=tried, passed=passed
    )


def measured(results: list[Result], path: Path = MEASURED) -> None:
    """Write what was found of each law: how many mutants it notices, how many no other does, and one for an example."""
    found: dict[str, Any] = {}
    for law in ALL_LAWS:
        noticed = [each for each in results if law.id in each.laws]
        alone = [each for each in noticed if each.seen_by == {law.id}]
        example = next(iter(sorted(each.mutation.key for each in alone or noticed)), "")
        plans = law.id in PLANS
        found[law.id] = {"mutants": len(noticed) + plans, "alone": len(alone) + plans, "witness": example}
    counts = Counter(each.noticed_by for each in results if each.is_noticed)
    reported = {
        "mutants": len(all_mutations()),
        "noticed": sum(counts.values()),
        "noticed_by": dict(counts.most_common()),
        "laws": found,
    }
    path.write_text(json.dumps(reported, indent=1) + "\n", encoding="utf-8")

"""Gate `spec`: wrong specifications must be noticed, most of them by their own laws, with no implementation asked.

A law that nothing breaks says nothing. So each law has a *witness*, a mutant of the specification (or, of the laws of
plans, an altered plan) that breaks it, and no other law in that step, unless others imply it (`IMPLIED`). Each
condition under which the specification refuses a call is left out in turn and must be missed; and a fixed sample of
other mutants, of those known to be noticed, is looked for: it tells when a law grows weaker, and is no score. Where
each is to be found is data (`spec_sample.json`), written by `spec_data`: the gate does what the data says and fails
where it is not so.

The profile ``nightly`` looks for every mutant. Those that are not listed as the same (`EXCUSED`) must be noticed, the
share `FLOOR` of them by anything and the share `LAWS_FLOOR` without asking the implementation; by which is told.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from blockwright._terminal import Advance
from blockwright_spec.chain_laws import OFFLOAD_LAWS
from blockwright_spec.laws import LAWS, STEP_LAWS
from blockwright_spec.paged_step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.storage_laws import PART_FOUR_LAWS, STORAGE_LAWS

from .gates import GateResult, Profile
from .mutation import Mutation
from .parallel import in_parallel
from .spec_excused import EXCUSED, IMPLIED, reason_for
from .spec_fates import Fate, differs_in, fate_of, noticed_in
from .spec_mutation import CHAPTERS, all_guards, all_mutations, chapter, of_mutation
from .spec_places import BY_NAME
from .spec_workers import PLANS, RIGHT

ALL_LAWS: tuple[Any, ...] = (*LAWS, *STEP_LAWS, *PAGED_LAWS, *PAGED_STEP_LAWS, *OFFLOAD_LAWS, *PART_FOUR_LAWS)
"""Every law of the book."""

SPEC = "specification"
BESIDE = "lock-step"
FLOOR = 99
"""Per cent of the mutants that must be noticed, by laws or beside the implementation."""
LAWS_FLOOR = 79
"""Per cent of them that the specification must notice by itself."""
FAR = 6000
"""How far an entry of the data is looked for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What the data says: by what a mutant is noticed, and where."""

    mutant: str
    by: str
    """A law, `UNDEFINED`, `REFUSED`, or lock-step."""
    place: str

    def seen(self) -> str:
        """Look for the mutant; say what is wrong if it is not noticed as it should be."""
        return self.missed(is_alone=False)

    def seen_alone(self) -> str:
        """Look for the mutant of a law: in some step it breaks no other, unless others imply the law."""
        return self.missed(is_alone=self.by not in IMPLIED)

    def missed(self, is_alone: bool) -> str:
        """Say what is wrong if the mutant is not noticed by the law, in some step by it alone if so asked."""
        mutation, place = known(self.mutant), BY_NAME.get(self.place)
        if mutation is None or place is None:
            return f"no longer there: {self.place if mutation else self.mutant}; write the data anew"
        exchange = of_mutation(mutation)
        if self.by == BESIDE:
            found = bool(differs_in(place, exchange, FAR))
        else:
            noticed = noticed_in(place, exchange, self.by, FAR, alone=is_alone)
            found = frozenset((self.by,)) in noticed.together if is_alone else self.by in noticed.lengths
        return "" if found else f"{self.by} does not notice it{' alone' * is_alone} in {self.place}"


@cache
def sample() -> dict[str, list[Entry]]:
    """Give the data: the witnesses of laws, the refusals left out, and other mutants."""
    text = (files(__package__) / "spec_sample.json").read_text(encoding="utf-8")
    return {kind: [Entry(*each) for each in entries] for kind, entries in json.loads(text).items()}


@cache
def by_key() -> dict[str, Mutation]:
    """Give all mutants by their names."""
    return {mutation.key: mutation for mutation in all_mutations()}


def known(key: str) -> Mutation | None:
    """Give the mutant of a name."""
    chapter_of = key.partition(" ")[0]
    if chapter_of.removesuffix(".py") not in CHAPTERS:
        return None
    return next((each for each in chapter(chapter_of).mutations if each.key == key), None)


# --- the fixed sample


def work_of(profile: Profile) -> list[tuple[str, int, int]]:
    """Give the parcels of a profile: a part of the data, and from where to where."""
    if not profile.is_ours:
        return []
    size = 8 if profile.name != "quick" else 2
    kinds = sample() if profile.name != "quick" else {"laws": sample()["laws"][:8]}
    return [(kind, at, at + size) for kind, entries in kinds.items() for at in range(0, len(entries), size)]


def looked_for(kind: str, start: int, stop: int) -> list[GateResult]:
    """Look for some entries of the data."""
    rows = []
    for entry in sample()[kind][start:stop]:
        started = time.perf_counter()
        wrong = entry.seen_alone() if kind == "laws" else entry.seen()
        seconds = time.perf_counter() - started
        law = f"SPEC-{1 + list(sample()).index(kind)}" if wrong else ""
        detail = f"{entry.mutant}: {wrong}" if wrong else ""
        rows.append(GateResult("spec", entry.by, SPEC, 1, 0, int(bool(wrong)), seconds, law, detail))
    return rows


def size(profile: Profile) -> int:
    """Count the parcels."""
    return len(work_of(profile)) + len(chapters(profile))


def chapters(profile: Profile) -> list[str]:
    """Give the chapters of which every mutant is looked for."""
    return [name for name in CHAPTERS if profile.name == "nightly" and profile.scope in name and profile.is_ours]


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Look for the fixed sample; for long, for every mutant too."""
    found: dict[str, list[GateResult]] = {}
    work = work_of(profile)
    for index, rows in in_parallel(looked_for, work, profile.jobs):
        found.setdefault(work[index][0], []).extend(rows)
        progress(1, work[index][0])
    results = [row for kind, rows in found.items() for row in summed(TITLES[kind], rows)]
    if work:
        results += [laws_are_witnessed(), plans_are_judged(), *([guards_are_listed()] if "guards" in found else [])]
    return results + scored(profile, progress)


TITLES = {
    "laws": "each law notices its witness, alone unless others imply it",
    "guards": "each refusal left out is noticed",
    "others": "mutants known to be noticed still are",
}
"""What the parts of the data show."""


def summed(title: str, rows: list[GateResult]) -> list[GateResult]:
    """Give one row for what came out as it must, and those that did not."""
    good = [row for row in rows if not row.violations]
    seconds = sum(row.seconds for row in rows)
    detail = f"{len(good)} of {len(rows)}"
    whole = GateResult("spec", title, SPEC, 0, 0, 0, seconds, "", detail, tried=len(rows), passed=len(good))
    return [whole, *(row for row in rows if row.violations)]


def missing(title: str, law: str, names: list[str], tried: int) -> GateResult:
    """Give a row that fails if something is missing."""
    detail = f"missing: {', '.join(names)}" if names else ""
    return GateResult("spec", title, SPEC, tried, 0, len(names), 0.0, law if names else "", detail)


def laws_are_witnessed() -> GateResult:
    """Give the row that fails if a law has no witness, or a witness names no law."""
    witnessed = {entry.by for entry in sample()["laws"]} | PLANS.keys()
    listed = {law.id for law in ALL_LAWS}
    return missing("every law has a witness", "SPEC-4", sorted(witnessed ^ listed), len(listed))


def guards_are_listed() -> GateResult:
    """Give the row that fails if a refusal is neither looked for nor excused."""
    looked = {entry.mutant for entry in sample()["guards"]}
    left = [guard.key for guard in all_guards() if guard.key not in looked and not reason_for(guard)]
    return missing("every refusal is left out once", "SPEC-5", left, len(looked))


def plans_are_judged() -> GateResult:
    """Give the row of the laws of plans: the right plan breaks none, and each altered one that named for it."""
    broken = [law.id for law in STORAGE_LAWS if not law.holds(RIGHT)]
    unseen = [law.id for law in STORAGE_LAWS if law.id in PLANS and law.holds(PLANS[law.id])]
    row = missing("each law of plans notices an altered plan", "SPEC-1", broken + unseen, len(STORAGE_LAWS))
    return replace(row, tried=len(STORAGE_LAWS), passed=len(STORAGE_LAWS) - len(broken + unseen))


# --- every mutant


def fates_of(name: str) -> list[Fate]:
    """Look for every mutant of a chapter."""
    return [fate_of(mutation) for mutation in chapter(f"{name}.py").mutations]


def scored(profile: Profile, progress: Advance) -> list[GateResult]:
    """Look for every mutant of the profile's chapters: a row for each chapter, and the score."""
    names, rows, fates = chapters(profile), [], list[Fate]()
    if not names:
        return []
    for index, some in in_parallel(fates_of, [(name,) for name in names], profile.jobs):
        rows.append(of_chapter(names[index], some))
        fates += some
        progress(1, names[index])
    return [*rows, score(fates), *(row for fate in fates if (row := of_fate(fate)))]


def of_chapter(name: str, fates: list[Fate]) -> GateResult:
    """Give the row of a chapter."""
    own = counted(fates)
    noticed = sum(fate.is_noticed for fate in own)
    steps, seconds = sum(fate.transitions for fate in fates), sum(fate.seconds for fate in fates)
    detail = f"{noticed} of {len(own)} noticed{by_what(own)}; {len(fates) - len(own)} are the same"
    return GateResult(
        "spec", f"{name}.py", SPEC, len(fates), steps, 0, seconds, "", detail, tried=len(own), passed=noticed
    )


def counted(fates: list[Fate]) -> list[Fate]:
    """Give those that are not listed as the same."""
    return [fate for fate in fates if reason_for(fate.mutation) is None]


def by_what(fates: list[Fate]) -> str:
    """Say by what mutants are noticed."""
    counts = Counter(fate.noticed_by for fate in fates if fate.is_noticed)
    return f" ({', '.join(f'{count} by {by}' for by, count in counts.most_common())})" if counts else ""


def score(fates: list[Fate]) -> GateResult:
    """Give the row of the score, which fails below the floors."""
    own = counted(fates)
    shares = [share(sum(fate.is_noticed for fate in own), own), share(sum(fate.is_judged for fate in own), own)]
    is_low = shares[0] < FLOOR or shares[1] < LAWS_FLOOR
    detail = (
        f"score {shares[0]:.1f} %, {shares[1]:.1f} % without the implementation; at least {FLOOR} and {LAWS_FLOOR} "
        f"must be noticed{by_what(own)}; {len(fates) - len(own)} are the same"
    )
    return GateResult("spec", "score", SPEC, len(own), 0, int(is_low), 0.0, "SPEC-6" if is_low else "", detail)


def share(count: int, of: list[Fate]) -> float:
    """Give per cent."""
    return 100 * count / max(1, len(of))


def of_fate(fate: Fate) -> GateResult | None:
    """Give the row of a mutant that nothing notices, that is noticed though it is excused, or that refutes `IMPLIED`.

    The first is no violation: the score counts it.
    """
    excuse, wrong, lives = reason_for(fate.mutation), "", ""
    if excuse is not None and fate.is_noticed:
        wrong = f"excused as the same ({EXCUSED[excuse].pattern}), and noticed: {', '.join(fate.laws) or fate.beside}"
    elif excuse is None and not fate.is_noticed:
        lives = f"lives: reached in {fate.reached} places, different in {fate.different}"
    if refuted := unfollowed(fate):
        wrong = f"{refuted[0]} is implied by {', '.join(IMPLIED[refuted[0]][0])}, and broken without them"
    if not (wrong or lives):
        return None
    law = "SPEC-8" if refuted else "SPEC-7" if wrong else ""
    return GateResult(
        "spec", fate.mutation.key, SPEC, 1, fate.transitions, int(bool(wrong)), fate.seconds, law, wrong or lives
    )


def unfollowed(fate: Fate) -> list[str]:
    """Give the implied laws that a mutant breaks in a step in which none of those is broken that imply them."""
    return [law for laws in fate.together for law in laws if law in IMPLIED and not {*IMPLIED[law][0]} & {*laws}]

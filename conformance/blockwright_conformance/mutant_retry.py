"""Second look: what no place noticed, or executes, is put before the unit tests of its realm, if the tree has them."""

from collections import defaultdict
from dataclasses import replace

from blockwright._terminal import Advance

from .mutant_fate import Fate
from .mutant_hints import is_test, killer_of
from .mutant_tests import Tested, are_there, function_of, judged, remembered
from .mutation import Mutation
from .parallel import in_parallel
from .realms import REALMS, realm, realm_of


def is_known(mutation: Mutation) -> bool:
    """Tell whether tests that are there are remembered to have killed the mutant, or others of its function."""
    killer = killer_of(mutation.key)
    known = is_test(killer) if killer else function_of(mutation) in remembered()
    return known and are_there(realm_of(mutation.file))


def before_tests(name: str, mutations: list[Mutation], whole: bool) -> dict[str, Tested]:
    """Put mutants of a realm before its tests."""
    return judged(realm(name), mutations, whole)


def retried(fates: list[Fate], jobs: int, whole: bool, progress: Advance) -> list[Fate]:
    """Put the mutants that were not killed before the tests of their realms; give all fates, those anew.

    If not `whole`, before those tests only that are remembered to have killed others of their functions. A realm is a
    step of `progress`.

    Raises:
        RuntimeError: a test fails without a mutant.
    """
    found: dict[str, Tested] = {}
    for owner in REALMS:
        progress(0, f"unit tests of {owner.name}")
        rest = [fate.mutation for fate in fates if not fate.killer and realm_of(fate.mutation.file) is owner]
        if rest and owner.tests and are_there(owner):
            work = [(owner.name, parcel, whole) for parcel in divided(rest, jobs)]
            for _, told in in_parallel(before_tests, work, jobs):
                found |= told
        progress(1, f"unit tests of {owner.name}")
    return [renewed(fate, found.get(fate.mutation.key)) for fate in fates]


def divided(mutations: list[Mutation], jobs: int) -> list[list[Mutation]]:
    """Divide mutants into as many parts as there are processes, those of one function together."""
    by_function: dict[tuple[str, str], list[Mutation]] = defaultdict(list)
    for mutation in mutations:
        by_function[mutation.file, mutation.function].append(mutation)
    parts: list[list[Mutation]] = [[] for _ in range(min(jobs, len(by_function)))]
    for group in sorted(by_function.values(), key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def renewed(fate: Fate, told: Tested | None) -> Fate:
    """Give a fate with what the tests said."""
    if told is None or told.key != fate.mutation.key:
        return fate
    return replace(fate, killer=told.test, how=told.how, visited=fate.visited + told.tests)

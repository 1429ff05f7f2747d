"""Gate `places`: the unchanged implementation shows no fault in any place where known bugs are looked for.

It is loaded as a variant without changes: a law that names a bug must not be broken by the loading itself.
"""

from dataclasses import replace

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile

from .gate import PLACES, row_of, summed


def names_of(profile: Profile) -> list[str]:
    return [name for name, place in PLACES.items() if profile.is_ours and profile.scope in place.title]


def size(profile: Profile) -> int:
    return len(names_of(profile))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    names = names_of(profile)
    rows = in_order(row_of, [(name,) for name in names], names, profile.jobs, progress)
    return [replace(row, kind="places") for row in summed(rows)]

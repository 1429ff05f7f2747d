"""The gate of faults: media that stop or lie while blocks are on their way, and what is left of the blocks."""

from blockwright._terminal import Advance

from .gates import GateResult, Profile
from .offload_crash import RUNS, crash
from .parallel import in_parallel


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Do all runs; other managers have no media."""
    rows: dict[int, GateResult] = {}
    for index, row in in_parallel(crash, [(name, profile.name) for name in chosen(profile)], profile.jobs):
        rows[index] = row
        progress(1, row.scope)
    return [rows[index] for index in sorted(rows)]


def chosen(profile: Profile) -> list[str]:
    """Give the runs of a profile."""
    return [name for name in RUNS if profile.scope in name and profile.is_ours]


def size(profile: Profile) -> int:
    """Count the runs."""
    return len(chosen(profile))

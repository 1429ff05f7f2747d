"""The gate of faults: media that stop or lie while blocks are on their way, and what is left of the blocks."""

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import covered

from .crash import RUNS, crash
from .faults import STORE_EVERYTHING, STORE_RUNS, store_run
from .lent_memory import CLIENT_RUNS, MOONCAKE_EVERYTHING, REAL_RUNS, mooncake_run
from .server import missing


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    names = chosen(profile)
    results = in_order(task, [(name, profile.name) for name in names], names, profile.jobs, progress)
    if results and not profile.scope and profile.name != "quick":
        clients = [row for row in results if row.scope in CLIENT_RUNS]
        results.append(covered("coverage", "all faults of a Mooncake store", clients, MOONCAKE_EVERYTHING))
        if not missing():
            results.append(coverage([row for row in results if row.scope in STORE_RUNS]))
    return results


def task(name: str, profile: str) -> GateResult:
    if name in RUNS:
        return crash(name, profile)
    return store_run(name, profile) if name in STORE_RUNS else mooncake_run(name, profile)


def coverage(results: list[GateResult]) -> GateResult:
    """Return the row that fails if something never happened to a shared store."""
    return covered("coverage", "all faults of shared stores", results, STORE_EVERYTHING)


def chosen(profile: Profile) -> list[str]:
    real = REAL_RUNS if profile.name == "nightly" else ()
    return [name for name in (*RUNS, *STORE_RUNS, *CLIENT_RUNS, *real) if profile.scope in name and profile.is_ours]


def size(profile: Profile) -> int:
    return len(chosen(profile))

"""The gate of faults: media that stop or lie while blocks are on their way, and what is left of the blocks."""

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed, covered

from .crash import RUNS, crash
from .faults import STORE_EVERYTHING, STORE_RUNS, store_run
from .server import missing


def row(name: str, profile: Profile) -> GateResult:
    return crash(name, profile.name) if name in RUNS else store_run(name, profile.name)


def whole(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    """Add the row that fails if something never happened to a shared store."""
    if profile.name == "quick" or missing():
        return rows
    stores = [each for each in rows if each.scope in STORE_RUNS]
    return [*rows, covered("coverage", "all faults of shared stores", stores, STORE_EVERYTHING)]


GATE = Listed((*RUNS, *STORE_RUNS), row, whole)

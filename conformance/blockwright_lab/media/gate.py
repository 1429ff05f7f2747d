"""The gate of faults: media that stop or lie while blocks are on their way, and what is left of the blocks."""

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed, covered

from .crash import RUNS, crash
from .faults import STORE_EVERYTHING, STORE_RUNS, store_run
from .lent_memory import CLIENT_RUNS, MOONCAKE_EVERYTHING, REAL_RUNS, mooncake_run
from .server import missing


def row(name: str, profile: Profile) -> GateResult:
    if name in RUNS:
        return crash(name, profile.name)
    return store_run(name, profile.name) if name in STORE_RUNS else mooncake_run(name, profile.name)


def whole(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    if profile.name == "quick":
        return rows
    clients = [each for each in rows if each.scope in CLIENT_RUNS]
    seen = [covered("coverage", "all faults of a Mooncake store", clients, MOONCAKE_EVERYTHING)]
    if not missing():
        stores = [each for each in rows if each.scope in STORE_RUNS]
        seen.append(covered("coverage", "all faults of shared stores", stores, STORE_EVERYTHING))
    return [*rows, *seen]


GATE = Listed((*RUNS, *STORE_RUNS, *CLIENT_RUNS), row, whole, nightly=REAL_RUNS)

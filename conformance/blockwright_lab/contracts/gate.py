"""Gate `contracts`: contracts are confirmed by CrossHair, or tried and searched, as each says of itself."""

from time import perf_counter
from typing import Final

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed

from . import closed_forms, machine_steps  # noqa: F401  they add contracts
from .contract import CONTRACTS

__all__ = ["CONTRACTS", "GATE"]

TRIES: Final = (30.0, 60.0, 120.0, 240.0)
"""Seconds of each try to confirm a contract, which computes for a few: seldom, one question of z3 does not end."""

SEARCH: Final = {"quick": 0.5, "pr": 0.5, "nightly": 60.0}
"""Seconds for which a contract whose values are tried is searched within its bounds, by profile."""


def row(kind: str, part: str, statement: str, law: str, detail: str, started: float) -> GateResult:
    wrong, seconds = int(detail != ""), perf_counter() - started
    return GateResult(kind, statement, part, 0, 0, wrong, seconds, law * wrong, detail, tried=1, passed=1 - wrong)


def judged(name: str, profile: Profile) -> GateResult:
    each, started = CONTRACTS[int(name.partition(" ")[0])], perf_counter()
    detail = each.fault(TRIES, SEARCH[profile.name])
    return row("contract", f"{each.part}, {each.layer}", each.statement, "CONTRACT-1", detail, started)


GATE = Listed([f"{at} {each.statement}" for at, each in enumerate(CONTRACTS)], judged)

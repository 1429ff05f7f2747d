"""Gate `contracts`: contracts are confirmed by CrossHair, or tried and searched, as each says of itself."""

from time import perf_counter
from typing import Final

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile

from . import closed_forms, machine_steps
from .contract import CONTRACTS

__all__ = ["CONTRACTS", "closed_forms", "machine_steps", "run", "size"]

LONGEST: Final = 900.0
"""Seconds in which a contract must be confirmed, on however busy a machine; each computes for a few at most."""

SEARCH: Final = {"quick": 0.5, "pr": 1.0, "nightly": 60.0}
"""Seconds for which a contract whose values are tried is searched within its bounds, by profile."""


def size(profile: Profile) -> int:
    return len(CONTRACTS) if profile.is_ours else 0


def row(kind: str, part: str, statement: str, law: str, detail: str, started: float) -> GateResult:
    wrong, seconds = int(detail != ""), perf_counter() - started
    return GateResult(kind, statement, part, 0, 0, wrong, seconds, law * wrong, detail, tried=1, passed=1 - wrong)


def judged(at: int, search: float) -> GateResult:
    each, started = CONTRACTS[at], perf_counter()
    detail = each.fault(LONGEST, search)
    return row("contract", f"{each.part}, {each.layer}", each.statement, "CONTRACT-1", detail, started)


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Judge every contract; a row each."""
    calls = [(at, SEARCH[profile.name]) for at in range(size(profile))]
    return in_order(judged, calls, [each.statement for each in CONTRACTS], profile.jobs, progress)

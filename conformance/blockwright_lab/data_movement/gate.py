"""The gate of data that moves: histories of block tables and tiers with real data, and plans of models."""

from dataclasses import replace
from functools import partial

from blockwright._terminal import Advance
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import covered, ran

from ..in_order import in_order
from .offload_scopes import OFFLOAD_HISTORIES
from .offload_scopes import histories as chains
from .tables_scopes import HISTORIES

PLANS = "plans of random models"
MODELS = {"quick": 4, "pr": 12, "nightly": 3000}
"""Models that are planned, per profile."""
PLANNED = frozenset(
    {"plan", "plan of a byte less", "too little memory", "longest that fits", "served", "waste refused"}
)
"""What must have happened to plans."""


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run the histories of every world, and plan models; other managers move no data."""
    if not profile.is_ours:
        return []
    names = chosen(profile)
    results = in_order(task, [(name, profile.name) for name in names], names, profile.jobs, progress)
    if results and not profile.scope and profile.name != "quick":
        results.append(covered("coverage", PLANS, [row for row in results if row.scope == PLANS], PLANNED))
    return results


def chosen(profile: Profile) -> list[str]:
    """Return the names of the parts of a profile: the plans, and the worlds."""
    return [name for name in (*HISTORIES, *OFFLOAD_HISTORIES, PLANS) if profile.scope in name]


def size(profile: Profile) -> int:
    return len(chosen(profile)) * profile.is_ours


def task(name: str, profile: str) -> GateResult:
    """Do one part of the gate: the plans, or the histories of a world."""
    if name == PLANS:
        return plans(MODELS[profile])
    if name in HISTORIES:
        from .tables_histories import histories as of_tables  # it imports torch

        return of_tables(name, profile)
    return chains(name, profile)


def plans(count: int) -> GateResult:
    from .memory_plans import check_model  # it imports torch

    return replace(
        ran("plans", PLANS, (partial(check_model, seed) for seed in range(count))), manager="all", states=count
    )

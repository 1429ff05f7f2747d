"""The gate of data that moves: histories of block tables, tiers and workers with real data, and plans of models."""

import time
from collections import Counter

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_parallel
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import covered
from blockwright_spec.worker.rows import RowRefusal

from .offload_scopes import OFFLOAD_HISTORIES
from .tables_scopes import HISTORIES
from .worker_scopes import INPUT_WORLDS

PLANS = "plans of random models"
MODELS = {"quick": 4, "pr": 12, "nightly": 3000}
"""Models that are planned, per profile."""
CALLS = {"Admit", "Grow", "Batch", "Append", "Fork", "Trim", "Preempt", "Release", "FinishLoad", "Start", "Settle"}
STEPS = {
    "step",
    "apply",
    "second batch",
    "Batch: NO_FREE_BLOCKS",
    "hit of the step",
    "accepted",
    "rejected",
    "TakeCopies",
}
MOVES = {"compact", "swap", "move", "TakeCopies", "left the step", "nothing of a request"}
EVERYTHING = frozenset(CALLS | STEPS | MOVES | {each.name for each in RowRefusal} - {"ILLEGAL_ORDER"})
"""What must have happened: every call, every refusal of a worker, and every way in which a step is made."""
PLANNED = frozenset(
    {"plan", "plan of a byte less", "too little memory", "longest that fits", "served", "waste refused"}
)
"""What must have happened to plans."""


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run the histories of every world, and plan models; other managers move no data."""
    if not profile.is_ours:
        return []
    rows: dict[str, GateResult] = {}
    for _, row in in_parallel(task, [(name, profile.name) for name in chosen(profile)], profile.jobs):
        rows[row.scope] = row
        progress(1, row.scope)
    results = [rows[name] for name in chosen(profile)]
    if results and not profile.scope and profile.name != "quick":
        long = [rows[name] for name in INPUT_WORLDS]
        results.append(covered("coverage", "all worlds of inputs", long, EVERYTHING))
        results.append(covered("coverage", PLANS, [rows[PLANS]], PLANNED))
    return results


def chosen(profile: Profile) -> list[str]:
    """Return the names of the parts of a profile: the plans, and the worlds."""
    return [name for name in (*HISTORIES, *OFFLOAD_HISTORIES, PLANS, *INPUT_WORLDS) if profile.scope in name]


def size(profile: Profile) -> int:
    """Count the runs."""
    return len(chosen(profile)) * profile.is_ours


def task(name: str, profile: str) -> GateResult:
    """Do one part of the gate: the plans, or the histories of a world."""
    if name == PLANS:
        return plans(MODELS[profile])
    if name in HISTORIES:
        from .tables_histories import histories  # it imports torch and Hypothesis

        return histories(name, profile)
    if name in OFFLOAD_HISTORIES:
        from .offload_histories import chain_histories  # it imports Hypothesis

        return chain_histories(name, profile)
    from .worker_histories import inputs_histories  # it imports torch and Hypothesis

    return inputs_histories(name, profile)


def plans(count: int) -> GateResult:
    """Plan some models, and give their row."""
    from .memory_plans import check_model  # it imports torch
    from .worker import InputsError

    started, fired, law, detail = time.perf_counter(), Counter[str](), "", ""
    try:
        for seed in range(count):
            fired += check_model(seed)
    except InputsError as error:
        law, detail = error.law, f"model {seed}: {error.detail}"
    except Exception as error:
        law, detail = "REF-0", f"model {seed}: {type(error).__name__}: {error}"
    seconds = time.perf_counter() - started
    return GateResult(
        "plans", PLANS, "all", count, sum(fired.values()), int(bool(law)), seconds, law, detail, fired=dict(fired)
    )

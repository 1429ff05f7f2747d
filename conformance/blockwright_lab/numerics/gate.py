"""The numerics: a small engine with a real model generates what a dense recomputation of each request says.

Every row is a world: schedules that are drawn, from a fixed seed in the profiles ``quick`` and ``pr``. Nothing
that the manager does, and nothing of the data plane, may change a logit by more than rounding, or a token at all; and
nobody may read what was not written for him, which is poisoned. A feature that never fired fails the gate. That the
known bugs which corrupt data are noticed here is a gate of its own (`damage`).
"""

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import covered

from .engine.worlds import EVERYTHING, WORLDS

KIND = "numerics"

EXAMPLES = {"quick": 4, "pr": 60, "nightly": 9600}
"""Schedules of a world, per profile."""


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Run the schedules of every world; other managers have no engine here."""
    names = chosen(profile)
    results = in_order(task, [(name, profile.name) for name in names], names, profile.jobs, progress)
    if results and not profile.scope and profile.name != "quick":
        results.append(covered("coverage", "all worlds of the engine", results, EVERYTHING))
    return results


def chosen(profile: Profile) -> list[str]:
    return [name for name in WORLDS if profile.is_ours and profile.scope in name]


def size(profile: Profile) -> int:
    return len(chosen(profile))


def task(name: str, profile: str) -> GateResult:
    from .engine.examples import examples  # it imports torch

    return examples(name, EXAMPLES[profile], 0 if profile != "nightly" else None)

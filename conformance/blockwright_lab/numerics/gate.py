"""The numerics: a small engine with a real model generates what a dense recomputation of each request says.

Every row is a world: schedules that are drawn, from a fixed seed in the profiles ``quick`` and ``pr``. Nothing
that the manager does, and nothing of the data plane, may change a logit by more than rounding, or a token at all; and
nobody may read what was not written for him, which is poisoned. A feature that never fired fails the gate. That the
known bugs which corrupt data are noticed here is a gate of its own (`damage`).
"""

from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import Listed, covered

from .engine.worlds import EVERYTHING, WORLDS

EXAMPLES = {"quick": 4, "pr": 36, "nightly": 9600}


def row(name: str, profile: Profile) -> GateResult:
    from .engine.examples import examples  # it imports torch

    return examples(name, EXAMPLES[profile.name], 0 if profile.name != "nightly" else None)


def whole(rows: list[GateResult], profile: Profile) -> list[GateResult]:
    seen = covered("coverage", "all worlds of the engine", rows, EVERYTHING)
    return rows if profile.name == "quick" else [*rows, seen]


GATE = Listed(WORLDS, row, whole)

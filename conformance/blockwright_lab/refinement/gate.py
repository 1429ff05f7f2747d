"""The gate `refinement`: every transition of parts one to three comes to steps of the block machine, or to none.

It needs no implementation. The machine is also explored by itself: its invariants hold in every state of a small pool,
and each of the moves that it allows there is made by some part, so that it allows nothing in vain. That wrong machines
and wrong mappings are noticed is a gate of its own (`mutants`).
"""

import gc
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import LIMIT

from .parts import PARTS
from .small_pool import Explored, explored
from .steps import Move

KIND = "refinement"

EXTENT: dict[str, tuple[int | None, int]] = {"quick": (2, 60), "pr": (5, 700), "nightly": (None, LIMIT)}
"""Per profile: how many states of each level of a scope are left from, and after how many transitions it ends."""


class Followed(NamedTuple):
    """What came of one scope."""

    states: int
    transitions: int
    moves: Counter[Move]
    fault: str
    seconds: float


def scopes(profile: Profile) -> list[tuple[str, str]]:
    name = "pr" if profile.name == "quick" else profile.name
    return [(part, each.name) for part in PARTS for each in PARTS[part].scopes(name) if profile.scope in each.name]


def size(profile: Profile) -> int:
    return len(scopes(profile))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    own, calls = explored(), [(part, name, profile.name) for part, name in scopes(profile)]
    found: dict[str, dict[str, Followed]] = {part: {} for part, _, _ in calls}
    for (part, name, _), followed in zip(
        calls, in_order(follow, calls, [name for _, name, _ in calls], profile.jobs, progress), strict=True
    ):
        found[part][name] = followed
    rows = [row(part, each) for part, each in found.items()]
    if profile.scope:
        return rows
    moves = sum((each.moves for scope in found.values() for each in scope.values()), Counter[Move]())
    return [small_pool(own), *rows, coverage(own, moves)]


def follow(part: str, scope: str, profile: str) -> Followed:
    (each,) = [each for each in PARTS[part].scopes("pr" if profile == "quick" else profile) if each.name == scope]
    width, limit = EXTENT[profile]
    explorer = PARTS[part].explorer(each, limit)
    explorer.width = width
    gc.disable()  # nothing here forms cycles
    try:
        found = explorer.run()
    finally:
        gc.enable()
    wrong = found.violation
    fault = f"{wrong.law}: {wrong.detail} after {wrong.actions}" if wrong else ""
    return Followed(found.states, found.transitions, explorer.moves, fault, found.seconds)


def row(part: str, found: dict[str, Followed]) -> GateResult:
    faults = {name: each.fault for name, each in found.items() if each.fault}
    steps: Counter[str] = Counter()
    for each in found.values():
        for move, times in each.moves.items():
            steps[move.step] += times
    name, fault = next(iter(faults.items()), ("", ""))
    states, transitions = sum(each.states for each in found.values()), sum(each.transitions for each in found.values())
    seconds, law = sum(each.seconds for each in found.values()), fault.partition(":")[0]
    counts, detail = (states, transitions, len(faults), seconds), f"{name}: {fault}" if fault else ""
    return GateResult(KIND, part, f"{len(found)} scopes", *counts, law, detail, fired=dict(steps))


def small_pool(own: Explored) -> GateResult:
    counts = (own.states, own.transitions, int(bool(own.fault)), own.seconds)
    return GateResult(KIND, "the block machine", "small pool", *counts, own.fault.partition(" ")[0], own.fault)


def coverage(own: Explored, moves: Counter[Move]) -> GateResult:
    """Return the row that fails unless the moves of the parts are exactly those that the machine allows."""
    missing, more = own.moves - moves.keys(), moves.keys() - own.moves
    faults = [f"no part makes {each}" for each in sorted(missing)]
    faults += [f"the small pool does not make {each}" for each in sorted(more)]
    law = "SEEN-1" if faults else ""
    fired = {f"{move.step}: {move.before} to {move.after}": moves[move] for move in sorted(moves)}
    row = GateResult(
        "coverage", "all moves of the block machine", "all", len(own.moves), moves.total(), len(faults), 0.0
    )
    tried, passed = len(own.moves | moves.keys()), len(own.moves & moves.keys())
    return replace(row, law=law, detail="; ".join(faults), fired=fired, tried=tried, passed=passed)

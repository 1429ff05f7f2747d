"""The gate `refinement`: every transition of parts one to three comes to steps of the block machine, or to none.

A manager's transition carries its steps (`Done.steps`): each may happen, and they lead to the state after it. Of
other parts they are found from the states. It needs no implementation. The machine is also explored by itself: its
invariants hold in every state of a small pool, and each of the moves that it allows there is made by some part, so
that it allows nothing in vain. That wrong machines and wrong mappings are noticed is a gate of its own (`planted`).
"""

from collections import Counter
from dataclasses import replace

from blockwright._terminal import Advance
from blockwright_conformance.checker.parallel import in_order
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.rows import LIMIT
from blockwright_conformance.rows import explored as of_scope

from .parts import PARTS
from .small_pool import Explored, explored
from .steps import Move

KIND = "refinement"

EXTENT: dict[str, tuple[int | None, int]] = {"quick": (2, 60), "pr": (5, 700), "nightly": (None, LIMIT)}


def scopes(profile: Profile) -> list[tuple[str, str]]:
    name = "pr" if profile.name == "quick" else profile.name
    return [(part, each.name) for part in PARTS for each in PARTS[part].scopes(name) if profile.scope in each.name]


def size(profile: Profile) -> int:
    return len(scopes(profile))


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    own, calls = explored(), [(part, name, profile.name) for part, name in scopes(profile)]
    rows = in_order(follow, calls, [name for _, name, _ in calls], profile.jobs, progress, profile.explorer)
    names = dict.fromkeys(each.manager for each in rows)
    parts = [of_part(name, [each for each in rows if each.manager == name]) for name in names]
    return parts if profile.scope else [small_pool(own), *parts, coverage(own, rows)]


def follow(part: str, scope: str, profile: str) -> GateResult:
    (each,) = [each for each in PARTS[part].scopes("pr" if profile == "quick" else profile) if each.name == scope]
    width, limit = EXTENT[profile]
    explorer = PARTS[part].explorer(each, limit)
    explorer.width = width
    found = explorer.run()
    way = str(found.violation.actions) if found.violation else ""
    moves = {told(move): count for move, count in explorer.moves.items()}
    return replace(of_scope(KIND, found, way), manager=part, fired=moves)


def told(move: Move) -> str:
    return f"{move.step}: {move.before} to {move.after}" + f", {move.users} users" * (move.users > 0)


def of_part(part: str, rows: list[GateResult]) -> GateResult:
    faulty, steps = [each for each in rows if each.violations], Counter[str]()
    for each in rows:
        for move, count in each.fired.items():
            steps[move.partition(":")[0]] += count
    states, transitions, seconds = (
        sum(getattr(each, name) for each in rows) for name in ("states", "transitions", "seconds")
    )
    first = faulty[0] if faulty else replace(rows[0], detail="")
    detail = f"{first.scope}: {first.detail}" if faulty else ""
    counts = {"states": states, "transitions": transitions, "violations": len(faulty), "seconds": seconds}
    return replace(first, scope=part, manager=f"{len(rows)} scopes", detail=detail, fired=dict(steps), **counts)


def small_pool(own: Explored) -> GateResult:
    counts = (own.states, own.transitions, int(bool(own.fault)), own.seconds)
    return GateResult(KIND, "the block machine", "small pool", *counts, own.fault.partition(" ")[0], own.fault)


def coverage(own: Explored, rows: list[GateResult]) -> GateResult:
    """Return the row that fails unless the moves of the parts are exactly those that the machine allows."""
    made, allowed = sum((Counter(each.fired) for each in rows), Counter[str]()), {told(move) for move in own.moves}
    faults = [f"no part makes {each}" for each in sorted(allowed - made.keys())]
    faults += [f"the small pool does not make {each}" for each in sorted(made.keys() - allowed)]
    counts = (len(allowed), made.total(), len(faults), 0.0)
    row = GateResult("coverage", "all moves of the block machine", "all", *counts, "SEEN-1" if faults else "")
    tried, passed = len(allowed | made.keys()), len(allowed & made.keys())
    return replace(row, detail="; ".join(faults), fired=dict(made), tried=tried, passed=passed)

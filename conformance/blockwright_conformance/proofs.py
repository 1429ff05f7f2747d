"""Gate 3, proofs of arithmetic: the implementation's closed forms equal the specification's sets, for all integers.

Both sides are read from the source that runs (see `symbolic`). Each theorem is a formula whose negation z3 shows to
have no solution; n, positions, entries, windows, chunks and block sizes are integers without bounds.
"""

import importlib.util
import time
from collections.abc import Iterator

from blockwright._terminal import Advance

from .gates import GateResult, Profile
from .theorem import Theorem

TIMEOUT_MS = 20_000
"""For one theorem; each takes milliseconds."""


def size(profile: Profile) -> int:
    """Count the theorems."""
    wanted = not profile.scope and profile.is_ours and importlib.util.find_spec("z3") is not None
    try:
        return sum(1 for _ in theorems()) if wanted else 1
    except (NotImplementedError, KeyError):  # `run` says what could not be read
        return 1


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Prove every theorem; without z3, say so in one row."""
    if profile.scope or not profile.is_ours:
        return []
    if importlib.util.find_spec("z3") is None:
        return [GateResult("proof", "skipped", "all", 0, 0, 0, 0.0, detail="not run: z3-solver is not installed")]
    rows = []
    try:
        for theorem in theorems():
            rows.append(proved(theorem))
            progress(1, theorem.statement)
    except (NotImplementedError, KeyError) as error:  # the code has outgrown the reader of formulas
        rows.append(unread(f"{type(error).__name__}: {error}"))
    return rows


def unread(detail: str) -> GateResult:
    """Give the row that says which code could not be read as a formula, and so was not proved."""
    return GateResult("proof", "all closed forms are read", "all", 0, 0, 1, 0.0, law="PROOF-0", detail=detail)


def proved(theorem: Theorem) -> GateResult:
    """Prove one theorem."""
    started = time.perf_counter()
    detail = fault(theorem)
    return GateResult(
        kind="proof",
        scope=theorem.statement,
        manager=theorem.layer,
        states=0,
        transitions=0,
        violations=int(detail != ""),
        seconds=time.perf_counter() - started,
        law="PROOF-1" if detail else "",
        detail=detail,
    )


def fault(theorem: Theorem) -> str:
    """Say why a theorem is not proved, is empty, or divides by what may not be positive; nothing if it is proved."""
    from .symbolic import divisors, z3

    solver = z3.Solver()
    solver.set("timeout", TIMEOUT_MS)
    solver.add(*theorem.assumptions)
    if solver.check() != z3.sat:
        return f"{theorem.layer}: no numbers are known that the assumptions allow"
    for divisor in divisors(theorem.claim):
        if solver.check(divisor <= 0) != z3.unsat:
            return f"{theorem.layer}: {divisor} may not be positive"
    solver.add(z3.Not(theorem.claim))
    answer = solver.check()
    if answer == z3.unsat:
        return ""
    return f"{theorem.layer}: not so for {solver.model()}" if answer == z3.sat else f"{theorem.layer}: undecided"


def theorems() -> Iterator[Theorem]:
    """Give every theorem."""
    from .proof_device import device_theorems
    from .proof_paging import paging_theorems
    from .proof_tables import table_theorems
    from .proof_windows import window_theorems

    yield from window_theorems()
    yield from table_theorems()
    yield from paging_theorems()
    yield from device_theorems()

"""Proofs of arithmetic: the implementation's closed forms equal the specification's sets, for all integers.

Both sides are read from the source that runs (see `symbolic`). Each theorem is a formula whose negation z3 shows to
have no solution; n, positions, entries, windows, chunks and block sizes are integers without bounds. The pool's
invariant is shown to be kept by every transition, for any number of blocks (`pool_invariant`), and those transitions to
be what steps of the specification are made of (`pool_tie`). Contracts try the functions themselves, loops included,
with all small numbers (`contracts`).
"""

import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from blockwright._terminal import Advance
from blockwright_conformance.gates import GateResult, Profile

from .contracts import CONTRACTS, answers
from .theorem import Theorem

TIMEOUT_MS: Final = 60_000
"""For one theorem; each takes milliseconds, the slowest two seconds."""

UNDECIDED: Final = "undecided"

TIED: Final[dict[str, tuple[int, int]]] = {"quick": (16, 120), "pr": (16, 120), "nightly": (1, 2_000)}
"""By profile: of how many scopes one is cut into transitions of the pool, and how many steps of it."""


def size(profile: Profile) -> int:
    if profile.scope or not profile.is_ours or not has_z3():
        return 1
    try:
        theirs = sum(1 for _ in theorems())
    except (NotImplementedError, KeyError):  # `run` says what could not be read
        return 1
    from .pool_invariant import statements

    return theirs + len(statements()) + 1 + len(CONTRACTS)


def has_z3() -> bool:
    return importlib.util.find_spec("z3") is not None


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Prove every theorem and the pool's invariant, and try the contracts; say in a row what cannot be tried."""
    if profile.scope or not profile.is_ours:
        return []
    rows = of_z3(profile, progress) if has_z3() else [untried("proof", "z3-solver", profile)]
    return [*rows, *confirmed(progress)]


def of_z3(profile: Profile, progress: Advance) -> list[GateResult]:
    rows = []
    try:
        for theorem in theorems():
            rows.append(proved(theorem))
            progress(1, theorem.statement)
    except (NotImplementedError, KeyError) as error:  # the code has outgrown the reader of formulas
        rows.append(unread(f"{type(error).__name__}: {error}"))
    return [*rows, *of_pool(progress), tied(profile, progress)]


def untried(kind: str, package: str, profile: Profile) -> GateResult:
    """Return the row that says what was not tried for want of a package: a failure where proofs were asked for."""
    detail = f"not run: {package} is not installed"
    is_asked = profile.proofs
    law = "PROOF-0" if is_asked else ""
    return GateResult(kind, "skipped", "all", 0, 0, int(is_asked), 0.0, law, detail, left_out=True)


def unread(detail: str) -> GateResult:
    """Return the row that says which code could not be read as a formula, and so was not proved."""
    return GateResult("proof", "all closed forms are read", "all", 0, 0, 1, 0.0, law="PROOF-0", detail=detail)


def judged(manager: str, statement: str, started: float, detail: str) -> GateResult:
    """Return the row of a statement; `detail` says why it is not proved, and is empty where it is."""
    seconds = time.perf_counter() - started
    law = "PROOF-1" if detail else ""
    wrong = int(detail != "")
    return GateResult("proof", statement, manager, 0, 0, wrong, seconds, law, detail, tried=1, passed=1 - wrong)


def proved(theorem: Theorem) -> GateResult:
    started = time.perf_counter()
    return judged(theorem.layer, theorem.statement, started, fault(theorem))


def fault(theorem: Theorem, timeout: int = TIMEOUT_MS) -> str:
    """Return why a theorem is not proved, is empty, or divides by what may not be positive; nothing if it is proved."""
    from .symbolic import divisors, z3

    context = z3.Context()  # of its own: how long a proof takes may depend on the terms made before
    solver, claim = z3.Solver(ctx=context), theorem.claim.translate(context)
    solver.set("timeout", timeout)
    solver.add(*[each.translate(context) for each in theorem.assumptions])
    if (answer := solver.check()) != z3.sat:
        return f"{theorem.layer}: {UNDECIDED if answer == z3.unknown else 'the assumptions allow no numbers'}"
    for divisor in divisors(claim):
        if solver.check(divisor <= 0) != z3.unsat:
            return f"{theorem.layer}: {divisor} may not be positive"
    solver.add(z3.Not(claim))
    answer = solver.check()
    if answer == z3.unsat:
        return ""
    return f"{theorem.layer}: not so for {solver.model()}" if answer == z3.sat else f"{theorem.layer}: {UNDECIDED}"


def chapters() -> list[Callable[[], Iterator[Theorem]]]:
    from .device import device_theorems
    from .paging import paging_theorems
    from .tables import table_theorems
    from .windows import window_theorems

    return [window_theorems, table_theorems, paging_theorems, device_theorems]


def theorems() -> Iterator[Theorem]:
    for chapter in chapters():
        yield from chapter()


def of_pool(progress: Advance) -> Iterator[GateResult]:
    """Prove that the pool's invariant holds at first, and that every transition keeps it."""
    from .pool_invariant import fault, statements

    for name, clause in statements():
        started = time.perf_counter()
        keeps = "has" if name == "a new pool" else "keeps"
        detail = fault((name, clause), TIMEOUT_MS)
        yield judged("pool", f"{name} {keeps} {clause}, for any number of blocks", started, detail)
        progress(1, f"{name}: {clause}")


def tied(profile: Profile, progress: Advance) -> GateResult:
    """Cut steps of the specification into transitions of the pool, each of which must happen."""
    from blockwright_conformance.kv_cache.scopes import PROFILES

    from .pool_model import TRANSITIONS
    from .pool_tie import TiedExplorer

    started, states, transitions, broken = time.perf_counter(), 0, 0, ""
    counts: Counter[str] = Counter()
    every, most = TIED.get(profile.name, TIED["pr"])
    # The proved pool knows no hints, by which a duplicate of a candidate is emptied (SHARE-4).
    pr = [scope for scope in PROFILES["pr"] if not scope.config.added.retains]
    resetting = [scope for scope in pr if "reset" in scope.calls]
    for scope in dict.fromkeys((*pr[::every], *resetting[::every])):
        explorer = TiedExplorer(scope, most)
        result = explorer.run()
        states, transitions = states + result.states, transitions + result.transitions
        counts += explorer.counts
        if result.violation and not broken:
            broken = f"{scope.name}: {result.violation.detail} after {result.violation.actions}"
    never = [name for name in TRANSITIONS if not counts[name]]
    if never and not broken:
        broken = f"never seen: {', '.join(never)}"
    progress(1, "steps of the specification")
    law, seconds = "PROOF-2" if broken else "", time.perf_counter() - started
    statement = "steps of the specification are those of the proved pool"
    return GateResult("tie", statement, "pool", states, transitions, int(broken != ""), seconds, law, broken)


def confirmed(progress: Advance) -> Iterator[GateResult]:
    for name, said, seconds in answers(CONTRACTS):
        law, wrong = "PROOF-3" if said else "", int(bool(said))
        yield GateResult("contract", name, "all", 0, 0, wrong, seconds, law, said, tried=1, passed=1 - wrong)
        progress(1, name)

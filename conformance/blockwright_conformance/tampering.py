"""Tampering is noticed: each law removed, each refusal weakened, each scope skipped, exhibits taken away.

Each tamper is done, and the gate that then fails is run and named; a tamper that no gate misses is a fault of theirs.
``python -m blockwright_conformance.tampering`` does all of them, ``--sample N`` every N-th, and prints a table.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from blockwright._terminal import print_table

from . import museum, scope_goals, spec_mutants
from .gates import GateResult
from .museum_corpus import owed
from .spec_mutants import ALL_LAWS, BESIDE, SPEC, Entry, sample
from .spec_mutation import put_in, removed
from .spec_places import BY_NAME
from .spec_workers import PLANS


@dataclass(frozen=True, slots=True)
class Tamper:
    """Something that is done to the checks, and what fails then: the gate, and what it says; empty if nothing does."""

    sort: str
    name: str
    fails: Callable[[], tuple[str, str]]


def tampers() -> Iterator[Tamper]:
    """Give all tampers."""
    yield from (Tamper("law removed", law.id, partial(law_removed, law.id)) for law in ALL_LAWS)
    yield from (
        Tamper("refusal left out", entry.mutant, partial(refusal_missed, entry)) for entry in sample()["guards"]
    )
    yield from (Tamper("scope skipped", name, partial(scope_skipped, name)) for name in scope_goals.names())
    yield Tamper("museum emptied", "all exhibits", partial(exhibits_gone, ""))
    yield from (Tamper("exhibit taken away", each.id, partial(exhibits_gone, each.id)) for each in museum.EXHIBITS)


def law_removed(law: str) -> tuple[str, str]:
    """Have a law say that all is well: its witness is not noticed any more, by name, and gate `spec` fails."""
    holds = next(each.holds for each in ALL_LAWS if each.id == law)
    with put_in(removed(holds)):
        if law in PLANS:
            return failed("spec", spec_mutants.plans_are_judged())
        entry = next((each for each in sample()["laws"] if each.by == law), None)
        wrong = entry.seen() if entry is not None else "it has no witness"
    return ("spec", f"{entry.mutant if entry else law}: {wrong}") if wrong else ("", "")


def refusal_missed(entry: Entry) -> tuple[str, str]:
    """Leave a refusal out, and name the gate that misses it: `spec`, or the one that looks at the implementation."""
    wrong = entry.seen()
    gate = BY_NAME[entry.place].gate if entry.by == BESIDE else "spec"
    return ("", "") if wrong else (gate, f"{entry.by}, in {entry.place}")


def scope_skipped(name: str) -> tuple[str, str]:
    """Leave a scope out: goals that it alone met are not met, and the row `coverage` of its gate fails."""
    return failed(scope_goals.gate_of(name), scope_goals.goals_met(name))


def exhibits_gone(name: str) -> tuple[str, str]:
    """Take an exhibit away, or all (no name): the museum owes it."""
    left = tuple(each for each in museum.EXHIBITS if name and each.id != name)
    rows = [GateResult("museum", f"{each.id} {each.title}", SPEC, 0, 0, 0, 0.0) for each in left]
    return failed("museum", owed(rows, left, museum.NOT_POSSIBLE))


def failed(gate: str, row: GateResult) -> tuple[str, str]:
    """Give a gate and what it says, if its row fails."""
    return (gate, f"{row.law}: {row.detail}") if row.violations else ("", "")


def row_of(tamper: Tamper) -> GateResult:
    """Do one tamper, and give its row: a violation if no gate fails."""
    started = time.perf_counter()
    gate, said = tamper.fails()
    seconds = time.perf_counter() - started
    row = GateResult("tampering", f"{tamper.sort}: {tamper.name}", gate, 1, 0, int(not gate), seconds)
    law, detail = ("", f"{gate}: {said}") if gate else ("TAMPER-1", "no gate fails")
    return replace(row, law=law, detail=detail, tried=1, passed=int(bool(gate)))


def main() -> int:
    """Do tampers, print what failed, and say by the exit code whether all were noticed."""
    parser = argparse.ArgumentParser(prog="python -m blockwright_conformance.tampering", description=__doc__)
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every N-th tamper")
    parser.add_argument("--scope", default="", metavar="TEXT", help="only tampers whose names contain TEXT")
    args = parser.parse_args()
    chosen = [each for each in tampers() if args.scope in f"{each.sort}: {each.name}"][:: args.sample]
    rows = [row_of(each) for each in chosen]
    cells = [(*row.scope.split(": ", 1), row.manager or "none", row.detail, f"{row.seconds:.2f}") for row in rows]
    unnoticed = sum(row.violations for row in rows)
    footer = f"{len(rows)} tampers, {unnoticed} unnoticed"
    print_table("tampering", ("tamper", "of", "gate that fails", "what it says", "seconds"), cells, footer)
    return int(unnoticed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

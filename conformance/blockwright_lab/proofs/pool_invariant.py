"""An inductive invariant of the pool, for any number of blocks: z3 shows that it holds at first, and stays.

The formulas are those of `pool_model`. Each clause of the invariant after each transition is a theorem; so is each law
of the specification at the start. Where a clause is not shown, the transition is tried on a few blocks, for numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from . import pool_model
from .pool_model import Algebra, Clauses, Formula, Keys, Pool, Transition, initial, invariant, step_laws
from .symbolic import z3

FEW = 4
"""Blocks of a counterexample, the null block included."""


class Terms(Algebra):
    """Reads formulas as terms."""

    sort: Any
    num_blocks: Any
    given: Sequence[Formula] = ()

    def both(self, *said: Formula) -> Formula:
        return z3.And(*said)

    def either(self, *said: Formula) -> Formula:
        return z3.Or(*said)

    def no(self, said: Formula) -> Formula:
        return z3.Not(said)

    def pick(self, condition: Formula, then: Any, other: Any) -> Any:
        return z3.If(condition, then, other)


class Endless(Terms):
    """Reads formulas over all integers and all contents."""

    def __init__(self) -> None:
        self.sort = z3.DeclareSort("Content")
        self.num_blocks = z3.Int("num_blocks")
        self.given = [self.num_blocks >= 2]

    def blocks(self, said: Callable[..., Formula], count: int = 1) -> Formula:
        names = z3.Ints("b c")[:count]
        return z3.ForAll(names, said(*names))

    def contents(self, said: Callable[[Any, Any], Formula]) -> Formula:
        block, content = z3.Int("b"), z3.Const("k", self.sort)
        return z3.ForAll([block, content], said(block, content))

    def twice(self, said: Callable[[Any, Any, Any], Formula]) -> Formula:
        block, one, other = z3.Int("b"), z3.Const("k", self.sort), z3.Const("m", self.sort)
        return z3.ForAll([block, one, other], said(block, one, other))


@cache
def few_contents() -> Any:
    return z3.EnumSort("FewContents", ["content_0", "content_1", "content_2"])


class Few(Terms):
    """Reads formulas over a few blocks and contents, so that what fails has numbers."""

    def __init__(self) -> None:
        self.num_blocks = z3.IntVal(FEW)
        self.ids = [z3.IntVal(block) for block in range(FEW)]
        self.sort, self.kinds = few_contents()


def pool(q: Terms, name: str) -> Pool:
    whole, truth, content = z3.IntSort(), z3.BoolSort(), q.sort
    return Pool(
        q.num_blocks,
        z3.Bool("caching"),
        z3.Const("nothing", content),
        z3.Function(f"ref_{name}", whole, whole),
        z3.Function(f"queued_{name}", whole, truth),
        z3.Function(f"pos_{name}", whole, whole),
        z3.Function(f"published_{name}", whole, content, truth),
        z3.Function(f"keyed_{name}", whole, truth),
        z3.Function(f"key_{name}", whole, content),
        z3.Function(f"content_{name}", whole, content),
    )


def argument(q: Terms, name: str) -> Any:
    whole, truth = z3.IntSort(), z3.BoolSort()
    if name == "publish":
        return Keys(z3.Function("fresh", whole, truth), z3.Function("what", whole, q.sort))
    return z3.Function("into", whole, q.sort) if name == "write" else z3.Function("times", whole, whole)


def steps(q: Terms, name: str, transition: Transition) -> Iterator[tuple[str, list[Formula], Formula]]:
    """Yield, for each clause of the invariant, what a transition assumes and what has to follow."""
    before, after, amount = pool(q, "before"), pool(q, "after"), argument(q, name)
    assumed = [
        *q.given,
        *invariant(q, before).values(),
        *transition.guards(q, before, amount).values(),
        *transition.effects(q, before, after, amount).values(),
    ]
    for clause, formula in (invariant(q, after) | step_laws(q, before, after, name, amount)).items():
        yield clause, assumed, formula


def starts(q: Terms) -> Iterator[tuple[str, list[Formula], Formula]]:
    """Yield, for each clause of the invariant, that it holds of a new pool."""
    first = pool(q, "first")
    for clause, formula in invariant(q, first).items():
        yield clause, [*q.given, *initial(q, first).values()], formula


def unproved(assumed: list[Formula], formula: Formula, milliseconds: int) -> Any:
    """Return z3's answer where a formula does not follow: a model or None (undecided); False where it does follow."""
    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    solver.add(*assumed, z3.Not(formula))
    answer = solver.check()
    if answer == z3.unsat:
        return False
    return solver.model() if answer == z3.sat else None


Statement = tuple[str, str]
"""The transition, or ``a new pool``, and the clause of the invariant."""


def statements() -> list[Statement]:
    q = Few()
    return [(name, clause) for name in ("a new pool", *pool_model.TRANSITIONS) for clause in formulas(q, name)]


def fault(statement: Statement, milliseconds: int) -> str:
    """Return why a clause does not stay; nothing where it is proved for any number of blocks."""
    name, clause = statement
    assumed, formula = formulas(Endless(), name)[clause]
    if unproved(assumed, formula, milliseconds) is False:
        return ""
    assumed, formula = formulas(Few(), name)[clause]
    found = unproved(assumed, formula, milliseconds)
    return f"pool: undecided, though true of {FEW} blocks" if found is False else f"pool: not so for {found}"


def formulas(q: Terms, name: str) -> dict[str, tuple[list[Formula], Formula]]:
    found = starts(q) if name == "a new pool" else steps(q, name, pool_model.TRANSITIONS[name])
    return {clause: (assumed, formula) for clause, assumed, formula in found}


def without(transition: Transition, guard: str) -> Transition:
    """Return a transition without one of its guards or effects: what the tests show to be needed."""

    def fewer(clauses: Clauses) -> Clauses:
        return {name: formula for name, formula in clauses.items() if name != guard}

    return Transition(
        lambda q, s, amount: fewer(transition.guards(q, s, amount)),
        lambda q, s, t, amount: fewer(transition.effects(q, s, t, amount)),
    )

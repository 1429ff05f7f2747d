"""Mutants before the proofs: a theorem that reads a function as a formula must not be proved of a wrong one.

The chapters of theorems (`proofs`) that read the function are made once more, of the changed source; those theorems
whose formulas are no longer what they were are tried. One for which numbers are found that refute it kills the mutant:
gate 3 would fail by it. A function that cannot be read any more, or a theorem that stays undecided, kills nothing here.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from ..known_bugs.variants import PACKAGE
from ..proofs.gate import UNDECIDED, chapters, fault, has_z3
from ..proofs.theorem import Theorem
from .mutator import Mutation
from .targets import parsed

TIMEOUT_MS = 500
"""For one theorem of a mutant: numbers that refute one are found in milliseconds."""


class Chapter(NamedTuple):
    """What makes the theorems of a chapter, those of the unchanged source, and the functions that they read."""

    make: Callable[[], Iterator[Theorem]]
    theorems: list[Theorem]
    read: frozenset[str]


@cache
def book() -> list[Chapter]:
    from ..proofs import symbolic

    before, found = set(symbolic.READ), []
    for make in chapters():
        symbolic.READ.clear()
        theorems = list(make())
        found.append(Chapter(make, theorems, frozenset(symbolic.READ)))
    symbolic.READ |= before
    return found


def module_of(file: str) -> str:
    return f"{PACKAGE}.{file.removesuffix('.py').replace('/', '.')}"


def chapters_about(mutation: Mutation) -> list[Chapter]:
    """Return the chapters that read the function of a mutant; none without z3."""
    name = f"{module_of(mutation.file)}:{mutation.function}"
    return [chapter for chapter in book() if name in chapter.read] if has_z3() else []


def refuted(mutation: Mutation) -> tuple[str, str]:
    """Return the statement of a theorem that does not hold of a mutant, and how it fails; nothing if all do."""
    from ..proofs import symbolic

    about = chapters_about(mutation)
    if not about:
        return "", ""
    source, module = parsed(mutation.file), module_of(mutation.file)
    undo = source.swaps[mutation.key]()
    symbolic.INSTEAD[module] = ast.fix_missing_locations(source.tree)
    try:
        return next((failed for chapter in about for failed in failures(chapter)), ("", ""))
    finally:
        del symbolic.INSTEAD[module]
        undo()


def failures(chapter: Chapter) -> Iterator[tuple[str, str]]:
    """Return the theorems of a chapter that are refuted: the statement, and the numbers."""
    made = chapter.make()
    for was in chapter.theorems:
        try:
            theorem = next(made)
        except Exception:  # what cannot be read as a formula any more is left to tests
            return
        if not same(was, theorem):
            how = fault(theorem, TIMEOUT_MS)
            if how and not how.endswith(UNDECIDED):
                yield f"proof: {theorem.statement}", how.replace("\n", " ")


def same(one: Theorem, other: Theorem) -> bool:
    mine, theirs = [*one.assumptions, one.claim], [*other.assumptions, other.claim]
    return len(mine) == len(theirs) and all(alike(a, b) for a, b in zip(mine, theirs, strict=True))


def alike(a: Any, b: Any) -> bool:
    return bool(a.eq(b)) if hasattr(a, "eq") and hasattr(b, "eq") else bool(a is b or (type(a) is type(b) and a == b))

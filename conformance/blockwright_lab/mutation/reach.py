"""Which statements a place executes: nightly looks for a mutant only where its statement is at work.

The sources of a target are loaded with a mark before every statement of every function, and the unchanged
implementation goes through each place once.
"""

import ast
import gc
import time
from functools import cache
from types import CodeType
from typing import NamedTuple

from ..known_bugs.changes import ROOT, source_of
from ..known_bugs.variants import load
from .mutator import functions
from .places import difference, prepared
from .targets import Target, target

MARKS: dict[str, set[int]] = {}
"""Lines of statements that were executed, by file."""


class Reach(NamedTuple):
    """What one place executes, by file, and the processor time of a visit."""

    place: int
    lines: dict[str, frozenset[int]]
    seconds: float


def marked(file: str) -> CodeType:
    """Return the code of a source in which every statement of a function is marked when it is executed."""
    tree = ast.parse(source_of(file))
    for _, function in functions(tree, ""):
        for node in ast.walk(function):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [each for statement in block for each in (mark(statement), statement)])
    head = f"from {__name__} import MARKS\n__mark__ = MARKS.setdefault({file!r}, set()).add"
    at = sum(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
    at += isinstance(tree.body[0], ast.Expr)
    tree.body[at:at] = ast.parse(head).body
    return compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec", dont_inherit=True)


def mark(statement: ast.stmt) -> ast.stmt:
    """Return the statement that marks another one."""
    call = ast.Call(ast.Name("__mark__", ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.copy_location(ast.Expr(call), statement)


@cache
def marked_files(name: str) -> dict[str, CodeType]:
    """Return the marked sources of a target."""
    return {file: marked(file) for file in target(name).files}


def reach(name: str, number: int) -> Reach:
    """Visit a place with the marked, otherwise unchanged implementation; what an import executes counts too."""
    where = target(name).places[number]
    prepared(where)
    for marks in MARKS.values():
        marks.clear()
    package = load(marked_files(name))
    started = time.process_time()
    difference(where, package)
    seconds = time.process_time() - started
    gc.collect()
    return Reach(number, {file: frozenset(marks) for file, marks in MARKS.items() if marks}, seconds)


def by_line(owner: Target, reaches: list[Reach]) -> dict[tuple[str, int], list[int]]:
    """Return, by file and line, the places that execute it, those first that take least time."""
    places: dict[tuple[str, int], list[int]] = {}
    for each in sorted(reaches, key=lambda each: each.seconds):
        for file, lines in each.lines.items():
            for line in lines if file in owner.files else ():
                places.setdefault((file, line), []).append(each.place)
    return places

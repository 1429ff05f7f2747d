"""Which statements a place executes: a mutant is looked for only where its statement is at work.

The sources of a realm are loaded with a mark before every statement of every function, and the unchanged
implementation goes through each place once. A statement that no place reaches is a missing place: its mutants are
reported as unreached, and no place is visited for them.
"""

import ast
import gc
import time
from dataclasses import dataclass
from functools import cache
from types import CodeType

from .exhibit import Place, TablesPlace
from .mutant_places import difference, recorded
from .mutant_realm import Realm
from .mutation import functions
from .realms import realm
from .variants import ROOT, load, source_of

MARKS: dict[str, set[int]] = {}
"""Lines of statements that were executed, by file."""

BLOCKS = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True)
class Reach:
    """What one place executes, by file (imports apart), and the processor time of a visit."""

    place: int
    lines: dict[str, frozenset[int]]
    seconds: float
    fault: str
    """How the unchanged implementation fails there, if it does."""


def marked(file: str) -> CodeType:
    """Give the code of a source in which every statement of a function is marked when it is executed."""
    tree = ast.parse(source_of(file))
    for _, function in functions(tree, ""):
        for node in ast.walk(function):
            for name in (*BLOCKS, "handlers"):
                block = getattr(node, name, None)
                if isinstance(block, list) and name in BLOCKS:
                    setattr(node, name, [each for statement in block for each in (mark(statement), statement)])
    head = f"from blockwright_conformance.mutant_reach import MARKS\n__mark__ = MARKS.setdefault({file!r}, set()).add"
    at = sum(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
    at += isinstance(tree.body[0], ast.Expr)
    tree.body[at:at] = ast.parse(head).body
    return compile(ast.fix_missing_locations(tree), str(ROOT / file), "exec", dont_inherit=True)


def mark(statement: ast.stmt) -> ast.stmt:
    """Give the statement that marks another one."""
    call = ast.Call(ast.Name("__mark__", ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.copy_location(ast.Expr(call), statement)


@cache
def marked_files(name: str) -> dict[str, CodeType]:
    """Give the marked sources of a realm."""
    return {file: marked(file) for file in realm(name).files}


def reach(name: str, number: int) -> Reach:
    """Visit a place with the marked, otherwise unchanged implementation."""
    where = realm(name).places[number]
    if isinstance(where, Place | TablesPlace):
        recorded(where.scope)
    package = load(marked_files(name))
    at_import = {file: set(marks) for file, marks in MARKS.items()}
    for marks in MARKS.values():
        marks.clear()
    started = time.process_time()
    fault, _ = difference(where, package)
    seconds = time.process_time() - started
    lines = {file: frozenset(marks | at_import[file]) for file, marks in MARKS.items() if marks}
    for marks in MARKS.values():
        marks.clear()
    gc.collect()
    return Reach(number, lines, seconds, fault)


def imported(name: str) -> dict[str, frozenset[int]]:
    """Give the statements that are executed when the package is imported."""
    for marks in MARKS.values():
        marks.clear()
    load(marked_files(name))
    lines = {file: frozenset(marks) for file, marks in MARKS.items()}
    for marks in MARKS.values():
        marks.clear()
    return lines


def able(owner: Realm, reaches: list[Reach]) -> dict[str, dict[int, list[int]]]:
    """Give, by file and line, the places that execute it, those first that take least time."""
    places: dict[str, dict[int, list[int]]] = {file: {} for file in owner.files}
    for each in sorted(reaches, key=lambda each: each.seconds):
        for file, lines in each.lines.items():
            for line in lines:
                places[file].setdefault(line, []).append(each.place)
    return places

"""Wrong block machines and wrong mappings: the gate `refinement` must notice each of them.

Of the page every step is left out in turn, and every part of a condition that stands in a guard, or in what tells
whether an entry is dead. A wrong page is noticed by itself, since an invariant breaks in the small pool or another move
becomes possible there, or because some scope has a transition that it does not allow. A wrong mapping is noticed in a
scope of its part.
"""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from blockwright_spec import block_machine

from . import maps
from .parts import PARTS
from .small_pool import Explored, explored

WIDTH, LIMIT = 3, 400
"""How far a scope is explored in which something wrong is to be noticed."""

SCOPE = "the manager", "sliding 2, block 1: in flight, eager"
"""Where a wrong page is tried that the small pool does not notice."""


BENDS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("bends.toml").read_text(encoding="utf-8"))["where"]
"""The wrong mappings, by the part and the scope in which each is noticed."""


class Mutant(NamedTuple):
    """A wrong page; or a wrong mapping, with the part and the scope that notice it."""

    name: str
    source: str
    where: tuple[str, str] | None = None


def mutants() -> Iterator[Mutant]:
    yield from pages()
    text = source_of(maps)
    for row in BENDS:
        for name, old, new in row["bends"]:
            if text.count(old) != 1:
                raise ValueError(f"{name}: {old!r} stands {text.count(old)} times in maps.py, not once")
            yield Mutant(name, text.replace(old, new), (row["part"], row["scope"]))


def source_of(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def pages() -> Iterator[Mutant]:
    """Return the wrong pages: without a step, and without a part of a condition."""
    for step in block_machine.STEPS:
        yield Mutant(f"no {step.__name__}", f"{source_of(block_machine)}\ndel {step.__name__}\n")
    for number, (function, condition) in enumerate(conditions(ast.parse(source_of(block_machine)))):
        tree = ast.parse(source_of(block_machine))
        _, same = list(conditions(tree))[number]
        yield Mutant(f"{function}: without {ast.unparse(condition)}", ast.unparse(Without(same).visit(tree)))


def conditions(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Return every condition that guards a step, and each of its parts, with the name of the function."""
    names = {*(step.__name__ for step in block_machine.STEPS), block_machine.unread.__name__}
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in names:
            for node in ast.walk(function):
                if isinstance(node, ast.If):
                    yield function.name, node.test
                if isinstance(node, ast.BoolOp):
                    yield from ((function.name, value) for value in node.values)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and function.name == "unread":
                    yield from ((function.name, value) for value in (node.left, node.right))


class Without(ast.NodeTransformer):
    """Takes one condition out: a guard is always true then, and of several conditions the others are left."""

    def __init__(self, gone: ast.expr) -> None:
        self.gone = gone

    def visit_If(self, node: ast.If) -> ast.If:
        if node.test is self.gone:
            node.test = ast.Constant(True)
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [value for value in node.values if value is not self.gone]
        self.generic_visit(node)
        return node.values[0] if len(node.values) == 1 else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        return node.right if node.left is self.gone else node.left if node.right is self.gone else node


def loaded(source: str, original: ModuleType) -> Any:
    """Return a module made of another source, with the records of the original."""
    module = ModuleType(original.__name__)
    module.__package__ = original.__package__
    exec(compile(source, f"{original.__name__} (wrong)", "exec"), vars(module))
    records = ("Block", "Table", "Machine")
    vars(module).update({name: getattr(block_machine, name) for name in records})
    return module


def noticed(mutant: Mutant, right: Explored) -> str:
    """Return how a mutant is noticed; nothing if it is not. `right` is the small pool of the page as it stands."""
    if mutant.where is not None:
        return in_scope(*mutant.where, block_machine, loaded(mutant.source, maps))
    page = loaded(mutant.source, block_machine)
    own = explored(page)
    if own.fault or own.moves != right.moves:
        return own.fault or f"other moves: {sorted(own.moves ^ right.moves)}"
    return in_scope(*SCOPE, page, maps)


def in_scope(part: str, scope: str, page: Any, mapping: Any) -> str:
    """Return the fault that a wrong page or mapping has in a scope."""
    (each,) = [each for each in PARTS[part].scopes("nightly") if each.name == scope]
    explorer = PARTS[part].explorer(each, LIMIT)
    explorer.page, explorer.maps, explorer.width = page, mapping, WIDTH
    try:
        found = explorer.run().violation
    except Exception as error:
        return repr(error)
    return "" if found is None else f"{found.law}: {found.detail}"

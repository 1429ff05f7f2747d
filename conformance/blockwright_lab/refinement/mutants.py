"""Gate `bent`: wrong block machines and wrong mappings must be noticed as the gate `refinement` would notice them.

Of the page every step is left out in turn, and every part of a condition that stands in a guard, or in what tells
whether an entry is dead. A wrong page is noticed by itself, since an invariant breaks in the small pool or another move
becomes possible there, or because some scope has a transition that it does not allow. A wrong mapping is noticed in a
scope of its part.
"""

import ast
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from blockwright._terminal import Advance
from blockwright_conformance.gates import GateResult, Profile
from blockwright_spec import block_machine

from ..mutation.mutator import Swap
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
    text = source_of(block_machine)
    names = [step.__name__ for step in block_machine.STEPS]
    yield from (Mutant(f"no {name}", f"{text}\ndel {name}\n") for name in names)
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in (*names, block_machine.unread.__name__):
            for condition, without in conditions(function):
                name = f"{function.name}: without {ast.unparse(condition)}"
                undo = without()
                yield Mutant(name, ast.unparse(tree))
                undo()


def conditions(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, Swap]]:
    """Return every condition that guards a step, and each of its parts, with the change that takes it out.

    A guard is always true then, and of several conditions the others are left.
    """
    for owner in ast.walk(function):
        for field, held in ast.iter_fields(owner):
            for index, node in enumerate(held) if isinstance(held, list) else ((None, held),):
                if isinstance(owner, ast.If) and field == "test":
                    yield node, Swap(owner, field, None, ast.Constant(True))
                if isinstance(node, ast.BoolOp):
                    for gone in node.values:
                        rest = [value for value in node.values if value is not gone]
                        yield gone, Swap(owner, field, index, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest))
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and function.name == "unread":
                    yield node.left, Swap(owner, field, index, node.right)
                    yield node.right, Swap(owner, field, index, node.left)


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


def size(profile: Profile) -> int:
    return sum(1 for _ in mutants())


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Try every wrong page and every wrong mapping: one row."""
    if profile.scope or not profile.is_ours:
        return []
    started, tried, alive, own = time.perf_counter(), 0, [], explored()
    for mutant in mutants():
        tried += 1
        if not noticed(mutant, own):
            alive.append(mutant.name)
        progress(1, mutant.name)
    counts, detail = (0, 0, len(alive), time.perf_counter() - started), ", ".join(alive)
    law, detail = ("MUTANT-1", f"not noticed: {detail}") if alive else ("", "")
    scope = "wrong machines and mappings"
    return [GateResult("bent", scope, "all", *counts, law, detail, tried=tried, passed=tried - len(alive))]

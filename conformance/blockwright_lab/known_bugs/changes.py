"""Changes of the implementation: an expression or a statement of one function replaced, taken out or added to.

A change is anchored by the function's name and by the *syntax tree* of the code there, so that formatting, comments,
line breaks and the names of modules do not matter: it is stale only where the very expression has changed. The found
code is exchanged in the text of the source, which can then be compared with the original.
"""

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import blockwright

ROOT = Path(blockwright.__file__).resolve().parent


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
How = Literal["replace", "before", "after"]


class StaleChangeError(Exception):
    """A change does not fit the sources any more: its anchor is not there the expected number of times."""


@dataclass(frozen=True, slots=True)
class Change:
    """An anchor in a function, and the code that replaces it, or comes before or after its statement."""

    function: str
    """Its name; where the anchor stands in several of that name, also its class or module: ``Class.method``."""
    anchor: str
    """An expression or a statement; with `how` before or after it also stands for the statement that it is part of."""
    code: str = ""
    """Nothing: the anchor is taken out."""
    how: How = "replace"
    times: int = 1
    """How often the anchor stands in the function."""
    bug: str = ""


class Function(NamedTuple):
    """A function in a source, its name beginning with the module's."""

    name: str
    file: str
    node: ast.AST


def edited(changes: Sequence[Change]) -> dict[str, str]:
    """Return the changed sources, by file; later changes see what earlier ones made."""
    sources: dict[str, str] = {}
    for change in changes:
        named = [each for each in functions(sources) if is_named(each, change)]
        fit = [each for each in named if len(found(each.node, change)) == change.times]
        if len(fit) != 1:
            raise StaleChangeError(f"{change.bug}: {complaint(change, named, fit, sources)}".removeprefix(": "))
        file = fit[0].file
        sources[file] = exchanged(sources.get(file) or source_of(file), fit[0].node, change)
    return sources


def source_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def files() -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")))


@cache
def unchanged_functions(file: str) -> tuple[Function, ...]:
    return tuple(functions_of(file, source_of(file)))


def definitions(node: ast.AST, within: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield the functions and classes below a node, with the names of those around them."""
    for child in ast.iter_child_nodes(node):
        name = within
        if isinstance(child, Definition):
            name = f"{within}.{child.name}".removeprefix(".")
            yield name, child
        yield from definitions(child, name)


def functions_of(file: str, text: str) -> Iterator[Function]:
    named = definitions(ast.parse(text), file.removesuffix(".py").replace("/", "."))
    return (Function(name, file, node) for name, node in named if not isinstance(node, ast.ClassDef))


def functions(sources: dict[str, str]) -> Iterator[Function]:
    for file in files():
        yield from functions_of(file, sources[file]) if file in sources else unchanged_functions(file)


def is_named(function: Function, change: Change) -> bool:
    return f".{function.name}".endswith(f".{change.function}")


def found(function: ast.AST, change: Change) -> list[ast.AST]:
    wanted = tree_of(change.anchor)
    if change.how == "replace" and not change.code and isinstance(wanted, ast.expr):
        wanted = ast.Expr(wanted)  # what is taken out is a statement
    dump = ast.dump(wanted)
    return [node for node in ast.walk(function) if type(node) is type(wanted) and ast.dump(node) == dump]


@cache
def tree_of(anchor: str) -> ast.AST:
    try:
        return ast.parse(anchor, mode="eval").body
    except SyntaxError:
        (statement,) = ast.parse(anchor).body
        return statement


def exchanged(text: str, function: ast.AST, change: Change) -> str:
    for node in reversed(found(function, change)):
        if change.how == "replace" and change.code:
            text = spliced(text, *span(text, node), change.code, node)
            continue
        statement, is_alone = statement_of(function, node)
        begin, end = span(text, statement)
        indent = " " * statement.col_offset
        if change.how == "before":
            text = spliced(text, begin, begin, f"{change.code}\n", statement)
        elif change.how == "after":
            text = spliced(text, end, end, f"\n{change.code}", statement)
        elif is_alone:
            text = spliced(text, begin, end, "pass", statement)
        else:
            text = spliced(text, begin - len(indent), text.index("\n", end) + 1, "", statement)
    return text


def statement_of(function: ast.AST, node: ast.AST) -> tuple[ast.stmt, bool]:
    """Return the innermost statement that a node is part of, and whether it is alone in its block."""
    around = [each for each in ast.walk(function) if isinstance(each, ast.stmt) and node in ast.walk(each)]
    statement = around[-1]  # `walk` goes down level by level
    blocks = (block for each in ast.walk(function) for _, block in ast.iter_fields(each))
    return statement, [statement] in blocks


def span(text: str, node: ast.AST) -> tuple[int, int]:
    lines = text.splitlines(keepends=True)
    assert isinstance(node, ast.expr | ast.stmt)

    def at(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)


def spliced(text: str, begin: int, end: int, code: str, node: ast.AST) -> str:
    """Return a text with a part replaced by code, with further lines indented as the node is."""
    return text[:begin] + code.replace("\n", "\n" + " " * getattr(node, "col_offset", 0)) + text[end:]


def complaint(change: Change, named: list[Function], fit: list[Function], sources: dict[str, str]) -> str:
    every = list(functions(sources))
    if not named:
        parts = change.function.count(".") + 1
        near = difflib.get_close_matches(
            change.function, {".".join(each.name.split(".")[-parts:]) for each in every}, 3, 0.0
        )
        return f"no function {change.function}; nearest: {', '.join(near)}{elsewhere(change, every)}"
    names = ", ".join(each.name for each in fit or named)
    if fit:
        return f"`{change.anchor}` stands in each of {names}: name the class, or the module"
    kind = ast.stmt if isinstance(tree_of(change.anchor), ast.stmt) else ast.expr
    nodes = (node for each in named for node in ast.walk(each.node) if isinstance(node, kind))
    near = difflib.get_close_matches(change.anchor, {ast.unparse(node) for node in nodes}, 3, 0.0)
    count = sum(len(found(each.node, change)) for each in named)
    lines = "".join(f"\n    {' '.join(each.split())[:150]}" for each in near)
    return f"`{change.anchor}` stands {count} times, not {change.times}, in {names}; nearest:{lines}" + (
        elsewhere(change, every) if count == 0 else ""
    )


def elsewhere(change: Change, every: list[Function]) -> str:
    places = [each.name for each in every if found(each.node, change)]
    return f"\n  it stands in: {', '.join(places[:3])}" if places else ""

"""The specification as data: its chapters in order, what each defines, and where names lead."""

import ast
import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import blockwright_spec

FOLDER = Path(blockwright_spec.__file__).parent
PARTS = {"manager": "one", "block_tables": "two", "offload": "three", "worker": "four"}
"""The folders of the parts, and how the parts are called."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """One module of the specification."""

    number: int
    """Its number in its part."""
    name: str
    """Its name below the package: ``manager.state``."""

    @property
    def part(self) -> str:
        """The folder of its part; empty for what comes before all parts."""
        return self.name.partition(".")[0] if "." in self.name else ""

    @property
    def file(self) -> str:
        """Where its source lies below the package, without the suffix."""
        return self.name.replace(".", "/")

    @property
    def path(self) -> Path:
        """Its source."""
        return FOLDER / f"{self.file}.py"

    @property
    def page(self) -> str:
        """The document that shows it."""
        return f"book/spec/{self.file}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a chapter defines at its top: its name, its documentation, and the lines of its code."""

    name: str
    is_function: bool
    said: str
    lines: tuple[int, ...]


@cache
def chapters() -> tuple[Chapter, ...]:
    """Return the chapters, as the package and each part list them."""
    return tuple(
        Chapter(int(number), f"{part}.{name}" if part else name)
        for part in ("", *PARTS)
        for number, name in re.findall(r"(\d+)\s+`([\w.]+)`", about(part))
    )


def about(part: str) -> str:
    """Return the documentation of a part, or of the whole."""
    return importlib.import_module(f"{blockwright_spec.__name__}.{part}".rstrip(".")).__doc__ or ""


@cache
def tree(chapter: Chapter) -> ast.Module:
    """Return the parsed source of a chapter."""
    return ast.parse(chapter.path.read_text(encoding="utf-8"))


def titled(chapter: Chapter) -> tuple[str, str]:
    """Return the title of a chapter and the rest of its opening words."""
    text = ast.get_docstring(tree(chapter)) or ""
    title, _, rest = text.partition("\n\n")
    title = re.sub(r"^[\w ]+, chapter \d+: ", "", " ".join(title.split())).rstrip(".")
    return title[0].upper() + title[1:], rest


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a string alone, which documents the name before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def text_of(node: ast.stmt) -> str:
    """Return that string."""
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Constant)
    return str(node.value.value)


def end_of(node: ast.stmt, lines: list[str]) -> int:
    """Return the number of the last line of a statement, with the comments at the end of its body (``# SAME: ...``)."""
    end = last = node.end_lineno or node.lineno
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
        last = end if lines[end - 1].strip() else last
    return last


def code_lines(node: ast.stmt, after: int, end: int) -> list[int]:
    """Return the numbers of the lines of a definition, with comments before it and without its docstring."""
    numbers = list(range(after + 1, end + 1))
    body = getattr(node, "body", [])
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(body) > 1 and is_text(body[0]):
        said = range(body[0].lineno, (body[0].end_lineno or 0) + 1)
        numbers = [number for number in numbers if number not in said]
    return numbers


def entries(chapter: Chapter) -> list[Entry]:
    """Return the definitions of a chapter, in order."""
    lines = chapter.path.read_text(encoding="utf-8").splitlines()
    found: list[Entry] = []
    end = 0
    body = tree(chapter).body
    for at, node in enumerate(body):
        names = names_of(node)
        if names:
            numbers = trimmed(code_lines(node, end, end_of(node, lines)), lines)
            following = body[at + 1] if at + 1 < len(body) else None
            said = ast.get_docstring(node) or "" if isinstance(node, ast.FunctionDef | ast.ClassDef) else ""
            if not said and following is not None and is_text(following):
                said = text_of(following)
            found.append(Entry(names[0], isinstance(node, ast.FunctionDef), said, tuple(numbers)))
        end = end_of(node, lines)
    return found


def trimmed(numbers: list[int], lines: list[str]) -> list[int]:
    """Drop empty lines at both ends and in place of the docstring."""
    kept = [number for number in numbers if lines[number - 1].strip()]
    first, last = (kept[0], kept[-1]) if kept else (0, -1)
    inner = [number for number in numbers if first <= number <= last]
    return [
        number
        for at, number in enumerate(inner)
        if lines[number - 1].strip() or (at and inner[at - 1] == number - 1 and lines[number - 2].strip())
    ]


@cache
def defined() -> dict[str, dict[str, str]]:
    """Return, per chapter, the names it defines and the labels of their places."""
    return {
        chapter.name: {entry.name: label(chapter.name, entry.name) for entry in entries(chapter)}
        for chapter in chapters()
    }


def label(chapter: str, name: str = "") -> str:
    """Return the label of a chapter, or of a name in it; records and constants have capitals, which labels lack."""
    sort = "constant" if name.isupper() else "type" if name[:1].isupper() else ""
    words = ("spec", chapter.replace(".", "-"), name.lower().strip("_"), sort)
    return "-".join(filter(None, words)).replace("_", "-")


@cache
def imports(chapter: Chapter) -> tuple[tuple[str, str, str], ...]:
    """Return a chapter's imports from others: the name here, the chapter, and the name there, if not the chapter."""
    found = []
    for node in tree(chapter).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            folder = chapter.name.split(".")[: -node.level]
            source = ".".join([*folder, *(node.module or "").split(".")]).strip(".")
            for each in node.names:
                inner = f"{source}.{each.name}".strip(".")
                whole = inner in defined()
                found.append((each.asname or each.name, inner if whole else source, "" if whole else each.name))
    return tuple(found)


@cache
def known(chapter: Chapter) -> dict[str, str]:
    """Return the labels of the names that the code of a chapter may use: its own, and those it imports."""
    return defined()[chapter.name] | {
        here: defined()[source].get(name, label(source)) for here, source, name in imports(chapter)
    }


@cache
def named(part: str) -> dict[str, str]:
    """Return the labels of the chapters by the names that prose of a part calls them by: its own by short names."""
    found: dict[str, str] = {}
    for chapter in sorted(chapters(), key=lambda each: each.part != part):
        names = chapter.name.split(".")
        for at in range(len(names)):
            found.setdefault(".".join(names[at:]), label(chapter.name))
    return found


def imported(chapter: Chapter) -> list[str]:
    """Return the chapters that a chapter imports."""
    return list(dict.fromkeys(source for _, source, _ in imports(chapter)))

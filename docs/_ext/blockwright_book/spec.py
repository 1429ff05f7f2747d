"""The specification as data: its chapters in order, what each defines, and where names lead."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import blockwright_spec

FOLDER = Path(blockwright_spec.__file__).parent
PARTS = ("one", "two", "three", "four")


@dataclass(frozen=True, slots=True)
class Chapter:
    """One module of the specification."""

    number: int
    name: str
    part: int
    """The part that it belongs to; 0 for the page that comes before all parts."""

    @property
    def path(self) -> Path:
        """Give its source."""
        return FOLDER / f"{self.name}.py"

    @property
    def page(self) -> str:
        """Give the document that shows it."""
        return f"book/spec/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a chapter defines at its top: its name, what is said of it, and the lines of its code."""

    name: str
    is_function: bool
    said: str
    lines: tuple[int, ...]


@cache
def chapters() -> tuple[Chapter, ...]:
    """Give the chapters, as the package lists them."""
    found = []
    for part, text in enumerate(re.split(r"^Part \w+, ", blockwright_spec.__doc__ or "", flags=re.MULTILINE)):
        found += [Chapter(int(number), name, part) for number, name in re.findall(r"(\d+)\s+`(\w+)`", text)]
    return tuple(found)


@cache
def tree(chapter: Chapter) -> ast.Module:
    """Give the parsed source of a chapter."""
    return ast.parse(chapter.path.read_text(encoding="utf-8"))


def titled(chapter: Chapter) -> tuple[str, str]:
    """Give the title of a chapter and the rest of its opening words."""
    text = ast.get_docstring(tree(chapter)) or ""
    title, _, rest = text.partition("\n\n")
    title = re.sub(r"^Chapter \d+: ", "", " ".join(title.split())).rstrip(".")
    return title[0].upper() + title[1:], rest


def names_of(node: ast.stmt) -> list[str]:
    """Give the names that a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def is_text(node: ast.stmt) -> bool:
    """Tell whether a statement is a string that stands alone: what is said of the name before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def text_of(node: ast.stmt) -> str:
    """Give that string."""
    assert isinstance(node, ast.Expr)
    assert isinstance(node.value, ast.Constant)
    return str(node.value.value)


def end_of(node: ast.stmt, lines: list[str]) -> int:
    """Give the number of the last line of a statement, with the comments at the end of its body (``# SAME: ...``)."""
    end = last = node.end_lineno or node.lineno
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(" ")):
        end += 1
        last = end if lines[end - 1].strip() else last
    return last


def code_lines(node: ast.stmt, after: int, end: int) -> list[int]:
    """Give the numbers of the lines of a definition, with comments that stand before it and without its docstring."""
    numbers = list(range(after + 1, end + 1))
    body = getattr(node, "body", [])
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(body) > 1 and is_text(body[0]):
        said = range(body[0].lineno, (body[0].end_lineno or 0) + 1)
        numbers = [number for number in numbers if number not in said]
    return numbers


def entries(chapter: Chapter) -> list[Entry]:
    """Give what a chapter defines, in order."""
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
    """Drop empty lines at both ends and where the docstring stood."""
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
    """Give, per chapter, the names it defines and the labels of the places where they stand."""
    return {
        chapter.name: {entry.name: label(chapter.name, entry.name) for entry in entries(chapter)}
        for chapter in chapters()
    }


def label(chapter: str, name: str = "") -> str:
    """Give the label of a chapter, or of a name in it; records and constants have capitals, which labels lack."""
    sort = "constant" if name.isupper() else "type" if name[:1].isupper() else ""
    return "-".join(filter(None, ("spec", chapter.replace("_", "-"), name.lower().replace("_", "-").strip("-"), sort)))


@cache
def known(chapter: Chapter) -> dict[str, str]:
    """Give the labels of the names that the code of a chapter may use: its own, and those it imports."""
    found = dict(defined()[chapter.name])
    for node in tree(chapter).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            for each in node.names:
                name = each.asname or each.name
                if node.module:
                    found[name] = defined()[node.module].get(each.name, label(node.module))
                else:
                    found[name] = label(each.name)
    return found


def imported(chapter: Chapter) -> list[str]:
    """Give the chapters that a chapter imports."""
    found: list[str] = []
    for node in tree(chapter).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found += [node.module] if node.module else [each.name for each in node.names]
    return list(dict.fromkeys(found))

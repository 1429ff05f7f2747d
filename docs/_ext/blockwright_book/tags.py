"""Where the implementation says that it upholds a law: comments ``# law: ID``, by file and function."""

import ast
import re
from functools import cache
from pathlib import Path

import blockwright

ROOT = Path(blockwright.__file__).parent
TAG = re.compile(r"#\s*law:\s*(.+)$", re.MULTILINE)
NAME = re.compile(r"[A-Z]+-[1-9]\d*")


@cache
def claims() -> dict[str, list[tuple[str, str]]]:
    """Give, per law, the places that claim it: file below the package, and function."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "# law:" not in text:
            continue
        functions = spans(ast.parse(text))
        for at, line in enumerate(text.splitlines(), 1):
            for name in NAME.findall(match[1]) if (match := TAG.search(line)) else ():
                place = path.relative_to(ROOT).as_posix(), innermost(functions, at)
                places = found.setdefault(name, [])
                places += [] if place in places else [place]
    return found


def spans(tree: ast.AST, prefix: str = "") -> list[tuple[int, int, str]]:
    """Give the first and last line of each function and class, and its name."""
    found: list[tuple[int, int, str]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            found.append((node.lineno, node.end_lineno or node.lineno, name))
            found += spans(node, f"{name}.")
    return found


def innermost(functions: list[tuple[int, int, str]], line: int) -> str:
    """Give the name of the innermost function around a line; a comment right above one belongs to it."""
    around = [each for each in functions if each[0] - 1 <= line <= each[1]]
    return max(around)[2] if around else "module"

"""Property: the implementation keeps its house rules: errors for input are typed, and laws are cited by their names.

How: every file under impl/ is parsed for `assert`; every `law: ID` in a comment or docstring, and every string that is
such an id (those that the self-check reports), must name a law of the specification; the core must cite some.
Not covered: whether the line beside a citation really upholds the law (conformance shows that), and types (mypy).
"""

import ast
import re
from pathlib import Path

import pytest

from blockwright import kinds
from blockwright_lab.book.law_tags import law_ids

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "impl").rglob("*.py"))
LAW = re.compile(r"[A-Z]+-[0-9]$")
CITATION = re.compile(r"\blaw:\s*([A-Z]+-\d+(?:\s*,\s*[A-Z]+-\d+)*)")


def asserts(source: str, in_core: bool = False) -> list[int]:
    """The lines of `assert` statements that should not be: in the core, only those that name no promise."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert)]
    return [node.lineno for node in found if node.msg is None or not in_core]


def cited(source: str) -> list[tuple[int, str]]:
    """The laws cited or reported, with their lines."""
    found = ((number, CITATION.search(line)) for number, line in enumerate(source.splitlines(), 1))
    comments = [(number, law.strip()) for number, match in found if match for law in match[1].split(",")]
    constants = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    strings = [(node.lineno, node.value) for node in constants if isinstance(node.value, str) and LAW.match(node.value)]
    return sorted(comments + strings)


each_file = pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT / "impl")))


@each_file
def test_no_assert(file: Path) -> None:
    """An assertion is an untyped error, and the optimized build leaves it out: it is for promises within the core."""
    assert asserts(file.read_text(encoding="utf-8"), "core" in file.parts) == []


@each_file
def test_cited_laws_exist(file: Path) -> None:
    known = law_ids()
    unknown = [(line, law) for line, law in cited(file.read_text(encoding="utf-8")) if law not in known]
    assert unknown == []


def test_the_core_cites_laws() -> None:
    core = [path for path in FILES if path.parent.name == "core"]
    assert {law for path in core for _, law in cited(path.read_text(encoding="utf-8"))}


KINDS = {each for each in vars(kinds) if each.endswith("AttentionSpec")} | {"SlidingWindowSpec", "MambaSpec"}


def asked_classes(source: str) -> int:
    """Count the calls of `isinstance` that ask for the class of a kind of layers."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) == 2]
    asked = [node.args[1] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "isinstance"]
    return sum(any(isinstance(part, ast.Name) and part.id in KINDS for part in ast.walk(each)) for each in asked)


def test_a_kind_says_what_it_is_and_is_not_asked_for_its_class() -> None:
    """Two views of a page by its class, and the check of a kernel's argument, are left."""
    counts = {path.name: asked_classes(path.read_text(encoding="utf-8")) for path in FILES}
    assert {name: count for name, count in counts.items() if count} == {"storage.py": 2, "paged.py": 1}


def test_checks_find_faults() -> None:
    assert asked_classes("isinstance(a, MambaSpec | B) or isinstance(a, their.MambaSpec) or MambaSpec") == 1
    assert asserts("x = 1\nif x:\n    assert x\n") == [3]
    assert asserts("'assert x'\n# assert x\n") == []
    assert asserts("assert x\nassert x, 'y'\n", in_core=True) == [1]
    assert cited("x = 1  # law: TRIM-1, REF-2\n# keeps law: HIT-1\ny = 'PUB-1'\nlaw: str\ny = 'SHA-256'\n") == [
        (1, "REF-2"),
        (1, "TRIM-1"),
        (2, "HIT-1"),
        (3, "PUB-1"),
    ]

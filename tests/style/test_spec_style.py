"""Property: the specification can be checked by reading: standard library only, no I/O, no mutation, short functions.

How: every chapter is parsed; each rule is a function from a parsed file to its faults, and is itself tested on lines
that must be faults and lines that must not.
Not covered: whether the words are clear; mutation hidden behind a call into the standard library.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = ROOT / "spec/blockwright_spec"
CHAPTERS = sorted(SPEC.rglob("*.py"))
FUNCTION_LINES = 25
PAGE_LINES = 200  # the page that is read first
FILE_LINES = 260  # usually under 200
LINES = 8_412  # all four parts, and what comes before them: neither blank nor comment
BOOK_LINES = 2_000  # book one of part one
# Words of the options that are known in their own chapters alone: book one has no name with one of them.
OPTIONS = set(
    "retention retain hint hints wish mark marks tenant floors guard keeping passing spares proven tip tips share "
    "prompts tells events event metrics counting unit units tails lease outside encoder encoders lookahead "
    "checkpoint checkpoints external load loads loaded loading draft drafts fence fences fenced".split()
)
# Options that book one still names, each with a word of it.
STILL = {
    "time": "overlaps",
    "forks": "copies",
}

# Of the standard library, what talks to the world outside or depends on it.
WORLD = set(
    "asyncio builtins ctypes datetime fileinput ftplib gc glob http importlib io json logging marshal mmap "
    "multiprocessing os pathlib pickle pdb platform random secrets select shelve shutil signal site socket sqlite3 "
    "subprocess sys sysconfig tempfile threading time traceback urllib uuid warnings weakref".split()
)
WORLD_CALLS = {"open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__", "globals", "locals"}
MUTATING_CALLS = {"setattr", "delattr", "vars", "heappush", "heappop", "heapify", "insort"}
MUTATING_METHODS = set(
    "append extend insert remove pop popleft popitem appendleft clear sort reverse add discard update setdefault "
    "difference_update intersection_update symmetric_difference_update move_to_end rotate write writelines "
    "__setattr__ __delattr__ __setitem__ __delitem__ __init__".split()
)
FROZEN_BASES = {"NamedTuple", "Enum", "IntEnum", "StrEnum", "Protocol", "Exception", "ValueError"}

Fault = tuple[int, str]
Rule = Callable[[ast.Module], Iterator[Fault]]


def docstring_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> ast.Expr | None:
    """The statement that is the node's docstring."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return first
    return None


def called_name(node: ast.Call) -> str:
    """The last name of what is called: `f` of f(), of a.f() and of a[0].f()."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def imports_outside(tree: ast.Module) -> Iterator[Fault]:
    """Imports of anything but the specification and the quiet part of the standard library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            if top != "blockwright_spec" and (top not in sys.stdlib_module_names or top in WORLD):
                yield node.lineno, f"imports {name}"


def mutations(tree: ast.Module) -> Iterator[Fault]:
    """Whatever changes a value in place, or a name of another scope."""
    for node in ast.walk(tree):
        match node:
            case ast.AugAssign():
                yield node.lineno, "assigns in place (write the sum out)"
            case ast.Global() | ast.Nonlocal():
                yield node.lineno, "rebinds a name of another scope"
            case ast.Delete():
                yield node.lineno, "deletes"
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield node.lineno, "assigns to an item or attribute"
            case ast.Call() if isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING_METHODS:
                yield node.lineno, f"calls .{node.func.attr}()"
            case ast.Call() if called_name(node) in MUTATING_CALLS:
                yield node.lineno, f"calls {called_name(node)}()"
            case _:
                pass


def world_calls(tree: ast.Module) -> Iterator[Fault]:
    """Calls that read or write outside, or reach behind the language."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WORLD_CALLS:
            yield node.lineno, f"calls {node.func.id}()"
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.Yield | ast.YieldFrom):
            yield node.lineno, "suspends (a function of the specification returns a value)"


def open_records(tree: ast.Module) -> Iterator[Fault]:
    """Classes that are not frozen records, enumerations, protocols or errors."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        frozen = any(
            isinstance(decorator, ast.Call)
            and called_name(decorator) == "dataclass"
            and any(
                word.arg == "frozen" and isinstance(word.value, ast.Constant) and word.value.value is True
                for word in decorator.keywords
            )
            for decorator in node.decorator_list
        )
        bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
        if not frozen and not bases & FROZEN_BASES:
            yield node.lineno, f"class {node.name} is not a frozen record"


def long_functions(tree: ast.Module) -> Iterator[Fault]:
    """Functions of more than the allowed lines, their docstring not counted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            doc = docstring_of(node)
            words = (doc.end_lineno or 0) - doc.lineno + 1 if doc else 0
            lines = (node.end_lineno or 0) - node.lineno + 1 - words
            if lines > FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines"


def undocumented(tree: ast.Module) -> Iterator[Fault]:
    """Chapters, public classes and public functions without a docstring."""
    if docstring_of(tree) is None:
        yield 1, "the chapter has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_" and docstring_of(node) is None:
            yield node.lineno, f"{node.name} has no docstring"


def names_of_others(tree: ast.Module) -> Iterator[Fault]:
    """Functions named by how they would compute: the specification states."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and re.match(r"(get|set|compute|do|handle)_", node.name):
            yield node.lineno, f"{node.name}: say what it is"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        imports_outside,
        mutations,
        world_calls,
        open_records,
        long_functions,
        undocumented,
        names_of_others,
    )
}


def named(path: Path) -> str:
    """Where a chapter lies below the package."""
    return path.relative_to(SPEC).as_posix()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=named)
def test_chapter_keeps_the_rule(chapter: Path, rule: str) -> None:
    faults = RULES[rule](ast.parse(chapter.read_text(encoding="utf-8")))
    assert [f"{named(chapter)}:{line}: {fault}" for line, fault in faults] == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=named)
def test_chapter_is_short(chapter: Path) -> None:
    assert len(chapter.read_text(encoding="utf-8").splitlines()) <= FILE_LINES


def test_page_is_short_and_stands_on_reads_alone() -> None:
    source = (SPEC / "block_machine.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= PAGE_LINES
    assert {node.module for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) and node.level} == {
        "reads"
    }


def test_chapter_builds_on_earlier_ones() -> None:
    """In the order in which the package and its parts list them; the page that is read first stands on `reads`."""
    folders = [SPEC, *(SPEC / name for name in ("manager", "block_tables", "offload", "worker"))]
    listed = [
        folder / f"{name.replace('.', '/')}.py"
        for folder in folders
        for name in re.findall(r"\d\s+`([\w.]+)`", (folder / "__init__.py").read_text(encoding="utf-8"))
    ]
    assert sorted(listed) == [path for path in CHAPTERS if path.name != "__init__.py"]
    for at, path in enumerate(listed[1:], 1):
        imported = {
            source for node in ast.parse(path.read_text(encoding="utf-8")).body for source in chapters_of(node, path)
        }
        assert imported <= set(listed[:at]), named(path)


def chapters_of(node: ast.stmt, path: Path) -> list[Path]:
    """The chapters that a statement of a chapter imports from."""
    if not isinstance(node, ast.ImportFrom) or not node.level:
        return []
    folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    return (
        [folder.with_suffix(".py")]
        if folder.with_suffix(".py").exists()
        else [folder / f"{each.name}.py" for each in node.names]
    )


def lines(path: Path) -> int:
    """Count the lines that are neither blank nor a comment."""
    stripped = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith("#") for line in stripped)


def book_one() -> list[Path]:
    """The chapters of part one that its list names before those of book two."""
    first = (SPEC / "manager/__init__.py").read_text(encoding="utf-8").partition("\nBook two")[0]
    return [SPEC / f"manager/{name}.py" for name in re.findall(r"\d\s+`(\w+)`", first)]


def words_of(path: Path) -> set[str]:
    """The words of all names in a chapter's code."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = {getattr(node, kind, None) for node in nodes for kind in ("id", "attr", "name", "arg", "module")}
    return {word for name in names if isinstance(name, str) for word in re.split(r"[_.]", name)}


def test_specification_is_short() -> None:
    counts = {named(path): lines(path) for path in CHAPTERS}
    assert sum(counts.values()) <= LINES, counts
    book = {named(path): lines(path) for path in book_one()}
    assert len(book) > 10
    assert sum(book.values()) <= BOOK_LINES, book


def test_book_one_names_no_option() -> None:
    """But for those that are still to move, each of which is in it."""
    found = {named(path): words_of(path) & OPTIONS for path in book_one()}
    assert {name: words for name, words in found.items() if words} == {}
    all_words = set[str]().union(*map(words_of, book_one()))
    assert [option for option, word in STILL.items() if word not in all_words] == []


# --- the rules themselves ---

LONG = "def f():\n" + "    x = 1\n" * FUNCTION_LINES

FAULTY: list[tuple[str, str]] = [
    ("imports_outside", "import numpy"),
    ("imports_outside", "from blockwright import Request"),
    ("imports_outside", "import os.path"),
    ("imports_outside", "def f():\n    from random import choice"),
    ("mutations", "x.a = 1"),
    ("mutations", "x[0] = 1"),
    ("mutations", "x.a, y = 1, 2"),
    ("mutations", "x[0]: int = 1"),
    ("mutations", "x += 1"),
    ("mutations", "x.a += 1"),
    ("mutations", "for x[0] in y: pass"),
    ("mutations", "with y as x.a: pass"),
    ("mutations", "del x[0]"),
    ("mutations", "def f():\n    global x"),
    ("mutations", "def f():\n    def g():\n        nonlocal x"),
    ("mutations", "x.append(1)"),
    ("mutations", "x[0].update(y)"),
    ("mutations", "object.__setattr__(x, 'a', 1)"),
    ("mutations", "setattr(x, 'a', 1)"),
    ("world_calls", "print(1)"),
    ("world_calls", "open('x')"),
    ("world_calls", "def f():\n    yield 1"),
    ("open_records", "class A: pass"),
    ("open_records", "@dataclass\nclass A: pass"),
    ("open_records", "@dataclass(frozen=False)\nclass A: pass"),
    ("long_functions", LONG),
    ("undocumented", "x = 1"),
    ("undocumented", '"""Doc."""\ndef f(): pass'),
    ("undocumented", '"""Doc."""\nclass A: pass'),
    ("names_of_others", "def get_x(): pass"),
]

FAULTLESS: list[tuple[str, str]] = [
    ("imports_outside", "from .reads import Kind\nimport math\nfrom blockwright_spec import state"),
    ("mutations", "x = 1\ny: int = x\nx, y = y, x\nz = x.a[0]\nf = {**a, 'b': 1}\nreplace(x, a=1)"),
    ("world_calls", "def f():\n    return sorted(x)"),
    ("open_records", "@dataclass(frozen=True, slots=True)\nclass A: pass\nclass B(NamedTuple): pass"),
    ("long_functions", LONG.rsplit("    x", 1)[0]),
    ("undocumented", '"""Doc."""\ndef f():\n    """Doc."""\ndef _g(): pass'),
    ("names_of_others", "def needed(): pass"),
]


@pytest.mark.parametrize(("rule", "source"), FAULTY)
def test_rule_finds_the_fault(rule: str, source: str) -> None:
    assert list(RULES[rule](ast.parse(source)))


@pytest.mark.parametrize(("rule", "source"), FAULTLESS)
def test_rule_lets_the_rest_pass(rule: str, source: str) -> None:
    assert list(RULES[rule](ast.parse(source))) == []


def test_every_rule_is_tested() -> None:
    assert {rule for rule, _ in FAULTY} == {rule for rule, _ in FAULTLESS} == RULES.keys()

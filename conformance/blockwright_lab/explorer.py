"""Compiles the specification, and the inner loops of lock-step, by mypyc: for `blockwright conform --explorer FOLDER`.

`python -m blockwright_lab.explorer build/explorer` copies both packages there, and compiles.
"""

import ast
import gc
import io
import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import blockwright
from blockwright_conformance.checker.compiled import PACKAGES, RECORD, digests, trouble

# The modules of the kit that are compiled with the specification: the hot parts of an exploration.
KIT = """
    block_tables/abstraction block_tables/actions block_tables/symmetry kv_cache/abstraction kv_cache/actions
    kv_cache/adapter kv_cache/calls kv_cache/lockstep kv_cache/parts kv_cache/requests kv_cache/symmetry
""".split()

DATACLASS = "@dataclass(frozen=True, slots=True)"
REPLACE = """from dataclasses import dataclass
from typing import Any, TypeVar
_T = TypeVar("_T")
def replace(one: _T, /, **changes: Any) -> _T:
    record: Any = one
    twin: Any = record.__copy__()
    for name, value in changes.items():
        setattr(twin, name, value)
    return twin  # type: ignore[no-any-return]"""


def constructed(path: Path) -> str:
    """Write out how records are made and replaced, which mypyc leaves to Python: it would take a quarter of the time.

    Only here can a record be changed, as only `replace` does: all other gates run the sources.
    """
    source, fields = path.read_text(encoding="utf-8"), dict[str, list[str]]()
    lines = re.sub("from dataclasses import .*replace", REPLACE, source).splitlines()
    for each in ast.parse("\n".join(lines)).body:
        if isinstance(each, ast.ClassDef) and lines[each.lineno - 2] == DATACLASS:
            above = (fields.get(name := ast.unparse(base)) or fields_in(path, name) for base in each.bases)
            fields[each.name] = [*(field for base in above for field in base), *own_fields(each)]
            lines[each.lineno - 2] = "@dataclass(init=False, unsafe_hash=True)"
            lines[(each.end_lineno or 0) - 1] += constructor(each.name, fields[each.name])
    return "\n".join(lines) + "\n"


def own_fields(record: ast.ClassDef) -> list[str]:
    return [ast.unparse(line) for line in record.body if isinstance(line, ast.AnnAssign)]


def fields_in(path: Path, base: str) -> list[str]:
    # Of a record of a file beside it, `chapter.Record`; other names are of records without fields.
    chapter, _, name = base.partition(".")
    made = ast.walk(ast.parse(path.with_name(f"{chapter}.py").read_text(encoding="utf-8"))) if name else ()
    own = next((own_fields(each) for each in made if isinstance(each, ast.ClassDef) and each.name == name), [])
    return [re.sub(r"(?<![.\w])(?!True|False|None)(?=[A-Z])", f"{chapter}.", field) for field in own]


def constructor(record: str, fields: list[str]) -> str:
    names = [field.partition(":")[0] for field in fields]
    return f"""
    def __init__({", ".join(["self", *fields])}) -> None:
        {"; ".join(f"self.{name} = {name}" for name in names) or "pass"}
    def __copy__(self) -> "{record}":
        return {record}({", ".join(f"self.{name}" for name in names)})"""


def stated(source: str, files: list[str]) -> str:
    """Give laws their names and sentences, which stand in docstrings: compiled functions have none."""
    laws = {
        f"{name[:-3].replace('/', '.')}.{each.name}": ast.get_docstring(each)
        for name in files
        for each in ast.parse(Path(name).read_text(encoding="utf-8")).body
        if isinstance(each, ast.FunctionDef) and each.name.startswith("law_")
    }
    return source.replace("holds.__doc__", f"{laws!r}[holds.__module__ + '.' + holds.__name__]")


def recorded(folder: Path, sources: dict[str, str]) -> None:
    libraries = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.so"))
    (folder / RECORD).write_text(json.dumps({"sources": sources, "libraries": libraries}, indent=0), encoding="utf-8")


def compile_into(folder: Path) -> None:
    """Copy both packages into a folder and compile; if that fails, the compiler has printed why (`SystemExit`)."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class BuildExt(build_ext):  # type: ignore[misc]
        # The files of an extension are compiled at the same time: nearly all of them are of one.
        def build_extension(self, ext: Any) -> None:
            one = self.compiler.compile
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self.compiler.compile = lambda sources, **options: [
                    made for (made,) in pool.map(lambda source: one([source], **options), sources)
                ]
                super().build_extension(ext)
            self.compiler.compile = one

    sources = digests()
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    os.environ["MYPYPATH"] = str(Path(blockwright.__file__).absolute().parents[1])
    with chdir(folder):
        files = [str(each) for each in sorted(Path(PACKAGES[0].name).rglob("*.py")) if each.name != "__init__.py"]
        files += [f"{PACKAGES[1].name}/{name}.py" for name in KIT]
        for each in map(Path, files):
            each.write_text(constructed(each), encoding="utf-8")
        law = Path(PACKAGES[0].name, "law.py")
        law.write_text(stated(law.read_text(encoding="utf-8"), files), encoding="utf-8")
        arguments, said = ["--follow-imports=silent", "--ignore-missing-imports", *files], io.StringIO()
        try:
            gc.disable()  # mypy's graph is large, and alive to the end: to look through it took half of the time
            with redirect_stdout(said):  # mostly advice about generators, of which the specification is full
                extensions = mypycify(arguments, opt_level="1", debug_level="0", multi_file=True, group_name="explorer")
        except SystemExit:
            print(said.getvalue())
            raise
        gc.freeze()
        built = {"cmdclass": {"build_ext": BuildExt}, "options": {"build_ext": {"inplace": True}}}
        Distribution({"name": "explorer", "ext_modules": extensions, **built}).run_command("build_ext")
        shutil.rmtree("build", ignore_errors=True)
    recorded(folder, sources)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: python -m blockwright_lab.explorer FOLDER")
    folder = Path(sys.argv[1])
    if not trouble(folder):
        return
    print("compiling the specification for lock-step (a minute or two)", file=sys.stderr)
    try:
        compile_into(folder)
    except ImportError as error:
        raise SystemExit(f"mypy is needed to compile: {error}; without it lock-step runs the sources") from error


if __name__ == "__main__":
    main()

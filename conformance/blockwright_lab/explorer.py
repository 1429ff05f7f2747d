"""Compiles the specification, and the inner loops of lock-step, by mypyc: for `blockwright conform --explorer FOLDER`.

    python -m blockwright_lab.explorer build/explorer

copies both packages there and compiles the hot parts of an exploration.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import blockwright
from blockwright_conformance.checker.compiled import PACKAGES, RECORD, digests, trouble

KIT = """
    block_tables/abstraction block_tables/actions block_tables/symmetry
    kv_cache/abstraction kv_cache/actions kv_cache/adapter kv_cache/calls kv_cache/lockstep
    kv_cache/parts kv_cache/requests kv_cache/symmetry
""".split()
"""The modules of the kit that are compiled with the specification."""


def recorded(folder: Path, sources: dict[str, str]) -> None:
    record = {
        "sources": sources,
        "libraries": sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*.so")),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=0) + "\n", encoding="utf-8")


@contextmanager
def quiet() -> Iterator[None]:
    """Print the compiler's messages, except its advice about generators, of which the specification is full."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            yield
    finally:
        lines = [line for line in said.getvalue().splitlines() if "Treating generator comprehension" not in line]
        print("\n".join(lines), end="\n" if lines else "")


def compile_into(folder: Path) -> None:
    """Copy both packages into a folder and compile.

    Raises:
        ImportError: mypy is not installed.
        SystemExit: the sources cannot be compiled; the compiler has printed the reason.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    sources = digests()
    shutil.rmtree(folder, ignore_errors=True)
    for package in PACKAGES:
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    os.environ["MYPYPATH"] = str(Path(blockwright.__file__).absolute().parents[1])
    with chdir(folder):
        spec = [str(each) for each in sorted(Path(PACKAGES[0].name).rglob("*.py")) if each.name != "__init__.py"]
        kit = [f"{PACKAGES[1].name}/{name}.py" for name in KIT]
        with quiet():
            extensions = mypycify(
                ["--follow-imports=silent", "--ignore-missing-imports", *spec, *kit],
                opt_level="1",
                debug_level="0",
                multi_file=True,
                group_name="explorer",
            )
        command: Any = Distribution({"name": "explorer", "ext_modules": extensions}).get_command_obj("build_ext")
        command.inplace, command.parallel = True, os.cpu_count()
        command.ensure_finalized()
        command.run()
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

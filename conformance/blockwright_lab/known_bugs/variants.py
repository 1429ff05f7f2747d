"""Variants: the implementation with one place changed, loaded beside the real one in the same process.

A variant is a fresh copy of the package `blockwright`, made from its sources, past compiled libraries and past cached
bytecode: gates that need a *wrong* implementation (known bugs, mutants) load one, put it under a separate adapter, and
drop it. Its classes, errors among them, are its own; the modules that the process imported stay as they were.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from .changes import ROOT, Change, edited

PACKAGE = "blockwright"

PARTS = ("worker.replica", "paging", "offload", "offload.identity", "offload.naming", "observe")
"""What is imported besides the package, which imports none of it."""


def patched(changes: Sequence[Change]) -> dict[str, CodeType]:
    return {
        file: compile(text, str(ROOT / file), "exec", dont_inherit=True, optimize=1)
        for file, text in edited(changes).items()
    }


@cache
def code_of(path: Path) -> CodeType:
    return compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True, optimize=1)


class Sources(MetaPathFinder, Loader):
    """Imports the package from its sources, some of them replaced by other code."""

    def __init__(self, changed: Mapping[str, CodeType]) -> None:
        self.changed = {ROOT / file: code for file, code in changed.items()}
        self.used: set[Path] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE:
            return None
        place = ROOT.joinpath(*fullname.split(".")[1:])
        if place.is_dir():
            init = place / "__init__.py"
            return spec_from_file_location(fullname, init, loader=self, submodule_search_locations=[str(place)])
        return spec_from_file_location(fullname, place.with_suffix(".py"), loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Run a module; finders that it puts in the way (the core chooses its build so) are taken out again."""
        path = Path(module.__file__ or "")
        finders = sys.meta_path[:]
        self.used.add(path)
        exec(self.changed.get(path) or code_of(path), module.__dict__)
        sys.meta_path[:] = finders


def variant(*changes: Change) -> ModuleType:
    """Load the package with changes to some of its files. About 25 ms."""
    sources, modules = Sources(patched(changes)), dict[str, ModuleType]()
    with instead(sources, modules):
        found = importlib.import_module(PACKAGE)
        for name in PARTS:
            importlib.import_module(f"{PACKAGE}.{name}")
    if unused := set(sources.changed) - sources.used:
        raise LookupError(f"not imported by {PACKAGE}: {', '.join(sorted(map(str, unused)))}")
    return found


@contextmanager
def instead(sources: Sources, modules: dict[str, ModuleType]) -> Iterator[None]:
    kept, finders = held(PACKAGE), sys.meta_path[:]
    for name in kept:
        del sys.modules[name]
    sys.modules.update(modules)
    sys.meta_path.insert(0, sources)
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        modules.update(held(PACKAGE))
        for name in held(PACKAGE):
            del sys.modules[name]
        sys.modules.update(kept)


def held(package: str) -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == package}

"""Puts one copy of the implementation through one place, for mutants: as fast as can be, with the same comparisons."""

import gc
import importlib
import resource
import sys
from pathlib import Path
from types import ModuleType

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.kv_cache.scopes import Scope

from ..known_bugs.instrumented import adapter_on
from ..known_bugs.known_bug import Place, Trial
from ..known_bugs.watch import OutOfTimeError, alarm
from ..known_bugs.worlds import limited
from .recording import Recording

ENDLESS = "runs on and on"
MOST_TRANSITIONS = 10_000
"""Of a world that is explored for a mutant: larger ones would take minutes for each, uncompiled."""


def difference(where: Place | Trial, package: ModuleType) -> tuple[str, int]:
    """Say how a place shows that a package is wrong, if it does, and after how many transitions (0: unknown)."""
    prepared(where)
    gc.disable()
    try:
        with alarm():
            return visit(where, package)
    except OutOfTimeError:
        return ENDLESS, 0
    except Exception as error:
        return f"{type(error).__name__}: {error}", 0
    finally:
        gc.enable()


def prepared(where: Place | Trial) -> None:
    """Do what is done once per process and place: record a scope, import what a trial needs."""
    if isinstance(where, Place) and isinstance(where.scope, Scope):
        recorded(where.scope)
    import_what(where)


def visit(where: Place | Trial, package: ModuleType) -> tuple[str, int]:
    """Visit a place, up to the first difference."""
    if not isinstance(where, Place):
        fault = next(where(package), None)
        return (f"{fault.law}: {fault.detail}" if fault else ""), 0
    if isinstance(where.scope, Scope):
        faults, steps = recorded(where.scope).replay(limited(adapter_on(package, where.adapter)))
        return "; ".join(faults), steps
    result = Explorer(where.world(package), laws=False, max_transitions=MOST_TRANSITIONS).run()
    return result.violation.detail if result.violation else "", result.transitions


def import_what(where: Place | Trial) -> None:
    """Import large libraries that a trial says it `needs`, before it is watched, with as much memory as they take."""
    missing = [name for name in getattr(where, "needs", ()) if name not in sys.modules]
    if missing:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        before = memory_taken()
        for name in missing:
            importlib.import_module(name)
        if soft != resource.RLIM_INFINITY:
            resource.setrlimit(resource.RLIMIT_AS, (soft + memory_taken() - before, hard))
        keep()


def keep() -> None:
    """Keep what there is from the garbage collector, which runs after every mutant."""
    gc.collect()
    gc.freeze()


def memory_taken() -> int:
    """Return the bytes of address space that the process has."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def recorded(scope: Scope) -> Recording:
    """Return a scope's recording, made once per process and kept from the garbage collector."""
    found = RECORDINGS.get(scope)
    if found is None:
        found = RECORDINGS[scope] = Recording(scope)
        keep()
    return found


RECORDINGS: dict[Scope, Recording] = {}

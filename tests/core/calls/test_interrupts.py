"""Property: a call that ends in its middle leaves everything as before it, or as after it, or no later call is served.

How: every call of `interrupted.CALLS` in a fresh world, ended at one point after another: where it touches an object of
the caller's own class (both builds: ids, numbers, lists and mappings whose every method may raise; there nothing may
tear), at a line of the uncompiled core, and where an allocation fails (both builds, in child processes, since the
compiler's runtime may end the process; `DEATHS` lists the calls in which it does, and why).

A sample of the points; with ``BLOCKWRIGHT_ALL_POINTS=1`` all of them.

Not covered: block tables (tests/paging/walks/test_interrupts.py), offloading; memory that the system promises and then
has not (the process is killed).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from tests.core.calls.interrupted import CALLS, SHORTAGES, Ending, Given, Stop, a_line_of_the_core, became, shortages
from tests.core.support import COMPILED, pure_only

ALL = os.environ.get("BLOCKWRIGHT_ALL_POINTS") == "1"
each_call = pytest.mark.parametrize("name", CALLS)

UNCHECKED = "mypyc does not check that a vec could be put into an object (its operation `Box` is taken never to fail)"
FATAL = "mypyc ends the process where an integer or a tuple cannot be put into an object"

DEATHS = {
    "look up": UNCHECKED,
    "explain": UNCHECKED,
    "plan": FATAL,
    "allocate, new": UNCHECKED,
    "allocate, a hit": UNCHECKED,
    "allocate, a load": UNCHECKED,
    "allocate, running": UNCHECKED,
    "allocate, one token": UNCHECKED,
    "allocate, a state": UNCHECKED,
    "allocate, a new state": UNCHECKED,
    "allocate, in a step": UNCHECKED,
    "commit": UNCHECKED,
    "copy on write": UNCHECKED,
    "free, in a step": UNCHECKED,
    "free, loading": UNCHECKED,
    "events, allocate": UNCHECKED,
}
"""Calls in which a failed allocation may end the process of the compiled build, and why; see docs/engine.md."""


def touched() -> None:
    """Count one access to an object of the caller's; raise at the last."""
    Own.left -= 1
    if Own.left < 0:
        raise Stop


class Own:
    """Accesses to the caller's own objects that are left before one raises."""

    left = 10**9


def own(base: type, names: Iterable[str]) -> Any:
    """A subclass whose methods of these names count."""

    def counting(name: str) -> Any:
        original = getattr(base, name)

        def method(self: object, *arguments: object, **options: object) -> object:
            touched()
            return original(self, *arguments, **options)

        return method

    return type(f"Own{base.__name__}", (base,), {name: counting(name) for name in names})


COMPARED = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__", "__str__", "__format__"]
COUNTED = ["__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__floordiv__", "__mod__", "__neg__", "__and__"]
LISTED = ["__iter__", "__len__", "__getitem__", "__contains__", "__eq__"]
OWN = Given(
    own(str, [*COMPARED, "__len__", "__iter__", "__getitem__", "encode"]),
    own(int, [*COMPARED, *COUNTED, "__int__", "__index__", "__bool__", "to_bytes"]),
    own(list, LISTED),
    own(dict, [*LISTED, "keys", "items", "get", "pop"]),
)


def give(left: int) -> None:
    """Let the caller's objects be accessed so often."""
    Own.left = left


an_object_of_the_caller = Ending(lambda at: give(at - 1), lambda: give(10**9))


@each_call
def test_objects_of_the_caller(name: str) -> None:
    for at in range(1, 10_000, 1 if ALL else 7):
        result = became(CALLS[name], an_object_of_the_caller, at, OWN)
        assert result in ("unchanged", "changed", "whole"), f"access {at}: {result}"
        if result == "whole":
            return


@pure_only
@each_call
def test_lines_of_the_core(name: str) -> None:
    for at in range(1, 100_000, 1 if ALL else 61):
        if became(CALLS[name], a_line_of_the_core, at) == "whole":
            return


@pytest.mark.parametrize("shortage", SHORTAGES)
@each_call
def test_allocations(name: str, shortage: str) -> None:
    ending = SHORTAGES[shortage]
    if ending is None:
        pytest.skip("this Python has no _testcapi, which makes allocations fail")
    if shortage == "from then on" and not COMPILED:
        pytest.skip("CPython's interpreter does not come back from a call in which no allocation succeeds any more")
    found = shortages(CALLS[name], ending, range(1, 3000, 1 if ALL else 17), 12 if ALL else 2)
    died = {result for result in found if result.startswith("died")}
    assert set(found) - died <= {"unchanged", "changed", "torn", "whole"}, found
    assert not died or (COMPILED and name in DEATHS), found


@pytest.mark.skipif(not (ALL and COMPILED), reason="needs all points, and the compiled build")
def test_the_list_of_deaths_holds() -> None:
    endings = [ending for ending in SHORTAGES.values() if ending is not None]
    for name in DEATHS if endings else ():
        found = [shortages(CALLS[name], ending, range(1, 3000)) for ending in endings]
        assert any(result.startswith("died") for each in found for result in each), f"{name} dies no more: unlist it"


def test_a_pool_larger_than_memory() -> None:
    """Is refused by MemoryError; the process lives."""
    program = """if True:
        import resource
        from blockwright import BlockPool
        limit = 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for size in (2**30, 2**28, 2**26, 3 * 2**24):
            try:
                BlockPool(size)
            except MemoryError:
                continue
            raise SystemExit(f"{size} blocks were made")
        BlockPool(1000).check()
    """
    subprocess.run([sys.executable, "-c", program], check=True)

"""Property CALL-1: a call that ends in its middle leaves all as before it, or as after it, or no later call is served.

How: every call of the table `CALLS` (the core, block tables, tiers and chains, connectors, queues, streams of events)
in a fresh world, ended at one point after another: where it touches an object of the caller's own class (both builds:
ids, numbers, keys, lists, mappings and sequences whose every method may raise; there nothing may tear), at a line of
the uncompiled package, and where an allocation fails (both builds, in child processes, since the compiler's runtime
may end the process; `DEATHS` lists the calls in which it does, and why).

A sample of the points; with ``BLOCKWRIGHT_ALL_POINTS=1`` all of them.

Not covered: an engine's own allocators and tiers; handlers of a GPU; memory that the system
promises and then has not (the process is killed).
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.core.support import COMPILED, pure_only
from tests.interrupts import connector_calls, core_calls, observe_calls, offload_calls, paging_calls
from tests.interrupts.ended import (
    OWN,
    SHORTAGES,
    Call,
    a_line_of_the_package,
    an_object_of_the_caller,
    became,
    shortages,
)

from blockwright._switch import is_on

ALL = is_on("BLOCKWRIGHT_ALL_POINTS")
CALLS: dict[str, Call] = {
    **core_calls.CALLS,
    **paging_calls.CALLS,
    **offload_calls.CALLS,
    **connector_calls.CALLS,
    **observe_calls.CALLS,
}
each_call = pytest.mark.parametrize("name", CALLS)

INTERPRETED = {*connector_calls.CALLS, *observe_calls.CALLS, *(name for name in CALLS if name.startswith("group, "))}
"""Calls of modules that are not compiled."""

UNCHECKED = "mypyc does not check that a vec could be put into an object (its operation `Box` is taken never to fail)"
FATAL = "mypyc ends the process where an integer or a tuple cannot be put into an object"

DEATHS = {
    "look up": UNCHECKED,
    "explain": UNCHECKED,
    "allocate, new": UNCHECKED,
    "allocate, a hit": UNCHECKED,
    "allocate, a load": UNCHECKED,
    "allocate, running": UNCHECKED,
    "allocate, one token": UNCHECKED,
    "allocate, a state": UNCHECKED,
    "allocate, a new state": UNCHECKED,
    "allocate, in a step": UNCHECKED,
    "allocate, after a state": UNCHECKED,
    "common prefix": UNCHECKED,
    "commit": UNCHECKED,
    "copy on write": UNCHECKED,
    "free, in a step": UNCHECKED,
    "free, loading": UNCHECKED,
    "events, allocate": UNCHECKED,
    "tables, cached: swap out": FATAL,
    "tables, window: swap out": FATAL,
    "tables, window: swap in": FATAL,
}
"""Calls in which a failed allocation may end the process of the compiled build, and why; see docs/how-to/engine.md."""


@each_call
def test_objects_of_the_caller(name: str) -> None:
    for at in range(1, 10_000, 1 if ALL else 7):
        result = became(CALLS[name], an_object_of_the_caller, at, OWN)
        assert result in ("unchanged", "changed", "whole"), f"access {at}: {result}"
        if result == "whole":
            return


@pure_only
@each_call
def test_lines_of_the_package(name: str) -> None:
    for at in range(1, 100_000, 1 if ALL else 61):
        if became(CALLS[name], a_line_of_the_package, at) == "whole":
            return


@pytest.mark.parametrize("name", observe_calls.CALLS)
def test_lines_of_what_is_not_compiled(name: str) -> None:
    """At each of them, and nothing is torn: a consumer would need a snapshot that nobody has."""
    for at in range(1, 100_000):
        result = became(CALLS[name], a_line_of_the_package, at)
        assert result in ("unchanged", "changed", "whole"), f"line {at}: {result}"
        if result == "whole":
            return


@pytest.mark.parametrize("shortage", SHORTAGES)
@each_call
def test_allocations(name: str, shortage: str) -> None:
    ending = SHORTAGES[shortage]
    if ending is None:
        pytest.skip("this Python has no _testcapi, which makes allocations fail")
    if shortage == "from then on" and (not COMPILED or name in INTERPRETED):
        pytest.skip("CPython 3.11 hangs where a long function leaves a `with` and nothing can be allocated")
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

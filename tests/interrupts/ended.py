"""Calls that are ended in their middle, one fresh world each, and what became of the state.

An `Ending` ends a call at its k-th chance: an allocation that fails, a line of the package, an access to one of the
caller's objects. After it the state is

- ``unchanged``: everything observable is as before,
- ``changed``: everything is as after the whole call,
- ``torn``: every later call raises `InterruptedCallError`,

or else `BrokenStateError` is raised: that is the law CALL-1. ``whole`` means that the call came to its end: there was
no k-th chance.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import blockwright
from blockwright.errors import InterruptedCallError
from blockwright_spec.law import Ended, law_ended_call_is_whole

PACKAGE = Path(blockwright.__file__).parent
TRACED = tuple(str(PACKAGE / folder) for folder in ("core", "paging", "offload", "observe"))
"""The folders whose lines are traced. Where they are compiled, an interrupt comes between calls alone."""


class Stop(BaseException):
    """What ends a call."""


class BrokenStateError(AssertionError):
    """A state that is neither as before nor as after, and that does not refuse later calls."""


class Given(NamedTuple):
    """How arguments are handed over: as they are, or as objects of the caller's own classes."""

    text: Callable[[str], str] = str
    number: Callable[[int], int] = int
    sequence: Callable[[list[Any]], Any] = list
    mapping: Callable[[dict[Any, Any]], Mapping[Any, Any]] = dict
    key: Callable[[bytes], bytes] = bytes


AS_THEY_ARE = Given()


class Call(NamedTuple):
    """One call, the world that it is made in, and what is looked at afterwards beside the world's own dump.

    A world has `dump`, which shows everything observable after the self-check, and `require_refusals`, which sees that
    no call is served any more.
    """

    make: Callable[[Given], Any]
    act: Callable[[Any], object]
    prepare: Callable[[Any], object] | None = None
    """What comes before; the world keeps its result as `extra`."""
    reads: Callable[[Any], object] | None = None

    def world(self, given: Given) -> Any:
        world = self.make(given)
        if self.prepare is not None:
            world.extra = self.prepare(world)
        return world

    def dump(self, world: Any) -> object:
        return self.reads(world) if self.reads is not None else world.dump()


def require_refused(*calls: Callable[[], object]) -> None:
    """See that each of some calls is refused, since one before ended in its middle."""
    for call in calls:
        try:
            call()
        except InterruptedCallError:
            continue
        raise BrokenStateError("a call is served after one that ended in its middle")


@cache
def after_all_of(call: Call, given: Given) -> object:
    """What the whole call comes to."""
    world = call.world(given)
    call.act(world)
    return call.dump(world)


def became(call: Call, ending: Ending, at: int, given: Given = AS_THEY_ARE) -> str:
    """End a call at its chance number `at`; return what became of the state, after going on with it."""
    world = call.world(given)
    before = call.dump(world)
    try:
        try:
            ending.start(at)
            call.act(world)
        finally:
            ending.stop()
        return "whole"
    except (Stop, MemoryError, InterruptedCallError):  # the last: of a chain whose tier was torn within the call
        pass
    except SystemError as error:
        # librt reports a failed allocation of a vec as a result with an exception set, and CPython 3.11 a frame that
        # it has no memory for as an error without one. Both leave the state to be judged.
        if not isinstance(error.__cause__, MemoryError) and "without exception set" not in str(error):
            raise
    except RuntimeError as error:
        if str(error) != "can't allocate lock":  # as CPython reports that allocation
            raise
    try:
        found = call.dump(world)
    except InterruptedCallError:
        found = None
        if call.reads is None:
            world.require_refusals()
    except Exception as error:
        raise BrokenStateError(f"{type(error).__name__}: {error}") from error
    ended = Ended(before, after_all_of(call, given), found)
    if not law_ended_call_is_whole(ended):
        raise BrokenStateError(f"neither as before nor as after\n{ended}")
    if found == before:
        call.act(world)  # as if nothing had been
    return "torn" if found is None else "unchanged" if found == before else "changed"


# ---------------------------------------------------------------------- the endings


class Ending(NamedTuple):
    """How a call is ended at its k-th chance. Plain functions: leaving a context manager would take memory."""

    start: Callable[[int], object]
    stop: Callable[[], object]


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
    own(bytes, [*COMPARED, "__len__", "__iter__", "__getitem__", "__contains__", "hex"]),
)


def give(left: int) -> None:
    """Let the caller's objects be accessed so often."""
    Own.left = left


an_object_of_the_caller = Ending(lambda at: give(at - 1), lambda: give(10**9))


def _comes_with_the_line_before(frame: FrameType) -> bool:
    """Whether no interrupt comes at a line: at the end of a block with a lock, and where nothing calls anything.

    CPython looks for interrupts at calls and backward jumps alone.
    """
    before, line = (getline(frame.f_code.co_filename, frame.f_lineno - back).strip() for back in (1, 0))
    return line.startswith("with ") or (line.startswith("return ") and "(" not in before + line)


def trace_from(at: int) -> None:
    """Raise at the k-th line of uncompiled code of the package that runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line" and not _comes_with_the_line_before(frame):
            count += 1
            if count == at:
                sys.settrace(None)
                raise Stop
        return trace

    sys.settrace(trace)


def failing_memory(once: bool) -> Ending | None:
    """Fail the k-th allocation, alone or with all after it; None where Python cannot do that."""
    try:
        import _testcapi  # type: ignore[import-not-found]
    except ImportError:
        return None
    return Ending(lambda at: _testcapi.set_nomemory(at, at + 1 if once else 0), _testcapi.remove_mem_hooks)


a_line_of_the_package = Ending(trace_from, lambda: sys.settrace(None))
SHORTAGES = {"once": failing_memory(True), "from then on": failing_memory(False)}


def in_a_child(call: Call, ending: Ending, at: int) -> str:
    """Do as `became` in a child process, since it may die: return how then, and what stood in its way."""
    after_all_of(call, AS_THEY_ARE)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "lost"
        try:
            faulthandler.disable()
            signal.alarm(60)
            os.dup2(write, 2)  # what the compiler's runtime says at last goes to the parent too
            said = became(call, ending, at)
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(write, said.encode()[:60_000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"died of signal {os.WTERMSIG(status)}"
    return said if os.WEXITSTATUS(status) == 0 else f"left with status {os.WEXITSTATUS(status)}: {said}"


def shortages(call: Call, ending: Ending, points: range, calm: int = 12) -> dict[str, list[int]]:
    """Let memory run out at each of these points, until a call has come to its end so often; points by what became."""
    found: dict[str, list[int]] = {}
    whole = 0
    for at in points:
        result = in_a_child(call, ending, at)
        found.setdefault(result, []).append(at)
        whole = whole + 1 if result == "whole" else 0
        if whole == calm:
            break
    return found

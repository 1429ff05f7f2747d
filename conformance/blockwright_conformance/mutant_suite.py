"""Unit tests as a place for mutants: for bookkeeping that no scope calls, such as that of the connector.

A file of tests of this project's tree runs in a forked process, in which `blockwright` is the copy under test, up to
the first failure. What a test starts in processes of its own still runs the unchanged implementation. A test that runs
on and on, or waits for ever, is ended. An installed kit has no tree, and so no such place.
"""

import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

from .variants import PACKAGE, ROOT, Sources, modules_of

TREE = ROOT.parents[1]
"""The folder of the project, where the kit runs from its tree."""

BUSY, WAITING = 20.0, 90.0
"""Seconds that one test may compute, and that it may take."""

LIMIT = 900.0
"""Seconds that a file of tests may take."""

OPTIONS = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler")


class EndlessError(BaseException):
    """A test runs on and on. No `Exception`, so that nothing on the way takes it for an answer."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A file of unit tests, by its path in the tree, or some tests of it; and tests that are left out."""

    file: str
    but: tuple[str, ...] = ()

    @property
    def is_there(self) -> bool:
        """Tell whether the tree with the tests is there."""
        return (TREE / self.file.partition("::")[0]).is_file()

    def difference(self, package: ModuleType) -> str:
        """Give the first test that fails with a copy of the implementation, and why; empty if none does."""
        return in_fork(lambda: first_failure(self, package), LIMIT)


def in_fork(work: Callable[[], str], limit: float) -> str:
    """Do some work in a forked process and give what it tells; statements that it marks are marked here, too."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writes, "w", encoding="utf-8") as pipe:
            pipe.write(quietly(work))
            pipe.flush()
        os._exit(0)
    os.close(writes)
    told, until = bytearray(), time.monotonic() + limit
    try:
        while (left := until - time.monotonic()) > 0:
            if select.select([reads], [], [], left)[0]:
                more = os.read(reads, 1 << 16)
                if not more:
                    return received(told.decode("utf-8", "replace"))
                told += more
        return "runs on and on"
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def quietly(work: Callable[[], str]) -> str:
    """Do some work without output; tell what it gives, an error like any result, and which statements it marked."""
    from .mutant_reach import MARKS

    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    gc.enable()
    try:
        told = work()
    except BaseException as error:
        told = f"{type(error).__name__}: {error}"
    return json.dumps({"told": told, "marks": {file: sorted(lines) for file, lines in MARKS.items()}})


def received(message: str) -> str:
    """Give what a forked process told."""
    from .mutant_reach import MARKS

    if not message:
        return "the process of the tests ended early"
    result = json.loads(message)
    for file, lines in result["marks"].items():
        MARKS.setdefault(file, set()).update(lines)
    told: str = result["told"]
    return told


class Watched:
    """A plugin that remembers the first failure, and ends tests that run on and on."""

    def __init__(self) -> None:
        self.told = ""

    def seen(self, report: Any) -> None:
        """Remember the first report of a failure."""
        if report.failed and not self.told:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash is not None else str(report.longrepr)
            self.told = f"{report.nodeid.rpartition('/')[2]}: {str(text).strip().partition(chr(10))[0][:200]}"

    pytest_runtest_logreport = seen
    pytest_collectreport = seen

    def around(self) -> Generator[None, Any, Any]:
        """Let one test take its time, and no more."""
        for timer, seconds in TIMERS.items():
            signal.setitimer(timer, seconds)
        try:
            return (yield)
        finally:
            for timer in TIMERS:
                signal.setitimer(timer, 0)


TIMERS = {signal.ITIMER_VIRTUAL: BUSY, signal.ITIMER_REAL: WAITING}


def stop(_signal: int, _frame: FrameType | None) -> None:
    """End the test that runs.

    Raises:
        EndlessError: always.
    """
    raise EndlessError("runs on and on")


def first_failure(suite: Suite, package: ModuleType) -> str:
    """Run the tests of a suite with a copy of the package up to the first failure, and tell of it."""
    import pytest

    os.environ |= {"BLOCKWRIGHT_PURE_PYTHON": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.chdir(TREE)
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, f"{PACKAGE}_conformance")]:
        del sys.modules[name]
    sys.modules.update(modules_of(package))
    sys.meta_path.insert(0, Sources({}))
    signal.signal(signal.SIGVTALRM, stop)
    signal.signal(signal.SIGALRM, stop)
    watched = Watched()

    class Timing:
        @staticmethod
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol() -> Generator[None, Any, Any]:
            return (yield from watched.around())

    left_out = [option for name in suite.but for option in ("--deselect", name)]
    code = pytest.main([*OPTIONS, *left_out, suite.file], plugins=[watched, Timing()])
    return watched.told or ("" if code == 0 else f"the tests end with {code!r}")

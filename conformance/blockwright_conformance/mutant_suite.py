"""Unit tests as a place for mutants: for bookkeeping that no scope reaches, such as that of the connector.

The tests of this project's tree are run once on the unchanged implementation, and it is noted which lines each of them
executes and how long it takes. A mutant is then given to the tests that execute its lines, the fastest first, up to the
first that fails. They run in a process of their own, forked from this one, in which `blockwright` is the variant; one
that runs on and on, or waits for ever, is ended. Without the tree (an installed kit) there is no such place.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from .variants import PACKAGE, ROOT, Sources

TREE = ROOT.parents[1]
"""The folder of the project, where the kit runs from its tree."""

PATIENCE = 20.0
"""Seconds that tests may take beyond ten times what they take on the unchanged implementation."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A test on the unchanged implementation: the lines that it executes, by file, and how long it takes."""

    name: str
    lines: frozenset[tuple[str, int]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Suite:
    """Some files of unit tests, and what they execute."""

    name: str
    files: tuple[str, ...]
    tests: tuple[Tried, ...] = field(default=(), compare=False)

    def surveyed(self, sources: tuple[str, ...]) -> "Suite":
        """Run all tests on the unchanged implementation; give the suite with what each executes of some sources.

        Raises:
            RuntimeError: a test fails, or there is none.
        """
        told, ended = in_fork(lambda: survey(self.files, sources), 600)
        if not ended or not told:
            raise RuntimeError(f"{self.name}: the tests did not run on the unchanged implementation")
        if not told.startswith("{"):
            raise RuntimeError(f"{self.name}: {told}")
        result = json.loads(told)
        if result["failed"]:
            raise RuntimeError(f"{self.name}: {result['failed']} on the unchanged implementation")
        tests = [
            Tried(name, frozenset((file, line) for file, line in lines), seconds)
            for name, (lines, seconds) in result["tests"].items()
        ]
        return Suite(self.name, self.files, tuple(sorted(tests, key=lambda test: test.seconds)))

    def reaching(self, lines: frozenset[tuple[str, int]]) -> list[Tried]:
        """Give the tests that execute one of some lines, the fastest first."""
        return [test for test in self.tests if test.lines & lines]

    def difference(self, changed: Mapping[str, CodeType], tests: list[Tried]) -> str:
        """Give the first of some tests that fails with changed sources, and why; empty if none does."""
        limit = PATIENCE + 10 * sum(test.seconds for test in tests)
        names = [test.name for test in tests]
        told, ended = in_fork(lambda: first_failure(names, changed), limit)
        return told if ended else "runs on and on"


def is_there() -> bool:
    """Tell whether the tree with the tests is there."""
    return (TREE / "tests" / "conftest.py").is_file()


def in_fork(work: Callable[[], str], limit: float) -> tuple[str, bool]:
    """Do some work in a forked process; give what it returns, and whether it ended by itself within some seconds."""
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
                    return told.decode("utf-8", "replace"), True
                told += more
        return "", False
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def quietly(work: Callable[[], str]) -> str:
    """Do some work in a session of its own, without output; an error is told like any result."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        return work()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def prepared(changed: Mapping[str, CodeType]) -> None:
    """Let `blockwright`, from now on, be the variant in this process; whoever holds the old one keeps it."""
    os.environ |= {"BLOCKWRIGHT_PURE_PYTHON": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.chdir(TREE)
    for name in [name for name in sys.modules if name.partition(".")[0] in (PACKAGE, f"{PACKAGE}_conformance")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Sources(changed))


class FirstFailure:
    """A plugin that remembers the first failure."""

    def __init__(self) -> None:
        self.told = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember a test that failed."""
        if report.failed and not self.told:
            self.told = f"{report.nodeid}: {last_line(report)}"

    def pytest_collectreport(self, report: Any) -> None:
        """Remember a module that could not be imported."""
        if report.failed and not self.told:
            self.told = f"{report.nodeid}: {last_line(report)}"


def last_line(report: Any) -> str:
    """Give the line that says what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return str(text).strip().partition("\n")[0][:200]


OPTIONS = ("-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:unraisableexception")


def first_failure(names: list[str], changed: Mapping[str, CodeType]) -> str:
    """Run tests in order up to the first failure, and tell of it."""
    import pytest

    prepared(changed)
    plugin = FirstFailure()
    code = pytest.main([*OPTIONS, *names], plugins=[plugin])
    return plugin.told or ("" if code == 0 else f"the tests end with {code!r}")


class Survey(FirstFailure):
    """A plugin that notes which lines each test executes."""

    def __init__(self, sources: tuple[str, ...]) -> None:
        super().__init__()
        self.wanted = {str(ROOT / file): file for file in sources}
        self.lines: set[tuple[str, int]] = set()
        self.tests: dict[str, tuple[list[tuple[str, int]], float]] = {}

    def trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Note the lines of the wanted files."""
        file = self.wanted.get(frame.f_code.co_filename)
        if file is None:
            return None
        self.lines.add((file, frame.f_lineno))

        def local(frame: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                self.lines.add((file, frame.f_lineno))
            return local

        return local

    def traced(self, item: Any) -> Generator[None, Any, Any]:
        """Trace one test, with its fixtures."""
        self.lines = set()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        started = time.perf_counter()
        result = yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.tests[item.nodeid] = sorted(self.lines), time.perf_counter() - started
        return result


def survey(files: tuple[str, ...], sources: tuple[str, ...]) -> str:
    """Run all tests of some files under the tracer, and tell what each executes."""
    import pytest

    prepared({})
    plugin = Survey(sources)

    class Tracing:
        @staticmethod
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
            return (yield from plugin.traced(item))

    pytest.main([*OPTIONS, *files], plugins=[plugin, Tracing()])
    return json.dumps({"tests": plugin.tests, "failed": plugin.told})

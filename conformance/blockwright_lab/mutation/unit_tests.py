"""Mutants that no place executes, or notices, before the unit tests of the project's tree.

Tests are collected once, by a process of their own; each runs once with a mark before every statement, so that it is
known which test executes what (kept in ``build/`` while sources and tests are the same). Then, for each mutant, a fork
gets the changed function in place of its own and runs the tests that execute the statement: those that failed for the
last mutants of the function first, then the fastest. A test that computes or waits for too long is ended, which is a
failure like any other.
"""

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from ..known_bugs.changes import source_of
from .forked import in_fork
from .in_place import change, functions_of, module_of
from .mutator import Mutation
from .places import ENDLESS
from .reach import marked
from .survivors import KILLERS, TREE, is_test, known_killers
from .targets import Target, parsed, target

BUSY, WAITING = 5.0, 12.0
"""Seconds that one test may compute, and that it may take."""
OPTIONS = ("-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:unraisableexception")


class Tested(NamedTuple):
    """What became of a mutant: the test that failed and how (both empty: none), and how many were run."""

    key: str
    test: str
    how: str
    tests: int


def judged(name: str, mutations: list[Mutation], known: bool = False) -> dict[str, Tested]:
    """Put mutants of a target before its tests, in another process; return what became of each, by key.

    If only `known`, before those tests that are remembered.

    Raises:
        RuntimeError: a test fails without a mutant, or the process did not do its work.
    """
    keys = {mutation.key: known_tests(mutation) for mutation in mutations}
    with tempfile.TemporaryDirectory() as folder:
        wanted, results = Path(folder, "keys"), Path(folder, "results")
        wanted.write_text(json.dumps(keys), encoding="utf-8")
        command = [sys.executable, "-m", __name__, name, str(wanted), str(results), *(["--known"] if known else [])]
        environment = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"}
        done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found = {line["key"]: Tested(**line) for line in map(json.loads, lines)}
    if done.returncode or len(found) < len(keys):
        raise RuntimeError(f"unit tests of {name}: {(done.stderr or done.stdout)[-2000:]}")
    return found


def known_tests(mutation: Mutation) -> list[str]:
    """Return the tests that are remembered to have killed a mutant, or others of its function."""
    return [each for each in known_killers(mutation) if is_test(each)]


def survey_file(owner: Target) -> Path:
    """Return where it is kept what each test of a target executes; another file where a source or test differs."""
    texts = [source_of(file) for file in owner.files]
    folders = sorted({(TREE / file).parent for file in owner.tests})
    texts += [path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.glob("*.py"))]
    digest = blake2b("".join(texts).encode(), digest_size=6).hexdigest()
    return KILLERS.with_name(f"{owner.name}-{digest}.json")


class EndlessError(BaseException):
    """A test runs on and on. No `Exception`, so that nothing on the way takes it for an answer."""


class FailedError(BaseException):
    """A test failed in a fork, which is ended at once: what the test would clear up might wait on and on."""


def stop(_signal: int, _frame: FrameType | None) -> None:
    """End the test that runs.

    Raises:
        EndlessError: always.
    """
    raise EndlessError(ENDLESS)


class Runner:
    """A plugin that takes the place of the loop over all tests."""

    def __init__(self, owner: Target, tests: dict[str, list[str]], out: Path, known: bool) -> None:
        self.owner, self.tests, self.out, self.known = owner, tests, out, known
        self.functions = {file: functions_of(module_of(file)) for file in owner.files}
        self.failed: tuple[str, str] | None = None
        self.items: dict[str, Any] = {}
        self.fault = ""
        self.lines: dict[str, dict[str, list[int]]] = {}
        """By test, by source, the lines that it executes; the fastest test first."""
        self.killers: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember the first test that failed.

        Raises:
            FailedError: it failed.
        """
        if report.failed and self.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(crash.message if crash is not None else report.longrepr)
            self.failed = report.nodeid, text.strip().partition("\n")[0][:200]
            raise FailedError(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Try the mutants, and at last the tests that killed without any: one that fails then kills nothing."""
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        if self.known or self.surveyed():
            with self.out.open("a", encoding="utf-8") as out:
                mutations = (each for file in self.owner.files for each in parsed(file).mutations)
                for mutation in (each for each in mutations if each.key in self.tests):
                    names = self.tests[mutation.key] if self.known else self.reaching(mutation)
                    result = self.result_of(mutation, [name for name in names if name in self.items])
                    out.write(json.dumps(result._asdict()) + "\n")
                    out.flush()
            told, ended = in_fork(self.unchanged, 1200.0)
            test, how = json.loads(told) if ended and told else ("", ENDLESS)
            self.fault = f"without a mutant: {test}: {how}" if how else ""
        return True

    def surveyed(self) -> bool:
        """Find out which statements each test executes."""
        path = survey_file(self.owner)
        if not path.exists():
            told, ended = in_fork(self.survey, 1200.0)
            if not (ended and told.startswith("{")):
                self.fault = f"without a mutant: {told or ENDLESS}"
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(told, encoding="utf-8")
        self.lines = json.loads(path.read_text(encoding="utf-8"))
        return True

    def survey(self) -> str:
        """Run all tests with marked functions; tell which statements each executes, the fastest test first."""
        marks: dict[str, set[int]] = {file: set() for file in self.owner.files}
        for file, functions in self.functions.items():
            vars(module_of(file))["__mark__"] = marks[file].add
            change(functions, marked(file))
        lines: dict[str, dict[str, list[int]]] = {}
        seconds: dict[str, float] = {}
        for name in self.items:
            started = time.process_time()
            self.run([name])
            lines[name] = {file: sorted(held) for file, held in marks.items() if held}
            seconds[name] = time.process_time() - started
            for held in marks.values():
                held.clear()
            if self.failed and ENDLESS in self.failed[1]:  # with marks, or here: it is not among those that are run
                self.failed = None
                del lines[name]
            if self.failed:
                return json.dumps(self.failed)
        return json.dumps({name: lines[name] for name in sorted(lines, key=seconds.__getitem__)})

    def reaching(self, mutation: Mutation) -> list[str]:
        """Return the tests that execute a mutant's statement: those known to kill first, then the last killers."""
        able = [name for name, lines in self.lines.items() if mutation.line in lines.get(mutation.file, ())]
        first = [*self.tests[mutation.key], *self.killers.get(mutation.function, ())]
        return [*dict.fromkeys((*(name for name in first if name in able), *able))]

    def run(self, names: Iterable[str]) -> None:
        """Run tests up to the first that fails; one that runs on and on is ended."""
        signal.signal(signal.SIGVTALRM, stop)
        signal.signal(signal.SIGALRM, stop)
        names = list(names)
        for name, after in zip_longest(names, names[1:]):
            signal.setitimer(signal.ITIMER_VIRTUAL, BUSY)
            signal.setitimer(signal.ITIMER_REAL, WAITING)
            item = self.items[name]
            with suppress(FailedError):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after and self.items[after])
            if self.failed:
                return

    def unchanged(self) -> str:
        """Run every test that killed without a mutant, and tell which fails, if one does."""
        self.run({name for names in self.killers.values() for name in names})
        return json.dumps(self.failed or ("", ""))

    def result_of(self, mutation: Mutation, names: list[str]) -> Tested:
        """Run tests with a mutant in a fork."""
        if not names:
            return Tested(mutation.key, "", "", 0)
        code = parsed(mutation.file).compiled(mutation.key)
        told, ended = in_fork(lambda: self.verdict(mutation.file, code, names), WAITING * 30)
        test, how = json.loads(told) if ended and told else ("the process", "died" if ended else ENDLESS)
        if test in names:
            held = self.killers.setdefault(mutation.function, [])
            held[:] = [test, *(name for name in held if name != test)]
        return Tested(mutation.key, test or ("the process" if how else ""), how, len(names))

    def verdict(self, file: str, code: CodeType, names: list[str]) -> str:
        """Put changed code in and run tests; tell which failed, and how.

        A function cannot be changed where it is if it closes over other names than the original.
        """
        try:
            if not change(self.functions[file], code):
                return json.dumps(("", ""))
        except ValueError:
            return json.dumps(("", ""))
        self.run(names)
        return json.dumps(self.failed or ("", ""))


def main() -> None:
    """Put mutants of a target before its tests."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("target")
    parser.add_argument(
        "tests", type=Path, help="a file with the keys of mutants, each with the tests known for it, JSON"
    )
    parser.add_argument("results", type=Path, help="a file of one JSON line per mutant, appended to")
    parser.add_argument("--known", action="store_true", help="run only tests that are remembered")
    args = parser.parse_args()
    os.chdir(TREE)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path.insert(0, str(TREE))
    import pytest

    owner = target(args.target)
    tests = json.loads(args.tests.read_text(encoding="utf-8"))
    known = {test.partition("::")[0] for names in tests.values() for test in names}
    files = [file for file in owner.tests if not args.known or file in known]
    runner = Runner(owner, tests, args.results, args.known)
    code = pytest.main([*OPTIONS, *files], plugins=[runner])
    if runner.fault or code not in (0, 5):
        raise SystemExit(runner.fault or f"pytest ended with {code!r}")


if __name__ == "__main__":
    main()

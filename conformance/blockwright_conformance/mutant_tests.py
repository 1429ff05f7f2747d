"""Mutants that no place executes, or notices, before the unit tests of the project's tree.

Bookkeeping such as the connector's is called by no scope; unit tests call it. They are collected once, by a process of
their own; each runs once with a mark before every statement, so that it is known which test executes what. Then, for
each mutant, a fork gets the changed function in place of its own and runs the tests that execute the statement: those
that failed for the last mutants of the function first, then the fastest. A test that computes or waits for too long is
ended, which is a failure like any other. An installed kit has no tests, and says so.

    python -m blockwright_conformance.mutant_tests REALM --fates FILE [--scope TEXT] [--keys FILE] [--most N]

writes a line of JSON for each mutant as it comes: its key, the test that failed and why, or that none did.
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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TextIO

from .forked import in_fork
from .in_place import change, functions_of, module_of
from .mutant_hints import is_test, killer_of
from .mutant_listed import groups, together
from .mutant_reach import marked
from .mutant_realm import Realm
from .mutation import Mutation
from .realms import excuse, parsed, realm
from .variants import ROOT

TREE = ROOT.parents[1]
"""The folder of the project, where the kit runs from its tree."""

BUSY, WAITING = 5.0, 12.0
"""Seconds that one test may compute, and that it may take."""

OPTIONS = ("-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:unraisableexception")

ENDLESS = "runs on and on"
DIED = "the process died"
UNCHANGED = "cannot be changed where it is"

REMEMBERED = Path(__file__).with_name("mutant_tests.json")
MOST = 4
"""Tests that are remembered of a function."""


class Tested(NamedTuple):
    """What became of a mutant: the test that failed and how (both empty: none), and how many execute its statement."""

    key: str
    test: str
    how: str
    tests: int


def are_there(owner: Realm) -> bool:
    """Tell whether the tree with the tests of a realm is there."""
    return all((TREE / file).exists() for file in owner.tests)


def judged(owner: Realm, mutations: Iterable[Mutation], whole: bool = True) -> dict[str, Tested]:
    """Put mutants of a realm before its tests, in another process; give what became of each, by key.

    If not `whole`, before those tests only that are remembered.

    Raises:
        RuntimeError: a test fails without a mutant, or the process did not do its work.
    """
    keys = [mutation.key for mutation in mutations]
    with tempfile.TemporaryDirectory() as folder:
        wanted, fates = Path(folder, "keys"), Path(folder, "fates")
        wanted.write_text(json.dumps(keys), encoding="utf-8")
        command = [sys.executable, "-m", __name__, owner.name, "--fates", str(fates), "--keys", str(wanted)]
        command += [] if whole else ["--known"]
        environment = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"}
        done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
        lines = fates.read_text(encoding="utf-8").splitlines() if fates.exists() else []
    found = {line["key"]: Tested(**line) for line in map(json.loads, lines)}
    if done.returncode or len(found) < len(keys):
        raise RuntimeError(f"unit tests of {owner.name}: {(done.stderr or done.stdout)[-2000:]}")
    return found


def function_of(mutation: Mutation) -> str:
    """Name the function of a mutant."""
    return f"{mutation.file} {mutation.function}"


@cache
def remembered() -> dict[str, list[str]]:
    """Give the tests that killed mutants, by function."""
    known: dict[str, list[str]] = json.loads(REMEMBERED.read_text(encoding="utf-8")) if REMEMBERED.exists() else {}
    return known


def known_tests(mutation: Mutation) -> list[str]:
    """Give the tests that are remembered to have killed a mutant, or others of its function."""
    killer = killer_of(mutation.key)
    own = [killer] if is_test(killer) else []
    return [*own, *(test for test in remembered().get(function_of(mutation), ()) if test != killer)]


def remember(fates: Iterable[tuple[str, str]]) -> None:
    """Write which tests killed mutants, most often first, from pairs of a mutant's key and a test; keep the others."""
    counts: dict[str, Counter[str]] = {}
    for key, test in fates:
        if "::" in test:
            counts.setdefault(key.partition(":")[0], Counter())[test] += 1
    told = remembered() | {name: [test for test, _ in held.most_common(MOST)] for name, held in counts.items()}
    REMEMBERED.write_text(json.dumps(dict(sorted(told.items())), indent=0) + "\n", encoding="utf-8")


# --- running tests


class EndlessError(BaseException):
    """A test runs on and on. No `Exception`, so that nothing on the way takes it for an answer."""


def stop(_signal: int, _frame: FrameType | None) -> None:
    """End the test that runs.

    Raises:
        EndlessError: always.
    """
    raise EndlessError(ENDLESS)


class FailedError(BaseException):
    """A test failed in a fork, which is ended at once: what the test would clear up might wait on and on."""


class Runner:
    """A plugin that takes the place of the loop over all tests."""

    def __init__(
        self,
        owner: Realm,
        mutations: list[Mutation],
        out: Path,
        whole: bool,
        most: int | None = None,
        kept: Path | None = None,
    ) -> None:
        self.most, self.kept = most, kept
        self.owner, self.mutations, self.out, self.whole = owner, mutations, out, whole
        self.functions = {file: functions_of(module_of(file)) for file in owner.files}
        self.failed: tuple[str, str] | None = None
        self.items: dict[str, Any] = {}
        self.fault = ""
        self.lines: dict[str, dict[str, list[int]]] = {}
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
        """Try the mutants, first where others of their functions were killed, and what is left everywhere."""
        self.items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()
        left = []
        with self.out.open("a", encoding="utf-8") as out:
            for mutation in self.mutations:
                names = [name for name in known_tests(mutation) if name in self.items]
                fate = self.fate_of(mutation, names)
                if fate.how or not self.whole:
                    self.tell(out, fate)
                else:
                    left.append(mutation)
            if left and self.surveyed():
                for fate in self.fates_of(left):
                    self.tell(out, fate)
        told, ended = in_fork(self.unchanged, 1200.0)
        test, how = json.loads(told) if ended and told else ("", ENDLESS)
        self.fault = self.fault or (f"without a mutant: {test}: {how}" if how else "")
        return True

    def tell(self, out: TextIO, fate: Tested) -> None:
        """Write a line."""
        out.write(json.dumps(fate._asdict()) + "\n")
        out.flush()

    def surveyed(self) -> bool:
        """Find out which statements each test executes."""
        if self.kept is not None and self.kept.exists():
            self.lines = json.loads(self.kept.read_text(encoding="utf-8"))
            return True
        told, ended = in_fork(self.survey, 1200.0)
        survey: dict[str, Any] = json.loads(told) if ended and told.startswith("{") else {"failed": told or ENDLESS}
        if survey["failed"]:
            self.fault = f"without a mutant: {survey['failed']}"
            return False
        self.lines = survey["lines"]
        if self.kept is not None:
            self.kept.write_text(json.dumps(self.lines), encoding="utf-8")
        return True

    def unchanged(self) -> str:
        """Run every test that killed without a mutant, and tell which fails, if one does: it kills nothing."""
        watched()
        self.run({name for names in self.killers.values() for name in names if name in self.items})
        return json.dumps(self.failed or ("", ""))

    def reaching(self, mutation: Mutation) -> list[str]:
        """Give the tests that execute a mutant's statement, the last killers of its function first."""
        held = ((name, lines) for name, lines in self.lines.items() if name in self.items)
        able = [name for name, lines in held if mutation.line in lines.get(mutation.file, ())]
        killers = self.killers.get(function_of(mutation), [])
        ranked = sorted(able, key=lambda name: killers.index(name) if name in killers else len(killers))
        return ranked[: self.most]

    def run(self, names: Iterable[str]) -> None:
        """Run tests up to the first that fails."""
        names = list(names)
        for name, after in zip_longest(names, names[1:]):
            signal.setitimer(signal.ITIMER_VIRTUAL, BUSY)
            signal.setitimer(signal.ITIMER_REAL, WAITING)
            item = self.items[name]
            with suppress(FailedError):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after and self.items[after])
            if self.failed:
                return

    def survey(self) -> str:
        """Run all tests with marked functions; tell which statements each executes, the fastest test first."""
        marks: dict[str, set[int]] = {file: set() for file in self.owner.files}
        for file, functions in self.functions.items():
            vars(module_of(file))["__mark__"] = marks[file].add
            change(functions, marked(file))
        watched()
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
                break
        return json.dumps(
            {"failed": self.failed, "lines": {name: lines[name] for name in sorted(lines, key=seconds.__getitem__)}}
        )

    def fates_of(self, mutations: list[Mutation]) -> Iterator[Tested]:
        """Run the tests that execute each mutant's statement; listed mutants are tried a few at a time at first."""
        listed = {mutation.key: mutation for mutation in mutations if excuse(mutation)}
        for file, keys, _ in groups(list(listed.values()), defaultdict(dict)):
            some = [listed.pop(key) for key in keys]
            names = list(dict.fromkeys(name for mutation in some for name in self.reaching(mutation)))
            if any(self.run_with(file, together(file, keys), names)):
                listed |= {mutation.key: mutation for mutation in some}
            else:
                yield from (Tested(key, "", "", len(names)) for key in keys)
        for mutation in mutations:
            if mutation.key in listed or not excuse(mutation):
                yield self.fate_of(mutation, self.reaching(mutation))

    def fate_of(self, mutation: Mutation, names: list[str]) -> Tested:
        """Run tests with a mutant."""
        test, how = self.run_with(mutation.file, parsed(mutation.file).compiled(mutation.key), names)
        if how == UNCHANGED:
            return Tested(mutation.key, "", "", len(names))
        if test:
            known = self.killers.setdefault(function_of(mutation), [])
            known[:] = [test, *(name for name in known if name != test)]
        return Tested(mutation.key, test or ("the process" if how else ""), how, len(names))

    def run_with(self, file: str, code: CodeType, names: list[str]) -> tuple[str, str]:
        """Run tests with the changed code of a source in a fork; give the first that failed, and how."""
        if not names:
            return "", ""
        told, ended = in_fork(lambda: self.verdict(file, code, names), WAITING * 30)
        return tuple(json.loads(told)) if ended and told else ("", DIED if ended else ENDLESS)

    def verdict(self, file: str, code: CodeType, names: list[str]) -> str:
        """Put changed code in and run tests; tell which failed, and how.

        A function cannot be changed where it is if it closes over other names than the original.
        """
        try:
            if not change(self.functions[file], code):
                return json.dumps(("", UNCHANGED))
        except ValueError:
            return json.dumps(("", UNCHANGED))
        watched()
        self.run(names)
        return json.dumps(self.failed or ("", ""))


def watched() -> None:
    """Have tests that run on and on ended."""
    signal.signal(signal.SIGVTALRM, stop)
    signal.signal(signal.SIGALRM, stop)


def main() -> None:
    """Put mutants of a realm before its tests."""
    parser = argparse.ArgumentParser(
        prog="mutant_tests", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("realm")
    parser.add_argument("--fates", type=Path, required=True, help="a file of one JSON line per mutant, appended to")
    parser.add_argument("--keys", type=Path, help="a file with the keys of the mutants to try, as JSON; without: all")
    parser.add_argument("--scope", default="", help="only mutants whose names contain this")
    parser.add_argument("--most", type=int, help="how many tests to run of those that execute a statement")
    parser.add_argument("--survey", type=Path, help="a file of what each test executes: read, or written")
    parser.add_argument("--known", action="store_true", help="run only tests that are remembered")
    parser.add_argument("--remember", action="store_true", help="try nothing; remember the tests named in the fates")
    args = parser.parse_args()
    if args.remember:
        lines = map(json.loads, args.fates.read_text(encoding="utf-8").splitlines())
        remember((line["key"], line["test"]) for line in lines)
        return
    os.chdir(TREE)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path.insert(0, str(TREE))
    import pytest

    owner = realm(args.realm)
    keys = set(json.loads(args.keys.read_text(encoding="utf-8"))) if args.keys else None
    mutations = [
        mutation
        for file in owner.files
        for mutation in parsed(file).mutations
        if args.scope in mutation.key and (mutation.key in keys if keys is not None else not excuse(mutation))
    ]
    runner = Runner(owner, mutations, args.fates, not args.known, args.most, args.survey)
    known = {test.partition("::")[0] for mutation in mutations for test in known_tests(mutation)}
    files = [file for file in owner.tests if not args.known or file in known]
    code = pytest.main([*OPTIONS, *files], plugins=[runner])
    if runner.fault or code not in (0, 5):
        raise SystemExit(runner.fault or f"pytest ended with {code!r}")


if __name__ == "__main__":
    main()

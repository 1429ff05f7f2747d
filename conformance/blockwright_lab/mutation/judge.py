"""Mutants before the tests of their target, in a process of its own: lock-step (`lock_step`) and the project's tests.

Tests are collected once; each runs once with a mark before every statement, so that it is known what it executes and
how long it takes (kept in ``build/`` while the sources and its file are the same). Then, for each mutant, a fork gets
the changed function in place of its own and runs the tests that execute the statement, up to the first that fails:
those that killed others of its function before, then the fastest. A test that computes or waits for much
longer than it should is ended, which is a failure like any other.
"""

import argparse
import ast
import gc
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from .in_place import change, changed, full, functions_of, module_of
from .mutator import Mutation, path_of
from .mutator import functions as functions_in
from .planted import FAULTS, refuted
from .planted import module_of as contracted
from .survivors import TREE
from .targets import Target, parsed, target

BUSY, SLOWER, WAITING = 5.0, 10.0, 12.0
"""Seconds that one test may compute, or so many times what it takes and a second; and that it may take in all."""
MOST = 20.0
"""Seconds of tests that a mutant meets, the fastest first."""
MEMORY = 3 << 30
"""Bytes that a mutant may take beyond what is there."""
ENDLESS = "runs on and on"
OPTIONS = "-q --assert=plain -p no:cacheprovider -p no:faulthandler -p no:unraisableexception -m".split()
OPTIONS.append("not slow and not cuda")


class Result(NamedTuple):
    """What became of a mutant: what killed it and how (both empty: it lives), after how many tests could."""

    mutation: Mutation
    killer: str = ""
    how: str = ""
    tests: int = 0
    seconds: float = 0.0


def judged(name: str, mutations: list[Mutation], tests: tuple[str, ...] = ()) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        wanted, results = Path(folder, "keys"), Path(folder, "results")
        wanted.write_text(json.dumps([mutation.key for mutation in mutations]), encoding="utf-8")
        command = [sys.executable, "-m", __name__, name, str(wanted), str(results), *tests]
        environment = {**os.environ, "BLOCKWRIGHT_PURE_PYTHON": "1"}
        done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
        lines = read(results).splitlines() if results.exists() else []
    found = {key: rest for key, *rest in map(json.loads, lines)}
    if done.returncode or len(found) < len(mutations):
        raise RuntimeError(f"tests of {name}: {(done.stderr or done.stdout)[-2000:]}")
    return [before_contracts(Result(mutation, *found[mutation.key])) for mutation in mutations]


def before_contracts(result: Result) -> Result:
    file = full(result.mutation.file)
    if result.killer or all(fault["file"] != file for fault in FAULTS):
        return result
    with changed(contracted(file), parsed(result.mutation.file).compiled(result.mutation.key)):
        statement, how = refuted("", (5.0,))
    return result._replace(killer=statement, how=how)


def digests_of(owner: Target, tests: Iterable[str]) -> dict[str, str]:
    """Return by file of tests a name of all that decides what they execute: the sources, itself, and what it shares."""
    found: dict[str, str] = {}
    sources = "".join(read(path_of(file)) for file in owner.files)
    for file in {TREE / file_of(name) for name in tests}:
        beside = [path for folder in (file.parent, file.parents[1]) for path in sorted(folder.glob("*.py"))]
        texts = [read(path) for path in (file, *beside) if path == file or not path.name.startswith("test_")]
        found[str(file.relative_to(TREE))] = blake2b("".join((sources, *texts)).encode()).hexdigest()
    return found


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def marked(file: str) -> CodeType:
    tree = ast.parse(read(path_of(file)))
    for _, function in functions_in(tree, ""):
        for node in ast.walk(function):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list):
                    setattr(node, name, [each for statement in block for each in (mark(statement), statement)])
    return compile(ast.fix_missing_locations(tree), str(path_of(file)), "exec", dont_inherit=True)


def mark(statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name("__mark__", ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.copy_location(ast.Expr(call), statement)


def file_of(name: str) -> str:
    return name.partition("::")[0]


class EndlessError(BaseException):
    """A test runs on and on. No `Exception`, so that nothing on the way takes it for an answer."""


class FailedError(BaseException):
    """A test failed in a fork, which is ended at once: what the test would clear up might wait on and on."""


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise EndlessError(ENDLESS)


def limit_memory() -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def in_fork(work: Callable[[], str], limit: float) -> tuple[str, bool]:
    """Do some work in a forked process, silently; return the text that it gives, and whether it ended within `limit`.

    An error gives the text of a pair: nothing, and what was raised, as JSON. The process and all that it started is
    ended.
    """
    fork = multiprocessing.get_context("fork")
    received, sends = fork.Pipe(duplex=False)

    def alone() -> None:
        os.setsid()
        sends.send(silently(work))

    child = fork.Process(target=alone)
    child.start()
    sends.close()
    try:
        return (received.recv(), True) if received.poll(limit) else ("", False)
    except EOFError:
        return "", True
    finally:
        received.close()
        with suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)
        child.kill()
        child.join()


def silently(work: Callable[[], str]) -> str:
    """Do some work without output; an error is told like a result."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        return work()
    except BaseException as error:
        return json.dumps(("", f"{type(error).__name__}: {error}"[:300]))


class Runner:
    """A plugin that takes the place of the loop over all tests."""

    def __init__(self, owner: Target, keys: set[str], out: Path) -> None:
        self.owner, self.keys, self.out = owner, keys, out
        self.functions = {file: functions_of(module_of(file)) for file in owner.files}
        self.failed: tuple[str, str] | None = None
        self.items: dict[str, Any] = {}
        self.fault = ""
        self.lines: dict[str, dict[str, list[int]]] = {}
        self.seconds: dict[str, float] = {}
        self.killers: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and self.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(crash.message if crash is not None else report.longrepr)
            self.failed = report.nodeid, text.strip().partition("\n")[0][:200]
            if self.lines:  # not in the survey, which goes on
                raise FailedError(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Try the mutants, and at last the tests that killed without any: one that fails then kills nothing."""
        self.items = {item.nodeid: item for item in session.items}
        for name in self.owner.loads:
            import_module(name)
        gc.collect()
        gc.freeze()
        if not self.surveyed():
            return True
        with self.out.open("a", encoding="utf-8") as out:
            mutations = (each for file in self.owner.files for each in parsed(file).mutations)
            for mutation in (each for each in mutations if each.key in self.keys):
                started = time.perf_counter()
                names = self.reaching(mutation)
                killer, how = self.result_of(mutation, names) if names else ("", "")
                out.write(json.dumps((mutation.key, killer, how, len(names), time.perf_counter() - started)) + "\n")
                out.flush()
        findings, ended = in_fork(self.unchanged, 1200.0)
        test, how = json.loads(findings) if ended and findings else ("", ENDLESS)
        self.fault = f"without a mutant: {test}: {how}" if how else ""
        return True

    def surveyed(self) -> bool:
        path = TREE / "build" / "mutation" / f"survey-{self.owner.name}.json"
        held: dict[str, Any] = json.loads(read(path)) if path.exists() else {}
        known: dict[str, Any] = {}
        for file, digest in digests_of(self.owner, self.items).items():
            known[file] = held[file] if held.get(file, [""])[0] == digest else [digest, {}]
        names = [name for name in self.items if name not in known[file_of(name)][1]]
        if names:
            findings, ended = in_fork(lambda: self.survey(names), 1800.0)
            if not (ended and findings.startswith("{")):
                self.fault = f"the survey of tests: {findings or ENDLESS}"
                return False
            found = json.loads(findings)
            for name in names:
                known[file_of(name)][1][name] = found[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(held | known), encoding="utf-8")
        found = {name: known[file_of(name)][1][name] for name in self.items}
        for name in sorted(filter(found.get, found), key=lambda name: found[name][0]):
            self.seconds[name], self.lines[name] = found[name]
        return True

    def survey(self, names: list[str]) -> str:
        marks: dict[str, set[int]] = {file: set() for file in self.owner.files}
        for file, functions in self.functions.items():
            vars(module_of(file))["__mark__"] = marks[file].add
            change(functions, marked(file))
        found: dict[str, tuple[float, dict[str, list[int]]] | None] = dict.fromkeys(names)
        for name in names:
            for held in marks.values():
                held.clear()
            started = time.process_time()
            self.run([name])
            if not self.failed:  # what fails, or is too slow with marks, is not among the tests that are run
                lines = {file: sorted(held) for file, held in marks.items() if held}
                found[name] = time.process_time() - started, lines
            self.failed = None
        return json.dumps(found)

    def reaching(self, mutation: Mutation) -> list[str]:
        """Return the tests that execute a mutant's statement: first those that killed others of its function."""
        able = [name for name, lines in self.lines.items() if mutation.line in lines.get(mutation.file, ())]
        first = [name for name in self.killers.get(mutation.function, ()) if name in able]
        left, found = MOST, list[str]()
        for name in dict.fromkeys((*first, *able)):
            left -= self.seconds[name]
            if left > 0:
                found.append(name)
        return found

    def run(self, names: Iterable[str]) -> None:
        signal.signal(signal.SIGVTALRM, stop)
        signal.signal(signal.SIGALRM, stop)
        names = list(names)
        for name, after in zip_longest(names, names[1:]):
            most = min(BUSY, 1 + SLOWER * self.seconds.get(name, BUSY))
            signal.setitimer(signal.ITIMER_VIRTUAL, most)
            signal.setitimer(signal.ITIMER_REAL, WAITING)
            item = self.items[name]
            with suppress(FailedError):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after and self.items[after])
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if self.failed:
                return

    def unchanged(self) -> str:
        self.run({name for names in self.killers.values() for name in names})
        return json.dumps(self.failed or ("", ""))

    def result_of(self, mutation: Mutation, names: list[str]) -> tuple[str, str]:
        code = parsed(mutation.file).compiled(mutation.key)
        findings, ended = in_fork(lambda: self.verdict(mutation.file, code, names), WAITING * 30)
        test, how = json.loads(findings) if ended and findings else ("", "the process died" if ended else ENDLESS)
        if test in names:
            held = self.killers.setdefault(mutation.function, [])
            held[:] = [test, *(name for name in held if name != test)]
        return test or (how and "the process"), how

    def verdict(self, file: str, code: CodeType, names: list[str]) -> str:
        """Put changed code in and run tests; tell which failed, and how.

        A function cannot be changed where it is if it closes over other names than the original.
        """
        try:
            if not change(self.functions[file], code):
                return json.dumps(("", ""))
        except ValueError:
            return json.dumps(("", ""))
        limit_memory()
        self.run(names)
        return json.dumps(self.failed or ("", ""))


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("keys", type=Path, help="a file with the keys of mutants, JSON")
    parser.add_argument("results", type=Path, help="a file of one JSON line per mutant, appended to")
    parser.add_argument("tests", nargs="*", help="instead of all of the target")
    args = parser.parse_args()
    os.chdir(TREE)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.path.insert(0, str(TREE))
    import pytest

    owner = target(args.target)
    runner = Runner(owner, set(json.loads(read(args.keys))), args.results)
    options = [*OPTIONS, *["-o", "filterwarnings="] * bool(owner.floor)]  # other packages warn as they like
    code = pytest.main([*options, *(args.tests or owner.tests)], plugins=[runner])
    if runner.fault or code not in (0, 5):
        raise SystemExit(runner.fault or f"pytest ended with {code!r}")


if __name__ == "__main__":
    main()

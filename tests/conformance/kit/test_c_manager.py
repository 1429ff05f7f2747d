"""Property: a manager in C passes the portable vectors through the protocol, and fails them when a line is broken.

How: `examples/c_manager/manager.c` is compiled with warnings as errors and run by `blockwright vectors`; then one line
after another is changed, one at a time, and each time the command must fail and print the first call that differs. The
manager is also explored whole, in lock-step, in a small scope.
Not covered: managers that do not follow the LRU policy (`test_vectors`); platforms without a C compiler (skipped).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright_conformance.kv_cache.fitting import lacking
from blockwright_conformance.kv_cache.scopes import EVERY, FILE
from blockwright_conformance.run import run_conformance
from blockwright_conformance.vectors.command import history
from blockwright_conformance.vectors.judge import judge
from blockwright_conformance.vectors.process import ProcessFactory
from blockwright_conformance.vectors.records import samples

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "examples" / "c_manager" / "manager.c"
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler: set CC, or install cc, gcc or clang")


SCOPES = {each.name: each for each in EVERY if each.name in FILE["scopes"]["vectors"]}
VECTORS = samples()


def built(folder: Path, source: str) -> Path:
    """The program, compiled."""
    file, program = folder / "manager.c", folder / "manager"
    file.write_text(source, encoding="utf-8")
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"]
    command = [str(COMPILER), *options, str(program), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


def judged(program: Path) -> subprocess.CompletedProcess[str]:
    """What the command says of a program."""
    command = [sys.executable, "-m", "blockwright.cli", "vectors", "--run", str(program)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manager as it is."""
    return built(tmp_path_factory.mktemp("c"), SOURCE.read_text(encoding="utf-8"))


def test_the_manager_passes(program: Path) -> None:
    done = judged(program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vectors, 0 failed" in done.stdout
    assert "left out: " in done.stdout


BROKEN = {
    "a hit that leaves no token to compute": ("size < r->prefix.count &&", "size <= r->prefix.count &&"),
    "extra keys forgotten": ("key->extra == prefix->extra && ", ""),
    "a hit left in the queue": ("if (block[id].references == 0) dequeue(id);\n", ""),
    "every block freed to the tail": ("block[id].published ? free_count : 0", "free_count"),
    "free hits not counted": ("cached_free += block[hit->hit[at]].references == 0;", "cached_free += 0;"),
    "a stale hit adopted": ('return "error stale";', "continue;"),
    "a partial block published": ("(r->looked + 1) * size <= end", "(r->looked + 1) * size <= end + 1"),
    "publication not put off": ("if (!later) publish", "if (later < 2) publish"),
    "a reset that forgets nothing": ("for (int id = 1; id < num_blocks; id++) block[id].published = 0;\n", ""),
    "a batch that goes on": ("{ whole = 0; break; }", "{ whole = 0; continue; }"),
}


@pytest.mark.parametrize(("old", "new"), BROKEN.values(), ids=BROKEN)
def test_a_broken_line_fails_with_the_first_call_that_differs(tmp_path: Path, old: str, new: str) -> None:
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(old) == 1
    factory = ProcessFactory(str(built(tmp_path, source.replace(old, new))))
    try:
        can = [each for each in VECTORS if not lacking(SCOPES[each.scope], factory.capabilities)]
        judgements = ((vector, judge(factory, vector)) for vector in can)
        vector, judgement = next((pair for pair in judgements if pair[1].fault), (None, None))
    finally:
        factory.close()
    assert vector is not None, "no vector noticed"
    assert judgement is not None
    lines = history(vector, judgement).splitlines()
    assert lines[0] == f"{vector.scope}, vector {vector.number}, call {judgement.steps}:"
    assert lines[1].startswith("new ")
    assert len(lines) == judgement.steps + 3
    assert "expected" in lines[-1]


def test_the_command_prints_the_first_call_that_differs(tmp_path: Path) -> None:
    old, new = BROKEN["a stale hit adopted"]
    done = judged(built(tmp_path, SOURCE.read_text(encoding="utf-8").replace(old, new)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert " 0 failed" not in done.stdout
    *_, call, fault = done.stdout.splitlines()
    assert call.startswith("allocate ")
    assert call.endswith("  # error stale")
    assert fault.startswith("# expected error reason=HIT_STALE, found blocks")


def test_the_manager_is_explored_whole(program: Path) -> None:
    factory = ProcessFactory(str(program))
    try:
        report = run_conformance(factory, scope="full, block 1: two symbols")
        assert (report.transitions, report.left_out) == (1644, {})
    finally:
        factory.close()


def test_the_session_of_the_documents_is_what_the_manager_says(program: Path) -> None:
    text = (
        (ROOT / "docs" / "reference" / "vectors.md")
        .read_text(encoding="utf-8")
        .partition("```text\n")[2]
        .partition("```")[0]
    )
    lines = text.splitlines()
    asked, answers = ([line[2:] for line in lines if line.startswith(mark)] for mark in "><")
    done = subprocess.run([program], input="\n".join(asked) + "\n", capture_output=True, text=True, check=True)
    assert len(asked) == len(answers) == 7
    assert done.stdout.splitlines()[1:] == answers[1:]

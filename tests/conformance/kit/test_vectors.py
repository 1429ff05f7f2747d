"""Property: portable vectors show every transition of a scope, say what the specification says, and fail a manager that
differs; the same holds over the wire.

How: vectors of small scopes of every kind are made, must take every transition of the explored graph, come back from
JSON and from the wire as they were, and pass Blockwright itself, in this process and served by the protocol in another.
Managers that are wrong in one call fail with that call; one that takes blocks in another order fails, and is told what
checks it. The samples that come with the kit are made again and compared.
Not covered: managers in other languages (`test_c_manager`); every scope.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.kv_cache.adapter import Found
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import EVERY, FILE, Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.vectors import wire
from blockwright_conformance.vectors.judge import judge
from blockwright_conformance.vectors.paths import Graph, vectors_of
from blockwright_conformance.vectors.process import ProcessError, ProcessFactory
from blockwright_conformance.vectors.records import FOLDER, Vector, file_name, line_of, read, samples, vector_of
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.state import Config, Table
from blockwright_spec.reads import Full, Group

SERVED = f"{sys.executable} -m blockwright_conformance.vectors.serve"


def scope_named(name: str) -> Scope:
    """The scope of a name."""
    return next(each for each in EVERY if each.name == name)


NAMES: list[str] = FILE["scopes"]["vectors"]
SAMPLES = samples()


def test_tours_take_every_transition() -> None:
    graph = Graph(scope_named("full, block 2: forks, uncached"))
    moves = {move for moves in graph.open.values() for move in moves}
    explored = Explorer(KVCacheWorld(graph.scope), alone=True).run()
    assert len(graph.ways) == explored.states
    assert len(moves) <= explored.transitions
    taken = set()
    for actions in graph.paths():
        state = graph.first
        for action in actions:
            move, _, reported = next(each for each in graph.moves(state) if each[1] == action)
            taken.add(move)
            state = reported.state
    assert taken == moves
    assert not graph.open


def test_samples_are_those_of_today() -> None:
    assert {path.name for path in FOLDER.glob("*.jsonl")} == {file_name(name) for name in NAMES}
    assert {scope_named(name).name for name in NAMES} == set(NAMES)
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "vectors.md"
    assert f"{len(NAMES)} small scopes" in page.read_text(encoding="utf-8")
    for name in ("full, block 2: two symbols", "mamba, block 1: put off", "full, block 2: loading"):
        lines = (FOLDER / file_name(name)).read_text(encoding="utf-8").splitlines()
        assert [line_of(vector) for vector in vectors_of(scope_named(name))] == lines


@pytest.mark.slow
@pytest.mark.parametrize("scope", list(map(scope_named, NAMES)), ids=lambda each: each.name)
def test_every_sample_is_that_of_today(scope: Scope) -> None:
    assert vectors_of(scope) == read(FOLDER / file_name(scope.name))


@pytest.mark.parametrize("vector", SAMPLES, ids=lambda each: f"{each.scope}, {each.number}")
def test_a_vector_keeps_its_meaning(vector: Vector) -> None:
    assert vector_of(line_of(vector)) == vector
    assert judge(BlockwrightAdapter, vector) == (len(vector.steps), "")
    for step in vector.steps:
        assert wire.call_of(wire.call_line(step.call)) == step.call
        answer = wire.answer_of(wire.answer_line(step.answer))
        assert answer == (step.answer._replace(reason=answer.reason))
        if step.state is not None:
            assert wire.state_of(wire.state_line(step.state), vector.config.num_blocks) == step.state
    assert wire.config_from(wire.config_line(vector.config)) == vector.config


@pytest.fixture(scope="module")
def served() -> Iterator[ProcessFactory]:
    """Blockwright in a process of its own."""
    factory = ProcessFactory(SERVED)
    yield factory
    factory.close()


def test_blockwright_passes_over_the_wire(served: ProcessFactory) -> None:
    for vector in SAMPLES:
        assert judge(served, vector).fault == ""


def test_a_manager_in_a_process_is_explored_whole(served: ProcessFactory) -> None:
    small = scope_named("full, block 2: forks, uncached")
    alone, together = Explorer(KVCacheWorld(small), alone=True).run(), Explorer(KVCacheWorld(small, served)).run()
    assert together.violation is None
    assert (together.states, together.transitions) == (alone.states, alone.transitions)


class Forgetful(BlockwrightAdapter):
    """Finds nothing."""

    def find(self, name: str) -> Found:
        super().find(name)
        return Found(0, ())


class Late(BlockwrightAdapter):
    """Publishes a token less than it is asked to."""

    def publish(self, name: str, end: int) -> None:
        super().publish(name, max(0, end - 1))


class Refusing(BlockwrightAdapter):
    """Gives no blocks to two tokens or more."""

    def allocate(
        self, name: str, computed: int, step: Step, length: int, hit_of: str | None
    ) -> tuple[Table, ...] | None:
        return None if step.new > 1 else super().allocate(name, computed, step, length, hit_of)


@pytest.mark.parametrize(
    ("faulty", "name", "words", "fault"),
    [
        (Forgetful, "full, block 2: copies", {"find"}, "expected hit length=2"),
        (Late, "full, block 2: put off", {"publish"}, "keys: expected"),
        (Refusing, "full, block 2: life", {"allocate"}, "found refused"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_faulty_manager_fails_with_the_call(faulty: Any, name: str, words: set[str], fault: str) -> None:
    vectors = [each for each in SAMPLES if each.scope == name]
    judged = [(judge(faulty, vector), vector) for vector in vectors]
    failed = [
        (judgement, vector.steps[judgement.steps - 1].call.word) for judgement, vector in judged if judgement.fault
    ]
    assert failed
    assert {word for _, word in failed} <= words | {"forget"}
    assert any(fault in judgement.fault for judgement, _ in failed)


class Backwards(BlockwrightAdapter):
    """Names its new blocks from the other end, as one that takes free blocks from the tail would."""

    def allocate(
        self, name: str, computed: int, step: Step, length: int, hit_of: str | None
    ) -> tuple[Table, ...] | None:
        new = super().allocate(name, computed, step, length, hit_of)
        return None if new is None else tuple([table[::-1] for table in new])


def test_a_manager_in_another_order_fails_and_is_told_what_checks_it() -> None:
    vectors = [each for each in SAMPLES if each.scope == "full, block 2: life"]
    assert any("another length, count or block" in judge(Backwards, each).fault for each in vectors)
    done = command("--run", "echo hello 1 mine kinds=full features=caching policy=any")
    assert (done.returncode, "blockwright conform --impl 'exec:echo" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("read", "line", "fault"),
    [
        (wire.call_of, "find", "expected find request"),
        (wire.call_of, "allocate r0 1", "expected allocate request computed new"),
        (wire.call_of, "trim r0 x", "expected trim request end"),
        (wire.call_of, "fnd r0", "expected one of send"),
        *((wire.answer_of, each, "answer: ") for each in ("", "hit x -", "served 1 some -", "blocks 1,x", "copies 1")),
    ],
)
def test_wrong_lines_are_told(read: Any, line: str, fault: str) -> None:
    with pytest.raises(wire.WireError, match=fault):
        read(line)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("/no/such/program", "cannot run"),
        ("true", "ended before it answered"),
        ("echo hello 2 someone", "expected hello 1 NAME"),
        ("printf 'hello 1 x kinds=full\\nmore\\n'", "more than one line"),
        ("echo hello 1 x colour=red", "expected kinds, calls, features and policy"),
    ],
)
def test_a_program_that_does_not_speak_the_protocol_is_told(command: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        ProcessFactory(command)


HELLO = """import sys, time
sys.stdin.readline()
print("hello 1 me kinds=full features=caching", flush=True)
"""
WRONG = {
    "more than 1,048,576 bytes without": "sys.stdin.readline()\nwhile True: print(end=9999 * 'x')",
    "more than one line came back|nothing had asked for|found ''": "while True: print()",  # whichever read comes first
    "no answer to 'new .*on its standard error: y": "while True: print(end=9999 * 'y', file=sys.stderr)",
    "no answer to 'new ": "time.sleep(1000)",
    "ended within a line .*exit status 3": "sys.stdin.readline(); print(end='o', flush=True); sys.exit(3)",
    "expected ok to 'new ": "sys.stdin.readline(); print('hit 0 -', flush=True); time.sleep(1000)",
}
"""What a manager does after it has said what it is, by the message that it ends in."""


@pytest.mark.parametrize("fault", WRONG)
def test_whatever_a_process_does_ends_in_a_message(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def greeted(program: str) -> None:
        monkeypatch.setattr("blockwright_conformance.vectors.process.TIMEOUT", 60.0)
        with closing(ProcessFactory(f"{sys.executable} -c {shlex.quote(program)}")) as factory:
            if fault.startswith("no answer"):
                monkeypatch.setattr("blockwright_conformance.vectors.process.TIMEOUT", 1.0)
            factory(Config((Group(Full(), 1),), 4, 4))

    with pytest.raises(ProcessError, match=fault):
        greeted(HELLO + WRONG[fault])


def test_a_file_that_holds_no_vectors_is_told(tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps({"blockwright_vector": 99}) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.jsonl:1: .*expected a vector of version 1"):
        read(file)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = [sys.executable, "-m", "blockwright.cli", "vectors", *arguments]
    return subprocess.run(done, capture_output=True, text=True, check=False)


def test_the_command_writes_vectors_and_runs_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = command("--out", str(out), "--scope", "full, block 2: forks, uncached", "--limit", "3")
    assert done.returncode == 0, done.stderr
    file = out / file_name("full, block 2: forks, uncached")
    assert read(file) == vectors_of(scope_named("full, block 2: forks, uncached"), 3)
    done = command("--run", SERVED, str(file))
    assert done.returncode == 0, done.stderr
    assert "3 vectors, 0 failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name either a manager"),
        (("--run", "/no/such/program"), "cannot run"),
        (("--run", SERVED, "/no/such/file"), "FILE: "),
        (("--run", SERVED, "--scope", "no such scope"), "no scope of profile pr contains"),
        (("--out", "/proc/nowhere", "--scope", "forks, uncached"), "--out: cannot write"),
    ],
)
def test_wrong_arguments_are_told(arguments: tuple[str, ...], words: str) -> None:
    done = command(*arguments)
    assert (done.returncode != 0, words in done.stderr, "Traceback" in done.stderr) == (True, True, False)

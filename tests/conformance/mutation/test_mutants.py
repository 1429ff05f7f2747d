"""Property: mutants are found, put in one at a time, noticed by tests or theorems, and reported.

How: mutants of a small source; one of each result (killed by a test, by lock-step, running on and on, living); names
that outlive a move; the sample, the floor, the list of survivors; functions, methods and properties of a module made
for it are changed in place; work in a fork ends, fails, waits for ever, and is told so; a theorem is refuted by a wrong
closed form and not by one that comes to the same.
Not covered: every mutant (`blockwright conform --gate mutants --profile nightly`).
"""

import json
import time
from pathlib import Path
from types import ModuleType

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.mutation import gate, judge, survivors
from blockwright_lab.mutation.forked import in_fork
from blockwright_lab.mutation.in_place import change, functions_of
from blockwright_lab.mutation.judge import ENDLESS, Result
from blockwright_lab.mutation.mutator import Mutation, Source
from blockwright_lab.mutation.proofs import refuted
from blockwright_lab.mutation.survivors import reason_for, share
from blockwright_lab.mutation.targets import MEDIA, TARGETS, all_mutations, parsed, target, target_of

SOURCES = Path(__file__).parents[3] / "impl" / "blockwright"


def mutation_of(file: str, *words: str) -> Mutation:
    """The first mutant whose key holds all of some texts."""
    return next(each for each in parsed(file).mutations if all(word in each.key for word in words))


def test_every_rule_changes_something() -> None:
    text = '''
def f(a: int, b: int) -> int:
    """Told."""
    x = min(a, b) + 1
    if a < b and not a:
        g(a, b)
    while x:
        x -= 1
        break
    return [*x[:], x.copy()]
'''
    source = Source("f.py", (), text)
    afters = {each.after for each in source.mutations}
    assert {"x = max(a, b) + 1", "x = min(a, b) - 1", "x = min(a, b) + 2", "pass", "g(b, a)", "while not x"} <= afters
    assert {"if a <= b and (not a)", "if a < b or not a", "if a < b", "if not a", "x += 1", "x -= 2"} <= afters
    assert {"return [*x, x.copy()]", "return [*x[:], x]", "return [*x[:], x.copy()] + 1"} <= afters
    assert len({each.key for each in source.mutations}) == len(source.mutations)
    before = compile(source.tree, "f.py", "exec").co_code
    for mutation in source.mutations:
        source.compiled(mutation.key)
    assert compile(source.tree, "f.py", "exec").co_code == before
    assert Source("f.py", ("f.py f",), text).mutations == []


SCOPE = "conformance/blockwright_lab/mutation/lock_step.py::test_managers[full, block 1: life-near]"
VECTORS = "tests/core/keys/test_siphash.py::test_published_vectors"


def test_results() -> None:
    by_test = mutation_of("core/block_hash.py", "siphash128: ", "compression * 10 - ")
    by_scope = mutation_of("core/store.py", "BlockStore.__init__: self._num_free", "= count - 2")
    endless = mutation_of("core/store.py", "BlockStore.__init__: block += 1 -> block += 0")
    lives = mutation_of("core/store.py", "BlockStore.__init__: self._version", "= 0 -> ", "= 1")
    unreached = mutation_of("core/in_time/explain.py", "")
    results = {
        each.mutation: each
        for each in judge.judged("core", [by_test, by_scope, endless, lives, unreached], (SCOPE, VECTORS))
    }
    assert results[by_test].killer == f"{VECTORS}[siphash128]"
    assert results[by_scope].killer == results[endless].killer == SCOPE
    assert ENDLESS in results[endless].how
    assert (results[lives].killer, results[lives].tests) == ("", 1)
    assert (results[unreached].killer, results[unreached].tests) == ("", 0)


def test_a_target_owns_each_source_once_and_names_its_places() -> None:
    files = [file for each in TARGETS for file in each.files]
    assert len(files) == len(set(files))
    for each in TARGETS:
        assert all(target_of(file) is each for file in each.files)
        assert all(each.left_out.values())
        assert all((survivors.TREE / file.partition("::")[0]).exists() for file in each.tests)


def test_every_source_of_the_books_is_mutated_or_left_out_with_a_reason() -> None:
    core = {path for folder in ("core", "worker") for path in (SOURCES / folder).rglob("*.py")}
    assert {str(path.relative_to(SOURCES)) for path in core if path.name != "__init__.py"} == set(target("core").files)
    folder = SOURCES / "offload"
    found = {path.relative_to(SOURCES).as_posix() for path in folder.rglob("*.py") if path.parent.name != "tiers"}
    named = {file for file in target("offload").files if "tiers/" not in file}
    assert found == named | {f"offload/{name}.py" for each in MEDIA for name in each.split()}


def test_names_outlive_a_move() -> None:
    text = "class A:\n    def f(self) -> int:\n        return 1 + 2\n"
    here, there = Source("a/one.py", (), text), Source("b/two.py", (), "import os\n\n" + text)
    assert [each.digest for each in here.mutations] == [each.digest for each in there.mutations]
    digests = [each.digest for each in all_mutations()]
    assert len(set(digests)) == len(digests)


def test_a_sample_is_fixed_and_draws_by_name() -> None:
    sample = gate.chosen(Profile())
    assert len(sample) == 200
    assert sample == gate.chosen(Profile())
    assert len(gate.chosen(Profile("nightly", scope="core/in_time/in_flight.py"))) == len(
        parsed("core/in_time/in_flight.py").mutations
    )


def test_the_floor_is_a_rate() -> None:
    mutation = parsed("core/pool.py").mutations[0]
    killed, lives = Result(mutation, "a::test", "how"), Result(mutation)
    assert gate.of_all([killed, lives], 0, 50).violations == 0
    assert gate.of_all([killed, lives], 0, 51).violations == 1
    assert gate.of_all([killed, lives], 2, 75).violations == 0
    assert share(0, 0, 0) == 100.0
    assert (row := gate.of_file(mutation.file, [killed, lives], [])).passed == 1
    assert row.detail.startswith("1 of 2 killed")
    assert gate.of_survivor(mutation).violations == 0
    assert mutation.digest in gate.of_survivor(mutation).detail


def test_survivors_are_listed_with_a_reason() -> None:
    assert reason_for(
        mutation_of("core/store.py", "BlockStore._take_one: self._version += 1 -> self.version += 2")
    ).startswith("versions")
    assert reason_for(mutation_of("core/store.py", "self._version += 1 -> self.version += 0")) == ""
    for listed in survivors.survivors().values():
        assert [each for held in listed.values() for each in held.values() if len(each.split()) < 3] == []


def test_the_list_of_survivors_is_changed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    of_implementation, of_specification = (each[:3] for each in survivors.everything().values())
    there = {"implementation": of_implementation, "specification": of_specification}
    monkeypatch.setattr(survivors, "everything", lambda: there)
    one, other = of_implementation[0], of_implementation[1]
    listed = {"implementation": {one.function: {one.digest: "why", "0" * 16: "gone"}}, "specification": {}}
    monkeypatch.setattr(survivors, "survivors", lambda: listed)
    changed = survivors.changed(listed, True, [other.digest], "nobody can tell them")
    assert changed["implementation"][one.function].get("0" * 16) is None
    assert changed["implementation"][one.function][one.digest] == "why"
    assert changed["implementation"][other.function][other.digest] == "nobody can tell them"


def test_what_killed_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "KILLERS", tmp_path / "mutation" / "killers.json")
    survivors.killers.cache_clear()
    one, other = parsed("core/in_time/in_flight.py").mutations[:2]
    survivors.remember([(one, "a place")])
    assert survivors.known_killers(one) == ["a place"]
    survivors.remember([(other, "tests/core/test_x.py::test_y")])
    own = survivors.known_killers(other)[0]
    assert survivors.is_test(own)
    assert not survivors.is_test(survivors.known_killers(one)[0])
    survivors.killers.cache_clear()


def test_a_wrong_closed_form_refutes_a_theorem() -> None:
    pytest.importorskip("z3")
    wrong = mutation_of(
        "core/window.py", "SlidingRule.last_needing: return position + self._window - 2 -> return position + self"
    )
    statement, how = refuted(wrong)
    assert statement.startswith("proof: ")
    assert "not so for" in how


def test_a_closed_form_that_comes_to_the_same_refutes_none() -> None:
    pytest.importorskip("z3")
    assert refuted(mutation_of("core/window.py", "SlidingRule.first_needed: if first < 0 -> if first < 1")) == ("", "")


def test_a_function_that_no_theorem_reads_is_left_to_others() -> None:
    assert refuted(mutation_of("core/store.py", "BlockStore._fill: self._version += 1 -> pass")) == ("", "")


# --- in place, in a fork

MADE = """
def plain(x):
    return x + 1

class Holder:
    def method(self):
        return [each for each in range(2)]

    @staticmethod
    def static():
        return 1

    @property
    def read(self):
        return 1

    @read.setter
    def read(self, value):
        self.kept = value
"""


def made(source: str) -> ModuleType:
    """A module of this source."""
    module = ModuleType("made")
    exec(compile(source, "made.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    ("old", "new", "shows"),
    [
        ("x + 1", "x + 2", "plain(1) == 3"),
        ("range(2)", "range(3)", "Holder().method() == [0, 1, 2]"),
        ("def static():\n        return 1", "def static():\n        return 2", "Holder.static() == 2"),
        ("def read(self):\n        return 1", "def read(self):\n        return 2", "Holder().read == 2"),
    ],
)
def test_a_function_is_changed_where_it_is(old: str, new: str, shows: str) -> None:
    module = made(MADE)
    assert not eval(shows, vars(module))
    assert change(functions_of(module), compile(MADE.replace(old, new), "made.py", "exec")) == 1
    assert eval(shows, vars(module))


def test_what_is_not_changed_counts_for_nothing() -> None:
    module = made(MADE)
    assert change(functions_of(module), compile(MADE, "made.py", "exec")) == 0


def sleeping() -> str:
    """Sleep for longer than anybody waits."""
    time.sleep(60)
    return "slept"


def test_a_fork_tells_what_it_did() -> None:
    assert in_fork(lambda: "done", 30) == ("done", True)
    assert in_fork(lambda: [""][1], 30) == (json.dumps(("", "IndexError: list index out of range")), True)
    started = time.monotonic()
    assert in_fork(sleeping, 0.2) == ("", False)
    assert time.monotonic() - started < 30

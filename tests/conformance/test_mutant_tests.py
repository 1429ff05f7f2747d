"""Property: unit tests judge mutants: one that a test notices is killed by it, in a process that leaves no trace.

How: functions, methods and properties of a module made for it are changed in place; a mutant of the connector is put
before a test that is known to kill it; work in a fork ends, fails, waits for ever, and is told so.
Not covered: which mutants the tests notice (the gate says so).
"""

import json
import time
from types import ModuleType

import pytest

from blockwright_lab.mutation import unit_tests
from blockwright_lab.mutation.forked import in_fork
from blockwright_lab.mutation.in_place import change, functions_of
from blockwright_lab.mutation.targets import parsed

SOURCE = """
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
    module = made(SOURCE)
    assert not eval(shows, vars(module))
    assert change(functions_of(module), compile(SOURCE.replace(old, new), "made.py", "exec")) == 1
    assert eval(shows, vars(module))


def test_what_is_not_changed_counts_for_nothing() -> None:
    module = made(SOURCE)
    assert change(functions_of(module), compile(SOURCE, "made.py", "exec")) == 0


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


def test_a_mutant_is_killed_by_a_test_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    test = "tests/offload/test_connector_books.py::test_the_key_of_a_block_is_its_digest_and_four_bytes_of_its_group"
    key = "offload/hits.py offload_key: return digest + group.to_bytes(4, 'little') -> return None"
    (mutation,) = [mutation for mutation in parsed("offload/hits.py").mutations if mutation.key == key]
    monkeypatch.setattr(unit_tests, "known_tests", lambda mutation: [test])
    (result,) = unit_tests.judged("connector", [mutation], known=True).values()
    assert (result.test, result.tests) == (test, 1)
    assert result.how

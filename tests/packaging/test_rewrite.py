"""Property: the build fails, and names the function, where a public function would get no door or lose its docstring.

How: mypyc translates a small module once; the real `native/rewrite.py` takes what it wrote as it is, and refuses it
once a name or a test is written otherwise, for each thing that it looks for. It also refuses a public function where it
would not look for one.
Not covered: what the doors do (tests/core/calls/test_arguments.py); that the core's own doors are there (the build).
"""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from blockwright.core import SOURCE_ONLY

ROOT = Path(__file__).resolve().parents[2]
REWRITE = runpy.run_path(str(ROOT / "native/rewrite.py"), run_name="rewrite_under_test")
SOURCE = '''
class Pool:
    """A pool."""

    def __init__(self, size: int, name: str | None = None) -> None:
        """Make one."""
        self.size, self._given = size, name

    @property
    def given(self) -> str | None:
        """What was given."""
        return self._given

    @given.setter
    def given(self, value: str | None) -> None:
        self._given = value

    def take(self, ids: list[int], far: bool = False) -> int:
        """Take some."""
        return len(ids) + self.size


def double(count: int) -> int:
    """Double it."""
    return 2 * count
'''
MAKE = (
    "import mypyc.build as b; b.mypycify(['small.py', 'other.py'], group_name='group', multi_file=True, opt_level='0')"
)

pytestmark = pytest.mark.skipif(SOURCE_ONLY, reason="independent of the build that runs")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypyc writes for the small module."""
    pytest.importorskip("mypyc")
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.py").write_text(SOURCE)
    (folder / "other.py").write_text("")
    subprocess.run([sys.executable, "-c", MAKE], cwd=folder, check=True, capture_output=True)
    (found,) = folder.rglob("__native_small.c")
    return found.read_text()


def test_every_public_function_gets_its_door(written: str) -> None:
    text = REWRITE["rewritten"](written, SOURCE, "small")
    assert text.count("return Blockwright_EnterFast(") == 2
    assert text.count("return Blockwright_EnterInit(") == 1
    assert text.count("return Blockwright_EnterSetter(") == 1


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("CPyPy_small___double(", "CPyWrapper_double(", "small.double: 0 wrappers"),
        ("CPyPy_small___Pool___take(", "CPyWrapper_take(", "small.Pool.take: 0 wrappers"),
        ("Arg_ParseStackAndKeywords", "Arg_Given", "small.Pool.take: no test of ids, far that"),
        ('CPy_TypeError("int", obj_count)', 'CPy_TypeErrorOf("int", obj_count)', "small.double: no test of count that"),
        ("PyLong_Check(obj_count)", "Py_IsInt(obj_count)", "small.double: no test of count that"),
        ("PyBool_Check(obj_far)", "Py_IsBool(obj_far)", "small.Pool.take: no test of far that"),
        ("obj_ids", "given_ids", "small.Pool.take: no test of ids that"),
        ("Pool_set_given(", "Pool_put_given(", "small.Pool.given: 0 wrappers"),
        ('{"take",', '{"taken",', "small.Pool.take: no entry of a table"),
        ('{"double",', '{"doubled",', "small.double: no entry of a table"),
        ("(getter)small___Pool_get_given", "(get)Pool_get_given", "small.Pool.given: no entry of a table"),
        (".tp_doc", ".tp_text", "small.Pool: 0 places for its docstring"),
        ("_____top_level__", "_____body__", "small: 0 functions that run at import"),
    ],
)
def test_what_is_written_otherwise_fails_the_build(written: str, before: str, after: str, named: str) -> None:
    assert before in written
    with pytest.raises(REWRITE["NotFoundError"], match=named):
        REWRITE["rewritten"](written.replace(before, after), SOURCE, "small")


@pytest.mark.parametrize(
    "hidden",
    [
        "if len('x'):\n    def hidden(count: int) -> int:\n        return count\n",
        "class Shown:\n    if len('x'):\n        def hidden(self, count: int) -> int:\n            return count\n",
        "async def hidden(count: int) -> int:\n    return count\n",
    ],
)
def test_a_public_function_that_is_not_looked_for_fails_the_build(written: str, hidden: str) -> None:
    with pytest.raises(REWRITE["HiddenError"], match=r"small\.hidden: is defined within a statement"):
        REWRITE["rewritten"](written, f"{SOURCE}\n\n{hidden}", "small")

"""Property: the C floor does the work that it times (it checks itself), and without a compiler says so.

Tested by compiling it here, where there is a compiler, and running each function once.
Not covered: that it is the fastest possible C.
"""

import os
import shutil
from pathlib import Path

import pytest

from blockwright.bench.floor import SOURCE, Floor
from blockwright.errors import InvalidArgumentError

needs_compiler = pytest.mark.skipif(
    shutil.which((os.environ.get("CC") or "cc").split()[0]) is None, reason="no C compiler"
)


@needs_compiler
def test_every_path_of_the_floor_passes_its_own_check() -> None:
    floor = Floor(SOURCE)
    for name in ("decode", "prefill", "lookup", "adopt", "release", "churn"):
        assert floor.sample(name)() > 0
    # What the clock itself takes is left out, so that what takes less is none.
    assert sum(floor.scaling(20, 50, 20, scattered=True).values()) > 0
    assert all(time >= 0 for time in floor.scaling(1, 2, 1, scattered=False).values())


@needs_compiler
def test_source_that_does_not_compile_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "floor.c").write_text("no C\n")
    with pytest.raises(InvalidArgumentError, match=r"floor: cc .*failed"):
        Floor(tmp_path / "floor.c")


def test_without_a_compiler_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(InvalidArgumentError, match="no C compiler 'no-such-compiler -O3'; install one, name it in CC"):
        Floor(SOURCE)


def test_without_the_source_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"gone\.c is not there"):
        Floor(tmp_path / "gone.c")

"""Property: every program in examples/ runs as it stands, and the engine loop says the same however small its pool is.

How: each is run by a fresh interpreter, without arguments; the engine loop is also called with budgets that leave room
for one request alone, for some, and for all, and its tokens are compared.
Not covered: that the loop is the best one (benchmarks), other devices.
"""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
PROMPTS = [[*range(20), 20 + i] for i in range(6)] + [[7], list(range(39))]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_example_runs(example: Path) -> None:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_engine_loop_says_the_same_in_any_pool() -> None:
    engine = runpy.run_path(str(next(path for path in EXAMPLES if path.name == "engine_loop.py")))
    plenty, _, none = engine["serve"](PROMPTS, 1 << 20)
    assert none == 0
    preempted = []
    for kibibytes in (25, 32, 40, 64):
        outputs, _, preemptions = engine["serve"](PROMPTS, kibibytes << 10)
        assert outputs == plenty
        preempted.append(preemptions)
    assert any(preempted)

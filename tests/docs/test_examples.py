"""Property: every program in examples/ runs as it stands, and the engine loop says the same however small its pool is.
The toy manager's page says what its commands print; the pictures of README.md are those that are drawn.

How: each is run by a fresh interpreter, without arguments; the engine loop is also called with budgets that leave room
for one request alone, for some, and for all, and its tokens are compared.
Not covered: that the loop is the best one (benchmarks), other devices.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TOY = ROOT / "examples/toy_manager"
PROGRAMS = {"blockwright": ["-m", "blockwright.cli"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}
PROMPTS = [[*range(20), 20 + i] for i in range(6)] + [[7], list(range(39))]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_example_runs(example: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_example_says_in_one_line_what_it_needs(example: Path) -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"this needs torch.*: pip install torch.*\n", done.stderr)


def test_the_engine_loop_says_the_same_in_any_pool() -> None:
    pytest.importorskip("torch")
    engine = runpy.run_path(str(next(path for path in EXAMPLES if path.name == "engine_loop.py")))
    plenty, _, none = engine["serve"](PROMPTS, 1 << 20)
    assert none == 0
    preempted = []
    for kibibytes in (25, 32, 40, 64):
        outputs, _, preemptions = engine["serve"](PROMPTS, kibibytes << 10)
        assert outputs == plenty
        preempted.append(preemptions)
    assert any(preempted)


def test_the_toy_managers_page_says_what_its_commands_print() -> None:
    """Its counterexample is a test, which fails as it is printed."""
    page = (TOY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(commands) == 3
    environment = {**os.environ, "COLUMNS": "300"}
    for command, wanted in commands:
        program, *arguments = shlex.split(command)
        line = [sys.executable, *PROGRAMS[program], *arguments]
        done = subprocess.run(line, cwd=TOY, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert wanted.rstrip("\n") in done.stdout, done.stdout + done.stderr
        assert (done.returncode == 0) == ("Nothing is violated" in wanted)
    script = next(wanted for _, wanted in commands if "raises KeyError" in wanted)
    done = subprocess.run([sys.executable, "-c", script], cwd=TOY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'dictionary is empty'")
    adapter = (TOY / "adapter.py").read_text(encoding="utf-8")
    assert len([each for each in adapter.splitlines() if each.strip()]) <= 60


def test_the_pictures_are_current() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/pictures.py"))["pictures"]()
    assert [path.name for path, text in drawn.items() if path.read_text(encoding="utf-8") != text] == []

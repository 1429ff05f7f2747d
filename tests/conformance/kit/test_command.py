"""Property: `blockwright conform` runs gates, reports them as a table and as data, and exits as documented.

How: the command is run in a process of its own, on profile `quick` and on single scopes; with arguments that are wrong.
Not covered: progress bars; the other profiles; violations (test_third_party.py).
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def conform(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    before = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{before}" if path else before}
    command = [sys.executable, "-m", "blockwright.cli", "conform", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_quick_profile_passes_and_reports(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    scope = ("--gate", "lockstep", "--scope", "sliding 3, block 1")
    done = conform("--profile", "quick", *scope, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert "transitions in lock-step, 0 violations" in done.stdout
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report["violations"] == 0
    assert report["transitions"] > 1_000
    assert report["coverage"]["HIT_STALE"] > 0
    assert {law["id"] for law in report["laws"]} >= {"REF-1", "READ-1", "HIT-1", "STEP-2"}
    for gate in report["gates"]:
        assert {"kind", "scope", "states", "transitions", "violations", "seconds"} <= gate.keys()
    assert {gate["kind"] for gate in report["gates"]} == {"lockstep"}
    assert report["summary"]["lock-step"]["transitions"] == report["transitions"]
    assert report["summary"]["lock-step"]["passed"] == report["summary"]["lock-step"]["tried"] > 0
    assert "totals" in done.stdout


def test_skipped_gates_do_not_run_and_a_report_on_standard_output_is_data_alone() -> None:
    done = conform("--gate", "choices", "--gate", "movement", "--skip", "movement", "--profile", "quick", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert {gate["kind"] for gate in json.loads(done.stdout)["gates"]} == {"choices"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--impl", "nothing"), "--impl: expected module:factory"),
        (("--impl", "no_such_module:X"), "--impl: cannot import 'no_such_module'"),
        (("--impl", "json:nothing"), "--impl: 'json' has no factory 'nothing'"),
        (("--gate", "lockstep", "--scope", "no such scope"), "--scope: no scope"),
        (("--profile", "long"), "--profile"),
        (("--jobs", "0"), "--jobs"),
        (("--gate", "nothing"), "--gate"),
        (("--gate", "movement", "--skip", "movement"), "--skip: leaves no gate to run"),
        (("--gate", "lockstep", "--scope", "three", "--json", "/no/such/folder/x"), "--json: cannot write"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    done = conform(*arguments)
    assert (done.returncode, len(done.stderr.splitlines()), words in done.stderr) == (2, 1, True), done.stderr


WITHOUT = """
LACKING = ("torch", "hypothesis", "crosshair")

import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, *rest):
        return None if name.partition(".")[0] in LACKING else super().find_spec(name, *rest)

sys.meta_path[:] = [Without if each is PathFinder else each for each in sys.meta_path]
"""
"""Imported by each process at its start: as if some packages were not installed."""


def test_gates_that_lack_a_package_are_refused_before_any_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT, encoding="utf-8")
    done = conform("--profile", "quick", "--gate", "choices", "--gate", "machine", "--gate", "damage", path=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "gates machine, damage cannot run without hypothesis and torch; pip install hypothesis to" in done.stderr
    assert done.stderr.endswith("or leave them out: --skip machine --skip damage\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs process groups, and /proc")
def test_an_interrupt_ends_all_processes_quietly() -> None:
    command = [sys.executable, "-m", "blockwright.cli", "conform", "--gate", "lockstep"]
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  # whatever started these tests ignores
    pipes: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    running = subprocess.Popen(command, text=True, start_new_session=True, preexec_fn=heeds, **pipes)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while running.poll() is None and len(children.read_text(encoding="ascii").split()) < 3:
        time.sleep(0.05)  # its workers have not started yet
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=600)
    assert running.returncode == 130
    assert errors.splitlines()[-1] == "blockwright: interrupted"
    assert "Traceback" not in errors
    assert group_ends(running.pid)


def group_ends(group: int) -> bool:
    """Wait up to a minute for all processes of a group to end."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False

"""The `blockwright` command finds its sub-commands; every way to end has its exit code and at most one line of error.

How: the command is called in this process with commands made here, one per way to end; the installed program is started
once, to see that it is installed, quick to start, and free of heavy imports, and with each sub-command in processes of
their own whose output is full, closed, or read by nobody.

Not covered: what the sub-commands do (test_replay_command.py, and the tests of the benchmarks and the kit).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

from blockwright import __version__, build_info, cli
from blockwright.errors import InvalidArgumentError, InvariantError, TraceError

RAISES: dict[str, Callable[[], int]] = {}


def register_ends(subparsers: argparse._SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser("end", help="end in some way")
    parser.add_argument("how", choices=sorted(RAISES))
    parser.set_defaults(run=lambda args: RAISES[args.how]())


def ending(error: BaseException) -> Callable[[], int]:
    def end() -> int:
        raise error

    return end


RAISES.update(
    well=lambda: 0,
    violations=lambda: 1,
    argument=ending(InvalidArgumentError("--blocks: must be at least 1;\ngive more")),
    trace=ending(TraceError("t.jsonl, line 3: truncated; mend it")),
    invariant=ending(InvariantError("REF-1", "holders of block 3", 1, 2)),
    interrupt=ending(KeyboardInterrupt()),
)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make two commands installed: one of this file, and one whose package is missing."""
    entries = [
        EntryPoint("end", f"{__name__}:register_ends", cli.GROUP),
        EntryPoint("absent", "no_such_package_here.command:register", cli.GROUP),
    ]
    monkeypatch.setitem(sys.modules, __name__, sys.modules[register_ends.__module__])
    monkeypatch.setattr(cli, "entry_points", lambda group: entries if group == cli.GROUP else [])


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("well", 0, ""),
        ("violations", 1, ""),
        ("argument", 2, "blockwright: error: --blocks: must be at least 1; give more\n"),
        ("trace", 2, "blockwright: error: t.jsonl, line 3: truncated; mend it\n"),
        ("invariant", 1, "blockwright: violation: REF-1: holders of block 3: expected 1, found 2\n"),
        ("interrupt", 130, "blockwright: interrupted\n"),
    ],
)
def test_every_end_has_its_code(capsys: pytest.CaptureFixture[str], how: str, code: int, line: str) -> None:
    assert cli.main(["end", how]) == code
    assert capsys.readouterr() == ("", line)


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "required: COMMAND"),
        (["nothing"], "invalid choice: 'nothing' (choose from 'absent', 'end')"),
        (["end"], "required: how"),
        (["end", "badly"], "argument how: invalid choice: 'badly'"),
        (["end", "well", "--twice"], "unrecognized arguments: --twice"),
        (["absent"], "the command absent cannot be loaded: No module named 'no_such_package_here'; install"),
        (["absent", "--option", "3"], "the command absent cannot be loaded"),
    ],
)
def test_bad_arguments_are_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("commands")
def test_help_lists_all_commands_even_those_that_cannot_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "end end in some way" in out
    assert "absent (the command absent cannot be loaded: No module named 'no_such_package_here'" in out


def test_unexpected_errors_are_not_hidden(commands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RAISES, "well", ending(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["end", "well"])


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blockwright", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("blockwright ")


def test_version_names_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"blockwright {__version__}, {build_info()}\n"


def test_the_package_declares_its_commands() -> None:
    declared = {entry.name: entry.value for entry in entry_points(group=cli.GROUP)}
    assert declared["replay"] == "blockwright.replay.command:register"
    assert {"view", "conform"} <= set(declared)


def test_the_program_starts_without_heavy_packages() -> None:
    heavy = {"torch", "numpy", "rich", "matplotlib", "hypothesis", "blockwright_spec", "blockwright_conformance"}
    heavy |= {"asyncio", "multiprocessing", "msgspec", "prometheus_client", "valkey", "fsspec", "zmq"}
    code = (
        "import sys; from blockwright.cli import main; code = main(['replay', '--help']); "
        f"print(sorted({heavy!r} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


FULL = '"$@" > /dev/full'
REPLAY = ("replay", "--conversations", "1")
NO_ROOM = "cannot write to standard output: No space left on device"


@pytest.mark.parametrize(
    ("shell", "arguments", "code", "said"),
    [
        (FULL, REPLAY, 3, NO_ROOM),
        (f"PYTHONUNBUFFERED=1 {FULL}", REPLAY, 3, NO_ROOM),
        ('"$@" >&-', REPLAY, 3, "standard output is closed"),
        (FULL, ("--version",), 3, NO_ROOM),
        *((FULL, (name, "--help"), 3, NO_ROOM) for name in ("conform", "conform-engine", "replay", "vectors", "view")),
        (FULL, ("conform", "--gate", "offload", "--scope", "LRU, no blocks", "--jobs", "1"), 3, NO_ROOM),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_has_a_code_of_its_own(
    shell: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    command = ["bash", "-c", shell, "bash", sys.executable, "-m", "blockwright.cli", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("option", ["--json", "--timeline"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_file_that_cannot_be_written_has_the_same_code(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert cli.main([*REPLAY, option, "/dev/full"]) == 3
    assert f"error: {option}: cannot write /dev/full: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("shell", "code"), [("2> /dev/full", 2), ("2>&-", 2)])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_errors_that_nobody_can_read_keep_their_code(shell: str, code: int) -> None:
    command = f'"{sys.executable}" -m blockwright.cli replay --blocks none {shell}'
    assert subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, check=False).returncode == code


def test_a_reader_that_goes_away_is_no_error() -> None:
    argv = ["replay", "--conversations", "1", "--json", "-"]
    code = f"import sys; from blockwright.cli import main; sys.exit(main({argv!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 141
    assert err == b""

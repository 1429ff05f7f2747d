"""The `blockwright` command: finds its sub-commands, and turns errors into exit codes.

Exit codes: 0 done, 1 violations found, 2 bad arguments or input, 3 the output could not be written, 130 interrupted,
141 the reader of the output has gone. For 2 and 3, one line on stderr says why.

Sub-commands are found through the entry points of the group `blockwright.commands`, so that other packages (the
conformance kit is one) add theirs without being imported here. Each names a function `register(subparsers)` that adds
one parser and sets its default `run`, a function from the parsed arguments to an exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any, NoReturn, TextIO

from blockwright._terminal import OutputError
from blockwright._text import printable
from blockwright.errors import BlockwrightError, InvariantError

GROUP = "blockwright.commands"


class CommandParser(argparse.ArgumentParser):
    """A parser with errors of one line each; sub-parsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Print the error in one line and exit with 2."""
        self.exit(2, f"{self.prog}: error: {_line(message)} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from blockwright import __version__, build_info

        print(f"blockwright {__version__}, {build_info()}")
        parser.exit()


class _Stream:
    """A stream of the process that remembers its first failure, which callers may hide, or meet anywhere."""

    def __init__(self, stream: TextIO, is_silent: bool = False) -> None:
        self.stream, self.is_silent = stream, is_silent
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, call: Any, *arguments: str) -> None:
        try:
            if not (self.failure and self.is_silent):
                call(*arguments)
        except OSError as error:
            self.failure = self.failure or error
            if not self.is_silent:
                raise

    def close(self) -> None:
        """After a failure, let what is still in the buffer go nowhere: Python would try again as it ends."""
        with suppress(OSError):
            self.flush()
        if self.failure is not None:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (by default that of the process) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = sys.stdout, sys.stderr
    # A stream that is None was closed before we came; its number would be given to the next file that is opened.
    err = _Stream(sys.stderr or open(os.devnull, "w", encoding="utf-8"), is_silent=True)  # noqa: SIM115
    out = _Stream(sys.stdout or open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    sys.stdout, sys.stderr = out, err
    try:
        if before[0] is None:
            raise OutputError("standard output is closed; open it, for instance by > FILE")
        code = _run(arguments, out)
    except OutputError as error:
        print(f"blockwright: error: {_line(str(error))}", file=err)
        code = 3
    finally:
        out.close()
        err.close()
        sys.stdout, sys.stderr = before
    return code


def _run(arguments: list[str], out: _Stream) -> int:
    try:
        code = _ended(arguments)
        out.flush()
    except OSError:
        if out.failure is None:
            raise
    if isinstance(out.failure, BrokenPipeError):
        return 141  # the reader of our output has gone, and knows it
    if out.failure is not None:
        raise OutputError(f"cannot write to standard output: {out.failure.strerror}; give it a place with room")
    return code


def _ended(arguments: list[str]) -> int:
    """Run a sub-command and return its exit code; say in one line what was wrong."""
    try:
        args = _parser(arguments).parse_args(arguments)
        code: int = args.run(args)
        return code
    except SystemExit as stop:  # argparse has printed already
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except InvariantError as error:
        print(f"blockwright: violation: {error}", file=sys.stderr)
        return 1
    except OutputError:
        raise
    except BlockwrightError as error:
        print(f"blockwright: error: {_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("blockwright: interrupted", file=sys.stderr)
        return 130


def _line(message: str) -> str:
    return printable(" ".join(message.split()))


def _parser(arguments: Sequence[str]) -> CommandParser:
    parser = CommandParser(prog="blockwright", description="A verified KV-cache manager for LLM serving.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and the build, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    found = {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
    asked = next((word for word in arguments if not word.startswith("-")), None)
    # Only the command that is asked for is imported: the others take time, and may lack the packages they need.
    for entry in [found[asked]] if asked in found else found.values():
        try:
            entry.load()(commands)
        except ImportError as error:
            message = f"the command {entry.name} cannot be loaded: {error}; install the package that it needs"
            if entry.name == asked:
                parser.error(message)
            commands.add_parser(entry.name, help=f"({message})")
    return parser


if __name__ == "__main__":
    sys.exit(main())

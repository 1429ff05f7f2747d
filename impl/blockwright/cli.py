"""The `blockwright` command: finds its sub-commands, and turns errors into exit codes.

Exit codes: 0 done, 1 violations found, 2 bad arguments or input (one line on stderr), 130 interrupted.

Sub-commands are found through the entry points of the group `blockwright.commands`, so that other packages (the
conformance kit is one) add theirs without being imported here. Each names a function `register(subparsers)` that adds
one parser and sets its default `run`, a function from the parsed arguments to an exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import NoReturn

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (by default that of the process) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser(arguments).parse_args(arguments)
        code: int = args.run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse has printed already
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except InvariantError as error:
        print(f"blockwright: violation: {error}", file=sys.stderr)
        return 1
    except BlockwrightError as error:
        print(f"blockwright: error: {_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("blockwright: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _line(message: str) -> str:
    return printable(" ".join(message.split()))


def _parser(arguments: Sequence[str]) -> CommandParser:
    parser = CommandParser(prog="blockwright", description="A verified KV-cache manager for LLM serving.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and the build, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    found = {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
    asked = next((word for word in arguments if not word.startswith("-")), None)
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

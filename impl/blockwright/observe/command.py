"""The sub-command `blockwright view`: the life of one block or request, from a timeline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from blockwright.errors import InvalidArgumentError
from blockwright.observe.timeline import life, read_timeline


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the sub-command to the command's parser."""
    parser = subparsers.add_parser(
        "view",
        help="print the life of one block or request, from a timeline",
        description="Print what happened to one block or request, from a file that `blockwright replay --timeline` or "
        "`blockwright.observe.timeline.write_timeline` wrote.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--block", type=int, metavar="ID")
    which.add_argument("--request", metavar="NAME", help="as in the file; 12 also finds the replay's 'request 12'")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the lines, return the exit code; `InvalidArgumentError` for a file or a name that is not there."""
    facts = read_timeline(args.file)
    lines = list(life(facts, request=args.request, block=args.block))
    if not lines and args.request is not None:
        lines = list(life(facts, request=f"request {args.request}"))
    if not lines:
        raise InvalidArgumentError(f"{args.file}: names no such {'request' if args.request else 'block'}")
    print("\n".join(lines))
    return 0

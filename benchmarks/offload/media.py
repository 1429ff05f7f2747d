"""``python -m benchmarks.offload.media NAME``: how fast each medium of offloading moves real bytes."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

BENCHMARKS = {
    "disk": "benchmarks.offload.disk",
    "host": "benchmarks.offload.host",
    "policies": "benchmarks.offload.policies",
    "shared": "benchmarks.offload.shared",
}
"""Name -> module with `add_arguments(parser)` and `run(args) -> int`; its docstring says what it measures."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark that is named; return 0, or 1 if `--require` is given and a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.offload.media", description=__doc__)
    subparsers = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        # Each is imported where it is asked for alone: one of them may need a library that another does not.
        subparser = subparsers.add_parser(name, add_help=False)
        subparser.set_defaults(module=module)
    known, rest = parser.parse_known_args(argv)
    benchmark = importlib.import_module(known.module)
    own = argparse.ArgumentParser(prog=f"{parser.prog} {known.name}", description=benchmark.__doc__)
    own.add_argument("--repeat", metavar="N", type=int, default=7, help="repetitions (default %(default)s)")
    own.add_argument("--require", action="store_true", help="exit with 1 if a target is missed")
    benchmark.add_arguments(own)
    args = own.parse_args(rest)
    if args.repeat < 1:
        own.error("--repeat: at least 1 repetition is needed")
    return int(benchmark.run(args))


if __name__ == "__main__":
    sys.exit(main())

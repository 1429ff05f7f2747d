"""The command line of the scripts."""

import argparse
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from blockwright.errors import BlockwrightError

from ..vllm_engine import NEW, OLD
from ..vllm_offload import OLD as OLD_OFFLOAD
from . import new, offload, old


def scripts(module: ModuleType) -> dict[str, Any]:
    return {
        name: each
        for name, each in vars(module).items()
        if inspect.isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }


RELEASES = ((NEW, scripts(new)), (OLD, scripts(old)), (OLD_OFFLOAD, scripts(offload)))
NAMES = tuple(sorted(name for _, own in RELEASES for name in own))
"""The scripts; those that begin with "old" are about vLLM 0.11.0."""


def confirm(name: str, peer_path: Path | None = None) -> str:
    """Run a script and give what it saw: nothing if the deviation does not show.

    Raises InvalidArgumentError if `peer_path` holds no unpacked copy of the release that the scripts are about.
    """
    release, run = next((release, own[name]) for release, own in RELEASES if name in own)
    seen: str = run() if peer_path is None else release.load(peer_path, run)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m blockwright_lab.peers.confirm", description=__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"scripts (default: all): {', '.join(NAMES)}")
    parser.add_argument("--peer-path", type=Path, metavar="DIR", help="the folder of `benchmarks.peers.fetch`")
    args = parser.parse_args()
    silent = 0
    for name in args.names or NAMES:
        try:
            seen = confirm(name, args.peer_path)
        except (BlockwrightError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(f"{name}: {seen or 'not shown'}")
        silent += not seen
    return int(silent > 0)


if __name__ == "__main__":
    sys.exit(main())

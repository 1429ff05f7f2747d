"""The sub-command `blockwright store`: a check of a directory that keeps blocks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blockwright import _terminal
from blockwright.offload.disk.check import check_store
from blockwright.offload.disk.index import RECORD_SIZE
from blockwright.offload.disk.store import INDEX

_SHOWN = 5


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the sub-command to the command's parser."""
    parser = subparsers.add_parser(
        "store",
        help="check a directory of a disk tier: records, and the bytes of each block",
        description="Check the directory of a DiskStore that no process has open: each record, and the bytes of each "
        "block against their checksum. The exit code is 1 if something is damaged and was not repaired.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="read all blocks of a directory and compare their checksums")
    check.add_argument("directory", type=Path, metavar="DIR")
    check.add_argument("--repair", action="store_true", help="forget what is damaged, so that it is computed again")
    check.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found; return the exit code.

    Raises:
        InvalidArgumentError, StoreDirectoryError: as `check_store`.
    """
    index = args.directory / INDEX
    places = index.stat().st_size // RECORD_SIZE if index.is_file() else 0
    with _terminal.progress(f"check {args.directory}", places) as advance:
        found = check_store(args.directory, repair=args.repair, advance=advance)
    print(
        f"{args.directory}: {found.blocks:,} blocks in {found.num_blocks:,} places; {found.bytes_read:,} bytes read in "
        f"{found.seconds:.1f} s"
    )
    for what, where in (("record", found.damaged_records), ("block", found.damaged_blocks)):
        if where:
            print(f"{len(where):,} damaged {what}{'s' * (len(where) > 1)}, in {_places(where)}")
    if found.damaged_hints:
        print(f"{found.damaged_hints:,} damaged entries of the order of use, which cost no block; a store renews them")
    if found.is_sound:
        print("All blocks are sound.")
    elif found.is_repaired:
        print("What is damaged was forgotten, and is computed again.")
    else:
        print("With --repair it is forgotten, and is computed again; a store treats it as a miss in any case.")
    return int(not found.is_sound and not found.is_repaired)


def _places(where: Sequence[int]) -> str:
    shown = ", ".join(map(str, where[:_SHOWN]))
    return f"place{'s' * (len(where) > 1)} {shown}" + (" and others" if len(where) > _SHOWN else "")

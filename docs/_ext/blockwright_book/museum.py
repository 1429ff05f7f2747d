"""The museum as data: exhibits, their patches as differences, and what was seen of them."""

import difflib
import inspect
import re
from functools import cache
from typing import Any

from blockwright_lab.known_bugs import blocks as exhibits_blocks
from blockwright_lab.known_bugs import demand as exhibits_demand
from blockwright_lab.known_bugs import forks as exhibits_forks
from blockwright_lab.known_bugs import offload as exhibits_offload
from blockwright_lab.known_bugs import prefixes as exhibits_prefixes
from blockwright_lab.known_bugs import tables as exhibits_tables
from blockwright_lab.known_bugs import tables_paged as exhibits_paged
from blockwright_lab.known_bugs import tiers as exhibits_tiers
from blockwright_lab.known_bugs import time_ as exhibits_time
from blockwright_lab.known_bugs.gate import EXHIBITS, NOT_POSSIBLE
from blockwright_lab.known_bugs.known_bug import Exhibit
from blockwright_lab.known_bugs.variants import source_of

from . import data

__all__ = ["EXHIBITS", "NOT_POSSIBLE", "ROOMS", "differences", "label", "of_law", "opening", "seen"]

ROOMS: tuple[tuple[str, Any, tuple[Exhibit, ...]], ...] = (
    ("blocks", exhibits_blocks, exhibits_blocks.BLOCKS),
    ("demand", exhibits_demand, exhibits_demand.DEMAND),
    ("tables", exhibits_tables, exhibits_tables.TABLES),
    ("prefixes", exhibits_prefixes, exhibits_prefixes.PREFIXES),
    ("time", exhibits_time, exhibits_time.TIME),
    ("forks", exhibits_forks, exhibits_forks.FORKS),
    ("paged", exhibits_paged, exhibits_paged.PAGED),
    ("tiers", exhibits_tiers, exhibits_tiers.TIERS),
    ("offload", exhibits_offload, exhibits_offload.OFFLOAD),
)
"""The rooms: their short names, modules and exhibits."""


def opening(module: Any) -> str:
    """Give what a room holds, from the first line of its module."""
    said = " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
    return re.sub(r"^The museum's \w+ room: ", "", said).rstrip(".")


def label(name: str) -> str:
    """Give the label of an exhibit's entry."""
    return f"exhibit-{name.lower()}"


@cache
def of_law(law: str) -> tuple[Exhibit, ...]:
    """Give the exhibits that name a law as their catcher."""
    return tuple(each for each in EXHIBITS if each.law == law)


def seen(exhibit: Exhibit) -> dict[str, Any] | None:
    """Give what the last report says of an exhibit."""
    found: dict[str, Any] | None = (data.load("museum") or {}).get(exhibit.id)
    return found


def calls(exhibit: Exhibit) -> int | None:
    """Count the calls after which an exhibit was caught; None where that was not measured."""
    row = seen(exhibit)
    match = re.search(r"after (\d+) call|before any call", (row or {}).get("detail") or "")
    return None if match is None else int(match[1] or 0)


def differences(exhibit: Exhibit) -> str:
    """Give the patches of an exhibit as one unified difference."""
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    for patch in exhibit.patches:
        before.setdefault(patch.file, source_of(patch.file))
        after[patch.file] = patch.applied(after.get(patch.file, before[patch.file]))
    lines: list[str] = []
    for file, text in after.items():
        old, new = before[file].splitlines(), text.splitlines()
        lines += difflib.unified_diff(old, new, file, file, n=2, lineterm="")
    return "\n".join(line for line in lines if not line.startswith("--- "))

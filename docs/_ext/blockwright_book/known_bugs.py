"""Known bugs as data: their changes as differences, and the gates that found them."""

import difflib
import re
from functools import cache
from typing import Any

from blockwright_lab.known_bugs.bugs import BUGS, CHAPTERS, NOT_POSSIBLE
from blockwright_lab.known_bugs.changes import edited, source_of
from blockwright_lab.known_bugs.known_bug import KnownBug

from . import data

__all__ = ["BUGS", "CHAPTERS", "NOT_POSSIBLE", "calls", "differences", "label", "of_law", "seen"]


def label(name: str) -> str:
    """Return the label of a bug's entry."""
    return f"bug-{name.lower()}"


@cache
def of_law(law: str) -> tuple[KnownBug, ...]:
    """Return the bugs that name a law as their catcher."""
    return tuple(each for each in BUGS if each.law == law)


def seen(bug: KnownBug) -> dict[str, Any] | None:
    """Return the rows of the last report about a bug."""
    found: dict[str, Any] | None = (data.load("known_bugs") or {}).get(bug.id)
    return found


def calls(bug: KnownBug) -> int | None:
    """Count the calls after which a bug was caught; None where that was not measured."""
    row = seen(bug)
    match = re.search(r"after (\d+) call|before any call", (row or {}).get("detail") or "")
    return None if match is None else int(match[1] or 0)


def differences(bug: KnownBug) -> str:
    """Return the changes of a bug as one unified difference."""
    lines: list[str] = []
    for file, text in edited(bug.changes).items():
        old, new = source_of(file).splitlines(), text.splitlines()
        lines += difflib.unified_diff(old, new, file, file, n=2, lineterm="")
    return "\n".join(line for line in lines if not line.startswith("--- "))

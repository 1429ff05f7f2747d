"""Where the implementation says that it upholds a law: ``law: ID`` in a docstring, or ``# law: ID`` above a line.

`claims` gives the places of each law, so that code and law can be read side by side; `UNCLAIMED` lists the laws that no
single place upholds, with the reason.
"""

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

import blockwright
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.manager.laws import BLOCK_LAWS, EVENT_LAWS, LAWS, RETENTION_LAWS, STEP_LAWS
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

TAG: Final = re.compile(r"\blaw:\s*([A-Z]+-\d+(?:\s*,\s*[A-Z]+-\d+)*)")
"""A tag, which may name several laws."""

CONTENT: Final = "of contents, which no manager knows: it follows from"

UNCLAIMED: Final[dict[str, str]] = {
    "BLOCK-1": "of the block machine: REF-1, PAGE-1, TIER-3 and CHAIN-1 are what the parts make of it",
    "BLOCK-2": "of the block machine: NULL-1 and PAGE-2 are what the parts make of it",
    "BLOCK-3": "of the block machine: REF-1, GHOST-1, PUB-1, PAGE-7 and TIER-1 are what the parts make of it",
    "BLOCK-4": "of the block machine: TRIM-2 and PAGE-3 are what the parts make of it",
    "GHOST-1": f"{CONTENT} STEP-2 and from reading blocks by table entries and keys alone",
    "PAGE-4": f"{CONTENT} PAGE-1, PAGE-9, PAGE-11 and PAGE-15 together",
    "READ-2": f"{CONTENT} ROW-1, SLOT-1 and READ-1 together",
    "SLOT-2": "it follows from SLOT-1, TABLE-2 and WRITE-2: no two tokens have one place in one writable block",
    "STATE-3": "it follows from STATE-1, STATE-2 and WRITE-2: a state that another request holds is copied before",
    "SHARE-2": "of two histories: it follows from SHARE-1, SHARE-3 and from the age of candidates within a tenant",
    "CHAIN-9": "it follows from CHAIN-4: a load waits only for what moves up, and that waits for nothing",
}
"""Laws that no code claims, and why."""


class Place(NamedTuple):
    """Where a law is claimed: the file, below the package's folder, and the function (empty: the module itself)."""

    file: str
    function: str


def law_ids() -> tuple[str, ...]:
    listed = (
        *BLOCK_LAWS,
        *LAWS,
        *STEP_LAWS,
        *EVENT_LAWS,
        *RETENTION_LAWS,
        *PAGED_LAWS,
        *PAGED_STEP_LAWS,
        *OFFLOAD_LAWS,
        *PART_FOUR_LAWS,
    )
    return tuple(law.id for law in listed)


def tags(source: str) -> list[tuple[int, str, str]]:
    """Return the tags of a file: line, function (the module's own have none), and law."""
    spans = list(functions(ast.parse(source)))
    return [
        (number, innermost(spans, number), law.strip())
        for number, line in enumerate(source.splitlines(), 1)
        for found in TAG.findall(line)
        for law in found.split(",")
    ]


Span = tuple[int, int, str]
"""The first and the last line of a function or class, and its qualified name."""


def functions(node: ast.AST, prefix: str = "") -> list[Span]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = prefix + child.name
            found += [(child.lineno, child.end_lineno or child.lineno, name), *functions(child, f"{name}.")]
    return found


def innermost(spans: list[Span], number: int) -> str:
    """Return the innermost function around a line; the module's own lines are in none."""
    return next((name for first, last, name in reversed(spans) if first <= number <= last), "")


def claims() -> dict[str, list[Place]]:
    """Return the places that claim each law, each once, in the order of files; one without any has an empty list."""
    root = Path(blockwright.__path__[0])
    found: dict[str, list[Place]] = {law: [] for law in law_ids()}
    for path in sorted(root.rglob("*.py")):
        for _, function, law in tags(path.read_text(encoding="utf-8")):
            place, places = Place(path.relative_to(root).as_posix(), function), found.setdefault(law, [])
            if place not in places:
                places.append(place)
    return found


def unknown() -> list[tuple[str, Place]]:
    """Return the tags that name no law of the specification."""
    known = frozenset(law_ids())
    return [(law, place) for law, places in claims().items() if law not in known for place in places]


def unclaimed() -> list[str]:
    """Return the laws that no code claims, in the order of the laws."""
    found = claims()
    return [law for law in law_ids() if not found[law]]

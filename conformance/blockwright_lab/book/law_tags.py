"""Where the implementation claims to uphold a law: ``law: ID`` in a docstring, or ``# law: ID`` above a line.

`claims` gives the places of each law, so that code and law can be read side by side; `UNCLAIMED` lists the laws that no
single place upholds, with the reason.
"""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, Final, NamedTuple

import blockwright
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import CALL_LAWS
from blockwright_spec.manager import laws
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

from ..known_bugs.changes import definitions

TAG: Final = re.compile(r"\blaw:\s*([A-Z]+-\d+(?:\s*,\s*[A-Z]+-\d+)*)")

UNCLAIMED: dict[str, str] = tomllib.loads(Path(__file__).with_name("unclaimed.toml").read_text(encoding="utf-8"))
"""Laws that no code claims, and why."""


class Place(NamedTuple):
    """Where a law is claimed: the file, below the package's folder, and the function (empty: the module itself)."""

    file: str
    function: str


def law_ids() -> tuple[str, ...]:
    manager = (*laws.BLOCK_LAWS, *laws.LAWS, *laws.STEP_LAWS, *laws.EVENT_LAWS, *laws.ROUTER_LAWS, *laws.METRIC_LAWS)
    kept = (*laws.RESTART_LAWS, *laws.RETENTION_LAWS, *laws.ORDER_LAWS)
    listed = (*CALL_LAWS, *manager, *kept, *PAGED_LAWS, *PAGED_STEP_LAWS, *OFFLOAD_LAWS, *PART_FOUR_LAWS)
    return tuple(law.id for law in listed)


def tags(source: str) -> list[tuple[int, str, str]]:
    named = list(definitions(ast.parse(source)))
    return [
        (number, innermost(named, number), law.strip())
        for number, line in enumerate(source.splitlines(), 1)
        for found in TAG.findall(line)
        for law in found.split(",")
    ]


def innermost(named: list[tuple[str, Any]], number: int) -> str:
    return next((name for name, each in reversed(named) if each.lineno <= number <= each.end_lineno), "")


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
    known = frozenset(law_ids())
    return [(law, place) for law, places in claims().items() if law not in known for place in places]


def unclaimed() -> list[str]:
    found = claims()
    return [law for law in law_ids() if not found[law]]

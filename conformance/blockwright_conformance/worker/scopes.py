"""Scopes of workers: a manager's scope, handed out step by step, and how its worker keeps rows."""

from dataclasses import dataclass, replace
from typing import Any

from ..kv_cache.scopes import Scope, layers, of_groups, options, rows_of


@dataclass(frozen=True, slots=True)
class WorkerScope:
    """The scope of an engine, and whether its worker stages changes, as for a device."""

    engine: Scope
    staged: bool = False
    misuse: bool = True
    spare: int = 0
    """Rows beyond those of the requests that may run at once."""

    @property
    def rows(self) -> int:
        return self.engine.slots + self.spare

    @property
    def name(self) -> str:
        return f"{self.engine.name}{', staged' if self.staged else ''}"


def of_row(names: str, *row: Any) -> WorkerScope:
    made = options(row[4:])
    own = {flag: made.pop(flag) for flag in ("staged", "misuse") if flag in made}
    return WorkerScope(of_groups(layers(names), *row[:4], **made), **own)


FILE = rows_of(__file__)
ALIKE = FILE["large"]
PLAIN = tuple(of_row(*row[:3], ALIKE["longest"], ALIKE["calls"], ALIKE["options"], *row[3:]) for row in ALIKE["rows"])
LARGE: dict[str, WorkerScope] = {each.name: each for scope in PLAIN for each in (scope, replace(scope, staged=True))}
"""Scopes for long histories, by their names: each with a worker on plain memory, and with one that stages."""
SMALL = tuple(of_row(*row) for row in FILE["small"])
"""Scopes that are explored whole, by their size."""
PROFILES = {"quick": SMALL[:1], "pr": SMALL[:2], "nightly": SMALL}

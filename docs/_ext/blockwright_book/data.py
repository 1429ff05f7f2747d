"""Where things lie, and the measured data."""

import json
from functools import cache
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2]
ROOT = DOCS.parent
DATA = DOCS / "data"
BOOK = DOCS / "book"
"""Generated pages."""


@cache
def load(name: str) -> Any:
    """Return the data of a file of ``docs/data``, or None where it has not been measured."""
    path = DATA / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def rows(*kinds: str) -> list[dict[str, Any]]:
    """Return the rows of the report that come from some gates, an empty list without a report."""
    return [row for row in (load("gates") or {"rows": []})["rows"] if row["kind"] in kinds]

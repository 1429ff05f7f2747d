"""The page of other engines under the same gates, from the data that their runs left."""

import json
from typing import Any

from . import data
from .markdown import block, folded, law, plain, prose, table


def page() -> str:
    """Give the page."""
    files = sorted((data.DATA / "engines").glob("*.json"))
    opening = (
        "(engines-laws)=\n# Other engines, law by law\n\nManagers of other engines, as published, run under the same "
        "gates through adapters. A law is *satisfied* where no scope showed a violation, *not shown* where the engine "
        "does not show what the law is about. A deviation that the engine documents is not a bug."
    )
    if not files:
        return f"{opening}\n\nNot measured.\n"
    return "\n\n".join([opening, *(engine(json.loads(path.read_text(encoding="utf-8"))) for path in files)]) + "\n"


def engine(found: dict[str, Any]) -> str:
    """Give what was found of one engine."""
    laws = [each for each in found.get("laws", ()) if isinstance(each, dict)]
    cells = [(law(each["id"]), each["status"], *numbers(each)) for each in laws]
    parts = [
        f"## {plain(str(found.get('engine', '')))} {found.get('version', '')}",
        table(("law", "", "scopes", "states", "detail"), cells, frozenset((2, 3))) if cells else "",
        *(counterexample(each) for each in laws if each.get("counterexample")),
        *(deviation(each) for each in found.get("deviations", ()) if isinstance(each, dict)),
    ]
    return "\n\n".join(filter(None, parts))


def numbers(each: dict[str, Any]) -> tuple[str, str, str]:
    """Give the numbers of a law."""
    return f"{each.get('scopes', 0):,}", f"{each.get('states', 0):,}", plain(str(each.get("detail") or ""))


def counterexample(each: dict[str, Any]) -> str:
    """Give the shortest counterexample of a law."""
    return folded(f"{each['id']}: the shortest counterexample", block("python", "\n".join(each["counterexample"])))


def deviation(each: dict[str, Any]) -> str:
    """Give a known deviation."""
    name = each.get("id") or each.get("law") or ""
    return f"- {law(str(name))}: {prose(str(each.get('reason', '')))} {prose(str(each.get('source', '')))}"

"""The page of other engines under the same gates, from the data that their runs left."""

import json
from typing import Any

from . import data
from .markdown import block, folded, law, plain, prose, table, threads

STANDINGS = {"BUG": "a bug", "DOCUMENTED": "documented by the engine", "CHOICE": "a choice of its own"}


def page() -> str:
    """Return the page."""
    files = sorted((data.DATA / "engines").glob("*.json"))
    opening = (
        "(engines-laws)=\n# Other engines, law by law\n\nManagers of other engines, as published, run under the same "
        "gates through adapters. A law is *satisfied* where no scope showed a violation. A deviation that the engine "
        "documents is not a bug, nor is a choice of its own; each is listed with its reason, and an unlisted one, or a "
        "listed one that does not show, fails the run."
    )
    if not files:
        return f"{opening}\n\nNot measured.\n"
    return "\n\n".join([opening, *(engine(json.loads(path.read_text(encoding="utf-8"))) for path in files)]) + "\n"


def engine(found: dict[str, Any]) -> str:
    """Return the findings about one engine."""
    reported = found.get("laws", ())
    laws = [{"id": name, **each} for name, each in reported.items()] if isinstance(reported, dict) else list(reported)
    cells = [(law(each["id"]), prose(str(each.get("statement", ""))), status(each), *numbers(each)) for each in laws]
    heads = ("law", "says", "", "scopes", "states")
    name, version = str(found.get("engine", "")), str(found.get("version", ""))
    parts = [
        f"## {plain(name if version in name else f'{name} {version}')}",
        f":::{{container}} law-cards engine-laws\n{table(heads, cells, frozenset((3, 4)))}\n:::" if cells else "",
        *(counterexample(each) for each in laws if each.get("counterexample")),
        *(["### Known deviations"] if found.get("deviations") else []),
        "\n".join(deviation(each) for each in found.get("deviations", ())),
    ]
    return "\n\n".join(filter(None, parts))


def status(each: dict[str, Any]) -> str:
    """Return whether an engine keeps a law."""
    return str(each.get("status") or {"holds": "satisfied"}.get(each.get("verdict", ""), each.get("verdict", "")))


def numbers(each: dict[str, Any]) -> tuple[str, str]:
    """Return how far one looked."""
    return f"{each.get('scopes') or 0:,}", f"{each.get('states') or each.get('transitions') or 0:,}"


def counterexample(each: dict[str, Any]) -> str:
    """Return the shortest counterexample of a law."""
    reported = each["counterexample"]
    lines = reported if isinstance(reported, list) else str(reported).splitlines()
    words = f"{prose(str(each['detail']))}\n\n" if each.get("detail") else ""
    return folded(f"{each['id']}: the shortest counterexample", words + block("python", "\n".join(map(str, lines))))


def deviation(each: dict[str, Any]) -> str:
    """Return a known deviation."""
    name, reason = str(each.get("law") or each.get("id") or ""), prose(str(each.get("reason", "")))
    standing = STANDINGS.get(str(each.get("standing", "")).upper(), "")
    source = threads(str(each.get("source") or each.get("reference") or ""))
    return f"- {law(name)}{f' ({standing})' if standing else ''}: {reason} {source}".rstrip()

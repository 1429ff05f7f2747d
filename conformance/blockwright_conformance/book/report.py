"""What the documentation says of the gates: one row each, theorems, and exhibits of the museum."""

from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]

COMPARED = ("proof", "contract", "tie", "lockstep", "coverage", "choices", "paged", "offload", "museum")
"""Rows whose numbers are the same in every run of a profile: all but those of random histories, damage and mutants."""

KEPT = ("kind", "manager", "scope", "states", "transitions", "violations", "seconds", "law", "detail")
EQUAL = ("states", "transitions", "violations", "law", "detail")
"""What is compared of a row; seconds are told, and differ."""


def joined(reports: list[Row]) -> Row | None:
    """Give several reports as one: the first, and of the others the gates that those before them did not run."""
    if not reports:
        return None
    rows: list[Row] = []
    for report in reports:
        kinds = {row["kind"] for row in rows}
        rows += [row for row in report["gates"] if row["kind"] not in kinds]
    return {**reports[0], "gates": rows}


def gates(report: Row) -> Row:
    """Give what is kept of a report: the rows without their traces."""
    rows = [{name: row[name] for name in KEPT if row[name] not in (None, 0.0)} for row in report["gates"]]
    return {"profile": report["profile"], "build": report["build"], "transitions": report["transitions"], "rows": rows}


def museum(report: Row) -> Row:
    """Give what was seen of each exhibit: who caught it, how soon, the shortest way, and what it does to a model."""
    kept = ("law", "detail", "states", "transitions", "seconds", "trace")
    harm = {exhibit_of(row): row["detail"] for row in report["gates"] if row["kind"] == "damage"}
    rows = [row for row in report["gates"] if row["kind"] == "museum" and not row["scope"].startswith("unchanged")]
    return {
        exhibit_of(row): {**{name: row[name] for name in kept}, "damage": harm.get(exhibit_of(row))} for row in rows
    }


def exhibit_of(row: Row) -> str:
    """Give the exhibit that a row speaks of."""
    return str(row["scope"]).partition(" ")[0]


def stale(kept: Row, report: Row) -> Iterator[str]:
    """Say what the documentation tells of the gates and a fresh report does not, and the other way round.

    Only gates that the report ran are compared, and only scopes that it chose.
    """
    if report["profile"] != kept["profile"]:
        yield f"the report is of profile {report['profile']}, the documentation tells of {kept['profile']}"
        return
    old, new = rows_of(kept["rows"]), rows_of(report["gates"])
    kinds = {kind for kind, _ in new}
    for name in sorted(old.keys() | new.keys()):
        if (
            name[0] in kinds
            and (name in old or not report.get("scope"))
            and not (report.get("scope") and name not in new)
        ):
            yield from different(" ".join(name), old.get(name), new.get(name))


def rows_of(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """Give the rows that are compared, by gate and scope; theorems of several layers share their words."""
    return {
        (row["kind"], f"{row['manager']}, {row['scope']}" if row["kind"] == "proof" else row["scope"]): row
        for row in rows
        if row["kind"] in COMPARED
    }


def different(name: str, old: Row | None, new: Row | None) -> Iterator[str]:
    """Say how a row differs."""
    if old is None or new is None:
        yield f"{name}: {'not in the documentation' if old is None else 'no longer in the report'}"
        return
    for field in EQUAL:
        if (old.get(field) or None) != (new.get(field) or None):
            yield f"{name}: {field}: the documentation says {old.get(field)}, the report {new.get(field)}"

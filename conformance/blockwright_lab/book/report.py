"""The documentation's data on the gates: one row each, contracts, and known bugs."""

from collections.abc import Iterator
from typing import Any

from blockwright_conformance.block_tables.scopes import PAGED_PROFILES
from blockwright_conformance.command import LOCKSTEP
from blockwright_conformance.gates import gates as all_gates
from blockwright_conformance.kv_cache.scopes import PROFILES
from blockwright_conformance.offload.scopes import CHAIN_PROFILES, TIER_PROFILES

from ..known_bugs.bugs import BUGS

Row = dict[str, Any]

COMPARED = ("contract", "lockstep", "choices", "paged", "offload", "known-bugs")
"""Rows whose numbers are the same in every run of a profile: all but those of random histories, damage and mutants."""
COVERED = {"all scopes": "lockstep", "all scopes of block tables": "paged", "all scopes of offloading": "offload"}

KEPT = "kind manager scope states transitions tried passed violations seconds law detail".split()
EQUAL = ("states", "transitions", "tried", "passed", "violations", "law", "detail")
"""What is compared of a row; seconds are told, and differ."""


def joined(reports: list[Row]) -> Row | None:
    """Return several reports as one: the first, and of the others the gates that those before them did not run."""
    if not reports:
        return None
    rows: list[Row] = []
    for report in reports:
        kinds = {row["kind"] for row in rows}
        explored = {(row["kind"], row["scope"]): row for row in rows if row["kind"] in LOCKSTEP}
        for row in report["gates"]:
            before = explored.get((row["kind"], row["scope"]), row)
            if any(before[name] != row[name] for name in ("states", "transitions", "violations")):
                raise ValueError(f"{row['kind']}, {row['scope']}: the reports differ: {before} and {row}")
        rows += [row for row in report["gates"] if row["kind"] not in kinds]
    builds = dict.fromkeys(report["build"] for report in reports)
    return {**reports[0], "build": "; ".join(builds), "gates": rows}


def gates(report: Row, before: Row | None = None) -> Row:
    """Return the kept part of a report: the rows without their traces, and the old rows of gates that it did not run.

    `before`: the kept part of the last report; gates of profile `nightly` are not in every report.
    """
    rows = [{name: row[name] for name in KEPT if row.get(name)} for row in report["gates"]]
    kinds = {row["kind"] for row in rows}
    rows += [row for row in (before["rows"] if before else ()) if row["kind"] not in kinds and has_way(row["kind"])]
    transitions = sum(row["transitions"] for row in report["gates"] if row["kind"] in LOCKSTEP)
    return {"profile": report["profile"], "build": report["build"], "transitions": transitions, "rows": rows}


def has_way(kind: str) -> bool:
    return any(kind in way.kinds for gate in all_gates().values() for way in gate.ways)


def known_bugs(report: Row, before: Row | None = None) -> Row:
    """Return the findings on each known bug: the law, how soon, the shortest way, and the damage to a model.

    `before`: the kept part of the last report; the damage stays as it was there unless gate `damage` was run.
    """
    kept = ("law", "detail", "states", "transitions", "seconds", "trace")
    harm = {name: row["damage"] for name, row in (before or {}).items()}
    harm |= {bug_of(row): row["detail"] for row in report["gates"] if row["kind"] == "damage"}
    known = {bug.id for bug in BUGS}
    rows = [row for row in report["gates"] if row["kind"] == "known-bugs" and bug_of(row) in known]
    return {bug_of(row): {**{name: row[name] for name in kept}, "damage": harm.get(bug_of(row))} for row in rows}


def bug_of(row: Row) -> str:
    return str(row["scope"]).partition(" ")[0]


def stale(kept: Row, report: Row) -> Iterator[str]:
    """Yield the differences between the documentation's data on the gates and a fresh report.

    Only gates that the report ran are compared, and of a report on some scopes only those.
    """
    if report["profile"] != kept["profile"]:
        yield f"the report is of profile {report['profile']}, the documentation tells of {kept['profile']}"
        return
    old, new = rows_of(kept["rows"]), rows_of(report["gates"])
    kinds = {kind for kind, _ in new}
    names = new.keys() if report.get("scope") else {name for name in old if name[0] in kinds} | new.keys()
    for name in sorted(names):
        yield from different(" ".join(name), old.get(name), new.get(name))


def misnamed(kept: Row, bugs: Row) -> Iterator[str]:
    """Yield the scopes and known bugs of the profile that the documentation lacks, or names in vain.

    The comparison without a fresh report: names alone.
    """
    profile = kept["profile"]
    offload = (*TIER_PROFILES[profile], *CHAIN_PROFILES[profile])
    explored = {"lockstep": PROFILES[profile], "paged": PAGED_PROFILES[profile], "offload": offload}
    for kind, scopes in explored.items():
        documented = {row["scope"] for row in kept["rows"] if row["kind"] == kind}
        there = {each.name for each in scopes}
        yield from (f"{kind} {name}: no such scope in profile {profile}" for name in sorted(documented - there))
        yield from (f"{kind} {name}: not in the documentation" for name in sorted(there - documented))
    ids = {each.id for each in BUGS}
    yield from (f"known-bugs {name}: no such bug" for name in sorted(bugs.keys() - ids))
    yield from (f"known-bugs {name}: not in the documentation" for name in sorted(ids - bugs.keys()))


def rows_of(rows: list[Row]) -> dict[tuple[str, str], Row]:
    return {
        (gate_of(row), f"{row['manager']}, {row['scope']}" if row["kind"] == "contract" else row["scope"]): row
        for row in rows
        if gate_of(row) in COMPARED
    }


def gate_of(row: Row) -> str:
    return COVERED.get(row["scope"], "coverage") if row["kind"] == "coverage" else str(row["kind"])


def different(name: str, old: Row | None, new: Row | None) -> Iterator[str]:
    if old is None or new is None:
        yield f"{name}: {'not in the documentation' if old is None else 'no longer in the report'}"
        return
    for field in EQUAL:
        if (old.get(field) or None) != (new.get(field) or None):
            yield f"{name}: {field}: the documentation says {old.get(field)}, the report {new.get(field)}"

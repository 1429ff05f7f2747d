"""Expected failures: a strict list, kept in a file beside a manager's own tests.

The file is TOML, with a table for each known deviation (`adapters.capabilities.Deviation`)::

    [[deviation]]
    name = "no-hit-in-last-block"
    law = "REF-0"
    pattern = "^full, block 1: .*hit: expected"
    standing = "choice"
    reason = "Our scheduler recomputes the last block of every hit."

It is strict both ways: a failure that no table names fails, and a table that no failure shows fails too.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .capabilities import Deviation, Finding, Standing, Verdict, judge
from .gates import GateResult

FIELDS = {field.name: field for field in dataclasses.fields(Deviation)}
REQUIRED = ("name", "law", "pattern", "standing", "reason")


def expected_of(source: str | Path | Iterable[Deviation]) -> tuple[Deviation, ...]:
    """Return the expected failures of a file, or those given.

    Raises:
        ValueError: the file cannot be read, or has another form; the message gives the place.
    """
    if not isinstance(source, str | Path):
        return tuple(source)
    path = Path(source)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected failures: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected failures: {path} is not TOML: {error}") from error
    if unknown := tables.keys() - {"deviation"}:
        raise ValueError(f"expected failures: {path}: expected tables [[deviation]], not {', '.join(sorted(unknown))}")
    rows = tables.get("deviation", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"expected failures: {path}: write [[deviation]], in double brackets")
    found = tuple([deviation(row, f"{path}, deviation {number}") for number, row in enumerate(rows, 1)])
    if repeated := {each.name for each in found if sum(each.name == other.name for other in found) > 1}:
        raise ValueError(f"expected failures: {path}: two deviations are named {', '.join(sorted(repeated))}")
    return found


def deviation(row: dict[str, Any], where: str) -> Deviation:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if missing := [name for name in REQUIRED if not values.get(name)]:
        raise ValueError(f"expected failures: {where}: {', '.join(missing)} missing")
    if unknown := values.keys() - FIELDS.keys():
        raise ValueError(
            f"expected failures: {where}: unknown {', '.join(sorted(unknown))}; known are {', '.join(FIELDS)}"
        )
    standings = {each.name.lower(): each for each in Standing}
    if values["standing"] not in standings:
        raise ValueError(f"expected failures: {where}: standing: expected one of {', '.join(standings)}")
    try:
        re.compile(values["pattern"])
        return Deviation(**{**values, "standing": standings[values["standing"]]})
    except (TypeError, ValueError, re.error) as error:
        raise ValueError(f"expected failures: {where}: {error}") from error


def findings(rows: Iterable[GateResult]) -> list[Finding]:
    return [Finding(row.law, row.scope, row.detail, row.script) for row in rows if row.violations]


def judged(rows: list[GateResult], deviations: tuple[Deviation, ...], is_whole: bool) -> list[GateResult]:
    """Judge the rows of a report: expected failures count no more, and a deviation that none shows counts.

    `is_whole`: everything was run, so that a deviation that did not show is out of date.
    """
    verdict = judge(findings(rows), deviations)
    names = {(one.law, one.scope, one.detail): each for each, findings in verdict.known for one in findings}
    results = [excused(row, names.get((row.law, row.scope, row.detail))) for row in rows]
    return results + [outdated(each) for each in verdict.unseen if is_whole]


def excused(row: GateResult, known: Deviation | None) -> GateResult:
    if known is None or not row.violations:
        return row
    return replace(row, violations=0, law="", detail=f"expected, {known.name}: {known.reason}", script="")


def outdated(known: Deviation) -> GateResult:
    detail = f"{known.name} did not show: take it off the list of expected failures"
    return GateResult("expected", known.name, "", 0, 0, 1, 0.0, "XPASS-1", detail)


def said(verdict: Verdict, is_whole: bool) -> str:
    lines = [f"{each.scope}: {each.law}: {each.detail}" for each in verdict.unlisted]
    if verdict.unlisted:
        shortest = min(verdict.unlisted, key=lambda each: each.script.count("\n"))
        lines += ["", f"the shortest of them, {shortest.scope}:", shortest.script]
    if is_whole:
        lines += [f"expected failure {each.name} did not show: take it off the list" for each in verdict.unseen]
    return "\n".join(lines)

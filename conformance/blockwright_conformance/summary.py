"""The last table of the report: the totals, a line for each way of checking."""

from typing import Any, Final

from .gates import GateResult, Way, gates

COLUMNS: Final = ("checked by", "what", "came out", "states", "transitions", "violations", "seconds")


COUNTS: Final = ("states", "transitions", "violations", "seconds")


def sums(rows: list[GateResult]) -> dict[Way, GateResult]:
    """Add up the rows of each way of checking; rows of a kind without a way make a separate one."""
    known = dict.fromkeys(way for gate in gates().values() for way in gate.ways)
    kinds = {kind for way in known for kind in way.kinds}
    others = dict.fromkeys(row.kind for row in rows if row.kind not in kinds)
    ways = (*known, *(Way(kind, (kind,), "rows") for kind in others))
    found = [(way, [row for row in rows if row.kind in way.kinds]) for way in ways]
    return {way: summed(way, own) for way, own in found if own}


def summed(way: Way, rows: list[GateResult]) -> GateResult:
    """Add up the rows of one way; where none of them counts things, each is one."""
    counts = [(row.tried or int(row.left_out), row.passed) for row in rows]
    if not any(row.tried for row in rows):
        counts = [(1, int(not row.violations and not row.left_out)) for row in rows]
    tried, passed = (sum(each[at] for each in counts) for at in (0, 1))
    states, transitions, violations, seconds = (sum(getattr(row, name) for row in rows) for name in COUNTS)
    return GateResult(way.name, "all", "all", states, transitions, violations, seconds, tried=tried, passed=passed)


def counted(row: GateResult) -> tuple[str, ...]:
    return f"{row.states:,}", f"{row.transitions:,}", f"{row.violations:,}", f"{row.seconds:.1f}"


def cells(rows: list[GateResult]) -> list[tuple[str, ...]]:
    found = ((way, each, f"{each.passed:,} of {each.tried:,} {way.verdict}") for way, each in sums(rows).items())
    return [(way.name, way.things, passed, *counted(each)) for way, each, passed in found]


def as_data(rows: list[GateResult]) -> dict[str, Any]:
    names = ("tried", "passed", *COUNTS)
    return {way.name: {name: round(getattr(each, name), 3) for name in names} for way, each in sums(rows).items()}

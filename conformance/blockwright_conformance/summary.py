"""The last table of the report: what was checked in all, a line for each way of checking."""

from typing import Any, Final, NamedTuple

from .gates import GateResult, Way, gates

COLUMNS: Final = ("checked by", "what", "came out", "states", "transitions", "violations", "seconds")


class Sum(NamedTuple):
    """What all rows of a way come to."""

    way: Way
    tried: int
    passed: int
    states: int
    transitions: int
    violations: int
    seconds: float


def sums(rows: list[GateResult]) -> list[Sum]:
    """Add up the rows of each way that was gone; rows of a kind that has no way make one of their own."""
    known = dict.fromkeys(way for gate in gates().values() for way in gate.ways)
    kinds = {kind for way in known for kind in way.kinds}
    others = dict.fromkeys(row.kind for row in rows if row.kind not in kinds)
    ways = (*known, *(Way(kind, (kind,), "rows") for kind in others))
    found = [(way, [row for row in rows if row.kind in way.kinds]) for way in ways]
    return [summed(way, own) for way, own in found if own]


def summed(way: Way, rows: list[GateResult]) -> Sum:
    """Add up the rows of one way; where none of them counts things, each is one."""
    counts = [(row.tried or int(row.left_out), row.passed) for row in rows]
    if not any(row.tried for row in rows):
        counts = [(1, int(not row.violations and not row.left_out)) for row in rows]
    tried, passed = (sum(each[at] for each in counts) for at in (0, 1))
    return Sum(way, tried, passed, *(sum(getattr(row, name) for row in rows) for name in Sum._fields[3:]))


def cells(rows: list[GateResult]) -> list[tuple[str, ...]]:
    """Return the table's cells."""
    return [
        (
            each.way.name,
            each.way.things,
            f"{each.passed:,} of {each.tried:,} {each.way.verdict}",
            f"{each.states:,}",
            f"{each.transitions:,}",
            f"{each.violations:,}",
            f"{each.seconds:.1f}",
        )
        for each in sums(rows)
    ]


def as_data(rows: list[GateResult]) -> dict[str, Any]:
    """Return the same as data."""
    found = {each.way.name: each._asdict() | {"seconds": round(each.seconds, 3)} for each in sums(rows)}
    return {name: {what: count for what, count in each.items() if what != "way"} for name, each in found.items()}

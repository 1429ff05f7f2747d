"""Part four, chapter 1: the worker's replica of the block tables: a row for each request.

A worker never sees the manager. It keeps a row for each request, from the outcomes of `manager.transitions`, and hands
the rows to the kernels, which find request i of a step in row i. So rows change places: when requests end, and when a
step takes its requests in another order.
"""

from dataclasses import dataclass, replace
from enum import Enum

from ..manager.outcomes import Done
from ..manager.state import Table
from ..manager.step_laws import table_after


@dataclass(frozen=True, slots=True)
class Row:
    """A worker's record of the request in a slot: its tables and the blocks for states of drafts, per group.

    `encoder` tokens are read by cross-attention. `certain` is known once the request was in a step: the tokens behind
    it that were no drafts. If more count as computed by the next step, they are drafts that were accepted.
    """

    slot: int
    tables: tuple[Table, ...]
    states: tuple[Table, ...]
    encoder: int = 0
    certain: int | None = None


Rows = tuple[Row | None, ...]
"""A worker's rows by their places; None where no request is."""


class RowRefusal(Enum):
    """Why a call on a worker's rows is refused; nothing has changed then."""

    NO_PLACE = "all places are taken, or there is no such place"
    NO_ROW = "the request has no row"
    TAKEN = "another request's row is in the place"
    REPEATED = "a request stands twice in one call"
    WRONG_COUNT = "a count is negative, or no token of a request with drafts is certain"
    NO_BLOCK = "a position that the step writes, or a state that it reads or writes, lies in no block"
    ILLEGAL_ORDER = "the order is not one of those left open"


RowsOutcome = Rows | RowRefusal


def place_of(rows: Rows, slot: int) -> int | None:
    """Return the place of a request's row."""
    return next((place for place, row in enumerate(rows) if row is not None and row.slot == slot), None)


def row_of(rows: Rows, slot: int) -> Row | None:
    """Return a request's row."""
    return next((row for row in rows if row is not None and row.slot == slot), None)


def put(rows: Rows, place: int, row: Row | None) -> Rows:
    """Put a row in a place."""
    return (*rows[:place], row, *rows[place + 1 :])


def add(rows: Rows, row: Row, place: int) -> RowsOutcome:
    """Take a request's tables as they are, whether it has a row or not: ``add_request`` (ROW-1).

    A request that has a row goes on: what its last step was is still known.
    """
    # REFUSE
    old, at = row_of(rows, row.slot), place_of(rows, row.slot)
    if old is None and None not in rows:
        return RowRefusal.NO_PLACE
    # CHOOSE
    if not 0 <= place < len(rows) or place not in (at, None if rows[place] else place):
        return RowRefusal.TAKEN
    # EFFECT
    kept = replace(row, certain=old.certain) if old else row
    return put(rows if at is None else put(rows, at, None), place, kept)
    # SAME: other rows.


def remove(rows: Rows, slot: int) -> RowsOutcome:
    """Forget a request, which has ended or was preempted: ``remove_request``; its place is free."""
    # REFUSE
    place = place_of(rows, slot)
    if place is None:
        return RowRefusal.NO_ROW
    # EFFECT
    return put(rows, place, None)
    # SAME: other rows, and their places.


def apply(rows: Rows, steps: tuple[tuple[int, Done], ...]) -> RowsOutcome:
    """Follow the report of a batch on its requests: appended, nulled and copied entries: ``apply`` (ROW-1, STEP-1)."""
    # REFUSE
    slots = tuple(slot for slot, _ in steps)
    if len(set(slots)) < len(slots):
        return RowRefusal.REPEATED
    if any(place_of(rows, slot) is None for slot in slots):
        return RowRefusal.NO_ROW
    # EFFECT
    done = dict(steps)
    return tuple(followed(row, done[row.slot]) if row and row.slot in done else row for row in rows)
    # SAME: other rows, and all places.


def followed(row: Row, done: Done) -> Row:
    """Return a row after a step, from the step's outcome alone."""
    return replace(row, tables=tuple(table_after(table, done, at) for at, table in enumerate(row.tables)))


def swap(rows: Rows, one: int, other: int) -> RowsOutcome:
    """Have two places change their rows, whether there are any: ``swap``."""
    # REFUSE
    if not 0 <= min(one, other) <= max(one, other) < len(rows):
        return RowRefusal.NO_PLACE
    # EFFECT
    return put(put(rows, one, rows[other]), other, rows[one])
    # SAME: the rows.


def move(rows: Rows, slot: int, place: int) -> RowsOutcome:
    """Move a request's row to a place that is free: ``move_request``."""
    # REFUSE
    at = place_of(rows, slot)
    if at is None:
        return RowRefusal.NO_ROW
    if not 0 <= place < len(rows):
        return RowRefusal.NO_PLACE
    if rows[place] is not None and place != at:
        return RowRefusal.TAKEN
    # EFFECT
    return swap(rows, at, place)
    # SAME: the rows.


def compact(rows: Rows, moves: tuple[tuple[int, int], ...]) -> RowsOutcome:
    """Close the gaps, by moves from place to place: ``compact``."""
    # CHOOSE
    after = rows
    for source, target in moves:
        if not max(source, target) < len(rows) or after[source] is None or after[target] is not None:
            return RowRefusal.ILLEGAL_ORDER
        after = put(put(after, target, after[source]), source, None)
    if gaps(after):
        return RowRefusal.ILLEGAL_ORDER
    # EFFECT
    return after
    # SAME: the rows.


def gaps(rows: Rows) -> int:
    """Count the free places before the last row."""
    return rows[: max((place + 1 for place, row in enumerate(rows) if row), default=0)].count(None)


def arrange(rows: Rows, slots: tuple[int, ...], order: tuple[int, ...]) -> RowsOutcome:
    """Bring request i of a step to row i: how ``step`` begins; the order of the rows behind is open (ROW-2)."""
    # REFUSE
    if len(set(slots)) < len(slots):
        return RowRefusal.REPEATED
    if any(place_of(rows, slot) is None for slot in slots):
        return RowRefusal.NO_ROW
    # CHOOSE
    if sorted(order) != list(range(len(rows))) or order[: len(slots)] != tuple(place_of(rows, slot) for slot in slots):
        return RowRefusal.ILLEGAL_ORDER
    # EFFECT
    return tuple(rows[place] for place in order)
    # SAME: the rows.

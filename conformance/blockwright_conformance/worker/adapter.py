"""What a worker must offer to be put through the gates: rows of block tables, and the inputs of a step."""

from typing import Protocol, Self

from blockwright_spec.manager.outcomes import Done
from blockwright_spec.manager.state import Copy
from blockwright_spec.worker.inputs import Inputs, Work
from blockwright_spec.worker.rows import Row

Places = tuple[int | None, ...]
"""The slot of the request in each row; None where a row is free."""
BatchResult = tuple[tuple[int, Done], ...]
"""What a batch tells: the slots of the requests that it served, each with its step."""


class WorkerAdapter(Protocol):
    """A worker with rows for requests, which are named by slot. `errors` are those by which it refuses a wrong call."""

    errors: tuple[type[Exception], ...]

    def copy(self) -> Self:
        """Return an independent copy of everything."""

    def add(self, row: Row) -> None:
        """Take a request's tables as they are (``add_request``)."""

    def remove(self, slot: int) -> None:
        """Forget a request (``remove_request``)."""

    def apply(self, result: BatchResult) -> None:
        """Follow what a batch tells (``apply``)."""

    def swap(self, one: int, other: int) -> None:
        """Have two places change their rows (``swap``)."""

    def move(self, slot: int, place: int) -> None:
        """Move a request's row to a free place (``move_request``)."""

    def compact(self) -> tuple[tuple[int, int], ...]:
        """Close the gaps, and return the moves from place to place (``compact``)."""

    def step(self, works: tuple[Work, ...], copies: tuple[Copy, ...], result: BatchResult) -> Inputs:
        """Return what a step hands to the kernels (``step``), which follows a batch first if one is told.

        The tables of a group are those of all rows, with null blocks behind what a request has.
        """

    def slots(self, slot: int, group: int, first: int, last: int) -> tuple[int, ...]:
        """Return the slots of the positions first .. last - 1 of a request (``slots``)."""

    def places(self) -> Places:
        """Show whose row is where."""

    def check(self) -> None:
        """Check what the last step handed out beyond its values, and raise where something is wrong."""

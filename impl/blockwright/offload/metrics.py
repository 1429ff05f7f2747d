"""What became of the transfers between two media: counts, bytes and times."""

from __future__ import annotations

import bisect
from enum import Enum
from typing import Any, NamedTuple

LATENCY_BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper bounds of the classes of `TransferStats.latencies`, in seconds; what takes longer is in one more class."""

Pair = tuple[str, str]
"""The media of a source and of a destination."""


class Outcome(Enum):
    """How a transfer ends; all except the first are failures for its caller."""

    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"


class TransferStats(NamedTuple):
    """The transfers of one source medium and one destination medium since the start.

    ``started - finished - failed - timed_out - cancelled`` are under way.

    On a GPU's stream the wait for earlier copies is not told apart: it is part of `seconds`.

    Attributes:
        started: accepted.
        finished: of which all arrived.
        failed: ended by their errors.
        timed_out: out of time before all was moved.
        cancelled: by `cancel`, or since the handler was closed.
        refused: not accepted; not among `started`.
        bytes: moved by those that finished.
        seconds: from the first byte that is moved to the end, summed over all that ended, however they did. The wait in
            the queue before that is not part of it.
        seconds_max: the longest of them.
        latencies: how many took up to each of `LATENCY_BOUNDS`, and how many longer.
        wait_seconds: from being accepted to the first byte, or to the end of those that never began, summed likewise.
        waits: how many waited up to each of `LATENCY_BOUNDS`, and how many longer.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    refused: int = 0
    bytes: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0
    latencies: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    wait_seconds: float = 0.0
    waits: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)

    @property
    def under_way(self) -> int:
        """Accepted and not ended yet."""
        return self.started - self.finished - self.failed - self.timed_out - self.cancelled


class Counters:
    """Counts that grow; the caller sees to it that one thread at a time is here."""

    def __init__(self) -> None:
        self._counts = TransferStats()

    def start(self) -> None:
        """Count a transfer that is accepted."""
        self._counts = self._counts._replace(started=self._counts.started + 1)

    def refuse(self) -> None:
        """Count a transfer that is not accepted."""
        self._counts = self._counts._replace(refused=self._counts.refused + 1)

    def end(self, outcome: Outcome, num_bytes: int, seconds: float, wait_seconds: float = 0.0) -> None:
        """Count the end of a transfer that was accepted, after a wait in the queue and seconds of moving."""
        was = self._counts
        ended: dict[str, Any] = {outcome.name.lower(): getattr(was, outcome.name.lower()) + 1}
        self._counts = was._replace(
            bytes=was.bytes + (num_bytes if outcome is Outcome.FINISHED else 0),
            seconds=was.seconds + seconds,
            seconds_max=max(was.seconds_max, seconds),
            latencies=_with(was.latencies, seconds),
            wait_seconds=was.wait_seconds + wait_seconds,
            waits=_with(was.waits, wait_seconds),
            **ended,
        )

    def stats(self) -> TransferStats:
        """Return the counts as they are now."""
        return self._counts


def _with(classes: tuple[int, ...], seconds: float) -> tuple[int, ...]:
    """Return the counts of the classes of `LATENCY_BOUNDS` with one more time."""
    at = bisect.bisect_left(LATENCY_BOUNDS, seconds)
    return (*classes[:at], classes[at] + 1, *classes[at + 1 :])

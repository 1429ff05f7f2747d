"""How a number is measured: CPU time, repetitions of all sides in turn, garbage collector off, the median counts."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Sample = Callable[[], float]
"""One repetition, set-up included but not counted: returns ns per unit."""


class WorkNotDoneError(AssertionError):
    """A sample found, after the timed region, that the manager did not do what was timed."""


def require(done: object) -> None:
    """Raise unless the work was done."""
    if not done:
        raise WorkNotDoneError("a benchmark's own check failed: the manager did not do what was timed")


now = time.thread_time_ns
"""CPU time of this thread: what other programs take of the machine does not count, for long and short samples alike."""


def since(begin: int) -> int:
    """Return the nanoseconds since `begin = now()`, what the two readings themselves take left out."""
    return now() - begin - _READING


TURN = 10_000_000
"""CPU time that a side has in its turn, in ns; sides whose single run takes longer have two runs."""

_READING = 0
_READING = int(statistics.median(since(now()) for _ in range(2_001)))


@dataclass(frozen=True)
class Timing:
    """Nanoseconds per unit over the repetitions.

    Attributes:
        median: the number that is reported.
        low, high: first and third quartile, to tell how quiet the machine was.
    """

    median: float
    low: float
    high: float


def interleaved(samples: Mapping[str, Sample], repeat: int) -> dict[str, Timing]:
    """Measure every sample `repeat` times, the sides in turn, and return a timing for each.

    In its turn a side runs for `TURN` nanoseconds, at least twice: the first run warms the caches that the other side
    has just filled and is not counted, the median of the others is the turn's number. The order turns round each time,
    so that a drift of the machine's speed meets all sides alike. The garbage collector is off meanwhile: a peer that
    keeps an object per block pays for it in pauses that are not counted here.
    """
    taken: dict[str, list[float]] = {name: [] for name in samples}
    names = list(samples)
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(repeat):
            for name in names:
                taken[name].append(_turn(samples[name]))
            names.reverse()
    finally:
        if enabled:
            gc.enable()
    return {name: summary(values) for name, values in taken.items()}


def _turn(sample: Sample) -> float:
    """Return the median of the runs of one turn, the first left out."""
    begin = now()
    sample()
    values = [sample()]
    while now() - begin < TURN:
        values.append(sample())
    return statistics.median(values)


def summary(values: list[float]) -> Timing:
    """Return median and quartiles of at least one value."""
    if len(values) == 1:
        return Timing(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high)

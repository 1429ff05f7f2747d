"""A watch over wrong implementations: what runs on and on is stopped, and is a fault like any other.

Processor time is counted, so that a busy machine changes nothing; and existing objects are kept from the garbage
collector meanwhile, which would take longer than an action may to look through a large heap. Main thread only, where
signals are handled.
"""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

SECONDS = 0.5
"""Processor time that one action may take: a thousand times what one takes otherwise."""
LOADING = 10.0
"""Processor time that a copy of the implementation may take to be loaded."""


class OutOfTimeError(BaseException):
    """Something runs on and on. No `Exception`, so that nothing on the way takes it for an answer."""


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError


def rearm(seconds: float = SECONDS) -> None:
    if signal.getsignal(signal.SIGVTALRM) is stop:  # outside a watch the signal would end the process
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)


@contextmanager
def watch() -> Iterator[None]:
    """Let nothing run for longer than `SECONDS` without starting the watch anew."""
    gc.freeze()
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        rearm()
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.unfreeze()


class Limited:
    """An adapter in which every copy, made before each action, starts the watch anew."""

    def copy(self) -> Self:
        rearm()
        return super().copy()  # type: ignore[misc,no-any-return]

"""Handlers that move transfers by worker threads, from a bounded queue."""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Self

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError
from blockwright.offload.jobs import JobQueue, Part
from blockwright.offload.metrics import Pair, TransferStats
from blockwright.offload.worker import OffloadingHandler, TransferResult, TransferSpec


class ThreadedHandler(OffloadingHandler):
    """Moves blocks by worker threads; a subclass splits a transfer into parts in `parts`.

    All methods may be called from any thread, but not from within a part. A handler that is garbage-collected cancels
    its transfers; so does the end of the program, which waits for the threads.
    """

    def __init__(
        self,
        *,
        threads: int = 1,
        max_queued: int = 64,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the threads.

        Args:
            threads: how many parts are moved at once.
            max_queued: how many transfers may wait; more are refused, so that the engine learns that it is too fast.
            timeout: seconds from `transfer_async` after which a transfer fails, unless its last part is being moved;
                None for never.
            clock: seconds, never going back.

        Raises:
            InvalidArgumentError: a count below 1, or a timeout that is not above 0.
        """
        integer("threads", threads, 1)
        integer("max_queued", max_queued, 1)
        if timeout is not None and not timeout > 0:
            raise InvalidArgumentError(f"timeout={timeout!r}: pass seconds, more than 0, or None")
        self._queue = JobQueue(max_queued, timeout, clock)
        self._queue.start(threads, f"blockwright-{type(self).__name__}")
        weakref.finalize(self, self._queue.abandon).atexit = False

    @abstractmethod
    def parts(self, spec: TransferSpec) -> Sequence[Part]:
        """Check a transfer and return its parts, which may be moved in any order and at once; nothing moves yet.

        Raises:
            InvalidArgumentError: the two sides do not fit each other, or are none of this handler's.
            BlockError: a block that is not there, or is written twice.
        """

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Queue a transfer. O(its parts).

        Returns:
            False if `max_queued` wait already, if the id is under way, or if the handler is closed.

        Raises:
            InvalidArgumentError, BlockError: as `parts`; nothing moves, and the transfer counts as refused.
        """
        pair = (spec[0].medium(), spec[1].medium())
        if not self._queue.accepts(job_id, pair):
            return False
        try:
            parts = self.parts(spec)
        except BaseException:
            self._queue.refuse(pair)
            raise
        return self._queue.put(job_id, pair, parts)

    def get_finished(self) -> list[TransferResult]:
        """Return the transfers that have ended since the last call, in the order in which they did."""
        return self._queue.take_results()

    def cancel(self, job_id: int) -> bool:
        """Drop the rest of a transfer; `get_finished` reports it as a failure. False if it is not under way."""
        return self._queue.cancel(job_id)

    def wait(self, job_ids: Collection[int]) -> None:
        """Return when none of these is under way; `get_finished` still reports them. Others' ids are passed over."""
        self._queue.wait(job_ids)

    def stats(self) -> dict[Pair, TransferStats]:
        return self._queue.stats()

    def close(self) -> None:
        """Cancel all transfers, and return when no thread runs any more; later transfers are refused."""
        self._queue.stop()
        self._queue.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


__all__ = ["Part", "ThreadedHandler"]

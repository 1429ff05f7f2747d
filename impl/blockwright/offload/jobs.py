"""A bounded queue of transfers, the threads that work it off, and the handlers that stand before such a queue.

The life of a transfer::

    transfer_async ──> waiting ──> running ──> ended ──> get_finished
         │                │           │          ^
       False           timeout, cancel, close ───┘   (a part that is being moved is waited for, those left are dropped)

A transfer is a list of parts. A thread takes the oldest transfer's next part, so that several threads share a large
one; and with it, where a medium moves many blocks better than one (`Batch`), those of the transfers right behind it, so
that many small ones cost no more than a large one. Whatever happens, a transfer is reported only when no thread is in
any of its parts any more: until then its blocks are read or written.

A call that is ended in its middle, or a thread that has no memory for its next step, leaves a queue that refuses every
later call; so does a fork in the child, where no thread of the queue runs.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError, OffloadError, UnsupportedError
from blockwright.offload.failures import name_of
from blockwright.offload.metrics import Counters, Outcome, Pair, TransferStats
from blockwright.offload.tiers.wholeness import Wholeness
from blockwright.offload.worker import OffloadingHandler, TransferResult, TransferSpec

_log = logging.getLogger(__name__)

Part = Callable[[], int]
"""Moves one or a few blocks of a transfer and returns how many bytes; an exception fails the whole transfer."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A part of some blocks, which can be moved by one call with those of other transfers.

    Attributes:
        move: moves blocks and returns for each its bytes, or None if it was not moved; an exception moves none.
        blocks: what to move.
        most: blocks in one call, if it is shared with others.
    """

    move: Callable[[Sequence[Any]], Sequence[int | None]]
    blocks: Sequence[Any]
    most: int

    def __call__(self) -> int:
        """Move these blocks alone."""
        return self.moved(self.move(self.blocks))

    def moved(self, done: Sequence[int | None]) -> int:
        """Return the bytes of these blocks, once all were moved.

        Raises:
            OffloadError: they were not.
        """
        missing = len(self.blocks) - len(done) + list(done).count(None)
        if missing:
            raise OffloadError(f"{missing} of {len(self.blocks)} blocks were not moved")
        return sum(size or 0 for size in done)


@dataclass(eq=False)
class Job:
    """A transfer under way.

    Attributes:
        job_id: its caller's number. pair: its media.
        parts: those that no thread has taken.
        begin, deadline, moving_since: seconds of the queue's clock when it was accepted, is out of time, began to move.
        running: parts that threads move now.
        started: whether a thread has taken a part.
        num_bytes: moved up to now.
        outcome: how it ends, `FINISHED` unless something went wrong.
    """

    job_id: int
    pair: Pair
    parts: deque[Part]
    begin: float
    deadline: float
    running: int = 0
    started: bool = False
    moving_since: float = math.inf
    num_bytes: int = 0
    outcome: Outcome = Outcome.FINISHED


class JobQueue:
    """Transfers and their threads. It does not know the handler, so that the handler can be collected while they wait.

    Args:
        max_queued, timeout, clock: as for `ThreadedHandler`.
    """

    def __init__(self, max_queued: int, timeout: float | None, clock: Callable[[], float]) -> None:
        self._max_queued = max_queued
        self._timeout = math.inf if timeout is None else timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # there are parts to take, or the queue is closed
        self._ended = threading.Condition(self._lock)  # a transfer has ended
        self._jobs: dict[int, Job] = {}
        self._pending: deque[Job] = deque()  # those with parts left, oldest first: so by their deadlines, too
        self._num_waiting = 0
        self._results: list[TransferResult] = []
        self._counters: dict[Pair, Counters] = {}
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._whole = Wholeness("close the handler, and make a new one")

    def _own_lock(self) -> threading.Lock:
        """Return the lock; in a forked process, where none may ever let it go, raise an `UnsupportedError`."""
        if self._is_forked:
            raise UnsupportedError(
                "handler: it belongs to the process that made it, and its threads do not run in this one"
            )
        return self._lock

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def start(self, count: int, name: str) -> None:
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        _RUNNING.add(self)
        for thread in self._threads:
            thread.start()

    def accepts(self, job_id: int, pair: Pair) -> bool:
        """Return whether a transfer would be queued now; count it as refused if not."""
        with self._own_lock(), self._whole:
            return self._accepts(job_id, pair)

    def _accepts(self, job_id: int, pair: Pair) -> bool:
        self._expire()
        if self._closed or job_id in self._jobs or self._num_waiting >= self._max_queued:
            self._counters_of(pair).refuse()
            return False
        return True

    def refuse(self, pair: Pair) -> None:
        with self._own_lock(), self._whole:
            self._counters_of(pair).refuse()

    def put(self, job_id: int, pair: Pair, parts: Iterable[Part]) -> bool:
        """Queue a transfer, if there is still room."""
        with self._own_lock(), self._whole:
            if not self._accepts(job_id, pair):
                return False
            now = self._clock()
            job = Job(job_id, pair, deque(parts), now, now + self._timeout)
            self._jobs[job_id] = job
            self._counters_of(pair).start()
            if job.parts:
                self._pending.append(job)
                self._num_waiting += 1
                self._changed.notify(len(job.parts))
            else:
                self._end(job)
            return True

    def _work(self) -> None:
        """Move parts until the queue is closed: the work of a thread.

        A thread that runs out of memory leaves a queue that reports it.
        """
        try:
            while self._work_once():
                pass
        except BaseException as error:
            self._whole.begin()
            _log.error("a thread of transfers has ended: %s", name_of(error))
            with self._lock:
                self._ended.notify_all()

    def _work_once(self) -> bool:
        taken = self._take()
        for (job, _), result in zip(taken, _moved(taken), strict=True):
            moved = 0
            if isinstance(result, BaseException):
                _log.warning("transfer %d from %s to %s failed: %s", job.job_id, *job.pair, name_of(result))
            else:
                moved = result
            with self._own_lock(), self._whole:
                job.running -= 1
                job.num_bytes += moved
                if isinstance(result, BaseException):
                    self._drop(job, Outcome.FAILED)
                elif not job.parts and not job.running:
                    self._end(job)
        return bool(taken)

    def _take(self) -> list[tuple[Job, Part]]:
        """Take the next part, and those after it that can be moved with it; an empty list if the queue is closed."""
        with self._own_lock():
            while True:
                with self._whole:
                    self._expire()
                    if self._pending:
                        taken = [self._take_part()]
                        while self._pending and _join([part for _, part in taken], self._pending[0].parts[0]):
                            taken.append(self._take_part())
                        return taken
                if self._closed:
                    return []
                self._changed.wait()

    def _take_part(self) -> tuple[Job, Part]:
        """Take the next part of the oldest transfer that has one."""
        job = self._pending[0]
        if not job.started:
            job.started = True
            job.moving_since = self._clock()
            self._num_waiting -= 1
        part = job.parts.popleft()
        job.running += 1
        if not job.parts:
            self._pending.popleft()
        return job, part

    def _expire(self) -> None:
        """Drop transfers that are out of time. Every call does this first, since all threads may be busy."""
        now = self._clock()
        while self._pending and self._pending[0].deadline <= now:
            self._drop(self._pending[0], Outcome.TIMED_OUT)

    def _drop(self, job: Job, outcome: Outcome) -> None:
        """Leave the rest of a transfer; it ends when the parts being moved have ended. The first outcome stays."""
        if job.outcome is Outcome.FINISHED:
            job.outcome = outcome
        if job.parts:
            # O(waiting), which `max_queued` bounds; a transfer is dropped seldom.
            self._pending.remove(job)
            job.parts.clear()
            self._num_waiting -= 0 if job.started else 1
        if not job.running:
            self._end(job)

    def _end(self, job: Job) -> None:
        del self._jobs[job.job_id]
        self._results.append((job.job_id, job.outcome is Outcome.FINISHED))
        now = self._clock()
        # One that never began has waited until now and moved for no time.
        begun = min(job.moving_since, now)
        self._counters_of(job.pair).end(job.outcome, job.num_bytes, now - begun, begun - job.begin)
        self._ended.notify_all()

    def take_results(self) -> list[TransferResult]:
        with self._own_lock(), self._whole:
            self._expire()
            results, self._results = self._results, []
            return results

    def cancel(self, job_id: int) -> bool:
        with self._own_lock(), self._whole:
            job = self._jobs.get(job_id)
            if job is None:
                return False
            self._drop(job, Outcome.CANCELLED)
            return True

    def wait(self, job_ids: Iterable[int]) -> None:
        left = set(job_ids)
        with self._own_lock():
            while True:
                with self._whole:
                    self._expire()
                # Ids of others, and those that have ended, are not waited for.
                left &= self._jobs.keys()
                if not left:
                    return
                # No thread need be free to notice that time is up, so that the one that waits wakes up for it.
                deadline = min((self._jobs[job].deadline for job in left if self._jobs[job].parts), default=math.inf)
                self._ended.wait(None if deadline == math.inf else max(0.0, deadline - self._clock()))

    def stats(self) -> dict[Pair, TransferStats]:
        with self._own_lock(), self._whole:
            self._expire()
            return {pair: counters.stats() for pair, counters in self._counters.items()}

    def stop(self) -> None:
        """Cancel all transfers and let the threads end; a queue that is not whole can be stopped, too."""
        if self._is_forked:
            self._closed = True
            self._threads.clear()
            return
        with self._lock:
            self._closed = True
            if self._whole.is_whole:
                with self._whole:
                    for job in list(self._jobs.values()):
                        self._drop(job, Outcome.CANCELLED)
            self._changed.notify_all()
            self._ended.notify_all()

    def join(self) -> None:
        """Return when no thread runs any more; called after `stop`."""
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """Stop, since the handler is being collected: at any point of any thread's work, so that nothing is awaited."""
        if threading.current_thread() not in self._threads:
            self.stop()
            return
        with suppress(RuntimeError):  # the program is ending, and the threads with it
            threading.Thread(target=self.stop, daemon=True).start()  # this one may hold the lock

    def _counters_of(self, pair: Pair) -> Counters:
        return self._counters.setdefault(pair, Counters())


def _join(parts: Sequence[Part], after: Part) -> bool:
    """Return whether another part can be moved by the same call as these."""
    batches = [part for part in (*parts, after) if isinstance(part, Batch)]
    return (
        len(batches) > len(parts)
        and len({batch.move for batch in batches}) == 1
        and sum(len(batch.blocks) for batch in batches) <= batches[0].most
    )


def _moved(taken: Sequence[tuple[Job, Part]]) -> list[int | BaseException]:
    """Move parts; return the bytes of each, or why it failed.

    Whatever that is, it is its transfer's, and the thread serves the others. What cannot be moved by one call is moved
    one by one: the fault is of one part.
    """
    batches = [part for _, part in taken if isinstance(part, Batch)]
    if len(batches) > 1:
        try:
            done = list(batches[0].move([block for batch in batches for block in batch.blocks]))
        except BaseException as error:
            _log.warning("%d transfers could not be moved together: %s", len(batches), name_of(error))
        else:
            ends = itertools.accumulate(len(batch.blocks) for batch in batches)
            return [
                _outcome(partial(batch.moved, done[end - len(batch.blocks) : end]))
                for batch, end in zip(batches, ends, strict=True)
            ]
    return [_outcome(part) for _, part in taken]


def _outcome(part: Part) -> int | BaseException:
    """Move a part; return its bytes, or the error that ended it."""
    try:
        return int(part())
    except BaseException as error:
        return error


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
        # The queue does not know the handler, so that threads at work do not keep a forgotten handler alive.
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
        # Before the parts are made: to check a large transfer that is refused anyhow would cost the scheduler's thread.
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


_RUNNING: weakref.WeakSet[JobQueue] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End all threads in order: once the interpreter is going down, they would be cut off in the midst of a copy."""
    queues = list(_RUNNING)
    for queue in queues:
        queue.stop()
    for queue in queues:
        queue.join()

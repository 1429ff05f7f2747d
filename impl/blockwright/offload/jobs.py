"""A bounded queue of transfers and the threads that work it off.

The life of a transfer::

    transfer_async ──> waiting ──> running ──> ended ──> get_finished
         │                │           │          ^
       False           timeout, cancel, close ───┘   (a part that is being moved is waited for, those left are dropped)

A transfer is a list of parts. A thread takes the oldest transfer's next part, so that several threads share a large
one. Whatever happens, a transfer is reported only when no thread is in any of its parts any more: until then its
blocks are read or written.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blockwright.offload.failures import name_of
from blockwright.offload.metrics import Counters, Outcome, Pair, TransferStats
from blockwright.offload.worker import TransferResult

_log = logging.getLogger(__name__)

Part = Callable[[], int]
"""Moves one or a few blocks of a transfer and returns how many bytes; an exception fails the whole transfer."""


@dataclass(eq=False)
class Job:
    """A transfer under way: the parts that no thread has taken, and the number of those being moved."""

    job_id: int
    pair: Pair
    parts: deque[Part]
    begin: float
    deadline: float
    running: int = 0
    started: bool = False
    num_bytes: int = 0
    outcome: Outcome = Outcome.FINISHED


class JobQueue:
    """What the threads share. It does not know the handler, so that the handler can be collected while they wait."""

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

    def accepts(self, job_id: int, pair: Pair) -> bool:
        """Return whether a transfer would be queued now; count it as refused if not."""
        with self._lock:
            return self._accepts(job_id, pair)

    def _accepts(self, job_id: int, pair: Pair) -> bool:
        self._expire()
        if self._closed or job_id in self._jobs or self._num_waiting >= self._max_queued:
            self._counters_of(pair).refuse()
            return False
        return True

    def refuse(self, pair: Pair) -> None:
        """Count a transfer that was not queued."""
        with self._lock:
            self._counters_of(pair).refuse()

    def put(self, job_id: int, pair: Pair, parts: Iterable[Part]) -> bool:
        """Queue a transfer, if there is still room."""
        with self._lock:
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

    def work(self) -> None:
        """Move parts until the queue is closed: what a thread does."""
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        taken = self._take()
        if taken is None:
            return False
        job, part = taken
        moved, failed = 0, False
        try:
            moved = int(part())
        except BaseException as error:  # whatever it is, it is this transfer's, and the thread serves the others
            failed = True
            _log.warning("transfer %d from %s to %s failed: %s", job.job_id, *job.pair, name_of(error))
        with self._lock:
            job.running -= 1
            job.num_bytes += moved
            if failed:
                self._drop(job, Outcome.FAILED)
            elif not job.parts and not job.running:
                self._end(job)
        return True

    def _take(self) -> tuple[Job, Part] | None:
        with self._lock:
            while True:
                self._expire()
                if self._pending:
                    break
                if self._closed:
                    return None
                self._changed.wait()
            job = self._pending[0]
            if not job.started:
                job.started = True
                self._num_waiting -= 1
            part = job.parts.popleft()
            job.running += 1
            if not job.parts:
                self._pending.popleft()
            return job, part

    def _expire(self) -> None:
        """Drop what is out of time, whether or not a thread is free to notice."""
        now = self._clock()
        while self._pending and self._pending[0].deadline <= now:
            self._drop(self._pending[0], Outcome.TIMED_OUT)

    def _drop(self, job: Job, outcome: Outcome) -> None:
        """Leave the rest of a transfer; it ends when the parts being moved have ended. The first outcome stays."""
        if job.outcome is Outcome.FINISHED:
            job.outcome = outcome
        if job.parts:
            self._pending.remove(job)
            job.parts.clear()
            self._num_waiting -= 0 if job.started else 1
        if not job.running:
            self._end(job)

    def _end(self, job: Job) -> None:
        del self._jobs[job.job_id]
        self._results.append((job.job_id, job.outcome is Outcome.FINISHED))
        self._counters_of(job.pair).end(job.outcome, job.num_bytes, self._clock() - job.begin)
        self._ended.notify_all()

    def take_results(self) -> list[TransferResult]:
        """Return the transfers that have ended since the last call."""
        with self._lock:
            self._expire()
            results, self._results = self._results, []
            return results

    def cancel(self, job_id: int) -> bool:
        """Drop a transfer; False if it is not under way."""
        with self._lock:
            job = self._jobs.get(job_id)
            if job is None:
                return False
            self._drop(job, Outcome.CANCELLED)
            return True

    def wait(self, job_ids: Iterable[int]) -> None:
        """Return when none of these is under way."""
        left = set(job_ids)
        with self._lock:
            while True:
                self._expire()
                left &= self._jobs.keys()
                if not left:
                    return
                deadline = min((self._jobs[job].deadline for job in left if self._jobs[job].parts), default=math.inf)
                self._ended.wait(None if deadline == math.inf else max(0.0, deadline - self._clock()))

    def stats(self) -> dict[Pair, TransferStats]:
        """Return the counts of each pair of media."""
        with self._lock:
            self._expire()
            return {pair: counters.stats() for pair, counters in self._counters.items()}

    def stop(self) -> None:
        """Cancel all transfers and let the threads end."""
        with self._lock:
            self._closed = True
            for job in list(self._jobs.values()):
                self._drop(job, Outcome.CANCELLED)
            self._changed.notify_all()

    def _counters_of(self, pair: Pair) -> Counters:
        return self._counters.setdefault(pair, Counters())

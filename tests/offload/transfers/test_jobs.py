"""Property: the queue of transfers keeps its counts and its order by itself: what waits, runs, is dropped, is awaited.

How: a queue without threads, on a clock that the test moves: the test takes parts and works them off by hand, so that
each order of events is one that it chose. Threads only where it is they that are to end.
Not covered: handlers, and many threads at once (test_queue.py).
"""

import threading
from collections.abc import Callable

import pytest

from blockwright.offload import jobs
from blockwright.offload.jobs import Job, JobQueue

PAIR = ("GPU", "CPU")
LONG = 60.0  # seconds after which what should not wait is given up


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def one() -> int:
    return 1


def fail() -> int:
    raise ValueError("no")


def queue_of(max_queued: int = 9, timeout: float | None = 10.0) -> tuple[JobQueue, Clock]:
    clock = Clock()
    return JobQueue(max_queued, timeout, clock), clock


def takes_one_more(queue: JobQueue) -> bool:
    """Whether a queue with room for one has just that room."""
    return [queue.put(job, PAIR, [one]) for job in (50, 51)] == [True, False]


def test_what_is_put_is_accepted_once_more() -> None:
    """Another thread may have put one with this id since it was asked."""
    queue, _ = queue_of()
    assert queue.put(1, PAIR, [one])
    assert not queue.put(1, PAIR, [one, one])
    assert not queue.put(1, PAIR, [])
    assert queue.take_results() == []
    assert queue.stats()[PAIR][:6] == (1, 0, 0, 0, 0, 2)


def test_a_running_transfer_does_not_wait_however_many_parts_it_has() -> None:
    queue, _ = queue_of(max_queued=1)
    assert queue.put(1, PAIR, [one] * 4)
    assert not queue.accepts(2, PAIR)
    for _ in range(3):
        assert queue._work_once()
    assert takes_one_more(queue)


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_a_dropped_transfer_does_not_wait(parts: int) -> None:
    """Whether or not some of its parts have been moved."""
    queue, _ = queue_of(max_queued=1)
    assert queue.put(1, PAIR, [one] * 3)
    for _ in range(parts):
        assert queue._work_once()
    assert queue.cancel(1)
    assert queue.take_results() == [(1, False)]
    assert not queue.cancel(1)
    assert takes_one_more(queue)


def test_a_transfer_that_failed_does_not_wait() -> None:
    queue, _ = queue_of(max_queued=1)
    assert queue.put(1, PAIR, [fail, one])
    assert queue._work_once()
    assert queue.take_results() == [(1, False)]
    assert takes_one_more(queue)
    assert queue.stats()[PAIR].bytes == 0


def test_what_is_out_of_time_is_not_begun() -> None:
    queue, clock = queue_of()
    moved: list[int] = []

    def part_of(job: int) -> jobs.Part:
        def part() -> int:
            moved.append(job)
            return 1

        return part

    for job in (1, 2, 3):
        assert queue.put(job, PAIR, [part_of(job)])
        clock.now += 4.0
    clock.now = 110.0
    assert queue._work_once()
    assert moved == [2]
    assert queue.take_results() == [(1, False), (2, True)]


ASKING: dict[str, Callable[[JobQueue], object]] = {
    "accepts": lambda queue: queue.accepts(9, PAIR),
    "stats": lambda queue: queue.stats(),
    "take_results": lambda queue: queue.take_results(),
    "wait": lambda queue: queue.wait([1]),
}


@pytest.mark.parametrize("asking", ASKING)
def test_whoever_asks_finds_what_is_out_of_time_ended(asking: str) -> None:
    queue, clock = queue_of()
    assert queue.put(1, PAIR, [one])
    clock.now += 9.75
    assert queue.stats()[PAIR].timed_out == 0
    clock.now += 0.25
    ASKING[asking](queue)
    assert queue._jobs == {}
    assert queue.stats()[PAIR].timed_out == 1
    assert queue.stats()[PAIR].wait_seconds == 10.0


class Ends:
    """Stands for the condition that a waiting thread sleeps on: notes how long, and lets the time pass."""

    def __init__(self, queue: JobQueue, clock: Clock, running: Job | None = None) -> None:
        self.queue, self.clock, self.running = queue, clock, running
        self.slept: list[float | None] = []

    def wait(self, seconds: float | None) -> None:
        self.slept.append(seconds)
        if seconds is not None:
            self.clock.now += seconds
        elif self.running is not None:  # its thread comes through
            self.running.running -= 1
            self.queue._end(self.running)
        else:
            raise AssertionError("it would sleep on and on")

    def notify_all(self) -> None:
        """Nobody sleeps."""


def test_a_waiting_thread_sleeps_until_the_next_deadline() -> None:
    queue, clock = queue_of()
    assert queue.put(1, PAIR, [one])
    clock.now += 4.0
    assert queue.put(2, PAIR, [one])
    assert queue.put(3, PAIR, [one])
    clock.now += 2.0
    ((job, _),) = queue._take()
    ends = Ends(queue, clock, job)
    queue._ended = ends  # type: ignore[assignment]
    queue.wait([1, 2, 7])  # the first is running, with no part left: its time does not matter; the last is not there
    assert ends.slept == [8.0, None]
    assert queue.take_results() == [(2, False), (3, False), (1, True)]


def test_a_waiting_thread_sleeps_until_each_deadline() -> None:
    queue, clock = queue_of()
    for job in (1, 2):
        assert queue.put(job, PAIR, [one])
        clock.now += 4.0
    ends = Ends(queue, clock)
    queue._ended = ends  # type: ignore[assignment]
    queue.wait([2, 1])
    assert ends.slept == [2.0, 4.0]
    assert queue.take_results() == [(1, False), (2, False)]


def test_nobody_waits_for_others() -> None:
    queue, clock = queue_of(timeout=None)
    assert queue.put(1, PAIR, [one])
    queue._ended = Ends(queue, clock)  # type: ignore[assignment]
    queue.wait([])
    queue.wait([2])
    assert queue._work_once()
    queue.wait([1])
    assert queue.take_results() == [(1, True)]


def test_a_stopped_queue_drops_all_and_takes_nothing() -> None:
    queue, _ = queue_of()
    for job in (1, 2):
        assert queue.put(job, PAIR, [one, one])
    assert len(queue._take()) == 1
    queue.stop()
    assert queue.take_results() == [(2, False)]  # a part of the other is being moved
    assert not queue.put(3, PAIR, [one])
    assert not queue._work_once()
    assert queue.stats()[PAIR][:6] == (2, 0, 0, 0, 1, 1)


def started() -> tuple[JobQueue, threading.Event]:
    """A queue with two threads, one of which is in a part until the event is set."""
    queue, _ = queue_of(timeout=None)
    begun, free = threading.Event(), threading.Event()

    def part() -> int:
        begun.set()
        return int(free.wait(LONG))

    queue.start(2, "test")
    assert queue.put(1, PAIR, [part])
    assert begun.wait(LONG)
    return queue, free


def test_threads_do_not_keep_the_program_up() -> None:
    queue, free = started()
    assert all(thread.daemon for thread in queue._threads)
    assert [thread.name for thread in queue._threads] == ["test-0", "test-1"]
    free.set()
    queue.stop()
    queue.join()
    assert not any(thread.is_alive() for thread in queue._threads)


def test_the_end_of_the_program_ends_every_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops them all, and then waits for the parts that are being moved."""
    monkeypatch.setattr(jobs, "_RUNNING", type(jobs._RUNNING)())
    queues = [started(), started()]
    joined: list[JobQueue] = []
    join = JobQueue.join

    def joining(queue: JobQueue) -> None:
        assert all(other._closed for other, _ in queues)
        for other, free in queues:
            if other is queue:
                free.set()
        join(queue)
        joined.append(queue)

    monkeypatch.setattr(JobQueue, "join", joining)
    jobs._stop_all()
    assert len(joined) == 2
    for queue, _ in queues:
        assert not any(thread.is_alive() for thread in queue._threads)
        assert not queue.put(2, PAIR, [])


def test_joining_waits_for_the_part_that_is_moved() -> None:
    queue, free = started()
    queue.stop()
    threading.Timer(0.05, free.set).start()
    queue.join()
    assert free.is_set()
    assert not any(thread.is_alive() for thread in queue._threads)


def test_a_thread_that_drops_its_own_queue_does_not_wait() -> None:
    """It may be inside the queue's lock, so another one stops it, which does not keep the program up."""
    queue, _ = queue_of()
    assert queue.put(1, PAIR, [one])
    queue._threads = [threading.current_thread()]
    before = set(threading.enumerate())
    with queue._lock:
        queue.abandon()
        stopping = [thread for thread in threading.enumerate() if thread not in before]
        assert [thread.daemon for thread in stopping] == [True]
        assert not queue._closed
    stopping[0].join(LONG)
    assert queue._closed
    assert queue.take_results() == [(1, False)]


def test_another_thread_that_drops_a_queue_stops_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, _ = queue_of()
    assert queue.put(1, PAIR, [one])
    monkeypatch.setattr(threading, "Thread", None)
    queue.abandon()
    assert queue._closed
    assert queue.take_results() == [(1, False)]

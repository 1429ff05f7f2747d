"""Property: a queued transfer ends once, as it did, and is reported only when nothing touches its blocks any more.

How: a handler whose parts are functions that the test holds up with events; the same handler under a storm of
transfers, cancellations and closing from several threads, after which the counts must add up.
Not covered: room and time (test_jobs.py), how fast it is (`benchmarks.offload.media`), and what real parts move
(test_host.py, test_media.py).
"""

import gc
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from blockwright.errors import BlockError, BlockwrightError, InvalidArgumentError
from blockwright.offload.jobs import Part, ThreadedHandler
from blockwright.offload.metrics import LATENCY_BOUNDS, Counters, Outcome, TransferStats
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec
from blockwright.offload.worker import TransferSpec

PAIR = ("GPU", "CPU")
LONG = 60.0  # seconds after which a test that should not wait is given up


class Work(LoadStoreSpec):
    """A source that brings its parts along."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts

    @staticmethod
    def medium() -> str:
        return "GPU"


def job(*parts: Part) -> TransferSpec:
    """A transfer that consists of these parts."""
    return Work(*parts), CPULoadStoreSpec([])


class Handler(ThreadedHandler):
    """Moves what `Work` brings."""

    def parts(self, spec: TransferSpec) -> Sequence[Part]:
        if not isinstance(spec[0], Work):
            raise BlockError("no such block")
        return spec[0].parts


class Gate:
    """A part that says when it begins, and goes on when it may."""

    def __init__(self, num_bytes: int = 1) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.num_bytes = num_bytes

    def __call__(self) -> int:
        self.begun.set()
        assert self.open.wait(LONG)
        return self.num_bytes


def fail() -> int:
    raise ValueError("the password is swordfish")


Make = Callable[..., Handler]


@pytest.fixture
def make() -> Iterator[Make]:
    """Handlers that are closed in the end."""
    made: list[Handler] = []

    def of(**options: object) -> Handler:
        made.append(Handler(**options))  # type: ignore[arg-type]
        return made[-1]

    yield of
    for handler in made:
        handler.close()


def stats(handler: Handler) -> TransferStats:
    return handler.stats()[PAIR]


def test_transfers_are_moved_and_reported_once(make: Make) -> None:
    handler = make()
    assert handler.transfer_async(7, job(lambda: 3, lambda: 4))
    assert handler.transfer_async(8, job())
    handler.wait([7, 8])
    assert sorted(handler.get_finished()) == [(7, True), (8, True)]
    assert handler.get_finished() == []
    assert stats(handler)[:7] == (2, 2, 0, 0, 0, 0, 7)
    assert stats(handler).under_way == 0
    assert sum(stats(handler).latencies) == 2


def test_results_come_in_the_order_of_the_ends(make: Make) -> None:
    handler, gates = make(threads=2), [Gate(), Gate()]
    for number, gate in enumerate(gates):
        assert handler.transfer_async(number, job(gate))
    for number in (1, 0):
        gates[number].open.set()
        handler.wait([number])
    assert handler.get_finished() == [(1, True), (0, True)]


def test_threads_share_one_transfer(make: Make) -> None:
    """Each part waits for the other: one thread alone would never come through."""
    handler, meeting = make(threads=2), threading.Barrier(2)

    def meet() -> int:
        meeting.wait(LONG)
        return 1

    assert handler.transfer_async(1, job(meet, meet))
    handler.wait([1])
    assert handler.get_finished() == [(1, True)]


def test_an_exception_fails_its_transfer_alone(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    handler, rest = make(), threading.Event()

    def leave() -> int:
        raise SystemExit(1)

    def note() -> int:
        rest.set()
        return 1

    with caplog.at_level(logging.WARNING):
        for number, part in enumerate((fail, leave, lambda: None, lambda: 1)):
            assert handler.transfer_async(number, job(part, note) if number < 3 else job(part))  # type: ignore[arg-type]
        handler.wait(range(4))
    assert handler.get_finished() == [(0, False), (1, False), (2, False), (3, True)]
    assert not rest.is_set()
    assert (stats(handler).failed, stats(handler).finished, stats(handler).bytes) == (3, 1, 1)
    assert "transfer 0 from GPU to CPU failed: ValueError" in caplog.text
    assert "swordfish" not in caplog.text


def test_what_is_refused_by_parts_is_raised_and_counted(make: Make) -> None:
    handler = make()
    with pytest.raises(BlockError, match="no such block"):
        handler.transfer_async(1, (GPULoadStoreSpec([1]), CPULoadStoreSpec([1])))
    assert stats(handler).refused == 1
    assert handler.transfer_async(1, job())


def test_a_failure_is_reported_when_the_other_parts_have_ended(make: Make) -> None:
    handler, gate = make(threads=2), Gate()
    assert handler.transfer_async(1, job(gate, fail, fail))
    assert handler.transfer_async(2, job(lambda: 1))
    handler.wait([2])  # the second thread has left the first transfer behind
    assert handler.get_finished() == [(2, True)]
    gate.open.set()
    handler.wait([1])
    assert handler.get_finished() == [(1, False)]


def test_cancelled_while_running(make: Make) -> None:
    """The part being moved is waited for, those left are dropped; so it is if it is the last."""
    for rest in ([], [fail]):
        handler, gate = make(), Gate()
        assert handler.transfer_async(1, job(gate, *rest))
        assert gate.begun.wait(LONG)
        assert handler.cancel(1)
        assert handler.cancel(1)
        assert handler.get_finished() == []
        gate.open.set()
        handler.wait([1])
        assert handler.get_finished() == [(1, False)]
        assert (stats(handler).cancelled, stats(handler).failed, stats(handler).bytes) == (1, 0, 0)


def test_wait_ends_with_the_time_of_what_waits(make: Make) -> None:
    """Real seconds: nobody calls in meanwhile, and the only thread hangs."""
    handler, gate = make(timeout=0.05), Gate()
    assert handler.transfer_async(1, job(gate))
    assert gate.begun.wait(LONG)
    assert handler.transfer_async(2, job(fail))
    handler.wait([2, 99])
    assert handler.get_finished() == [(2, False)]
    gate.open.set()


def test_close_cancels_and_joins(make: Make) -> None:
    handler, gate = make(), Gate()
    threads = [thread for thread in threading.enumerate() if "Handler" in thread.name]
    assert handler.transfer_async(1, job(gate, fail))
    assert handler.transfer_async(2, job(fail))
    assert gate.begun.wait(LONG)
    closing = threading.Thread(target=handler.close)
    closing.start()
    handler.wait([2])
    assert handler.get_finished() == [(2, False)]
    assert not handler.transfer_async(3, job())
    gate.open.set()
    closing.join(LONG)
    assert not any(thread.is_alive() for thread in (closing, *threads))
    assert handler.get_finished() == [(1, False)]
    assert stats(handler)[:6] == (2, 0, 0, 0, 2, 1)
    handler.close()


def test_a_handler_that_is_dropped_ends_its_threads() -> None:
    handler = Handler(threads=2)
    threads = handler._queue._threads
    assert handler.transfer_async(1, job(lambda: 1))
    handler.wait([1])
    gone = weakref.ref(handler)
    del handler
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


def test_a_handler_may_be_dropped_by_its_own_thread() -> None:
    """The last part of its last transfer is all that holds it."""
    handler, gate = Handler(), Gate()
    threads = handler._queue._threads

    def hold(handler: Handler = handler) -> int:
        return gate()

    assert handler.transfer_async(1, job(hold))
    assert gate.begun.wait(LONG)
    del handler, hold
    gate.open.set()
    threads[0].join(LONG)
    assert not threads[0].is_alive()


def test_the_end_of_the_program_is_not_when_a_handler_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the program still does as it ends may use it: all queues are ended after that, in order."""
    made: list[weakref.finalize[..., object]] = []

    class Noted(weakref.finalize):  # type: ignore[type-arg]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(weakref, "finalize", Noted)
    with Handler():
        assert [each.atexit for each in made] == [False]


def test_the_end_of_the_program_waits_for_a_part() -> None:
    """Cut off in the midst, it would not get to its last line; those after it are not begun."""
    program = """
        import sys, threading, time
        from tests.offload.transfers.test_queue import Handler, fail, job

        begun = threading.Event()
        def part():
            begun.set()
            time.sleep(0.2)
            sys.stdout.write("moved")
            return 1

        handler = Handler()
        handler.transfer_async(1, job(part, fail))
        begun.wait()
    """
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", textwrap.dedent(program)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "moved", "")


def test_as_a_context() -> None:
    with Handler() as handler:
        assert handler.transfer_async(1, job())
    assert not handler.transfer_async(2, job())


def test_a_storm(make: Make) -> None:
    """Four engines at once: each id is reported once by the handler, and the counts add up."""
    handler = make(threads=3, max_queued=20)
    accepted: list[list[int]] = [[] for _ in range(4)]
    reported: list[tuple[int, bool]] = []

    def engine(number: int) -> None:
        for step in range(200):
            job_id = step * 4 + number
            if handler.transfer_async(job_id, job(*[fail if step % 7 == 0 else lambda: 1] * (step % 4))):
                accepted[number].append(job_id)
            if step % 5 == 0:
                handler.cancel(job_id)
            if step % 50 == 0:
                handler.wait([job_id])

    engines = [threading.Thread(target=engine, args=(number,)) for number in range(4)]
    for thread in engines:
        thread.start()
    while any(thread.is_alive() for thread in engines):
        reported += handler.get_finished()
        time.sleep(0.001)
    every = sorted(job_id for ids in accepted for job_id in ids)
    handler.wait(every)
    reported += handler.get_finished()
    assert sorted(job_id for job_id, _ in reported) == every
    counts = stats(handler)
    assert (counts.started, counts.under_way, counts.refused) == (len(every), 0, 800 - len(every))
    assert counts.finished == sum(success for _, success in reported)
    assert sum(counts.latencies) == len(every)


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": True}, {"max_queued": 0}, {"max_queued": 1.5}, {"timeout": 0.0}]
)
def test_bad_options(options: dict[str, object]) -> None:
    before = threading.active_count()
    with pytest.raises(InvalidArgumentError, match=next(iter(options))) as caught:
        Handler(**options)  # type: ignore[arg-type]
    assert isinstance(caught.value, BlockwrightError)
    assert threading.active_count() == before


def test_latencies_fall_into_classes() -> None:
    counters = Counters()
    for seconds in (0.0, *LATENCY_BOUNDS, 11.0):
        counters.end(Outcome.FINISHED, 0, seconds)
    assert counters.stats().latencies == (2, 1, 1, 1, 1, 1)

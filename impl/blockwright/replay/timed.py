"""Serve a trace with requests that overlap: each arrives, waits for room, computes its prompt, decodes and ends.

An engine in three rules, driven by events, so that the same trace and options always give the same result::

    waiting --admit--> prompt (one request at a time) --> decode (all of them) --> end
       ^                  |                                  |
       '----- preempt ----'------------- preempt ------------'

A request is admitted in the order of arrival, once fewer than `concurrency` run, no other computes its prompt, and the
pool has room for the whole prompt. It holds its blocks until it ends. Where a running request finds no block, the one
admitted last gives up all of its blocks and goes on, before those that wait, once blocks are free.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.replay.pools import Pool, TimedResult, percentiles
from blockwright.replay.records import TraceRequest


@dataclass(frozen=True, slots=True)
class Overlap:
    """Say how requests overlap.

    Attributes:
        concurrency: requests that run at the same time at most.
        prefill_speed: prompt tokens per second, of the one request that computes its prompt.
        decode_speed: output tokens per second, of each request that decodes.
        arrivals: requests per second, in even distances; 0: all arrive at once; None: the times of the trace.
        output_tokens: tokens of each answer; None: those of the trace.

    Raises:
        InvalidArgumentError: a concurrency below 1, a speed that is not positive, or a negative rate or length.
    """

    concurrency: int
    prefill_speed: float = 10_000.0
    decode_speed: float = 50.0
    arrivals: float | None = None
    output_tokens: int | None = None

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "prefill_speed": 1e-6, "decode_speed": 1e-6, "arrivals": 0, "output_tokens": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and not bound <= value < float("inf"):
                raise InvalidArgumentError(f"{name}: must be at least {bound} and finite, not {value}")

    def answer(self, recorded: TraceRequest) -> int:
        return recorded.num_output_tokens if self.output_tokens is None else self.output_tokens

    def arrival(self, recorded: TraceRequest, number: int) -> float:
        """Return when a request arrives, in seconds."""
        return recorded.arrival if self.arrivals is None else number / self.arrivals if self.arrivals else 0.0


class _Run:
    """A request that has arrived: waiting, running, or preempted."""

    def __init__(self, request: Request, number: int, arrival: float, final: int, answer: int) -> None:
        self.request, self.number, self.arrival, self.final, self.answer = request, number, arrival, final, answer
        self.num_hit = 0
        self.target = 0  # where the step under way ends
        self.since = 0.0  # when it began
        self.ticket = -1  # of its event, by number: an event with another one is of a run that was preempted since
        self.is_resumed = False

    def answered(self, count: int) -> None:
        if count > 0:
            self.request.append_output_token_ids(array("i", (self.answer,)) * count)


class _Engine:
    def __init__(self, pool: Pool, options: Overlap, num_requests: int) -> None:
        self.pool, self.options = pool, options
        self.events: list[tuple[float, int, _Run]] = []
        self.running: dict[int, _Run] = {}  # in the order of admission
        self.prompt: _Run | None = None  # who computes its prompt
        self.refused_at = -1  # free blocks when nobody could be admitted: it takes more
        self.waiting = deque[_Run]()  # those that were preempted, and the one that arrived next
        self.queued, self.first_token = array("d", bytes(8 * num_requests)), array("d", bytes(8 * num_requests))
        self.tickets = self.preemptions = self.recomputed = self.output_tokens = 0
        self.held = self.ran = 0.0  # blocks and requests, times seconds

    def pass_time(self, now: float) -> None:
        clock, used = self.pool.clock, self.pool.used()
        self.held += used * (now - clock.now)
        self.ran += len(self.running) * (now - clock.now)
        self.pool.peak_used = max(self.pool.peak_used, used)
        clock.now = now

    def is_open(self) -> bool:
        room = self.refused_at < 0 or self.pool.num_free() > self.refused_at
        return self.prompt is None and len(self.running) < self.options.concurrency and room

    def admit(self, run: _Run) -> bool:
        """Start a request that waits, if the pool has room; one that it could not hold alone ends. Else it waits."""
        pool, now = self.pool, self.pool.clock.now
        num_hit, num_external, end = pool.admit(run.request, whole=True)
        if end == 0 and self.running:
            pool.release(run.request)
            self.refused_at = pool.num_free()
            return False
        if run.is_resumed:
            self.recomputed += run.target - min(num_hit, run.target)
        else:
            self.queued[run.number] = self.first_token[run.number] = now - run.arrival
            pool.count(run.request, run.number, num_hit if end else 0, num_external if end else 0)
            run.num_hit = num_hit
        if end == 0:
            pool.finish(run.request, 0, False)
            return True
        self.running[run.number] = self.prompt = run
        run.request.num_computed_tokens = max(num_hit, run.request.num_computed_tokens)
        self.start(run, num_hit, end, self.options.prefill_speed)
        return True

    def start(self, run: _Run, begin: int, target: int, speed: float) -> None:
        now = self.pool.clock.now
        run.target, run.since, run.ticket = target, now, self.tickets
        self.tickets += 1
        heappush(self.events, (now + (target - begin) / speed, run.ticket, run))

    def end_step(self, run: _Run) -> bool:
        """End the step of a request and begin the next one, if it has one; return whether it has ended."""
        request, pool = run.request, self.pool
        if run is self.prompt:
            pool.compute(request, run.target)
            if run.target < request.num_tokens:
                begin, end = run.target, pool.step_end(run.target, request)
                if not self.extend(run, end):
                    return not run.is_resumed
                self.start(run, begin, end, self.options.prefill_speed)
                return False
            self.prompt = None
            if not request.num_output_tokens:
                self.first_token[run.number] = pool.clock.now - run.arrival
        else:
            run.answered(run.target - request.num_tokens)
            # The first of these tokens took the block; the others fill what is there, in one call.
            if run.target > request.num_computed_tokens and not self.extend(run, run.target):
                return not run.is_resumed
            pool.compute(request, run.target)
        if run.target >= run.final:
            self.output_tokens += max(0, run.final + 1 - request.num_prompt_tokens)
            self.leave(run)
            pool.finish(request, run.num_hit, True)
            return True
        begin, size = run.target, pool.block_size
        run.answered(begin + 1 - request.num_tokens)
        if not self.extend(run, begin + 1):
            return not run.is_resumed
        pool.compute(request, begin + 1)
        self.start(run, begin, min(run.final, (begin // size + 1) * size), self.options.decode_speed)
        return False

    def extend(self, run: _Run, target: int) -> bool:
        """Give a request slots, of those admitted last if need be; return False if it does not run any more.

        It is then preempted, or has ended: alone in the pool, it found no room.
        """
        while not self.pool.extend(run.request, target):
            last = self.running[next(reversed(self.running))]
            if len(self.running) == 1:
                run.is_resumed = False
                self.leave(run)
                self.pool.finish(run.request, run.num_hit, False)
                return False
            self.preempt(last)
            if last is run:
                return False
        return True

    def preempt(self, run: _Run) -> None:
        """Take a request's blocks; what it has decoded by now stays known."""
        if run is not self.prompt and run.ticket >= 0:
            done = int((self.pool.clock.now - run.since) * self.options.decode_speed)
            run.answered(min(run.request.num_tokens - 1 + done, run.target) - run.request.num_tokens)
        run.target = run.request.num_computed_tokens
        run.is_resumed = True
        self.leave(run)
        self.pool.release(run.request, preempted=True)
        self.waiting.appendleft(run)
        self.preemptions += 1

    def leave(self, run: _Run) -> None:
        del self.running[run.number]
        run.ticket = -1
        self.refused_at = -1
        if run is self.prompt:
            self.prompt = None


def serve_timed(
    pool: Pool,
    options: Overlap,
    requests: Sequence[TraceRequest],
    make: Callable[[int], Request],
    ended: Callable[[int], object],
) -> tuple[TimedResult, float]:
    """Serve all requests; return what they waited for, and the blocks that were held over time.

    `make` gives the request of a number when it arrives, `ended` is called with how many have ended. Requests that
    wait cost nothing. Complexity: O(blocks) for each request, and O(log concurrency) for each event.
    """
    engine, count, began = _Engine(pool, options, len(requests)), 0, time.perf_counter()
    waiting, following = engine.waiting, 0
    first = pool.clock.now = options.arrival(requests[0], 0)
    while count < len(requests):
        now, is_open = pool.clock.now, engine.is_open()
        if is_open and waiting:
            run = waiting[0]
            if engine.admit(run):
                waiting.popleft()
                if run.number not in engine.running:
                    count += 1
                    ended(count)
            continue
        # Only who may be admitted is looked at: of all others that have arrived, the trace knows.
        arrival = float("inf")
        if is_open and following < len(requests):
            arrival = max(now, options.arrival(requests[following], following))
        if not engine.events or arrival < engine.events[0][0]:
            engine.pass_time(arrival)
            recorded = requests[following]
            final = recorded.num_tokens + max(0, options.answer(recorded) - 1)
            answer = recorded.answer if recorded.answer >= 0 else (1 << 31) - 1 - following
            at = options.arrival(recorded, following)
            waiting.append(_Run(make(following), following, at, final, answer))
            following += 1
            continue
        at, ticket, run = heappop(engine.events)
        if ticket == run.ticket:
            engine.pass_time(at)
            if engine.end_step(run):
                count += 1
                ended(count)
    pool.seconds += time.perf_counter() - began
    seconds = pool.clock.now - first
    timed = TimedResult(
        seconds,
        percentiles(engine.queued),
        percentiles(engine.first_token),
        engine.preemptions,
        engine.recomputed,
        engine.ran / seconds if seconds else 0.0,
        engine.output_tokens,
    )
    return timed, engine.held / seconds if seconds else 0.0

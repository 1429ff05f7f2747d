"""Serve a trace with requests that overlap: each arrives, waits for room, computes its prompt, decodes and ends.

An engine in three rules, driven by events, so that the same trace and options always give the same result::

    waiting --admit--> prompt (one request at a time) --> decode (all of them) --> end
       ^                  |                                  |
       '----- preempt ----'------------- preempt ------------'

A request is admitted in the order of arrival, once fewer than `concurrency` run, no other computes its prompt, and the
pool has room for the whole prompt. It holds its blocks until it ends. Where a running request finds no block, the one
admitted last gives up all of its blocks and goes on, before those that wait, once blocks are free.

A request arrives at its time, or where a client waits for the answer before it, once that has come. A router then sends
it to one of the engines, which are all the same and share one clock.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.replay.pools import Pool, TimedResult, percentiles
from blockwright.replay.records import TraceRequest
from blockwright.replay.routers import Routing


@dataclass(frozen=True, slots=True)
class Overlap:
    """Say how requests overlap.

    Attributes:
        concurrency: requests that run at the same time at most, on each engine.
        prefill_speed: prompt tokens per second, of the one request that computes its prompt.
        decode_speed: output tokens per second, of each request that decodes.
        arrivals: requests per second, in even distances; 0: all arrive at once; None: the times of the trace. Those
            that wait for an answer do so in any case.
        output_tokens: tokens of each answer; None: those of the trace.
        ttft, latency: seconds from arrival to first token, and to the end, within which a request counts as goodput.
        event_delay: seconds until a router knows what an engine has cached or evicted.

    Raises:
        InvalidArgumentError: a concurrency below 1, a speed that is not positive, or a negative rate, length or time.
    """

    concurrency: int
    prefill_speed: float = 10_000.0
    decode_speed: float = 50.0
    arrivals: float | None = None
    output_tokens: int | None = None
    ttft: float | None = None
    latency: float | None = None
    event_delay: float = 0.0

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "prefill_speed": 1e-6, "decode_speed": 1e-6}
        for name in self.__slots__:
            value, bound = getattr(self, name), least.get(name, 0)
            if value is not None and not bound <= value < float("inf"):
                raise InvalidArgumentError(f"{name}: must be at least {bound} and finite, not {value}")

    def answer(self, recorded: TraceRequest) -> int:
        return recorded.num_output_tokens if self.output_tokens is None else self.output_tokens

    def arrival(self, recorded: TraceRequest, number: int) -> float:
        """Return when a request arrives that waits for no answer, in seconds; `number` is of these."""
        return recorded.arrival if self.arrivals is None else number / self.arrivals if self.arrivals else 0.0


class _Times:
    """The times of all requests, by number, whichever engine serves them."""

    def __init__(self, num_requests: int) -> None:
        self.queued, self.first_token = array("d", bytes(8 * num_requests)), array("d", bytes(8 * num_requests))
        self.latency = array("d", [inf]) * num_requests


class _Run:
    """A request that an engine has looked at: waiting, running, or preempted."""

    def __init__(self, request: Request, number: int, arrival: float, recorded: TraceRequest, answer: int) -> None:
        self.request, self.number, self.arrival = request, number, arrival
        self.final = recorded.num_tokens + max(0, answer - 1)
        self.answer = recorded.answer if recorded.answer >= 0 else (1 << 31) - 1 - number
        self.answer_ids = recorded.answer_ids
        self.num_hit = 0
        self.target = 0  # where the step under way ends
        self.since = 0.0  # when it began
        self.ticket = -1  # of its event, by number: an event with another one is of a run that was preempted since
        self.is_resumed = False

    def answered(self, count: int) -> None:
        if count > 0:
            begin = self.request.num_output_tokens
            known = self.answer_ids[begin : begin + count]
            self.request.append_output_token_ids(known + array("i", (self.answer,)) * (count - len(known)))


_Event = tuple[float, int, _Run, "_Engine"]


class _Engine:
    def __init__(
        self, number: int, pool: Pool, options: Overlap, times: _Times, events: list[_Event], tickets: Iterator[int]
    ) -> None:
        self.number, self.pool, self.options, self.times = number, pool, options, times
        self.events, self.tickets = events, tickets  # those of all engines
        self.running: dict[int, _Run] = {}  # in the order of admission
        self.prompt: _Run | None = None  # who computes its prompt
        self.refused_at = -1  # free blocks when nobody could be admitted: it takes more
        self.waiting = deque[_Run | tuple[int, float]]()  # those that were preempted, then numbers with their arrivals
        self.preemptions = self.recomputed = self.output_tokens = 0
        self.held = self.ran = 0.0  # blocks and requests, times seconds
        self.last = pool.clock.now

    def pass_time(self) -> None:
        """Count what was held until now, before it changes."""
        now, used = self.pool.clock.now, self.pool.used()
        self.held += used * (now - self.last)
        self.ran += len(self.running) * (now - self.last)
        self.pool.peak_used = max(self.pool.peak_used, used)
        self.last = now

    def is_open(self) -> bool:
        room = self.refused_at < 0 or self.pool.num_free() > self.refused_at
        return self.prompt is None and len(self.running) < self.options.concurrency and room

    def admit_all(self, make: Callable[[int], Request], requests: Sequence[TraceRequest]) -> list[_Run]:
        """Admit those who wait, in their order, while the engine is open; return those that ended at once."""
        over: list[_Run] = []
        while self.waiting and self.is_open():
            head = self.waiting[0]
            if not isinstance(head, _Run):
                recorded = requests[head[0]]
                self.waiting[0] = head = _Run(make(head[0]), *head, recorded, self.options.answer(recorded))
            if self.admit(head):
                self.waiting.popleft()
                over += [] if head.number in self.running else [head]
        return over

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
            self.times.queued[run.number] = self.times.first_token[run.number] = now - run.arrival
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
        run.target, run.since, run.ticket = target, now, next(self.tickets)
        heappush(self.events, (now + (target - begin) / speed, run.ticket, run, self))

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
                self.times.first_token[run.number] = pool.clock.now - run.arrival
        else:
            run.answered(run.target - request.num_tokens)
            # The first of these tokens took the block; the others fill what is there, in one call.
            if run.target > request.num_computed_tokens and not self.extend(run, run.target):
                return not run.is_resumed
            pool.compute(request, run.target)
        if run.target >= run.final:
            self.output_tokens += max(0, run.final + 1 - request.num_prompt_tokens)
            self.times.latency[run.number] = pool.clock.now - run.arrival
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


class _Coming:
    """The requests that have not arrived: at which time, or after whose answer they do. Some bytes for each."""

    def __init__(self, requests: Sequence[TraceRequest], options: Overlap) -> None:
        self.at, self.delays, self.tokens = array("d"), array("d"), array("i")
        self._first, self._also = array("i"), array("i")  # a list, of each request, of those that wait for its answer
        heads = array("i")
        for number, each in enumerate(requests):
            if not -1 <= each.after < number:
                raise InvalidArgumentError(f"after: must be -1 or an earlier request than {number}, not {each.after}")
            waits = each.after >= 0
            self.at.append(options.arrival(each, 0 if waits else len(heads)))
            self.delays.append(each.delay)
            self.tokens.append(each.num_tokens)
            self._first.append(-1)
            self._also.append(self._first[each.after] if waits else -1)
            if waits:
                self._first[each.after] = number
            else:
                heads.append(number)
        self._heads = iter(sorted(heads, key=self.at.__getitem__))
        self._due: list[tuple[float, int]] = []
        self._add_head()

    def _add_head(self) -> None:
        self._head = next(self._heads, -1)
        if self._head >= 0:
            heappush(self._due, (self.at[self._head], self._head))

    def next_at(self) -> float:
        return self._due[0][0] if self._due else inf

    def take(self) -> int:
        """Return the number of the request that arrives next."""
        number = heappop(self._due)[1]
        if number == self._head:
            self._add_head()
        return number

    def ended(self, number: int, now: float) -> None:
        """Let those that wait for a request's answer come when their client sends them."""
        following = self._first[number]
        while following >= 0:
            heappush(self._due, (max(self.at[following], now + self.delays[following]), following))
            following = self._also[following]


def serve_timed(
    pools: Sequence[Pool],
    options: Overlap,
    requests: Sequence[TraceRequest],
    make: Callable[[int], Request],
    ended: Callable[[int], object],
) -> tuple[TimedResult, float]:
    """Serve all requests; return what they waited for, and the blocks that an engine held, over time.

    `make` gives the request of a number when an engine first looks at it, `ended` is called with how many have ended.
    Requests that wait take some bytes. Complexity: O(blocks) for each request, O(log running requests) for each event,
    and for each request what the router asks of each engine.
    """
    began, routed, clock, way = time.perf_counter(), 0.0, pools[0].clock, pools[0].way
    coming, times = _Coming(requests, options), _Times(len(requests))
    first = clock.now = coming.next_at()
    events, tickets = list[_Event](), count()
    engines = [_Engine(at, pool, options, times, events, tickets) for at, pool in enumerate(pools)]
    routing = Routing(way.router, len(engines), options.event_delay, lambda number: requests[number].token_ids())
    num_ended = 0
    while num_ended < len(requests):
        at = coming.next_at()
        over: list[_Run] = []
        if not events or at < events[0][0]:
            clock.now, number, begin = at, coming.take(), time.perf_counter()
            salt = way.keeping.tenant(number) if way.keeping.tenant else None
            chosen = routing.choose(number, coming.tokens[number], salt, at)
            routed += time.perf_counter() - begin
            engine = engines[chosen]
            engine.pass_time()
            engine.waiting.append((number, at))
        else:
            clock.now, ticket, run, engine = heappop(events)
            if ticket != run.ticket:
                continue
            engine.pass_time()
            over += [run] if engine.end_step(run) else []
        over += engine.admit_all(make, requests)
        routing.told(engine.number, engine.pool.manager.take_events(), clock.now)
        for run in over:
            routing.ended(engine.number, coming.tokens[run.number])
            coming.ended(run.number, clock.now)
            num_ended += 1
            ended(num_ended)
    pools[0].seconds += time.perf_counter() - began - routed
    return _result(engines, options, clock.now - first)


def _result(engines: Sequence[_Engine], options: Overlap, seconds: float) -> tuple[TimedResult, float]:
    times, limits = engines[0].times, (options.ttft, options.latency)
    ttft, latency = (inf if limit is None else limit for limit in limits)
    pairs = zip(times.first_token, times.latency, strict=True)
    good = sum(first <= ttft and whole <= latency and whole < inf for first, whole in pairs)
    timed = TimedResult(
        seconds,
        percentiles(times.queued),
        percentiles(times.first_token),
        sum(each.preemptions for each in engines),
        sum(each.recomputed for each in engines),
        sum(each.ran for each in engines) / seconds if seconds else 0.0,
        sum(each.output_tokens for each in engines),
        percentiles([each for each in times.latency if each < inf]),
        good / seconds if seconds else 0.0,
    )
    return timed, sum(each.held for each in engines) / len(engines) / seconds if seconds else 0.0

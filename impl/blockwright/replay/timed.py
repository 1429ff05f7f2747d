"""Serve a trace with requests that overlap: each arrives, waits for room, computes its prompt, decodes and ends.

An engine goes on in steps, as vLLM's scheduler does. A step computes at most `max_num_batched_tokens` tokens: one of
each request that decodes and its drafts; parts of the prompts that were begun; then those that wait, in the order of
arrival, while fewer than `concurrency` run, nobody was preempted in this step, and the pool has room for the whole
prompt. Where a running request finds no block, the one admitted last gives up its own, and then waits first.

A request arrives at its time, or where a client waits for the answer before it, once that has come. A router then sends
it to one of the engines, which share one clock. Requests that decode are looked at where they fill or need a block or
end: between two of those, a step costs the same for one request as for a thousand.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.replay.engine import Engine, Run, Times
from blockwright.replay.pools import Pool, TimedResult, percentiles
from blockwright.replay.records import Head, TraceRequest, heads_of
from blockwright.replay.routers import Routing
from blockwright.replay.step_time import Linear, StepTime

_STEP_TIME: Final = Linear(base=0.02, tokens=1e-4)
_MOST_FRESH: Final = 1024


@dataclass(frozen=True, slots=True)
class Overlap:
    """Say how requests overlap.

    Attributes:
        concurrency: requests that run at the same time at most, on each engine.
        step_time: how long a step takes; by default 20 ms, and 0.1 ms more for each token.
        arrivals: requests per second, in even distances; 0: all arrive at once; None: the times of the trace. Those
            that wait for an answer do so in any case.
        output_tokens: tokens of each answer; None: those of the trace.
        ttft, latency: seconds from arrival to first token, and to the end, within which a request counts as goodput.
        event_delay: seconds until a router knows what an engine has cached or evicted.
        transfer: seconds that a token takes from an engine of prompts to the one that decodes.
        max_num_batched_tokens: tokens of a step at most.
        drafts, acceptance: tokens that are drafted for each request and step, and how likely one is accepted if those
            before it are.
        fails: of an engine that fails its number, how many seconds after the first arrival, and for how many; -1 is the
            router, which then knows of no engine what it has cached, until they send it a snapshot of that.

    Raises:
        InvalidArgumentError: a value out of range, or fewer tokens in a step than all requests may decode.
    """

    concurrency: int
    step_time: StepTime = _STEP_TIME
    arrivals: float | None = None
    output_tokens: int | None = None
    ttft: float | None = None
    latency: float | None = None
    event_delay: float = 0.0
    transfer: float = 0.0
    max_num_batched_tokens: int = 8192
    drafts: int = 0
    acceptance: float = 0.7
    fails: tuple[tuple[int, float, float], ...] = ()

    def __post_init__(self) -> None:
        least = {"concurrency": 1, "max_num_batched_tokens": 1}
        for name in set(self.__slots__) - {"step_time", "fails"}:
            value, bound = getattr(self, name), least.get(name, 0)
            if value is not None and not bound <= value < inf:
                raise InvalidArgumentError(f"{name}: must be at least {bound} and finite, not {value}")
        for which, after, seconds in self.fails:
            if which < -1 or not 0 <= after < inf or not seconds > 0:
                raise InvalidArgumentError(f"fails: {which} cannot fail after {after} s for {seconds} s")
        if self.acceptance > 1:
            raise InvalidArgumentError(f"acceptance: must be from 0 to 1, not {self.acceptance}")
        if (least_tokens := self.concurrency * (1 + self.drafts)) > self.max_num_batched_tokens:
            raise InvalidArgumentError(
                f"max_num_batched_tokens: must be at least {least_tokens:,}: one of each request"
            )

    def answer(self, recorded: TraceRequest) -> int:
        return recorded.num_output_tokens if self.output_tokens is None else self.output_tokens

    def arrival(self, recorded: Head | TraceRequest, number: int) -> float:
        """Return when a request arrives that waits for no answer, in seconds; `number` is of these."""
        return recorded.arrival if self.arrivals is None else number / self.arrivals if self.arrivals else 0.0


class _Coming:
    """The requests that have not arrived: at which time, or after whose answer they do. Some bytes for each."""

    def __init__(self, requests: Sequence[TraceRequest], options: Overlap) -> None:
        self.at, self.delays, self.tokens = array("d"), array("d"), array("i")
        self._first, self._also = array("i"), array("i")  # a list, of each request, of those that wait for its answer
        heads = array("i")
        for number, each in enumerate(heads_of(requests)):
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
        # Only the first of the heads is in the heap, so that it stays small for long traces.
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
    make: Callable[[int, TraceRequest], Request],
    ended: Callable[[int], object],
    skip: int = 0,
) -> tuple[TimedResult, float]:
    """Serve all requests; return what they waited for, and the blocks that an engine held, over time.

    `make` gives the request of a number when an engine first looks at it, `ended` is called with how many have ended.
    Requests that wait take some bytes. Complexity: O(blocks) for each request, O(parts of prompts) for each step with
    some, O(1) for another one, and for each request what the router asks of each engine.
    """
    began, routed, clock, way = time.perf_counter(), 0.0, pools[0].clock, pools[0].way
    coming, times = _Coming(requests, options), Times(len(requests))
    first = clock.now = coming.next_at()

    fresh: dict[int, tuple[Request, TraceRequest]] = {}  # that a router has hashed, until an engine looks at them

    def made(number: int) -> tuple[Request, TraceRequest]:
        recorded = requests[number]
        return make(number, recorded), recorded

    def hashed(number: int) -> Request:
        both = made(number)
        # Long queues would hold many prompts: those are made again.
        if len(fresh) < _MOST_FRESH:
            fresh[number] = both
        return both[0]

    def begun(number: int, arrival: float) -> Run:
        request, recorded = fresh.pop(number) if number in fresh else made(number)
        return Run(request, number, arrival, recorded, options.answer(recorded))

    decode = way.engines - way.prefill
    engines = [Engine(at, pool, options, times, begun, at >= decode) for at, pool in enumerate(pools)]
    known = (options.event_delay, hashed, pools[0].block_size, pools[0].is_plain)
    # Prompts alone are computed by the last engines, whose router is then the one that was asked for.
    back = Routing("load" if way.prefill else way.router, decode, *known)
    front = Routing(way.router, way.prefill, *known) if way.prefill else back
    sent: dict[int, tuple[Routing, int]] = {}  # which router has sent a request, and to which engine

    def of(which: int) -> tuple[Routing, int]:
        return (back, which) if which < decode else (front, which - decode)

    changes = [(first + after, which, True) for which, after, _ in options.fails]
    changes += [(first + after + seconds, which, False) for which, after, seconds in options.fails if seconds < inf]
    changes.sort(reverse=True)
    if (last := max((which for which, *_ in options.fails), default=0)) >= len(engines):
        raise InvalidArgumentError(f"fails: there is no engine {last}; they are numbered from 0 on")
    events, current = list[tuple[float, int, int]](), [-1] * len(engines)  # the last event of each engine is valid
    late = [inf] * len(engines)  # when a router is to hear what an engine does in the steps under way
    # An event that was planned and does not come stays in the heap; its number is no longer current.
    tickets: Iterator[int] = count()
    num_ended, counted = 0, inf

    def wake(engine: Engine, at: float) -> None:
        current[engine.number] = next(tickets)
        if front.is_told:
            late[engine.number] = engine.late_at()
        heappush(events, (at, current[engine.number], engine.number))

    def send(number: int, at: float, entry: Run | tuple[int, float], router: Routing) -> Engine:
        nonlocal routed
        while (due := min(late)) <= at:
            engine = engines[late.index(due)]
            engine.catch_up(at)
            told(engine, at)
            late[engine.number] = engine.late_at()
        begin = time.perf_counter()
        chosen = router.choose(number, coming.tokens[number], at)
        engine, sent[number] = engines[chosen + (decode if router is not back else 0)], (router, chosen)
        routed += time.perf_counter() - begin
        engine.waiting.append(entry)
        if current[engine.number] < 0 or not engine.ends:
            wake(engine, at)
        elif engine.interrupt(at):
            wake(engine, engine.ends[-1])
        return engine

    def left(number: int) -> None:
        router, which = sent.pop(number)
        router.ended(which, coming.tokens[number])

    def told(engine: Engine, at: float) -> None:
        router, which = of(engine.number)
        if router.is_told:
            router.told(which, engine.pool.manager.take_events(), at)
        for source in engine.freed:
            if current[source.number] < 0 and source.waiting:
                wake(source, at)
        engine.freed.clear()

    def fail(which: int, now: float) -> None:
        current[which] = -1
        lost = engines[which].fail()
        for each in engines:
            told(each, now)
        for entry in lost:
            number = entry.number if isinstance(entry, Run) else entry[0]
            left(number)
            send(number, now, entry, front)

    while num_ended < len(requests):
        arrives = coming.next_at()
        clock.now = at = arrives if not events or arrives < events[0][0] else events[0][0]
        if changes and changes[-1][0] <= at:
            clock.now, which, is_down = changes.pop()
            router, local = of(which) if which >= 0 else (front, which)
            if which < 0 and is_down:
                router.restart(is_restored=any(each < 0 and not again for _, each, again in changes))
            elif which < 0:
                router.restore()
            elif is_down:
                router.down.add(local)
                fail(which, clock.now)
            else:
                router.down.discard(local)
            continue
        if arrives == at:
            number = coming.take()
            counted = min(counted, at) if number >= skip else counted
            send(number, at, (number, at), front)
            continue
        _, ticket, which = heappop(events)
        if ticket != current[which]:
            continue
        engine, current[which] = engines[which], -1
        # Those that arrive as a step ends, answers that ended with it included, are there when the next one begins.
        if engine.ends:
            over = engine.finish()
            wake(engine, clock.now)
        else:
            engine.begin()
            over, engine.over = engine.over, []
            if engine.ends:
                wake(engine, engine.ends[-1])
            elif engine.waiting and over:
                wake(engine, clock.now)
            elif engine.coming:
                wake(engine, max(clock.now, engine.coming[0][0]))
        told(engine, clock.now)
        for run in engine.handed:
            left(run.number)
            run.goal = send(run.number, clock.now, run, back)
        engine.handed.clear()
        for run in over:
            left(run.number)
            coming.ended(run.number, clock.now)
            num_ended += 1
            ended(num_ended)
    pools[0].seconds += time.perf_counter() - began - routed
    return _result(engines, options, clock.now - first, clock.now - counted, skip)


def _result(
    engines: Sequence[Engine], options: Overlap, seconds: float, counted: float, skip: int
) -> tuple[TimedResult, float]:
    times, limits = engines[0].times, (options.ttft, options.latency)
    ttft, latency = (inf if limit is None else limit for limit in limits)
    first_token, latencies = times.first_token[skip:], times.latency[skip:]
    pairs = zip(first_token, latencies, strict=True)
    # A request that never ended (inf) keeps no limit, not even where none is set.
    good = sum(first <= ttft and whole <= latency and whole < inf for first, whole in pairs)
    timed = TimedResult(
        seconds,
        percentiles(times.queued[skip:]),
        percentiles(first_token),
        sum(each.preemptions for each in engines),
        sum(each.recomputed for each in engines),
        sum(each.ran for each in engines) / seconds if seconds else 0.0,
        sum(each.output_tokens for each in engines),
        percentiles([each for each in latencies if each < inf]),
        good / counted if counted else 0.0,
        percentiles([each for each in times.per_token[skip:] if each < inf]),
    )
    return timed, sum(each.held for each in engines) / len(engines) / seconds if seconds else 0.0

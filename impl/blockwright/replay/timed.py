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
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Final

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.replay.pools import Pool, TimedResult, percentiles
from blockwright.replay.records import TraceRequest
from blockwright.replay.routers import Routing
from blockwright.replay.step_time import Linear, Step, StepTime

_STEP_TIME: Final = Linear(base=0.02, tokens=1e-4)
_MOST_STEPS: Final = 1024  # of decoding alone that are planned at once


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
        max_num_batched_tokens: tokens of a step at most.
        drafts, acceptance: tokens that are drafted for each request and step, and how likely one is accepted if those
            before it are.
        fails: of an engine that fails its number, how many seconds after the first arrival, and for how many; -1 is the
            router, which then forgets what engines have cached.

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

    def arrival(self, recorded: TraceRequest, number: int) -> float:
        """Return when a request arrives that waits for no answer, in seconds; `number` is of these."""
        return recorded.arrival if self.arrivals is None else number / self.arrivals if self.arrivals else 0.0


class _Times:  # of all requests, by number, whichever engine serves them
    def __init__(self, num_requests: int) -> None:
        self.queued, self.first_token = array("d", bytes(8 * num_requests)), array("d", bytes(8 * num_requests))
        self.latency, self.per_token = array("d", [inf]) * num_requests, array("d", [inf]) * num_requests


class _Run:
    """A request that an engine has looked at: waiting, running, or preempted."""

    def __init__(self, request: Request, number: int, arrival: float, recorded: TraceRequest, answer: int) -> None:
        self.request, self.number, self.arrival = request, number, arrival
        self.final = recorded.num_tokens + max(0, answer - 1)
        self.answer = recorded.answer if recorded.answer >= 0 else (1 << 31) - 1 - number
        self.answer_ids = recorded.answer_ids
        self.num_hit = self.target = (
            0  # `target`: tokens that are computed at the end of its prompt's step, or were when it was preempted
        )
        self.order = -1  # among those that were admitted, or -1 while it does not run
        self.since, self.base = -1, 0  # the step before which it had so many tokens, and decoded; -1: it does not yet
        self.path: list[int] = []  # with drafts, its tokens after each step from then on
        self.is_resumed = False

    def at(self, step: int) -> int:
        """Return how many of its tokens are computed when a step begins."""
        if self.since < 0:
            return self.request.num_computed_tokens
        gone = step - self.since
        return self.path[gone - 1] if self.path and gone else self.base + gone

    def answered(self, count: int) -> None:
        if count > 0:
            begin = self.request.num_output_tokens
            known = self.answer_ids[begin : begin + count]
            self.request.append_output_token_ids(known + array("i", (self.answer,)) * (count - len(known)))


class _Engine:
    def __init__(
        self, number: int, pool: Pool, options: Overlap, times: _Times, make: Callable[[int, float], _Run]
    ) -> None:
        self.number, self.pool, self.options, self.times, self.make = number, pool, options, times, make
        self.draw, self.orders = Random(number), count()
        self.running: dict[int, _Run] = {}  # in the order of admission
        self.prompts: dict[int, _Run] = {}  # those that compute their prompts
        self.parts: list[tuple[_Run, int]] = []  # in the step under way, from which token on
        self.due: list[_Run] = []  # that decode, and need a block
        self.agenda: list[tuple[int, int, _Run]] = []  # before which step one that decodes needs a block, or ends
        self.gains: defaultdict[int, int] = defaultdict(int)  # drafts that are accepted in a step
        self.step = self.decoding = self.context = self.loaded = 0  # `context`: tokens of those that decode
        self.began, self.ends = 0.0, list[float]()  # of the steps that are under way, one after the other
        self.over: list[_Run] = []  # that have ended, and nobody knows yet
        self.refused_at = -1  # free blocks when nobody could be admitted: it takes more
        self.waiting = deque[_Run | tuple[int, float]]()  # those that were preempted, then numbers with their arrivals
        self.preemptions = self.recomputed = self.output_tokens = 0
        self.held = self.ran = 0.0  # blocks and requests, times seconds

    def is_open(self) -> bool:
        # What was refused is asked again once more blocks are free: a lookup for each step would cost more.
        room = self.refused_at < 0 or self.pool.num_free() > self.refused_at
        return len(self.running) < self.options.concurrency and room

    def begin(self) -> None:
        """Begin the next step, if there is something to compute; with nobody to admit, those of decoding alone, too."""
        pool, preemptions, each = self.pool, self.preemptions, 1 + self.options.drafts
        left = self.options.max_num_batched_tokens
        self.parts, self.loaded = [], 0
        for run in sorted([*self.due, *self.prompts.values()], key=lambda run: run.order):
            if run.order < 0:
                continue  # one before it took its blocks
            begin = self.settle(run) if self.options.drafts else self.known(run)
            if run.since >= 0:
                if self.extend(run, begin + 1):
                    pool.compute(run.request, begin + 1)
                    self.plan(run, begin)
            elif (room := left - each * self.decoding) > 0:
                run.target = pool.step_end(begin, run.request, room)
                if self.extend(run, run.target):
                    self.parts.append((run, begin))
                    left -= run.target - begin
        self.due.clear()
        while self.waiting and self.preemptions == preemptions and self.is_open():
            room = left - each * self.decoding
            if room <= 0 or not self.admit(room):
                break
            if self.parts:
                left -= self.parts[-1][0].target - self.parts[-1][1]
        if self.decoding or self.parts:
            self.schedule(is_settled=not self.parts and self.preemptions == preemptions)

    def schedule(self, is_settled: bool) -> None:
        now, decoding, each, context = self.pool.clock.now, self.decoding, 1 + self.options.drafts, self.context
        # Decoding alone, of all requests at once: no step looks at single ones.
        plain = Step(
            decoding * each, decoding, context + decoding * each, each * context + decoding * each * (each + 1) // 2
        )
        ends = ((run.target, begin) for run, begin in self.parts)
        parts = [Step(end - begin, 1, end, (end - begin) * (end + begin + 1) // 2) for end, begin in ends]
        step = Step(*map(sum, zip(plain, *parts, strict=True)))._replace(loaded=self.loaded)
        self.began, self.ends = now, [now + self.seconds(step)]
        if is_settled:
            tokens, decoding, context, pairs, _ = plain
            # Until the next request needs a block or ends, each step follows from the one before.
            for at in range(self.step + 1, min(self.agenda[0][0], self.step + _MOST_STEPS)):
                gain = decoding + self.gains.get(at - 1, 0)
                context, pairs = context + gain, pairs + each * gain
                self.ends.append(self.ends[-1] + self.seconds(Step(tokens, decoding, context, pairs)))

    def seconds(self, step: Step) -> float:
        found = self.options.step_time(step)
        if not 0 < found < inf:
            raise InvalidArgumentError(f"step_time: must return seconds above 0, not {found!r} for {step}")
        return found

    def admit(self, room: int) -> bool:
        """Start the request that waits first, if the pool has room; one that it could not hold alone ends."""
        head = self.waiting[0]
        if not isinstance(head, _Run):
            self.waiting[0] = head = self.make(*head)
        run, pool, now = head, self.pool, self.pool.clock.now
        num_hit, num_external, end = pool.admit(run.request, room)
        # Others hold what it needs: it stays first, and nobody overtakes it.
        if end == 0 and self.running:
            pool.release(run.request)
            self.refused_at = pool.num_free()
            return False
        self.waiting.popleft()
        if run.is_resumed:
            self.recomputed += run.target - min(num_hit, run.target)
        else:
            self.times.queued[run.number] = self.times.first_token[run.number] = now - run.arrival
            pool.count(run.request, run.number, num_hit if end else 0, num_external if end else 0)
            run.num_hit = num_hit
        if end == 0:
            pool.finish(run.request, 0, False)
            self.over.append(run)
            return True
        run.request.num_computed_tokens = max(num_hit, run.request.num_computed_tokens)
        run.order, run.since, run.target = next(self.orders), -1, end
        self.running[run.number] = self.prompts[run.number] = run
        self.parts.append((run, num_hit))
        self.loaded += num_external
        return True

    def interrupt(self, at: float) -> bool:
        """End the steps that were planned with the one under way at that time; return whether others were left out."""
        # The step under way ends as planned; those behind it may now have a newcomer.
        keep = bisect_left(self.ends, at) + 1
        if keep >= len(self.ends) or not self.is_open():
            return False
        del self.ends[keep:]
        return True

    def finish(self) -> list[_Run]:
        """End the steps that are under way; return the requests that have ended."""
        pool, steps, seconds = self.pool, len(self.ends), self.pool.clock.now - self.began
        if steps:
            used = pool.used()
            self.held += used * seconds
            self.ran += len(self.running) * seconds
            pool.peak_used = max(pool.peak_used, used)
        for at in range(self.step, self.step + steps) if self.options.drafts else ():
            self.context += self.gains.pop(at, 0)
        self.context += self.decoding * steps
        self.step += steps
        self.ends = []
        for run, _ in self.parts:
            request, self.refused_at = run.request, -1
            pool.compute(request, run.target)
            if run.target < request.num_tokens:
                continue
            del self.prompts[run.number]
            if not request.num_output_tokens:
                self.times.first_token[run.number] = pool.clock.now - run.arrival
            self.decoding += 1
            self.context += run.target
            self.plan(run, run.target)
        self.parts = []
        while self.agenda and self.agenda[0][0] <= self.step:
            _, order, run = heappop(self.agenda)
            if order != run.order:
                continue  # it was preempted since
            if run.at(self.step) >= run.final:
                self.end(run)
            else:
                self.due.append(run)
        over, self.over = self.over, []
        return over

    def plan(self, run: _Run, begin: int) -> None:
        """Put on the agenda before which step a request that has so many tokens fills or needs a block, or ends."""
        size, drafts, has_slots = self.pool.block_size, self.options.drafts, int(run.since >= 0)
        # The step that fills a block publishes it, and the next one takes another.
        next_at = begin + has_slots
        wait = size - 1 - next_at % size if 0 < next_at % size < size - 1 else 0
        run.since, run.base, steps = self.step, begin, min(next_at + wait, run.final) - begin
        if drafts:
            run.path, at, slots = [], begin, -(-(begin + has_slots * (1 + drafts)) // size) * size
            while at + 1 + drafts <= slots and at < run.final and (at + 1) // size == next_at // size:
                gain = 0
                while gain < min(drafts, run.final - at - 1) and self.draw.random() < self.options.acceptance:
                    gain += 1
                self.gains[self.step + len(run.path)] += gain
                at += 1 + gain
                run.path.append(at)
            steps = len(run.path)
        heappush(self.agenda, (self.step + steps, run.order, run))

    def known(self, run: _Run) -> int:
        """Add to a request what it has decoded, and return its tokens that are computed."""
        done = run.at(self.step)
        if run.since >= 0:
            run.answered(done + 1 - run.request.num_tokens)
        return done

    def settle(self, run: _Run) -> int:
        """Tell the manager what a request has decoded, and return its tokens. Its slots were given for all of them."""
        request, done = run.request, self.known(run)
        if done > request.num_computed_tokens and self.pool.extend(request, done):
            self.pool.compute(request, done)
        return done

    def extend(self, run: _Run, target: int) -> bool:
        """Give a request slots, of those admitted last if need be; return False if it does not run any more.

        It is then preempted, or has ended: alone in the pool, it found no room.
        """
        while not self.pool.extend(run.request, target, self.options.drafts if run.since >= 0 else 0):
            # As in vLLM, the newest gives way: the oldest have the most to lose.
            last = self.running[next(reversed(self.running))]
            if len(self.running) == 1:
                self.leave(run)
                self.pool.finish(run.request, run.num_hit, False)
                self.over.append(run)
                return False
            self.preempt(last)
            if last is run:
                return False
        return True

    def preempt(self, run: _Run) -> None:
        """Take a request's blocks; what it has decoded by now stays known."""
        # Before its blocks go: what it has published stays found, and may be its own hit later.
        run.target = self.settle(run)
        run.is_resumed = True
        self.leave(run)
        self.pool.release(run.request, preempted=True)
        self.waiting.appendleft(run)
        self.preemptions += 1

    def fail(self) -> list[_Run | tuple[int, float]]:
        """Lose all requests and all that is cached; return those that must begin anew elsewhere."""
        lost = [*self.running.values(), *self.waiting]
        self.step += bisect_right(self.ends, self.pool.clock.now)
        for each in lost:
            if isinstance(each, _Run):
                if each.order >= 0:
                    each.target, each.is_resumed = self.known(each), True
                    self.leave(each)
                    self.pool.release(each.request)
                each.request = self.make(each.number, each.arrival).request
        self.pool.manager.reset_prefix_cache()
        self.waiting, self.gains = deque(), defaultdict(int)
        self.parts, self.ends, self.agenda, self.due, self.refused_at, self.context = [], [], [], [], -1, 0
        return lost

    def end(self, run: _Run) -> None:
        self.settle(run)
        answer, now = run.final + 1 - run.request.num_prompt_tokens, self.pool.clock.now
        self.output_tokens += answer
        self.times.latency[run.number] = now - run.arrival
        # A single token has none before it, and so no time between two.
        if answer > 1:
            took = self.times.latency[run.number] - self.times.first_token[run.number]
            self.times.per_token[run.number] = took / (answer - 1)
        self.leave(run)
        self.pool.finish(run.request, run.num_hit, True)
        self.over.append(run)

    def leave(self, run: _Run) -> None:
        del self.running[run.number]
        self.refused_at = run.order = -1
        if run.since < 0:
            del self.prompts[run.number]
            return
        self.decoding -= 1
        self.context -= run.at(self.step)
        # Steps that were planned with its accepted drafts go on without it.
        for at in range(self.step - run.since, len(run.path)):
            before = run.path[at - 1] if at else run.base
            self.gains[run.since + at] -= run.path[at] - before - 1


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
    make: Callable[[int], Request],
    ended: Callable[[int], object],
    skip: int = 0,
) -> tuple[TimedResult, float]:
    """Serve all requests; return what they waited for, and the blocks that an engine held, over time.

    `make` gives the request of a number when an engine first looks at it, `ended` is called with how many have ended.
    Requests that wait take some bytes. Complexity: O(blocks) for each request, O(parts of prompts) for each step with
    some, O(1) for another one, and for each request what the router asks of each engine.
    """
    began, routed, clock, way = time.perf_counter(), 0.0, pools[0].clock, pools[0].way
    coming, times = _Coming(requests, options), _Times(len(requests))
    first = clock.now = coming.next_at()

    def begun(number: int, arrival: float) -> _Run:
        recorded = requests[number]
        return _Run(make(number), number, arrival, recorded, options.answer(recorded))

    engines = [_Engine(at, pool, options, times, begun) for at, pool in enumerate(pools)]
    routing = Routing(way.router, len(engines), options.event_delay, make, pools[0].block_size, pools[0].is_plain)
    changes = [(first + after, which, True) for which, after, _ in options.fails]
    changes += [(first + after + seconds, which, False) for which, after, seconds in options.fails if which >= 0]
    changes.sort(reverse=True)
    if (last := max((which for which, *_ in options.fails), default=0)) >= len(engines):
        raise InvalidArgumentError(f"fails: there is no engine {last}; they are numbered from 0 on")
    events, current = list[tuple[float, int, int]](), [-1] * len(engines)  # the last event of each engine is valid
    # An event that was planned and does not come stays in the heap; its number is no longer current.
    tickets: Iterator[int] = count()
    num_ended, counted = 0, inf

    def wake(engine: _Engine, at: float) -> None:
        current[engine.number] = next(tickets)
        heappush(events, (at, current[engine.number], engine.number))

    def send(number: int, at: float, entry: _Run | tuple[int, float]) -> None:
        nonlocal routed
        begin = time.perf_counter()
        salt = way.keeping.tenant(number) if way.keeping.tenant else None
        engine = engines[routing.choose(number, coming.tokens[number], salt, at)]
        routed += time.perf_counter() - begin
        engine.waiting.append(entry)
        if current[engine.number] < 0:
            wake(engine, at)
        elif engine.interrupt(at):
            wake(engine, engine.ends[-1])

    def fail(which: int, now: float) -> None:
        current[which] = -1
        lost = engines[which].fail()
        routing.told(which, engines[which].pool.manager.take_events(), now)
        for entry in lost:
            number = entry.number if isinstance(entry, _Run) else entry[0]
            routing.ended(which, coming.tokens[number])
            send(number, now, entry)

    while num_ended < len(requests):
        clock.now = at = min(coming.next_at(), events[0][0] if events else inf)
        if changes and changes[-1][0] <= at:
            clock.now, which, is_down = changes.pop()
            if which < 0:
                routing.restart()
            elif is_down:
                routing.down.add(which)
                fail(which, clock.now)
            else:
                routing.down.discard(which)
            continue
        if coming.next_at() == at:
            number = coming.take()
            counted = min(counted, at) if number >= skip else counted
            send(number, at, (number, at))
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
        routing.told(which, engine.pool.manager.take_events(), clock.now)
        for run in over:
            routing.ended(which, coming.tokens[run.number])
            coming.ended(run.number, clock.now)
            num_ended += 1
            ended(num_ended)
    pools[0].seconds += time.perf_counter() - began - routed
    return _result(engines, options, clock.now - first, clock.now - counted, skip)


def _result(
    engines: Sequence[_Engine], options: Overlap, seconds: float, counted: float, skip: int
) -> tuple[TimedResult, float]:
    times, limits = engines[0].times, (options.ttft, options.latency)
    ttft, latency = (inf if limit is None else limit for limit in limits)
    first_token, latencies = times.first_token[skip:], times.latency[skip:]
    pairs = zip(first_token, latencies, strict=True)
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

"""An engine of a replay: its steps, and the requests that wait, run, hand over their prompts, or receive them.

An engine of prompts alone computes a request's prompt and its first token, and then holds the blocks until another one
has them. That one gives the request all its blocks before they come, decodes once they have, and computes anew what a
preemption takes from it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import accumulate, count, repeat
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from blockwright import Request
from blockwright.errors import InvalidArgumentError
from blockwright.replay.pools import Pool
from blockwright.replay.records import TraceRequest
from blockwright.replay.step_time import Linear, Step

if TYPE_CHECKING:
    from blockwright.replay.timed import Overlap

_MOST_STEPS: Final = 1024  # of decoding alone that are planned at once


class Times:
    """The times of all requests, by number, whichever engine serves them."""

    def __init__(self, num_requests: int) -> None:
        self.queued, self.first_token = array("d", bytes(8 * num_requests)), array("d", bytes(8 * num_requests))
        self.latency, self.per_token = array("d", [inf]) * num_requests, array("d", [inf]) * num_requests


class Run:
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
        self.source: tuple[Engine, Request] | None = None  # what holds its prompt until that has come from there
        self.goal: Engine | None = None  # where it is to come
        self.loading = 0  # tokens that come

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


class Engine:
    """One engine behind the router: `begin` plans its steps, `finish` ends them."""

    def __init__(
        self,
        number: int,
        pool: Pool,
        options: Overlap,
        times: Times,
        make: Callable[[int, float], Run],
        hands_over: bool = False,
    ) -> None:
        self.number, self.pool, self.options, self.times, self.make = number, pool, options, times, make
        self.draw, self.orders, self.hands_over = Random(number), count(), hands_over
        self.running: dict[int, Run] = {}  # in the order of admission
        self.prompts: dict[int, Run] = {}  # those that compute their prompts
        self.parts: list[tuple[Run, int]] = []  # in the step under way, from which token on
        self.kept: dict[int, Run] = {}  # those whose prompt is here until another engine has it
        self.handed: list[Run] = []  # those of them that nobody knows yet
        self.coming: list[tuple[float, int, Run]] = []  # at which time, and number, a prompt or its hit has come
        self.freed: list[Engine] = []  # engines whose blocks were let go of since
        self.due: list[Run] = []  # that decode, and need a block
        self.agenda: list[tuple[int, int, Run]] = []  # before which step one that decodes needs a block, or ends
        self.is_late = pool.may_wait and not options.drafts  # requests that decode are given blocks once it matters
        self.lasts: list[tuple[int, int, Run]] = []  # then: before which step one that decodes ends
        self.late = 0.0  # blocks times seconds of the steps under way in which those were not yet held
        self.gains: defaultdict[int, int] = defaultdict(int)  # drafts that are accepted in a step
        self.step = self.decoding = self.context = self.loaded = 0  # `context`: tokens of those that decode
        self.began, self.ends = 0.0, list[float]()  # of the steps that are under way, one after the other
        self.over: list[Run] = []  # that have ended, and nobody knows yet
        self.refused_at = -1  # free blocks when nobody could be admitted: it takes more
        self.waiting = deque[Run | tuple[int, float]]()  # those that were preempted, then numbers with their arrivals
        self.preemptions = self.recomputed = self.output_tokens = 0
        self.held = self.ran = 0.0  # blocks and requests, times seconds

    def is_open(self) -> bool:
        # What was refused is asked again once more blocks are free: a lookup for each step would cost more.
        room = self.refused_at < 0 or self.pool.num_free() > self.refused_at
        return len(self.running) + len(self.coming) < self.options.concurrency and room

    def is_alone(self) -> bool:
        """Return whether no more than one request holds blocks, so that nobody will let go of any."""
        return len(self.running) + len(self.coming) + len(self.kept) <= 1

    def begin(self) -> None:
        """Begin the next step, if there is something to compute; with nobody to admit, those of decoding alone, too."""
        pool, preemptions, each = self.pool, self.preemptions, 1 + self.options.drafts
        left = self.options.max_num_batched_tokens
        self.parts, self.loaded = [], 0
        self.receive()
        for run in sorted([*self.due, *self.prompts.values()], key=lambda run: run.order):
            if run.order < 0:
                continue  # one before it took its blocks
            begin = self.settle(run) if self.options.drafts else self.known(run)
            if run.since >= 0:
                if self.extend(run, begin + 1):
                    pool.compute(run.request, begin + 1)
                    self.plan(run, begin, self.step)
            elif (room := left - each * self.decoding) > 0:
                run.target = pool.step_end(begin, run.request, room)
                if self.extend(run, run.target):
                    self.parts.append((run, begin))
                    left -= run.target - begin
        self.due.clear()
        # After a preemption nobody is admitted: the newcomer would take the blocks that were given up.
        while self.waiting and self.preemptions == preemptions and self.is_open():
            room, before = left - each * self.decoding, len(self.parts)
            if room <= 0 or not self.admit(room):
                break
            left -= sum(run.target - begin for run, begin in self.parts[before:])
        if self.decoding or self.parts:
            self.schedule(is_settled=not self.parts and self.preemptions == preemptions)

    def schedule(self, is_settled: bool) -> None:
        self.began, decoding, each, context = self.pool.clock.now, self.decoding, 1 + self.options.drafts, self.context
        # Decoding alone, of all requests at once: no step looks at single ones.
        tokens, requests, pairs = decoding * each, decoding, each * context + decoding * each * (each + 1) // 2
        context += tokens
        for run, begin in self.parts:
            end = run.target
            tokens, requests, context = tokens + end - begin, requests + 1, context + end
            pairs += (end - begin) * (end + begin + 1) // 2
        seconds = self.seconds(Step(tokens, requests, context, pairs, self.loaded))
        self.ends = [self.began + seconds]
        self.late = 0.0
        if not is_settled:
            return
        # Until the next request needs a block or ends, each step follows from the one before.
        stop = min(self.horizon(), self.step + _MOST_STEPS) - 1
        gains: Iterable[int] = repeat(decoding, stop - self.step)
        if self.gains:
            gains = [decoding + self.gains.get(at, 0) for at in range(self.step, stop)]
        rule, until = self.options.step_time, self.coming[0][0] if self.coming else inf
        if isinstance(rule, Linear) and not self.loaded:
            slope = rule.context + each * rule.pairs
            following = map(seconds.__add__, map(slope.__mul__, accumulate(gains)))
            self.ends = [*accumulate(following, initial=self.ends[0])]
            del self.ends[bisect_left(self.ends, until) + 1 :]
            return
        for gain in gains:
            if until <= self.ends[-1]:
                break
            context, pairs = context + gain, pairs + each * gain
            self.ends.append(self.ends[-1] + self.seconds(Step(tokens, requests, context, pairs)))

    def horizon(self) -> int:
        """Return before which step a request ends, or needs a block that there may not be."""
        needs = self.agenda[0][0]
        if not self.is_late:
            return needs
        while self.lasts[0][1] != self.lasts[0][2].order:
            heappop(self.lasts)  # it was preempted since
        enough = self.step + self.pool.num_free() // self.decoding * self.pool.block_size
        return min(self.lasts[0][0], max(needs, enough))

    def late_at(self) -> float:
        """Return when, in the steps under way, a request needs a block that it is given later."""
        at = self.agenda[0][0] - self.step if self.agenda else 0
        return self.ends[at - 1] if 0 < at < len(self.ends) else inf

    def catch_up(self, now: float) -> None:
        """Give requests the blocks that they needed in the steps that have begun, and report their decoded tokens."""
        size, last = self.pool.block_size, min(bisect_right(self.ends, now), len(self.ends) - 1)
        while self.agenda and self.agenda[0][0] <= self.step + last:
            step, order, run = heappop(self.agenda)
            if order != run.order:
                continue
            first, begin = step - self.step - run.at(step) % -size, run.at(self.step + last)
            self.late += sum(self.ends[at - 1] - self.began for at in range(first, last + 1, size) if at)
            run.answered(begin + 1 - run.request.num_tokens)
            if self.extend(run, begin + 1):
                self.pool.compute(run.request, begin + 1)
                self.plan(run, begin, self.step + last)

    def seconds(self, step: Step) -> float:
        found = self.options.step_time(step)
        try:
            if 0 < found < inf:
                return found
        except TypeError:
            pass  # it is no number at all
        raise InvalidArgumentError(f"step_time: must return seconds above 0, not {found!r} for {step}")

    def admit(self, room: int) -> bool:
        """Start the request that waits first, if the pool has room; one that it could not hold alone ends."""
        head = self.waiting[0]
        if not isinstance(head, Run):
            self.waiting[0] = head = self.make(*head)
        if head.source is not None:
            return self.expect(head)
        run, pool, now = head, self.pool, self.pool.clock.now
        num_hit, num_external, end = pool.admit(run.request, room)
        # Others hold what it needs: it stays first, and nobody overtakes it.
        if end == 0 and (self.running or self.coming or self.kept):
            return self.refuse(run)
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
        if end == num_hit and pool.host:  # a part of its hit is to come from a disk or a store
            run.loading, run.is_resumed, run.target = num_external, True, 0
            heappush(self.coming, (pool.host.ready_at, run.number, run))
            return True
        run.order, run.since, run.target = next(self.orders), -1, end
        self.running[run.number] = self.prompts[run.number] = run
        self.parts.append((run, num_hit))
        self.loaded += num_external
        return True

    def refuse(self, run: Run) -> bool:
        self.pool.release(run.request)
        self.refused_at = self.pool.num_free()
        return False

    def expect(self, run: Run) -> bool:
        """Give a request whose prompt comes from another engine its blocks, if there is room for all of it."""
        run.request = self.make(run.number, run.arrival).request
        run.answered(1)
        run.loading = self.pool.expect(run.request)
        if run.loading == 0 and (self.running or self.coming):
            return self.refuse(run)
        self.waiting.popleft()
        if run.loading:
            heappush(self.coming, (self.pool.clock.now + run.loading * self.options.transfer, run.number, run))
        else:
            self.let_go(run)
            self.pool.finish(run.request, 0, False)
            self.over.append(run)
        return True

    def receive(self) -> None:
        """Let requests go on whose hits have come from tiers, or whose prompts from other engines; these decode."""
        while self.coming and self.coming[0][0] <= self.pool.clock.now:
            _, _, run = heappop(self.coming)
            run.order, run.since = next(self.orders), -1
            self.running[run.number] = run
            if run.source is None:
                self.prompts[run.number] = run
                self.loaded += run.loading
                continue
            self.pool.manager.finish_load(run.request, run.loading)
            run.request.num_computed_tokens = run.target = run.request.num_prompt_tokens
            self.let_go(run)
            self.decode(run)
        self.look()

    def decode(self, run: Run) -> None:
        self.decoding += 1
        self.context += run.target
        self.plan(run, run.target, self.step)
        heappush(self.lasts, (self.step + run.final - run.target, run.order, run))

    def let_go(self, run: Run) -> None:
        """Release the blocks of a request on the engine that its prompt came from."""
        if run.source is not None:
            source, request = run.source
            del source.kept[run.number]
            source.pool.finish(request, run.num_hit, True)
            source.refused_at, run.source, run.goal = -1, None, None
            self.freed.append(source)

    def give_up(self, run: Run) -> None:
        """Expect a request no more."""
        if (entry := next((each for each in self.coming if each[2] is run), None)) is None:
            self.waiting.remove(run)
        else:
            self.coming.remove(entry)
            heapify(self.coming)
            self.pool.release(run.request)
            self.pool.manager.finish_load(run.request, 0)
        self.refused_at = -1
        self.let_go(run)

    def interrupt(self, at: float) -> bool:
        """End the steps that were planned with the one under way at that time; return whether others were left out."""
        # The step under way ends as planned; those behind it may now have a newcomer.
        keep = bisect_left(self.ends, at) + 1
        if keep >= len(self.ends) or not self.is_open():
            return False
        del self.ends[keep:]
        return True

    def hold(self) -> None:
        """Count the blocks that are held, and the requests that run, in the steps under way."""
        if self.ends:
            seconds = self.pool.clock.now - self.began
            self.catch_up(self.pool.clock.now)
            used = self.pool.used()
            self.held += used * seconds - self.late
            self.ran += len(self.running) * seconds
            self.pool.peak_used = max(self.pool.peak_used, used)

    def finish(self) -> list[Run]:
        """End the steps that are under way; return the requests that have ended."""
        pool, steps = self.pool, len(self.ends)
        self.hold()
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
            if self.hands_over and run.target < run.final:
                del self.running[run.number]
                run.source, run.order, run.is_resumed = (self, request), -1, True
                self.kept[run.number] = run
                self.handed.append(run)
            else:
                self.decode(run)
        self.parts = []
        self.look()
        over, self.over = self.over, []
        return over

    def look(self) -> None:
        """Find those that decode and need a block before the next step, and end those that are through."""
        while self.agenda and self.agenda[0][0] <= self.step:
            _, order, run = heappop(self.agenda)
            if order != run.order:
                continue  # it was preempted since
            if run.at(self.step) >= run.final:
                self.end(run)
            else:
                self.due.append(run)

    def plan(self, run: Run, begin: int, step: int) -> None:
        """Put on the agenda when a request that has so many tokens before a step fills or needs a block, or ends."""
        size, drafts, has_slots = self.pool.block_size, self.options.drafts, int(run.since >= 0)
        # The step that fills a block publishes it, and the next one takes another.
        next_at = begin + has_slots
        wait = size - 1 - next_at % size if 0 < next_at % size < size - 1 else 0
        run.since, run.base, steps = step, begin, min(next_at + wait, run.final) - begin
        if drafts:
            run.path, at, slots = [], begin, -(-(begin + has_slots * (1 + drafts)) // size) * size
            while at + 1 + drafts <= slots and at < run.final and (at + 1) // size == next_at // size:
                gain = 0
                while gain < min(drafts, run.final - at - 1) and self.draw.random() < self.options.acceptance:
                    gain += 1
                self.gains[step + len(run.path)] += gain
                at += 1 + gain
                run.path.append(at)
            steps = len(run.path)
        heappush(self.agenda, (step + steps, run.order, run))

    def known(self, run: Run) -> int:
        """Add to a request what it has decoded, and return its tokens that are computed."""
        done = run.at(self.step)
        if run.since >= 0:
            run.answered(done + 1 - run.request.num_tokens)
        return done

    def settle(self, run: Run) -> int:
        """Tell the manager what a request has decoded, and return its tokens. Its slots were given for all of them."""
        request, done = run.request, self.known(run)
        if done > request.num_computed_tokens and self.pool.extend(request, done):
            self.pool.compute(request, done)
        return done

    def extend(self, run: Run, target: int) -> bool:
        """Give a request slots, of those admitted last if need be; return False if it does not run any more.

        It is then preempted, or has ended: alone in the pool, it found no room.
        """
        while not self.pool.extend(run.request, target, self.options.drafts if run.since >= 0 else 0):
            # As in vLLM, the newest gives way: the oldest have the most to lose.
            last = self.running[next(reversed(self.running))]
            if self.is_alone():
                self.leave(run)
                self.pool.finish(run.request, run.num_hit, False)
                self.over.append(run)
                return False
            self.preempt(last)
            if last is run:
                return False
        return True

    def preempt(self, run: Run) -> None:
        """Take a request's blocks; what it has decoded by now stays known."""
        # Before its blocks go: what it has published stays found, and may be its own hit later.
        run.target = self.settle(run)
        run.is_resumed = True
        self.leave(run)
        self.pool.release(run.request, preempted=True)
        self.waiting.appendleft(run)
        self.preemptions += 1

    def fail(self) -> list[Run | tuple[int, float]]:
        """Lose all requests and all that is cached; return those that must begin anew elsewhere."""
        self.hold()
        lost = list[Run | tuple[int, float]]()
        for run in [*self.kept.values()]:
            if run.goal is not None:
                run.goal.give_up(run)
                lost.append(run)
        lost += [*self.running.values(), *self.waiting, *(run for _, _, run in self.coming)]
        for _, _, run in self.coming:
            if run.source is None:
                self.pool.release(run.request)
        for each in lost:
            if isinstance(each, Run) and each.source is not None:
                self.give_up(each)
        self.step += bisect_right(self.ends, self.pool.clock.now)
        for each in lost:
            if isinstance(each, Run):
                if each.order >= 0:
                    each.target, each.is_resumed = self.known(each), True
                    self.leave(each)
                    self.pool.release(each.request)
                each.request = self.make(each.number, each.arrival).request
        self.pool.lose()
        self.waiting, self.coming, self.gains, self.lasts = deque(), [], defaultdict(int), []
        self.parts, self.ends, self.agenda, self.due, self.refused_at, self.context = [], [], [], [], -1, 0
        return lost

    def end(self, run: Run) -> None:
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

    def leave(self, run: Run) -> None:
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

"""The calls on a request that have options: look it up, give it slots, append to it; and what is wrong of these."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Self

from blockwright_spec.manager import facts, transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.facts import certain, is_coming, recurrent
from blockwright_spec.manager.hits import found, sound
from blockwright_spec.manager.in_time import outside
from blockwright_spec.manager.lease import lease
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.plans import plan_admission, plan_growth
from blockwright_spec.manager.preconditions import wrong_hit
from blockwright_spec.manager.state import Absent, Hit, Running, State, Waiting
from blockwright_spec.reads import Prefix

from . import parts
from .adapter import Found, ManagerAdapter
from .outcome import ManagerOutcome, outcome_of
from .parts import Reply, allocate, computed_of, hit_of, looked_up, name_of, named, running, sent, settled, step_of
from .scopes import Scope


class Admit(NamedTuple):
    """Send a request if it is not there, look it up, and give it slots; an absent one is dropped again if refused.

    If `planned`, the step is planned, and the plan committed.
    """

    slot: int
    prefix: Prefix
    step: Step
    asked: bool = True
    planned: bool = False

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix | None) -> Iterator[Self]:
        if prefix is None:
            if "misuse" in scope.calls:
                yield cls(slot, scope.prompts[0], Step(0), False)
                yield cls(slot, scope.prompts[-1], Step(-1), False)
        elif isinstance(state.requests[slot], Absent) or "hold" not in scope.calls:
            yield from cls.with_hit(scope, state, slot, prefix, hit_of(state, prefix))

    @classmethod
    def with_hit(cls, scope: Scope, state: State, slot: int, prefix: Prefix, hit: Hit) -> Iterator[Self]:
        length, encoder, words = len(prefix[1]), scope.encoder, scope.calls
        whole, planned = length - hit.length, "plan" in words
        if parts.is_idle(scope, state):
            return
        for new in parts.chunks(scope, whole):
            for place in parts.places(scope, state, hit.length, new):
                yield cls(slot, prefix, step_of(new, encoder=encoder, checkpoint=place), planned=planned)
            if "whole" in words:
                for ahead in scope.lookaheads:
                    yield cls(slot, prefix, step_of(new, ahead, whole=True, encoder=encoder), planned=planned)
                yield cls(slot, prefix, step_of(new, reserve=1, encoder=encoder), planned=planned)
        if "load" in words and not is_coming(state, slot):
            for external in range(1, whole + (not recurrent(state.config))):  # a state is of no use before its end
                for fits in (False, True) if "whole" in words else (False,):
                    step = step_of(0, whole=fits, external=external, encoder=encoder)
                    yield cls(slot, prefix, step, planned=planned)
        yield from (cls(slot, prefix, Step(whole, lookahead=ahead)) for ahead in scope.lookaheads if ahead)
        if "later" in words:
            for place in parts.places(scope, state, hit.length, whole):
                yield cls(slot, prefix, step_of(whole, later=True, checkpoint=place))
        if "adopt" in words and hit.length:
            yield cls(slot, prefix, Step(0))
        if "unasked" in words:
            yield cls(slot, prefix, Step(length), False)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        ready, hit = sent(state, self.slot, self.prefix), None
        if self.asked:
            ready, hit = looked_up(ready, self.slot, choice)
        return settled(state, transitions.admit(ready, self.slot, hit or Hit(), self.step, choice), hit)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        absent, name = isinstance(state.requests[self.slot], Absent), named(adapter, state, self.slot, self.prefix)
        hit = adapter.find(name) if self.asked else None
        plan = None
        if self.planned:
            spec_hit = Hit(*hit) if hit else Hit()
            plan = plan_admission(sent(state, self.slot, self.prefix), self.slot, spec_hit, self.step)
        reply = allocate(adapter, name, 0, self.step, hit, name if hit else None, plan)
        if absent and not reply.served:
            adapter.forget(name)
        return reply


class Find(NamedTuple):
    """Send a request if it is not there, look it up, and keep the hit for later."""

    slot: int
    prefix: Prefix

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        if "hold" in scope.calls:
            yield cls(slot, prefix)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        after, hit = looked_up(sent(state, self.slot, self.prefix), self.slot, choice)
        return ManagerOutcome(after, (), None, hit)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        return Reply(hit=adapter.find(named(adapter, state, self.slot, self.prefix)))


class Touch(NamedTuple):
    """Do the same up to some tokens, and count what is found as used."""

    slot: int
    prefix: Prefix
    most: int

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        if "use" in scope.calls:
            yield from (cls(slot, prefix, most) for most in range(len(prefix[1]) + 1))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        after, hit = looked_up(sent(state, self.slot, self.prefix), self.slot, choice, self.most)
        outcome = outside.used(after, hit)
        return settled(after, outcome, hit)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        return Reply(hit=adapter.touch(named(adapter, state, self.slot, self.prefix), self.most))


class AdmitHeld(NamedTuple):
    """Give a waiting request slots with the hit that was looked up before."""

    slot: int
    new: int

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request = state.requests[slot]
        if "hold" in scope.calls and isinstance(request, Waiting):
            yield cls(slot, len(prefix[1]) - request.hit.length)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        request = state.requests[self.slot]
        assert isinstance(request, Waiting)
        return settled(state, transitions.admit(state, self.slot, request.hit, Step(self.new), choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        request: Any = state.requests[self.slot]
        name, hit = name_of(self.slot), Found(request.hit.length, request.hit.tables)
        return allocate(adapter, name, 0, Step(self.new), hit, name if hit.length else None)._replace(hit=None)


class Grow(NamedTuple):
    slot: int
    step: Step
    planned: bool = False

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request = running(state, slot)
        remaining = len(prefix[1]) - request.computed
        if request.coming or parts.is_idle(scope, state):
            return
        if state.config.overlaps:
            yield from cls.overlapped(scope, state, slot, request)
        elif remaining:
            for new in parts.chunks(scope, remaining):
                for place in parts.places(scope, state, request.computed, new):
                    yield cls(slot, step_of(new, checkpoint=place), "plan" in scope.calls)
            yield from (cls(slot, Step(remaining, lookahead=ahead)) for ahead in scope.lookaheads if ahead)
            for drafts in range(1, scope.drafts + 1):
                if request.computed + remaining + drafts <= state.config.max_model_len:
                    yield from cls.drafted(scope, state, slot, remaining, drafts)
            if "later" in scope.calls:
                for place in parts.places(scope, state, request.computed, remaining):
                    yield cls(slot, step_of(remaining, later=True, checkpoint=place))
        if facts.runs_ahead(state.config):
            yield from cls.ahead(scope, state, slot, request)

    @classmethod
    def ahead(cls, scope: Scope, state: State, slot: int, request: Running) -> Iterator[Self]:
        """Yield steps after one that is in flight, whatever of that holds: a token more, and its drafts."""
        if len(request.prefix[1]) <= request.written < state.config.max_model_len:
            most = min(1 + scope.drafts, state.config.max_model_len - request.written)
            for new in {1, most}:
                yield cls(slot, Step(request.written - request.computed + new))

    @classmethod
    def drafted(cls, scope: Scope, state: State, slot: int, remaining: int, drafts: int) -> Iterator[Self]:
        most = facts.goes_back(state.config)
        if most is None:
            yield cls(slot, Step(remaining + drafts))
        if most is None or drafts <= most:
            for place in parts.places(scope, state, running(state, slot).computed, remaining + drafts):
                yield cls(slot, step_of(remaining + drafts, drafts=drafts, checkpoint=place))

    @classmethod
    def overlapped(cls, scope: Scope, state: State, slot: int, request: Running) -> Iterator[Self]:
        """Yield the steps of a request that may have others in flight: known tokens, or the one not known yet."""
        if not parts.wanted(state, slot, request) and not parts.is_untimely(scope):
            return
        remaining = max(1, len(request.prefix[1]) - request.written)
        most = state.config.max_model_len - request.written
        for new in parts.chunks(scope, min(remaining, most)) if most else ():
            yield cls(slot, Step(new), "plan" in scope.calls)
        for drafts in range(1, scope.drafts + 1):
            if remaining + drafts <= most:
                yield cls(slot, step_of(remaining + drafts, drafts=drafts))
        aheads = scope.lookaheads if remaining <= most else ()
        yield from (cls(slot, Step(remaining, lookahead=ahead)) for ahead in aheads if ahead)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        computed = computed_of(state, self.slot)
        return settled(state, transitions.grow(state, self.slot, computed, self.step, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        computed = computed_of(state, self.slot)
        plan = plan_growth(state, self.slot, computed, self.step) if self.planned else None
        return allocate(adapter, name_of(self.slot), computed, self.step, plan=plan)


class GrowEach(NamedTuple):
    """Give several running requests slots in one call: pairs of slot and new tokens, in order."""

    asks: tuple[tuple[int, int], ...]
    lookahead: int = 0
    later: bool = False

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "batch" not in scope.calls:
            return
        wants = tuple(
            (slot, want)
            for slot, request in enumerate(state.requests)
            if isinstance(request, Running) and (want := parts.wanted(state, slot, request))
        )
        asks = tuple((slot, 1) for slot, _ in wants)
        if len(asks) > 1:
            yield cls(asks)
            yield cls(asks[::-1])
            yield from [cls(wants, later=True)] * ("delayed" in scope.calls)
            if "odd" in scope.calls:
                yield cls(wants[::-1])
            if "misuse" in scope.calls:
                yield cls((*asks[:-1], (asks[-1][0], 0)))
                yield cls((*asks, asks[0]))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        asks = tuple((at, computed_of(state, at), step_of(new, self.lookahead, self.later)) for at, new in self.asks)
        done, refusal = transitions.grow_each(state, asks, choice)
        return outcome_of(state, done, refusal)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        asks = tuple((name_of(slot), computed_of(state, slot), new) for slot, new in self.asks)
        served, whole = getattr(adapter, "allocate_each" + "_later" * self.later)(asks, self.lookahead)
        return Reply(not whole, None, None, served)


class Append(NamedTuple):
    """Append output tokens; the first `accepted` of them were drafts that the last step computed."""

    slot: int
    tokens: tuple[int, ...]
    accepted: int = 0

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request, length = running(state, slot), len(prefix[1])
        if scope.in_flight:
            if length < min(request.settled + 1, scope.max_tokens):
                for token in scope.outputs:
                    yield cls(slot, (token,))
        elif request.computed == length:
            for accepted in range(request.written - request.computed + 1):
                if length + accepted < scope.max_tokens:
                    for token in scope.outputs:
                        yield cls(slot, (token,) * (accepted + 1), accepted)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, transitions.append_output(state, self.slot, self.tokens, self.accepted))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.append(name_of(self.slot), self.tokens)


class WrongStep(NamedTuple):
    """Ask slots, for a running request or a new one, with counts that are wrong, `computed` among them."""

    slot: int
    prefix: Prefix
    computed: int
    step: Step

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix | None) -> Iterator[Self]:
        if "misuse" not in scope.calls:
            return
        one = state.requests[slot]
        if prefix is None or not isinstance(one, Running):
            yield cls(slot, scope.prompts[-1], 1, Step(1))
            return
        config, computed = state.config, computed_of(state, slot)
        if computed and "lease" not in scope.calls:  # a manager is not told of a step within a lease
            yield cls(slot, prefix, computed - 1, Step(1))
        if certain(one) < computed - 1:
            yield cls(slot, prefix, certain(one), Step(1))
        if computed < one.written:  # known drafts are said to hold only now, or all of them though they are not known
            known = min(one.written, len(prefix[1]))
            yield cls(slot, prefix, known if computed < known else one.written, Step(1))
        if config.overlaps or recurrent(config):
            for step in (step_of(1, drafts=1), step_of(2, drafts=1), step_of(0, external=1), step_of(1, encoder=1)):
                yield cls(slot, prefix, computed, step)
        beyond = (1, 2**31, 2**63) if "odd" in scope.calls else (1,)
        for new in (0, -1, *(config.max_model_len - computed + more for more in beyond)):
            yield cls(slot, prefix, computed, Step(new))
        reach = max(one.written, lease(state, slot))
        if reach < min(config.max_model_len, len(prefix[1])):
            yield cls(slot, prefix, reach + 1, Step(1))
        if computed < config.max_model_len:
            yield cls(slot, prefix, computed, Step(1, lookahead=-1))
            for step in (Step(1, lookahead=9), Step(len(prefix[1]) - computed + 2)) if recurrent(config) else ():
                yield cls(slot, prefix, computed, step)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, transitions.grow(state, self.slot, self.computed, self.step, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        there, name = isinstance(state.requests[self.slot], Running), named(adapter, state, self.slot, self.prefix)
        reply = allocate(adapter, name, self.computed, self.step)
        if not there:
            adapter.forget(name)
        return reply


class WrongHit(NamedTuple):
    """Admit an absent request with the hit of another prefix, or of another length: `claimed` tokens."""

    slot: int
    prefix: Prefix
    other: Prefix
    claimed: int

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        if "misuse" not in scope.calls:
            return
        hit = hit_of(state, prefix)
        for claimed in (hit.length - 1, hit.length + 1) if hit.length else ():
            if claimed < len(prefix[1]) and wrong_hit(state, prefix, replace(hit, length=claimed), Step(0)):
                yield cls(slot, prefix, prefix, claimed)
        for other in scope.prompts:
            if other != prefix and len(other[1]) <= len(prefix[1]):
                foreign = hit_of(state, other)
                if foreign.length and not sound(state, prefix, foreign):
                    yield cls(slot, prefix, other, foreign.length)
                    break

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        _, hit = looked_up(sent(state, self.slot, self.other), self.slot, choice)
        step = Step(len(self.prefix[1]) - self.claimed)
        ready = sent(state, self.slot, self.prefix)
        return settled(state, transitions.admit(ready, self.slot, Hit(self.claimed, hit.tables), step, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        name = name_of(self.slot)
        adapter.send(parts.OTHER, self.other)
        tables = adapter.find(parts.OTHER).tables
        adapter.send(name, self.prefix)
        hit = Found(self.claimed, tables)
        reply = allocate(adapter, name, 0, Step(len(self.prefix[1]) - self.claimed), hit, parts.OTHER)
        adapter.forget(parts.OTHER)
        adapter.forget(name)
        return reply._replace(hit=None)


class LateHit(NamedTuple):
    slot: int
    prefix: Prefix

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        if "misuse" in scope.calls and hit_of(state, prefix).length:
            yield cls(slot, prefix)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        hit = found(state, self.prefix, choice)
        return settled(state, transitions.admit(state, self.slot, hit, Step(1), choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        adapter.send(parts.OTHER, self.prefix)
        hit = adapter.find(parts.OTHER)
        reply = allocate(adapter, name_of(self.slot), computed_of(state, self.slot), Step(1), hit, parts.OTHER)
        adapter.forget(parts.OTHER)
        return reply._replace(hit=None)

"""The actions of an engine on a request that is not running: look it up, admit it."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import plan_admission
from blockwright_spec.manager.state import Absent, Hit, State, Waiting, is_loading, recurrent
from blockwright_spec.reads import Prefix

from .adapter import Found, ManagerAdapter
from .outcome import ManagerOutcome
from .parts import Reply, allocate, chunks, hit_of, is_idle, looked_up, name_of, places, sent, settled, step_of
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
        if is_idle(scope, state):
            return
        for new in chunks(scope, whole):
            for place in places(scope, state, hit.length, new):
                yield cls(slot, prefix, step_of(new, encoder=encoder, checkpoint=place), planned=planned)
            if "whole" in words:
                for ahead in scope.lookaheads:
                    yield cls(slot, prefix, step_of(new, ahead, whole=True, encoder=encoder), planned=planned)
                yield cls(slot, prefix, step_of(new, reserve=1, encoder=encoder), planned=planned)
        if "load" in words and not is_loading(state, slot):
            for external in range(1, whole + (not recurrent(state.config))):  # a state is of no use before its end
                for fits in (False, True) if "whole" in words else (False,):
                    step = step_of(0, whole=fits, external=external, encoder=encoder)
                    yield cls(slot, prefix, step, planned=planned)
        yield from (cls(slot, prefix, Step(whole, ahead)) for ahead in scope.lookaheads if ahead)
        if "later" in words:
            yield cls(slot, prefix, step_of(whole, later=True))
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
        name, absent = name_of(self.slot), isinstance(state.requests[self.slot], Absent)
        if absent:
            adapter.send(name, self.prefix)
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
        name = name_of(self.slot)
        if isinstance(state.requests[self.slot], Absent):
            adapter.send(name, self.prefix)
        return Reply(hit=adapter.find(name))


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

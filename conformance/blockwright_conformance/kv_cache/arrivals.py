"""The actions of an engine on a request that is not running: look it up, admit it."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from blockwright_spec.manager import transitions
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import plan_admission
from blockwright_spec.manager.state import Absent, Hit, State, Waiting, is_loading, recurrent
from blockwright_spec.reads import Prefix

from .adapter import Found, ManagerAdapter
from .outcome import ManagerOutcome
from .parts import Reply, allocate, chunks, hit_of, is_idle, looked_up, name_of, places, sent, settled, when
from .scopes import Scope


class Admit(NamedTuple):
    """Send a request if it is not there, look it up, and give it slots; an absent one is dropped again if refused.

    `external` tokens are loaded from elsewhere instead of computing any; `encoder` tokens are read by cross-attention;
    `whole`: all of the request must fit; `reserve` blocks are left to others. If `planned`, it is planned, and the plan
    committed. After `checkpoint` tokens the step leaves states as well.
    """

    slot: int
    prefix: Prefix
    new: int
    lookahead: int = 0
    later: bool = False
    asked: bool = True
    external: int = 0
    encoder: int = 0
    whole: bool = False
    reserve: int = 0
    planned: bool = False
    checkpoint: int = 0

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix | None) -> Iterator[Self]:
        if prefix is None:
            if "misuse" in scope.calls:
                yield cls(slot, scope.prompts[0], 0, 0, False, False)
                yield cls(slot, scope.prompts[-1], -1, 0, False, False)
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
                yield cls(slot, prefix, new, encoder=encoder, planned=planned, checkpoint=place)
            if "whole" in words:
                for ahead in scope.lookaheads:
                    yield cls(slot, prefix, new, ahead, encoder=encoder, whole=True, planned=planned)
                yield cls(slot, prefix, new, encoder=encoder, reserve=1, planned=planned)
        if "load" in words and not is_loading(state, slot):
            for external in range(1, whole + (not recurrent(state.config))):  # a state is of no use before its end
                yield cls(slot, prefix, 0, external=external, encoder=encoder, planned=planned)
                if "whole" in words:
                    yield cls(slot, prefix, 0, external=external, encoder=encoder, whole=True, planned=planned)
        for ahead in scope.lookaheads:
            if ahead:
                yield cls(slot, prefix, whole, ahead)
        if "later" in words:
            yield cls(slot, prefix, whole, 0, True)
        if "adopt" in words and hit.length:
            yield cls(slot, prefix, 0)
        if "unasked" in words:
            yield cls(slot, prefix, length, 0, False, False)

    def step(self) -> Step:
        added = StepAdded(0, self.external, self.encoder, self.checkpoint)
        return Step(self.new, self.lookahead, when(self.later), self.whole, self.reserve, added)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        ready, hit = sent(state, self.slot, self.prefix), None
        if self.asked:
            ready, hit = looked_up(ready, self.slot, choice)
        return settled(state, transitions.admit(ready, self.slot, hit or Hit(), self.step(), choice), hit)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        name, absent = name_of(self.slot), isinstance(state.requests[self.slot], Absent)
        if absent:
            adapter.send(name, self.prefix)
        hit = adapter.find(name) if self.asked else None
        plan = None
        if self.planned:
            spec_hit = Hit(*hit) if hit else Hit()
            plan = plan_admission(sent(state, self.slot, self.prefix), self.slot, spec_hit, self.step())
        reply = allocate(adapter, name, 0, self.step(), hit, name if hit else None, plan)
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

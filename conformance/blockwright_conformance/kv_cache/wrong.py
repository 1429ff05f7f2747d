"""Calls that are wrong: counts that cannot be, hits of another request."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Self

from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.hits import found, sound
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.preconditions import wrong_hit
from blockwright_spec.manager.state import Hit, Running, State, certain, recurrent
from blockwright_spec.reads import Prefix

from .adapter import Found, ManagerAdapter
from .outcome import ManagerOutcome
from .parts import OTHER, Reply, allocate, computed_of, hit_of, looked_up, name_of, sent, settled, step_of
from .scopes import Scope


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
        if computed:
            yield cls(slot, prefix, computed - 1, Step(1))
        if certain(one) < computed - 1:
            yield cls(slot, prefix, certain(one), Step(1))
        if computed < one.written:  # known drafts are said to hold only now, or all of them though they are not known
            known = min(one.written, len(prefix[1]))
            yield cls(slot, prefix, known if computed < known else one.written, Step(1))
        if config.added.overlaps or recurrent(config):
            for step in (step_of(1, drafts=1), step_of(2, drafts=1), step_of(0, external=1), step_of(1, encoder=1)):
                yield cls(slot, prefix, computed, step)
        beyond = (1, 2**31, 2**63) if "odd" in scope.calls else (1,)
        for new in (0, -1, *(config.max_model_len - computed + more for more in beyond)):
            yield cls(slot, prefix, computed, Step(new))
        if one.written < min(config.max_model_len, len(prefix[1])):
            yield cls(slot, prefix, one.written + 1, Step(1))
        if computed < config.max_model_len:
            yield cls(slot, prefix, computed, Step(1, -1))
            for step in (Step(1, 9), Step(len(prefix[1]) - computed + 2)) if recurrent(config) else ():
                yield cls(slot, prefix, computed, step)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, transitions.grow(state, self.slot, self.computed, self.step, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        name, there = name_of(self.slot), isinstance(state.requests[self.slot], Running)
        if not there:
            adapter.send(name, self.prefix)
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
            if claimed < len(prefix[1]) and wrong_hit(state, prefix, replace(hit, length=claimed)):
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
        adapter.send(OTHER, self.other)
        tables = adapter.find(OTHER).tables
        adapter.send(name, self.prefix)
        hit = Found(self.claimed, tables)
        reply = allocate(adapter, name, 0, Step(len(self.prefix[1]) - self.claimed), hit, OTHER)
        adapter.forget(OTHER)
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
        adapter.send(OTHER, self.prefix)
        hit = adapter.find(OTHER)
        reply = allocate(adapter, name_of(self.slot), computed_of(state, self.slot), Step(1), hit, OTHER)
        adapter.forget(OTHER)
        return reply._replace(hit=None)

"""The actions of an engine on a running request that have options: give it slots, append tokens."""

from collections.abc import Iterator
from typing import NamedTuple, Self

from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Step
from blockwright_spec.manager.plans import plan_growth
from blockwright_spec.manager.state import Running, State, draft_states, runs_ahead
from blockwright_spec.reads import Prefix

from . import parts
from .adapter import ManagerAdapter
from .outcome import ManagerOutcome, outcome_of
from .parts import Reply, computed_of, is_idle, is_untimely, name_of, places, running, settled, step_of, wanted
from .scopes import Scope


class Grow(NamedTuple):
    slot: int
    step: Step
    planned: bool = False

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request = running(state, slot)
        remaining = len(prefix[1]) - request.computed
        if request.added.loading or is_idle(scope, state):
            return
        if state.config.added.overlaps:
            yield from cls.overlapped(scope, state, slot, request)
        elif remaining:
            for new in parts.chunks(scope, remaining):
                for place in places(scope, state, request.computed, new):
                    yield cls(slot, step_of(new, checkpoint=place), "plan" in scope.calls)
            yield from (cls(slot, Step(remaining, ahead)) for ahead in scope.lookaheads if ahead)
            for drafts in range(1, scope.drafts + 1):
                if request.computed + remaining + drafts <= state.config.max_model_len:
                    yield from cls.drafted(state, slot, remaining, drafts)
            if "later" in scope.calls:
                for place in places(scope, state, request.computed, remaining):
                    yield cls(slot, step_of(remaining, later=True, checkpoint=place))
        if runs_ahead(state.config):
            yield from cls.ahead(scope, state, slot, request)

    @classmethod
    def ahead(cls, scope: Scope, state: State, slot: int, request: Running) -> Iterator[Self]:
        """Yield steps after one that is in flight, whatever of that holds: a token more, and its drafts."""
        if len(request.prefix[1]) <= request.written < state.config.max_model_len:
            most = min(1 + scope.drafts, state.config.max_model_len - request.written)
            for new in {1, most}:
                yield cls(slot, Step(request.written - request.computed + new))

    @classmethod
    def drafted(cls, state: State, slot: int, remaining: int, drafts: int) -> Iterator[Self]:
        most = draft_states(state.config)
        if most is None:
            yield cls(slot, Step(remaining + drafts))
        if most is None or drafts <= most:
            yield cls(slot, step_of(remaining + drafts, drafts=drafts))

    @classmethod
    def overlapped(cls, scope: Scope, state: State, slot: int, request: Running) -> Iterator[Self]:
        """Yield the steps of a request that may have others in flight: known tokens, or the one not known yet."""
        if not wanted(state, slot, request) and not is_untimely(scope):
            return
        remaining = max(1, len(request.prefix[1]) - request.written)
        most = state.config.max_model_len - request.written
        for new in parts.chunks(scope, min(remaining, most)) if most else ():
            yield cls(slot, Step(new), "plan" in scope.calls)
        for drafts in range(1, scope.drafts + 1):
            if remaining + drafts <= most:
                yield cls(slot, step_of(remaining + drafts, drafts=drafts))
        yield from (cls(slot, Step(remaining, ahead)) for ahead in scope.lookaheads if ahead and remaining <= most)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        computed = computed_of(state, self.slot)
        return settled(state, transitions.grow(state, self.slot, computed, self.step, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        computed = computed_of(state, self.slot)
        plan = plan_growth(state, self.slot, computed, self.step) if self.planned else None
        return parts.allocate(adapter, name_of(self.slot), computed, self.step, plan=plan)


class GrowEach(NamedTuple):
    """Give several running requests slots in one call: pairs of slot and new tokens, in order."""

    asks: tuple[tuple[int, int], ...]
    lookahead: int = 0

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "batch" not in scope.calls:
            return
        wants = tuple(
            (slot, want)
            for slot, request in enumerate(state.requests)
            if isinstance(request, Running) and (want := wanted(state, slot, request))
        )
        asks = tuple((slot, 1) for slot, _ in wants)
        if len(asks) > 1:
            yield cls(asks)
            yield cls(asks[::-1])
            if "odd" in scope.calls:
                yield cls(wants[::-1])
            if "misuse" in scope.calls:
                yield cls((*asks[:-1], (asks[-1][0], 0)))
                yield cls((*asks, asks[0]))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        asks = tuple((slot, computed_of(state, slot), Step(new, self.lookahead)) for slot, new in self.asks)
        done, refusal = transitions.grow_each(state, asks, choice)
        return outcome_of(state, done, refusal)

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        asks = tuple((name_of(slot), computed_of(state, slot), new) for slot, new in self.asks)
        served, whole = adapter.allocate_each(asks, self.lookahead)
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

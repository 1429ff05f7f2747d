"""The hints of an engine on blocks to keep, and its time."""

from collections.abc import Iterator
from typing import NamedTuple, Self

from blockwright_spec.hints import Wish
from blockwright_spec.manager import retention
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Running, State
from blockwright_spec.reads import Prefix

from .adapter import ManagerAdapter
from .outcome import ManagerOutcome
from .parts import name_of, settled
from .scopes import Scope


class Retain(NamedTuple):
    """Say that the first tokens of a request are to be kept with a priority until a time."""

    slot: int
    tokens: int
    priority: int
    until: int

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request = state.requests[slot]
        if "hint" not in scope.calls or not isinstance(request, Running) or is_told(scope, request):
            return
        if request.added.wish.priority == 0:
            yield cls(slot, state.config.groups[0].block_size, 2, state.now + 1)
            yield cls(slot, len(prefix[1]), 1, state.now + 2)
        if "misuse" in scope.calls:
            yield from (cls(slot, 1, 1, state.now), cls(slot, 1, 0, state.now + 1), cls(slot, -1, 1, state.now + 1))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, retention.retain(state, *self))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.retain(name_of(self.slot), self.tokens, self.priority, self.until)


def is_told(scope: Scope, request: Running) -> bool:
    """Return whether there was a hint for a request; only some scopes give more than one."""
    return "odd" not in scope.calls and request.added.wish != Wish()


class ReleasePrefix(NamedTuple):
    """Mark a request's tokens from one on to be evicted first."""

    slot: int
    first: int

    @classmethod
    def allowed(cls, scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Self]:
        request = state.requests[slot]
        if "hint" in scope.calls and isinstance(request, Running) and not is_told(scope, request):
            if request.added.wish.first is None:
                yield cls(slot, 0)
            if "odd" in scope.calls:
                yield cls(slot, 1)
            if "misuse" in scope.calls:
                yield cls(slot, -1)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, retention.release_prefix(state, *self))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.release_prefix(name_of(self.slot), self.first)


class Tick(NamedTuple):
    """Say what time it is."""

    now: int

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "hint" in scope.calls:
            wishes = tuple(each.added.wish.until for each in state.requests if isinstance(each, Running))
            if max((*wishes, *(mark.until for mark in state.marks))) > state.now:
                yield cls(state.now + 1)
            if "misuse" in scope.calls:
                yield cls(state.now - 1)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, retention.advance(state, self.now))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.advance_time(self.now)

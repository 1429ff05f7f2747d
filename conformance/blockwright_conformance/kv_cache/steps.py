"""The actions of an engine on time and on several requests: steps in flight, loads, forks, the reset of the cache."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple, Self, cast

from blockwright_spec.hints import Wish
from blockwright_spec.manager import retention, transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.in_time import forgetting, forks, outside
from blockwright_spec.manager.in_time import in_flight as flights
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import NULL, Absent, Running, State, held_tables, is_loading, key
from blockwright_spec.reads import Prefix

from .adapter import EXTRAS, ManagerAdapter, Served
from .outcome import ManagerOutcome
from .parts import Reply, absent, computed_of, is_untimely, name_of, sent, settled
from .scopes import Scope


class Reset(NamedTuple):
    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "reset" in scope.calls:
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, transitions.reset(state))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        return Reply(refused=not adapter.reset())


class Forget(NamedTuple):
    """Forget what a request has cached, or, without a slot, what the owner of some extra keys has."""

    slot: int | None
    extra: int = 0

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "forget" in scope.calls:
            yield from (cls(slot) for slot, each in enumerate(state.requests) if not isinstance(each, Absent))
            yield from (cls(None, extra) for extra in range(1, len(EXTRAS)) if extra in dict(scope.prompts))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        if self.slot is not None:
            return settled(state, forgetting.forget(state, self.slot))
        own = EXTRAS[self.extra].items()
        extras = frozenset(at for at, other in enumerate(EXTRAS) if own <= other.items())
        return settled(state, forgetting.forget_extra(state, extras))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        cast("Any", adapter).unlearn(None if self.slot is None else name_of(self.slot), self.extra)


class Start(NamedTuple):
    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "start" in scope.calls:
            yield cls()
        if len(state.flights) < scope.in_flight:
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, flights.begin(state))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.start()


class Settle(NamedTuple):
    """Settle the oldest step in flight; pairs of slot and rejected drafts."""

    rejected: tuple[tuple[int, int], ...] = ()

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        misuses, untimely = "misuse" in scope.calls, is_untimely(scope)
        if not (scope.in_flight or (state.config.added.overlaps and misuses)):
            return
        if state.flights:
            drafted = [(flight.slot, flight.drafts) for flight in state.flights[0] if flight.slot is not None]
            for counts in product(*(range(drafts + 1) for _, drafts in drafted)):
                pairs = zip(drafted, counts, strict=True)
                yield cls(tuple((slot, count) for (slot, _), count in pairs if count))
            if misuses:
                yield cls(((0, dict(drafted).get(0, 0) + 1),))
                if untimely:
                    yield cls(((0, -1),))
        elif untimely:
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, flights.settle(state, self.rejected, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.settle(tuple([(name_of(slot), count) for slot, count in self.rejected]))


class FinishLoad(NamedTuple):
    """End a load, of which `came` tokens came."""

    slot: int
    came: int

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "load" not in scope.calls:
            return
        for slot, request in enumerate(state.requests):
            if not is_loading(state, slot):
                if is_untimely(scope):
                    yield cls(slot, 0)
            elif isinstance(request, Running) and request.added.loading:
                for count in range(request.added.loading + 1 + ("misuse" in scope.calls)):
                    yield cls(slot, count)
            else:
                yield cls(slot, 0)

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, flights.finish_load(state, self.slot, self.came, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.finish_load(name_of(self.slot), self.came)


class Fork(NamedTuple):
    """Fork a running request to another, which is sent with a prefix if it is not there, and dropped if refused."""

    slot: int
    child: int
    prefix: Prefix

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "fork" not in scope.calls:
            return
        child, misuses = absent(state), "misuse" in scope.calls
        for slot, request in enumerate(state.requests):
            if child is not None and isinstance(request, Running):
                yield cls(slot, child, request.prefix)
                extra, tokens = request.prefix
                if "odd" in scope.calls:
                    yield cls(slot, child, (extra, (1 - tokens[0], *tokens[1:])))
                    yield from (cls(slot, child, (extra, (*tokens[: request.computed], token))) for token in (0, 1))
                if misuses:
                    yield cls(slot, child, (extra, (*tokens[:-1], 1 - tokens[-1])))
                    yield cls(slot, slot, request.prefix)
            elif isinstance(request, Absent) and misuses:
                yield cls(slot, (slot + 1) % len(state.requests), (0, (0,)))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        ready = sent(state, self.child, self.prefix)
        return settled(state, forks.fork(ready, self.slot, self.child, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        name, child, one = name_of(self.slot), name_of(self.child), state.requests[self.slot]
        if isinstance(one, Absent):
            adapter.send(name, (0, (0,)))
        is_new = isinstance(state.requests[self.child], Absent)
        computed = computed_of(state, self.slot) if isinstance(one, Running) else 0
        try:
            reply = Reply(refused=not adapter.fork(name, child, self.prefix, computed))
        except adapter.errors as error:
            reply = Reply(error=error)
        if is_new and (reply.refused or reply.error):
            adapter.forget(child)
        if isinstance(one, Absent):
            adapter.forget(name)
        return reply


class TakeCopies(NamedTuple):
    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if state.copies and ("fork" in scope.calls or scope.config.added.unit):
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, forks.take_copies(state, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        """Take the copies to come; others than the specification's are an error (COPY-1)."""
        groups = range(len(state.config.groups))
        wanted = tuple([tuple([copy[1:] for copy in state.copies if copy[0] == group]) for group in groups])
        copies = adapter.take_copies()
        if copies != wanted:
            raise AssertionError(f"COPY-1: expected the copies {wanted}, found {copies}")


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


def may_hold(scope: Scope, state: State) -> bool:
    return "outside" in scope.calls and len(state.outside) < scope.outside


class Hold(NamedTuple):
    """Hold blocks once more."""

    blocks: tuple[int, ...]

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if may_hold(scope, state):
            held = {block for table in held_tables(state) for block in table if block != NULL}
            found = {block for block in state.queue if key(state, block) is not None}
            yield from (cls((block,)) for block in sorted(held | found))
            bare = [block for block in state.queue if block not in found]
            if "misuse" in scope.calls:
                yield cls((NULL,))
                yield from (cls((*sorted(held)[:1], block)) for block in bare[:1])

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.hold(state, self.blocks))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.pin(self.blocks)


class Take(NamedTuple):
    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if may_hold(scope, state):
            yield cls()

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.take(state, 1, choice))

    def perform(self, adapter: ManagerAdapter, state: State) -> Reply:
        taken = adapter.take(1)
        return Reply(refused=True) if taken is None else Reply(served=(Served((taken,)),))


class LetGo(NamedTuple):
    """Let go of blocks, in this order."""

    blocks: tuple[int, ...]

    @classmethod
    def allowed(cls, scope: Scope, state: State) -> Iterator[Self]:
        if "outside" not in scope.calls:
            return
        every = state.outside
        yield from dict.fromkeys(
            cls(blocks) for blocks in (*((block,) for block in every), every, every[::-1]) if blocks
        )
        if "misuse" in scope.calls:
            yield from (cls((*every, block)) for block in sorted({*every}))
            others = {block for table in held_tables(state) for block in table} - {NULL, *every}
            yield from (cls((block,)) for block in (*sorted(others), *state.queue[:1]))

    def meaning(self, state: State, choice: Choice = LRU) -> ManagerOutcome:
        return settled(state, outside.let_go(state, self.blocks))

    def perform(self, adapter: ManagerAdapter, state: State) -> None:
        adapter.unpin(self.blocks)

"""A scope's exploration, recorded once and replayed on many managers.

What the specification does in a scope does not depend on the manager, as long as that follows the LRU policy. So the
actions, what comes of them and the answers to all questions are worked out once; a replay performs the same transitions
in the same order as the explorer, on copies of a manager, with the same comparisons.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blockwright_conformance.kv_cache.actions import Action, Publish, Trim, enabled, meaning, perform
from blockwright_conformance.kv_cache.adapter import Found, ManagerAdapter
from blockwright_conformance.kv_cache.lockstep import compare
from blockwright_conformance.kv_cache.outcome import ManagerOutcome
from blockwright_conformance.kv_cache.parts import OTHER, name_of, names_of
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.symmetry import Names
from blockwright_conformance.kv_cache.world import Factory
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Running, State, Waiting, initial
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Prefix


@dataclass(frozen=True, slots=True)
class Moment:
    """One transition: the number of the state it starts in, what comes of it, and the number of a state that is new."""

    start: int
    action: Action
    told: ManagerOutcome
    reached: int | None


@dataclass(frozen=True, slots=True)
class Answers:
    """What a state answers to questions: hits by prefix, and shared blocks per group by request and holders."""

    hits: tuple[tuple[Prefix, Found], ...]
    shared: tuple[tuple[str, int, tuple[int, ...]], ...]


def odd(scope: Scope, state: State) -> Iterator[Action]:
    """Give calls that no engine makes, where a scope has wrong ones: trims and publications at their bounds."""
    for slot, request in enumerate(state.requests if "misuse" in scope.calls else ()):
        if isinstance(request, Running | Waiting):
            beyond = request.written + 1 if isinstance(request, Running) else 0
            yield from (call(slot, end) for call in (Trim, Publish) for end in {0, beyond})


def answers(scope: Scope, state: State) -> Answers:
    """Work out the answers of a state."""
    hits = tuple((prefix, found(state, prefix, LRU)) for prefix in (scope.prompts if state.config.caching else ()))
    groups = range(len(state.config.groups))
    return Answers(
        tuple((prefix, Found(hit.length, hit.tables)) for prefix, hit in hits),
        tuple(
            (name_of(slot), count, tuple(common_prefix_blocks(state, slot, group, count) for group in groups))
            for slot, request in enumerate(state.requests)
            if isinstance(request, Running)
            for count in range(1, len(state.requests) + 1)
        ),
    )


class Recording:
    """All transitions of a scope, breadth first, and all its states."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.states = [initial(scope.config, scope.slots)]
        self.moments: list[Moment] = []
        names = Names()
        seen = {names.digest(self.states[0])}
        for start, state in enumerate(self.states):
            for action in (*enabled(scope, state), *odd(scope, state)):
                told = meaning(state, action)
                reached = None
                if told.state is not state and (digest := names.digest(told.state)) not in seen:
                    seen.add(digest)
                    reached = len(self.states)
                    self.states.append(told.state)
                self.moments.append(Moment(start, action, told, reached))
        self.answers = [answers(scope, state) for state in self.states]

    def replay(self, factory: Factory) -> tuple[list[str], int]:
        """Perform every transition on copies of a manager, up to the first difference; give it, and how far it went.

        Raises:
            Exception: whatever the manager raises that is no refusal.
        """
        names = names_of(self.states[0])
        adapters = {0: factory(self.scope.config)}
        if faults := self.ask(adapters[0], 0):
            return faults, 0
        last = 0
        for number, moment in enumerate(self.moments):
            if moment.start != last:
                del adapters[last]
                last = moment.start
            adapter = adapters[last].copy()
            reply = perform(adapter, moment.action, self.states[last])
            if faults := compare(moment.told, reply, adapter, adapter.observe(names)):
                return faults, number + 1
            if moment.reached is not None:
                adapters[moment.reached] = adapter
                if faults := self.ask(adapter, moment.reached):
                    return faults, number + 1
        return [], len(self.moments)

    def ask(self, adapter: ManagerAdapter, number: int) -> list[str]:
        """Run a manager's self-check, put every question to it, and name the wrong answers."""
        adapter.check()
        told, faults = self.answers[number], []
        for prefix, wanted in told.hits:
            adapter.send(OTHER, prefix)
            hit = adapter.find(OTHER)
            if hit != wanted:
                faults.append(f"lookup of {prefix}: expected {wanted}, found {hit}")
        adapter.forget(OTHER)
        for name, count, wants in told.shared:
            shared = adapter.common_prefix(name, count)
            if shared != wants:
                faults.append(f"COMMON-1: blocks of {name} shared by {count}: expected {wants}, found {shared}")
        return faults

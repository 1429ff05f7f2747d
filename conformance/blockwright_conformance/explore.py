"""The explorer: breadth-first over every reachable state of a scope, every transition in lock-step.

A state is visited once, up to the names of blocks and requests; every action the scope allows in it, refused ones
included, is performed on the specification and on a copy of the manager, and outputs and whole states are compared.
Laws are checked in every new state, laws of steps on every step. The first fault is a shortest one.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from blockwright_spec.laws import LAWS, STEP_LAWS, Law
from blockwright_spec.outcomes import Reason
from blockwright_spec.state import Config, Running, State, Waiting, initial

from .actions import Action, Told, meaning
from .adapter import ManagerAdapter
from .engine import enabled
from .lockstep import act, examine
from .scopes import Scope
from .symmetry import Form, Names, form

Factory = Callable[[Config], ManagerAdapter]
"""Makes a manager under test."""


@dataclass(slots=True)
class Violation:
    """A fault and how to get there: the actions from the initial state, the last of which shows it."""

    law: str
    detail: str
    actions: tuple[Action, ...]


@dataclass(slots=True)
class Result:
    """What the exploration of a scope came to."""

    scope: Scope
    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    """How often each action happened, and each was refused for a reason."""
    violation: Violation | None = None


Trail = tuple["Trail", Action] | None
"""The actions from the initial state, last one first: all that is kept of a state once it has been left."""


def path(trail: Trail) -> tuple[Action, ...]:
    """Give the actions of a trail, first one first."""
    actions: list[Action] = []
    while trail is not None:
        trail, action = trail
        actions.append(action)
    return tuple(actions[::-1])


@dataclass(slots=True)
class Node:
    """A state of the frontier, with the manager in it, and how it was reached."""

    state: State
    adapter: ManagerAdapter | None
    trail: Trail = None


LOOKUP_LAWS = frozenset(("HIT-1", "HIT-2", "HIT-3", "EXPLAIN-1"))
"""Laws about what a lookup finds."""


def lookup_view(state: State) -> tuple[frozenset[object], ...]:
    """Give all that the laws of lookups read of a state: keys with the contents under them, and requests' prefixes.

    Of blocks with equal key and content it does not matter which is older; where equal keys stand over different
    contents PUB-1 is broken, which is judged in every state.
    """
    return (
        frozenset((prefix, state.contents[block]) for block, prefix in state.keys),
        frozenset(request.prefix for request in state.requests if isinstance(request, Running | Waiting)),
    )


class Explorer:
    """Explores one scope, with a manager in lock-step or the specification alone (no factory)."""

    def __init__(
        self,
        scope: Scope,
        factory: Factory | None,
        laws: tuple[Law, ...] = LAWS,
        canonical: Callable[[State, Names], Form] = form,
        max_transitions: int | None = None,
    ) -> None:
        self.scope, self.laws, self.max_transitions = scope, laws, max_transitions
        self.names = Names(canonical)
        self.result = Result(scope)
        self.seen: set[bytes] = set()
        self.lookups: dict[tuple[frozenset[object], ...], list[Law]] = {}
        state = initial(scope.config, scope.slots)
        self.root = Node(state, factory(scope.config) if factory else None)

    def run(self) -> Result:
        """Visit everything, up to the first fault."""
        started, result = time.perf_counter(), self.result
        self.seen.add(self.names.digest(self.root.state))
        self.state_fault(self.root)
        frontier = [self.root]
        while frontier and result.violation is None and result.transitions != self.max_transitions:
            frontier = list(self.level(frontier))
            result.depth += bool(frontier)
        result.states, result.seconds = len(self.seen), time.perf_counter() - started
        return result

    def level(self, frontier: list[Node]) -> Iterator[Node]:
        """Give the new states one action beyond the frontier's; the managers of the frontier are dropped behind."""
        for node in frontier:
            for action in enabled(self.scope, node.state):
                after = self.step(node, action)
                if self.result.violation or self.result.transitions == self.max_transitions:
                    return
                if after is not None:
                    yield after
            node.adapter = None

    def step(self, node: Node, action: Action) -> Node | None:
        """Perform an action and compare; give the state it leads to, if that is new."""
        self.result.transitions += 1
        adapter = node.adapter.copy() if node.adapter is not None else None
        told, faults = self.act(adapter, node.state, action)
        after = Node(told.state, adapter, (node.trail, action))
        if faults:
            self.fail("REF-0", "; ".join(faults), after)
        return self.arrived(node, action, told, after)

    def arrived(self, node: Node, action: Action, told: Told, after: Node) -> Node | None:
        """Check the laws of what an action came to; give the state it led to, if that is new."""
        self.count(action, told)
        self.steps_fault(node, told, after)
        if told.state is node.state or self.result.violation:
            return None
        digest = self.names.digest(told.state)
        if digest in self.seen:
            return None
        self.seen.add(digest)
        self.state_fault(after)
        return after

    def act(self, adapter: ManagerAdapter | None, state: State, action: Action) -> tuple[Told, list[str]]:
        """Perform an action; a manager that fails in a way of its own has a fault."""
        if adapter is None:
            return meaning(state, action), []
        try:
            return act(adapter, state, action)
        except Exception as error:
            return meaning(state, action), [f"{type(error).__name__}: {error}"]

    def count(self, action: Action, told: Told) -> None:
        """Record that an action happened, or why it did not; a batch may do both."""
        if told.steps or told.refusal is None:
            self.result.fired[type(action).__name__] += 1
        if told.refusal is not None:
            self.result.fired[told.refusal.reason.name] += 1

    def steps_fault(self, node: Node, told: Told, after: Node) -> None:
        """Check the laws of steps."""
        before = node.state
        for done in told.steps:
            for law in STEP_LAWS:
                if not law.holds(before, done):
                    self.fail(law.id, law.statement, after)
            before = done.state

    def state_fault(self, node: Node) -> None:
        """Check the laws of states, the manager's self-check, and what it answers to questions."""
        for law in self.broken(node.state):
            self.fail(law.id, law.statement, node)
        if node.adapter is not None:
            try:
                node.adapter.check()
                faults = examine(node.adapter, node.state, self.scope.prompts, "explain" in self.scope.calls)
            except Exception as error:
                self.fail(getattr(error, "law", "REF-0"), f"{type(error).__name__}: {error}", node)
            else:
                if faults:
                    self.fail("REF-0", "; ".join(faults), node)

    def broken(self, state: State) -> list[Law]:
        """Give the laws that a state breaks; those of lookups are judged once for all that a lookup can see."""
        seen = lookup_view(state)
        if (hits := self.lookups.get(seen)) is None:
            hits = self.lookups[seen] = [law for law in self.laws if law.id in LOOKUP_LAWS and not law.holds(state)]
        return [law for law in self.laws if law.id not in LOOKUP_LAWS and not law.holds(state)] + hits

    def fail(self, law: str, detail: str, node: Node) -> None:
        """Record the first fault."""
        if self.result.violation is None:
            self.result.violation = Violation(law, detail, path(node.trail))


EVERYTHING = frozenset(reason.name for reason in Reason if reason is not Reason.ILLEGAL_CHOICE) | frozenset(
    action.__name__ for action in Action.__args__ if not action.__name__.startswith(("Wrong", "Late"))
)
"""What must happen in some scope of a profile: every action, and every refusal that a manager can answer."""

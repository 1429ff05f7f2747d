"""The explorer: breadth-first over every reachable state of a scope, every transition in lock-step.

A state is visited once, up to the names of blocks and requests; every action the scope allows in it, refused ones
included, is performed on the specification and on a copy of the manager, and outputs and whole states are compared.
Laws are checked in every new state, laws of steps on every step. The first fault is a shortest one.
"""

from collections import Counter
from collections.abc import Callable

from blockwright_spec.law import Law
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.manager.outcomes import Reason
from blockwright_spec.manager.state import Config, Running, State, Waiting, initial

from ..checker.search import Node as AnyNode
from ..checker.search import Result, Search, Violation
from .actions import Action, Told, meaning
from .adapter import ManagerAdapter
from .coverage import Sort, particulars, sort_of
from .enabled import enabled
from .lockstep import act, examine
from .scopes import Scope
from .symmetry import Form, Names, form

__all__ = ["EVERYTHING", "Explorer", "Factory", "Node", "Result", "Violation", "lookup_view"]

Factory = Callable[[Config], ManagerAdapter]
"""Makes a manager under test."""


Node = AnyNode[State, ManagerAdapter]
"""A state of the frontier, with the manager in it."""


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


class Explorer(Search[State, Action, ManagerAdapter, Told]):
    """Explores one scope, with a manager in lock-step or the specification alone (no factory)."""

    def __init__(
        self,
        scope: Scope,
        factory: Factory | None,
        laws: tuple[Law, ...] = LAWS,
        canonical: Callable[[State, Names], Form] = form,
        max_transitions: int | None = None,
    ) -> None:
        root = AnyNode(initial(scope.config, scope.slots), factory(scope.config) if factory else None)
        super().__init__(scope, root, max_transitions)
        self.scope, self.laws = scope, laws
        self.names = Names(canonical)
        self.sorts: Counter[Sort] = Counter()
        self.lookups: dict[tuple[frozenset[object], ...], list[Law]] = {}

    def enabled(self, state: State) -> list[Action]:
        """Give every action that the scope allows in a state."""
        return enabled(self.scope, state)

    def reached(self, told: Told) -> State:
        """Give the state that an action leads to."""
        return told.state

    def digest(self, state: State) -> bytes:
        """Give a name that is equal for states that differ in the names of blocks and requests only."""
        return self.names.digest(state)

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

    def arrived(self, node: Node, action: Action, told: Told, after: Node) -> Node | None:
        """Record what happened in particular, and go on as every search does."""
        self.sorts[sort_of(node.state, action, told)] += 1
        return super().arrived(node, action, told, after)

    def run(self) -> Result:
        """Visit everything, up to the first fault, and put into words what happened in particular."""
        result = super().run()
        for sort, times in self.sorts.items():
            for each in particulars(sort):
                result.fired[each] += times
        return result

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
                faults = examine(node.adapter, node.state, self.scope.prompts, self.scope.calls)
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


EVERYTHING = frozenset(reason.name for reason in Reason if reason is not Reason.ILLEGAL_CHOICE) | frozenset(
    action.__name__ for action in Action.__args__ if not action.__name__.startswith(("Wrong", "Late"))
)
"""What must happen in some scope of a profile: every action, and every refusal that a manager can answer."""

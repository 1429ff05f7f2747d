"""The explorer of block tables: every reachable state of a scope, every transition in lock-step.

As `explore`, with another state: what is compared is the whole state of allocators and tables, and what the counting
questions answer.
"""

from collections.abc import Callable

from blockwright_spec.block_tables.outcomes import PagedDone, PagedReason
from blockwright_spec.block_tables.state import Paged, PagedConfig, paged
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import Law

from ..checker.search import Node, Search
from .actions import PagedAction, PagedTold, paged_enabled, paged_meaning
from .adapter import PagedAdapter
from .lockstep import paged_act, paged_examine
from .scopes import PagedScope
from .symmetry import PagedNames

PagedFactory = Callable[[PagedConfig], PagedAdapter]
"""Makes an allocator under test, with the tables on it."""

PagedNode = Node[Paged, PagedAdapter]


class PagedExplorer(Search[Paged, PagedAction, PagedAdapter, PagedTold]):
    """Explores one scope, with an allocator in lock-step or the specification alone (no factory)."""

    def __init__(
        self,
        scope: PagedScope,
        factory: PagedFactory | None,
        laws: tuple[Law, ...] = PAGED_LAWS,
        max_transitions: int | None = None,
    ) -> None:
        adapter = factory(scope.config) if factory else None
        super().__init__(scope, Node(paged(scope.config, scope.slots), adapter), max_transitions)
        self.scope, self.laws, self.names = scope, laws, PagedNames()

    def enabled(self, state: Paged) -> list[PagedAction]:
        """Give every action that the scope allows in a state."""
        return paged_enabled(self.scope, state)

    def reached(self, told: PagedTold) -> Paged:
        """Give the state that an action leads to."""
        return told.state

    def digest(self, state: Paged) -> bytes:
        """Give a name that is equal for states that differ in names only."""
        return self.names.digest(state)

    def act(self, adapter: PagedAdapter | None, state: Paged, action: PagedAction) -> tuple[PagedTold, list[str]]:
        """Perform an action; an allocator that fails in a way of its own has a fault."""
        if adapter is None:
            return paged_meaning(state, action), []
        try:
            return paged_act(adapter, state, action)
        except Exception as error:
            return paged_meaning(state, action), [f"{type(error).__name__}: {error}"]

    def count(self, action: PagedAction, told: PagedTold) -> None:
        """Record that an action happened, or why it did not."""
        self.result.fired[told.refusal.reason.name if told.refusal else type(action).__name__] += 1

    def steps_fault(self, node: PagedNode, told: PagedTold, after: PagedNode) -> None:
        """Check the laws of calls."""
        before = node.state
        for outcome in told.outcomes:
            for law in PAGED_STEP_LAWS:
                if not law.holds(before, outcome):
                    self.fail(law.id, law.statement, after)
            before = outcome.state if isinstance(outcome, PagedDone) else before

    def state_fault(self, node: PagedNode) -> None:
        """Check the laws of states, the allocator's self-check, and what it answers to questions."""
        for law in self.laws:
            if not law.holds(node.state):
                self.fail(law.id, law.statement, node)
        if node.adapter is None:
            return
        try:
            node.adapter.check()
            faults = paged_examine(node.adapter, node.state, self.scope.prompts)
        except Exception as error:
            self.fail(getattr(error, "law", "REF-0"), f"{type(error).__name__}: {error}", node)
        else:
            if faults:
                self.fail("REF-0", "; ".join(faults), node)


PAGED_EVERYTHING = frozenset(reason.name for reason in PagedReason) | frozenset(
    action.__name__ for action in PagedAction.__args__ if action.__name__ != "AccessUnknown"
)
"""What must happen in some scope of a profile: every action, and every refusal."""

"""The explorers of parts one to three, each transition of which is followed in the block machine.

They explore the specification alone. A level of the search may be thinned out, so that a quick run goes deep rather
than wide.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from blockwright_conformance.block_tables.scopes import PAGED_PROFILES
from blockwright_conformance.block_tables.world import PagedExplorer
from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.search import Node, Search
from blockwright_conformance.kv_cache.choices_gate import OpenExplorer
from blockwright_conformance.kv_cache.scopes import PROFILES, open_scopes
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain_world import ChainExplorer
from blockwright_conformance.offload.scopes import CHAIN_PROFILES, TIER_PROFILES
from blockwright_conformance.offload.tier_world import TierExplorer
from blockwright_spec import block_machine
from blockwright_spec.block_machine import Machine, Place
from blockwright_spec.block_tables.outcomes import PagedDone
from blockwright_spec.block_tables.state import dead_entries
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.manager.state import span
from blockwright_spec.manager.table_laws import jumped, tables
from blockwright_spec.offload.chain_outcomes import ChainDone
from blockwright_spec.reads import dead

from . import maps
from .steps import Move, refined

Pair = tuple[Any, Any]
"""The states before and after a transition."""


class Following:
    """Follows transitions in the block machine, and compares which entries may be null; a mix-in for explorers."""

    page: Any = block_machine
    maps: Any = maps
    width: int | None = None
    """How many states of a level are left from, evenly chosen; all of them if there is no limit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.moves: Counter[Move] = Counter()
        self.followed = 0
        self.last: tuple[Any, Any] = (None, None)

    def mapped(self, state: Any) -> Machine:
        """Map a state; the last one is remembered, since many transitions leave from it."""
        if self.last[0] is not state:
            self.last = state, self.machine(state)
        return self.last[1]  # type: ignore[no-any-return]

    def machine(self, state: Any) -> Machine:
        """Map a state to the block machine's."""
        raise NotImplementedError

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return the states before and after each transition that an action came to."""
        raise NotImplementedError

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        """Return the entries of tables, and whether a law of the part lets them be null."""
        return iter(())

    def thinned(self, frontier: list[Any]) -> list[Any]:
        """Return the states of a level that are left from."""
        return frontier[:: 1 if self.width is None else -(-len(frontier) // self.width)]

    def step_faults(self, state: Any, told: Any) -> Iterator[str]:
        """Follow the transitions of an action, and yield what is no sequence of steps."""
        for before, reached in self.pairs(state, told):
            if before is not reached:
                start = self.mapped(before) if before is state else self.machine(before)
                found = refined(start, self.machine(reached), self.page)
                self.followed += 1
                self.moves.update(found.moves)
                if found.fault:
                    yield found.fault

    def state_faults(self, state: Any) -> Iterator[tuple[str, str]]:
        """Check the invariants, and that the entries which may become null are those that the part's law names."""
        now = self.mapped(state)
        for law in BLOCK_LAWS:
            if not law.holds(now):
                yield law.id, law.statement
        for (name, entry), may in self.trimmable(state):
            if self.page.unread(now.tables[name], entry) is not may:
                yield "BLOCK-4", f"entry {entry} of table {name}: {may} by the part's law, not by BLOCK-4"


class Refining(Following, Search[Any, Any, Any, Any]):
    """Follows every transition of a search."""

    def __init__(self, scope: Any, max_transitions: int | None = None) -> None:
        super().__init__(scope, None, max_transitions=max_transitions)

    def level(self, frontier: list[Node[Any, Any]]) -> Iterator[Node[Any, Any]]:
        """Leave from some states of a level, or from all."""
        return super().level(self.thinned(frontier))

    def steps_fault(self, node: Node[Any, Any], told: Any, after: Node[Any, Any]) -> None:
        """Follow the transitions."""
        for fault in self.step_faults(node.state, told):
            self.fail("STEP-0", fault, after)

    def state_fault(self, node: Node[Any, Any]) -> None:
        """Check the state."""
        for law, fault in self.state_faults(node.state):
            self.fail(law, fault, node)


class Lawless(KVCacheWorld):
    """A manager's world without its own laws, which the gates check."""

    step_laws = ()

    def __init__(self, scope: Any) -> None:
        super().__init__(scope, laws=())


class OfManager(Following, Explorer[Any, Any]):
    """The manager, under its policy."""

    def __init__(self, scope: Any, max_transitions: int | None = None) -> None:
        super().__init__(Lawless(scope), alone=True, max_transitions=max_transitions)

    def level(self, frontier: list[Any]) -> Iterator[Any]:
        """Leave from some states of a level, or from all."""
        return super().level(self.thinned(frontier))

    def arrived(self, node: Any, action: Any, outcome: Any, after: Any) -> Any:
        """Follow the transitions."""
        for fault in self.step_faults(node.state, outcome):
            self.fail("STEP-0", fault, after.trail)
        return super().arrived(node, action, outcome, after)

    def judge_state(self, node: Any) -> None:
        """Check the state."""
        for law, fault in self.state_faults(node.state):
            self.fail(law, fault, node.trail)

    def machine(self, state: Any) -> Machine:
        """Map a manager's state."""
        return self.maps.of_manager(state)  # type: ignore[no-any-return]

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return the steps of a call, one for each request that it serves."""
        for start, done in told.steps:
            yield start, done.state
            before = done.state
        yield before, told.state

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        """Return what TRIM-2 lets be null."""
        for request, at, group, table in tables(state):
            size, slot = span(state.config, group), next(n for n, each in enumerate(state.requests) if each is request)
            for entry in range(len(table)):
                is_dead = dead(group.kind, size, request.trimmed, entry)
                yield ((slot, at), entry), is_dead or jumped(state, request, group, entry)


class OfChoices(OfManager, OpenExplorer):
    """The manager, under any legal choice."""


class OfTables(Refining, PagedExplorer):
    """Block tables."""

    def machine(self, state: Any) -> Machine:
        """Map the state of block tables."""
        return self.maps.of_tables(state)  # type: ignore[no-any-return]

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return the calls that happened."""
        for outcome in told.outcomes:
            if isinstance(outcome, PagedDone):
                yield before, outcome.state
                before = outcome.state

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        """Return what PAGE-3 lets be null."""
        for slot, table in enumerate(state.tables):
            for entry in range(len(table.entries) if table is not None else 0):
                yield (slot, entry), entry < dead_entries(state.config, table)


class OfTier(Refining, TierExplorer):
    """One tier."""

    def machine(self, state: Any) -> Machine:
        """Map a tier, or a state of the search of one."""
        return self.maps.of_tier(getattr(state, "tier", state))  # type: ignore[no-any-return]

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return what somebody wrote before a call, and the call."""
        yield before.tier, told.before
        yield told.before, told.now.tier


class OfChain(Refining, ChainExplorer):
    """A chain of tiers."""

    def machine(self, state: Any) -> Machine:
        """Map the state of a chain."""
        return self.maps.of_chain(state)  # type: ignore[no-any-return]

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return the calls that happened."""
        return ((state, outcome.state) for state, outcome in told.steps if isinstance(outcome, ChainDone))


class Part(NamedTuple):
    """A part of the specification: how it is explored, and in which scopes of a profile."""

    explorer: type[Refining] | type[OfManager]
    scopes: Callable[[str], tuple[Any, ...]]


PARTS: dict[str, Part] = {
    "the manager": Part(OfManager, lambda profile: PROFILES[profile]),
    "the manager, any choice": Part(OfChoices, open_scopes),
    "block tables": Part(OfTables, lambda profile: PAGED_PROFILES[profile]),
    "one tier": Part(OfTier, lambda profile: TIER_PROFILES[profile]),
    "a chain of tiers": Part(OfChain, lambda profile: CHAIN_PROFILES[profile]),
}
"""Every part that is followed, by the name of its row."""

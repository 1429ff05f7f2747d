"""The explorers of parts one to three, each transition of which is followed in the block machine.

They explore the specification alone. A level of the search may be thinned out, so that a quick run goes deep rather
than wide.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from blockwright_conformance.block_tables.scopes import PAGED_PROFILES
from blockwright_conformance.block_tables.world import PagedExplorer
from blockwright_conformance.checker.search import Node, Search
from blockwright_conformance.kv_cache.choices_gate import OpenExplorer
from blockwright_conformance.kv_cache.scopes import PROFILES, open_scopes
from blockwright_conformance.kv_cache.world import Explorer
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


class Refining(Search[Any, Any, Any, Any]):
    """Follows every transition of an explorer in the block machine, and compares which entries may be null."""

    page: Any = block_machine
    maps: Any = maps
    width: int | None = None
    """How many states of a level are left from, evenly chosen; all of them if there is no limit."""

    def __init__(self, scope: Any, max_transitions: int | None = None) -> None:
        super().__init__(scope, None, max_transitions=max_transitions)  # type: ignore[arg-type]
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

    def level(self, frontier: list[Node[Any, Any]]) -> Iterator[Node[Any, Any]]:
        """Leave from some states of a level, or from all."""
        stride = 1 if self.width is None else -(-len(frontier) // self.width)
        return super().level(frontier[::stride])

    def steps_fault(self, node: Node[Any, Any], told: Any, after: Node[Any, Any]) -> None:
        """Follow the transitions."""
        for before, reached in self.pairs(node.state, told):
            if before is not reached:
                start = self.mapped(before) if before is node.state else self.machine(before)
                found = refined(start, self.machine(reached), self.page)
                self.followed += 1
                self.moves.update(found.moves)
                if found.fault:
                    self.fail("STEP-0", found.fault, after)

    def state_fault(self, node: Node[Any, Any]) -> None:
        """Check the invariants, and that the entries which may become null are those that the part's law names."""
        now = self.mapped(node.state)
        for law in BLOCK_LAWS:
            if not law.holds(now):
                self.fail(law.id, law.statement, node)
        for (name, entry), may in self.trimmable(node.state):
            if self.page.unread(now.tables[name], entry) is not may:
                self.fail("BLOCK-4", f"entry {entry} of table {name}: {may} by the part's law, not by BLOCK-4", node)


class OfManager(Refining, Explorer):
    """The manager, under its policy."""

    def machine(self, state: Any) -> Machine:
        """Map a manager's state."""
        return self.maps.of_manager(state)  # type: ignore[no-any-return]

    def pairs(self, before: Any, told: Any) -> Iterator[Pair]:
        """Return the steps of a call, one for each request that it serves."""
        for done in told.steps:
            yield before, done.state
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

    explorer: type[Refining]
    scopes: Callable[[str], tuple[Any, ...]]


PARTS: dict[str, Part] = {
    "the manager": Part(OfManager, lambda profile: PROFILES[profile]),
    "the manager, any choice": Part(OfChoices, open_scopes),
    "block tables": Part(OfTables, lambda profile: PAGED_PROFILES[profile]),
    "one tier": Part(OfTier, lambda profile: TIER_PROFILES[profile]),
    "a chain of tiers": Part(OfChain, lambda profile: CHAIN_PROFILES[profile]),
}
"""Every part that is followed, by the name of its row."""

"""The explorers of parts one to three, each transition of which is followed in the block machine.

They explore the specification alone. A level of the search may be thinned out, so that a quick run goes deep rather
than wide.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

from blockwright_conformance.block_tables.scopes import PAGED_PROFILES
from blockwright_conformance.block_tables.world import TablesWorld
from blockwright_conformance.checker import explore
from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.scopes import PROFILES
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain import ChainWorld
from blockwright_conformance.offload.scopes import CHAIN_PROFILES, TIER_PROFILES
from blockwright_conformance.offload.tier import TierWorld
from blockwright_spec import block_machine
from blockwright_spec.block_machine import Machine, Place
from blockwright_spec.block_tables.state import dead_entries
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.manager.state import runs_ahead, span
from blockwright_spec.manager.table_laws import jumped, tables
from blockwright_spec.reads import dead

from . import maps
from .choices import OpenExplorer, open_scopes
from .steps import Move, refined

Pair = tuple[Any, Any]


class RefiningExplorer(explore.Explorer[Any, Any]):
    """Follows every transition of an explorer in the block machine, and compares which entries may be null."""

    world_of: ClassVar[type[World[Any, Any]]]
    width: int | None = None

    def __init__(self, scope: Any, max_transitions: int | None = None) -> None:
        super().__init__(self.world_of(scope), alone=True, max_transitions=max_transitions)
        self.moves: Counter[Move] = Counter()
        self.last: tuple[Any, Any] = (None, None)

    def mapped(self, state: Any) -> Machine:
        """Map a state; the last one is remembered, since many transitions leave from it."""
        if self.last[0] is not state:
            self.last = state, self.machine(state)
        return self.last[1]  # type: ignore[no-any-return]

    def machine(self, state: Any) -> Machine:
        raise NotImplementedError

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        return iter(())

    def level(self, frontier: list[explore.Node[Any, Any]]) -> Iterator[explore.Node[Any, Any]]:
        return super().level(frontier[:: 1 if self.width is None else -(-len(frontier) // self.width)])

    def pairs(self, before: Any, outcome: Any) -> Iterator[Pair]:
        return ((state, done.state) for state, done in outcome.steps if outcome.refusal is None)

    def judge_step(self, node: explore.Node[Any, Any], outcome: Any, trail: explore.Trail) -> None:
        for before, reached in self.pairs(node.state, outcome):
            if before is not reached:
                now = self.mapped(before) if before is node.state else self.machine(before)
                found = refined(now, self.machine(reached))
                self.moves.update(found.moves)
                if found.fault:
                    self.fail("STEP-0", found.fault, trail)

    def judge_state(self, node: explore.Node[Any, Any]) -> None:
        """Find the invariants that do not hold, and entries that may become null though the part's law denies it."""
        now = self.mapped(node.state)
        for law in BLOCK_LAWS:
            if not law.holds(now):
                self.fail(law.id, law.statement, node.trail)
        for (name, entry), may in self.trimmable(node.state):
            if block_machine.unread(now.tables[name], entry) is not may:
                fault = f"entry {entry} of table {name}: {may} by the part's law, not by BLOCK-4"
                self.fail("BLOCK-4", fault, node.trail)


class OfManager(RefiningExplorer):
    """The manager, under its policy."""

    world_of = KVCacheWorld

    machine = staticmethod(maps.of_manager)

    def pairs(self, before: Any, reported: Any) -> Iterator[Pair]:
        for start, done in reported.steps:
            yield start, done.state
            before = done.state
        yield before, reported.state

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        for request, at, group, table in tables(state):
            size, slot = span(state.config, group), next(n for n, each in enumerate(state.requests) if each is request)
            for entry in range(len(table)):
                is_dead = dead(group.kind, size, request.trimmed, entry)
                yield ((slot, at), entry), is_dead or jumped(state, request, group, entry)


class OfChoices(OfManager, OpenExplorer):
    """The manager, under any legal choice."""


class OfTables(RefiningExplorer):
    """Block tables."""

    world_of = TablesWorld

    machine = staticmethod(maps.of_tables)

    def trimmable(self, state: Any) -> Iterator[tuple[Place, bool]]:
        for slot, table in enumerate(state.tables):
            for entry in range(len(table.entries) if table is not None else 0):
                yield (slot, entry), entry < dead_entries(state.config, table)


class OfTier(RefiningExplorer):
    """One tier."""

    world_of = TierWorld

    def machine(self, state: Any) -> Machine:
        return maps.of_tier(getattr(state, "tier", state))

    def pairs(self, before: Any, outcome: Any) -> Iterator[Pair]:
        for written, done in outcome.steps:
            yield before.tier, written.tier
            yield written.tier, done.state


class OfChain(RefiningExplorer):
    """A chain of tiers."""

    world_of = ChainWorld

    machine = staticmethod(maps.of_chain)


class Part(NamedTuple):
    """A part of the specification: how it is explored, and in which scopes of a profile."""

    explorer: type[RefiningExplorer]
    scopes: Callable[[str], tuple[Any, ...]]


def followed(profile: str) -> tuple[Any, ...]:
    """Return the manager's scopes of which the block machine has all steps.

    It has none for tables that go back, as those of layers that run ahead when drafts are rejected; and it has one key
    for each block, which has several where hits end inside blocks.
    """
    return tuple(each for each in PROFILES[profile] if not runs_ahead(each.config) and not each.config.added.unit)


PARTS: dict[str, Part] = {
    "the manager": Part(OfManager, followed),
    "the manager, any choice": Part(OfChoices, open_scopes),
    "block tables": Part(OfTables, lambda profile: PAGED_PROFILES[profile]),
    "one tier": Part(OfTier, lambda profile: TIER_PROFILES[profile]),
    "a chain of tiers": Part(OfChain, lambda profile: CHAIN_PROFILES[profile]),
}

"""The explorers of parts one to three, each transition of which is followed in the block machine.

They explore the specification alone. A level of the search may be thinned out, so that a quick run goes deep rather
than wide.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
from blockwright_spec.manager.facts import runs_ahead, span
from blockwright_spec.manager.keys import stride
from blockwright_spec.manager.laws import BLOCK_LAWS
from blockwright_spec.manager.page import Acts
from blockwright_spec.manager.table_laws import jumped, tables
from blockwright_spec.reads import dead

from . import maps
from .choices import OpenExplorer, open_scopes
from .steps import Move, made, refined

Pair = tuple[Any, Any, Acts | None]
"""The states before and after a transition, and its steps where it carries them."""

Nulls = Iterator[tuple[Place, bool]]


class RefiningExplorer(explore.Explorer[Any, Any]):
    """Follows every transition of an explorer in the block machine, and compares which entries may be null."""

    width: int | None = None

    def __init__(self, part: "Part", scope: Any, max_transitions: int | None = None) -> None:
        super().__init__(part.world(scope), alone=True, max_transitions=max_transitions)
        self.part = part
        self.moves: Counter[Move] = Counter()
        self.last: tuple[Any, Any] = (None, None)

    def mapped(self, state: Any) -> Machine:
        """Map a state; the last one is remembered, since many transitions leave from it."""
        if self.last[0] is not state:
            self.last = state, self.part.machine(state)
        return self.last[1]  # type: ignore[no-any-return]

    def level(self, frontier: list[explore.Node[Any, Any]]) -> Iterator[explore.Node[Any, Any]]:
        return super().level(frontier[:: 1 if self.width is None else -(-len(frontier) // self.width)])

    def judge_step(self, node: explore.Node[Any, Any], outcome: Any, trail: explore.Trail) -> None:
        for before, reached, acts in self.part.pairs(node.state, outcome):
            if before is not reached:
                now = self.mapped(before) if before is node.state else self.part.machine(before)
                after = self.part.machine(reached)
                found = refined(now, after) if acts is None else made(now, after, acts)
                self.moves.update(found.moves)
                if found.fault:
                    self.fail("STEP-0", found.fault, trail)

    def judge_state(self, node: explore.Node[Any, Any]) -> None:
        """Find the invariants that do not hold, and entries that may become null though the part's law denies it."""
        now = self.mapped(node.state)
        for law in BLOCK_LAWS:
            if not law.holds(now):
                self.fail(law.id, law.statement, node.trail)
        for (name, entry), may in self.part.trimmable(node.state):
            if block_machine.unread(now.tables[name], entry) is not may:
                fault = f"entry {entry} of table {name}: {may} by the part's law, not by BLOCK-4"
                self.fail("BLOCK-4", fault, node.trail)


class OpenRefiningExplorer(RefiningExplorer, OpenExplorer):
    """The same under any legal choice."""


def of_calls(before: Any, outcome: Any) -> Iterator[Pair]:
    return ((state, done.state, None) for state, done in outcome.steps if outcome.refusal is None)


def of_manager_calls(before: Any, outcome: Any) -> Iterator[Pair]:
    for start, done in outcome.steps:
        yield start, done.state, done.steps
        before = done.state
    yield before, outcome.state, None


def of_tier_calls(before: Any, outcome: Any) -> Iterator[Pair]:
    for written, done in outcome.steps:
        yield before.tier, written.tier, None
        yield written.tier, done.state, None


def nulls_of_manager(state: Any) -> Nulls:
    for request, at, group, table in tables(state):
        size, slot = span(state.config, group), next(n for n, each in enumerate(state.requests) if each is request)
        for entry in range(len(table)):
            is_dead = dead(group.kind, size, request.trimmed, entry)
            yield ((slot, at), entry), is_dead or jumped(state, request, group, entry)


def nulls_of_tables(state: Any) -> Nulls:
    for slot, table in enumerate(state.tables):
        for entry in range(len(table.entries) if table is not None else 0):
            yield (slot, entry), entry < dead_entries(state.config, table)


class Part(NamedTuple):
    """A part of the specification: how it is explored and mapped, and in which scopes of a profile."""

    world: type[World[Any, Any]]
    machine: Callable[[Any], Machine]
    scopes: Callable[[str], tuple[Any, ...]]
    pairs: Callable[[Any, Any], Iterator[Pair]] = of_calls
    """The states before and after each step of an action."""
    trimmable: Callable[[Any], Nulls] = lambda state: iter(())
    """Entries of tables, and whether they may be null by the part's own law."""
    kind: type[RefiningExplorer] = RefiningExplorer

    def explorer(self, scope: Any, limit: int | None) -> RefiningExplorer:
        return self.kind(self, scope, limit)


def followed(profile: str) -> tuple[Any, ...]:
    """Return the manager's scopes of which the block machine has all steps.

    It has none for tables that go back (drafts that are rejected where layers run ahead, a shorter step), nor for a
    step that is given up: its data is taken back though others may hold the block. And a block has one key there.
    """
    return tuple(
        each
        for each in PROFILES[profile]
        if not (runs_ahead(each.config) or stride(each.config) or "shorten" in each.calls)
        if "abort" not in each.calls or each.slots == 1
    )


MANAGER = Part(KVCacheWorld, maps.of_manager, followed, of_manager_calls, nulls_of_manager)
PARTS: dict[str, Part] = {
    "the manager": MANAGER,
    "the manager, any choice": MANAGER._replace(scopes=open_scopes, kind=OpenRefiningExplorer),
    "block tables": Part(TablesWorld, maps.of_tables, PAGED_PROFILES.__getitem__, trimmable=nulls_of_tables),
    "one tier": Part(
        TierWorld, lambda state: maps.of_tier(getattr(state, "tier", state)), TIER_PROFILES.__getitem__, of_tier_calls
    ),
    "a chain of tiers": Part(ChainWorld, maps.of_chain, CHAIN_PROFILES.__getitem__),
}

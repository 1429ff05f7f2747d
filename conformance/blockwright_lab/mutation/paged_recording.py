"""The exploration of block tables in a scope, recorded once and replayed on many allocators.

As `recording`, with one difference: which free block is taken is open. What the unchanged implementation chose is
recorded; an allocator that shows something else is compared with the specification itself, which allows other choices,
and one that chose otherwise without a fault is explored anew.
"""

from dataclasses import dataclass

from blockwright_conformance.block_tables.actions import PagedAction, PagedTold, paged_enabled
from blockwright_conformance.block_tables.adapter import PagedAdapter, PagedObservation
from blockwright_conformance.block_tables.blockwright import BlockwrightTables
from blockwright_conformance.block_tables.lockstep import (
    PagedReply,
    paged_act,
    paged_examine,
    paged_expected,
    paged_follow,
    paged_perform,
    refusal_faults,
)
from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.block_tables.symmetry import PagedNames
from blockwright_conformance.block_tables.world import PagedExplorer, PagedFactory
from blockwright_spec.block_tables.outcomes import PagedDone
from blockwright_spec.block_tables.state import Paged, Pair, paged


@dataclass(frozen=True, slots=True)
class PagedMoment:
    """One transition: the number of the state it starts in, what comes of it, and the number of a state that is new."""

    start: int
    action: PagedAction
    told: PagedTold
    shows: PagedObservation
    pairs: tuple[Pair, ...]
    reached: int | None


class PagedRecording:
    """All transitions of a scope, breadth first, and all its states, as the unchanged implementation goes through."""

    def __init__(self, scope: PagedScope) -> None:
        self.scope = scope
        self.states: list[Paged] = [paged(scope.config, scope.slots)]
        self.moments: list[PagedMoment] = []
        names = PagedNames()
        seen = {names.digest(self.states[0])}
        adapters: dict[int, PagedAdapter] = {0: BlockwrightTables(scope.config)}
        for start, state in enumerate(self.states):
            for action in paged_enabled(scope, state):
                adapter = adapters[start].copy()
                told, _ = paged_act(adapter, state, action)
                reached = None
                if told.state is not state and (digest := names.digest(told.state)) not in seen:
                    seen.add(digest)
                    reached = len(self.states)
                    self.states.append(told.state)
                    adapters[reached] = adapter
                last = told.outcomes[-1]
                pairs = tuple(sorted(last.pairs)) if isinstance(last, PagedDone) else ()
                self.moments.append(PagedMoment(start, action, told, paged_expected(told.state), pairs, reached))
            del adapters[start]

    def replay(self, factory: PagedFactory) -> tuple[list[str], int]:
        """Perform every transition on copies of an allocator, up to the first fault; give it, and how far it went.

        Raises:
            Exception: whatever the allocator raises that is no refusal.
        """
        adapters = {0: factory(self.scope.config)}
        if faults := self.ask(adapters[0], 0):
            return faults, 0
        last = 0
        for number, moment in enumerate(self.moments):
            if moment.start != last:
                del adapters[last]
                last = moment.start
            adapter, state = adapters[last].copy(), self.states[last]
            reply = paged_perform(adapter, moment.action, state)
            if not self.equal(moment, reply, adapter):
                _, faults = paged_follow(state, (moment.action,), reply, adapter)
                return (faults, number + 1) if faults else self.explored(factory)
            if moment.reached is not None:
                adapters[moment.reached] = adapter
                if faults := self.ask(adapter, moment.reached):
                    return faults, number + 1
        return [], len(self.moments)

    def equal(self, moment: PagedMoment, reply: PagedReply, adapter: PagedAdapter) -> bool:
        """Tell whether an allocator answers and shows what was recorded."""
        if refusal_faults(moment.told, reply, adapter):
            return False
        return (
            tuple(sorted(reply.pairs)) == moment.pairs and adapter.observe(len(self.states[0].tables)) == moment.shows
        )

    def ask(self, adapter: PagedAdapter, number: int) -> list[str]:
        """Run an allocator's self-check, put every question to it, and name the wrong answers."""
        adapter.check()
        return paged_examine(adapter, self.states[number], self.scope.prompts)

    def explored(self, factory: PagedFactory) -> tuple[list[str], int]:
        """Explore the scope with an allocator that chooses other blocks."""
        result = PagedExplorer(self.scope, factory, ()).run()
        return [result.violation.detail] if result.violation else [], result.transitions

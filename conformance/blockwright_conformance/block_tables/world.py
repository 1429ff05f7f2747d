"""The world of block tables: the whole state of allocators and tables, and the answers to counting questions.

Which free block is taken is open: one of the choices that the specification allows must lead to the allocator's
observation. Choices are tried as orders of preference, first the order of the new blocks in the tables.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from blockwright_spec.block_tables.counts import cached_tokens, cached_tokens_of, moved, taking, touched
from blockwright_spec.block_tables.outcomes import Choice, PagedReason
from blockwright_spec.block_tables.state import Device, Paged, PagedConfig, paged
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS

from ..checker.lockstep import differing
from ..checker.world import Outcome, World
from ..kv_cache.symmetry import Names
from ..rows import Exploration
from .abstraction import PagedObservation, expected, likely, refused_wrong
from .actions import KINDS, TableCall, TablesReply, pairs_of
from .blockwright import BlockwrightTables
from .scopes import PAGED_PROFILES, PagedScope
from .symmetry import paged_form

Factory = Callable[[PagedConfig], BlockwrightTables]
TRIES = 150
"""Choices that are tried before an allocator is said to differ from all."""


class TablesWorld(World[Paged, BlockwrightTables]):
    """One scope of block tables; `factory` makes the allocator under test, with the tables on it."""

    table, action = KINDS, TableCall
    laws = PAGED_LAWS
    step_laws = PAGED_STEP_LAWS
    scope: PagedScope

    def __init__(self, scope: PagedScope, factory: Factory = BlockwrightTables) -> None:
        super().__init__(scope)
        self.factory, self.names = factory, Names(paged_form)

    def initial(self) -> Paged:
        return paged(self.scope.config, self.scope.slots)

    def made(self) -> tuple[Any, ...]:
        return self.factory, self.scope.config

    def digest(self, state: Paged) -> bytes:
        return self.names.digest(state)

    def happened(self, state: Paged, action: TableCall, outcome: Outcome[Paged]) -> Iterator[str]:
        yield outcome.refusal.reason.name if outcome.refusal else action.kind

    def choices(
        self, model: BlockwrightTables, state: Paged, action: TableCall, reply: TablesReply, shown: PagedObservation
    ) -> Iterator[Choice]:
        return islice(likely(state, shown, reply), TRIES)

    def observe(self, model: BlockwrightTables, state: Paged) -> PagedObservation:
        return model.observe(len(state.tables))

    def differences(
        self, model: BlockwrightTables, action: Any, outcome: Outcome[Paged], reply: TablesReply, shown: Any
    ) -> list[str]:
        if faults := list(refused_wrong(model.short, outcome, reply)):
            return faults
        faults = differing(expected(outcome.state), shown)
        if sorted(pairs_of(outcome)) != sorted(reply.pairs):
            faults.append(f"pairs: expected {pairs_of(outcome)}, found {reply.pairs}")
        return faults

    def examine(self, model: BlockwrightTables, state: Paged) -> list[str]:
        model.check()
        faults: list[str] = []

        def compare(what: str, want: Any, found: Any) -> None:
            if want != found:
                faults.append(f"{what}: expected {want}, found {found}")

        for prefix in self.scope.prompts:
            compare(f"cached tokens of {prefix}", cached_tokens(state, prefix), model.cached_tokens(prefix))
        for slot, table in enumerate(state.tables):
            if table is None:
                continue
            compare(f"cached tokens of {slot}", cached_tokens_of(state, table), model.cached_tokens_of(slot))
            for tokens, ahead in ((0, 0), (1, 0), (2, 1), (0, 3)):
                want = touched(state.config, table, tokens, ahead)
                compare(f"PAGE-13 touched by {tokens} + {ahead} in {slot}", want, model.touched(slot, tokens, ahead))
            to = Device.CPU if table.device is Device.GPU else Device.GPU
            size, whole = state.config.block_size, moved(state, (slot,)).items()
            full = [(block, prefix) for block, prefix in whole if prefix is not None and len(prefix[1]) % size == 0]
            compare(f"PAGE-13 full blocks of {slot}", taking(state, to, full), model.full_touched((slot,), to))
        return faults


EVERYTHING = frozenset(reason.name for reason in PagedReason) | frozenset(
    kind for kind in KINDS if kind != "AccessUnknown"
)


def weight(each: PagedScope) -> tuple[int, int, int]:
    return each.config.caching, len(each.outputs) * len(each.lookaheads), len(each.calls) + each.config.num_gpu


GATE = Exploration(
    __name__, "paged", "all scopes of block tables", PAGED_PROFILES.__getitem__, TablesWorld, EVERYTHING, weight
)

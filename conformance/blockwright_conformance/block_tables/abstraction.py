"""The observation of an allocator in a state, the choices that lead to an observation, and the check of refusals."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

from blockwright_spec.block_tables.outcomes import Choice, PagedReason, preferring
from blockwright_spec.block_tables.state import Paged, PagedTable, Pair, ends, entries_of
from blockwright_spec.reads import Prefix

from ..checker.world import Outcome
from .actions import TablesReply


class TableShown(NamedTuple):
    """A table: the tokens in its blocks but null ones, its block ids, and how many tokens were written."""

    tokens: tuple[int, ...]
    entries: tuple[int, ...]
    full_slots: int
    computed: tuple[int, int | None] | None
    """With prefix caching, tokens that are computed, and those that were when it was allocated (None once all are)."""


class PagedObservation(NamedTuple):
    """The whole state of the allocators and tables in the specification's terms; per block by absolute id."""

    tables: tuple[TableShown | None, ...]
    free: frozenset[int]
    references: tuple[int, ...]
    """Entries and pending copies that hold each block; the null block is held once."""
    null: int | None
    copies: tuple[Pair, ...]
    keys: tuple[Prefix | None, ...]
    fresh: frozenset[int]
    """What is found, and not known to be computed."""
    times: tuple[int, ...]
    """Ranks of the times of access; 0 for none."""


def ranked(times: Sequence[int]) -> tuple[int, ...]:
    ranks = {time: rank for rank, time in enumerate(sorted({0, *times}))}
    return tuple([ranks[time] for time in times])


def expected(state: Paged) -> PagedObservation:
    blocks, pending = range(len(state.contents)), ends(state.copies)
    tables = tuple([table_shown(state, table) for table in state.tables])
    held = tuple([entries_of(state, block) + pending.count(block) + (block == state.null) for block in blocks])
    rest = state.null, state.copies, state.keys, state.fresh, ranked(state.times)
    return PagedObservation(tables, state.free, held, *rest)


def table_shown(state: Paged, table: PagedTable | None) -> TableShown | None:
    if table is None:
        return None
    nulls = sum(block == state.null for block in table.entries) * state.config.block_size
    tokens = table.prefix[1]
    computed = (table.ready, table.found) if state.config.caching else None
    return TableShown(tokens[nulls:], table.entries, len(tokens), computed)


def likely(state: Paged, shown: PagedObservation, reply: TablesReply) -> Iterator[Choice]:
    """Yield choices: the allocator's own order, including blocks that the call released, and then many others."""
    yield preferring(reply.order)
    gone: dict[int, None] = {}
    first: dict[int, None] = dict.fromkeys(target for _, target in reply.pairs)
    for table, before in zip(shown.tables, state.tables, strict=True):
        now, known = (() if each is None else each.entries for each in (table, before))
        gone |= dict.fromkeys([each for each in known if each not in now])
        first |= dict.fromkeys([each for at, each in enumerate(now) if each not in known[at : at + 1]])
    for let_go in (tuple(gone), tuple(gone)[::-1]):
        yield preferring((*reply.order[:1], *let_go, *reply.order[1:]))
        yield preferring((*let_go, *reply.order))
    some = (*first, *(block for block in reply.order if block not in first))
    for order in permutations(some if len(some) < 8 else tuple(first)):
        yield preferring(order)


def refused_wrong(short: type[Exception], outcome: Outcome[Paged], reply: TablesReply) -> Iterator[str]:
    refusal, error = outcome.refusal, reply.error
    if refusal is None:
        if error is not None or reply.refused:
            yield f"refused ({type(error).__name__}: {error}); expected success"
    elif refusal.reason is PagedReason.BLOCKS_IN_USE:
        if not reply.refused:
            yield "reset though blocks are in use"
    elif error is None:
        yield f"accepted; expected {refusal.reason.name}"
    elif isinstance(error, short) != (refusal.reason is PagedReason.NO_FREE_BLOCKS):
        yield f"expected {refusal.reason.name}, found {type(error).__name__}: {error}"

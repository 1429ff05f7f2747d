"""Lock-step of block tables: one action on an allocator and on the specification, and everything compared.

Which free block is taken is open: of the choices that the specification allows, one must lead to what the allocator
shows. Choices are tried as orders of preference, first the order in which the new blocks stand in the tables.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, permutations
from typing import Any, NamedTuple

from blockwright_spec.block_tables.counts import cached_tokens, cached_tokens_of, moved, taking, touched
from blockwright_spec.block_tables.outcomes import Choice, PagedDone, PagedReason, preferring
from blockwright_spec.block_tables.state import Device, Paged, PagedTable, Pair, ends, entries_of
from blockwright_spec.reads import Prefix

from .actions import (
    Access,
    AccessFound,
    AccessUnknown,
    Allocate,
    AppendTokens,
    ClearCopies,
    Ensure,
    Fork,
    FreeTable,
    MarkComputed,
    MarkTable,
    PagedAction,
    PagedTold,
    ResetCache,
    Swap,
    blocks_accessed,
    paged_meaning,
    time_of,
)
from .adapter import PagedAdapter, PagedObservation, TableShown

TRIES = 150
"""Choices that are tried before an allocator is said to differ from all."""


class PagedReply(NamedTuple):
    """What an allocator answered to an action."""

    refused: bool = False
    """It said that the cache could not be reset."""
    error: Exception | None = None
    pairs: tuple[Pair, ...] = ()
    order: tuple[int, ...] = ()
    """The free blocks before it, in the order in which they would have been taken."""


def paged_perform(adapter: PagedAdapter, action: PagedAction, state: Paged) -> PagedReply:
    """Perform an action on an allocator whose abstract state is `state`."""
    order = adapter.order()
    try:
        return performed(adapter, action, state)._replace(order=order)
    except adapter.errors as error:
        return PagedReply(error=error, order=order)


def performed(adapter: PagedAdapter, action: PagedAction, state: Paged) -> PagedReply:
    """Make the calls of an action."""
    pairs: tuple[Pair, ...] = ()
    refused = False
    match action:
        case Allocate(slot, prefix, device):
            adapter.allocate(slot, prefix, device)
        case AppendTokens(slot, tokens, ahead, computed, delayed):
            adapter.append(slot, tokens, ahead, computed)
            pairs = () if delayed else adapter.clear_copies()
        case Ensure(slot, slots):
            adapter.ensure(slot, slots)
        case Fork(parent, child):
            adapter.fork(parent, child)
        case FreeTable(slot):
            adapter.free(slot)
        case Swap(moving, to):
            pairs = adapter.swap(moving, to)
        case ClearCopies():
            pairs = adapter.clear_copies()
        case Access() | AccessFound() | AccessUnknown():
            adapter.access(blocks_accessed(state, action), time_of(state, action))
        case MarkComputed():
            adapter.mark_computed()
        case MarkTable(slot, tokens):
            adapter.mark_table(slot, tokens)
        case ResetCache(device):
            refused = not adapter.reset(device)
    return PagedReply(refused, None, pairs)


def paged_expected(state: Paged) -> PagedObservation:
    """Give what an allocator in this state shows."""
    blocks = range(len(state.contents))
    pending = ends(state.copies)
    return PagedObservation(
        tuple([table_shown(state, table) for table in state.tables]),
        state.free,
        tuple([entries_of(state, block) + pending.count(block) + (block == state.null) for block in blocks]),
        state.null,
        state.copies,
        state.keys,
        state.fresh,
        ranked(state.times),
    )


def table_shown(state: Paged, table: PagedTable | None) -> TableShown | None:
    """Give what a table shows: tokens only where an entry is not null."""
    if table is None:
        return None
    nulls = sum(block == state.null for block in table.entries) * state.config.block_size
    tokens = table.prefix[1]
    return TableShown(tokens[nulls:], table.entries, len(tokens))


def ranked(times: Sequence[int]) -> tuple[int, ...]:
    """Give the ranks of times, 0 for no access."""
    ranks = {time: rank for rank, time in enumerate(sorted({0, *times}))}
    return tuple([ranks[time] for time in times])


def choices(state: Paged, shown: PagedObservation, reply: PagedReply) -> Iterator[Choice]:
    """Give choices to try: the allocator's own order, what the call itself let go among it, and then many others."""
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
    likely = (*first, *(block for block in reply.order if block not in first))
    for order in permutations(likely if len(likely) < 8 else tuple(first)):
        yield preferring(order)


def refusal_faults(told: PagedTold, reply: PagedReply, adapter: PagedAdapter) -> list[str]:
    """Name the differences in acceptance: not now, wrong, or done."""
    refusal, error = told.refusal, reply.error
    if refusal is None:
        if error is not None or reply.refused:
            return [f"refused ({type(error).__name__}: {error}); expected success"]
        return []
    if refusal.reason is PagedReason.BLOCKS_IN_USE:
        return [] if reply.refused else ["reset though blocks are in use"]
    if error is None:
        return [f"accepted; expected {refusal.reason.name}"]
    if isinstance(error, adapter.short) != (refusal.reason is PagedReason.NO_FREE_BLOCKS):
        return [f"expected {refusal.reason.name}, found {type(error).__name__}: {error}"]
    return []


def paged_differences(wanted: PagedObservation, shown: PagedObservation) -> list[str]:
    """Name the fields in which an allocator differs from what is wanted."""
    return [
        f"{name}: expected {want}, found {show}"
        for name, want, show in zip(PagedObservation._fields, wanted, shown, strict=True)
        if want != show
    ]


def faults_of(told: PagedTold, reply: PagedReply, shown: PagedObservation) -> list[str]:
    """Name what differs between what the specification tells and what the allocator answered and shows."""
    faults = paged_differences(paged_expected(told.state), shown)
    last = told.outcomes[-1]
    pairs = last.pairs if isinstance(last, PagedDone) else ()
    if sorted(pairs) != sorted(reply.pairs):
        faults.append(f"pairs: expected {pairs}, found {reply.pairs}")
    return faults


def paged_act(adapter: PagedAdapter, state: Paged, action: PagedAction) -> tuple[PagedTold, list[str]]:
    """Perform an action on an allocator and on the specification, and name all differences; the allocator moves on."""
    return paged_follow(state, (action,), paged_perform(adapter, action, state), adapter)


def paged_follow(
    state: Paged, actions: Sequence[PagedAction], reply: PagedReply, adapter: PagedAdapter
) -> tuple[PagedTold, list[str]]:
    """Tell what the specification says of one call that comes to these actions, and name all differences."""
    shown = adapter.observe(len(state.tables))
    first: tuple[PagedTold, list[str]] | None = None
    for choice in islice(choices(state, shown, reply), TRIES):
        told = in_turn(state, actions, choice)
        faults = refusal_faults(told, reply, adapter) or faults_of(told, reply, shown)
        if not faults:
            return told, []
        first = first or (told, faults)
        if told.refusal is not None:
            break
    assert first is not None
    return first


def in_turn(state: Paged, actions: Sequence[PagedAction], choice: Choice) -> PagedTold:
    """Tell of actions, one after another; all are refused with the first of them."""
    told = paged_meaning(state, actions[0], choice)
    for action in actions[1:] if told.refusal is None else ():
        after = paged_meaning(told.state, action, choice)
        told = PagedTold(after.state, told.outcomes + after.outcomes)
    return told


def paged_examine(adapter: PagedAdapter, state: Paged, prompts: tuple[Prefix, ...]) -> list[str]:
    """Name the differences in what an allocator answers to questions that change nothing."""
    faults: list[str] = []

    def compare(what: str, want: Any, found: Any) -> None:
        if want != found:
            faults.append(f"{what}: expected {want}, found {found}")

    for prefix in prompts:
        compare(f"cached tokens of {prefix}", cached_tokens(state, prefix), adapter.cached_tokens(prefix))
    for slot, table in enumerate(state.tables):
        if table is None:
            continue
        compare(f"cached tokens of {slot}", cached_tokens_of(state, table), adapter.cached_tokens_of(slot))
        for tokens, ahead in ((0, 0), (1, 0), (2, 1), (0, 3)):
            want = touched(state.config, table, tokens, ahead)
            compare(f"touched by {tokens} + {ahead} in {slot}", want, adapter.touched(slot, tokens, ahead))
        to = Device.CPU if table.device is Device.GPU else Device.GPU
        size = state.config.block_size
        whole = moved(state, (slot,)).items()
        full = [(block, prefix) for block, prefix in whole if prefix is not None and len(prefix[1]) % size == 0]
        compare(f"full blocks of {slot} to move", taking(state, to, full), adapter.full_touched((slot,), to))
    return faults

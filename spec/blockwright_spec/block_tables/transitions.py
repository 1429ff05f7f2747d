"""Part two, chapter 6: the transitions of block tables, one for each call, in the shape of `manager.transitions`.

A call that would run out of blocks is refused before anything changes: its blocks are counted first.
"""

from dataclasses import replace

from ..reads import Prefix
from .counts import appending, cached_tokens, missing, moved, prefixes_of, required, swapping, taking
from .effects import adoptable, adopting, computed, entered, let_go, own, placed, table_in, took, widened, written
from .outcomes import Choice, PagedDone, PagedOutcome, PagedReason, PagedRefusal
from .state import Device, Paged, PagedTable, dead_entries, ends, entries_of, free_on


def allocate(state: Paged, slot: int, prefix: Prefix, device: Device, choice: Choice) -> PagedOutcome:
    """Make a table of tokens: ``BlockTable.allocate``; full blocks that are known are shared (PAGE-6)."""
    # REFUSE
    if state.tables[slot] is not None:
        return PagedRefusal(PagedReason.HAS_BLOCKS)
    if not prefix[1]:
        return PagedRefusal(PagedReason.NO_TOKENS)
    parts, counted = prefixes_of(state.config, prefix), required(state.config, len(prefix[1]))
    if taking(state, device, ((None, part) for part in parts)) > len(free_on(state, device)):
        return PagedRefusal(PagedReason.NO_FREE_BLOCKS, counted, device)
    # CHOOSE, EFFECT
    found = cached_tokens(state, prefix) if device is Device.GPU else None
    after = placed(state, slot, PagedTable(prefix, (), device, 0, len(prefix[1]), 0, found))
    for part in parts:
        after = widened(after, slot, part, choice)
    return PagedDone(after, counted=counted, device=device)
    # SAME: other tables, pending copies.


def append(
    state: Paged, slot: int, tokens: tuple[int, ...], ahead: int, computed: int | None, choice: Choice
) -> PagedOutcome:
    """Append tokens, with slots for `ahead` more after them: ``append_token_ids`` (PAGE-11, PAGE-12)."""
    # REFUSE
    if refusal := wrong_append(state, slot, ahead, computed):
        return refusal
    counted = appending(state, ((slot, len(tokens)),), ahead)
    trimmed = windowed(adopting(state, slot, tokens), slot, computed or 0, choice)
    if trimmed is None:
        return PagedRefusal(PagedReason.NO_FREE_BLOCKS, counted)
    goes_to = written_entries(trimmed, slot, len(tokens))
    shared = tuple(block for _, block in goes_to if entries_of(trimmed, block) > 1 and trimmed.keys[block] is None)
    if any(block == target for block in shared for _, target in state.copies):
        return PagedRefusal(PagedReason.COPY_PENDING)
    slots = len(tokens) + ahead
    if missing(state.config, table_in(trimmed, slot), slots) + len(shared) > len(free_on(trimmed, Device.GPU)):
        return PagedRefusal(PagedReason.NO_FREE_BLOCKS, counted)
    # CHOOSE, EFFECT
    return PagedDone(filled_in(covered(trimmed, slot, slots, choice), slot, tokens, choice), counted=counted)
    # SAME: other tables and what they read; copies that were pending before.


def wrong_append(state: Paged, slot: int, ahead: int, computed: int | None) -> PagedRefusal | None:
    """Return the refusal of an append that is wrong."""
    table = state.tables[slot]
    if table is None:
        return PagedRefusal(PagedReason.NO_BLOCKS)
    if ahead < 0:
        return PagedRefusal(PagedReason.NEGATIVE)
    if table.device is not Device.GPU:
        return PagedRefusal(PagedReason.WRONG_DEVICE)
    if state.config.window is None:
        return None  # what is computed matters to a window alone
    if computed is None:
        return PagedRefusal(PagedReason.NOT_TOLD)
    return None if 0 <= computed <= len(table.prefix[1]) else PagedRefusal(PagedReason.UNWRITTEN)


def windowed(state: Paged, slot: int, computed: int, choice: Choice) -> Paged | None:
    """Null the entries behind the window, and release their blocks; the null block is taken when first needed (PAGE-2).

    Gives None where no block is free to become it.
    """
    table = table_in(state, slot)
    table = replace(table, computed=max(computed, table.computed) if state.config.window is not None else 0)
    dead = dead_entries(state.config, table)
    gone = tuple(block for block in table.entries[:dead] if block != state.null)
    if gone and state.null is None:
        if not free_on(state, Device.GPU):
            return None
        state, null = took(state, Device.GPU, choice)
        state = replace(state, null=null)
    nulls = (state.null,) * dead if state.null is not None else ()
    return let_go(placed(state, slot, replace(table, entries=(*nulls, *table.entries[dead:]))), gone)


def written_entries(state: Paged, slot: int, tokens: int) -> tuple[tuple[int, int], ...]:
    """Return the entries that a table has and that some more tokens go to, each with its block."""
    table, size = table_in(state, slot), state.config.block_size
    length = len(table.prefix[1])
    stop = required(state.config, length, tokens) if tokens else 0
    return tuple((entry, table.entries[entry]) for entry in range(length // size, min(stop, len(table.entries))))


def covered(state: Paged, slot: int, slots: int, choice: Choice) -> Paged:
    """Append entries to a table until `slots` slots are there after its tokens (PAGE-9)."""
    table = table_in(state, slot)
    for _ in range(missing(state.config, table, slots)):
        state = widened(state, slot, None, choice)
    reserved = max(table.reserved, len(table.prefix[1]) + slots)
    return placed(state, slot, replace(table_in(state, slot), reserved=reserved))


def filled_in(state: Paged, slot: int, tokens: tuple[int, ...], choice: Choice) -> Paged:
    """Write tokens into the slots that are there, once all blocks that they go to are the table's own."""
    table = table_in(state, slot)
    longer = replace(table, prefix=(table.prefix[0], table.prefix[1] + tokens))
    goes_to = written_entries(state, slot, len(tokens))
    for entry, _ in goes_to:
        state = own(state, slot, entry, choice)
    state = placed(state, slot, replace(longer, entries=table_in(state, slot).entries))
    for entry, _ in goes_to:
        state = written(state, slot, entry, table)
    return state


def ensure(state: Paged, slot: int, slots: int, choice: Choice) -> PagedOutcome:
    """Make sure of `slots` slots after the tokens: ``BlockTable.ensure_num_empty_slots``."""
    # REFUSE
    if refusal := wrong_append(state, slot, slots, 0):
        return refusal
    counted = appending(state, ((slot, 0),), slots)
    if missing(state.config, table_in(state, slot), slots) > len(free_on(state, Device.GPU)):
        return PagedRefusal(PagedReason.NO_FREE_BLOCKS, counted)
    # CHOOSE, EFFECT
    return PagedDone(covered(state, slot, slots, choice), counted=counted)
    # SAME: other tables, contents, pending copies.


def fork(state: Paged, parent: int, child: int) -> PagedOutcome:
    """Share all of a table's blocks with a new one: ``BlockTable.fork``; every entry holds its block once more."""
    # REFUSE
    if state.tables[parent] is None:
        return PagedRefusal(PagedReason.NO_BLOCKS)
    if state.tables[child] is not None:
        return PagedRefusal(PagedReason.HAS_BLOCKS)
    # EFFECT
    return PagedDone(placed(state, child, state.tables[parent]))
    # SAME: blocks, other tables, pending copies.


def free(state: Paged, slot: int) -> PagedOutcome:
    """Give up a table's blocks: ``BlockTable.free``."""
    # REFUSE
    table = state.tables[slot]
    if table is None:
        return PagedRefusal(PagedReason.NO_BLOCKS)
    # EFFECT
    return PagedDone(let_go(placed(state, slot, None), table.entries))
    # SAME: other tables, what can be found, pending copies.


def swap(state: Paged, slots: tuple[int, ...], to: Device, choice: Choice) -> PagedOutcome:
    """Move tables to the other device, and return the copies to run: ``CpuGpuBlockAllocator.swap`` (PAGE-15)."""
    # REFUSE
    tables = tuple(state.tables[slot] for slot in slots)
    if None in tables:
        return PagedRefusal(PagedReason.NO_BLOCKS)
    if any(table is not None and table.device is to for table in tables):
        return PagedRefusal(PagedReason.WRONG_DEVICE)
    moving, counted = moved(state, slots), swapping(state, tuple((slot, 0) for slot in slots), to, 0)
    if any(block in ends(state.copies) for block in moving):
        return PagedRefusal(PagedReason.COPY_PENDING)
    if taking(state, to, moving.items()) > len(free_on(state, to)):
        return PagedRefusal(PagedReason.NO_FREE_BLOCKS, counted, to)
    # CHOOSE, EFFECT
    pairs: tuple[tuple[int, int, bool], ...] = ()
    after = state
    for block, prefix in moving.items():
        copies = adoptable(after, to, prefix, block) is None
        after, new = entered(after, to, prefix, choice, block)
        after = computed(after, new, state.done[block]) if copies else after
        pairs = (*pairs, (block, new, copies))
    after = let_go(relocated(after, slots, to, {block: new for block, new, _ in pairs}), moving)
    return PagedDone(after, tuple((block, new) for block, new, copies in pairs if copies), counted, to)
    # SAME: other tables, and blocks that they hold; null entries; pending copies.


def relocated(state: Paged, slots: tuple[int, ...], to: Device, places: dict[int, int]) -> Paged:
    """Put tables on a device, each block in its new place; null entries stay."""
    for slot in slots:
        table = table_in(state, slot)
        entries = tuple(places.get(block, block) for block in table.entries)
        state = placed(state, slot, replace(table, entries=entries, device=to))
    return state


def clear_copies(state: Paged) -> PagedOutcome:
    """Return the pending copies, which are made now: ``clear_copy_on_writes``."""
    # EFFECT
    return PagedDone(let_go(replace(state, copies=()), ends(state.copies)), state.copies)
    # SAME: tables, contents.

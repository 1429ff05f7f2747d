"""Part two, chapter 3: the parts that the transitions on tables are made of.

A device's blocks change hands in four ways: one is taken and forgets its content, one is adopted for its content, one
is written by its only holder, and those without a holder are released.
"""

from collections.abc import Iterable
from dataclasses import replace

from ..reads import Prefix, cut
from .outcomes import Choice, may_go
from .state import Device, Paged, PagedConfig, PagedTable, blocks_of, device_of, ends, entries_of

Values = tuple[Prefix | None, ...]


def changed(values: Values, block: int, value: Prefix | None) -> Values:
    """Return values per block with one of them changed."""
    return (*values[:block], value, *values[block + 1 :])


def placed(state: Paged, slot: int, table: PagedTable | None) -> Paged:
    """Put a table in a slot."""
    return replace(state, tables=(*state.tables[:slot], table, *state.tables[slot + 1 :]))


def took(state: Paged, device: Device, choice: Choice) -> tuple[Paged, int]:
    """Take a free block, which must exist; its content and key are gone."""
    block = min(may_go(state, device), key=choice)
    return clear_blocks(replace(state, free=state.free - {block}), frozenset((block,))), block


def let_go(state: Paged, blocks: Iterable[int]) -> Paged:
    """Free those of some blocks that no entry and no pending copy holds; what cannot be found is forgotten."""
    pending = ends(state.copies)
    freed = frozenset(
        block for block in blocks if block != state.null and block not in pending and not entries_of(state, block)
    )
    lost = frozenset(block for block in freed if state.keys[block] is None)
    return clear_blocks(replace(state, free=state.free | freed), lost)


def clear_blocks(state: Paged, blocks: frozenset[int]) -> Paged:
    """Forget the contents of blocks, their keys, their computed slots, and their accesses."""
    if not blocks:
        return state
    contents, keys = (
        tuple(None if block in blocks else value for block, value in enumerate(values))
        for values in (state.contents, state.keys)
    )
    times, done = (
        tuple(0 if block in blocks else value for block, value in enumerate(values))
        for values in (state.times, state.done)
    )
    return replace(state, contents=contents, keys=keys, times=times, done=done, fresh=state.fresh - blocks)


def table_in(state: Paged, slot: int) -> PagedTable:
    """Return the table that is in a slot."""
    table = state.tables[slot]
    assert table is not None
    return table


def known(state: Paged, device: Device, prefix: Prefix | None) -> int | None:
    """Return the block of a device that is found by a prefix."""
    blocks = () if prefix is None else blocks_of(state.config, device)
    return next((block for block in blocks if state.keys[block] == prefix), None)


def adoptable(state: Paged, device: Device, prefix: Prefix | None, source: int | None = None) -> int | None:
    """Return the block of a prefix that may take the place of `source`, where that is given: of one to be written.

    Not one of which less is computed: its own sequence may compute the rest steps later (PAGE-17).
    """
    block = known(state, device, prefix)
    loses = source is not None and source != block and state.done[source] > 0
    return None if loses and block in state.fresh else block


def computed(state: Paged, block: int, count: int) -> Paged:
    """Note that steps have computed the first `count` slots of a block; a found one is cached once all are."""
    count = max(count, state.done[block])
    done = (*state.done[:block], count, *state.done[block + 1 :])
    return replace(state, done=done, fresh=state.fresh - {block} if count == state.config.block_size else state.fresh)


def filled(state: Paged, block: int, prefix: Prefix, before: Prefix | None) -> Paged:
    """Write to a block that holds `before`; if that makes it full, it can be found from now on: it is immutable.

    Unless another block is found by this content, which could not be adopted. If it holds anything else, its content
    does not count from now on: tokens that should be there already are not written.
    """
    after = replace(state, contents=changed(state.contents, block, prefix if state.contents[block] == before else None))
    if not state.config.caching or len(prefix[1]) % state.config.block_size:
        return after
    if known(state, device_of(state.config, block), prefix) is not None:
        return after
    return replace(after, keys=changed(state.keys, block, prefix), fresh=state.fresh | {block})


def entered(
    state: Paged, device: Device, prefix: Prefix | None, choice: Choice, source: int | None = None
) -> tuple[Paged, int]:
    """Return a block with this content: the one found by it that may take the place of `source`, or a new one."""
    block = adoptable(state, device, prefix, source)
    if block is not None:
        return replace(state, free=state.free - {block}), block
    after, new = took(state, device, choice)
    return (after if prefix is None else filled(after, new, prefix, None)), new


def content_at(config: PagedConfig, table: PagedTable, entry: int) -> Prefix | None:
    """Return the content of an entry's block for the table: empty where only lookahead slots are."""
    end = min((entry + 1) * config.block_size, len(table.prefix[1]))
    return cut(table.prefix, end) if end > entry * config.block_size else None


def widened(state: Paged, slot: int, prefix: Prefix | None, choice: Choice) -> Paged:
    """Append an entry to a table: a block with this content, or with lookahead slots alone."""
    table = table_in(state, slot)
    after, block = entered(state, table.device, prefix, choice)
    return placed(after, slot, replace(table, entries=(*table.entries, block)))


def put(state: Paged, slot: int, entry: int, block: int) -> Paged:
    """Put another block in an entry of a table, and let the one that was there go."""
    table = table_in(state, slot)
    entries = (*table.entries[:entry], block, *table.entries[entry + 1 :])
    return let_go(placed(state, slot, replace(table, entries=entries)), (table.entries[entry],))


def own(state: Paged, slot: int, entry: int, choice: Choice) -> Paged:
    """Make a table the only holder of an entry's block: where others hold it too, a copy takes its place (PAGE-11)."""
    source = table_in(state, slot).entries[entry]
    if entries_of(state, source) == 1 or state.keys[source] is not None:
        return state
    after, new = took(state, device_of(state.config, source), choice)
    contents = changed(after.contents, new, state.contents[source])
    after = replace(after, contents=contents, copies=(*state.copies, (source, new)))
    return put(computed(after, new, state.done[source]), slot, entry, new)


def written(state: Paged, slot: int, entry: int, before: PagedTable) -> Paged:
    """Write the tokens that a table had not `before` to a block that only it holds.

    One that fills with content that is known gives way (PAGE-6).
    """
    table = table_in(state, slot)
    prefix = content_at(state.config, table, entry)
    other = adoptable(state, table.device, prefix, table.entries[entry])
    if other is not None:
        return put(replace(state, free=state.free - {other}), slot, entry, other)
    had = content_at(state.config, before, entry)
    return state if prefix is None else filled(state, table.entries[entry], prefix, had)


def adopting(state: Paged, slot: int, tokens: tuple[int, ...]) -> Paged:
    """Let the block of known content take the place of one that others hold and these tokens would fill: no copy."""
    table, size = table_in(state, slot), state.config.block_size
    entry = len(table.prefix[1]) // size
    if entry >= len(table.entries) or entries_of(state, table.entries[entry]) == 1:
        return state
    longer = replace(table, prefix=(table.prefix[0], table.prefix[1] + tokens))
    other = adoptable(state, table.device, content_at(state.config, longer, entry), table.entries[entry])
    return state if other is None else put(replace(state, free=state.free - {other}), slot, entry, other)

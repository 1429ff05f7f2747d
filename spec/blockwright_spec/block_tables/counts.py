"""Part two, chapter 4: the questions of a scheduler before it calls: how many blocks, and whether they are free.

The counts are those of the block manager; that they are never too small is a law of steps (PAGE-13).
"""

from collections.abc import Iterable

from ..manager.outcomes import When
from ..reads import Prefix, cut
from .effects import adoptable, content_at, known
from .state import Device, Paged, PagedConfig, PagedTable, blocks_of, free_on


def required(config: PagedConfig, tokens: int, ahead: int = 0) -> int:
    """Count the blocks of some tokens and lookahead slots: ``BlockTable.get_num_required_blocks``."""
    return -((tokens + ahead) // -config.block_size)


def touched(config: PagedConfig, table: PagedTable, tokens: int, ahead: int) -> int:
    """Count the blocks an append touches: ``get_num_blocks_touched_by_append_slots``.

    One, and those beyond the rest of the block that the first token goes to. Appending nothing touches the last block,
    or none if that is full.
    """
    first = config.block_size - len(table.prefix[1]) % config.block_size
    return 1 - ((tokens + ahead - first) // -config.block_size)


def missing(config: PagedConfig, table: PagedTable, slots: int) -> int:
    """Count the blocks to append to a table so that some slots are there after its tokens."""
    return max(0, required(config, len(table.prefix[1]), slots) - len(table.entries))


def taking(state: Paged, device: Device, contents: Iterable[tuple[int | None, Prefix | None]]) -> int:
    """Count the free blocks that these contents take, each with its block now: those known and held there take none."""
    found = tuple(adoptable(state, device, prefix, source) for source, prefix in contents)
    return sum(block is None or block in state.free for block in found)


def prefixes_of(config: PagedConfig, prefix: Prefix) -> tuple[Prefix, ...]:
    """Return the contents of the blocks of some tokens, one after another."""
    size, length = config.block_size, len(prefix[1])
    return tuple(cut(prefix, min(start + size, length)) for start in range(0, length, size))


def moved(state: Paged, slots: tuple[int, ...]) -> dict[int, Prefix | None]:
    """Return the distinct blocks of some tables and their contents, in order; entries that are null do not move."""
    return {
        block: content_at(state.config, table, entry)
        for slot in slots
        if (table := state.tables[slot]) is not None
        for entry, block in enumerate(table.entries)
        if block != state.null
    }


def null_to_come(state: Paged) -> int:
    """Count the null block, if appending may take it: there is a window, and no null block yet."""
    return int(state.config.window is not None and state.null is None)


def appending(state: Paged, unseen: tuple[tuple[int, int], ...], ahead: int) -> int:
    """Count what appending touches; pairs of slot and new tokens (PAGE-13)."""
    tables = ((state.tables[slot], new) for slot, new in unseen)
    return null_to_come(state) + sum(touched(state.config, table, new, ahead) for table, new in tables if table)


def can_append_slots(state: Paged, unseen: tuple[tuple[int, int], ...], ahead: int) -> bool:
    """Return whether the tables of a group may be appended to: ``can_append_slots``; no watermark."""
    return appending(state, unseen, ahead) <= len(free_on(state, Device.GPU))


def fits(state: Paged, device: Device, count: int, most: int, watermark: int) -> When | None:
    """Return when some blocks are there beside the watermark: now (None), later, or never, of `most` that it holds."""
    if count > most:
        return When.NEVER
    return None if len(free_on(state, device)) - count >= watermark else When.NOT_NOW


def can_allocate(state: Paged, tokens: int, ahead: int, watermark: int) -> When | None:
    """Return when a prompt fits: ``can_allocate``; under a window no more is counted than it keeps."""
    count, window = required(state.config, tokens, ahead), state.config.window
    need = count if window is None else min(count, window)
    return fits(state, Device.GPU, need, state.config.num_gpu - watermark, watermark)


def can_swap(state: Paged, unseen: tuple[tuple[int, int], ...], to: Device, ahead: int, watermark: int) -> When | None:
    """Return when the tables of a group could be moved and appended to: ``can_swap_in``, ``can_swap_out``."""
    counted = swapping(state, unseen, to, ahead)
    return fits(state, to, counted, len(blocks_of(state.config, to)), watermark if to is Device.GPU else 0)


def swapping(state: Paged, unseen: tuple[tuple[int, int], ...], to: Device, ahead: int) -> int:
    """Count what moving some tables and then appending touches (PAGE-13).

    The full blocks that take one there, each once; and per table the blocks that appending touches, or those beyond its
    full blocks, if there are more: lookahead slots move as well.
    """
    full, size = moved(state, tuple(slot for slot, _ in unseen)), state.config.block_size
    tables = ((table, new) for slot, new in unseen if (table := state.tables[slot]) is not None)
    whole = tuple((block, one) for block, one in full.items() if one is not None and len(one[1]) % size == 0)
    null = null_to_come(state) if to is Device.GPU else 0
    return (
        taking(state, to, whole)
        + null
        + sum(
            max(touched(state.config, table, new, ahead), len(table.entries) - len(table.prefix[1]) // size)
            for table, new in tables
        )
    )


def cached_tokens(state: Paged, prefix: Prefix) -> int:
    """Count the leading tokens in full blocks found on the GPU that are computed (PAGE-16)."""
    found = tuple(known(state, Device.GPU, each) for each in prefixes_of(state.config, prefix))
    ready = tuple(block is not None and block not in state.fresh for block in found)
    return (*ready, False).index(False) * state.config.block_size


def cached_tokens_of(state: Paged, table: PagedTable) -> int:
    """Count the tokens of a table that need not be computed: ``get_num_cached_tokens``.

    While chunks of it are to come those found when it was allocated: a scheduler takes them off its first chunk.
    """
    return cached_tokens(state, table.prefix) if table.found is None else table.found

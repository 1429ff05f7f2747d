"""Part two, chapter 5: the calls by which an engine reports the work of its steps, and the one that forgets it. The
tokens that a call on tables writes are computed later, in one step or chunk by chunk. To skip tokens, an engine asks
which are computed; to share a block, only its content must be known.
"""

from dataclasses import replace

from .effects import clear_blocks, computed, placed
from .outcomes import PagedDone, PagedOutcome, PagedReason, PagedRefusal
from .state import Device, Paged, blocks_of


def access(state: Paged, blocks: tuple[int, ...], now: int) -> PagedOutcome:
    """Note that blocks were accessed, free ones that can be found among them: ``mark_blocks_as_accessed`` (PAGE-14)."""
    # REFUSE
    if not state.config.caching:
        return PagedDone(state)
    if any(block in state.free and state.keys[block] is None for block in blocks):
        return PagedRefusal(PagedReason.NOT_KNOWN)
    # EFFECT
    seen = frozenset(blocks) - {state.null}
    times = tuple(now if block in seen else time for block, time in enumerate(state.times))
    return PagedDone(replace(state, times=times))
    # SAME: everything else.


def mark_computed(state: Paged) -> PagedOutcome:
    """Note that what the GPU can find is computed: the allocator's ``mark_blocks_as_computed``, for all tables."""
    # EFFECT
    for block in blocks_of(state.config, Device.GPU):
        state = state if state.keys[block] is None else computed(state, block, state.config.block_size)
    return PagedDone(state)
    # SAME: everything else.


def mark_table(state: Paged, slot: int, tokens: int) -> PagedOutcome:
    """Note that a table's first tokens are computed, in chunks: the manager's ``mark_blocks_as_computed`` (PAGE-17)."""
    # REFUSE
    table = state.tables[slot]
    if table is None:
        return PagedRefusal(PagedReason.NO_BLOCKS)
    if table.device is not Device.GPU:
        return PagedRefusal(PagedReason.WRONG_DEVICE)
    if not 0 <= tokens <= len(table.prefix[1]):
        return PagedRefusal(PagedReason.UNWRITTEN)
    # EFFECT
    ready, size = max(tokens, table.ready), state.config.block_size
    after = placed(
        state, slot, replace(table, ready=ready, found=None if ready == len(table.prefix[1]) else table.found)
    )
    for entry, block in enumerate(table.entries):
        if block != state.null and entry * size < ready:
            after = computed(after, block, min(size, ready - entry * size))
    return PagedDone(after)
    # SAME: what tables and blocks hold, who holds them, other tables.


def reset(state: Paged, device: Device) -> PagedOutcome:
    """Forget what can be found on a device: ``reset_prefix_cache``."""
    # REFUSE
    blocks = frozenset(blocks_of(state.config, device)) - {state.null}
    if not state.config.caching:
        return PagedDone(state)
    if not blocks <= state.free:
        return PagedRefusal(PagedReason.BLOCKS_IN_USE)
    # EFFECT
    return PagedDone(clear_blocks(state, blocks))
    # SAME: the other device, tables.

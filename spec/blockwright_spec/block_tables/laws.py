"""Part two, chapter 7: the laws of block tables, true in every state."""

from .effects import content_at
from .state import Device, Paged, dead_entries, device_of, ends, entries_of, paged_tables


def law_block_is_in_one_place(state: Paged) -> bool:
    """PAGE-1: a block is free, or held by an entry or a pending copy, or the null block: one of these."""
    pending = ends(state.copies)
    return all(
        (block in state.free) + (entries_of(state, block) > 0 or block in pending) + (block == state.null) == 1
        for block in range(state.config.num_gpu + state.config.num_cpu)
    )


def law_null_is_unwritten(state: Paged) -> bool:
    """PAGE-2: the null block is on the GPU, never written, never found, and there only where a window needs one."""
    null = state.null
    return null is None or (
        device_of(state.config, null) is Device.GPU
        and state.config.window is not None
        and state.contents[null] is None
        and state.keys[null] is None
    )


def law_dead_entry_is_null(state: Paged) -> bool:
    """PAGE-3: an entry is null exactly where the window has left it behind."""
    return all(
        (block == state.null) == (entry < dead_entries(state.config, table))
        for table in paged_tables(state)
        for entry, block in enumerate(table.entries)
    )


def law_sequence_reads_its_own(state: Paged) -> bool:
    """PAGE-4: a sequence reads back exactly its own tokens, wherever they were forked, copied or moved to."""
    return all(
        state.contents[block] == content_at(state.config, table, entry)
        for table in paged_tables(state)
        for entry, block in enumerate(table.entries)
        if block != state.null
    )


def law_found_is_what_it_holds(state: Paged) -> bool:
    """PAGE-5: a block is found by exactly its content, and it is full."""
    return all(
        key is None
        or (state.config.caching and state.contents[block] == key and len(key[1]) % state.config.block_size == 0)
        for block, key in enumerate(state.keys)
    )


def law_content_has_one_block(state: Paged) -> bool:
    """PAGE-6: with caching, content has one block of a device at most, and a full block of a table is that block.

    Or it had been computed in part when it filled, and the block of that content had not: it keeps its content.
    """
    config = state.config
    found = [(device_of(config, block), key) for block, key in enumerate(state.keys) if key is not None]
    return len(set(found)) == len(found) and all(
        not config.caching or state.keys[block] == content or (state.keys[block] is None and state.done[block] > 0)
        for table in paged_tables(state)
        for entry, block in enumerate(table.entries)
        if block != state.null
        for content in (content_at(config, table, entry),)
        if content is not None and len(content[1]) % config.block_size == 0
    )


def law_free_block_is_found_or_empty(state: Paged) -> bool:
    """PAGE-7: a free block that cannot be found holds nothing, computed or not."""
    empty = tuple(block for block in state.free if state.keys[block] is None)
    return all(state.contents[block] is None and state.done[block] == 0 for block in empty)


def law_cached_is_computed(state: Paged) -> bool:
    """PAGE-16: cached blocks are computed: found blocks except the fresh ones, and those that a prompt found."""
    size = state.config.block_size
    blocks = frozenset(block for block, key in enumerate(state.keys) if key is not None) - state.fresh
    found = (block for table in paged_tables(state) for block in table.entries[: (table.found or 0) // size])
    return all(state.done[block] == size for block in (*blocks, *found) if block != state.null)


def law_computed_stays_with_its_table(state: Paged) -> bool:
    """PAGE-17: the computed data of a table's tokens is in the blocks that it holds, wherever they moved."""
    size = state.config.block_size
    return all(
        block == state.null or state.done[block] >= min(size, max(table.ready, table.found or 0) - entry * size)
        for table in paged_tables(state)
        for entry, block in enumerate(table.entries)
    )


def law_copies_can_be_made_at_once(state: Paged) -> bool:
    """PAGE-8: of the pending copies no block is source and destination, nor destination twice, nor on two devices."""
    sources, targets = (frozenset(pair[side] for pair in state.copies) for side in (0, 1))
    return (
        not sources & targets
        and len(targets) == len(state.copies)
        and all(device_of(state.config, source) is device_of(state.config, target) for source, target in state.copies)
    )


def law_table_covers_its_slots(state: Paged) -> bool:
    """PAGE-9: a table's entries cover its tokens and the slots it asked for, and no block more."""
    size = state.config.block_size
    return all(
        len(table.prefix[1]) <= table.reserved
        and (len(table.entries) - 1) * size < table.reserved <= len(table.entries) * size
        for table in paged_tables(state)
    )


def law_table_is_on_one_device(state: Paged) -> bool:
    """PAGE-10: except for null entries a table is on its device, and holds no block twice."""
    return all(
        len(set(blocks)) == len(blocks) and all(device_of(state.config, block) is device for block in blocks)
        for device, blocks in (
            (table.device, tuple(block for block in table.entries if block != state.null))
            for table in paged_tables(state)
        )
    )

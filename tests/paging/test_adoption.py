"""Property: an append whose tokens fill a shared block with known content takes the known block, all or nothing.

How: tables of blocks of two slots that share a partial one, beside one that holds, or held, the content that the append
completes; appends of many lengths, with lookahead entries and under a window, with exactly enough blocks free and with
one less: then nothing may have changed.
Not covered: which free block is taken (left open), and many tables at once (the gate `paged`).
"""

import pytest
from tests.paging.support import allocator_of, table_of

from blockwright.errors import NoFreeBlocksError
from blockwright.paging import BlockTable, CpuGpuBlockAllocator, Device

GPU = Device.GPU


def sharing(gpu: int, slots: int = 0) -> tuple[CpuGpuBlockAllocator, BlockTable, BlockTable]:
    """A table of the tokens 1, 2, 3, 4, and one of 1 that shares all its blocks with a third."""
    allocator = allocator_of("prefix_caching", gpu, 0, 2)
    known, table = table_of(allocator, [1, 2, 3, 4]), table_of(allocator, [1])
    table.ensure_num_empty_slots(slots)
    table.fork()
    return allocator, known, table


def tokens_of(table: BlockTable) -> list[int]:
    return [token for block in table.blocks for token in block.token_ids]


def refused(table: BlockTable, allocator: CpuGpuBlockAllocator, tokens: list[int], computed: int | None = None) -> None:
    """Append what does not fit: nothing may change."""
    before = tokens_of(table), table.physical_block_ids, table.num_full_slots, allocator.get_num_free_blocks(GPU)
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids(tokens, 0, computed)
    after = tokens_of(table), table.physical_block_ids, table.num_full_slots, allocator.get_num_free_blocks(GPU)
    assert after == before
    assert allocator.clear_copy_on_writes() == []
    table.check()


@pytest.mark.parametrize("count", range(1, 7))
def test_the_known_block_takes_the_place_of_the_shared_one(count: int) -> None:
    allocator, known, table = sharing(8)
    tokens = [2, 9, 8, 7, 6, 5][:count]
    table.append_token_ids(tokens)
    assert tokens_of(table) == [1, *tokens]
    assert table.num_full_slots == 1 + count
    assert table.physical_block_ids[0] == known.physical_block_ids[0]
    assert len(table.blocks) == 1 + count // 2
    assert allocator.clear_copy_on_writes() == []
    table.check()


def test_so_does_it_of_the_first_block_of_all() -> None:
    allocator = allocator_of("prefix_caching", 8, 0, 2)
    table, known = table_of(allocator, [1]), table_of(allocator, [1, 2])
    assert table.physical_block_ids == [0]
    table.fork()
    table.append_token_ids([2])
    assert table.physical_block_ids == known.physical_block_ids
    assert allocator.clear_copy_on_writes() == []


@pytest.mark.parametrize("held", [True, False])
def test_entries_behind_it_are_copied_though_they_come_to_be_known(held: bool) -> None:
    """They fill only after they were made the table's own."""
    allocator, known, table = sharing(9, slots=5)
    shared, places = table.physical_block_ids, known.physical_block_ids
    if not held:
        known.free()
    table.append_token_ids([2, 3, 4])
    assert [source for source, _ in allocator.clear_copy_on_writes()] == [shared[1]]
    assert table.physical_block_ids == [*places, shared[2]]
    assert tokens_of(table) == [1, 2, 3, 4]
    table.check()


def test_entries_behind_one_of_its_own_are_copied_though_they_come_to_be_known() -> None:
    allocator = allocator_of("prefix_caching", 8, 0, 2)
    known, table = table_of(allocator, [1, 2, 3, 4]), table_of(allocator, [1])
    table.ensure_num_empty_slots(3)
    table.fork().append_token_ids([7])  # writes to a copy, so that the partial block is the table's own again
    allocator.clear_copy_on_writes()
    shared = table.physical_block_ids
    table.append_token_ids([2, 3, 4])
    assert [source for source, _ in allocator.clear_copy_on_writes()] == [shared[1]]
    assert table.physical_block_ids == known.physical_block_ids
    assert tokens_of(table) == [1, 2, 3, 4]


def test_a_held_block_needs_no_room() -> None:
    allocator, _, table = sharing(3)
    assert allocator.get_num_free_blocks(GPU) == 0
    refused(table, allocator, [2, 9])
    table.append_token_ids([2])
    assert tokens_of(table) == [1, 2]


def test_without_room_for_a_new_entry_nothing_is_taken() -> None:
    allocator, _, table = sharing(4)
    allocator.allocate_or_get_null_block()
    refused(table, allocator, [2, 9])


def test_a_free_block_that_is_known_needs_room_beside_the_new_entries() -> None:
    allocator, known, table = sharing(4)
    taken = table_of(allocator, [5])
    known.free()
    filler = table_of(allocator, [6])
    assert allocator.get_num_free_blocks(GPU) == 1
    refused(table, allocator, [2, 9])
    filler.free()
    table.append_token_ids([2, 9])
    assert tokens_of(table) == [1, 2, 9]
    assert taken.physical_block_ids != table.physical_block_ids


def test_a_free_block_that_is_known_needs_room_beside_the_copies() -> None:
    """Entries that are there already, more than are written, make up for nothing."""
    allocator, known, table = sharing(6, slots=5)
    known.free()
    filler = [table_of(allocator, [6]) for _ in range(allocator.get_num_free_blocks(GPU) - 1)]
    refused(table, allocator, [2, 9])
    filler[0].free()
    shared = table.physical_block_ids
    table.append_token_ids([2, 9])
    assert [source for source, _ in allocator.clear_copy_on_writes()] == [shared[1]]
    assert tokens_of(table) == [1, 2, 9]


def test_without_a_block_for_the_null_block_nothing_is_taken() -> None:
    """What the window has passed would be released only after the null block was taken."""
    allocator = allocator_of("prefix_caching", 4, 0, 2)
    table, filler = table_of(allocator, [1, 2, 3, 4, 5], window=1), table_of(allocator, [9])
    with pytest.raises(NoFreeBlocksError, match="needed as the null block"):
        table.append_token_ids([6], 0, 5)
    refused(table, allocator, [6], 5)
    filler.free()
    table.append_token_ids([6], 0, 5)
    assert tokens_of(table) == [3, 4, 5, 6]

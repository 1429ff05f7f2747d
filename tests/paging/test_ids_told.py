"""Property: the ids that a table tells are those of its blocks, whatever has moved them behind its back, in any order.

How: tables whose ids have been read, and every way in which an id can change, alone and two after one another. Every
case was asked for by a change of the source that no other test noticed (`blockwright conform --gate mutants`).
Not covered: tables of an engine's own blocks (test_table_books.py).
"""

from typing import Any

import pytest

from blockwright.paging import Block, BlockTable, CpuGpuBlockAllocator, Device, PrefixCachingBlock


def written(blocks: int = 3) -> tuple[CpuGpuBlockAllocator, BlockTable]:
    """A table of blocks of two slots whose ids have been read; the last block has one token."""
    allocator = CpuGpuBlockAllocator.create("naive", blocks + 5, blocks + 1, 2)
    table = BlockTable(2, allocator)
    table.allocate(list(range(2 * blocks - 1)))
    assert table.physical_block_ids == list(range(blocks))
    return allocator, table


@pytest.mark.parametrize("blocks", [1, 3, 30, 300])
def test_ids_change_with_a_swap_there_and_back(blocks: int) -> None:
    allocator, table = written(blocks)
    for block in table.blocks:
        allocator.swap_out([block], Device.GPU)
    taken = allocator.allocate_mutable_block(None, Device.GPU)
    allocator.swap_in(table.blocks, Device.GPU)
    assert table.physical_block_ids == [block.block_id for block in table.blocks]
    assert taken.block_id not in table.physical_block_ids


def test_ids_change_with_a_move_of_both_devices() -> None:
    allocator, table = written()
    allocator.swap(table.blocks, Device.GPU, Device.CPU)
    assert table.physical_block_ids == [8, 9, 10]
    allocator.swap(table.blocks, Device.CPU, Device.GPU)
    other = BlockTable(2, allocator)
    other.allocate([9])
    allocator.swap(table.blocks, Device.GPU, Device.CPU)
    allocator.swap(table.blocks, Device.CPU, Device.GPU)
    assert table.physical_block_ids == [block.block_id for block in table.blocks]


def test_ids_change_when_a_block_is_set() -> None:
    _, table = written()
    table.blocks[1].block_id = 6
    assert table.physical_block_ids == [0, 6, 2]


def set_id(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    taken = allocator.allocate_mutable_block(None, Device.GPU)
    blocks[0].block_id = taken.block_id


def freed(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    allocator.free(blocks[0])


def copied(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    allocator.fork(blocks[0])
    allocator.cow_block_if_not_appendable(blocks[0])
    allocator.clear_copy_on_writes()


def swapped_out(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    allocator.swap_out(blocks, Device.GPU)


def swapped_in(allocator: CpuGpuBlockAllocator, _blocks: list[Block]) -> None:
    """A block without a place gets one: that changes no id that a table remembers."""
    allocator.swap_in([PrefixCachingBlock(None, [5], 2, allocator.on(Device.GPU))], Device.GPU)


def moved(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    allocator.swap(blocks, Device.GPU, Device.CPU)


def filled(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    """A block that fills with known content gives way."""
    known(allocator, blocks[0])
    blocks[0].append_token_ids([8])


def adopted(allocator: CpuGpuBlockAllocator, blocks: list[Block]) -> None:
    """So does one that others hold."""
    known(allocator, blocks[0])
    allocator.fork(blocks[0])
    blocks[0].append_token_ids([8])


def known(allocator: CpuGpuBlockAllocator, block: Block) -> None:
    """Hold a block with the content that a block of one slot left has when it is filled with an 8."""
    allocator.allocate_immutable_block(None, [*block.token_ids, 8], Device.GPU)


WAYS = (set_id, freed, copied, swapped_out, swapped_in, moved, filled, adopted)


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("then", WAYS)
def test_ids_are_told_anew_after_any_two_moves(first: Any, then: Any) -> None:
    """Whatever moves the blocks of two tables, one after the other: neither makes up for the other."""
    allocator = CpuGpuBlockAllocator.create("prefix_caching", 12, 4, 2)
    tables = [BlockTable(2, allocator) for _ in range(2)]
    for token, table in enumerate(tables):
        table.allocate([token])
    assert [table.physical_block_ids for table in tables] == [[0], [1]]
    for table, move in zip(tables, (first, then), strict=True):
        move(allocator, table.blocks)
    told = [table.physical_block_ids for table in tables]
    assert told == [[block.block_id for block in table.blocks if block.block_id is not None] for table in tables]


def test_ids_change_when_a_fork_writes_first() -> None:
    allocator, table = written()
    child = table.fork()
    assert child.physical_block_ids == [0, 1, 2]
    child.append_token_ids([7])
    assert (table.physical_block_ids, child.physical_block_ids) == ([0, 1, 2], [0, 1, 3])
    child.free()
    assert allocator.get_num_free_blocks(Device.GPU) == 4  # both ends of the copy wait


def test_ids_that_a_table_tells_are_the_callers() -> None:
    _, table = written()
    table.physical_block_ids[0] = 99
    assert table.physical_block_ids == [0, 1, 2]
    table.physical_block_ids.clear()
    child = table.fork()
    child.append_token_ids([7, 8, 9])
    assert table.physical_block_ids == [0, 1, 2]
    assert len(child.physical_block_ids) == 4

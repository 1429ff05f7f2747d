"""Property: calls on a block table are all or nothing, and refused where they make no sense.

How: each error is tried on both kinds of allocators, and everything is compared with what it was before.
Not covered: what tables share, copy and release (the gate `paged`), groups of sequences (test_block_manager.py).
"""

import pytest
from tests.paging.support import KINDS, allocator_dump, allocator_of, table_dump, table_of

from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import BlockTable, CpuGpuBlockAllocator, Device

GPU, CPU = Device.GPU, Device.CPU


@pytest.fixture(params=KINDS)
def allocator(request: pytest.FixtureRequest) -> CpuGpuBlockAllocator:
    """Eight blocks of four slots on the GPU, four on the CPU."""
    return allocator_of(request.param)


def check(allocator: CpuGpuBlockAllocator, *tables: BlockTable) -> None:
    for table in tables:
        table.check()
    allocator.check([block for table in tables for block in table.blocks])


def tokens_of(table: BlockTable) -> list[int]:
    """The tokens that a table reads back, those of null entries left out."""
    return [token for block in table.blocks for token in block.token_ids]


@pytest.mark.parametrize(
    ("tokens", "size", "ahead", "expected"), [(0, 4, 0, 0), (1, 4, 0, 1), (4, 4, 0, 1), (4, 4, 1, 2), (9, 4, 3, 3)]
)
def test_required_blocks(tokens: int, size: int, ahead: int, expected: int) -> None:
    assert BlockTable.get_num_required_blocks([0] * tokens, size, ahead) == expected


def test_allocate_holds_full_and_partial_blocks(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(9))
    assert [block.token_ids for block in table.blocks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert table.num_full_slots == 9
    assert table.physical_block_ids == [block.block_id for block in table.blocks]
    assert table.get_unseen_token_ids(list(range(12))) == [9, 10, 11]
    assert table.get_unseen_token_ids(tuple(range(12))) == [9, 10, 11]
    check(allocator, table)
    table.free()
    assert (table.blocks, table.physical_block_ids, table.num_full_slots) == ([], [], 0)
    assert allocator.get_num_free_blocks(GPU) == 8
    table.allocate([1], device=CPU)
    assert table.physical_block_ids == [8]


def test_allocate_is_all_or_nothing(allocator: CpuGpuBlockAllocator) -> None:
    first = table_of(allocator, range(20))
    table = BlockTable(4, allocator)
    assert table.num_found_tokens is None
    before = allocator_dump(allocator)
    with pytest.raises(NoFreeBlocksError):
        table.allocate([100 + i for i in range(13)])
    for tokens in ([], [1, -1], [2**31]):
        with pytest.raises(InvalidArgumentError):
            table.allocate(tokens)
    assert table.blocks == []
    assert allocator_dump(allocator) == before
    table.allocate([100 + i for i in range(12)])
    with pytest.raises(InvalidArgumentError, match="allocated already"):
        table.allocate([1])
    check(allocator, first, table)


def test_append_is_all_or_nothing(allocator: CpuGpuBlockAllocator) -> None:
    parent = table_of(allocator, range(6))
    child = parent.fork()
    other = table_of(allocator, range(100, 118))  # one block is left
    before = allocator_dump(allocator), table_dump(parent), table_dump(child)
    for tokens, ahead in (([6, 7, 8], 0), ([6], 5), ([6] * 40, 0), ([], 7)):
        with pytest.raises(NoFreeBlocksError):
            child.append_token_ids(tokens, ahead)
    for tokens in ([6, 7, -1], [2**31]):
        with pytest.raises(InvalidArgumentError):
            child.append_token_ids(tokens)
    with pytest.raises(InvalidArgumentError):
        child.append_token_ids([6], -1)
    assert (allocator_dump(allocator), table_dump(parent), table_dump(child)) == before
    child.append_token_ids([6, 7])
    with pytest.raises(NoFreeBlocksError):
        child.append_token_ids([8])
    check(allocator, parent, child, other)


def test_unallocated_and_freed_tables_are_refused(allocator: CpuGpuBlockAllocator) -> None:
    freed = table_of(allocator, range(5))
    freed.free()
    before = allocator_dump(allocator)
    for table in (BlockTable(4, allocator), freed):
        for act in (lambda t: t.append_token_ids([1]), lambda t: t.ensure_num_empty_slots(1), BlockTable.fork):
            with pytest.raises(InvalidArgumentError, match="no blocks"):
                act(table)
        with pytest.raises(InvalidArgumentError, match="no blocks"):
            table.free()
    assert allocator_dump(allocator) == before


def test_a_table_elsewhere_does_not_grow(allocator: CpuGpuBlockAllocator) -> None:
    table = BlockTable(4, allocator)
    table.allocate([1, 2], device=CPU)
    with pytest.raises(InvalidArgumentError, match="not on the GPU"):
        table.append_token_ids([3])
    check(allocator, table)


@pytest.mark.parametrize(("size", "window"), [(0, None), (-1, None), (4, 0), (4, -1)])
def test_arguments_are_checked(allocator: CpuGpuBlockAllocator, size: int, window: int | None) -> None:
    with pytest.raises(InvalidArgumentError):
        BlockTable(size, allocator, None, window)


# --- sliding window ---


def test_computed_slots_are_needed_and_checked(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(12), window=1)
    before = allocator_dump(allocator), table_dump(table)
    for computed in (None, -1, 13):
        with pytest.raises(InvalidArgumentError, match="num_computed_slots"):
            table.append_token_ids([12], num_computed_slots=computed)
    assert (allocator_dump(allocator), table_dump(table)) == before
    table.append_token_ids([12], num_computed_slots=12)


def test_fork_of_a_table_with_null_entries(allocator: CpuGpuBlockAllocator) -> None:
    """B01: a fork must not count the null block, nor lose sight of the entries that are left."""
    table = table_of(allocator, range(14), window=1)
    table.append_token_ids([14], num_computed_slots=13)
    child = table.fork()
    grandchild = child.fork()
    assert child.physical_block_ids == grandchild.physical_block_ids == table.physical_block_ids
    assert child.num_full_slots == 15
    check(allocator, table, child, grandchild)
    child.append_token_ids([15, 16], num_computed_slots=15)
    assert len(allocator.clear_copy_on_writes()) == 1
    assert tokens_of(child) == list(range(8, 17))
    assert child.blocks[-1].num_tokens_total == 17
    check(allocator, table, child, grandchild)
    for each in (table, grandchild, child):
        each.free()
    check(allocator)
    assert allocator.get_num_free_blocks(GPU) == 7


def test_a_table_can_be_made_of_blocks(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(14), window=1)
    table.append_token_ids([14], num_lookahead_slots=4, num_computed_slots=13)
    twin = BlockTable(4, allocator, table.blocks, 1)
    assert table_dump(twin) == table_dump(table)
    with pytest.raises(InvalidArgumentError):
        table.update(table.blocks[::-1])
    assert table_dump(twin) == table_dump(table)


def test_writing_through_a_null_entry_is_refused(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(14), window=1)
    table.append_token_ids([14], num_computed_slots=13)
    with pytest.raises(BlockError, match="null"):
        table.blocks[0].append_token_ids([1])
    check(allocator, table)

"""Property: a block table tells what it holds, and can be made of blocks.

How: tables on both kinds of allocators, by hand.
Not covered: what tables share, copy and release, and what is refused (the gate `paged`), groups of sequences
(test_block_manager.py).
"""

import pytest
from tests.paging.support import KINDS, allocator_of, table_dump, table_of

from blockwright.errors import InvalidArgumentError
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


@pytest.mark.parametrize(("size", "window"), [(0, None), (-1, None), (4, 0), (4, -1)])
def test_arguments_are_checked(allocator: CpuGpuBlockAllocator, size: int, window: int | None) -> None:
    with pytest.raises(InvalidArgumentError):
        BlockTable(size, allocator, None, window)


# --- sliding window ---


def test_a_table_can_be_made_of_blocks(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(14), window=1)
    table.append_token_ids([14], num_lookahead_slots=4, num_computed_slots=13)
    twin = BlockTable(4, allocator, table.blocks, 1)
    assert table_dump(twin) == table_dump(table)
    with pytest.raises(InvalidArgumentError):
        table.update(table.blocks[::-1])
    assert table_dump(twin) == table_dump(table)

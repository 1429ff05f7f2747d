"""Property: a block table holds the blocks of one sequence as section 4 of the named systems says; all or nothing.

How: each rule is played through with a few blocks on both kinds of allocators; after an error everything is compared
with what it was before; B01 and B02 of the known bugs (forks and releases with null entries) have a test each.
Not covered: groups of sequences (test_block_manager.py), long random histories (test_walk.py).
"""

import pytest
from tests.paging.support import KINDS, allocator_dump, allocator_of, table_dump, table_of

from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import BlockTable, CpuGpuBlockAllocator, Device, NullBlock

GPU, CPU = Device.GPU, Device.CPU


@pytest.fixture(params=KINDS)
def allocator(request: pytest.FixtureRequest) -> CpuGpuBlockAllocator:
    """Eight blocks of four slots on the GPU, four on the CPU."""
    return allocator_of(request.param)


def check(allocator: CpuGpuBlockAllocator, *tables: BlockTable) -> None:
    """The self-checks of tables and pools."""
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


def test_known_blocks_need_no_room() -> None:
    allocator = allocator_of("prefix_caching", gpu=4)
    one = table_of(allocator, range(14))
    with pytest.raises(NoFreeBlocksError):  # three are known, the partial one needs a block
        table_of(allocator, range(13))
    other = table_of(allocator, range(12))
    assert other.physical_block_ids == one.physical_block_ids[:3]
    check(allocator, one, other)


def test_append_fills_and_grows(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(3))
    table.append_token_ids([3, 4, 5, 6, 7, 8])
    assert tokens_of(table) == list(range(9))
    table.append_token_ids([])
    table.append_token_ids((9,))
    assert (table.num_full_slots, len(table.blocks)) == (10, 3)
    check(allocator, table)


def test_lookahead_slots_are_allocated_and_used(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(3))
    table.append_token_ids([3], num_lookahead_slots=5)
    ids = table.physical_block_ids
    assert (len(ids), table.num_full_slots) == (3, 4)
    table.append_token_ids([4, 5, 6, 7, 8])
    assert table.physical_block_ids == ids
    assert tokens_of(table) == list(range(9))
    table.ensure_num_empty_slots(3)
    assert table.physical_block_ids == ids
    table.ensure_num_empty_slots(4)
    assert len(table.blocks) == 4
    check(allocator, table)


@pytest.mark.parametrize("tokens", range(1, 10))
@pytest.mark.parametrize("new", range(7))
@pytest.mark.parametrize("ahead", range(6))
def test_touched_blocks_are_those_of_the_formula(tokens: int, new: int, ahead: int) -> None:
    """Spelt out: the blocks that the new slots lie in, and the last partial block even if there are none."""
    table = table_of(allocator_of("naive"), range(tokens))
    touched = {slot // 4 for slot in range(tokens, tokens + new + ahead)} | ({tokens // 4} if tokens % 4 else set())
    assert table.get_num_blocks_touched_by_append_slots([0] * new, ahead) == len(touched)


def test_a_write_to_a_shared_block_copies_it(allocator: CpuGpuBlockAllocator) -> None:
    parent = table_of(allocator, range(6))
    child = parent.fork()
    assert child.physical_block_ids == parent.physical_block_ids
    child.append_token_ids([60, 70, 80])
    parent.append_token_ids([6])
    assert child.physical_block_ids[0] == parent.physical_block_ids[0]
    assert allocator.clear_copy_on_writes() == [(parent.physical_block_ids[1], child.physical_block_ids[1])]
    assert tokens_of(parent) == [0, 1, 2, 3, 4, 5, 6]
    assert tokens_of(child) == [0, 1, 2, 3, 4, 5, 60, 70, 80]
    check(allocator, parent, child)


def test_shared_lookahead_blocks_are_copied_when_written(allocator: CpuGpuBlockAllocator) -> None:
    parent = table_of(allocator, range(6))
    parent.ensure_num_empty_slots(6)
    child = parent.fork()
    child.append_token_ids([6, 7, 8, 9])
    assert len(allocator.clear_copy_on_writes()) == 2
    assert not set(child.physical_block_ids[1:]) & set(parent.physical_block_ids[1:])
    check(allocator, parent, child)


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


def test_the_window_leaves_null_entries(allocator: CpuGpuBlockAllocator) -> None:
    """Entries before computed // 4 - 1 are null."""
    table = table_of(allocator, range(12), window=1)
    table.append_token_ids([12], num_computed_slots=7)
    assert not allocator.has_null_block
    first = table.physical_block_ids
    table.append_token_ids([13], num_computed_slots=8)
    null = allocator.allocate_or_get_null_block()
    assert [block is null for block in table.blocks] == [True, False, False, False]
    assert table.physical_block_ids == [null.block_id, *first[1:]]
    table.append_token_ids([14, 15, 16], num_computed_slots=12)
    assert [isinstance(block, NullBlock) for block in table.blocks] == [True, True, False, False, False]
    assert (table.num_full_slots, tokens_of(table)) == (17, list(range(8, 17)))
    assert allocator.get_num_free_blocks(GPU) == 8 - 3 - 1
    check(allocator, table)
    table.free()
    assert allocator.get_num_free_blocks(GPU) == 7


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


def test_release_of_a_table_with_several_null_entries(allocator: CpuGpuBlockAllocator) -> None:
    """B02: one block standing in a table several times is not released several times."""
    table = table_of(allocator, range(16), window=1)
    table.append_token_ids([16], num_computed_slots=16)
    assert len(set(table.physical_block_ids[:3])) == 1
    table.free()
    check(allocator)


def test_released_entries_make_room_for_new_ones() -> None:
    allocator = allocator_of("naive", gpu=4)
    table = table_of(allocator, range(8), window=1)
    table.append_token_ids(list(range(8, 12)), num_computed_slots=8)  # the null block is the fourth
    assert allocator.get_num_free_blocks(GPU) == 1
    table.append_token_ids(list(range(12, 16)), num_computed_slots=12)
    assert tokens_of(table) == list(range(8, 16))
    check(allocator, table)


def test_the_null_block_itself_needs_a_free_block() -> None:
    allocator = allocator_of("naive", gpu=3)
    table = table_of(allocator, range(11), window=1)
    before = allocator_dump(allocator), table_dump(table)
    with pytest.raises(NoFreeBlocksError):
        table.append_token_ids([11], num_computed_slots=11)
    assert (allocator_dump(allocator), table_dump(table)) == before
    table.append_token_ids([11], num_computed_slots=7)


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


def test_copies_come_before_a_block_fills_with_known_content() -> None:
    """A block that fills adopts a free one with its content, which must not be what another copy was counted on."""
    allocator = allocator_of("prefix_caching", gpu=6, size=2)
    known = table_of(allocator, [1, 2])
    parent = table_of(allocator, [1])
    parent.ensure_num_empty_slots(3)  # one empty block behind the partial one
    child = parent.fork()
    known.free()
    holders = [allocator.allocate_mutable_block(None, GPU)]
    assert allocator.get_num_free_blocks(GPU) == 3
    holders.append(allocator.allocate_mutable_block(None, GPU))
    child.append_token_ids([2, 3])  # the first block gives way without a copy, the empty one is copied
    assert len(allocator.clear_copy_on_writes()) == 1
    allocator.check([*parent.blocks, *child.blocks, *holders])

"""Property: a table keeps its counts and ids as its calls say, at every limit, and gives out nothing of its own.

How: small cases, each of which shows one line of `paging/block_table.py`: every one was asked for by a change of the
source that no other test noticed (`blockwright conform --gate mutants`).
Not covered: what tables do together (the gate `paged`, test_block_table.py).
"""

from typing import Any

import pytest
from tests.paging.support import allocator_of, table_of

from blockwright.core.keys.request import MAX_LENGTH
from blockwright.errors import InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import (
    Block,
    BlockAllocator,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    DeviceAwareBlockAllocator,
    NullBlock,
    PrefixCachingBlock,
)
from blockwright.paging.pool_allocator import PoolAllocator, PoolBlock


class Own(Block):
    """An engine's own block."""

    def __init__(self, place: int | None) -> None:
        self.place = place

    @property
    def block_id(self) -> int | None:
        return self.place

    @block_id.setter
    def block_id(self, value: int | None) -> None:
        self.place = value

    @property
    def num_empty_slots(self) -> int:
        return 0


class BareOfOne(BlockAllocator):
    """An engine's own allocator of one device, which says nothing of itself."""


class Bare(DeviceAwareBlockAllocator):
    """An engine's own allocator, which says nothing of itself."""


def test_the_block_size_is_that_of_the_allocator() -> None:
    with pytest.raises(InvalidArgumentError, match="4 slots, not 3"):
        BlockTable(3, allocator_of("naive"))
    with pytest.raises(InvalidArgumentError, match="block_size"):
        BlockTable(0, Bare())
    with pytest.raises(InvalidArgumentError, match="max_block_sliding_window"):
        BlockTable(4, allocator_of("naive"), None, 0)


def test_numbers_have_limits() -> None:
    required = BlockTable.get_num_required_blocks
    assert required([], 1, MAX_LENGTH) == MAX_LENGTH
    for slots in (-1, MAX_LENGTH + 1):
        with pytest.raises(InvalidArgumentError, match="num_lookahead_slots"):
            required([], 1, slots)
        with pytest.raises(InvalidArgumentError, match="num_lookahead_slots"):
            table_of(allocator_of("naive"), [1]).get_num_blocks_touched_by_append_slots([], slots)
    with pytest.raises(InvalidArgumentError, match="block_size"):
        required([1], 0)
    table = table_of(allocator_of("naive"), [0, 2**31 - 1])
    assert table.num_full_slots == 2
    for wrong in (-1, 2**31, 1.0, "1"):
        with pytest.raises(InvalidArgumentError, match="token_ids"):
            table_of(allocator_of("naive"), [0, wrong])  # type: ignore[list-item]
        with pytest.raises(InvalidArgumentError, match="token_ids"):
            PrefixCachingBlock.hash_block_tokens(None, [wrong])  # type: ignore[list-item]


def test_a_table_without_blocks_counts_nothing() -> None:
    allocator = allocator_of("naive")
    table = BlockTable(4, allocator)

    def is_empty() -> bool:
        return (table.num_full_slots, table.physical_block_ids, table.blocks) == (0, [], [])

    assert is_empty()
    for _ in range(2):
        table.allocate([1, 2, 3, 4, 5])
        assert table.num_full_slots == 5
        assert len(table.physical_block_ids) == 2
        table.check()
        table.free()
        assert is_empty()
        assert allocator.get_num_free_blocks(Device.GPU) == 8
        with pytest.raises(InvalidArgumentError, match="holds no blocks"):
            table.free()
    twin = table.copy_onto(allocator.copy())
    assert (twin.num_full_slots, twin.blocks) == (0, [])


def test_lists_that_a_table_gives_are_the_callers() -> None:
    table = table_of(allocator_of("naive"), range(5))
    table.blocks.clear()
    table.physical_block_ids.clear()
    assert len(table.blocks) == len(table.physical_block_ids) == 2
    given = table.blocks
    table.update(given)
    given.clear()
    assert len(table.blocks) == 2


def test_a_fork_that_grows_tells_its_parent_nothing() -> None:
    allocator = allocator_of("naive")
    table = table_of(allocator, range(8))
    assert table.physical_block_ids == [0, 1]
    child = table.fork()
    child.append_token_ids([8])
    assert child.physical_block_ids == [0, 1, 2]
    assert table.physical_block_ids == [0, 1]


def windowed() -> tuple[CpuGpuBlockAllocator, BlockTable]:
    """A table whose first entry is null: seven tokens in blocks of two under a window of one."""
    allocator = allocator_of("naive", size=2)
    table = table_of(allocator, range(6), window=1)
    table.append_token_ids([6], 0, 5)
    assert isinstance(table.blocks[0], NullBlock)
    return allocator, table


def test_an_update_counts_null_entries_and_tokens() -> None:
    allocator, table = windowed()
    taken = table.blocks
    fresh = BlockTable(2, allocator, None, 1)
    fresh.update(taken)
    assert fresh.num_full_slots == 7
    assert fresh.physical_block_ids == table.physical_block_ids
    fresh.check()
    fresh.update(taken[:1])
    assert (fresh.num_full_slots, fresh.physical_block_ids) == (2, table.physical_block_ids[:1])
    with pytest.raises(InvalidArgumentError, match="entry 1 is null"):
        fresh.update([taken[1], taken[0]])
    partial, full = table_of(allocator, [1]).blocks[0], taken[1]
    empty = allocator.allocate_mutable_block(None, Device.GPU)
    for wrong in ([partial, full], [empty, partial]):
        with pytest.raises(InvalidArgumentError, match="entry 1 has tokens"):
            fresh.update(wrong)
    assert fresh.num_full_slots == 2


def test_a_null_entry_does_not_put_a_table_on_the_device() -> None:
    allocator, table = windowed()
    allocator.swap([block for block in table.blocks if not isinstance(block, NullBlock)], Device.GPU, Device.CPU)
    with pytest.raises(InvalidArgumentError, match="not on the GPU"):
        table.append_token_ids([7], 0, 6)


def test_only_what_is_written_is_copied() -> None:
    allocator = allocator_of("naive", gpu=9, size=2)
    table = table_of(allocator, [1])
    table.ensure_num_empty_slots(6)
    child = table.fork()
    child.append_token_ids([2, 3])
    assert allocator.clear_copy_on_writes() == [(0, 4), (1, 5)]
    assert child.physical_block_ids == [4, 5, 2, 3]


def test_what_the_window_has_passed_makes_no_room_while_others_hold_it() -> None:
    allocator = allocator_of("naive", gpu=4, size=2)
    allocator.allocate_or_get_null_block()
    table = table_of(allocator, range(6), window=1)
    child = table.fork()
    with pytest.raises(NoFreeBlocksError, match="1 blocks are needed, 0 are free"):
        child.append_token_ids([6], 0, 5)
    assert (child.num_full_slots, child.physical_block_ids) == (6, table.physical_block_ids)
    table.free()
    child.append_token_ids([6], 0, 5)
    child.check()


def test_ids_of_an_engines_own_blocks_are_asked_for_each_time() -> None:
    table = BlockTable(4, Bare())
    first, last = Own(3), Own(None)
    table.update([first, last])
    assert table.physical_block_ids == [3]
    last.place = 0
    assert table.physical_block_ids == [3, 0]
    first.place = 7
    assert table.physical_block_ids == [7, 0]
    last.place = None
    assert table.physical_block_ids == [7]


@pytest.mark.parametrize("moves", [0, 1])
def test_a_block_without_an_id_is_passed_over_each_time(moves: int) -> None:
    class Still(Bare):
        def num_moves(self) -> int:
            return moves

    table = BlockTable(4, Still())
    table.update([Own(3), Own(None), Own(5)])
    assert table.physical_block_ids == [3, 5]
    assert table.physical_block_ids == [3, 5]


def test_a_block_freed_behind_the_tables_back_is_left_out_until_it_is_back() -> None:
    allocator = allocator_of("naive", size=2)
    table = table_of(allocator, range(4))
    assert table.physical_block_ids == [0, 1]
    allocator.swap_out(table.blocks[1:], Device.GPU)
    assert table.physical_block_ids == [0]
    allocator.swap_in(table.blocks[1:], Device.GPU)
    assert table.physical_block_ids == [0, table.blocks[1].block_id]


@pytest.mark.parametrize("call", ["known_base", "copy", "make_block"])
def test_what_a_kind_must_bring_is_not_there(call: str) -> None:
    block: Any = PoolBlock(None, [], 2, BareOfOne())
    owner: Any = allocator_of("naive").on(Device.GPU)
    if call == "copy":
        with pytest.raises(NotImplementedError):
            PoolAllocator.copy(owner)
    elif call == "make_block":
        with pytest.raises(NotImplementedError):
            PoolAllocator.make_block(owner, None, [], None)
    else:
        assert PoolAllocator.known(owner, block) == 0
        assert PoolAllocator.known_filled(owner, block, [1]) == 0

"""Property: a call that is given several blocks, tables, sequences or groups serves every one of them.

How: four of each, which differ from the third on. Every case was asked for by a loop that ended after two rounds and
that no other test noticed (`blockwright conform --gate mutants`).
Not covered: groups of sequences in long histories (the gate `movement`).
"""

import pytest
from tests.paging.support import allocator_of, group_of, table_of

from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import Device, SelfAttnBlockSpaceManager, Sequence, SimpleSequence, SimpleSequenceGroup

GPU, CPU = Device.GPU, Device.CPU


def test_accesses_of_four_blocks() -> None:
    allocator = allocator_of("prefix_caching")
    blocks = [*table_of(allocator, range(16)).blocks, allocator.allocate_mutable_block(None, CPU)]
    ids = [block.block_id for block in blocks if block.block_id is not None]
    allocator.mark_blocks_as_accessed(ids, 3.0)
    assert [block.last_accessed for block in blocks] == [3.0] * 5
    allocator.access_blocks(blocks, 4.0)
    assert [block.last_accessed for block in blocks] == [4.0] * 5
    with pytest.raises(BlockError):
        allocator.mark_blocks_as_accessed([*ids, 5], 5.0)  # a free block
    freed = allocator.allocate_mutable_block(None, GPU)
    allocator.free(freed)
    with pytest.raises(BlockError):
        allocator.access_blocks([*blocks, freed], 5.0)
    assert [block.last_accessed for block in blocks] == [4.0] * 5


def test_four_blocks_are_swapped_out_and_none_of_them_twice() -> None:
    allocator = allocator_of("prefix_caching")
    blocks = table_of(allocator, range(16)).blocks
    gpu, free = allocator.on(GPU), allocator.get_num_free_blocks(GPU)
    with pytest.raises(BlockError):
        gpu.swap_out([*blocks, blocks[3]])
    assert allocator.get_num_free_blocks(GPU) == free
    gpu.swap_out(blocks)
    assert [block.block_id for block in blocks] == [None] * 4
    assert allocator.get_num_free_blocks(GPU) == free + 4


@pytest.mark.parametrize("gpu", [7, 8])
def test_a_fork_copies_all_blocks_that_it_writes_or_none(gpu: int) -> None:
    allocator = allocator_of("naive", gpu)
    table = table_of(allocator, [1])
    table.ensure_num_empty_slots(15)
    child = table.fork()
    if gpu == 7:
        with pytest.raises(NoFreeBlocksError):
            child.append_token_ids(list(range(15)))
        assert child.physical_block_ids == table.physical_block_ids
        assert allocator.clear_copy_on_writes() == []
    else:
        child.append_token_ids(list(range(15)))
        assert sorted(table.physical_block_ids + child.physical_block_ids) == list(range(8))
        copies = list(zip(table.physical_block_ids, child.physical_block_ids, strict=True))
        assert sorted(allocator.clear_copy_on_writes()) == sorted(copies)


def test_blocks_common_to_four() -> None:
    allocator = allocator_of("prefix_caching")
    ids = table_of(allocator, range(16)).physical_block_ids
    allocator.mark_blocks_as_computed([])
    assert allocator.get_common_computed_block_ids([ids, ids, ids, ids]) == ids
    assert allocator.get_common_computed_block_ids([ids, ids, ids, ids[:1]]) == ids[:1]
    manager = SelfAttnBlockSpaceManager(2, 12, 0, watermark=0.0, enable_caching=True)
    seqs: list[Sequence] = [SimpleSequence(at, [1, 2, 3, 4, *[at // 3] * 2]) for at in range(4)]
    for seq in seqs:
        group = SimpleSequenceGroup(f"r{seq.seq_id}", [seq])
        manager.allocate(group)
        manager.mark_blocks_as_computed(group, 6)
    assert manager.get_common_computed_block_ids(seqs) == manager.get_block_table(seqs[0])[:2]


def test_copies_of_four() -> None:
    manager = SelfAttnBlockSpaceManager(2, 40, 0, watermark=0.0)
    groups = [
        SimpleSequenceGroup(f"r{at}", [SimpleSequence(at, [1, 2, 3])], SimpleSequence(at + 100, [1] * (at + 1)))
        for at in range(4)
    ]
    for group in groups:
        manager.allocate(group)
    twin = manager.copy()
    for group in groups:
        assert twin.get_cross_block_table(group) == manager.get_cross_block_table(group)
        assert twin.get_block_table(group.seqs[0]) == manager.get_block_table(group.seqs[0])


def test_a_group_of_four() -> None:
    manager = SelfAttnBlockSpaceManager(2, 8, 0, watermark=0.0)
    group, first = group_of(1, range(5), num_seqs=4)
    manager.allocate(group)
    assert [manager.get_block_table(seq) for seq in group.seqs] == [manager.get_block_table(first)] * 4
    with pytest.raises(InvalidArgumentError):
        SimpleSequenceGroup("r", [*group.seqs, SimpleSequence(4, [1])])

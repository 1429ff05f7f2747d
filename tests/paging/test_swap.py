"""Property: a swap is done whole or not at all, and questions about it are answered truly.

How: each rule is played through with a few blocks, on both kinds where it holds for both, first on the allocator, then
through the manager with its ids from zero; after an error everything is compared with what it was before.
Not covered: sharing, null entries and known content (the gate `paged`), moving data (the device package has its tests).
"""

import pytest
from tests.paging.support import (
    KINDS,
    allocator_dump,
    allocator_of,
    alone,
    group_of,
    manager_dump,
    start,
    table_dump,
    table_of,
)

from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import (
    AllocStatus,
    CpuGpuBlockAllocator,
    Device,
    SelfAttnBlockSpaceManager,
    SequenceStatus,
    SimpleSequenceGroup,
)

GPU, CPU = Device.GPU, Device.CPU


@pytest.fixture(params=KINDS)
def allocator(request: pytest.FixtureRequest) -> CpuGpuBlockAllocator:
    """Eight blocks of four slots on the GPU, four on the CPU."""
    return allocator_of(request.param)


def test_a_destination_too_full_changes_nothing(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(17))
    before = allocator_dump(allocator), table_dump(table)
    with pytest.raises(NoFreeBlocksError):
        allocator.swap(table.blocks, GPU, CPU)
    assert (allocator_dump(allocator), table_dump(table)) == before
    table.check()


def test_what_cannot_be_swapped_is_refused(allocator: CpuGpuBlockAllocator) -> None:
    parent = table_of(allocator, range(6))
    child = parent.fork()
    child.append_token_ids([60])
    before = allocator_dump(allocator), table_dump(parent), table_dump(child)
    for table in (parent, child):
        with pytest.raises(BlockError, match="copy still to be made"):
            allocator.swap(table.blocks, GPU, CPU)
    with pytest.raises(BlockError):
        allocator.swap(parent.blocks, CPU, GPU)
    with pytest.raises(InvalidArgumentError):
        allocator.swap(parent.blocks, GPU, GPU)
    assert (allocator_dump(allocator), table_dump(parent), table_dump(child)) == before


def test_halves_of_a_swap(allocator: CpuGpuBlockAllocator) -> None:
    table = table_of(allocator, range(6))
    blocks = table.blocks
    with pytest.raises(BlockError, match="twice"):
        allocator.swap_out(blocks * 2, GPU)
    with pytest.raises(BlockError, match="has a place"):
        allocator.swap_in(blocks, CPU)
    allocator.swap_out(blocks, GPU)
    assert [block.block_id for block in blocks] == [None, None]
    assert allocator.get_num_free_blocks(GPU) == 8
    allocator.swap_in(blocks, CPU)
    table.update(blocks)
    assert allocator.get_num_free_blocks(CPU) == 2
    allocator.check(table.blocks)
    table.check()


# --- through the manager ---


@pytest.fixture(params=[False, True], ids=["plain", "caching"])
def manager(request: pytest.FixtureRequest) -> SelfAttnBlockSpaceManager:
    """Eight blocks of four slots on the GPU, four on the CPU, no watermark."""
    return SelfAttnBlockSpaceManager(4, 8, 4, 0, enable_caching=request.param)


def test_ids_are_per_device_from_zero(manager: SelfAttnBlockSpaceManager) -> None:
    group, first = group_of(1, range(6), num_seqs=2)
    manager.allocate(group)
    for seq in group.get_seqs():
        seq.status = SequenceStatus.RUNNING  # type: ignore[misc]
    source = manager.get_block_table(first)
    assert manager.can_swap_out(group)
    out = manager.swap_out(group)
    assert [pair[0] for pair in out] == source
    assert sorted(pair[1] for pair in out) == [0, 1]
    for seq in group.get_seqs():
        seq.status = SequenceStatus.SWAPPED  # type: ignore[misc]
    manager.check()
    assert manager.can_swap_in(group, 0) is AllocStatus.OK
    back = manager.swap_in(group)
    assert len(back) == (1 if manager.enable_caching else 2)
    assert {pair[0] for pair in back} <= {0, 1}
    tables = [manager.get_block_table(seq) for seq in group.get_seqs()]
    assert tables[0] == tables[1]
    assert manager.get_num_free_cpu_blocks() == 4
    manager.check()


def test_can_swap_counts_and_never_falls_short(manager: SelfAttnBlockSpaceManager) -> None:
    small = start(manager, 1, range(16))
    assert manager.can_swap_out(alone(small))
    small.token_ids.append(99)  # appending touches one more
    assert not manager.can_swap_out(alone(small))
    small.token_ids.pop()
    manager.swap_out(alone(small))
    small.status = SequenceStatus.SWAPPED
    other = start(manager, 2, range(100, 120))
    small.token_ids.append(99)
    assert manager.can_swap_in(alone(small), 0) is AllocStatus.LATER
    before = manager_dump(manager)
    with pytest.raises(NoFreeBlocksError):
        manager.swap_in(alone(small))
    assert manager_dump(manager) == before
    assert manager.can_swap_in(alone(small), 20) is AllocStatus.NEVER
    manager.free(other)
    assert manager.can_swap_in(alone(small), 0) is AllocStatus.OK
    manager.check()


def test_lookahead_blocks_are_counted(manager: SelfAttnBlockSpaceManager) -> None:
    """They move as well: an answer that left them out would be followed by a failure."""
    seq = start(manager, 1, range(4))
    manager.append_slots(seq, 13)
    assert len(manager.get_block_table(seq)) == 5
    assert not manager.can_swap_out(alone(seq))
    with pytest.raises(NoFreeBlocksError):
        manager.swap_out(alone(seq))
    manager.check()


def test_the_watermark_counts_on_the_gpu_only() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 2, 0.75)
    seq = start(manager, 1, range(7))
    assert manager.can_swap_out(alone(seq))
    manager.swap_out(alone(seq))
    seq.status = SequenceStatus.SWAPPED
    assert manager.can_swap_in(alone(seq), 0) is AllocStatus.OK
    filler = start(manager, 2, range(3))
    assert manager.can_swap_in(alone(seq), 0) is AllocStatus.LATER
    manager.free(filler)


def test_sequences_move_by_their_status(manager: SelfAttnBlockSpaceManager) -> None:
    one, two = start(manager, 1, range(4)), start(manager, 2, range(50, 54))
    two.status = SequenceStatus.FINISHED
    assert len(manager.swap_out(SimpleSequenceGroup("both", [one, two]))) == 1
    assert manager.get_block_table(one) == [8]
    assert manager.swap_in(SimpleSequenceGroup("both", [one, two])) == []  # still called running

"""Property: what cannot be swapped is refused, the halves of a swap make a whole, and the manager counts ids from zero.

How: each rule is played through with a few blocks, on both kinds where it holds for both, first on the allocator, then
through the manager; after an error everything is compared with what it was before.
Not covered: room, sharing, null entries and known content (the gate `paged`), answers to questions about a swap (the
gate `movement`), moving data (the device package has its tests).
"""

import pytest
from tests.paging.support import (
    KINDS,
    allocator_dump,
    allocator_of,
    group_of,
    start,
    table_dump,
    table_of,
)

from blockwright.errors import BlockError, InvalidArgumentError
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


def test_sequences_move_by_their_status(manager: SelfAttnBlockSpaceManager) -> None:
    one, two = start(manager, 1, range(4)), start(manager, 2, range(50, 54))
    two.status = SequenceStatus.FINISHED
    assert len(manager.swap_out(SimpleSequenceGroup("both", [one, two]))) == 1
    assert manager.get_block_table(one) == [8]
    assert manager.swap_in(SimpleSequenceGroup("both", [one, two])) == []  # still called running

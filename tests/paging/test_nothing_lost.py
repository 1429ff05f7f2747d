"""Property: what is refused half-way takes nothing along: no block leaks, no table is left half written.

How: calls that fail after their first check, in both builds; afterwards the self-check holds and the free blocks are
those from before.
Not covered: calls that cannot fail after they have begun.
"""

from typing import Any

import pytest

from blockwright.errors import DuplicateRequestError, InvalidArgumentError
from blockwright.paging import (
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    SelfAttnBlockSpaceManager,
    SimpleSequence,
    SimpleSequenceGroup,
)


@pytest.fixture(params=["naive", "prefix_caching"])
def allocator(request: pytest.FixtureRequest) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(request.param, num_gpu_blocks=8, num_cpu_blocks=4, block_size=4)


@pytest.mark.parametrize("decoder", [[-2], [2**31]])
def test_a_bad_token_of_the_decoder_loses_no_block_of_the_encoder(decoder: list[Any]) -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0)
    group = SimpleSequenceGroup("r", [SimpleSequence(1, decoder)], SimpleSequence(2, [1, 2, 3]))
    with pytest.raises(InvalidArgumentError):
        manager.allocate(group)
    assert manager.get_num_free_gpu_blocks() == 8
    manager.check()


def test_two_waiting_sequences_with_one_id_are_refused() -> None:
    manager = SelfAttnBlockSpaceManager(4, 8, 0)
    group = SimpleSequenceGroup("r", [SimpleSequence(7, [1])])
    group.seqs.append(SimpleSequence(7, [1]))
    with pytest.raises(DuplicateRequestError, match="two waiting sequences have the id 7"):
        manager.allocate(group)
    assert manager.get_num_free_gpu_blocks() == 8


@pytest.mark.parametrize("bad", [5.5, -1, 2**31, "a", None])
def test_a_bad_token_in_a_later_block_writes_nothing(allocator: CpuGpuBlockAllocator, bad: Any) -> None:
    table = BlockTable(4, allocator)
    for tokens in ([bad], [1, 2, 3, 4, bad]):
        with pytest.raises(InvalidArgumentError):
            table.allocate(tokens)
    assert allocator.get_num_free_blocks(Device.GPU) == 8
    table.allocate([1, 2, 3])
    for tokens in ([bad], [4, bad], [4, 5, 6, 7, 8, bad]):
        with pytest.raises(InvalidArgumentError):
            table.append_token_ids(tokens)
    assert [block.token_ids for block in table.blocks] == [[1, 2, 3]]
    table.check()
    allocator.check(table.blocks)


def test_a_table_has_blocks_of_its_allocators_size(allocator: CpuGpuBlockAllocator) -> None:
    for size in (2, 8):
        with pytest.raises(InvalidArgumentError, match="have 4 slots, not"):
            BlockTable(size, allocator)

"""Property: an allocator of two devices finds out on which one a block lies, and answers tables exactly.

How: small cases, each of which shows one line of `paging/cpu_gpu.py` or `paging/device_pool.py`; every one was asked
for by a change that no other test noticed (`blockwright conform --gate mutants`).
Not covered: swaps (test_swap.py).
"""

import math
from typing import Any

import pytest
from tests.paging.support import KINDS, allocator_of, table_of

from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.paging import Block, CpuGpuBlockAllocator, Device, NaiveBlockAllocator, PrefixCachingBlockAllocator

GPU, CPU = Device.GPU, Device.CPU


def on_both(kind: str) -> tuple[CpuGpuBlockAllocator, Block, Block]:
    """An allocator with a block of one token on each device, the ids of which are 0 and 8."""
    allocator = allocator_of(kind)
    blocks = [allocator.allocate_mutable_block(None, device) for device in (GPU, CPU)]
    for block in blocks:
        block.append_token_ids([7])
    assert [block.block_id for block in blocks] == [0, 8]
    return allocator, blocks[0], blocks[1]


def test_ids_of_both_must_be_apart() -> None:
    for cpu, gpu in ((0, 4), (4, 0), (2, 0), (0, 2)):
        CpuGpuBlockAllocator(NaiveBlockAllocator(2, 2, cpu), NaiveBlockAllocator(2, 2, gpu))
    for cpu, gpu in ((0, 0), (1, 0), (0, 1)):
        with pytest.raises(InvalidArgumentError, match="also those"):
            CpuGpuBlockAllocator(NaiveBlockAllocator(2, 2, cpu), NaiveBlockAllocator(2, 2, gpu))


def test_what_is_no_device_and_no_allocator_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="device: must be a Device, not 'GPU'"):
        allocator_of("naive").on("GPU")  # type: ignore[arg-type]
    with pytest.raises(BlockError, match="not of this kind"):
        allocator_of("naive").copy_block(Block(), None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copied_block_is_on_the_same_device(kind: str) -> None:
    allocator, near, far = on_both(kind)
    last = [allocator.allocate_mutable_block(None, GPU) for _ in range(7)][-1]
    twin = allocator.copy()
    for block, device in ((near, GPU), (far, CPU), (last, GPU)):
        other = twin.copy_block(block, None)
        assert (other.block_id, twin.is_on(other, device)) == (block.block_id, True)
        assert twin.is_on(other, CPU if device is GPU else GPU) is False
        twin.free(other)
    freed = allocator.allocate_mutable_block(None, CPU)
    allocator.free(freed)
    assert twin.copy_block(freed, None).block_id is None


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_both_devices_are_told(kind: str) -> None:
    allocator, near, far = on_both(kind)
    for block in (near, far):
        twin = allocator.fork(block)[0]
        assert allocator.num_to_copy([twin]) == 1
        twin.append_token_ids([8])
        assert allocator.num_to_copy([twin]) == 0
        with pytest.raises(BlockError, match="still to be made"):
            allocator.swap_out([block], GPU if block is near else CPU)
    assert allocator.clear_copy_on_writes() == [(0, 1), (8, 9)]
    assert allocator.clear_copy_on_writes() == []


def test_only_ends_of_copies_wait() -> None:
    allocator, near, _ = on_both("naive")
    idle = allocator.allocate_mutable_block(None, GPU)
    twin = allocator.fork(near)[0]
    twin.append_token_ids([8])
    allocator.swap_out([idle], GPU)
    second = allocator.fork(twin)[0]
    with pytest.raises(BlockError, match="still to be made"):
        allocator.num_to_copy([second])
    with pytest.raises(BlockError, match="still to be made"):
        second.append_token_ids([9])


def test_what_is_released_is_counted_on_each_device() -> None:
    for device in (GPU, CPU):
        allocator = allocator_of("naive")
        blocks = [allocator.allocate_mutable_block(None, device) for _ in range(3)]
        allocator.fork(blocks[1])
        null = allocator.allocate_or_get_null_block()
        assert allocator.num_freed([]) == allocator.num_freed([null]) == 0
        assert allocator.num_freed([blocks[0], null, blocks[2]]) == 2
        assert allocator.num_freed(blocks) == 2
        assert allocator.num_freed([blocks[1]]) == 0
        assert allocator.is_on(null, GPU)
        assert allocator.is_on(null, CPU)


def test_what_fills_a_shared_block_is_adopted_if_it_is_known() -> None:
    allocator = allocator_of("prefix_caching", size=2)
    known = table_of(allocator, [1, 2])
    other = table_of(allocator, [1])
    block = other.blocks[0]
    assert allocator.num_to_adopt(block, [2]) == -1  # nobody shares it
    other.fork()
    assert allocator.num_to_adopt(block, [2]) == 0  # known, and held
    assert allocator.num_to_adopt(block, [3]) == -1
    assert allocator.num_to_adopt(block, []) == -1
    known.free()
    assert allocator.num_to_adopt(block, [2]) == 1  # known, and free
    assert block.token_ids == [1]
    full = table_of(allocator, [5, 6])
    full.fork()
    assert allocator.num_to_adopt(full.blocks[0], []) == -1  # shared, known and full: nothing is written
    allocator.own_blocks([block])
    assert [source for source, _ in allocator.clear_copy_on_writes()] == [1]


def test_accesses_of_a_table_are_noted_all_or_none() -> None:
    allocator = allocator_of("prefix_caching")
    blocks = table_of(allocator, range(6)).blocks
    null = allocator.allocate_or_get_null_block()
    allocator.access_blocks([null, *blocks], 3.0)
    assert [block.last_accessed for block in blocks] == [3.0, 3.0]
    freed = allocator.allocate_mutable_block(None, GPU)
    allocator.free(freed)
    with pytest.raises(BlockError, match="freed"):
        allocator.access_blocks([blocks[0], freed], 4.0)
    with pytest.raises(InvalidArgumentError, match="now"):
        allocator.access_blocks(blocks, math.nan)
    with pytest.raises(InvalidArgumentError, match="now"):
        blocks[0].last_accessed = math.nan
    assert [block.last_accessed for block in blocks] == [3.0, 3.0]


@pytest.mark.parametrize("held", [GPU, CPU])
def test_a_reset_of_both_is_all_or_none(held: Device) -> None:
    allocator = allocator_of("prefix_caching", size=2)
    hashes = []
    for device in (GPU, CPU):
        block = allocator.allocate_immutable_block(None, [1, 2], device)
        hashes = [block.content_hash or b""]
        allocator.free(block)
    keeper = allocator.allocate_mutable_block(None, held)
    assert allocator.reset_prefix_cache() is False
    assert [allocator.find_cached_blocks_prefix(hashes, device) for device in (GPU, CPU)] == [hashes, hashes]
    allocator.free(keeper)
    assert allocator.reset_prefix_cache() is True
    assert [allocator.find_cached_blocks_prefix(hashes, device) for device in (GPU, CPU)] == [[], []]


def test_a_place_that_is_none_holds_nothing() -> None:
    allocator = NaiveBlockAllocator(2, 2, 5)
    block = allocator.allocate_mutable_block(None)
    null = allocator.allocate_or_get_null_block()
    assert (block.block_id, null.block_id) == (5, 6)
    for place in (None, 4, 6, 7):
        block.block_id = place
        with pytest.raises(BlockError, match="it was freed"):
            allocator.cow_block_if_not_appendable(block)
    block.block_id = 5
    assert allocator.cow_block_if_not_appendable(block) == 5


def test_a_free_place_holds_nothing() -> None:
    allocator = NaiveBlockAllocator(3, 2, 5)
    block = allocator.allocate_mutable_block(None)
    free = set(range(5, 8)) - {block.block_id}
    for place in free:
        block.block_id = place
        with pytest.raises(BlockError, match="it was freed"):
            allocator.cow_block_if_not_appendable(block)


@pytest.mark.parametrize("first", [0, 1, 2, 5])
def test_a_copy_to_come_is_not_copied_again(first: int) -> None:
    """Wherever the ids of a device begin."""
    allocator = NaiveBlockAllocator(6, 2, first)
    idle = allocator.allocate_mutable_block(None)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    twin.append_token_ids([2])
    again = allocator.fork(twin)[0]
    with pytest.raises(BlockError, match="still to be made"):
        allocator.cow_block_if_not_appendable(again)
    other = allocator.fork(idle)[0]
    assert allocator.cow_block_if_not_appendable(other) == first + 3
    assert allocator.clear_copy_on_writes() == [(first + 1, first + 2), (first, first + 3)]
    assert allocator.cow_block_if_not_appendable(again) == first + 4


@pytest.mark.parametrize("kind", [NaiveBlockAllocator, PrefixCachingBlockAllocator])
def test_a_copied_block_is_on_its_device_whichever_has_the_first_ids(kind: Any) -> None:
    allocator = CpuGpuBlockAllocator(kind(2, 2, 0), kind(2, 2, 2))
    block = allocator.allocate_mutable_block(None, CPU)
    assert block.block_id == 0
    twin = allocator.copy()
    assert twin.is_on(twin.copy_block(block, None), CPU)

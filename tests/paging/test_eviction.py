"""Property: candidates are evicted least recently accessed first, then by the most tokens, then by the lowest id; a
refreshed access time takes effect at once.

How: the heap is compared with a sorted list over long random histories; accesses are noted all or none.
Not covered: allocators that evict (the gate `paged`), the order of release (the queue of the core has its own tests).
"""

import random

import pytest
from tests.paging.support import allocator_dump, allocator_of

from blockwright.core.worth.by_access import AccessOrder
from blockwright.errors import BlockError, InvalidArgumentError, InvariantError
from blockwright.paging import Block, CpuGpuBlockAllocator, Device

GPU, CPU = Device.GPU, Device.CPU


@pytest.mark.parametrize("seed", range(5))
def test_the_heap_is_a_sorted_list(seed: int) -> None:
    draw = random.Random(seed)
    order = AccessOrder(33)
    times, lengths, members = [-1.0] * 33, [0] * 33, set[int]()
    for _ in range(1500):
        block = draw.randrange(1, 33)
        act = draw.randrange(5)
        if act == 0 and block not in members:
            order.add(block)
            members.add(block)
        elif act == 1 and block in members:
            order.remove(block)
            members.remove(block)
        elif act == 2:
            times[block] = float(draw.randrange(4))
            order.accessed(block, times[block])
        elif act == 3:
            lengths[block] = draw.randrange(4)
            order.measure(block, lengths[block])
        elif members:
            expected = min(members, key=lambda b: (times[b], -lengths[b], b))
            assert order.pop() == expected
            members.remove(expected)
            times[expected], lengths[expected] = -1.0, 0
        twin = order.copy()
        assert isinstance(twin, AccessOrder)
        assert order.candidates() == sorted(members, key=lambda b: (times[b], -lengths[b], b))
        assert order.is_sound()
        if members:
            twin.pop()
        assert len(order.candidates()) == len(members)


@pytest.fixture
def allocator() -> CpuGpuBlockAllocator:
    """Four blocks of two slots on the GPU, two on the CPU, found by content."""
    return allocator_of("prefix_caching", gpu=4, cpu=2, size=2)


def first_of(allocator: CpuGpuBlockAllocator, *contents: list[int]) -> list[Block]:
    return [allocator.allocate_immutable_block(None, tokens, GPU) for tokens in contents]


def test_accesses_are_all_or_none(allocator: CpuGpuBlockAllocator) -> None:
    (block,) = first_of(allocator, [1, 1])
    place = block.block_id or 0
    there = allocator.allocate_immutable_block(None, [1, 1], CPU)
    free = next(i for i in range(4) if i != place)
    before = allocator_dump(allocator)
    for ids in ([place, free], [place, 6], [place, -1], [place, there.block_id or 0, 5]):
        with pytest.raises(BlockError):
            allocator.mark_blocks_as_accessed(ids, 1.0)
    with pytest.raises(InvalidArgumentError):
        allocator.mark_blocks_as_accessed([place], float("nan"))
    assert allocator_dump(allocator) == before
    allocator.mark_blocks_as_accessed([place, there.block_id or 0], 1.0)
    assert (block.last_accessed, there.last_accessed) == (1.0, 1.0)
    block.last_accessed = 2.0
    assert allocator.on(GPU).pool.time_of(place + 1) == 2.0


def test_the_self_check_sees_a_wrong_count(allocator: CpuGpuBlockAllocator) -> None:
    (block,) = first_of(allocator, [1, 1])
    allocator.free(block)
    allocator.check([])
    with pytest.raises(InvariantError):
        allocator.check([*first_of(allocator, [2, 2]) * 2])

"""Property: a block that loses its content loses its access time with it, and the next owner starts without one.

How: a partial block is accessed and freed; whoever takes it next must go before a block that was accessed meanwhile.
Not covered: every order of accesses and evictions (the gate `paged`, which found this).
"""

from blockwright.paging import BlockTable, CpuGpuBlockAllocator, Device


def test_the_next_owner_of_a_partial_block_starts_without_an_access_time() -> None:
    allocator = CpuGpuBlockAllocator.create("prefix_caching", num_gpu_blocks=2, num_cpu_blocks=0, block_size=2)
    table = BlockTable(2, allocator)
    table.allocate([1])
    allocator.mark_blocks_as_accessed(table.physical_block_ids, 9.0)
    table.free()
    table.allocate([1, 2])  # takes the same block
    other = BlockTable(2, allocator)
    other.allocate([3, 4])
    allocator.mark_blocks_as_accessed(other.physical_block_ids, 5.0)
    first, second = table.physical_block_ids, other.physical_block_ids
    table.free()
    other.free()
    table.allocate([5])
    assert table.physical_block_ids == first, "never accessed since it was taken, so it goes first"
    assert allocator.get_num_free_blocks(Device.GPU) == 1
    assert second != first

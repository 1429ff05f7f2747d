"""What the tests of block tables share: small managers and sequences, and a dump of everything a manager knows."""

from collections.abc import Iterable

from blockwright.paging import (
    Block,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NullBlock,
    SelfAttnBlockSpaceManager,
    SequenceStatus,
    SimpleSequence,
    SimpleSequenceGroup,
)

KINDS = ("naive", "prefix_caching")


def allocator_of(kind: str, gpu: int = 8, cpu: int = 4, size: int = 4) -> CpuGpuBlockAllocator:
    return CpuGpuBlockAllocator.create(kind, num_gpu_blocks=gpu, num_cpu_blocks=cpu, block_size=size)


def table_of(allocator: CpuGpuBlockAllocator, tokens: Iterable[int], window: int | None = None) -> BlockTable:
    table = BlockTable(allocator.on(Device.GPU).block_size, allocator, max_block_sliding_window=window)
    table.allocate(list(tokens))
    return table


def group_of(seq_id: int, tokens: Iterable[int], *, num_seqs: int = 1) -> tuple[SimpleSequenceGroup, SimpleSequence]:
    """A waiting group of sequences with one prompt, and the first of them."""
    first = SimpleSequence(seq_id, list(tokens))
    seqs = [first] + [first.fork(seq_id + i) for i in range(1, num_seqs)]
    return SimpleSequenceGroup(f"r{seq_id}", seqs), first


def start(manager: SelfAttnBlockSpaceManager, seq_id: int, tokens: Iterable[int]) -> SimpleSequence:
    group, seq = group_of(seq_id, tokens)
    manager.allocate(group)
    seq.status = SequenceStatus.RUNNING
    return seq


def alone(seq: SimpleSequence) -> SimpleSequenceGroup:
    return SimpleSequenceGroup("one", [seq])


def block_dump(block: Block) -> object:
    if isinstance(block, NullBlock):
        return "null", block.block_id
    return (block.block_id, block.token_ids, block.content_hash, block.computed, block.last_accessed, block.extra_hash)


def table_dump(table: BlockTable) -> object:
    return [block_dump(block) for block in table.blocks], table.num_full_slots


def allocator_dump(allocator: CpuGpuBlockAllocator) -> object:
    """Everything that the pools of both devices say of themselves, the order of eviction included."""
    pools = [allocator.on(device).pool for device in Device]
    return [
        (
            pool.ref_counts(),
            pool.free_block_ids(),
            pool.block_keys(),
            pool.pending_copies(),
            pool.null,
            [pool.time_of(pool.first_id + block) for block in range(len(pool.ref_counts()))],
            [pool.is_computed(pool.first_id + block) for block in range(1, len(pool.ref_counts()))],
        )
        for pool in pools
    ]


def manager_dump(manager: SelfAttnBlockSpaceManager) -> object:
    return (
        {seq_id: table_dump(table) for seq_id, table in manager.block_tables.items()},
        {request_id: table_dump(table) for request_id, table in manager.cross_block_tables.items()},
        allocator_dump(manager.block_allocator),
    )

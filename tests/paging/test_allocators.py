"""Property: one allocator per device tells what section 3 of the named systems says, and refuses what it must not do.

How: each rule is played through with a few blocks, on both kinds where it holds for both; after an error everything the
pools know is compared with what they knew before; the self-check runs after every test.
Not covered: sharing, copies and adoption (the gate `paged`), swaps (test_swap.py), eviction order (test_eviction.py).
"""

from collections.abc import Callable

import pytest
from tests.paging.support import KINDS, allocator_dump, allocator_of

from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import (
    Block,
    CpuGpuBlockAllocator,
    Device,
    NaiveBlockAllocator,
    NullBlock,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
)

GPU, CPU = Device.GPU, Device.CPU


@pytest.fixture(params=KINDS)
def allocator(request: pytest.FixtureRequest) -> CpuGpuBlockAllocator:
    """Eight blocks of four slots on the GPU, four on the CPU."""
    return allocator_of(request.param)


def chain(allocator: CpuGpuBlockAllocator, *contents: list[int], device: Device = GPU) -> list[Block]:
    blocks: list[Block] = []
    for tokens in contents:
        prev = blocks[-1] if blocks else None
        if len(tokens) == 4:
            blocks.append(allocator.allocate_immutable_block(prev, tokens, device))
        else:
            blocks.append(allocator.allocate_mutable_block(prev, device))
            blocks[-1].append_token_ids(tokens)
    return blocks


def free_counts(allocator: CpuGpuBlockAllocator) -> tuple[int, int]:
    return allocator.get_num_free_blocks(GPU), allocator.get_num_free_blocks(CPU)


def test_ids_are_absolute(allocator: CpuGpuBlockAllocator) -> None:
    assert allocator.all_block_ids == frozenset(range(12))
    ids = [allocator.allocate_mutable_block(None, GPU).block_id for _ in range(8)]
    assert sorted(i for i in ids if i is not None) == list(range(8))
    ids = [allocator.allocate_mutable_block(None, CPU).block_id for _ in range(4)]
    assert sorted(i for i in ids if i is not None) == [8, 9, 10, 11]
    assert [allocator.get_physical_block_id(CPU, i) for i in (8, 11)] == [0, 3]
    assert allocator.get_physical_block_id(GPU, 7) == 7
    assert (allocator.get_num_total_blocks(GPU), allocator.get_num_total_blocks(CPU)) == (8, 4)
    for device, block_id in ((GPU, 8), (CPU, 7), (CPU, 12), (GPU, -1)):
        with pytest.raises(BlockError):
            allocator.get_physical_block_id(device, block_id)
    allocator.check()


def test_a_block_says_what_is_in_it(allocator: CpuGpuBlockAllocator) -> None:
    one, two = chain(allocator, [1, 2, 3, 4], [5, 6])
    assert (one.token_ids, two.token_ids) == ([1, 2, 3, 4], [5, 6])
    assert (one.is_full, two.is_full) == (True, False)
    assert (one.num_empty_slots, two.num_empty_slots) == (0, 2)
    assert (one.num_tokens_total, two.num_tokens_total) == (4, 6)
    assert one.prev_block is None
    assert two.prev_block is one
    assert two.content_hash is None
    two.append_token_ids([7, 8])
    first = PrefixCachingBlock.hash_block_tokens(None, [1, 2, 3, 4])
    assert one.content_hash == first
    assert two.content_hash == PrefixCachingBlock.hash_block_tokens(first, [5, 6, 7, 8])
    allocator.check([one, two])


def test_freed_blocks_lose_their_id(allocator: CpuGpuBlockAllocator) -> None:
    (block,) = chain(allocator, [1, 2, 3, 4])
    allocator.free(block)
    assert block.block_id is None
    before = allocator_dump(allocator)
    for act in (allocator.free, allocator.fork, allocator.cow_block_if_not_appendable):
        with pytest.raises(BlockError, match="freed"):
            act(block)
    assert allocator_dump(allocator) == before
    allocator.check([])


def test_foreign_blocks_are_refused(allocator: CpuGpuBlockAllocator) -> None:
    foreign = allocator_of("naive").allocate_mutable_block(None, GPU)
    before = allocator_dump(allocator)
    acts: list[Callable[[Block], object]] = [
        allocator.free,
        allocator.fork,
        allocator.cow_block_if_not_appendable,
        allocator.promote_to_immutable_block,
        lambda block: allocator.swap([block], GPU, CPU),
        lambda block: allocator.swap_out([block], GPU),
    ]
    for act in acts:
        with pytest.raises(BlockError):
            act(foreign)
    assert allocator_dump(allocator) == before


def test_all_or_none_of_several_blocks(allocator: CpuGpuBlockAllocator) -> None:
    full = [[i] * 4 for i in range(9)]
    before = allocator_dump(allocator)
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_immutable_blocks(None, full, GPU)
    with pytest.raises(InvalidArgumentError):
        allocator.allocate_immutable_blocks(None, [[1, 2, 3, 4], [5]], GPU)
    assert allocator_dump(allocator) == before
    assert len(allocator.allocate_immutable_blocks(None, full[:8], GPU)) == 8
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_mutable_block(None, GPU)


# --- the null block ---


def test_the_null_block_is_one_and_nothing_is_done_with_it(allocator: CpuGpuBlockAllocator) -> None:
    (block,) = chain(allocator, [1])
    assert not allocator.has_null_block
    null = allocator.allocate_or_get_null_block()
    assert isinstance(null, NullBlock)
    assert allocator.allocate_or_get_null_block() is null
    assert null.block_id not in (None, block.block_id)
    assert free_counts(allocator) == (6, 4)
    before = allocator_dump(allocator)
    allocator.free(null)
    allocator.free(null)
    for act in (allocator.promote_to_immutable_block, allocator.cow_block_if_not_appendable, allocator.fork):
        with pytest.raises(BlockError, match="null"):
            act(null)
    with pytest.raises(BlockError, match="null"):
        null.append_token_ids([1])
    with pytest.raises(BlockError, match="null"):
        null.computed = True
    with pytest.raises(BlockError, match="null"):
        null.block_id = None
    with pytest.raises(BlockError, match="null"):
        null.last_accessed = 1.0
    assert (null.token_ids, null.is_full, null.content_hash, null.num_empty_slots) == ([], False, None, 0)
    assert allocator_dump(allocator) == before
    allocator.check([block, null])
    with pytest.raises(BlockError):
        allocator_of("naive").free(null)


def test_the_null_block_needs_a_free_block_once() -> None:
    allocator = allocator_of("naive", gpu=1)
    block = allocator.allocate_mutable_block(None, GPU)
    with pytest.raises(NoFreeBlocksError):
        allocator.allocate_or_get_null_block()
    assert not allocator.has_null_block
    allocator.free(block)
    null = allocator.allocate_or_get_null_block()
    assert allocator.get_num_free_blocks(GPU) == 0
    assert allocator.allocate_or_get_null_block() is null


# --- content ---


@pytest.fixture
def caching() -> CpuGpuBlockAllocator:
    return allocator_of("prefix_caching")


def test_a_block_that_fills_can_be_found(caching: CpuGpuBlockAllocator) -> None:
    (block,) = chain(caching, [1, 2, 3])
    block.append_token_ids([4])
    assert caching.promote_to_immutable_block(block) == block.block_id
    assert chain(caching, [1, 2, 3, 4])[0].block_id == block.block_id
    with pytest.raises(BlockError, match="not full"):
        caching.promote_to_immutable_block(chain(caching, [9])[0])


def test_only_computed_blocks_and_candidates_are_reported(caching: CpuGpuBlockAllocator) -> None:
    blocks = chain(caching, [1, 2, 3, 4], [5, 6, 7, 8])
    hashes = [block.content_hash or b"" for block in blocks]
    assert caching.find_cached_blocks_prefix(hashes) == []
    assert not blocks[0].computed
    again = chain(caching, [1, 2, 3, 4])  # sharing does not wait
    assert again[0].block_id == blocks[0].block_id
    caching.mark_blocks_as_computed([])
    assert caching.find_cached_blocks_prefix(hashes) == hashes
    assert blocks[0].computed
    third = caching.allocate_immutable_block(blocks[1], [9] * 4, GPU)
    assert caching.find_cached_blocks_prefix([*hashes, third.content_hash or b""]) == hashes
    caching.free(third)
    assert (
        len(caching.find_cached_blocks_prefix([*hashes, PrefixCachingBlock.hash_block_tokens(hashes[1], [9] * 4)])) == 3
    )
    assert caching.find_cached_blocks_prefix([b"\0" * 16, *hashes]) == []
    with pytest.raises(InvalidArgumentError):
        caching.find_cached_blocks_prefix([b"short"])


def test_reset_waits_for_holders_but_not_for_the_null_block(caching: CpuGpuBlockAllocator) -> None:
    caching.allocate_or_get_null_block()
    (block,) = chain(caching, [1, 2, 3, 4])
    hashes = [block.content_hash or b""]
    (on_cpu,) = chain(caching, [1, 2, 3, 4], device=CPU)
    caching.free(on_cpu)
    before = allocator_dump(caching)
    assert not caching.reset_prefix_cache(GPU)
    assert not caching.reset_prefix_cache()
    assert allocator_dump(caching) == before
    assert caching.reset_prefix_cache(CPU)
    caching.free(block)
    assert caching.find_cached_blocks_prefix(hashes) == hashes
    assert caching.reset_prefix_cache()
    assert caching.find_cached_blocks_prefix(hashes) == []
    assert free_counts(caching) == (7, 4)
    caching.check([])
    assert sorted(str(chain(caching, [i])[0].block_id) for i in range(7)) == [str(i) for i in range(1, 8)]


def test_reset_does_not_wait_for_a_null_block_that_was_taken_before_two_were_joined() -> None:
    cpu, gpu = PrefixCachingBlockAllocator(2, 4, 2), PrefixCachingBlockAllocator(2, 4)
    cpu.allocate_or_get_null_block()
    both = CpuGpuBlockAllocator(cpu, gpu)
    (held,) = chain(both, [1, 2, 3, 4], device=CPU)
    assert not both.reset_prefix_cache()
    both.free(held)
    assert both.reset_prefix_cache()
    assert both.find_cached_blocks_prefix([held.content_hash or b""], CPU) == []


def test_common_computed_ids_are_what_all_begin_with(caching: CpuGpuBlockAllocator) -> None:
    assert caching.get_common_computed_block_ids([[1, 2, 3], [1, 2, 4], [1, 2]]) == [1, 2]
    assert caching.get_common_computed_block_ids([[1, 2, 3]]) == [1, 2, 3]
    assert caching.get_common_computed_block_ids([[1], []]) == []
    assert caching.get_common_computed_block_ids([]) == []


# --- arguments ---


@pytest.mark.parametrize(
    ("kind", "gpu", "cpu", "size", "name"),
    [
        ("other", 1, 1, 1, "allocator_type"),
        ("naive", 0, 1, 1, "num_gpu_blocks"),
        ("naive", -1, 1, 1, "num_gpu_blocks"),
        ("naive", 1, -1, 1, "num_cpu_blocks"),
        ("prefix_caching", 1, 1, 0, "block_size"),
        ("prefix_caching", 2**30 + 1, 1, 1, "first_id"),
        ("prefix_caching", 1, 1, -4, "block_size"),
    ],
)
def test_arguments_are_checked(kind: str, gpu: int, cpu: int, size: int, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        CpuGpuBlockAllocator.create(kind, gpu, cpu, size)


def test_joined_allocators_must_fit() -> None:
    for cpu in (NaiveBlockAllocator(2, 4, 1), NaiveBlockAllocator(2, 8, 2), PrefixCachingBlockAllocator(2, 4, 2)):
        with pytest.raises(InvalidArgumentError):
            CpuGpuBlockAllocator(cpu, NaiveBlockAllocator(2, 4))


def test_long_chains_need_no_stack() -> None:
    allocator = allocator_of("naive", gpu=60_000, size=1)
    last = allocator.allocate_immutable_blocks(None, [[i] for i in range(60_000)], GPU)[-1]
    assert last.num_tokens_total == 60_000
    assert last.content_hash is not None
    twins = allocator.fork(last)
    assert len(twins) == 60_000
    for block in twins:
        allocator.free(block)
    del twins, last, block
    allocator.check()

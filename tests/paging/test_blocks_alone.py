"""Property: blocks and allocators that are used by themselves keep their word: places, prefixes, times and limits.

How: blocks made by hand, with and without a place, some with an allocator of an engine's own; each limit of an argument
is tried at, below and above it. Every case was asked for by a change of the source that no other test noticed
(`blockwright conform --gate mutants`).
Not covered: what several blocks do together (test_allocators.py), and the block manager.
"""

from typing import Any

import pytest

import blockwright
from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError
from blockwright.paging import (
    Block,
    BlockAllocator,
    BlockTable,
    CpuGpuBlockAllocator,
    Device,
    NaiveBlock,
    NaiveBlockAllocator,
    NullBlock,
    PrefixCachingBlock,
    PrefixCachingBlockAllocator,
    pool_allocator,
)

KINDS = (NaiveBlock, PrefixCachingBlock)
ALLOCATORS = (NaiveBlockAllocator, PrefixCachingBlockAllocator)
MOST = 2**30
PURE = blockwright.build_info().kind == "pure"


class Owner(BlockAllocator):
    """An engine's own allocator, which tells where to write."""

    def __init__(self, place: int | None) -> None:
        self.place = place

    def cow_block_if_not_appendable(self, block: Block) -> int | None:
        return self.place

    def promote_to_immutable_block(self, block: Block) -> int:
        return 40


class Elder(Block):
    """An engine's own block, with a prefix of its own."""

    def __init__(self, content_hash: bytes | None) -> None:
        self.held = content_hash

    @property
    def content_hash(self) -> bytes | None:
        return self.held

    @property
    def num_tokens_total(self) -> int:
        return 6


# ---------------------------------------------------------------------- blocks


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_by_hand_says_what_it_was_given(kind: Any) -> None:
    block = kind(None, [7, 8], 2, Owner(3), 0, True, 9)
    assert (block.block_id, block.token_ids, block.is_full, block.num_empty_slots) == (0, [7, 8], True, 0)
    assert (block.computed, block.extra_hash, block.last_accessed, block.prev_block) == (True, 9, -1.0, None)
    assert kind(None, [], 2, Owner(3)).block_id is None
    assert kind(None, [], 2, Owner(3), 5).block_id == 5
    assert kind(None, [], 2, Owner(3)).computed is False
    assert kind(None, [], 2, Owner(3), 5).computed is False
    with pytest.raises(InvalidArgumentError, match="block_size"):
        kind(None, [], 0, Owner(3))
    with pytest.raises(InvalidArgumentError, match="2 slots, 3 tokens"):
        kind(None, [1, 2, 3], 2, Owner(3))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_set_is_read(kind: Any) -> None:
    block = kind(None, [], 2, Owner(3))
    block.computed, block.last_accessed, block.block_id = True, 4.5, 6
    assert (block.computed, block.last_accessed, block.block_id) == (True, 4.5, 6)
    block.last_accessed = 5.5
    assert block.last_accessed == 5.5
    block.computed, block.block_id = False, None
    assert (block.computed, block.block_id) == (False, None)
    block.block_id = 0
    assert block.block_id == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_allocator_of_an_engine_says_where_to_write(kind: Any) -> None:
    block = kind(None, [], 2, Owner(17), 5)
    block.append_token_ids([])
    assert block.block_id == 5
    block.append_token_ids([1])
    assert block.block_id == 17
    block.append_token_ids([2])
    assert block.block_id == (17 if kind is NaiveBlock else 40)
    full = kind(None, [1, 2], 2, Owner(17), 5)
    full.append_token_ids([])
    assert full.block_id == 5
    lost = kind(None, [], 2, Owner(None), 5)
    lost.append_token_ids([1])
    assert lost.block_id is None
    placeless = kind(None, [], 2, Owner(17))
    placeless.append_token_ids([1, 2])
    assert (placeless.block_id, placeless.token_ids) == (None, [1, 2])
    with pytest.raises(InvalidArgumentError, match="1 tokens do not fit into 0 empty slots"):
        placeless.append_token_ids([3])


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_begin_where_an_engines_own_block_ends(kind: Any) -> None:
    hashes = PrefixCachingBlock.hash_block_tokens
    before = hashes(None, [1, 2])
    block = kind(Elder(before), [3, 4], 2, Owner(3))
    assert block.content_hash == hashes(before, [3, 4])
    assert block.num_tokens_total == 8
    assert kind(Elder(None), [3, 4], 2, Owner(3)).content_hash is None
    first = kind(None, [3, 4], 2, Owner(3))
    assert first.content_hash == hashes(None, [3, 4]) != block.content_hash
    assert kind(first, [5], 2, Owner(3)).content_hash is None
    assert kind(first, [5, 6], 2, Owner(3)).content_hash == hashes(first.content_hash, [5, 6])


def test_the_hash_of_a_block_tells_extra_hashes_apart() -> None:
    extras = (None, 0, 1, -1, 127, 128, -128, -129, 255, 256, 2**31, 2**63, -(2**63), 2**64, 2**200)
    assert len({PrefixCachingBlock.hash_block_tokens(None, [1], extra) for extra in extras}) == len(extras)


@pytest.mark.parametrize("token", [-1, 2**31, 2**63, 1.5, "1", None])
def test_tokens_beyond_the_limits_are_refused(token: Any) -> None:
    block = NaiveBlock(None, [], 4, Owner(3))
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        block.append_token_ids([1, token])
    assert block.token_ids == []
    table = BlockTable(4, CpuGpuBlockAllocator.create("naive", 4, 0, 4))
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        table.allocate([1, token])


def test_tokens_at_the_limits_are_taken() -> None:
    block = NaiveBlock(None, [0, 2**31 - 1], 4, Owner(3))
    block.append_token_ids([0, 2**31 - 1])
    assert block.token_ids == [0, 2**31 - 1] * 2


@pytest.mark.parametrize("wrong", [b"", bytes(15), bytes(17)])
def test_a_content_hash_is_sixteen_bytes(wrong: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="16 bytes"):
        PrefixCachingBlock.hash_block_tokens(wrong, [1])


# ---------------------------------------------------------------------- allocators


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("name", ["num_blocks", "first_id"])
def test_counts_have_limits(kind: Any, name: str) -> None:
    for value in (-1, MOST + 1, 2**64):
        with pytest.raises(InvalidArgumentError, match=name):
            kind(**{"num_blocks": 2, "block_size": 2, name: value})
    assert kind(0, 2, 0).get_num_total_blocks() == 0
    assert kind(2, 2, MOST).all_block_ids == {MOST, MOST + 1}
    with pytest.raises(InvalidArgumentError, match="block_size"):
        kind(2, 0)


@pytest.mark.skipif(not PURE, reason="compiled code makes its own pools")
@pytest.mark.parametrize("kind", ALLOCATORS)
def test_there_may_be_as_many_blocks_as_the_limit_says(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without making them: they would take gigabytes."""
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(pool_allocator, "DevicePool", lambda *given: asked.append(given))
    kind(MOST, 2, 5)
    assert asked == [(MOST, 5, kind is PrefixCachingBlockAllocator)]


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_the_last_block_can_be_had_and_no_more(kind: Any) -> None:
    allocator = kind(2, 2, 7)
    assert [allocator.allocate_mutable_block(None).block_id for _ in range(2)] == [7, 8]
    with pytest.raises(NoFreeBlocksError, match="1 blocks are needed, 0 are free"):
        allocator.allocate_mutable_block(None)
    other = kind(2, 1)
    assert len(other.allocate_immutable_blocks(None, [[1], [2]])) == 2
    with pytest.raises(NoFreeBlocksError, match="2 blocks are needed, 0 are free"):
        other.allocate_immutable_blocks(None, [[3], [4]])


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_a_block_goes_out_and_comes_back(kind: Any) -> None:
    allocator = kind(2, 2)
    block = allocator.allocate_mutable_block(None)
    allocator.swap_out([block])
    assert (block.block_id, allocator.get_num_free_blocks()) == (None, 2)
    null = allocator.allocate_or_get_null_block()
    allocator.swap_in([null, block])
    assert block.block_id is not None
    assert allocator.get_num_free_blocks() == 0
    for given in (block, Elder(None)):
        with pytest.raises(BlockError, match="has a place already"):
            allocator.swap_in([given])
    block.append_token_ids([1])
    more = NaiveBlock(None, [1], 2, allocator)
    with pytest.raises(NoFreeBlocksError):
        allocator.swap_in([more])


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_what_is_not_held_here_is_refused(kind: Any) -> None:
    allocator, other = kind(3, 2), kind(3, 2)
    block, foreign = allocator.allocate_mutable_block(None), other.allocate_mutable_block(None)
    freed = allocator.allocate_mutable_block(None)
    allocator.free(freed)
    null = allocator.allocate_or_get_null_block()
    for wrong, why in ((foreign, "not a block of this allocator"), (Elder(None), "not a block of this allocator")):
        with pytest.raises(BlockError, match=why):
            allocator.cow_block_if_not_appendable(wrong)
    with pytest.raises(BlockError, match="it was freed"):
        allocator.cow_block_if_not_appendable(freed)
    with pytest.raises(BlockError, match="is the null block"):
        allocator.cow_block_if_not_appendable(null)
    with pytest.raises(BlockError, match="null block of another allocator"):
        other.free(null)
    with pytest.raises(BlockError, match="before it"):
        allocator.fork(child_of(allocator, Elder(None)))
    assert allocator.cow_block_if_not_appendable(block) == block.block_id == 0


def child_of(allocator: Any, before: Block) -> Block:
    child: Block = allocator.allocate_mutable_block(before)
    return child


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_writing_asks_for_a_copy_where_others_hold_the_block(kind: Any) -> None:
    allocator = kind(4, 4, 10)
    block = allocator.allocate_mutable_block(None)
    block.append_token_ids([1])
    twin = allocator.fork(block)[0]
    assert allocator.cow_block_if_not_appendable(twin) == twin.block_id == 11
    assert allocator.clear_copy_on_writes() == [(10, 11)]


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("first", [0, 1, 2, 3, 4])
def test_a_block_says_whether_it_is_computed(kind: Any, first: int) -> None:
    """A block that was freed has no part in what the allocator knows of others."""
    allocator = kind(4, 2, first)
    others = [allocator.allocate_immutable_block(None, [token, 2]) for token in range(3)]
    allocator.mark_blocks_as_computed([])
    block = allocator.allocate_mutable_block(None)
    assert block.computed is False
    block.computed = True
    assert block.computed is True
    block.computed = False
    allocator.free(block)
    assert block.computed is False
    fresh = allocator.allocate_mutable_block(None)
    allocator.free(fresh)
    assert fresh.computed is False
    assert [other.computed for other in others] == [kind is PrefixCachingBlockAllocator] * 3


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4])
def test_a_block_says_when_it_was_accessed(first: int) -> None:
    """A block that was freed keeps its time to itself."""
    allocator = PrefixCachingBlockAllocator(4, 2, first)
    others = [allocator.allocate_immutable_block(None, [token, 2]) for token in range(3)]
    for time, other in enumerate(others):
        other.last_accessed = float(time)
    block = allocator.allocate_mutable_block(None)
    assert block.last_accessed == -1.0
    block.last_accessed = 7.5
    assert block.last_accessed == 7.5
    allocator.free(block)
    assert block.last_accessed == 7.5
    block.last_accessed = 9.5
    assert block.last_accessed == 9.5
    assert [other.last_accessed for other in others] == [0.0, 1.0, 2.0]


def test_the_null_block_has_no_access_time() -> None:
    allocator = PrefixCachingBlockAllocator(4, 2)
    null = allocator.allocate_or_get_null_block()
    assert null.block_id == 0
    allocator.mark_blocks_as_accessed([0], 3.0)
    assert PrefixCachingBlock(None, [], 2, allocator, null.block_id).last_accessed == -1.0


def test_blocks_without_content_have_no_access_times() -> None:
    allocator = CpuGpuBlockAllocator.create("naive", 4, 0, 2)
    block = allocator.allocate_mutable_block(None, Device.GPU)
    allocator.access_blocks([block], 3.0)
    assert block.last_accessed == -1.0
    assert allocator.on(Device.GPU).pool.time_of(1) == -1.0


def test_full_blocks_after_one_that_is_not_are_not_shared() -> None:
    """They have no content of their own: what they follow is still to be written."""
    allocator = PrefixCachingBlockAllocator(4, 2)
    before = allocator.allocate_mutable_block(None)
    places = set()
    for token in (5, 6):
        block = allocator.allocate_mutable_block(before)
        block.append_token_ids([token, token])
        assert block.content_hash is None
        places.add(block.block_id)
    assert len(places) == 2


def test_nothing_is_written_to_a_block_that_holds_nothing() -> None:
    allocator = PrefixCachingBlockAllocator(4, 2)
    block = allocator.allocate_mutable_block(None)
    place, block.block_id = block.block_id, 3
    block.append_token_ids([])
    with pytest.raises(BlockError, match="it was freed"):
        block.append_token_ids([1])
    assert (block.block_id, block.token_ids) == (3, [])
    block.block_id = place
    block.append_token_ids([1])
    assert block.token_ids == [1]


def test_what_is_full_is_counted_once_for_each_place() -> None:
    """Blocks without a place each need one; an engine's own blocks are not counted."""

    class Own(Block):
        @property
        def is_full(self) -> bool:
            return True

    allocator = PrefixCachingBlockAllocator(6, 2)
    freed = [allocator.allocate_immutable_block(None, [token, token]) for token in range(2)]
    for block in freed:
        allocator.free(block)
    assert allocator.reset_prefix_cache()
    held = allocator.allocate_immutable_block(None, [7, 7])
    other = PrefixCachingBlockAllocator(6, 2)
    assert other.get_num_full_blocks_touched([*freed, held, held, Own()]) == 3


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("first", [0, 3])
def test_a_fork_holds_every_block_once_more(kind: Any, first: int) -> None:
    allocator = kind(4, 2, first)
    before = allocator.allocate_immutable_block(None, [1, 2])
    last = allocator.allocate_mutable_block(before)
    twins = allocator.fork(last)
    assert [twin.block_id for twin in twins] == [first, first + 1]
    for block in (before, last):
        allocator.free(block)
    assert allocator.get_num_free_blocks() == 2
    for twin in twins:
        allocator.free(twin)
    assert allocator.get_num_free_blocks() == 4


@pytest.mark.parametrize("first", [0, 3])
def test_candidates_are_accessed_and_what_holds_nothing_is_not(first: int) -> None:
    allocator = PrefixCachingBlockAllocator(5, 2, first)
    for block in allocator.allocate_immutable_blocks(None, [[1, 2], [3, 4], [5, 6]]):
        allocator.free(block)
    for block_id in range(first, first + 3):
        allocator.mark_blocks_as_accessed([block_id], 2.0)
    for block_id in range(first + 3, first + 5):
        with pytest.raises(BlockError, match=f"block {block_id} is free and has no content"):
            allocator.mark_blocks_as_accessed([block_id], 2.0)


def test_the_hit_rate_begins_anew_with_a_reset() -> None:
    allocator = PrefixCachingBlockAllocator(8, 1)
    for _ in range(3):
        allocator.free(allocator.allocate_immutable_block(None, [1]))
    assert allocator.get_prefix_cache_hit_rate() == pytest.approx(2 / 3)
    assert allocator.reset_prefix_cache()
    assert allocator.get_prefix_cache_hit_rate() == 0.0
    written = allocator.allocate_mutable_block(None)
    written.append_token_ids([1])
    allocator.allocate_immutable_block(None, [1])
    assert allocator.get_prefix_cache_hit_rate() == 1.0
    allocator.allocate_immutable_block(None, [2])
    assert allocator.get_prefix_cache_hit_rate() == 0.5


def test_the_hit_rate_counts_every_full_block_asked_for() -> None:
    allocator = PrefixCachingBlockAllocator(8, 1)
    assert allocator.get_prefix_cache_hit_rate() == 0.0
    allocator.allocate_immutable_blocks(None, [[1], [2], [3]])
    assert allocator.get_prefix_cache_hit_rate() == 0.0
    allocator.allocate_immutable_block(None, [1])
    assert allocator.get_prefix_cache_hit_rate() == 0.25
    assert NaiveBlockAllocator(1, 1).get_prefix_cache_hit_rate() == -1.0


def test_the_null_block_is_what_it_is() -> None:
    null = NullBlock(3)
    assert (null.block_id, null.token_ids, null.num_tokens_total, null.num_empty_slots) == (3, [], 0, 0)
    assert (null.is_full, null.prev_block, null.extra_hash, null.computed) == (False, None, None, False)
    assert (null.last_accessed, null.content_hash) == (-1.0, None)
    for name, value in (("block_id", 1), ("computed", True), ("last_accessed", 1.0)):
        with pytest.raises(BlockError, match="null block"):
            setattr(null, name, value)
    with pytest.raises(BlockError, match="null block"):
        null.append_token_ids([1])

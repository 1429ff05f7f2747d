"""Property: the managers of one layer kind do what the engines that know their names expect of them.

How: every example of the documented behaviour, by hand, for each kind: which class serves it, what a request needs,
how its table grows, what it publishes, adopts and gives back, and which kinds refuse what.

Not covered: hits and trimming (test_windows.py), the manager above them (test_manager.py), exhaustive agreement with
the specification (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.support import (
    chunked,
    cross,
    full,
    group_of,
    hit,
    ids_of,
    mamba,
    prompt,
    published,
    pure_only,
    single_dump,
    sliding,
)

from blockwright import (
    BlockPool,
    ChunkedLocalAttentionManager,
    CrossAttentionManager,
    FullAttentionManager,
    FullAttentionSpec,
    KVCacheSpec,
    MambaManager,
    Request,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
    get_manager_for_kv_cache_spec,
)
from blockwright.core.tables.layouts import Row
from blockwright.errors import InvalidArgumentError, NoFreeBlocksError, UnknownRequestError, UnsupportedError

# ---------------------------------------------------------------------- dispatch


def test_dispatch_is_by_exact_type() -> None:
    class Other(FullAttentionSpec):
        pass

    kinds = {
        full(): FullAttentionManager,
        sliding(): SlidingWindowManager,
        chunked(): ChunkedLocalAttentionManager,
        mamba(): MambaManager,
        cross(): CrossAttentionManager,
    }
    for spec, expected in kinds.items():
        group = group_of(spec, group=3)
        assert type(group) is expected
        assert isinstance(group, SingleTypeKVCacheManager)
        assert group.kv_cache_spec is spec
        assert (group.kv_cache_group_id, group.block_size) == (3, 4)
        assert not group.req_to_blocks
        assert not group.num_cached_block
    with pytest.raises(UnsupportedError, match="Other"):
        group_of(Other(4, 1, 1, "float16"))
    by_name = get_manager_for_kv_cache_spec(kv_cache_spec=sliding(4, 9), block_pool=BlockPool(9), kv_cache_group_id=1)
    assert isinstance(by_name, SlidingWindowManager)
    assert by_name.sliding_window == 9
    local = group_of(chunked(4, 12))
    assert isinstance(local, ChunkedLocalAttentionManager)
    assert local.attention_chunk_size == 12


def test_context_parallel_blocks() -> None:
    """Ranks that share a block multiply its size, for full attention only (known bug B44)."""
    pool = BlockPool(33)
    group = get_manager_for_kv_cache_spec(full(), pool, 0, dcp_world_size=3)
    assert group.block_size == 12
    assert group.get_num_blocks_to_allocate("r", 13) == 2
    group.allocate_new_blocks("r", 24)
    request = prompt(24, 4)
    group.cache_blocks(request, 24)
    assert pool.block_keys()[1:3] == [request.block_hashes[2], request.block_hashes[5]]
    assert pool.block_keys()[1:3] == [Request("s", list(range(24)), 4).block_hashes[index] for index in (2, 5)]
    for spec in (sliding(), chunked(), mamba(), cross()):
        with pytest.raises(UnsupportedError, match="dcp_world_size"):
            get_manager_for_kv_cache_spec(spec, pool, 0, dcp_world_size=2)
        assert get_manager_for_kv_cache_spec(spec, pool, 0, dcp_world_size=1).block_size == 4


@pytest.mark.parametrize("window", [0, -1])
def test_window_must_be_positive(window: int) -> None:
    with pytest.raises(InvalidArgumentError, match="sliding_window"):
        sliding(4, window)


@pytest.mark.parametrize(("size", "chunk"), [(2, 3), (4, 2), (3, 8), (16, 8)])
def test_block_size_must_divide_the_chunk(size: int, chunk: int) -> None:
    with pytest.raises(InvalidArgumentError, match=r"block_size.*attention_chunk_size"):
        chunked(size, chunk)


# ---------------------------------------------------------------------- demand, growth, release


def test_blocks_to_allocate() -> None:
    """Free hits count, since adopting them takes them from the queue; held and null ones do not."""
    group = group_of(sliding(2, 4))
    request = prompt(40, 2)
    blocks = group.block_pool.get_new_blocks(10)
    group.block_pool.cache_full_blocks(request, blocks, 0, 10, 2)
    null = group.block_pool.null_block
    assert group.get_num_blocks_to_allocate("r", 40, blocks) == 10
    group.block_pool.free_blocks(blocks)
    assert group.get_num_blocks_to_allocate("r", 40, blocks) == 20
    assert group.get_num_blocks_to_allocate("r", 40, [null] * 5 + blocks[:5]) == 15
    assert group.get_num_blocks_to_allocate("r", 40, [null] * 10) == 10
    assert group.get_num_blocks_to_allocate("r", 40) == 20
    assert group.get_num_blocks_to_allocate("r", 39, []) == 20
    assert group.get_num_blocks_to_allocate("r", 0, []) == 0


@pytest.mark.parametrize("spec", [full(), sliding(), chunked(), cross()])
def test_growth(spec: KVCacheSpec) -> None:
    group = group_of(spec, 6)
    for num_tokens, expected in ((1, [1]), (4, []), (2, []), (5, [2]), (8, []), (13, [3, 4]), (13, [])):
        assert group.get_num_blocks_to_allocate("r", num_tokens, []) == len(expected)
        assert ids_of(group.allocate_new_blocks("r", num_tokens)) == expected
    assert {name: ids_of(blocks) for name, blocks in group.req_to_blocks.items()} == {"r": [1, 2, 3, 4]}
    before = single_dump(group)
    with pytest.raises(NoFreeBlocksError, match="num_tokens"):
        group.allocate_new_blocks("r", 21)
    with pytest.raises(NoFreeBlocksError, match="num_tokens"):
        group.allocate_new_blocks("new", 5)
    assert single_dump(group) == before
    group.free("r")
    assert not group.req_to_blocks
    assert not group.num_cached_block
    assert group.block_pool.free_block_ids() == [1, 2, 3, 4, 5]  # the tail first, each to the head
    group.block_pool.check()


def test_growth_of_a_recurrent_state() -> None:
    """With caching, one block per step and null entries for boundaries jumped over; without, one block for good."""
    group = group_of(mamba())
    assert group.get_num_blocks_to_allocate("r", 14, []) == 1
    assert ids_of(group.allocate_new_blocks("r", 14)) == [0, 0, 0, 1]
    assert ids_of(group.allocate_new_blocks("r", 16)) == []
    assert ids_of(group.allocate_new_blocks("r", 17)) == [2]
    group.free("r")
    assert group.block_pool.free_block_ids()[:2] == [1, 2]
    group = group_of(mamba(), caching=False)
    assert group.get_num_blocks_to_allocate("r", 14, []) == 1
    assert ids_of(group.allocate_new_blocks("r", 14)) == [1]
    assert group.get_num_blocks_to_allocate("r", 1400, []) == 0
    assert group.allocate_new_blocks("r", 1400) == []
    group = group_of(mamba(drafts=2))
    assert group.get_num_blocks_to_allocate("r", 4, []) == 3
    group.allocate_new_blocks("r", 4)
    free = group.block_pool.get_num_free_blocks()
    group.free("r")
    assert group.block_pool.get_num_free_blocks() == free + 3


# ---------------------------------------------------------------------- publishing


def test_publishing() -> None:
    group = group_of(full())
    request = prompt(14, 4)
    group.allocate_new_blocks("r", 14)
    assert group.num_cached_block == {"r": 0}
    for num_tokens, expected in ((3, 0), (4, 1), (11, 2), (5, 2), (14, 3)):
        group.cache_blocks(request, num_tokens)
        assert group.num_cached_block == {"r": expected}
    assert group.block_pool.block_keys()[:5] == [None, *request.block_hashes, None]
    before = single_dump(group)
    for num_tokens in (15, 17, 100):
        with pytest.raises(InvalidArgumentError, match="num_tokens"):
            group.cache_blocks(request, num_tokens)
    with pytest.raises(UnknownRequestError, match="unknown"):
        group.cache_blocks(Request("unknown", [1] * 9, 4), 4)
    with pytest.raises(InvalidArgumentError, match="block_size"):
        group.cache_blocks(Request("r", [1] * 14, 3), 4)
    assert single_dump(group) == before


@pure_only
def test_a_failure_in_the_middle_of_publishing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    group = group_of(full())
    group.allocate_new_blocks("r", 8)
    monkeypatch.setattr(Row, "publish", fails)
    with pytest.raises(MemoryError):
        group.cache_blocks(prompt(8, 4), 8)


def test_caching_off() -> None:
    group = group_of(full(), caching=False)
    request = prompt(8, 4)
    group.allocate_new_blocks("r", 8)
    group.cache_blocks(request, 8)
    assert group.num_cached_block == {"r": 0}
    assert hit(group, request, 8) == []


def test_recurrent_states_are_published_at_boundaries_only() -> None:
    """Known bug B40: a state that covers fewer tokens than its entry ends on is nobody's prefix."""
    group = group_of(mamba())
    request = prompt(24, 4)
    for num_tokens, key in ((6, None), (8, 1), (10, None), (13, None), (20, 4)):
        group.allocate_new_blocks("r", num_tokens)
        group.cache_blocks(request, num_tokens)
        held = ids_of(group.req_to_blocks["r"])[-1]
        assert group.block_pool.block_key(held) == (None if key is None else request.block_hashes[key])


# ---------------------------------------------------------------------- adopting


def test_adopting() -> None:
    group, request = group_of(sliding(4, 5)), prompt(16, 4)
    known = published(group, request, [0, 1, 2])
    (found,) = SlidingWindowManager.find_longest_cache_hit(
        request.block_hashes, 15, [0], group.block_pool, group.kv_cache_spec, False
    )
    group.save_new_computed_blocks("a", found)
    group.save_new_computed_blocks("b", [block.block_id for block in found])
    assert ids_of(group.req_to_blocks["a"]) == ids_of(group.req_to_blocks["b"]) == [0, 0, known[2]]
    assert group.num_cached_block == {"a": 3, "b": 3}
    assert group.block_pool.ref_count(known[2]) == 2
    before = single_dump(group)
    group.save_new_computed_blocks("a", [])
    with pytest.raises(InvalidArgumentError, match="new_computed_blocks"):
        group.save_new_computed_blocks("a", found)
    with pytest.raises(InvalidArgumentError, match="request_id"):
        group.save_new_computed_blocks("", found)
    assert single_dump(group) == before
    group.block_pool.get_new_blocks(99)  # evicts the others' blocks, not this one
    with pytest.raises(InvalidArgumentError, match="new_computed_blocks"):
        group.save_new_computed_blocks("c", [known[1]])
    group.free("a")
    group.free("b")
    assert group.req_to_blocks == {}


ADOPTED_SPECS = {
    "a block twice": (full(), [1, 1]),
    "null where a token reads": (full(), [0, 2]),
    "a block where no token reads": (sliding(4, 5), [1, 2, 3]),
    "the state before the last": (mamba(), [1, 2]),
}


@pytest.mark.parametrize(("spec", "ids"), ADOPTED_SPECS.values(), ids=ADOPTED_SPECS.keys())
def test_adopting_what_is_no_hit(spec: KVCacheSpec, ids: list[int]) -> None:
    """Blocks that cannot be a hit of this kind: refused, or adopted so that releasing gives every block back."""
    group, request = group_of(spec), prompt(16, 4)
    for end in range(4, 17, 4):
        group.allocate_new_blocks("r", end)
        group.cache_blocks(request, end)
    with pytest.raises((ValueError, NotImplementedError)):
        group.save_new_computed_blocks("a", ids)


# ---------------------------------------------------------------------- common prefixes, cross attention


def test_common_prefix() -> None:
    """Leading blocks that exactly as many tables hold; kinds that trim have none."""
    for spec, expected in ((full(), 2), (sliding(), 0), (chunked(), 0), (cross(), 0)):
        group, request = group_of(spec), prompt(12, 4)
        group.allocate_new_blocks("a", 12)
        if spec != cross():
            group.cache_blocks(Request("a", list(range(12)), 4), 12)
            group.save_new_computed_blocks("b", ids_of(group.req_to_blocks["a"])[:2] if spec == full() else [])
        group.allocate_new_blocks("b", 12)
        assert group.get_num_common_prefix_blocks("a", 2) == expected
        assert group.get_num_common_prefix_blocks("a", 1) == 0
        assert group.get_num_common_prefix_blocks("a", 3) == 0
        with pytest.raises(UnknownRequestError, match=request.request_id):
            group.get_num_common_prefix_blocks(request.request_id, 2)
    group = group_of(full())
    group.allocate_new_blocks("a", 12)
    assert group.get_num_common_prefix_blocks("a", 1) == 3


def test_cross_attention_is_never_cached() -> None:
    group, request = group_of(cross()), prompt(12, 4)
    group.allocate_new_blocks("r", 12)
    before = single_dump(group)
    group.save_new_computed_blocks("other", [])
    for call in (
        lambda: group.cache_blocks(request, 12),
        lambda: group.save_new_computed_blocks("other", [1]),
        lambda: hit(group, request, 12),
    ):
        with pytest.raises(NotImplementedError, match="cross-attention"):
            call()
    assert single_dump(group) == before
    group.free("r")
    assert group.block_pool.get_num_free_blocks() == 100


@pytest.mark.parametrize("manager", [SlidingWindowManager, ChunkedLocalAttentionManager, MambaManager])
def test_class_and_kind_must_agree(manager: type[SingleTypeKVCacheManager]) -> None:
    with pytest.raises(InvalidArgumentError, match="kv_cache_spec"):
        manager(full(), BlockPool(9), 0)


@pytest.mark.parametrize("spec", [full(), sliding(), chunked(), mamba(), cross()])
def test_base_is_abstract(spec: KVCacheSpec) -> None:
    """The base class manages no kind."""
    with pytest.raises(InvalidArgumentError, match="kv_cache_spec"):
        SingleTypeKVCacheManager(spec, BlockPool(9), 0)

"""Property: the pool's own calls say what they should of a small pool, and errors change nothing.

How: new pools, the null block, usage and views by hand; the whole observable state is compared before and after each
error.

Not covered: the order in which blocks are taken and evicted (test_pool_model.py), keys (test_pool_keys.py), argument
ranges (test_integers.py).
"""

from __future__ import annotations

import pytest
from tests.core.support import filled, ids_of, one_block, pool_dump, publish, unchanged_by

from blockwright import BlockPool, KVCacheBlock
from blockwright.errors import BlockError, InvalidArgumentError

# ---------------------------------------------------------------------- taking and the null block


@pytest.mark.parametrize("num_blocks", [2, 3, 8, 9, 100])
def test_fresh_pool(num_blocks: int) -> None:
    pool = BlockPool(num_blocks)
    assert pool.get_num_free_blocks() == pool.num_free == num_blocks - 1
    assert (pool.num_blocks, pool.get_usage(), pool.num_evictions) == (num_blocks, 0.0, 0)
    assert pool.free_block_ids() == list(range(1, num_blocks))
    assert ids_of(pool.get_new_blocks(num_blocks - 1)) == list(range(1, num_blocks))
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (0, 1.0)
    pool.check()


def test_null_block_takes_part_in_nothing() -> None:
    pool = BlockPool(5)
    null = pool.null_block
    assert (null.block_id, null.ref_cnt, null.is_null, null.block_hash) == (0, 0, True, None)
    before = pool_dump(pool)
    pool.touch([null, 0])
    pool.free_blocks([null, 0, null])
    pool.cache_full_blocks(one_block(7), [null], 0, 1, 2)
    assert pool.get_new_blocks(0) == []
    assert pool_dump(pool) == before
    assert 0 not in ids_of(pool.get_new_blocks(4))
    pool.check()


def test_usage() -> None:
    pool = BlockPool(5)
    first = pool.get_new_blocks(1)
    assert pool.get_usage() == 0.25
    pool.touch(first)  # a second holder is not a second block
    assert pool.get_usage() == 0.25
    pool.get_new_blocks(2)
    assert pool.get_usage() == 0.75
    pool.free_blocks([*first, *first])
    assert pool.get_usage() == 0.5


def test_views() -> None:
    pool, other = BlockPool(5), BlockPool(5)
    (block,) = pool.get_new_blocks(1)
    assert KVCacheBlock(pool, 1) == block
    assert hash(KVCacheBlock(pool, 1)) == hash(block)
    assert KVCacheBlock(other, 1) != block
    assert KVCacheBlock(pool, 2) != block
    assert block != 1
    key = publish(pool, 3, [block])
    assert block.block_hash == key[:16]
    assert not block.is_null
    assert block.ref_cnt == 1
    pool.touch([block])
    assert block.ref_cnt == 2
    assert "1" in repr(block)


# ---------------------------------------------------------------------- the free queue


# ---------------------------------------------------------------------- errors


def test_errors_change_nothing() -> None:
    pool = BlockPool(8, enable_kv_cache_events=True)
    blocks = filled(pool, 4)
    pool.free_blocks(blocks[:2])
    for bad in (-1, 8, 2**31, 2**32 + 3, 2**63 - 1, None, "1", 1.0):
        for call in (pool.touch, pool.free_blocks):
            unchanged_by(pool, BlockError, "blocks", lambda: call([3, bad]))  # noqa: B023
    unchanged_by(pool, BlockError, "ordered_blocks", lambda: pool.free_blocks([3, 1]))  # not held: free already
    unchanged_by(pool, BlockError, "ordered_blocks", lambda: pool.free_blocks([3, 3]))
    unchanged_by(pool, BlockError, "blocks", lambda: pool.touch([3, 1, 5]))  # 5 is free and has no content


@pytest.mark.parametrize("huge", [2**63, 2**64, 2**70])
def test_huge_ids(huge: int) -> None:
    pool = BlockPool(8)
    pool.get_new_blocks(4)
    for call in (pool.touch, pool.free_blocks):
        unchanged_by(pool, BlockError, "blocks", lambda: call([3, huge]))  # noqa: B023


def test_bools_are_no_ids() -> None:
    pool = BlockPool(8)
    pool.get_new_blocks(4)
    for call in (pool.touch, pool.free_blocks):
        unchanged_by(pool, BlockError, "blocks", lambda: call([3, True]))  # noqa: B023


def test_blocks_of_another_pool_are_foreign() -> None:
    pool, other = BlockPool(8), BlockPool(8)
    own, foreign = pool.get_new_blocks(1), other.get_new_blocks(1)
    assert own[0] != foreign[0]
    unchanged_by(pool, BlockError, "blocks", lambda: pool.touch(foreign))
    unchanged_by(pool, BlockError, "blocks", lambda: pool.free_blocks(foreign))
    unchanged_by(pool, BlockError, "blocks", lambda: pool.cache_full_blocks(one_block(1), foreign, 0, 1, 2))


@pytest.mark.parametrize("arguments", [(1,), (0,), (-1,), (2**30 + 1,), (2**70,), (True,)])
def test_pool_sizes(arguments: tuple[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks"):
        BlockPool(*arguments)


def test_events_need_caching() -> None:
    with pytest.raises(InvalidArgumentError, match="enable_kv_cache_events"):
        BlockPool(4, False, enable_kv_cache_events=True)

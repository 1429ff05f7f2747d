"""Property: a block is found under its key by the groups that published it; events and copies are one's own.

How: each rule on a small pool through the pool's own calls.

Not covered: which of equal blocks serves, and how long (test_pool_model.py), what keys tell apart (test_identity.py).
"""

from __future__ import annotations

import pytest
from tests.core.support import publish, served, unchanged_by

from blockwright import BlockPool, Request
from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.events import BlockRemoved, BlockStored


def test_get_cached_block_is_all_or_none() -> None:
    pool = BlockPool(6)
    first, second, third = pool.get_new_blocks(3)
    key = publish(pool, 7, [first], group=0)
    assert publish(pool, 7, [second], group=1) == key
    other = publish(pool, 8, [third], group=1)
    assert served(pool, key) == [1]
    assert served(pool, key, [1]) == [2]
    assert served(pool, key, [0, 1]) == [1, 2]
    assert served(pool, key, [1, 0, 1]) == [2, 1, 2]
    assert served(pool, key, [0, 1, 2]) is None
    assert served(pool, other, [0]) is None
    assert served(pool, other, [0, 1]) is None
    assert served(pool, key, []) == []
    assert served(pool, key + b"only the first 16 bytes count") == [1]
    unchanged_by(pool, InvalidArgumentError, "block_hash", lambda: pool.get_cached_block(key[:15], [0]))


def test_cache_full_blocks_range() -> None:
    pool = BlockPool(8)
    request = Request("r", list(range(9)), 2)
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(request, blocks, 1, 3, 2)
    assert [key is not None for key in pool.block_keys()] == [False, False, True, True, False, False, False, False]
    assert served(pool, request.block_hashes[1]) == [2]
    pool.cache_full_blocks(request, blocks, 2, 2, 2)
    for first, last in ((0, 5), (-1, 2), (3, 2), (5, 5)):
        unchanged_by(
            pool,
            InvalidArgumentError,
            "num_full_blocks",
            lambda: pool.cache_full_blocks(request, blocks, first, last, 2),  # noqa: B023
        )
    salted = Request("s", list(range(9)), 2, cache_salt="a")
    pool.cache_full_blocks(salted, blocks, 0, 4, 2)
    assert pool.blocks_of(salted._salt_mark, 0) == [1, 4], "published blocks keep the owner whose content they hold"
    pool.free_blocks(blocks)
    unchanged_by(pool, BlockError, "blocks", lambda: pool.cache_full_blocks(request, blocks, 0, 1, 2))


# ---------------------------------------------------------------------- reset, events, copies, errors


@pytest.mark.parametrize("resets", [False, True])
def test_events_that_no_call_takes_are_bounded_and_lose_nothing(resets: bool) -> None:
    pool = BlockPool(4, enable_kv_cache_events=True)
    known = frozenset(publish(pool, token, pool.get_new_blocks(1)) for token in (9000, 9001))
    pool.take_events()
    pool.free_blocks([1, 2])
    for token in range(6000):
        blocks = pool.get_new_blocks(1)
        publish(pool, token % 5, blocks)
        pool.free_blocks(blocks)
        if resets and token == 3000:
            assert pool.reset_prefix_cache()
    events = pool.take_events()
    assert len(events) < 5000
    for event in events:
        match event:
            case BlockStored(block_hash=bytes() as key):
                known |= {key}
            case BlockRemoved(block_hash=bytes() as key):
                known -= {key}
            case _:
                known = frozenset()
    assert {key[:16] for key in known} == {key for key in pool.block_keys() if key is not None}
    for _ in range(6000):
        assert pool.reset_prefix_cache()
    assert len(pool.take_events()) < 5000

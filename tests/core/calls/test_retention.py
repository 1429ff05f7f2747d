"""Property: what is wrong to say of blocks to keep, or of tenants, is an error that names the argument, and changes
nothing; what there is nothing to do about is done nothing about.

How: every wrong argument once, on a manager whose pool is looked at before and after.
Not covered: what hints and shares come to (the scopes of the conformance gates, named "hints" and "shares").
"""

from math import inf, nan
from typing import Any

import pytest

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright.errors import InvalidArgumentError, UnknownRequestError

SPEC = FullAttentionSpec(block_size=2, num_kv_heads=1, head_size=1, dtype="float32")


def manager(**options: Any) -> KVCacheManager:
    return KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["layer"], SPEC)]), 16, **options)


def served(kept: KVCacheManager, name: str = "r", salt: str | None = None) -> Request:
    request = Request(name, [1, 2, 3, 4], 2, cache_salt=salt)
    assert kept.allocate_slots(request, 4) is not None
    return request


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"a": 5, "b": 4}, "the floors sum to 9 blocks, the pool has 8; lower some"),
        ({"a": -1}, "the floor of 'a' must be a number of blocks, not -1"),
    ],
)
def test_shares_that_cannot_be(shares: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"shares: {said}"):
        manager(shares=shares)


@pytest.mark.parametrize("part", [-0.1, 1.1, nan])
def test_guards_are_parts(part: float) -> None:
    with pytest.raises(InvalidArgumentError, match="hint_guard: must be a part"):
        manager(hint_guard=part)


@pytest.mark.parametrize(
    ("call", "arguments", "named"),
    [
        ("retain", (4, 1, 10), "until: must be later than now, which is 10"),
        ("retain", (4, 1, -1), "until: must be later than now"),
        ("retain", (4, 1, nan), "until: must be later than now"),
        ("retain", (4, 0, 20), "priority: must be within 1..100, not 0"),
        ("retain", (4, 101, 20), "priority: must be within 1..100, not 101"),
        ("retain", (-1, 1, 20), "num_tokens"),
        ("release_prefix", (-1,), "first_token"),
        ("advance_time", (9,), r"now: must be at least 10(\.0)?, the last time given, not 9"),
        ("advance_time", (nan,), "now: must be at least 10"),
    ],
)
def test_what_cannot_be_said_changes_nothing(call: str, arguments: tuple[Any, ...], named: str) -> None:
    kept = manager(shares={"a": 3})
    request = served(kept, salt="a")
    kept.advance_time(10)
    before = kept.block_pool.free_block_ids(), kept.get_block_ids("r")
    given = arguments if call == "advance_time" else (request, *arguments)
    with pytest.raises(InvalidArgumentError, match=named):
        getattr(kept, call)(*given)
    assert (kept.block_pool.free_block_ids(), kept.get_block_ids("r")) == before
    kept.check()


def test_only_what_runs_can_be_kept() -> None:
    kept = manager()
    request = served(kept)
    kept.free(request)
    for call, arguments in (("retain", (4, 1, 20)), ("release_prefix", (0,))):
        with pytest.raises(UnknownRequestError, match="request: 'r' holds no blocks here"):
            getattr(kept, call)(request, *arguments)


def test_what_there_is_nothing_to_do_about() -> None:
    """A tenant without a share; more tokens than the request has; for good; a pool that caches nothing."""
    kept = manager(shares={"a": 8})
    request = served(kept, salt="nobody's")
    kept.retain(request, 1000, 100, inf)
    kept.release_prefix(request, 1000)
    kept.free(request)
    kept.check()
    bare = manager(enable_caching=False)
    request = served(bare)
    bare.retain(request, 4, 1, 0)
    bare.release_prefix(request, 0)
    bare.advance_time(5)
    bare.check()


def test_a_block_that_is_not_full_does_not_follow() -> None:
    """The first to go on from a prompt that ended inside a block alone uses it, and may let it go first."""
    kept = manager()
    kept.advance_time(1)
    for name, tokens in (("other", [9, 9]), ("short", [1, 2, 3]), ("whole", [1, 2, 3, 4])):
        request = Request(name, tokens, 2)
        hit, length = kept.get_computed_blocks(request)
        assert kept.allocate_slots(request, len(tokens) - length, length, hit) is not None
        if name != "other":
            kept.release_prefix(request)
        used = kept.get_block_ids(name)[0]
        request.num_computed_tokens = len(tokens)
        kept.free(request)
    fresh = [block.block_id for block in kept.block_pool.get_new_blocks(8)]
    assert fresh[-3:-1] == used[::-1]

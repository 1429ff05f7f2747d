"""Property: lookups, hits and reports of the manager an engine talks to are as documented, one behaviour a test.

How: small managers of one group, by hand; errors are compared by a dump of the whole observable state.

Not covered: what a step gets (test_slots.py), argument ranges (test_integers.py, test_bad_input.py), random use and
batches against single calls (test_walk.py), results as buffers (test_results.py).
"""

from __future__ import annotations

import pytest
from tests.core.support import (
    Setup,
    admit,
    chunked,
    cross,
    every_setup,
    full,
    ids_of,
    mamba,
    manager_dump,
    manager_of,
    sliding,
    started,
    table,
)

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.core.keys.request import pack_tokens
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, StaleHitError, UnsupportedError
from blockwright.events import BlockRemoved, BlockStored

# ---------------------------------------------------------------------- lookups


def test_prompt_log_probabilities_skip_the_cache() -> None:
    manager = manager_of(full(), log_stats=True)
    manager.free(started(manager, "first", 17))
    request = Request("r", list(range(17)), 4, prompt_logprobs=True)
    assert manager.get_computed_blocks(request)[1] == 0
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.requests == 1  # the first request's own lookup
    request.prompt_logprobs = False
    assert manager.get_computed_blocks(request)[1] == 16


def test_no_lookup_without_caching_or_keys() -> None:
    manager = manager_of(full(), caching=False)
    manager.free(started(manager, "first", 17))
    assert manager.get_computed_blocks(Request("r", list(range(17)), 4))[1] == 0
    manager = manager_of(full())
    manager.free(started(manager, "first", 17))
    bare = Request("bare", list(range(17)), None)
    assert manager.get_computed_blocks(bare)[1] == 0
    assert admit(manager, bare) == 0
    assert manager.num_published("bare") == (0,)
    bare.append_output_token_ids([1] * 7)
    assert manager.allocate_slots(bare, 7) is not None
    manager.cache_blocks(bare, 24)
    manager.check()


def test_draft_heads_recompute_the_last_block() -> None:
    for spec, expected in ((full(), 12), (sliding(), 12), (mamba(), 16)):
        manager = manager_of(spec, use_eagle=True)
        request = Request("first", list(range(17)), 4)
        for end in range(4, 18, 4):
            assert manager.allocate_slots(request, 4) is not None
            request.num_computed_tokens = end
        manager.free(request)
        assert manager.get_computed_blocks(Request("r", list(range(17)), 4))[1] == expected
    with pytest.raises(UnsupportedError, match="use_eagle"):
        manager_of(chunked(), use_eagle=True)


def test_only_known_kinds_alone() -> None:
    with pytest.raises(UnsupportedError, match="cross attention"):
        manager_of(cross())


# ---------------------------------------------------------------------- hits carried to allocate_slots


@every_setup
def test_stale_hits(setup: Setup) -> None:
    """A hit whose blocks were evicted, taken again or reset since the lookup is refused, and nothing changes."""
    if not setup.caching:
        return
    size = setup.spec.block_size
    for fate in ("evicted", "reset", "reused"):
        manager = setup.manager(10)
        first = Request("first", list(range(8 * size)), size)
        for _ in range(8):
            assert manager.allocate_slots(first, size) is not None
            first.num_computed_tokens += size
        manager.free(first)
        request = Request("r", list(range(8 * size)), size)
        hit, num_hit = manager.get_computed_blocks(request)
        if not any(ids_of(hit)):
            continue  # this kind reads none of it
        if fate == "reset":
            assert manager.reset_prefix_cache()
        else:
            other = manager.block_pool.get_new_blocks(9)
            if fate == "reused":
                manager.block_pool.cache_full_blocks(Request("o", [7] * 9 * size, size), other, 0, 9, size)
            manager.block_pool.free_blocks(other)
        before = manager_dump(manager)
        with pytest.raises(StaleHitError, match="new_computed_blocks"):
            manager.allocate_slots(request, 1, num_hit, hit)
        assert manager_dump(manager) == before
        manager.check()


def test_hit_must_be_whole_and_ones_own() -> None:
    manager, other = manager_of(full()), manager_of(full())
    for each in (manager, other):
        each.free(started(each, "first", 16))
    request = Request("r", list(range(17)), 4)
    hit, num_hit = manager.get_computed_blocks(request)
    foreign, _ = other.get_computed_blocks(request)
    before = manager_dump(manager)
    for tokens, blocks in ((num_hit, None), (num_hit - 4, hit), (num_hit + 4, hit), (0, hit), (num_hit, foreign)):
        with pytest.raises(StaleHitError, match=r"new_computed|num_new_computed"):
            manager.allocate_slots(request, 1, tokens, blocks)
    for length in (3, 8, 16):  # shorter than the hit, or with no token left to compute
        with pytest.raises(StaleHitError):
            manager.allocate_slots(Request("short", list(range(length)), 4), 1, num_hit, hit)
    with pytest.raises(InvalidArgumentError, match="block_size"):
        manager.allocate_slots(Request("r", list(range(17)), 3), 1, num_hit, hit)
    request.num_computed_tokens = 4
    with pytest.raises(InvalidArgumentError, match="must be 0 before a hit"):
        manager.allocate_slots(request, 1, num_hit, hit)
    request.num_computed_tokens = 0
    assert manager_dump(manager) == before
    assert manager.allocate_slots(request, 1, num_hit, hit) is not None
    before = manager_dump(manager)
    request.num_computed_tokens = 17
    with pytest.raises(InvalidArgumentError, match="new_computed_blocks"):
        manager.allocate_slots(request, 1, num_hit, hit)  # runs already
    assert manager_dump(manager) == before


def test_hit_for_a_request_without_keys() -> None:
    manager = manager_of(full())
    manager.free(started(manager, "first", 16))
    hit, num_hit = manager.get_computed_blocks(Request("r", list(range(17)), 4))
    with pytest.raises((StaleHitError, InvalidArgumentError)):
        manager.allocate_slots(Request("bare", list(range(17)), None), 1, num_hit, hit)


# ---------------------------------------------------------------------- what it says of itself


def common(manager: KVCacheManager, name: str = "a") -> list[int]:
    """The leading blocks of a request that it alone, that two and that three requests have."""
    return [manager.get_num_common_prefix_blocks(name, count)[0] for count in (1, 2, 3)]


def test_only_requests_that_compute_have_a_common_prefix() -> None:
    """Beside "a" and a request without its prefix: one that shares it and ends in flight, one that loads, pins."""
    manager = manager_of(full(), overlap_steps=True)
    step = manager.start_step()
    a, b, c = (Request(name, list(range(at, at + 17)), 4) for name, at in (("a", 0), ("b", 50), ("c", 0)))
    for request in (a, b, c):
        admit(manager, request)
    assert common(manager) == [0, 4, 0]
    manager.free(c)
    assert common(manager) == [5, 0, 0], "the step still writes to c's blocks, but no request reads them any more"
    loading = Request("l", list(range(25)), 4)
    hit, num_hit = manager.get_computed_blocks(loading)
    assert num_hit == 16
    assert manager.allocate_slots(loading, 0, num_hit, hit, num_external_computed_tokens=4) is not None
    assert (common(manager), common(manager, "l")) == ([5, 0, 0], [0, 0, 0])
    manager.block_pool.touch(manager.get_blocks("a").blocks[0])
    new = manager.block_pool.get_new_blocks(3)
    for each in (manager, manager.copy()):
        assert (common(each), common(each, "l"), common(each, "b")) == ([5, 0, 0], [0, 0, 0], [5, 0, 0])
        each.check()
    manager.settle_step(step)
    assert manager.finish_load(loading, 4)
    assert (common(manager), common(manager, "l")) == ([0, 4, 0], [0, 4, 0])
    manager.block_pool.free_blocks([*manager.get_blocks("a").blocks[0], *new])
    again = Request("again", list(range(25)), 4)
    hit, num_hit = manager.get_computed_blocks(again)
    assert manager.allocate_slots(again, 0, num_hit, hit, num_external_computed_tokens=4) is not None
    manager.free(again)
    assert common(manager) == [0, 4, 0], "a load that was given up"
    manager.finish_load(again, 4)
    manager.free(loading)
    assert common(manager) == [5, 0, 0]
    manager.check({})


def test_statistics() -> None:
    """A lookup is counted once its request is admitted; one that was admitted before is counted apart."""
    assert manager_of(full()).make_prefix_cache_stats() is None
    manager = manager_of(full(), 7, log_stats=True)
    first = started(manager, "first", 17)
    request = Request("r", list(range(10)), 4)
    for _ in range(3):
        hit, length = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, 10 - length, length, hit, num_lookahead_tokens=8) is None
    assert manager.make_prefix_cache_stats() == (False, 1, 17, 0, 0, 0, 0)
    manager.free(first)
    for counted in ((False, 1, 10, 8, 0, 0, 0), (False, 0, 0, 0, 1, 10, 8)):
        hit, length = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, 10 - length, length, hit) is not None
        manager.free(request)
        assert manager.make_prefix_cache_stats() == counted
    manager.reset_prefix_cache()
    assert manager.make_prefix_cache_stats() == (True, 0, 0, 0, 0, 0, 0)


def test_a_request_that_holds_nothing_is_not_hashed_by_its_release() -> None:
    manager, request = manager_of(full()), Request("r", [1] * 9)
    manager.free(request)
    assert request.block_size is None
    request.hash_by(1)


def test_events() -> None:
    """A prefix is told of when its first block is published and when its last one is taken (known bug B64)."""
    manager = manager_of(full(), 5, enable_kv_cache_events=True)
    hasher = Sha256Hasher(b"seed")
    request = Request("r", list(range(9)), 4, lora_name="adapter", hasher=hasher)
    admit(manager, request)
    first, second = request.block_hashes
    assert manager.take_events() == [
        BlockStored(first, None, pack_tokens("", [0, 1, 2, 3]), 4, "adapter", 0),
        BlockStored(second, first, pack_tokens("", [4, 5, 6, 7]), 4, "adapter", 0),
    ]
    assert manager.take_events() == []
    manager.free(request)
    assert manager.take_events() == []
    other = Request("other", list(range(50, 66)), 4, hasher=hasher)
    admit(manager, other)
    assert manager.take_events()[:2] == [BlockRemoved(second, 0), BlockRemoved(first, 0)]
    with pytest.raises(InvalidArgumentError, match="Sha256Hasher"):
        manager.get_computed_blocks(Request("r", [1] * 9, 4))  # keys that mean nothing elsewhere


def test_no_events_of_null_entries() -> None:
    manager = manager_of(mamba(), enable_kv_cache_events=True)
    request = Request("r", list(range(14)), 4, hasher=Sha256Hasher(b""))
    for new in (8, 3, 1):
        assert manager.allocate_slots(request, new) is not None
        request.num_computed_tokens += new
    manager.free(request)
    hashes = request.block_hashes
    stored = [event for event in manager.take_events() if isinstance(event, BlockStored)]
    assert [event.block_hash for event in stored] == [hashes[1], hashes[2]]
    assert [event.parent_block_hash for event in stored] == [hashes[0], hashes[1]]
    assert [event.token_ids for event in stored] == [(4, 5, 6, 7), (8, 9, 10, 11)]


@every_setup
def test_copies_are_independent(setup: Setup) -> None:
    size = setup.spec.block_size
    manager = setup.manager(log_stats=True, enable_kv_cache_events=setup.caching)
    requests = [Request(name, list(range(10)), size, hasher=Sha256Hasher(b"")) for name in ("a", "b")]
    for request in requests:
        admit(manager, request)
    copied, twins = manager.copy(), [request.copy() for request in requests]
    before = manager_dump(manager)
    assert manager_dump(copied) == before
    drive(copied, twins)
    after = manager_dump(copied)
    assert manager_dump(manager) == before
    assert [request.num_tokens for request in requests] == [10, 10]
    drive(manager, requests)
    assert manager_dump(manager) == manager_dump(copied) == after


def drive(manager: KVCacheManager, requests: list[Request]) -> None:
    """Use everything once."""
    for request in requests:
        request.append_output_token_ids([1])
    manager.allocate_slots_batch(requests, 1)
    manager.free(requests[0])
    manager.check()
    new = Request("new", list(range(3, 12)), requests[0].block_size, hasher=Sha256Hasher(b""))
    admit(manager, new)
    manager.remove_skipped_blocks(new, 9)
    manager.check()


def test_block_size_may_span_several_keys() -> None:
    """A request hashed in smaller units serves a manager with larger blocks (known bugs B44, B45)."""
    manager = manager_of(full(8))
    request = Request("r", list(range(25)), 4)
    admit(manager, request)
    assert manager.num_published("r") == (3,)
    keys = [manager.block_pool.block_key(block) for block in table(manager, "r")]
    assert keys == [*request.block_hashes[1::2], None]
    manager.free(request)
    assert manager.get_computed_blocks(Request("again", list(range(23)), 4))[1] == 16
    assert manager.get_computed_blocks(Request("other", [*range(12), *range(90, 100)], 4))[1] == 8
    manager.check()


def test_context_parallel_blocks() -> None:
    """Ranks that share a block's tokens multiply the block size, also in a copy (known bug B44)."""
    config = KVCacheConfig(33, [KVCacheGroupSpec(["layers.0"], full(4))])
    shared, plain = KVCacheManager(config, 1000, dcp_world_size=2), manager_of(full(8))
    for manager in (shared, shared.copy(), plain):
        request = Request("r", list(range(25)), 4)
        admit(manager, request)
        manager.free(request)
        assert manager.get_computed_blocks(Request("again", list(range(23)), 4))[1] == 16
        manager.check()
    with pytest.raises(UnsupportedError, match="dcp_world_size"):
        KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["layers.0"], sliding())]), 9, dcp_world_size=2)


@pytest.mark.parametrize("ends", ["no room", "wrong call"])
def test_a_batch_that_ends_early_counts_nobody_behind_its_end(ends: str) -> None:
    """Such a count shows in the next step alone, so that no comparison of states sees it."""
    manager = KVCacheManager(KVCacheConfig(4, [KVCacheGroupSpec(["layers.0"], full(4))]), max_model_len=8)
    short, long = Request("short", [1, 2, 3, 4]), Request("long", [5, 6, 7, 8, 9])
    for request in (short, long):
        assert manager.allocate_slots(request, request.num_tokens) is not None
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids([1])
    if ends == "no room":  # for the first; the second has a slot left
        assert manager.allocate_slots_batch([short, long], 1).num_served == 0
    else:
        with pytest.raises(DuplicateRequestError):
            manager.allocate_slots_batch([long, long], 1)
    assert manager.allocate_slots(long, 1) is not None
    manager.check()

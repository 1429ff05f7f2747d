"""Property: lookups, hits and reports of the manager an engine talks to are as documented, one behaviour a test.

How: small managers of one group, by hand; errors are compared by a dump of the whole observable state.

Not covered: what a step gets (test_slots.py), argument ranges (test_integers.py, test_bad_input.py), results as buffers
(test_results.py), draft heads, counts and common prefixes (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.support import Setup, admit, cross, every_setup, full, manager_dump, manager_of, sliding, started, table

from blockwright import KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request, Sha256Hasher
from blockwright.core.keys.request import pack_tokens
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, StaleHitError, UnsupportedError
from blockwright.events import BlockRemoved, BlockStored, CacheLayout, GroupLayout

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


def test_only_known_kinds_alone() -> None:
    with pytest.raises(UnsupportedError, match="cross attention"):
        manager_of(cross())


# ---------------------------------------------------------------------- hits carried to allocate_slots


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
    layout = CacheLayout((GroupLayout("full_attention", 4),), 4)
    assert manager.take_events() == [
        BlockStored(first, None, pack_tokens("", [0, 1, 2, 3]), 4, "adapter", 0, layout=layout),
        BlockStored(second, first, pack_tokens("", [4, 5, 6, 7]), 4, "adapter", 0, layout=layout),
    ]
    assert manager.take_events() == []
    manager.free(request)
    assert manager.take_events() == []
    other = Request("other", list(range(50, 66)), 4, hasher=hasher)
    admit(manager, other)
    assert manager.take_events()[:2] == [BlockRemoved(second, 0), BlockRemoved(first, 0)]
    with pytest.raises(InvalidArgumentError, match="Sha256Hasher"):
        manager.get_computed_blocks(Request("r", [1] * 9, 4))  # keys that mean nothing elsewhere


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

"""An engine that leaves out the calls within its leases has the same blocks, tables and hits as one that makes all.

How: two managers serve the same random requests. One engine asks for each step; the other only where a step ends
behind the lease (`Request.lease`). After each call that both make, their tables, free blocks and keys are compared.
Which lease is right in which state is compared with the specification by the scopes "leases".
"""

import random
from typing import Any

import pytest

from blockwright import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)
from blockwright.errors import InvalidArgumentError, UnknownRequestError

TOKENS: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
FULL = FullAttentionSpec(4, **TOKENS)
STATE = MambaSpec(4, shapes=((1,),), dtypes=("float32",))
LAYERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "full": ([FULL], {}),
    "window": ([FULL, SlidingWindowSpec(4, sliding_window=7, **TOKENS)], {}),
    "chunks": ([FULL, ChunkedLocalAttentionSpec(4, attention_chunk_size=8, **TOKENS)], {}),
    "states": ([FULL, STATE], {}),
    "unit": ([FULL], {"prefix_match_unit": 2}),
    "states, unit": ([FULL, STATE], {"prefix_match_unit": 2}),
    "uncached": ([FULL], {"enable_caching": False}),
}


def manager_of(name: str) -> KVCacheManager:
    specs, options = LAYERS[name]
    groups = [KVCacheGroupSpec([f"layer{at}"], spec) for at, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(200, groups), 64, **options)


def seen(manager: KVCacheManager, names: list[str]) -> Any:
    pool = manager.block_pool
    return [manager.get_block_ids(name) for name in names], pool.free_block_ids(), pool.block_keys(), pool.ref_counts()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_calls_within_a_lease_may_be_left_out(name: str, seed: int) -> None:
    rng = random.Random(seed)
    every, few = manager_of(name), manager_of(name)
    running: list[tuple[Request, Request]] = []
    num_left_out = 0
    for step in range(120):
        for manager in (every, few):
            manager.new_step_starts()
            manager.take_copies()
        if len(running) < 4 and rng.random() < 0.3:
            tokens = [0] * rng.randrange(9) + [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
            pair = Request(f"r{step}", tokens), Request(f"r{step}", tokens)
            for manager, request in zip((every, few), pair, strict=True):
                hit, length = manager.get_computed_blocks(request)
                assert manager.allocate_slots(request, len(tokens) - length, length, hit) is not None
                request.num_computed_tokens = len(tokens)
            running.append(pair)
        for pair in running[:]:
            one, other = pair
            token = rng.randrange(3)
            for request in pair:
                request.append_output_token_ids(token)
            assert every.allocate_slots(one, 1) is not None
            if other.num_computed_tokens + 1 <= other.lease:
                num_left_out += 1
            else:
                assert few.allocate_slots(other, 1) is not None
                names = [each.request_id for each, _ in running]
                assert seen(every, names) == seen(few, names)
            for request in pair:
                request.num_computed_tokens += 1
            if request.num_tokens > 40 or rng.random() < 0.02:
                running.remove(pair)
                every.free(one)
                few.free(other)
                assert other.lease == 0
        if step % 20 == 0:
            few.check()
    assert num_left_out > 30, "the walk left out calls"
    names = [each.request_id for each, _ in running]
    assert seen(every, names) == seen(few, names)


def test_batch_answers_with_the_least_lease() -> None:
    manager = manager_of("full")
    requests = [Request(f"r{length}", range(length)) for length in (5, 6)]
    for request in requests:
        manager.allocate_slots(request, request.num_tokens)
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids(7)
    step = manager.allocate_slots_batch(requests, 1)
    assert [request.lease for request in requests] == [7, 7]
    assert step.lease == 0, "the second request has used up its lease with this step"
    for request in requests:
        request.num_computed_tokens += 1
        request.append_output_token_ids(7)
    assert manager.allocate_slots_batch(requests[:1], 1).lease == 0
    assert manager.allocate_slots_batch([], 1).lease == 0


def test_count_behind_the_lease_is_refused_and_changes_nothing() -> None:
    manager = manager_of("full")
    request = Request("r", range(5))
    manager.allocate_slots(request, 5)
    request.append_output_token_ids([1, 2, 3, 4, 5])
    assert request.lease == manager.lease(request) == 7
    request.num_computed_tokens = 8
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        manager.allocate_slots(request, 1)
    request.num_computed_tokens = 7
    assert manager.allocate_slots(request, 1) is not None
    manager.check()


def test_fork_ends_the_lease_of_both() -> None:
    manager = manager_of("full")
    parent = Request("p", range(5))
    manager.allocate_slots(parent, 5)
    parent.num_computed_tokens = 5
    assert parent.lease == 7
    child = parent.fork("c")
    assert manager.fork(parent, child) is not None
    assert parent.lease == child.lease == 0
    assert manager.lease(parent) == 0


def test_steps_in_flight_have_no_lease() -> None:
    manager = KVCacheManager(KVCacheConfig(9, [KVCacheGroupSpec(["l"], FULL)]), 64, overlap_steps=True)
    request = Request("r", range(5))
    manager.start_step()
    manager.allocate_slots(request, 5)
    assert request.lease == manager.lease(request) == 0
    with pytest.raises(UnknownRequestError):
        manager.lease(Request("other", range(5)))

"""As a request lets go of its blocks, all that it has computed for certain is found, and nothing else (law: PUB-5).

Each way in which a last block becomes known too late for the last step, and each reason for which nothing is published.
"""

from typing import Any

import pytest

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    MambaSpec,
    Request,
    SipHasher,
    SlidingWindowSpec,
)

HEADS: Any = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}
FULL = FullAttentionSpec(4, **HEADS)
WINDOW = SlidingWindowSpec(4, **HEADS, sliding_window=6)
STATE = MambaSpec(4, shapes=((1,),), dtypes=("float32",))


def manager(*specs: Any, **options: Any) -> KVCacheManager:
    groups = [KVCacheGroupSpec([f"layer {at}"], spec) for at, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(60, groups), 64, **options)


def request(name: str, tokens: list[int], lookahead: int = 0, size: int = 4) -> Request:
    return Request(name, tokens, block_size=size, hasher=SipHasher(bytes(16), key_lookahead=lookahead))


def next_hit(manager: KVCacheManager, ended: Request, lookahead: int = 0, size: int = 4) -> int:
    turn = request("next", [*ended.all_token_ids, 90, 91, 92, 93], lookahead, size)
    return manager.get_computed_blocks(turn)[1]


def run(manager: KVCacheManager, one: Request, count: int) -> None:
    manager.allocate_slots(one, count)
    one.num_computed_tokens += count


@pytest.mark.parametrize("specs", [(FULL,), (WINDOW,), (STATE,), (FULL, WINDOW), (FULL, STATE)])
@pytest.mark.parametrize("preempted", [False, True])
def test_a_key_that_is_known_only_at_the_end(specs: Any, preempted: bool) -> None:
    m, one = manager(*specs), request("one", list(range(8)), 1)
    run(m, one, 8)
    one.append_output_token_ids(50)
    m.free(one, preempted=preempted)
    m.check()
    assert next_hit(m, one, 1) == 8


@pytest.mark.parametrize("settles", [False, True])
@pytest.mark.parametrize("in_flight", [False, True])
def test_decoding_ahead_of_the_known_tokens(settles: bool, in_flight: bool) -> None:
    m = manager(FULL, overlap_steps=True, publish_on_settlement=settles)
    one = request("one", list(range(6)))
    steps = [m.start_step()]
    run(m, one, 6)
    for token in range(2 + in_flight):  # each step but the last is settled, and its token known, one step late
        steps.append(m.start_step())
        run(m, one, 1)
        m.settle_step(steps.pop(0))
        one.append_output_token_ids(50 + token)
    if not in_flight:
        m.settle_step(steps.pop(0))
        one.append_output_token_ids(60)
    assert one.num_computed_tokens == 8 + in_flight
    m.free(one)
    m.check()
    assert next_hit(m, one) == 8
    for step in steps:
        m.settle_step(step)
    m.check()
    assert next_hit(m, one) == 8


def test_a_unit_on_settlement() -> None:
    m = manager(FullAttentionSpec(32, **HEADS), prefix_match_unit=2, overlap_steps=True, publish_on_settlement=True)
    one = request("one", list(range(5)), size=2)
    for count in (5, 1, 1, 1, 1):
        step = m.start_step()
        run(m, one, count)
        m.settle_step(step)
        one.append_output_token_ids(50 + count)
    m.free(one)
    m.check()
    assert next_hit(m, one, size=2) == 8


@pytest.mark.parametrize("why", ["put off", "not run", "forgotten"])
def test_nothing_is_published_otherwise(why: str) -> None:
    m, one = manager(FULL), request("one", list(range(8)), 1)
    m.allocate_slots(one, 8, delay_cache_blocks=why == "put off")
    one.num_computed_tokens = 0 if why == "not run" else 8
    if why == "forgotten":
        m.forget(one)
    one.append_output_token_ids(50)
    m.free(one)
    m.check()
    assert next_hit(m, one, 1) == 0


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("late", ["put off", "keys", "forgotten"])
def test_a_checkpoint_that_is_published_late_is_given_up(size: int, late: str) -> None:
    m = manager(MambaSpec(size, shapes=((1,),), dtypes=("float32",)))
    one = request("one", list(range(2 * size + 1)), 9 if late == "keys" else 0, size)
    m.allocate_slots(one, 2 * size + 1, delay_cache_blocks=late == "put off", num_checkpoint_tokens=2 * size)
    one.num_computed_tokens = 2 * size + 1
    if late == "forgotten":
        m.forget(one)
    for token in range(6 * size):
        m.new_step_starts()
        one.append_output_token_ids(token)
        m.allocate_slots(one, 1, delay_cache_blocks=late == "put off")
        one.num_computed_tokens += 1
        m.check()
        assert sum(block != 0 for block in m.get_block_ids("one")[0]) <= 3


def test_a_checkpoint_that_is_published_in_time_is_found() -> None:
    m = manager(MambaSpec(3, shapes=((1,),), dtypes=("float32",)))
    one = request("one", list(range(4)), size=3)
    m.allocate_slots(one, 4, delay_cache_blocks=True, num_checkpoint_tokens=3)
    one.num_computed_tokens = 4
    one.append_output_token_ids(50)
    run(m, one, 1)  # within the block, so that only counts change
    m.new_step_starts()
    assert next_hit(m, one, size=3) == 3

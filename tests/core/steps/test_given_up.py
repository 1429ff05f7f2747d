"""Steps that are given up before they have run, and loads that come in part, in calls of one process.

The scopes with "given up" and "parts of loads" explore these calls. Here are the ways that they do not take: the batch
call of requests that it has seen before, a long history of each, and the recipe for steps in flight.
"""

import pytest

from blockwright import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, MambaSpec, Request
from blockwright.errors import StaleHitError

SPEC = FullAttentionSpec(4, 1, 1, "float32")


def manager(num_blocks: int = 16, **options: object) -> KVCacheManager:
    return KVCacheManager(KVCacheConfig(num_blocks, [KVCacheGroupSpec(["a"], SPEC)]), 64, **options)  # type: ignore[arg-type]


def hit(made: KVCacheManager, tokens: int) -> int:
    return made.get_computed_blocks(Request("asks", range(tokens), block_size=4))[1]


@pytest.mark.parametrize("count", [0, 3, 4, 8])
def test_what_has_run_stays_and_no_more(count: int) -> None:
    made, request = manager(), Request("a", range(17), block_size=4)
    made.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    made.allocate_slots(request, 9)
    request.num_computed_tokens = count  # lower than 8 is none of this step: what was said before counts
    made.free(request, preempted=True)
    made.check()
    assert hit(made, 17) == 8


def test_steps_in_place_after_it_lose_nothing() -> None:
    made, request = manager(), Request("a", range(8), block_size=4)
    made.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    for token in range(8, 11):
        request.append_output_token_ids([token])
        made.allocate_slots_batch([request], 1)
        request.num_computed_tokens += 1
    request.num_computed_tokens = 0  # set back before the call, against the rule
    made.free(request)
    assert hit(made, 9) == 8


def test_what_was_said_to_be_computed_stays() -> None:
    made, request = manager(), Request("a", range(9), block_size=4)
    made.allocate_slots(request, 9, delay_cache_blocks=True)
    made.cache_blocks(request, 4)
    made.free(request)
    assert hit(made, 9) == 4


def test_who_began_in_the_same_step_is_lost() -> None:
    made, first, second = manager(), Request("a", range(9), block_size=4), Request("b", range(13), block_size=4)
    made.allocate_slots(first, 9)
    found, length = made.get_computed_blocks(second)
    assert length == 8
    made.allocate_slots(second, 5, length, found)
    other = Request("c", range(50, 54), block_size=4)
    made.allocate_slots(other, 4)
    made.free(first)
    made.check()
    assert hit(made, 17) == 0  # what "b" published came of it
    second.num_computed_tokens, other.num_computed_tokens = 13, 4
    for request in (second, other):
        request.append_output_token_ids([99])
    with pytest.raises(StaleHitError, match="'b' began on blocks of a step that was given up"):
        made.allocate_slots_batch([other, second], 1)
    with pytest.raises(StaleHitError, match="look it up again"):
        made.allocate_slots(second, 1)
    made.check()
    made.free(second, preempted=True)
    second.num_computed_tokens = 0
    made.allocate_slots(second, 14)
    made.allocate_slots_batch([other], 1)
    made.check()


@pytest.mark.parametrize("first", [0, 1])
def test_a_failed_step_is_given_up_in_any_order(first: int) -> None:
    made = manager()
    requests = [Request("a", range(9), block_size=4), Request("b", range(13), block_size=4)]
    for request in requests:
        found, length = made.get_computed_blocks(request)
        made.allocate_slots(request, request.num_tokens - length, length, found)
    for request in (requests[first], requests[1 - first]):
        made.free(request)
        made.check()
    assert hit(made, 17) == 0
    assert made.usage == 0.0


def test_the_recipe_with_steps_in_flight() -> None:
    made, request = manager(overlap_steps=True), Request("a", range(9), block_size=4)
    done = made.start_step()
    made.allocate_slots(request, 4)
    request.num_computed_tokens = 4
    failed = made.start_step()
    made.allocate_slots(request, 5)
    request.num_computed_tokens = 9
    made.settle_step(done)
    request.num_computed_tokens = made.num_settled("a")
    made.free(request)
    assert hit(made, 9) == 4
    made.settle_step(failed)
    made.check()
    assert (hit(made, 9), made.usage) == (4, 0.0)


def test_a_part_of_a_load_has_no_state() -> None:
    groups = [KVCacheGroupSpec(["a"], MambaSpec(4, ((1,),), ("float32",)))]
    made = KVCacheManager(KVCacheConfig(8, groups), 64, prefix_match_unit=2)
    request = Request("q", [1, 2, 3, 4], block_size=2)
    made.allocate_slots(request, 0, 0, None, num_external_computed_tokens=3)
    assert not made.finish_load(request, 2)
    assert made.get_computed_blocks(Request("o", [1, 2, 3, 4], block_size=2))[1] == 0

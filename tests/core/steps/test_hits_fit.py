"""LIVE-3: on an idle pool, a request fits with the hit that it was offered wherever it fits without; in small cases.

The scopes "just enough", the law and its contract cover the rest.
"""

from typing import Any

import pytest

from blockwright import (
    Fits,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    KVCacheSpec,
    MambaSpec,
    Request,
)

OWN: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32"}


def states(drafts: int = 0) -> KVCacheSpec:
    return MambaSpec(4, shapes=((1,),), dtypes=("float32",), num_speculative_blocks=drafts)


def made(num_blocks: int, *specs: KVCacheSpec, **options: Any) -> KVCacheManager:
    groups = [KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)]
    return KVCacheManager(KVCacheConfig(num_blocks, groups), **{"max_model_len": 16, **options})


def run(manager: KVCacheManager, request: Request, *ends: int) -> None:
    for end in ends:
        manager.new_step_starts()
        manager.allocate_slots(request, end - request.num_computed_tokens)
        manager.take_copies()
        request.num_computed_tokens = end


def test_no_hit_is_offered_where_a_state_beside_it_has_no_room() -> None:
    for num_blocks, length in ((4, 0), (5, 4)):
        manager = made(num_blocks, FullAttentionSpec(4, **OWN), states(), max_model_len=8)
        request = Request("a", [1, 2, 3, 4])
        run(manager, request, 4)
        manager.free(request)
        other = Request("b", [1, 2, 3, 4, 5, 6, 7, 8])
        hit, found = manager.get_computed_blocks(other)
        assert found == length
        assert manager.can_load(other, 0, 4) == (length == 4)
        assert manager.allocate_slots(other, 8 - found, found, hit) is not None


@pytest.mark.parametrize("ask", [{"num_lookahead_tokens": 4}, {"num_draft_tokens": 4}])
def test_a_part_is_written_behind_where_its_copy_has_no_room(ask: Any) -> None:
    manager = made(5, FullAttentionSpec(4, **OWN), prefix_match_unit=1, enable_kv_cache_events=False)
    request = Request("a", [1, 2, 3, 4], block_size=1)
    run(manager, request, 4)
    manager.free(request)
    other = Request("b", [1] + [9] * 8, block_size=1)
    hit, found = manager.get_computed_blocks(other)
    new = 9 + ask.get("num_draft_tokens", 0) - found
    assert found == 1
    assert isinstance(manager.plan(other, new, found, hit, **ask), Fits)
    given = manager.allocate_slots(other, new, found, hit, **ask)
    assert given is not None
    assert manager.get_block_ids("b")[0][0] == hit.ids[0][0]
    assert manager.get_computed_blocks(Request("c", [1, 2, 3, 4, 5], block_size=1))[1] == 1
    manager.check()


def test_a_state_that_is_still_to_be_copied_away_is_hit() -> None:
    manager = made(12, states(), prefix_match_unit=2)
    request = Request("a", [1, 2], block_size=2)
    run(manager, request, 2)
    request.append_output_token_ids(3)
    manager.new_step_starts()
    manager.allocate_slots(request, 1)
    other = Request("b", [1, 2, 7, 8], block_size=2)
    hit, found = manager.get_computed_blocks(other)
    assert found == 2
    assert manager.allocate_slots(other, 2, found, hit) is not None
    (source, _), (again, _) = manager.take_copies()[0]
    assert source == again == manager.get_block_ids("a")[0][0]
    manager.check()

"""Property: nothing runs on tokens that have not come, and wrong loads are refused by name.

How: loads that are longer than the hit before them, whole prompts, wrong calls; errors are compared by a dump of the
whole observable state.

Not covered: what a load publishes and releases, whole, in part or given up (the scopes named "loads" and "loading").
"""

from __future__ import annotations

from tests.core.steps.timed import refused
from tests.core.support import chunked, full, mamba, manager_of, manager_over, sliding, started

from blockwright import Fits, KVCacheManager, KVCacheSpec, Request
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, UnknownStepError


def loading(manager: KVCacheManager, external: int = 8, length: int = 17, name: str = "r") -> Request:
    """A request of which `external` tokens are on their way, after its hit."""
    request = Request(name, list(range(length)), 2)
    hit, tokens = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 0, tokens, hit, num_external_computed_tokens=external) is not None
    return request


def found(manager: KVCacheManager, length: int = 17) -> int:
    return manager.get_computed_blocks(Request("same", list(range(length)), 2))[1]


def test_a_load_that_goes_far_beyond_a_hit_gives_up_what_dies_of_it() -> None:
    """Full attention cuts the hit to 7 tokens; after 12 more no window or chunk reads any of them."""
    manager = manager_over([full(1), sliding(1, 5), chunked(1, 8)])
    manager.free(started(manager, "first", 7, 1))
    request = Request("r", list(range(20)), 1)
    hit, tokens = manager.get_computed_blocks(request)
    assert [[block > 0 for block in ids] for ids in hit.ids] == [[True] * 7, [False] * 3 + [True] * 4, [True] * 7]
    plan = manager.plan(request, 0, tokens, hit, num_external_computed_tokens=12)
    free = manager.block_pool.get_num_free_blocks()
    assert manager.allocate_slots(request, 0, tokens, hit, num_external_computed_tokens=12) is not None
    manager.check()
    assert isinstance(plan, Fits)
    assert plan.num_blocks == free - manager.block_pool.get_num_free_blocks() == 19 + 4 + 3
    held = [[at for at, block in enumerate(ids) if block] for ids in manager.get_block_ids("r")]
    assert held == [list(range(19)), list(range(15, 19)), list(range(16, 19))]


def test_a_load_after_a_hit_that_ends_inside_a_block_begins_with_that_block() -> None:
    manager = manager_of(full(4), prefix_match_unit=2)
    manager.free(started(manager, "first", 6, 2))
    request = Request("r", list(range(12)), 2)
    hit, tokens = manager.get_computed_blocks(request)
    assert tokens == 6
    assert all(manager.can_load(request, length, 2) for length in (0, 4, 6, 8))
    assert manager.allocate_slots(request, 0, tokens, hit, num_external_computed_tokens=2) is not None
    (held,), found = manager.get_block_ids("r"), [int(block) for block in hit.ids[0]]
    assert (held[0], len(held)) == (found[0], 2)
    assert held[1] != found[1]
    refused(manager, InvalidArgumentError, manager.finish_load, request, 5)
    assert manager.finish_load(request, 4)  # the part of the hit, and the two tokens behind it


def test_nothing_runs_on_what_has_not_come() -> None:
    manager = manager_of(full())
    request = loading(manager)
    for call in (manager.allocate_slots, manager.plan, lambda r, n: manager.allocate_slots_batch([r], n)):
        assert "finish_load" in refused(manager, InvalidArgumentError, call, request, 1)
        request.num_computed_tokens = 8
        refused(manager, InvalidArgumentError, call, request, 1)
        request.num_computed_tokens = 0
    for tokens in (1, 4, 8):
        refused(manager, InvalidArgumentError, manager.cache_blocks, request, tokens)
        refused(manager, InvalidArgumentError, manager.remove_skipped_blocks, request, tokens)
    for count in (-1, 9, 2**31, 2**63):
        assert "num_loaded_tokens" in refused(manager, InvalidArgumentError, manager.finish_load, request, count)
    stranger = Request("stranger", [1] * 9, 2)
    assert "'stranger'" in refused(manager, UnknownStepError, manager.finish_load, stranger, 1)
    impostor = Request("r", [1] * 9, 2)
    refused(manager, DuplicateRequestError, manager.finish_load, impostor, 1)
    assert manager.finish_load(request, 8)
    refused(manager, UnknownStepError, manager.finish_load, request, 8)
    refused(manager, KeyError, manager.finish_load, request, 8)


def test_bad_loads() -> None:
    manager = manager_of(full(), 33, 40)
    running, request = started(manager, "running", 9), Request("r", list(range(50, 67)), 4)
    for who, new, external in (
        (request, 1, 8), (request, 9, 8), (request, 0, 18), (request, 0, 41), (request, 0, -1),
        (request, 0, 2**31), (request, 0, 0), (running, 0, 4), (running, 1, 4),
    ):  # fmt: skip
        for call in (manager.allocate_slots, manager.plan):
            message = refused(manager, InvalidArgumentError, call, who, new, num_external_computed_tokens=external)
            assert "num_external_computed_tokens" in message or "num_new_tokens" in message
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=16) is not None


def test_a_load_of_the_whole_prompt_leaves_its_last_token_to_be_computed_again() -> None:
    specs: list[KVCacheSpec] = [full(4), sliding(2, 3)]
    for length in (1, 15, 16):
        manager = manager_over(specs)
        request = Request("r", list(range(length)), 2)
        assert manager.allocate_slots(request, 0, num_external_computed_tokens=length) is not None
        assert manager.finish_load(request, length)
        request.num_computed_tokens = length - 1
        assert manager.allocate_slots(request, 1) is not None
        assert sum(map(bool, manager.get_block_ids("r")[1])) == (1 if length == 1 else 2)
        manager.check()
        assert found(manager, length + 1) == (16 if length == 16 else 0)  # of others the window was not loaded
    refused(
        manager_over([mamba(4)]), InvalidArgumentError, manager_over([mamba(4)]).allocate_slots,
        Request("r", list(range(8)), 4), 0, num_external_computed_tokens=8,
    )  # fmt: skip


def test_the_state_that_was_loaded_is_the_next_one_read() -> None:
    manager = manager_over([full(4), mamba(4, 1)])
    request = loading(manager)
    assert manager.get_state_block_ids(request) == [0, 0]  # nothing is computed yet
    assert manager.finish_load(request, 8)
    request.num_computed_tokens = 8
    assert manager.get_state_block_ids(request) == [0, manager.get_block_ids("r")[1][-1]]

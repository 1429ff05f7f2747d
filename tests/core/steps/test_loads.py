"""Property: tokens that are loaded from elsewhere have their slots at once and are found only when they have come;
whatever of them fails to come, no block is lost.

How: loads that come whole, in part or not at all, of one group and of several, with a hit before them and without, and
requests that end meanwhile; errors are compared by a dump of the whole observable state.

Not covered: plans, windows and steps in flight beside loads (conformance).
"""

from __future__ import annotations

import pytest
from tests.core.steps.timed import every_kinds, refused
from tests.core.support import (
    Setup,
    chunked,
    every_setup,
    full,
    mamba,
    manager_dump,
    manager_of,
    manager_over,
    sliding,
    started,
)

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


@every_setup
def test_whole_loads(setup: Setup) -> None:
    """The request then goes on as if it had computed the tokens itself, but that what is dead is not found (LOAD-1)."""
    size = setup.spec.block_size
    manager, twin = setup.manager(), setup.manager()
    request, other = Request("r", list(range(20)), size), Request("r", list(range(20)), size)
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=12) is not None
    assert manager.num_published("r") == (0,)
    assert manager.block_pool.block_keys() == [None] * 33
    manager.check()
    assert manager.finish_load(request, 12)
    assert twin.allocate_slots(other, 12) is not None
    for each, on in ((manager, request), (twin, other)):
        on.num_computed_tokens = 12
        assert each.allocate_slots(on, 8) is not None
        each.check()
    if 0 in (ids := manager.get_block_ids("r")[0]):
        assert manager.get_blocks("r").blocks[0][ids.index(0)].is_null
        published = [key for key in twin.block_pool.block_keys() if key is not None]
        assert set(published) >= set(manager.block_pool.block_keys()) - {None}
    else:
        assert manager_dump(manager) == manager_dump(twin)


@pytest.mark.parametrize("came", range(8))
def test_what_came_is_the_next_hit(came: int) -> None:
    manager = manager_over([full(4), sliding(2, 9)])
    manager.free(started(manager, "first", 4, 2))
    request = loading(manager, 8)
    assert not manager.finish_load(request, came)
    assert manager.request_ids() == []
    assert manager.usage == 0.0
    manager.check()
    request.num_computed_tokens = 0
    hit, tokens = manager.get_computed_blocks(request)
    assert tokens == (4 + came) // 4 * 4
    assert manager.allocate_slots(request, 17 - tokens, tokens, hit) is not None
    manager.check()


@pytest.mark.parametrize("caching", [True, False])
def test_a_state_comes_whole_or_not(caching: bool) -> None:
    """A state in the middle of a load never was; one that came is published only where a block ends."""
    specs: list[KVCacheSpec] = [full(4), mamba(4, 1)]
    for came in range(8):
        manager = manager_over(specs, caching=caching)
        assert not manager.finish_load(loading(manager), came)
        assert found(manager) == 0
        groups = manager.block_pool.block_groups()
        assert [group for group in groups if group is not None] == [0] * (came // 4 if caching else 0)
        assert manager.usage == 0.0
        manager.check()
    for external, expected in ((8, 8), (12, 12), (9, 0)):
        manager = manager_over(specs, caching=caching)
        request = loading(manager, external)
        assert manager.get_state_block_ids(request) == [0, 0]  # nothing is computed yet
        manager.check()
        assert manager.finish_load(request, external)
        assert found(manager) == (expected if caching else 0)
        request.num_computed_tokens = external
        assert manager.get_state_block_ids(request)[1] == manager.get_block_ids("r")[1][-1]
        assert manager.allocate_slots(request, 1) is not None
        manager.check()


@every_kinds
def test_freed_while_it_loads(specs: list[KVCacheSpec]) -> None:
    """The blocks wait for the load, and return in the order of an immediate release; nothing of it is published."""
    queues = []
    for came in (8, 3, 0, 100):
        manager = manager_over(specs)
        request = loading(manager)
        held = manager.usage
        manager.free(request)
        manager.free(request)
        assert manager.request_ids() == []
        assert manager.usage == held > 0
        assert not manager.reset_prefix_cache()
        manager.check()
        refused(manager, DuplicateRequestError, manager.allocate_slots, request, 0, num_external_computed_tokens=8)
        assert not manager.finish_load(request, came)
        assert manager.usage == 0.0
        assert manager.block_pool.block_keys() == [None] * 33
        manager.check()
        refused(manager, UnknownStepError, manager.finish_load, request, 8)
        queues.append(manager.block_pool.free_block_ids())
        assert manager.allocate_slots(request, 0, num_external_computed_tokens=8) is not None  # and again
        manager.check()
    assert all(queue == queues[0] for queue in queues)
    assert len(queues[0]) == 32


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


def test_copies_of_a_loading_manager() -> None:
    manager = manager_of(full())
    request, gone = loading(manager), loading(manager, 4, name="gone")
    manager.free(gone)
    copy, twin, late = manager.copy(), request.copy(), gone.copy()
    assert manager_dump(copy) == manager_dump(manager)
    before = manager_dump(manager)
    assert copy.finish_load(twin, 8)
    assert not copy.finish_load(late, 4)
    copy.check()
    assert manager_dump(manager) == before
    refused(copy, UnknownStepError, copy.finish_load, late, 4)
    assert not manager.finish_load(gone, 4)
    assert manager.finish_load(request, 8)
    assert manager_dump(copy) == manager_dump(manager)

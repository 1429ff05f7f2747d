"""Property: a commit does what was planned, on an unchanged pool only.

How: plans committed after each kind of change, and by others.

Not covered: what plans count, and that they come true (conformance), who is admitted when (test_admission.py), bad
arguments (test_integers.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.steps.timed import refused
from tests.core.support import full, manager_of, manager_over, sliding, started

from blockwright import Fits, KVCacheManager, Never, NotNow, Plan, Request
from blockwright.errors import InvalidArgumentError, StalePlanError


def ready() -> tuple[KVCacheManager, Request, Request, Request]:
    """A manager with two running requests, which have a token to compute, and one that waits."""
    manager = manager_over([full(2), sliding(2, 3)], 60)
    one, two = started(manager, "one", 7, 2), started(manager, "two", 8, 2, first=30)
    for request in (one, two):
        request.append_output_token_ids([1])
    return manager, one, two, Request("new", list(range(7)), 2)


def set_computed(request: Request, count: int) -> None:
    request.num_computed_tokens = count


def hold_for_a_moment(manager: KVCacheManager) -> None:
    manager.block_pool.touch([2])
    manager.block_pool.free_blocks([2])


def release(manager: KVCacheManager, *requests: Request) -> bool:
    for request in requests:
        manager.free(request)
    return False


CHANGES: dict[str, Callable[[KVCacheManager, Request, Request], object]] = {
    "another was served": lambda m, mine, other: m.allocate_slots(other, 1),
    "another was served in a batch": lambda m, mine, other: m.allocate_slots_batch([other], 1),
    "another was admitted": lambda m, mine, other: m.allocate_slots(Request("third", [1], 2), 1),
    "another was released": lambda m, mine, other: m.free(other),
    "another was trimmed": lambda m, mine, other: m.remove_skipped_blocks(other, other.num_computed_tokens),
    "another plan was committed": lambda m, mine, other: m.commit(m.plan(other, 1)),
    "a block was taken": lambda m, mine, other: m.block_pool.free_blocks(m.block_pool.get_new_blocks(1)),
    "a block was held": lambda m, mine, other: hold_for_a_moment(m),
    "it was served": lambda m, mine, other: m.allocate_slots(mine, 1),
    "it was served more": lambda m, mine, other: m.allocate_slots(mine, 2),
    "it has another token": lambda m, mine, other: mine.append_output_token_ids([5]),
    "its count changed": lambda m, mine, other: set_computed(mine, mine.num_computed_tokens + 1),
    "all was released": lambda m, mine, other: release(m, mine, other),
    "all was forgotten": lambda m, mine, other: release(m, mine, other) or m.reset_prefix_cache(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_stale_plans(name: str) -> None:
    for who in ("one", "two", "new"):
        manager, one, two, new = ready()
        mine = {"one": one, "two": two, "new": new}[who]
        plan = manager.plan(mine, 1)
        assert isinstance(plan, Fits)
        CHANGES[name](manager, mine, two if mine is one else one)
        refused(manager, StalePlanError, manager.commit, plan)
        refused(manager, ValueError, manager.commit, plan)


def test_a_plan_survives_what_changes_nothing() -> None:
    """Questions, and calls that were refused."""
    manager, one, two, new = ready()
    plan, other = manager.plan(one, 1), manager.plan(new, 7)
    manager.get_computed_blocks(new)
    assert manager.allocate_slots(two, 900) is None
    refused(manager, InvalidArgumentError, manager.allocate_slots, two, 0)
    manager.free(Request("nobody", [1], 2))
    manager.copy().free(one.copy())
    manager.check()
    assert isinstance(plan, Fits)
    assert isinstance(other, Fits)
    assert len(manager.commit(plan).ids[0]) + len(manager.commit(manager.plan(new, 7)).ids[0]) == 4
    refused(manager, StalePlanError, manager.commit, other)


def test_plans_are_ones_own() -> None:
    manager, one, _, new = ready()
    stranger, other = manager_of(full(2)), manager.copy()
    for request in (one, new):
        plan = manager.plan(request, 1)
        for each in (stranger, other):
            assert "manager" in refused(each, StalePlanError, each.commit, plan)
        refused(manager, StalePlanError, manager.commit, other.plan(request.copy(), 1))
        manager.commit(plan)
        refused(manager, StalePlanError, manager.commit, plan)


def test_only_what_fits_is_committed() -> None:
    manager = manager_of(full(), 9, 30)
    started(manager, "running", 9)
    plans: list[Plan] = [
        manager.plan(Request("r", list(range(40, 65)), 4), 25),
        manager.plan(Request("r", list(range(40, 80)), 4), 31),
    ]
    assert [type(plan) for plan in plans] == [NotNow, Never]
    assert [repr(plan) for plan in plans] == [
        "NotNow('r', num_missing_blocks=2, num_free_blocks=5)",
        "Never('r', '31 tokens, max_model_len is 30')",
    ]
    for plan in plans:
        assert repr(plan) in refused(manager, InvalidArgumentError, manager.commit, plan)
    for odd in (None, "plan", 5, Plan("r")):
        refused(manager, (InvalidArgumentError, TypeError), manager.commit, odd)


def test_a_plan_does_not_take_back_what_is_certain() -> None:
    """A plan counted before the engine said that the drafts are done must not go behind them."""
    manager = manager_of(full())
    request = started(manager, "r", 5)
    request.append_output_token_ids([5])
    assert manager.allocate_slots(request, 3) is not None  # two drafts
    request.num_computed_tokens = 6
    plan = manager.plan(request, 1)
    manager.remove_skipped_blocks(request, 8)
    refused(manager, InvalidArgumentError, manager.allocate_slots, request, 1)
    refused(manager, StalePlanError, manager.commit, plan)


def test_another_managers_plan_for_a_request_of_the_same_name() -> None:
    manager, other = ready()[0], ready()[0]
    request = Request("one", [1], 2)
    plan = manager_of(full(2)).plan(request, 1)
    for each in (manager, other):
        refused(each, StalePlanError, each.commit, plan)

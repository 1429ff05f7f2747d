"""Property: a recurrent state is found once the step that writes it has run, whatever calls the engine makes, and not
before.

How: two requests with a common prompt, and each call by which a manager may learn that the step of the first has run:
its next slots, its end, a new step, a fork, publication by hand, settlement.

Not covered: calls by which it must not learn that, and that nothing else changes (the conformance kit, in lock-step).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.core.steps.timed import give, over, refused
from tests.core.support import full, mamba, manager_over

from blockwright import KVCacheManager, KVCacheSpec, Request
from blockwright.errors import UnsupportedError

BOTH: list[KVCacheSpec] = [full(2), mamba(4)]


def prompt(name: str, length: int) -> Request:
    return Request(name, list(range(length)), 2)


def found(manager: KVCacheManager) -> int:
    """The hit of a request that shares the first eight tokens."""
    return manager.get_computed_blocks(prompt("b", 9))[1]


def stepped(manager: KVCacheManager, request: Request) -> Request:
    """A request whose first eight tokens are computed by a step that has not run."""
    assert manager.allocate_slots(request, 8) is not None
    return request


def goes_on(manager: KVCacheManager, request: Request) -> None:
    assert manager.allocate_slots(request, 1) is not None


def goes_on_in_a_batch(manager: KVCacheManager, request: Request) -> None:
    assert manager.allocate_slots_batch([request], 1).num_served == 1


def goes_on_as_planned(manager: KVCacheManager, request: Request) -> None:
    plan = manager.plan(request, 1)
    assert found(manager) == 0  # a plan changes nothing
    manager.commit(plan)


def ends(manager: KVCacheManager, request: Request) -> None:
    manager.free(request)


def publishes(manager: KVCacheManager, request: Request) -> None:
    manager.cache_blocks(request, 8)


def a_step_starts(manager: KVCacheManager, _: Request) -> None:
    manager.new_step_starts()


def parts(manager: KVCacheManager, request: Request) -> None:
    child = request.fork("c")
    assert manager.fork(request, child) is not None
    assert manager.num_published("c") == manager.num_published("a") == (4, 2)


CALLS = (goes_on, goes_on_in_a_batch, goes_on_as_planned, ends, publishes, a_step_starts, parts)


@pytest.mark.parametrize("has_run", CALLS, ids=lambda call: call.__name__)
def test_found_once_its_step_has_run(has_run: Callable[[KVCacheManager, Request], None]) -> None:
    manager = manager_over(BOTH)
    request = stepped(manager, prompt("a", 9))
    for each in (manager, manager.copy()):
        assert found(each) == 0
        each.check()
    twin, copied = manager.copy(), request.copy()
    for each, on in ((manager, request), (twin, copied)):
        on.num_computed_tokens = 8
        assert found(each) == 0
        has_run(each, on)
        assert found(each) == 8
        each.check()
        has = each.get_computed_blocks(prompt("b", 9))
        assert each.allocate_slots(prompt("b", 9), 1, has[1], has[0]) is not None


def test_with_steps_in_flight_the_next_step_finds_it() -> None:
    manager = over(BOTH)
    request = prompt("a", 9)
    manager.start_step()
    assert give(manager, request, 8)
    manager.cache_blocks(request, 8)
    assert found(manager) == 0  # the engine's count goes ahead of its steps
    settles = manager.copy()
    manager.start_step()
    assert found(manager) == 8
    settles.settle_step(1)
    assert found(settles) == 8
    refused(manager, UnsupportedError, manager.new_step_starts)
    for each in (manager, settles):
        each.check()

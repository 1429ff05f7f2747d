"""Property: a fork is refused for each reason that its documentation names, and then changes nothing.

How: each refusal by a dump of everything; other calls beside forks and copies.

Not covered: what a fork does (the scopes named "forks"); random histories of an engine with forks, whose requests
read back what is theirs (the gate `numerics`); data on a device (tests of the device).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.steps.timed import refused
from tests.core.support import (
    SHA256,
    admit,
    full,
    mamba,
    manager_of,
    request_dump,
    started,
    table,
)

from blockwright import Fits, KVCacheManager, MultiModalItem, Request, Sha256Hasher
from blockwright.errors import DuplicateRequestError, InvalidArgumentError, StalePlanError, UnknownRequestError

# ---------------------------------------------------------------------- sampling and beam search


def decoded(manager: KVCacheManager, request: Request, token: int) -> None:
    request.append_output_token_ids([token])
    assert manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens += 1


def forked(manager: KVCacheManager, parent: Request, name: str) -> Request:
    child = parent.fork(name)
    assert manager.fork(parent, child) is not None
    return child


def test_requests_without_keys_fork_too() -> None:
    """A child with keys publishes what its keyless parent has computed."""
    manager = manager_of(full())
    parent = Request("parent", list(range(9)), None)
    admit(manager, parent)
    child = Request("child", list(range(9)), 4)
    child.num_computed_tokens = 9
    assert manager.fork(parent, child) is not None
    decoded(manager, child, 5)
    assert manager.num_published("child") == (2,)
    assert manager.num_published("parent") == (0,)
    assert manager.get_computed_blocks(Request("hit", list(range(9)), 4))[1] == 8
    decoded(manager, parent, 5)
    manager.check()


def test_where_nothing_is_cached_any_keys_will_do() -> None:
    manager = manager_of(full(2), caching=False)
    parent, child = (Request(name, list(range(4)), 3) for name in ("parent", "child"))
    assert manager.allocate_slots(parent, 3) is not None
    parent.num_computed_tokens = child.num_computed_tokens = 3
    assert manager.fork(parent, child) is not None


# ---------------------------------------------------------------------- refusals


def world() -> tuple[KVCacheManager, Request]:
    """A request in the middle of its life, and others beside it."""
    manager = manager_of(full(), 33, log_stats=True, enable_kv_cache_events=True)
    parent = Request("parent", list(range(9)), 4, hasher=SHA256, cache_salt="salt", lora_name="lora")
    admit(manager, parent)
    decoded(manager, parent, 9)
    other = Request("other", list(range(50, 60)), 4, hasher=SHA256)
    admit(manager, other)
    return manager, parent


def like(tokens: list[int], computed: int = 10, **fields: Any) -> Request:
    given: dict[str, Any] = {"cache_salt": "salt", "lora_name": "lora", "hasher": SHA256, **fields}
    child = Request("child", tokens, given.pop("block_size", 4), **given)
    child.num_computed_tokens = computed
    return child


NOT_FORKS: dict[str, Callable[[], Request]] = {
    "another token": lambda: like([0, 1, 2, 3, 4, 5, 6, 7, 8, 10]),
    "another first token": lambda: like([1, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    "fewer tokens": lambda: like(list(range(9))),
    "no salt": lambda: like(list(range(10)), cache_salt=None),
    "another salt": lambda: like(list(range(10)), cache_salt="pepper"),
    "another adapter": lambda: like(list(range(10)), lora_name="other"),
    "salt for adapter": lambda: like(list(range(10)), cache_salt="lora", lora_name="salt"),
    "an image": lambda: like(list(range(10)), mm_items=[MultiModalItem("i", 9, 1)]),
    "fewer computed": lambda: like(list(range(10)), 9),
    "more computed": lambda: like(list(range(12)), 11),
    "none computed": lambda: like(list(range(10)), 0),
    "negative": lambda: like(list(range(10)), -1),
    "blocks too large": lambda: like(list(range(10)), block_size=8),
    "blocks that do not divide": lambda: like(list(range(10)), block_size=3),
}


@pytest.mark.parametrize("name", NOT_FORKS)
def test_a_child_must_go_on_from_its_parent(name: str) -> None:
    manager, parent = world()
    child = NOT_FORKS[name]()
    before = request_dump(child), request_dump(parent)
    message = refused(manager, InvalidArgumentError, manager.fork, parent, child)
    assert "child" in message
    assert (request_dump(child), request_dump(parent)) == before
    assert manager.fork(parent, like([*range(10), 77], lora_name="lora")) is not None, "the name is not taken"
    manager.check()


def test_a_hasher_that_cannot_be_told_of_is_refused() -> None:
    manager, parent = world()
    refused(manager, InvalidArgumentError, manager.fork, parent, like(list(range(10)), hasher=None))
    assert manager.fork(parent, like(list(range(10)), hasher=Sha256Hasher(b"another"))) is not None
    manager.check()


def test_items_after_what_is_computed_may_differ() -> None:
    manager = manager_of(full())
    item = MultiModalItem("image", 2, 3)
    parent = Request("parent", list(range(9)), 4, mm_items=[item])
    admit(manager, parent)
    more = MultiModalItem("another", 9, 2)
    for items, fits in (
        ([item, more], True),
        ([item], True),
        ([more], False),
        ([item._replace(identifier="x")], False),
    ):
        child = Request("child", list(range(12)), 4, mm_items=items)
        child.num_computed_tokens = 9
        if fits:
            assert manager.fork(parent, child) is not None
            manager.free(child)
        else:
            refused(manager, InvalidArgumentError, manager.fork, parent, child)


def test_a_parent_must_hold_blocks_here() -> None:
    manager, parent = world()
    elsewhere = manager.copy()
    waiting = Request("waiting", list(range(9)), 4, hasher=SHA256)
    refused(manager, UnknownRequestError, manager.fork, waiting, waiting.fork("child"))
    manager.free(parent)
    refused(manager, UnknownRequestError, manager.fork, parent, parent.fork("child"))
    assert elsewhere.fork(parent.copy(), parent.fork("child")) is not None
    stranger = Request("other", list(range(50, 60)), 4, hasher=SHA256)
    refused(manager, DuplicateRequestError, manager.fork, stranger, stranger.fork("child"))


def test_a_fork_is_another_request() -> None:
    """Even under the name of its parent, and after the parent has gone."""
    manager, parent = world()
    same = parent.fork("parent")
    for call in (
        manager.free,
        lambda request: manager.allocate_slots(request, 1),
        lambda r: manager.cache_blocks(r, 1),
    ):
        refused(manager, DuplicateRequestError, call, same)
    child = forked(manager, parent, "child")
    assert manager.num_published("child") == manager.num_published("parent") == (2,)
    assert (child.all_token_ids, child.block_hashes) == (parent.all_token_ids, parent.block_hashes)
    child.append_output_token_ids([1, 2, 3])
    assert parent.num_tokens == 10
    manager.free(parent)
    assert manager.fork(child, same) is not None
    assert table(manager, "parent") == table(manager, "child")
    manager.check()


def test_a_child_must_not_run() -> None:
    manager, parent = world()
    child = forked(manager, parent, "child")
    for taken in (child, parent, child.copy(), parent.copy(), parent.fork("other"), parent.fork("parent")):
        refused(manager, DuplicateRequestError, manager.fork, parent, taken)
    manager.free(child)
    assert manager.fork(parent, child) is not None, "a child that was freed may be forked again"
    grandchild = forked(manager, child, "grandchild")
    manager.free(parent)
    manager.free(child)
    assert table(manager, grandchild.request_id) == [1, 2, 3]
    manager.check()


def test_a_child_whose_name_is_still_loading() -> None:
    """The blocks of the load return apart from those of the fork."""
    manager = manager_of(full())
    lost = Request("child", list(range(9)), 4)
    assert manager.allocate_slots(lost, 0, num_external_computed_tokens=8) is not None
    manager.free(lost)
    parent = started(manager, "parent", 6, first=70)
    child = forked(manager, parent, "child")
    assert not manager.finish_load(child, 8)
    assert table(manager, "child") == table(manager, "parent") == [3, 4]
    manager.check()
    manager.free(child)
    manager.free(parent)
    assert manager.usage == 0.0


# ---------------------------------------------------------------------- other calls beside forks


def parted(**options: Any) -> tuple[KVCacheManager, Request, Request]:
    """A parent and its fork, one step after; the copy is still to come."""
    manager = manager_of(full(), **options)
    parent = started(manager, "parent", 6)
    child = forked(manager, parent, "child")
    decoded(manager, child, 60)
    return manager, parent, child


def test_a_fork_reads_the_state_of_its_parent() -> None:
    manager = manager_of(mamba(4, 1))
    parent = started(manager, "parent", 5)
    child = forked(manager, parent, "child")
    assert manager.get_state_block_ids(child) == manager.get_state_block_ids(parent) != [0]
    assert manager.get_draft_block_ids("child") != manager.get_draft_block_ids("parent")


def test_a_watermark_is_for_newcomers_not_for_forks() -> None:
    manager = manager_of(full(), 11, watermark=0.5)
    parent = started(manager, "parent", 30)
    assert manager.block_pool.get_num_free_blocks() == 2
    child = forked(manager, parent, "child")
    decoded(manager, child, 1)
    assert manager.allocate_slots(Request("new", [1], 4), 1) is None
    manager.check()


@pytest.mark.parametrize("other", ["parent", "another", "copies"])
def test_a_plan_is_stale_after_a_fork(other: str) -> None:
    manager = manager_of(full())
    parent, another = started(manager, "parent", 6), started(manager, "another", 6, first=30)
    if other == "copies":
        decoded(manager, forked(manager, parent, "before"), 5)
    parent.append_output_token_ids([7])
    another.append_output_token_ids([8])
    plan = manager.plan(another if other == "another" else parent, 1)
    assert isinstance(plan, Fits)
    if other == "copies":
        manager.take_copies()
    else:
        forked(manager, parent, "child")
    refused(manager, StalePlanError, manager.commit, plan)
    again = manager.plan(parent, 1)
    assert isinstance(again, Fits)
    assert again.num_blocks == (0 if other == "copies" else 1)
    free = manager.block_pool.get_num_free_blocks()
    manager.commit(again)
    assert manager.block_pool.get_num_free_blocks() == free - again.num_blocks
    manager.check()


def test_a_plan_for_the_child_made_before_it_was_forked() -> None:
    manager = manager_of(full())
    parent = started(manager, "parent", 6)
    child = parent.fork("child")
    child.num_computed_tokens = 0
    plan = manager.plan(child, 6)
    assert isinstance(plan, Fits)
    child.num_computed_tokens = 6
    assert manager.fork(parent, child) is not None
    refused(manager, StalePlanError, manager.commit, plan)

"""Property: calls for engines that publish after a step, keep their own tokens, lock hits and give slots back.

How: each beside the calls that it stands for, or beside what the same tokens take where they are computed once.
Not covered: every order of these calls (lock-step, in scopes "put off together", "made shorter" and "folded").
"""

from __future__ import annotations

import gc
import re
from typing import Any, ClassVar
from uuid import UUID

import pytest
from tests.core.support import full, mamba, manager_dump, manager_of, manager_over, sliding

from blockwright import Fits, KVCacheManager, KVCacheSpec, NotNow, Request, ids
from blockwright.errors import (
    BlockwrightError,
    DuplicateRequestError,
    InvalidArgumentError,
    StaleHitError,
    UnknownRequestError,
)


class Shout:
    """An id with a hash and a comparison of its own, which can be made to fail."""

    is_quiet: ClassVar[bool] = True

    def __init__(self, text: str) -> None:
        self.text = text

    def __hash__(self) -> int:
        assert self.is_quiet
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        assert self.is_quiet
        return isinstance(other, Shout) and other.text == self.text


def two(manager: KVCacheManager) -> list[Request]:
    requests = [Request(name, [number] * 9, 4) for number, name in enumerate("ab")]
    for request in requests:
        assert manager.allocate_slots(request, 4) is not None
        request.num_computed_tokens = 4
    return requests


def test_a_batch_that_is_put_off_is_published_in_one_call() -> None:
    one, other = manager_of(full(4), 20), manager_of(full(4), 20)
    mine, theirs = two(one), two(other)
    one.allocate_slots_batch(mine, 5, delay_cache_blocks=True)
    for request in theirs:
        other.allocate_slots(request, 5, delay_cache_blocks=True)
    assert [one.num_published(name) for name in "ab"] == [(1,), (1,)]
    assert manager_dump(one) == manager_dump(other)
    one.cache_blocks_batch(mine, 9)
    for request in theirs:
        other.cache_blocks(request, 9)
    assert [one.num_published(name) for name in "ab"] == [(2,), (2,)]
    assert manager_dump(one) == manager_dump(other)


def test_a_batch_with_one_wrong_count_publishes_nothing() -> None:
    manager = manager_of(full(4), 20)
    requests = two(manager)
    manager.allocate_slots_batch(requests, 5, delay_cache_blocks=True)
    before = manager_dump(manager)
    with pytest.raises(InvalidArgumentError, match="num_computed_tokens"):
        manager.cache_blocks_batch(requests, [9, 10])
    with pytest.raises(DuplicateRequestError, match="twice"):
        manager.cache_blocks_batch([*requests, requests[0]], 9)
    assert manager_dump(manager) == before


def test_a_locked_hit_outlives_others_and_is_adopted() -> None:
    manager = manager_of(full(4), 6)
    first = Request("first", [1] * 8, 4)
    manager.allocate_slots(first, 8)
    first.num_computed_tokens = 8
    manager.free(first)
    waiting = Request("waiting", [1] * 8, 4)
    hit, length = manager.get_computed_blocks(waiting)
    manager.lock(waiting, length, hit)
    assert manager.allocate_slots(Request("other", [2] * 16, 4), 16) is not None
    manager.check()
    assert manager.allocate_slots(waiting, 1, length, hit) is None  # no block is left for its last tokens
    manager.unlock(hit)
    assert manager.block_pool.num_held_externally == 0
    with pytest.raises(BlockwrightError):
        manager.unlock(hit)
    manager.block_pool.get_new_blocks(1)
    with pytest.raises(StaleHitError):
        manager.lock(waiting, length, hit)


def test_sync_appends_what_is_not_known() -> None:
    tokens = [1, 2, 3]
    request = Request("r", tokens, 2)
    tokens += [4, 5]
    assert (request.sync(tokens), request.sync(tokens), request.num_tokens) == (2, 0, 5)
    with pytest.raises(InvalidArgumentError, match="taken back"):
        request.sync(tokens[:4])
    with pytest.raises(InvalidArgumentError, match="token_ids"):
        request.sync([*tokens, -1])
    assert request.num_tokens == 5


def test_a_plan_tells_the_demand_of_each_group() -> None:
    manager = manager_over([full(4), sliding(2, 4)], 9)
    fits = manager.plan(Request("r", [1] * 8, 2), 8)
    assert isinstance(fits, Fits)
    assert fits.blocks_by_group == [2, 4]
    assert manager.allocate_slots(Request("other", [2] * 8, 2), 8) is not None
    late = manager.plan(Request("r", [1] * 8, 2), 8)
    assert isinstance(late, NotNow)
    assert late.blocks_by_group == [2, 4]


def test_a_single_call_tells_what_it_nulled() -> None:
    manager = manager_of(sliding(2, 4), 20)
    request = Request("r", [1] * 12, 2)
    manager.allocate_slots(request, 8)
    request.num_computed_tokens = 8
    given = manager.allocate_slots(request, 4)
    assert given is not None
    assert given.nulled_entries == ([0, 1],)
    assert manager.get_block_ids("r")[0][:2] == [0, 0]


def test_a_step_that_is_given_up_leaves_what_was_there() -> None:
    manager = manager_of(full(4), 20)
    request = Request("r", [1] * 20, 4)
    manager.allocate_slots(request, 6)
    request.num_computed_tokens = 6
    before = manager.get_block_ids("r"), manager.block_pool.num_free, manager.num_published("r")
    manager.allocate_slots(request, 10)
    manager.shorten(request, 9)
    assert len(manager.get_block_ids("r")[0]) == 3
    manager.shorten(request, 6)
    assert (manager.get_block_ids("r"), manager.block_pool.num_free, manager.num_published("r")) == before
    manager.check()
    with pytest.raises(InvalidArgumentError, match=r"6\.\.6"):
        manager.shorten(request, 5)


def test_samples_that_compute_the_same_hold_one_block_for_it() -> None:
    """Eight samples of 23 blocks each: 184 blocks before, and 23 with the blocks that are not full apart."""
    manager = manager_of(full(4), 400)
    samples = [Request(f"r{i}", [1] * 92, 4) for i in range(8)]
    manager.allocate_slots_batch(samples, 92)
    used = 399 - manager.block_pool.num_free
    for request in samples:
        request.num_computed_tokens = 92
    told = manager.fold_duplicates(samples, 92)
    assert (used, 399 - manager.block_pool.num_free) == (184, 23)
    assert len(told.replaced_entries) == 4 * 7 * 23
    assert {tuple(manager.get_block_ids(request.request_id)[0]) for request in samples} == {tuple(range(1, 24))}
    assert len(manager.fold_duplicates(samples, 92).replaced_entries) == 0
    manager.check()


def test_a_manager_shows_itself() -> None:
    manager = manager_over([full(4), sliding(2, 4)], 9)
    assert manager.allocate_slots(Request("r", [2] * 8, 2), 8) is not None
    assert repr(manager) == (
        "KVCacheManager(2 of 8 blocks free, 1 running, FullAttention in blocks of 4, SlidingWindow(4) in blocks of 2)"
    )
    assert manager._repr_svg_().startswith("<svg")


@pytest.mark.parametrize(
    "name", [7, ("a", 1), b"x", UUID(int=5), frozenset({1}), Shout("a")], ids=lambda each: type(each).__name__
)
def test_any_hashable_object_is_an_id(name: object) -> None:
    manager, plain = manager_of(full(4), 20), manager_of(full(4), 20)
    given = [(manager, Request(name, [1] * 6)), (plain, Request("plain", [1] * 6))]
    for each, request in given:
        assert each.allocate_slots(request, 6) is not None
        request.num_computed_tokens = 6
    request = given[0][1]
    assert request.request_id == name
    assert manager.request_ids() == [name]
    assert manager.get_block_ids(name) == plain.get_block_ids("plain")
    with pytest.raises(DuplicateRequestError, match="another request runs under the id"):
        manager.allocate_slots(Request(name, [2] * 6), 6)
    assert manager.allocate_slots_batch([request], 1).request_ids in ([name], [""])
    assert manager.plan(Request(str(name), [1] * 6), 6).request_id == str(name)  # which is another id
    manager.free(request)
    with pytest.raises(UnknownRequestError, match=re.escape(repr(name))):
        manager.get_blocks(name)


def test_what_is_no_id_is_refused_by_name() -> None:
    wrong: Any
    for wrong in ("", None, [1], {}):
        with pytest.raises(InvalidArgumentError, match="request_id: must"):
            Request(wrong, [1])


def test_ids_of_a_callers_class_do_not_run_in_the_middle_of_a_call() -> None:
    manager = manager_of(full(4), 20)
    name = Shout("a")
    request = Request(name, [1] * 9)
    Shout.is_quiet = False
    try:
        assert manager.allocate_slots(request, 9) is not None
        request.num_computed_tokens = 9
        manager.free(request)
    finally:
        Shout.is_quiet = True


def test_rejected_drafts_are_named_by_any_id() -> None:
    manager = manager_over([full(4)], 20, overlap_steps=True)
    request = Request(7, [1] * 6)
    step = manager.start_step()
    assert manager.allocate_slots(request, 8, num_draft_tokens=2) is not None
    manager.settle_step(step, {7: 2})
    assert manager.num_settled(7) == 6


def test_an_id_is_forgotten_with_its_last_request() -> None:
    gc.collect()
    before = len(ids._names)
    request = Request((1, 2), [1])
    assert len(ids._names) == before + 1
    del request
    gc.collect()
    assert len(ids._names) == before


@pytest.mark.parametrize("layers", [[full(4)], [full(4), sliding(4, 6)], [full(4), mamba(4)]], ids=str)
def test_a_fork_with_copies_needs_none_later(layers: list[KVCacheSpec]) -> None:
    manager = manager_over(layers, 30)
    parent = Request("parent", range(6))
    assert manager.allocate_slots(parent, 6) is not None
    parent.num_computed_tokens = 6
    child = parent.fork("child")
    copies = manager.fork_with_copies(parent, child)
    mine, other = manager.get_block_ids("parent"), manager.get_block_ids("child")
    assert copies == [[(old[-1], new[-1])] for old, new in zip(mine, other, strict=True)]
    assert all(old[:-1] == new[:-1] for old, new in zip(mine, other, strict=True))
    for request in (parent, child):
        request.append_output_token_ids(7)
        assert manager.allocate_slots(request, 1) is not None
    assert manager.take_copies() == [[] for _ in layers]
    assert (manager.get_block_ids("parent"), manager.get_block_ids("child")) == (mine, other)
    manager.check()


def test_a_fork_with_copies_that_finds_no_room_changes_nothing() -> None:
    manager = manager_of(full(4), 3)
    parent = Request("parent", range(6))
    assert manager.allocate_slots(parent, 6) is not None
    parent.num_computed_tokens = 6
    before = manager_dump(manager)
    assert manager.fork_with_copies(parent, parent.fork("child")) is None
    assert manager_dump(manager) == before
    assert manager.fork(parent, parent.fork("child")) is not None  # which takes no block yet


def test_a_fork_that_ends_a_block_has_no_copies() -> None:
    manager = manager_of(full(4), 10)
    parent = Request("parent", range(8))
    assert manager.allocate_slots(parent, 8) is not None
    parent.num_computed_tokens = 8
    assert manager.fork_with_copies(parent, parent.fork("child")) == [[]]
    assert manager.get_block_ids("parent") == manager.get_block_ids("child")

"""Property: one tier keeps its books as section 6 of the named systems and the specification's laws say.

Tested by examples of what scopes do not have. Not covered here: each transition against the specification (the gate
`offload`), bad input (test_bad_input.py).
"""

from __future__ import annotations

import pytest
from tests.offload.tiers.tier_support import BLOCK_SIZE, MANAGERS, keys, lru, store

from blockwright.offload import BlockHint, BlockIDsLoadStoreSpec, CPUBackend, LRUOffloadingManager, OffloadChain

each_policy = pytest.mark.parametrize("policy", MANAGERS)


def places(spec: object) -> list[int]:
    assert isinstance(spec, BlockIDsLoadStoreSpec)
    return spec.block_ids


def test_events_tell_what_can_be_read() -> None:
    manager = lru(2, "ab")
    store(manager, "c")
    manager.remove(keys("b"))
    reported = [(event.block_hashes, event.removed) for event in manager.take_events()]
    assert reported == [(keys("ab"), False), (keys("a"), True), (keys("c"), False), (keys("b"), True)]
    assert manager.take_events() == []
    silent = lru(2, "ab", enable_events=False)
    assert silent.take_events() == []


def test_events_that_no_call_takes_are_bounded_and_lose_nothing() -> None:
    manager = lru(3, "abc")
    known = {key for event in manager.take_events() for key in event.block_hashes}
    for number in range(3000):
        store(manager, "abcdefg"[number * number % 7])
    events = manager.take_events()
    assert sum(len(event.block_hashes) for event in events) < 1100
    for event in events:
        known = known - {*event.block_hashes} if event.removed else known | {*event.block_hashes}
    assert known == set(manager.recency())


@each_policy
def test_empty_lists_do_nothing(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 1), True)
    assert places(manager.prepare_load([])) == []
    for call in (manager.touch, manager.complete_load, manager.complete_store, manager.remove):
        call([])
    assert manager.take_events() == []


def test_hashes_that_collide_are_told_apart() -> None:
    # All keys of one length whose words mix alike would be in one bucket; whole keys are compared.
    many = [bytes([i, j]) for i in range(40) for j in range(40)] + [bytes(8) * n for n in range(1, 50)]
    manager = LRUOffloadingManager(CPUBackend(BLOCK_SIZE, len(many)))
    manager.prepare_store(many)
    manager.complete_store(many[::2])
    assert [manager.lookup([key]) for key in many] == [1, 0] * (len(many) // 2) + [1] * (len(many) % 2)
    manager.check()


def test_what_is_said_again_is_joined_and_ends_with_the_block() -> None:
    manager = LRUOffloadingManager(CPUBackend(BLOCK_SIZE, 2), shares={"a": 1})
    a, b = keys("ab")
    store(manager, "a")
    assert manager.hint_of(a) is None
    for hint in (BlockHint("a"), None, BlockHint(None, 2, 5), BlockHint("a", 1, 7)):
        assert manager.prepare_store_hinted([a], [hint]) is not None
    manager.check()
    twin = manager.copy()
    assert (manager.hint_of(a), twin.hint_of(a)) == (BlockHint("a", 2, 7), BlockHint("a", 2, 7))
    manager.advance_time(7)
    manager.advance_time(3)
    assert manager.prepare_store_hinted([a, b], [BlockHint("c", 1, 8), BlockHint("a", 9, 6)]) is not None
    assert (manager.hint_of(a), manager.hint_of(b)) == (BlockHint("c", 1, 8), BlockHint("a"))
    manager.check()
    manager.remove([a])
    store(manager, "a")
    assert (manager.hint_of(a), twin.hint_of(a)) == (None, BlockHint("a", 2, 7))
    assert twin.prepare_store_hinted(keys("bcd"), [None] * 3) is None, "a refusal says nothing"
    twin.check()


def test_what_goes_down_and_comes_up_is_whose_it_was() -> None:
    chain = OffloadChain([lru(2), lru(3)], reserve=1)
    a, b = keys("ab")
    for key, hint in ((a, BlockHint("a", 1, 9)), (b, None)):
        assert chain.store([key], [1], [hint]) is not None
        for each in chain.take_transfers():
            chain.finish(each.job_id, True)
    for each in chain.take_transfers():
        chain.finish(each.job_id, True)
    assert [tier.hint_of(a) for tier in chain.tiers] == [None, BlockHint("a", 1, 9)]
    chain.load([a], [3])
    assert chain.tiers[0].hint_of(a) == BlockHint("a", 1, 9)
    chain.advance_time(9)
    chain.check()

"""Property: one tier keeps its books as section 6 of the named systems and the specification's laws say.

Tested by examples, one for each rule, on both policies where the rule is not LRU's own, and by long random histories in
which the self-check recomputes every invariant after each call. Not covered here: each transition against the
specification (the gate `offload` does that), bad input (test_bad_input.py).
"""

from __future__ import annotations

import random

import pytest
from tests.offload.tiers.tier_support import BLOCK_SIZE, MANAGERS, keys, lru, store

from blockwright.errors import BlockNotReadyError, BlockwrightError, NotPreparedError, UnknownBlockHashError
from blockwright.offload import BlockIDsLoadStoreSpec, CPUBackend, LRUOffloadingManager, OffloadingEvent

each_policy = pytest.mark.parametrize("policy", MANAGERS)


def places(spec: object) -> list[int]:
    assert isinstance(spec, BlockIDsLoadStoreSpec)
    return spec.block_ids


@each_policy
def test_block_is_found_only_once_it_is_written(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 2))
    output = manager.prepare_store(keys("ab"))
    assert output is not None
    assert (output.block_hashes_to_store, places(output.store_spec), output.block_hashes_evicted) == (
        keys("ab"),
        [0, 1],
        [],
    )
    assert manager.lookup(keys("ab")) == 0
    manager.complete_store(keys("a"))
    assert manager.lookup(keys("ab")) == 1
    manager.complete_store(keys("ab"))  # those ready since before are passed over
    assert manager.lookup(keys("ab")) == 2
    assert manager.lookup(keys("xab")) == 0


def test_oldest_idle_block_goes_first_and_its_place_is_taken() -> None:
    manager = lru(3, "abc")
    manager.touch(keys("a"))
    output = manager.prepare_store(keys("d"))
    assert output is not None
    assert (output.block_hashes_evicted, places(output.store_spec)) == (keys("b"), [1])
    assert manager.recency() == keys("cad")


def test_touch_makes_the_first_named_the_most_recent() -> None:
    manager = lru(4, "abcd")
    manager.touch(keys("bxab"))
    assert manager.recency() == keys("cdab")


def test_freed_places_are_taken_last_in_first_out() -> None:
    manager = lru(3, "abc")
    output = manager.prepare_store(keys("de"))
    assert output is not None
    assert (output.block_hashes_evicted, places(output.store_spec)) == (keys("ab"), [1, 0])


@each_policy
def test_what_the_call_names_is_not_evicted_by_it(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 2))
    store(manager, "ab")
    output = manager.prepare_store(keys("ac"))
    assert output is not None
    assert (output.block_hashes_to_store, output.block_hashes_evicted) == (keys("c"), keys("b"))
    assert manager.prepare_store(keys("acd")) is None
    manager.check()


@each_policy
def test_refused_store_changes_nothing(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 3), True)
    store(manager, "ab")
    manager.prepare_load(keys("a"))
    manager.take_events()
    before = manager.recency()
    assert manager.prepare_store(keys("cdef")) is None
    assert manager.prepare_store(keys("xyz")) is None
    assert (manager.recency(), manager.num_free, manager.take_events()) == (before, 1, [])
    manager.check()


@each_policy
def test_key_named_twice_is_stored_once(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 2))
    output = manager.prepare_store(keys("aba"))
    assert output is not None
    assert output.block_hashes_to_store == keys("ab")
    manager.complete_store(keys("aab"))
    assert manager.lookup(keys("aab")) == 3


@each_policy
def test_block_that_is_read_stays(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 1))
    store(manager, "a")
    assert places(manager.prepare_load(keys("aa"))) == [0, 0]
    assert manager.status_of(keys("a")[0]) == 2
    manager.complete_load(keys("a"))
    assert manager.prepare_store(keys("b")) is None
    manager.complete_load(keys("a"))
    assert store(manager, "b") == keys("a")


@each_policy
def test_failed_store_leaves_no_block_and_no_leak(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 2), True)
    manager.prepare_store(keys("ab"))
    manager.complete_store(keys("ab"), success=False)
    assert (manager.num_free, manager.lookup(keys("a")), manager.take_events()) == (2, 0, [])
    output = manager.prepare_store(keys("c"))
    assert output is not None
    assert places(output.store_spec) == [1]
    manager.check()


@each_policy
def test_failed_load_dooms_the_block_until_its_last_reader_ends(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 2), True)
    store(manager, "ab")
    manager.prepare_load(keys("aab"))
    manager.take_events()
    manager.complete_load(keys("a"), success=False)
    assert manager.take_events() == [OffloadingEvent(keys("a"), BLOCK_SIZE, "CPU", True)]
    assert (manager.lookup(keys("a")), manager.status_of(keys("a")[0]), manager.num_free) == (0, -2, 0)
    with pytest.raises(BlockNotReadyError):
        manager.prepare_load(keys("a"))
    output = manager.prepare_store(keys("a"))
    assert output is not None
    assert output.block_hashes_to_store == []
    manager.complete_load(keys("a"))
    assert (manager.status_of(keys("a")[0]), manager.num_free, manager.take_events()) == (None, 1, [])
    manager.check()


def test_events_tell_what_can_be_read() -> None:
    manager = lru(2, "ab")
    store(manager, "c")
    manager.remove(keys("b"))
    told = [(event.block_hashes, event.removed) for event in manager.take_events()]
    assert told == [(keys("ab"), False), (keys("a"), True), (keys("c"), False), (keys("b"), True)]
    assert manager.take_events() == []
    silent = lru(2, "ab", enable_events=False)
    assert silent.take_events() == []


@each_policy
def test_remove_takes_idle_blocks_only(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 3))
    store(manager, "ab")
    manager.prepare_store(keys("c"))
    manager.prepare_load(keys("b"))
    for names in ("ab", "ac"):
        with pytest.raises(BlockNotReadyError):
            manager.remove(keys(names))
    with pytest.raises(UnknownBlockHashError):
        manager.remove(keys("bx"))
    manager.remove(keys("aa"))
    assert (manager.num_free, manager.lookup(keys("a"))) == (1, 0)
    manager.check()


def test_idle_blocks_come_in_order_of_eviction() -> None:
    manager = lru(4, "abcd")
    manager.prepare_load(keys("b"))
    assert manager.idle_blocks(2) == keys("ac")
    assert manager.idle_blocks(9) == keys("acd")
    assert manager.idle_blocks(0) == []


@each_policy
def test_no_place_is_legal(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 0))
    assert manager.prepare_store(keys("a")) is None
    output = manager.prepare_store([])
    assert output is not None
    assert output.block_hashes_to_store == []
    manager.touch(keys("a"))
    assert manager.lookup(keys("a")) == 0
    manager.check()


@each_policy
def test_empty_lists_do_nothing(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 1), True)
    assert places(manager.prepare_load([])) == []
    for call in (manager.touch, manager.complete_load, manager.complete_store, manager.remove):
        call([])
    assert manager.take_events() == []


def test_completing_what_was_not_prepared_is_refused() -> None:
    manager = lru(2, "ab")
    with pytest.raises(NotPreparedError):
        manager.complete_store(keys("ab"))
    with pytest.raises(NotPreparedError):
        manager.complete_load(keys("a"))
    manager.prepare_load(keys("ab"))
    with pytest.raises(NotPreparedError):
        manager.complete_load(keys("aba"))
    assert [manager.status_of(key) for key in keys("ab")] == [1, 1]
    with pytest.raises(UnknownBlockHashError):
        manager.complete_load(keys("abx"))
    manager.complete_load(keys("ab"))
    manager.check()


def test_hashes_that_collide_are_told_apart() -> None:
    # All keys of one length whose words mix alike would be in one bucket; whole keys are compared.
    many = [bytes([i, j]) for i in range(40) for j in range(40)] + [bytes(8) * n for n in range(1, 50)]
    manager = LRUOffloadingManager(CPUBackend(BLOCK_SIZE, len(many)))
    manager.prepare_store(many)
    manager.complete_store(many[::2])
    assert [manager.lookup([key]) for key in many] == [1, 0] * (len(many) // 2) + [1] * (len(many) % 2)
    manager.check()


@each_policy
@pytest.mark.parametrize("seed", range(8))
def test_long_histories_keep_every_invariant(policy: type[LRUOffloadingManager], seed: int) -> None:
    choose = random.Random(seed)
    manager = policy(CPUBackend(BLOCK_SIZE, choose.randrange(7)), True)
    readable: set[bytes] = set()
    for _ in range(300):
        names = keys("".join(choose.choices("abcdefghijkl", k=choose.randrange(5))))
        call = choose.choice(["lookup", "touch", "prepare_load", "complete_load", "prepare_store", "complete_store"])
        arguments = [choose.random() < 0.8] if call.startswith("complete") else []
        twin = manager.copy()
        try:
            getattr(manager, call)(names, *arguments)
        except BlockwrightError:
            assert isinstance(twin, LRUOffloadingManager) is isinstance(manager, LRUOffloadingManager)
            assert manager.recency() == twin.recency()  # type: ignore[attr-defined]
        manager.check()
        twin.check()
        for event in manager.take_events():
            readable = readable - {*event.block_hashes} if event.removed else readable | {*event.block_hashes}
        found = {key for key in keys("abcdefghijkl") if (manager.status_of(key) or 0) >= 0 and manager.lookup([key])}
        assert found == readable

"""Property: bad input raises a typed error and changes nothing; an iterator is read once.

Tested by giving every call of a tier and of a chain wrong hashes, wrong blocks of the device and wrong options, and
comparing what can be seen before and after. Not covered: bytes that are wrong (the tests of the media).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.offload.tiers.tier_support import BLOCK_SIZE, MANAGERS, keys, lru, store

from blockwright.errors import (
    BlockError,
    InvalidArgumentError,
    NotPreparedError,
    UnknownBlockHashError,
    UnknownTransferError,
)
from blockwright.offload import CPUBackend, LRUOffloadingManager, OffloadChain

TIER_CALLS = ["lookup", "touch", "prepare_load", "complete_load", "prepare_store", "complete_store", "remove"]
WRONG_HASHES: list[Any] = ["ab", b"ab", 7, None, [7], ["a"], [b""], [bytearray(b"a")], [b"a", None], [memoryview(b"a")]]


def seen(manager: LRUOffloadingManager) -> object:
    return manager.recency(), manager.num_free, [manager.status_of(key) for key in keys("abcx")]


@pytest.mark.parametrize("policy", MANAGERS)
@pytest.mark.parametrize("call", TIER_CALLS)
@pytest.mark.parametrize("wrong", WRONG_HASHES, ids=lambda wrong: re.sub(" at 0x[0-9a-f]+", "", repr(wrong)))
def test_wrong_hashes_are_refused_by_every_call(policy: type[LRUOffloadingManager], call: str, wrong: Any) -> None:
    manager = policy(CPUBackend(BLOCK_SIZE, 3), True)
    store(manager, "ab")
    manager.take_events()
    before = seen(manager)
    with pytest.raises(InvalidArgumentError, match="block_hashes"):
        getattr(manager, call)(wrong)
    with pytest.raises(InvalidArgumentError, match="block_hashes"):
        getattr(manager, call)([*keys("ax"), *(wrong if isinstance(wrong, list) else [None])])
    assert (seen(manager), manager.take_events()) == (before, [])
    manager.check()


@pytest.mark.parametrize("call", ["prepare_load", "complete_load", "complete_store", "remove", "places_of"])
def test_unknown_hashes_are_refused(call: str) -> None:
    manager = lru(3, "ab")
    manager.prepare_load(keys("a"))
    before = seen(manager)
    for names in ("x", "ax", "bxa"):
        with pytest.raises(UnknownBlockHashError):
            getattr(manager, call)(keys(names))
    assert seen(manager) == before
    manager.check()


def test_double_completion_is_refused() -> None:
    manager = lru(2, "a")
    manager.prepare_load(keys("a"))
    manager.complete_load(keys("a"))
    for call in (manager.complete_load, manager.complete_store):
        with pytest.raises(NotPreparedError):
            call(keys("a"))


def test_iterators_are_read_once() -> None:
    manager = lru(3)
    for call in ("prepare_store", "complete_store", "touch", "lookup", "prepare_load", "complete_load", "remove"):
        getattr(manager, call)(iter(keys("ab")))
        manager.check()
    assert manager.num_free == 3
    chain = OffloadChain(iter([lru(2), lru(2)]))  # type: ignore[arg-type]
    assert chain.store(iter(keys("ab")), iter([1, 2])) is not None


def test_failing_iterator_changes_nothing() -> None:
    def failing() -> Any:
        yield keys("c")[0]
        raise ZeroDivisionError

    manager = lru(3, "ab")
    before = seen(manager)
    for call in TIER_CALLS:
        with pytest.raises(ZeroDivisionError):
            getattr(manager, call)(failing())
    assert seen(manager) == before


@pytest.mark.parametrize("wrong", [-1, 2**40, 1.5, None])
def test_wrong_count_of_idle_blocks_is_refused(wrong: Any) -> None:
    with pytest.raises((InvalidArgumentError, TypeError)):
        lru(1, "a").idle_blocks(wrong)


def test_manager_needs_a_backend() -> None:
    with pytest.raises((InvalidArgumentError, TypeError)):
        LRUOffloadingManager(object())  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the chain


@pytest.mark.parametrize(
    "options",
    [
        {"tiers": []},
        {"tiers": 5},
        {"tiers": ["tier"]},
        {"device_blocks_per_block": 0},
        {"write": "sideways"},
        {"on_load": "lose"},
        {"reserve": -1},
        {"reserve": [1, 2, 3]},
        {"reserve": [0, 1]},
        {"reserve": ["1"]},
        {"max_transfers": -1},
    ],
    ids=str,
)
def test_wrong_options_of_a_chain_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        OffloadChain(**{"tiers": [lru(1), lru(1)], **options})


def test_manager_stands_once_in_a_chain() -> None:
    tier = lru(1)
    with pytest.raises(InvalidArgumentError, match="twice"):
        OffloadChain([tier, tier])


def both(chain: OffloadChain) -> list[Callable[[Any, Any], object]]:
    return [chain.store, chain.load]


@pytest.mark.parametrize(
    ("names", "blocks", "error"),
    [
        ("aa", [1, 2, 3, 4], InvalidArgumentError),
        ("ab", [1, 2, 3], InvalidArgumentError),
        ("a", [1, "2"], InvalidArgumentError),
        ("a", [1, True], InvalidArgumentError),
        ("a", 5, InvalidArgumentError),
        ("a", [1, -2], BlockError),
    ],
)
def test_wrong_blocks_are_refused(names: str, blocks: Any, error: type[Exception]) -> None:
    chain = OffloadChain([lru(2, "ab"), lru(2)], device_blocks_per_block=2)
    for call in both(chain):
        with pytest.raises(error):
            call(keys(names), blocks)
        with pytest.raises(InvalidArgumentError):
            call("ab", [1, 2, 3, 4])
    assert (chain.pins(), chain.take_transfers()) == ({}, [])
    chain.check()


def test_unknown_transfers_are_refused() -> None:
    chain = OffloadChain([lru(2)])
    start = chain.store(keys("a"), [1])
    assert start is not None
    number = start.job_id
    assert number is not None
    with pytest.raises(UnknownTransferError):
        chain.finish(number, True)  # it was not handed out
    chain.take_transfers()
    chain.finish(number, True)
    for wrong in (number, -1, 99):
        with pytest.raises(UnknownTransferError):
            chain.finish(wrong, True)
        assert chain.cancel(wrong) is False
    chain.check()


@pytest.mark.parametrize(
    "wrong",
    [7, [], [None, None], ["a"], [("a", 1)], [(b"a", 1, 2)], [("a", -1, 2)], [("a", 101, 2)], [("a", True, 2)],
     [("a", 1, float("nan"))], [("a", 1, "2")]],
    ids=repr,
)  # fmt: skip
def test_wrong_hints_are_refused(wrong: Any) -> None:
    manager, chain = lru(2, "a"), OffloadChain([lru(2, "a")])
    before = seen(manager)
    with pytest.raises(InvalidArgumentError, match="hints"):
        manager.prepare_store_hinted(keys("b"), wrong)
    with pytest.raises(InvalidArgumentError, match="hints"):
        chain.store(keys("b"), [1], wrong)
    for each in (manager, chain):
        with pytest.raises(InvalidArgumentError, match="now"):
            each.advance_time(float("nan"))
    assert (seen(manager), chain.pins(), manager.hint_of(keys("a")[0])) == (before, {}, None)
    manager.check()
    chain.check()


@pytest.mark.parametrize("wrong", [7, {"a": -1}, {"a": 2, "b": 2}, {1: 1}], ids=repr)
def test_wrong_shares_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="shares"):
        LRUOffloadingManager(CPUBackend(BLOCK_SIZE, 3), shares=wrong)

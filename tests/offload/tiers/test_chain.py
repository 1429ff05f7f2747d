"""Property: a chain's transfers begin, wait, land and fail as its rules say, and leave no reader, writer or pin behind.

Tested by some examples with tiers that are filled beforehand. Not covered here: each transition, and long histories,
against the specification (the gates `offload` and `movement`), and bytes (the tests of the handlers).
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.offload.tiers.tier_support import keys, lru

from blockwright.errors import InterruptedCallError, OffloadError
from blockwright.offload import (
    BlockIDsLoadStoreSpec,
    CPUBackend,
    LRUOffloadingManager,
    OffloadChain,
    PrepareStoreOutput,
    StoreStart,
    Transfer,
)


def shown(transfer: Transfer) -> tuple[str, list[int], list[int]]:
    """Return kind and places of a transfer."""
    assert isinstance(transfer.source, BlockIDsLoadStoreSpec)
    assert isinstance(transfer.destination, BlockIDsLoadStoreSpec)
    return transfer.kind, transfer.source.block_ids, transfer.destination.block_ids


def taken(chain: OffloadChain) -> list[tuple[str, list[int], list[int]]]:
    """Take the transfers that may start, and end them all well."""
    transfers = chain.take_transfers()
    for transfer in transfers:
        chain.finish(transfer.job_id, True)
    chain.check()
    return [shown(transfer) for transfer in transfers]


def where(chain: OffloadChain, name: str) -> list[int | None]:
    """Return the status of a block in each tier."""
    return [tier.status_of(keys(name)[0]) for tier in chain.tiers]


@pytest.mark.parametrize("hole", [0, 1, 63, 64, 65, 100, 128, 129, 299])
@pytest.mark.parametrize("run", [1, 64, 70])
def test_a_lookup_ends_at_the_first_block_that_no_tier_has(hole: int, run: int) -> None:
    """Whatever runs of blocks the tiers below have in turn, and however long the answer."""
    names = [chr(256 + at) for at in range(300)]
    held = [[name for at, name in enumerate(names) if at != hole and at // run % 3 == number] for number in range(3)]
    chain = OffloadChain([lru(300, "".join(each)) for each in held])
    assert chain.lookup(keys("".join(names))) == hole


def test_nothing_is_served_after_a_tier_failed_in_the_middle_of_a_change() -> None:
    class Failing(LRUOffloadingManager):
        def prepare_store(self, block_hashes: Iterable[bytes]) -> PrepareStoreOutput | None:
            raise OffloadError("no")

    chain = OffloadChain([lru(2, "a"), Failing(CPUBackend(16, 2))], reserve=1)
    with pytest.raises(OffloadError, match="no"):
        chain.store(keys("b"), [0])
    with pytest.raises(InterruptedCallError, match="make a new manager"):
        chain.take_transfers()


@pytest.mark.parametrize(("room", "is_bad"), [(0, True), (3, True), (3, False)])
def test_blocks_that_go_down_where_the_first_cannot(room: int, is_bad: bool) -> None:
    """A block that is bad below, or being written there, stays; the next two go, if there is room."""
    lower, upper = lru(1 + room, "a" if is_bad else ""), lru(5, "abce")
    if is_bad:
        lower.prepare_load(keys("aa"))
        lower.complete_load(keys("a"), success=False)
    else:
        lower.prepare_store(keys("a"))
    chain = OffloadChain([upper, lower], reserve=2)
    chain.store(keys("d"), [0])
    assert [upper.status_of(key) for key in keys("abced")] == [0, *([1, 1] if room else [0, 0]), 0, -1]
    assert chain.num_dropped == 0


def test_a_block_that_is_forgotten_while_it_comes_up_is_not_tried_again() -> None:
    """Here the transfer of all three fails, and only the others are tried again; the load is cut before it."""
    chain = OffloadChain([lru(3), lru(8)], write="through")
    for names in ("abc", "xyz"):
        chain.store(keys(names), [0, 1, 2])
        while transfers := chain.take_transfers():
            for each in transfers:
                chain.finish(each.job_id, True)
    chain.take_finished()
    chain.load(keys("abc"), [4, 5, 6])
    (rise,) = chain.take_transfers()
    chain.forget(keys("b"))
    chain.finish(rise.job_id, False)
    while transfers := chain.take_transfers():
        for each in transfers:
            chain.finish(each.job_id, True)
    assert [(each.block_hashes, each.success) for each in chain.take_finished()] == [(keys("a"), True)]
    assert (chain.lookup(keys("abc")), chain.lookup(keys("c")), chain.pins()) == (1, 1, {})
    chain.check()


def test_touch_reaches_every_tier_and_events_come_tier_by_tier() -> None:
    chain = OffloadChain([lru(2, "ab"), lru(2, "ac")])
    chain.touch(keys("a"))
    assert [tier.idle_blocks(1) for tier in chain.tiers] == [keys("b"), keys("c")]
    assert [event.block_hashes for event in chain.take_events()] == [keys("ab"), keys("ac")]
    assert chain.take_events() == []


def test_empty_calls_are_legal() -> None:
    chain = OffloadChain([lru(0)])
    assert chain.store([], []) == StoreStart(None, [], [])
    assert chain.store(keys("a"), [1]) is None
    assert chain.load([], []) == 0
    assert taken(chain) == [("load", [], [])]

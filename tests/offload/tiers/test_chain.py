"""Property: a chain's transfers begin, wait, land and fail as its rules say, and leave no reader, writer or pin behind.

Tested by long random histories in which transfers land and fail in any order, with the self-check after each call and
quiet at the end; and by some examples with tiers that are filled beforehand. Not covered here: each transition against
the specification, and bytes (the gate `offload` and the tests of the handlers do that).
"""

from __future__ import annotations

import random

import pytest
from tests.offload.tiers.tier_support import keys, lru

from blockwright.errors import BlockwrightError
from blockwright.offload import BlockIDsLoadStoreSpec, Finished, OffloadChain, StoreStart, Transfer


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


def test_store_is_found_when_it_has_landed() -> None:
    chain = OffloadChain([lru(4)], device_blocks_per_block=2)
    assert chain.store(keys("ab"), [1, 2, 3, 4]) == StoreStart(0, keys("ab"), [])
    assert (chain.lookup(keys("ab")), chain.pins()) == (0, {1: 1, 2: 1, 3: 1, 4: 1})
    assert chain.store(keys("ac"), [9, 9, 4, 5]) == StoreStart(1, keys("c"), [])
    assert chain.pins()[4] == 2
    assert taken(chain) == [("store", [1, 2, 3, 4], [0, 1]), ("store", [4, 5], [2])]
    assert (chain.lookup(keys("abc")), chain.pins()) == (3, {})
    assert [finished.success for finished in chain.take_finished()] == [True, True]
    assert chain.take_finished() == []


@pytest.mark.parametrize("hole", [0, 1, 63, 64, 65, 100, 128, 129, 299])
@pytest.mark.parametrize("run", [1, 64, 70])
def test_a_lookup_ends_at_the_first_block_that_no_tier_has(hole: int, run: int) -> None:
    """Whatever runs of blocks the tiers below have in turn, and however long the answer."""
    names = [chr(256 + at) for at in range(300)]
    held = [[name for at, name in enumerate(names) if at != hole and at // run % 3 == number] for number in range(3)]
    chain = OffloadChain([lru(300, "".join(each)) for each in held])
    assert chain.lookup(keys("".join(names))) == hole


def test_of_three_blocks_to_be_evicted_the_last_would_be_lost() -> None:
    chain = OffloadChain([lru(3, "abc"), lru(4, "ab")])
    assert chain.store(keys("def"), [0, 1, 2]) is None
    assert chain.lookup(keys("abc")) == 3


@pytest.mark.parametrize(("room", "is_bad"), [(0, True), (3, True), (3, False)])
def test_blocks_that_go_down_where_the_first_cannot(room: int, is_bad: bool) -> None:
    """A block that is bad below, or being written there, stays; the next ones go, if there is room."""
    lower, upper = lru(1 + room, "a" if is_bad else ""), lru(4, "abc")
    if is_bad:
        lower.prepare_load(keys("aa"))
        lower.complete_load(keys("a"), success=False)
    else:
        lower.prepare_store(keys("a"))
    chain = OffloadChain([upper, lower], reserve=2)
    chain.store(keys("d"), [0])
    assert [upper.status_of(key) for key in keys("abcd")] == [0, *([1, 1] if room else [0, 0]), -1]
    assert chain.num_dropped == 0


def test_failed_store_leaves_nothing() -> None:
    chain = OffloadChain([lru(2)])
    chain.store(keys("ab"), [1, 2])
    chain.take_transfers()
    assert chain.finish(0, False) == Finished(0, "store", keys("ab"), [1, 2], False)
    assert (chain.lookup(keys("a")), where(chain, "a"), chain.pins()) == (0, [None], {})
    chain.check()


def test_block_comes_up_before_it_is_loaded() -> None:
    chain = OffloadChain([lru(3, "a"), lru(3, "abc"), lru(2, "bd")])
    assert chain.lookup(keys("abcdx")) == 3  # there is room for two from below
    assert chain.load(keys("bad"), [7, 8, 9]) == 2
    assert (where(chain, "a"), where(chain, "b"), where(chain, "d")) == ([1, 0, None], [-1, 1, 0], [-1, None, 1])
    assert chain.lookup(keys("abd")) == 3  # on its way up counts
    assert chain.load(keys("b"), [5]) == 3
    assert taken(chain) == [("promote", [1], [1]), ("promote", [1], [2])]
    assert (where(chain, "b"), where(chain, "a")) == ([2, 0, 0], [1, 0, None])
    assert taken(chain) == [("load", [1, 0, 2], [7, 8, 9]), ("load", [1], [5])]
    assert chain.pins() == {}


def test_cancelled_transfers_leave_nothing() -> None:
    chain = OffloadChain([lru(3, "a"), lru(2, "b")])
    chain.store(keys("c"), [1])
    chain.load(keys("ab"), [7, 8])
    assert [chain.cancel(number) for number in (0, 1, 2, 2, 9)] == [True, False, True, False, False]
    assert [(each.job_id, each.kind, each.success) for each in chain.take_finished()] == [
        (0, "store", False),
        (2, "load", False),
    ]
    assert (where(chain, "c"), where(chain, "a"), chain.pins()) == ([None, None], [0, None], {})
    assert [kind for kind, *_ in taken(chain)] == ["promote"]  # it goes on
    assert where(chain, "b") == [0, 0]


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


@pytest.mark.parametrize("write", ["back", "through"])
@pytest.mark.parametrize("on_load", ["keep", "free"])
@pytest.mark.parametrize("seed", range(6))
def test_long_histories_keep_every_invariant_and_end_quiet(write: str, on_load: str, seed: int) -> None:
    choose = random.Random(seed)
    span = choose.choice([1, 2])
    chain = OffloadChain(
        [lru(3), lru(3), lru(4)],
        device_blocks_per_block=span,
        write=write,
        on_load=on_load,
        reserve=choose.choice([[0, 0], [1, 1], [2, 1]]),
        max_transfers=choose.choice([None, 6]),
    )
    started: list[int] = []
    kinds: set[str] = set()
    for _ in range(400):
        names = keys("".join(choose.sample("abcdefgh", choose.randrange(1, 4))))
        blocks = choose.sample(range(24), len(names) * span)
        twin = chain.copy()
        try:
            match choose.choice("sssllltttfffffct"):
                case "s":
                    chain.store(names, blocks)
                case "l":
                    names = names[: chain.lookup(names)]
                    chain.load(names, blocks[: len(names) * span])
                case "t":
                    for transfer in chain.take_transfers():
                        started.append(transfer.job_id)
                        kinds.add(transfer.kind)
                case "f" if started:
                    chain.finish(started.pop(choose.randrange(len(started))), choose.random() < 0.8)
                case "c":
                    chain.cancel(choose.randrange(200))
                case _:
                    chain.touch(names)
        except BlockwrightError:
            assert chain.pins() == twin.pins()
        chain.check()
        twin.check()
    while (more := [transfer.job_id for transfer in chain.take_transfers()]) or started:
        for number in started + more:
            chain.finish(number, True)
        started.clear()
    chain.check()
    assert {"store", "load"} <= kinds
    assert chain.pins() == {}
    for tier in chain.tiers:
        assert {tier.status_of(key) for key in keys("abcdefgh")} <= {None, 0}

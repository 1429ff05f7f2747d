"""Property: backends hand out each place once, and a manager keeps the promises of the interface to any backend.

Tested on `CPUBackend` alone, on a subclass that overrides what the packed path would bypass, and on a backend in plain
Python that shares no code with ours: its statuses must tell the truth after each call, and each place must come back
once. Not covered: backends that move bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tests.offload.tiers.tier_support import BLOCK_SIZE, MANAGERS, ShelfBackend, ShelfSpec, keys, store

from blockwright.errors import (
    BlockError,
    InvalidArgumentError,
    NoFreeBlocksError,
    OffloadError,
    UnsupportedError,
)
from blockwright.offload import (
    BlockIDsLoadStoreSpec,
    BlockStatus,
    CPUBackend,
    CPULoadStoreSpec,
    LoadStoreSpec,
    LRUOffloadingManager,
    SlotBackend,
)
from blockwright.offload.status import PlacedBlockStatus

each_policy = pytest.mark.parametrize("policy", MANAGERS)


def ids(blocks: Iterable[BlockStatus]) -> list[int]:
    return [block.block_id for block in blocks if isinstance(block, PlacedBlockStatus)]


def test_fresh_places_come_first_then_the_last_freed() -> None:
    backend = CPUBackend(BLOCK_SIZE, 4)
    first, second = backend.allocate_blocks(keys("ab"))
    assert [first.ref_cnt, first.is_ready] == [-1, False]
    backend.free(first)
    backend.free(second)
    assert backend.get_num_free_blocks() == 4
    third, *others = backend.allocate_blocks(keys("cdef"))
    assert ids([third, *others]) == [2, 3, 1, 0]
    spec = backend.get_load_store_spec(iter(keys("ce")), iter([third, others[1]]))
    assert isinstance(spec, CPULoadStoreSpec)
    assert (spec.block_ids, spec.medium(), repr(spec)) == ([2, 1], "CPU", "CPULoadStoreSpec([2, 1])")


def test_place_comes_back_once() -> None:
    backend = CPUBackend(BLOCK_SIZE, 2)
    (block,) = backend.allocate_blocks(keys("a"))
    backend.free(block)
    for wrong in (block, PlacedBlockStatus(1), PlacedBlockStatus(-1), PlacedBlockStatus(2**40), BlockStatus()):
        with pytest.raises(BlockError):
            backend.free(wrong)
    assert backend.get_num_free_blocks() == 2
    with pytest.raises(NoFreeBlocksError):
        backend.allocate_blocks(keys("abc"))


@pytest.mark.parametrize("wrong", [-1, 2**31, 1.5, None, "3"])
def test_number_of_places_is_checked(wrong: object) -> None:
    # The compiled build refuses what is no int before the constructor runs.
    refused = InvalidArgumentError if type(wrong) is int else (InvalidArgumentError, TypeError)
    with pytest.raises(refused, match=r"num_blocks|int"):
        CPUBackend(BLOCK_SIZE, wrong)  # type: ignore[arg-type]
    with pytest.raises(refused, match=r"block_size|int"):
        CPUBackend(0 if wrong == 2**31 else wrong, 1)  # type: ignore[arg-type]


def test_backend_of_many_places_costs_nothing_at_first() -> None:
    assert CPUBackend(BLOCK_SIZE, 2**31 - 1).copy().get_num_free_blocks() == 2**31 - 1


def test_another_medium_must_say_what_its_specs_are() -> None:
    with pytest.raises(UnsupportedError):
        SlotBackend(BLOCK_SIZE, "TAPE", 1).spec_of(keys("a"), [0])


class Recovering(CPUBackend):
    """A medium that still holds blocks of an earlier run."""

    def __init__(self, num_blocks: int, held: dict[str, int]) -> None:
        super().__init__(BLOCK_SIZE, num_blocks)
        self.held = held
        for place in held.values():
            self.claim_place(place)

    def recovered_blocks(self) -> list[tuple[bytes, BlockStatus]]:
        found: list[tuple[bytes, BlockStatus]] = []
        for name, place in self.held.items():
            status = PlacedBlockStatus(place)
            status.ref_cnt = 0
            found.append((keys(name)[0], status))
        return found


@each_policy
def test_recovered_blocks_are_found_without_an_event(policy: type[LRUOffloadingManager]) -> None:
    manager = policy(Recovering(5, {"a": 3, "b": 1}), True)
    manager.check()
    assert (manager.lookup(keys("ab")), manager.num_free, manager.take_events()) == (2, 3, [])
    assert manager.recency() == keys("ab")
    output = manager.prepare_store(keys("cdef"))
    assert output is not None
    assert isinstance(output.store_spec, BlockIDsLoadStoreSpec)
    assert output.store_spec.block_ids == [4, 3, 0, 2]
    assert output.block_hashes_evicted == keys("a")
    manager.check()


def test_place_can_be_claimed_once() -> None:
    backend = CPUBackend(BLOCK_SIZE, 4)
    backend.claim_place(2)
    for wrong in (2, 4, -1):
        with pytest.raises(BlockError):
            backend.claim_place(wrong)
    backend.claim_place(0)
    assert ids(backend.allocate_blocks(keys("ab"))) == [3, 1]


@each_policy
def test_statuses_of_a_foreign_backend_tell_the_truth(policy: type[LRUOffloadingManager]) -> None:
    backend = ShelfBackend("pq")
    manager = policy(backend, True)
    output = manager.prepare_store(keys("ab"))
    assert output is not None
    assert isinstance(output.store_spec, ShelfSpec)
    assert (output.store_spec.names, backend.counts()) == (["p", "q"], {"p": -1, "q": -1})
    manager.complete_store(keys("ab"))
    spec = manager.prepare_load(keys("bb"))
    assert isinstance(spec, ShelfSpec)
    assert (spec.names, backend.counts()) == (["q", "q"], {"p": 0, "q": 2})
    manager.check()
    output = manager.prepare_store(keys("c"))
    assert output is not None
    assert (output.block_hashes_evicted, backend.counts()) == (keys("a"), {"q": 2, "p": -1})
    manager.complete_load(keys("b"), success=False)
    manager.complete_store(keys("c"), success=False)
    manager.complete_load(keys("b"))
    assert (backend.counts(), backend.free_names, manager.num_free) == ({}, ["p", "q"], 2)
    assert [event.medium for event in manager.take_events()] == ["SHELF"] * 3
    manager.check()


@each_policy
@pytest.mark.parametrize("fault", ["raise", "too few"])
def test_failing_backend_leaves_no_trace_of_the_new_blocks(policy: type[LRUOffloadingManager], fault: str) -> None:
    class Failing(ShelfBackend):
        fails = False

        def allocate_blocks(self, block_hashes: list[bytes]) -> list[BlockStatus]:
            if not self.fails:
                return super().allocate_blocks(block_hashes)
            if fault == "raise":
                raise OffloadError("no")
            return []

    backend = Failing("pq")
    manager = policy(backend)
    store(manager, "a")
    backend.fails = True
    with pytest.raises(OffloadError):
        manager.prepare_store(keys("b"))
    assert manager.recency() == keys("a")
    manager.check()


class Counting(CPUBackend):
    """Overrides a method that the packed path would never call."""

    freed = 0

    def free(self, block: BlockStatus) -> None:
        type(self).freed += 1
        super().free(block)


def test_overridden_methods_are_called() -> None:
    manager = LRUOffloadingManager(Counting(BLOCK_SIZE, 1))
    store(manager, "a")
    assert store(manager, "b") == keys("a")
    assert Counting.freed == 1
    manager.check()
    with pytest.raises(UnsupportedError):
        manager.copy()


class Tape(SlotBackend):
    """A packed backend for another medium."""

    def spec_of(self, block_hashes: list[bytes], block_ids: list[int]) -> LoadStoreSpec:
        return ShelfSpec([f"{key.decode()}@{place}" for key, place in zip(block_hashes, block_ids, strict=True)])


def test_packed_backend_may_have_specs_of_its_own() -> None:
    manager = LRUOffloadingManager(Tape(BLOCK_SIZE, "TAPE", 2))
    output = manager.prepare_store([b"a", b"b"])
    assert output is not None
    assert isinstance(output.store_spec, ShelfSpec)
    assert output.store_spec.names == ["a@0", "b@1"]

"""Property: between two media below the host a block arrives whole and under its key, or the transfer fails.

How: two stores in dicts, of which one misses or raises when told to.
Not covered: real media (test_end_to_end.py).
"""

from collections.abc import Iterator, Sequence
from threading import Event

import pytest

from blockwright.errors import InvalidArgumentError, StoreUnavailableError
from blockwright.offload.media import ByteStore, DiskLoadStoreSpec, Item, RelayHandler, SharedLoadStoreSpec
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec
from blockwright.offload.worker import TransferSpec


class Kept(ByteStore):
    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, int | None], bytes] = {}
        self.is_broken = False

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        if self.is_broken:
            raise StoreUnavailableError("injected")
        self.kept[key, place] = b"".join(parts)

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        if (key, place) not in self.kept:
            return False
        into[0][:] = self.kept[key, place]
        return True


@pytest.fixture
def disk() -> Kept:
    kept = Kept()
    kept.put(b"one", 3, [memoryview(b"1111")])
    kept.put(b"two", 5, [memoryview(b"2222")])
    return kept


@pytest.fixture
def shared() -> Kept:
    return Kept()


@pytest.fixture
def relay(disk: Kept, shared: Kept) -> Iterator[RelayHandler]:
    with RelayHandler(disk, shared, 4, threads=2) as handler:
        yield handler


def moved(relay: RelayHandler, places: list[int], *keys: bytes) -> bool:
    assert relay.transfer_async(0, (DiskLoadStoreSpec(places, list(keys)), SharedLoadStoreSpec(list(keys))))
    relay.wait([0])
    ((_, success),) = relay.get_finished()
    return success


def test_blocks_arrive(relay: RelayHandler, shared: Kept) -> None:
    assert moved(relay, [3, 5], b"one", b"two")
    assert shared.kept == {(b"one", None): b"1111", (b"two", None): b"2222"}
    (counted,) = relay.stats().values()
    assert counted.bytes == 8


def test_transfers_that_wait_are_moved_together_and_fail_for_themselves(disk: Kept) -> None:
    begun, go_on, calls = Event(), Event(), []

    class Slow(Kept):
        def put_many(self, items: Sequence[Item]) -> list[bool]:
            begun.set()
            go_on.wait()
            calls.append([key for key, _, _ in items])
            return super().put_many(items)

    far = Slow()
    with RelayHandler(disk, far, 4, batch=3) as handler:
        for job, (place, key) in enumerate([(3, b"one"), (5, b"two"), (9, b"none"), (3, b"one"), (5, b"two")]):
            assert handler.transfer_async(job, (DiskLoadStoreSpec([place], [key]), SharedLoadStoreSpec([key])))
            begun.wait()  # the first is under way, and the others wait for it
        go_on.set()
        handler.wait(range(5))
        assert sorted(handler.get_finished()) == [(0, True), (1, True), (2, False), (3, True), (4, True)]
    assert calls == [[b"one"], [b"two", b"one"], [b"two"]]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
def test_a_batch_has_blocks(disk: Kept, shared: Kept, wrong: int) -> None:
    with pytest.raises(InvalidArgumentError, match="batch"):
        RelayHandler(disk, shared, 4, batch=wrong)


def test_what_is_not_there_fails(relay: RelayHandler, shared: Kept) -> None:
    assert not moved(relay, [5], b"one")
    assert shared.kept == {}


def test_what_is_not_taken_fails(relay: RelayHandler, shared: Kept) -> None:
    shared.is_broken = True
    assert not moved(relay, [3], b"one")


@pytest.mark.parametrize(
    "spec",
    [
        (CPULoadStoreSpec([3]), SharedLoadStoreSpec([b"one"])),
        (DiskLoadStoreSpec([3], [b"one"]), CPULoadStoreSpec([3])),
        (DiskLoadStoreSpec([3], [b"one"]), SharedLoadStoreSpec([b"two"])),
        (DiskLoadStoreSpec([3, 5], [b"one", b"one"]), SharedLoadStoreSpec([b"one", b"one"])),
    ],
)
def test_sides_that_do_not_fit_are_refused(relay: RelayHandler, spec: TransferSpec) -> None:
    with pytest.raises(InvalidArgumentError):
        relay.transfer_async(0, spec)
    assert relay.get_finished() == []


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, None])
def test_blocks_have_bytes(disk: Kept, shared: Kept, wrong: int) -> None:
    with pytest.raises(InvalidArgumentError, match="block_bytes"):
        RelayHandler(disk, shared, wrong)


def test_blocks_of_one_byte_arrive() -> None:
    near, far = Kept(), Kept()
    near.put(b"one", 3, [memoryview(b"1")])
    with RelayHandler(near, far, 1) as handler:
        assert moved(handler, [3], b"one")
    assert far.kept == {(b"one", None): b"1"}

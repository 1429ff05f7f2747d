"""Property: blocks pass between the host's memory and a store whole and under their keys, or the transfer fails.

How: a store in a dict, with batches of every size, that misses, raises, or answers too little when told to; the bytes
are compared.
Not covered: real media (test_disk.py, test_shared.py).
"""

import threading
from collections.abc import Iterator, Sequence

import pytest

from blockwright.errors import BlockError, InvalidArgumentError, StoreUnavailableError
from blockwright.offload.media import ByteStore, DiskLoadStoreSpec, Item, SharedLoadStoreSpec, StoreHandler
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.worker import OffloadingWorker, TransferSpec

SIZE = 16
KEYS = [b"a", b"b", b"c", b"d", b"e"]


class Memory:
    """Blocks of the host."""

    num_blocks = 8

    def __init__(self) -> None:
        self.bytes = bytearray(range(SIZE * self.num_blocks))

    def block_view(self, block_id: int) -> memoryview:
        return memoryview(self.bytes)[block_id * SIZE : (block_id + 1) * SIZE]


class Dict(ByteStore):
    """Keeps blocks in a dict."""

    def __init__(self) -> None:
        self.kept: dict[bytes, tuple[int | None, bytes]] = {}
        self.broken: Exception | None = None

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        if self.broken is not None:
            raise self.broken
        self.kept[key] = (place, b"".join(parts))

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        if self.broken is not None:
            raise self.broken
        found = self.kept.get(key)
        if found is None or found[0] != place:
            return False
        (view,) = into
        view[:] = found[1]
        return True


class Batches(Dict):
    """Has batches of its own, whose sizes it notes."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.forgets = 0

    def put_many(self, items: Sequence[Item]) -> list[bool]:
        self.sizes.append(len(items))
        return super().put_many(items)[self.forgets :]


@pytest.fixture
def host() -> Memory:
    return Memory()


@pytest.fixture
def store() -> Batches:
    return Batches()


@pytest.fixture(params=[1, 2, 16])
def worker(host: Memory, store: Batches, request: pytest.FixtureRequest) -> Iterator[OffloadingWorker]:
    worker = OffloadingWorker()
    handler = StoreHandler(host, store, batch=request.param)
    for spec in (DiskLoadStoreSpec, SharedLoadStoreSpec):
        worker.register_handler(CPULoadStoreSpec, spec, handler)
        worker.register_handler(spec, CPULoadStoreSpec, handler)
    yield worker
    worker.close()


def moved(worker: OffloadingWorker, *spec: CPULoadStoreSpec | DiskLoadStoreSpec | SharedLoadStoreSpec) -> bool:
    source, destination = spec
    if not worker.transfer_async(1, (source, destination)):
        return False
    worker.wait([1])
    ((job_id, success),) = worker.get_finished()
    assert job_id == 1
    return success


@pytest.mark.parametrize("there", [DiskLoadStoreSpec([9, 3, 4, 0, 5], KEYS), SharedLoadStoreSpec(KEYS)])
def test_there_and_back(
    worker: OffloadingWorker, host: Memory, store: Batches, there: DiskLoadStoreSpec | SharedLoadStoreSpec
) -> None:
    before = bytes(host.bytes)
    blocks = [4, 0, 7, 2, 1]
    assert moved(worker, CPULoadStoreSpec(blocks), there)
    assert {key: place for key, (place, _) in store.kept.items()} == dict(there.items())
    host.bytes[:] = bytes(len(host.bytes))
    assert moved(worker, there, CPULoadStoreSpec(blocks))
    for block in range(host.num_blocks):
        expected = before[block * SIZE : (block + 1) * SIZE] if block in blocks else bytes(SIZE)
        assert host.block_view(block) == expected
    stats = worker.stats()["CPU", there.medium()].transfers
    assert stats is not None
    assert (stats.bytes, stats.finished) == (5 * SIZE, 1)


def test_batches(host: Memory, store: Batches) -> None:
    with StoreHandler(host, store, batch=2) as handler:
        handler.transfer_async(1, (CPULoadStoreSpec([0, 1, 2, 3, 4]), SharedLoadStoreSpec(KEYS)))
        handler.wait([1])
    assert store.sizes == [2, 2, 1]


class Held(Batches):
    """Waits before its first batch, so that others queue up."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.refused: bytes | None = None
        self.missed: bytes | None = None

    def put_many(self, items: Sequence[Item]) -> list[bool]:
        self.begun.set()
        assert self.go_on.wait(20)
        if self.refused in [key for key, _, _ in items]:
            raise InvalidArgumentError("nothing was written")
        return [done and key != self.missed for done, (key, _, _) in zip(super().put_many(items), items, strict=True)]


@pytest.fixture
def queued(host: Memory) -> Iterator[tuple[StoreHandler, Held]]:
    """A handler with one transfer under way, and seven of a block each that wait behind it."""
    store = Held()
    with StoreHandler(host, store, batch=4) as handler:
        handler.transfer_async(0, (CPULoadStoreSpec([0]), SharedLoadStoreSpec([b"first"])))
        assert store.begun.wait(20)
        for number in range(1, 8):
            handler.transfer_async(number, (CPULoadStoreSpec([number]), SharedLoadStoreSpec([b"%d" % number])))
        yield handler, store


def results(handler: StoreHandler, store: Held) -> dict[int, bool]:
    store.go_on.set()
    handler.wait(range(8))
    return dict(handler.get_finished())


def test_blocks_that_come_one_by_one_are_written_together(queued: tuple[StoreHandler, Held], host: Memory) -> None:
    handler, store = queued
    assert results(handler, store) == dict.fromkeys(range(8), True)
    assert store.sizes == [1, 4, 3]
    assert all(store.kept[b"%d" % number] == (None, bytes(host.block_view(number))) for number in range(1, 8))
    counted = handler.stats()["CPU", "STORE"]
    assert (counted.finished, counted.bytes) == (8, 8 * SIZE)


@pytest.mark.parametrize("fault", ["missed", "refused"])
def test_what_is_written_together_fails_alone(queued: tuple[StoreHandler, Held], fault: str) -> None:
    """A store that says which block it has not written, or that writes none of a batch with it."""
    handler, store = queued
    setattr(store, fault, b"2")
    assert results(handler, store) == {number: number != 2 for number in range(8)}


def test_a_transfer_that_is_cancelled_is_not_written_with_others(queued: tuple[StoreHandler, Held]) -> None:
    handler, store = queued
    assert handler.cancel(2)
    assert results(handler, store) == {number: number != 2 for number in range(8)}
    assert b"2" not in store.kept


def test_reads_wait_for_no_others(queued: tuple[StoreHandler, Held]) -> None:
    handler, store = queued
    for number in range(8, 10):
        handler.transfer_async(number, (SharedLoadStoreSpec([b"1"]), CPULoadStoreSpec([number - 8])))
    sizes: list[int] = []
    get_many = store.get_many
    store.get_many = lambda items: sizes.append(len(items)) or get_many(items)  # type: ignore[method-assign, func-returns-value]
    assert results(handler, store) | {8: True, 9: True} == dict.fromkeys(range(10), True)
    handler.wait([8, 9])
    assert sizes == [1, 1]


def test_a_miss_fails_the_load(worker: OffloadingWorker) -> None:
    assert moved(worker, CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a", b"b"]))
    assert not moved(worker, SharedLoadStoreSpec([b"a", b"x", b"b"]), CPULoadStoreSpec([0, 1, 2]))
    assert not moved(worker, DiskLoadStoreSpec([1], [b"a"]), CPULoadStoreSpec([0]))


@pytest.mark.parametrize("error", [StoreUnavailableError("swordfish"), OSError("swordfish"), ValueError("swordfish")])
def test_an_error_fails_the_transfer(
    worker: OffloadingWorker, store: Batches, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    store.broken = error
    assert not moved(worker, CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a", b"b"]))
    assert not moved(worker, SharedLoadStoreSpec([b"a", b"b"]), CPULoadStoreSpec([0, 1]))
    store.broken = None
    assert moved(worker, CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a", b"b"]))
    assert type(error).__name__ in caplog.text
    assert "swordfish" not in caplog.text


def test_an_answer_too_few_fails_the_transfer(worker: OffloadingWorker, store: Batches) -> None:
    store.forgets = 1
    assert not moved(worker, CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a", b"b"]))


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ((GPULoadStoreSpec([0]), SharedLoadStoreSpec([b"a"])), InvalidArgumentError),
        ((CPULoadStoreSpec([0]), CPULoadStoreSpec([1])), InvalidArgumentError),
        ((SharedLoadStoreSpec([b"a"]), SharedLoadStoreSpec([b"b"])), InvalidArgumentError),
        ((CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a"])), InvalidArgumentError),
        ((CPULoadStoreSpec([8]), SharedLoadStoreSpec([b"a"])), BlockError),
        ((CPULoadStoreSpec([-1]), SharedLoadStoreSpec([b"a"])), BlockError),
        ((CPULoadStoreSpec([0, 1]), SharedLoadStoreSpec([b"a", b"a"])), BlockError),
        ((CPULoadStoreSpec([0, 1]), DiskLoadStoreSpec([2, 2], [b"a", b"b"])), BlockError),
        ((SharedLoadStoreSpec([b"a", b"b"]), CPULoadStoreSpec([1, 1])), BlockError),
    ],
)
def test_bad_specs(host: Memory, store: Batches, spec: TransferSpec, error: type[Exception]) -> None:
    with StoreHandler(host, store) as handler, pytest.raises(error):
        handler.transfer_async(1, spec)
    assert store.kept == {}


@pytest.mark.parametrize("batch", [0, True, 1.0])
def test_bad_batch(host: Memory, store: Batches, batch: int) -> None:
    with pytest.raises(InvalidArgumentError, match="batch"):
        StoreHandler(host, store, batch=batch)

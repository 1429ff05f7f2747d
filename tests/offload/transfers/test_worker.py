"""Property: a worker gives each job to the handler of its media, and nothing that a handler does wrong gets past it.

How: handlers that do what the test tells them (refuse, raise, report what they were not given), beside one that works.
Not covered: what handlers do with bytes (test_host.py, test_media.py).
"""

import logging
from collections.abc import Collection, Mapping

import pytest

from blockwright.errors import InvalidArgumentError
from blockwright.offload.media import DiskLoadStoreSpec, SharedLoadStoreSpec
from blockwright.offload.metrics import Pair, TransferStats
from blockwright.offload.tiers.interfaces import CPULoadStoreSpec, GPULoadStoreSpec
from blockwright.offload.worker import (
    OffloadingHandler,
    OffloadingWorker,
    PairStats,
    TransferResult,
    TransferSpec,
)

SECRET = "redis://:swordfish@host"
STORE: TransferSpec = (GPULoadStoreSpec([1]), CPULoadStoreSpec([2]))
LOAD: TransferSpec = (CPULoadStoreSpec([2]), GPULoadStoreSpec([1]))
DEMOTE: TransferSpec = (CPULoadStoreSpec([2]), DiskLoadStoreSpec([3], [b"key"]))
PAIR = ("GPU", "CPU")


class Told(OffloadingHandler):
    """Does as it is told, and notes what it was asked."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.accepts = accepts
        self.given: list[tuple[int, TransferSpec]] = []
        self.results: list[TransferResult] = []
        self.waited: list[list[int]] = []
        self.polled = 0
        self.closed = False

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        self.given.append((job_id, spec))
        return self.accepts

    def get_finished(self) -> list[TransferResult]:
        self.polled += 1
        results, self.results = self.results, []
        return results

    def cancel(self, job_id: int) -> bool:
        return job_id % 2 == 0

    def wait(self, job_ids: Collection[int]) -> None:
        self.waited.append(list(job_ids))

    def close(self) -> None:
        self.closed = True


class Raises(OffloadingHandler):
    """Accepts, or not, and raises whatever else it is asked."""

    def __init__(self, *, accepts: bool = True) -> None:
        self.accepts = accepts

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        if not self.accepts:
            raise ConnectionError(SECRET)
        return True

    def get_finished(self) -> list[TransferResult]:
        raise ConnectionError(SECRET)

    def cancel(self, job_id: int) -> bool:
        raise ConnectionError(SECRET)

    def wait(self, job_ids: Collection[int]) -> None:
        raise ConnectionError(SECRET)

    def stats(self) -> Mapping[Pair, TransferStats]:
        raise ConnectionError(SECRET)

    def close(self) -> None:
        raise ConnectionError(SECRET)


def worker_of(store: OffloadingHandler, load: OffloadingHandler | None = None) -> OffloadingWorker:
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, store)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, load or store)
    return worker


def counts(worker: OffloadingWorker, pair: Pair = PAIR) -> tuple[object, ...]:
    return tuple(worker.stats()[pair][:5])


def test_jobs_go_by_source_and_destination() -> None:
    store, load = Told(), Told()
    worker = worker_of(store, load)
    assert worker.transfer_async(1, STORE)
    assert worker.transfer_async(2, LOAD)
    assert (store.given, load.given) == ([(1, STORE)], [(2, LOAD)])
    store.results, load.results = [(1, True)], [(2, False)]
    assert worker.num_under_way == 2
    assert worker.get_finished() == [(1, True), (2, False)]
    assert worker.get_finished() == []
    assert worker.num_under_way == 0
    assert counts(worker) == (1, 0, 0, 1, 0)
    assert counts(worker, ("CPU", "GPU")) == (1, 0, 0, 0, 1)
    assert worker.num_handler_errors == 0


def test_one_handler_for_several_pairs_is_asked_once() -> None:
    both = Told()
    worker = worker_of(both)
    worker.transfer_async(1, STORE)
    worker.transfer_async(2, LOAD)
    worker.get_finished()
    worker.wait([1, 2])
    assert (both.polled, both.waited) == (1, [[1, 2]])


def test_a_pair_has_one_handler() -> None:
    worker = worker_of(Told())
    with pytest.raises(InvalidArgumentError, match="GPU to CPU has a handler already"):
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, Told())


@pytest.mark.parametrize(("handler", "raised"), [(Told(accepts=False), 0), (Raises(accepts=False), 1)])
def test_a_refusal_fails_the_job(handler: OffloadingHandler, raised: int, caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of(handler)
    with caplog.at_level(logging.DEBUG):
        assert not worker.transfer_async(1, STORE)
    assert worker.num_under_way == 0
    assert counts(worker) == (1, 1, raised, 0, 0)
    assert ("ConnectionError" in caplog.text) == bool(raised)
    assert "swordfish" not in caplog.text


def test_a_job_that_no_handler_serves_fails(caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of(Told())
    assert not worker.transfer_async(1, DEMOTE)
    assert "no handler serves CPU to DISK" in caplog.text
    assert counts(worker, ("CPU", "DISK")) == (1, 1, 0, 0, 0)


def test_an_id_that_is_under_way_is_refused() -> None:
    store, load = Told(), Told()
    worker = worker_of(store, load)
    assert worker.transfer_async(1, STORE)
    assert not worker.transfer_async(1, LOAD)
    assert load.given == []
    store.results = [(1, True)]
    assert worker.get_finished() == [(1, True)]
    assert worker.transfer_async(1, LOAD)


def test_a_handler_that_raises_hides_no_results(caplog: pytest.LogCaptureFixture) -> None:
    load = Told()
    worker = worker_of(Raises(), load)
    assert worker.transfer_async(1, STORE)
    assert worker.transfer_async(2, LOAD)
    load.results = [(2, True)]
    assert worker.get_finished() == [(2, True)]
    assert worker.num_handler_errors == 1
    assert worker.num_under_way == 1
    assert not worker.cancel(1)
    assert "swordfish" not in caplog.text
    assert "ConnectionError" in caplog.text


@pytest.mark.parametrize("results", [[(2, True)], [(9, True)], [(1, True), (1, True)]])
def test_what_a_handler_was_not_given_is_dropped(results: list[TransferResult]) -> None:
    """Another handler's job, nobody's, and one twice."""
    store, load = Told(), Told()
    worker = worker_of(store, load)
    worker.transfer_async(1, STORE)
    worker.transfer_async(2, LOAD)
    store.results = results
    assert worker.get_finished() == [result for result in results[:1] if result[0] == 1]
    assert worker.num_handler_errors == 1
    load.results = [(2, False)]
    assert worker.get_finished() == [(2, False)]


def test_cancel_asks_the_handler() -> None:
    worker = worker_of(Told())
    worker.transfer_async(1, STORE)
    worker.transfer_async(2, STORE)
    assert [worker.cancel(job_id) for job_id in (1, 2, 3)] == [False, True, False]


def test_wait_passes_over_what_is_not_under_way() -> None:
    store, load = Told(), Told()
    worker = worker_of(store, load)
    worker.transfer_async(1, STORE)
    worker.wait([1, 2, 3])
    assert (store.waited, load.waited) == ([[1]], [])


def test_wait_hides_nothing() -> None:
    """The caller is about to touch the blocks: it has to know, but not before the others are through."""
    load = Told()
    worker = worker_of(Raises(), load)
    worker.transfer_async(1, STORE)
    worker.transfer_async(2, LOAD)
    with pytest.raises(ConnectionError):
        worker.wait([1, 2])
    assert load.waited == [[2]]


def test_close_closes_all(caplog: pytest.LogCaptureFixture) -> None:
    load = Told()
    worker_of(Raises(), load).close()
    assert load.closed
    assert "swordfish" not in caplog.text


def test_stats_show_what_handlers_count() -> None:
    class Counts(Told):
        def stats(self) -> Mapping[Pair, TransferStats]:
            return {PAIR: TransferStats(bytes=5), ("CPU", "DISK"): TransferStats(bytes=6)}

    worker = worker_of(Counts(), Raises())
    assert worker.stats()[PAIR] == PairStats(transfers=TransferStats(bytes=5))
    assert worker.stats()["CPU", "GPU"].transfers is None
    assert ("CPU", "DISK") not in worker.stats()  # another's, or nobody's


def test_specs_with_keys() -> None:
    assert DiskLoadStoreSpec([4, 5], [b"a", b"b"]).items() == [(b"a", 4), (b"b", 5)]
    assert SharedLoadStoreSpec([b"a"]).items() == [(b"a", None)]
    assert (DiskLoadStoreSpec.medium(), SharedLoadStoreSpec.medium()) == ("DISK", "STORE")
    with pytest.raises(InvalidArgumentError, match="1 places for 2 blocks"):
        DiskLoadStoreSpec([4], [b"a", b"b"])

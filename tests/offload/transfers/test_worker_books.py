"""Property: the desk and the worker lose no transfer, ask no handler in vain, and count what handlers do wrong.

How: small cases, each of which shows one line of `offload/transfers.py` or `offload/worker.py`: every one was asked for
by a change of the source that no other test noticed (`blockwright conform --gate mutants`).
Not covered: threads (test_queue.py), and what connectors make of it (test_connector_books.py).
"""

from collections.abc import Collection, Sequence

import pytest
from tests.offload.connector.test_connector_calls import Rig, StillHandler

from blockwright.errors import InvalidArgumentError
from blockwright.offload import (
    ByteStore,
    CPUBackend,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LRUOffloadingManager,
    OffloadChain,
    OffloadingHandler,
    OffloadingWorker,
    RelayHandler,
)
from blockwright.offload.transfers import TransferDesk
from blockwright.offload.worker import TransferResult, TransferSpec

OUT = ("GPU", "CPU")
SPEC = (GPULoadStoreSpec([1]), CPULoadStoreSpec([2]))


def desk_of(handler: OffloadingHandler) -> tuple[OffloadChain, OffloadingWorker, TransferDesk]:
    """A desk over one tier of nine places."""
    chain, worker = OffloadChain([LRUOffloadingManager(CPUBackend(2, 9))]), OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handler)
    return chain, worker, TransferDesk(chain, worker)


def test_what_waits_or_is_under_way_is_known() -> None:
    handler = StillHandler()
    chain, _, desk = desk_of(handler)
    assert desk.is_idle
    chain.store([b"key"], [1])
    assert desk.take([]) == []
    assert not desk.is_idle
    assert desk.under_way == frozenset()
    desk.submit()
    assert not desk.is_idle
    assert desk.under_way == {0}
    handler.wait([0])
    assert desk.landed(0.0)
    assert desk.is_idle
    assert desk.under_way == frozenset()
    assert chain.lookup([b"key"]) == 1


def test_a_wait_looks_again_long_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, paused = StillHandler(), list[float]()
    chain, _, desk = desk_of(handler)
    chain.store([b"key"], [1])

    def sleep(pause: float) -> None:
        paused.append(pause)
        handler.wait([0])

    monkeypatch.setattr("blockwright.offload.transfers.time.sleep", sleep)
    assert desk.landed(60.0)
    assert max(paused) < 1.0


def test_a_pair_of_media_that_refused_is_not_asked_again_for_what_comes_behind() -> None:
    chain, worker, desk = desk_of(StillHandler(room=1))
    for at in range(4):
        chain.store([b"%d" % at], [at + 1])
    desk.submit()
    assert worker.stats()[OUT].submitted == 2


class LateHandler(StillHandler):
    """Has room again only when its results were fetched."""

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        return not self.finished and super().transfer_async(job_id, spec)


@pytest.mark.parametrize("kind", [StillHandler, LateHandler])
def test_what_must_come_first_waits_for_room(kind: type[StillHandler]) -> None:
    handler = kind(room=1)
    chain, _, desk = desk_of(handler)
    chain.store([b"before"], [1])
    desk.submit()
    job_id = chain.store([b"first"], [2]).job_id  # type: ignore[union-attr]
    assert job_id is not None
    desk.run_first([job_id])
    assert desk.num_refused == 0
    assert desk.is_idle
    assert handler.waited == [0, job_id]
    assert chain.lookup([b"before", b"first"]) == 2


def test_a_load_waits_in_its_turn_behind_copies_that_the_engine_runs() -> None:
    rig = Rig(store_on="evict", num_blocks=5)
    rig.end(rig.compute("first", range(5)))
    rig.end(rig.compute("second", range(20, 28)))
    rig.load("r", range(5))
    assert len(rig.handler.begun) == 1


# ---------------------------------------------------------------------- the worker


class Bad(OffloadingHandler):
    """Raises whatever it is asked."""

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        if job_id == 7:
            return True
        raise ValueError("no")

    def get_finished(self) -> list[TransferResult]:
        raise ValueError("no")

    def cancel(self, job_id: int) -> bool:
        raise ValueError("no")

    def wait(self, job_ids: Collection[int]) -> None:
        raise ValueError("no")

    def stats(self) -> dict[tuple[str, str], object]:  # type: ignore[override]
        raise ValueError("no")

    def close(self) -> None:
        raise ValueError("no")


def test_everything_that_a_handler_does_wrong_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, Bad())
    errors = []

    def counted() -> None:
        errors.append(worker.num_handler_errors)

    assert worker.transfer_async(1, SPEC) is False
    counted()
    assert worker.transfer_async(7, SPEC) is True
    counted()
    assert worker.get_finished() == []
    counted()
    assert worker.cancel(7) is False
    assert worker.cancel(8) is False
    counted()
    with pytest.raises(ValueError, match="no"):
        worker.wait([7])
    counted()
    assert worker.stats()[OUT].transfers is None
    counted()
    worker.close()
    counted()
    assert errors == [1, 1, 2, 3, 4, 5, 6]
    assert "a handler refused job 1 from GPU to CPU: ValueError" in caplog.text
    assert worker.transfer_async(7, SPEC) is False
    assert "a job with this id is under way" in caplog.text


class Plain(OffloadingHandler):
    """Brings only what it must."""

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        return True

    def get_finished(self) -> list[TransferResult]:
        return []


def test_a_handler_need_not_cancel_count_or_close() -> None:
    handler = Plain()
    assert handler.cancel(1) is False
    handler.close()
    with pytest.raises(NotImplementedError):
        handler.wait([1])
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handler)
    assert worker.transfer_async(1, SPEC)
    assert worker.cancel(1) is False
    worker.close()
    assert worker.num_handler_errors == 0
    assert worker.num_under_way == 1


class Empty(ByteStore):
    """Has nothing, and keeps nothing."""

    def put(self, key: bytes, place: int | None, parts: Sequence[memoryview]) -> None:
        return

    def get(self, key: bytes, place: int | None, into: Sequence[memoryview]) -> bool:
        return False


def test_a_relay_takes_blocks_of_a_byte() -> None:
    store = Empty()
    RelayHandler(store, store, 1).close()
    for wrong in (0, -1, True, 1.0, "1"):
        with pytest.raises(InvalidArgumentError, match="block_bytes"):
            RelayHandler(store, store, wrong)  # type: ignore[arg-type]

"""The two sides of a whole decode step: a manager, and a worker that keeps block tables and slots for its kernels."""

from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks.sides import Ours, Side, Windows
from blockwright import KVCacheManager


class StepWorker(Protocol):
    """A manager and its worker, together: what an engine does to them in a decode step of one token each.

    `write(requests, schedule(requests))` is the step; `schedule` is the scheduler's part, `write` the worker's.
    """

    manager: Any

    def add(self, row: int, request: Any, replaced: Any) -> None:
        """Give a row to a request that has its slots, in place of another's (None: the row is new)."""

    def schedule(self, requests: Sequence[Any]) -> Any:
        """Allocate a slot for each request; return what the worker is told."""

    def write(self, requests: Sequence[Any], scheduled: Any) -> None:
        """Update the block tables, row i for request i, and the slots of the step's tokens."""

    def entries(self, group: int, row: int, begin: int, end: int) -> list[int]:
        """Return some entries of a row of a group's block table."""

    def slots(self, group: int, count: int) -> list[int]:
        """Return the first slots of the last step."""


class StepSide(Side, Protocol):
    """A manager and a worker under measurement."""

    def worker(self, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> StepWorker:
        """Return a new manager with a worker on the CPU, for at most `num_rows` requests of so many tokens."""


class OursStep(Ours):
    """Blockwright, as installed: `KVCacheManager` and `blockwright.device.InputBatch`."""

    def worker(self, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> StepWorker:
        return _OursWorker(self, num_blocks, max_model_len, windows, num_rows)


class _OursWorker:
    """The calls of an engine in a step."""

    def __init__(self, side: Ours, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> None:
        # Imported late: it needs torch, and the benchmark starts without.
        from blockwright.device import InputBatch

        self.manager: KVCacheManager = side.manager(num_blocks, max_model_len, windows)
        config = side.config(num_blocks, windows)
        self._batch = InputBatch(
            config, max_num_requests=num_rows, max_num_tokens=num_rows, max_model_len=max_model_len
        )
        self._inputs: Any = None

    def add(self, row: int, request: Any, replaced: Any) -> None:
        """Tell the batch; the next step gives it its row."""
        if replaced is not None:
            self._batch.remove_request(replaced.request_id)
        self._batch.add_request(request.request_id, self.manager.get_blocks(request.request_id))

    def schedule(self, requests: Sequence[Any]) -> Any:
        return self.manager.allocate_slots_batch(requests, 1), self.manager.take_copies()

    def write(self, requests: Sequence[Any], scheduled: Any) -> None:
        allocation, copies = scheduled
        self._inputs = self._batch.step(requests, 1, allocation, copies)

    def entries(self, group: int, row: int, begin: int, end: int) -> list[int]:
        entries: list[int] = self._inputs.block_tables[group][row, begin:end].tolist()
        return entries

    def slots(self, group: int, count: int) -> list[int]:
        slots: list[int] = self._inputs.slot_mapping[group][:count].tolist()
        return slots

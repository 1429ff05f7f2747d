"""What a profile-guided build of the core learns from: every path of the table, and the worker's, for 10 ms each.

Run by `setup.py` with a core that counts; it needs nothing that is installed beside this package, so that the worker is
trained where there is no torch as well.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks import loop_paths, step_paths
from benchmarks.measure import interleaved
from benchmarks.paths import all_paths
from benchmarks.sides import Ours, Windows
from blockwright.worker.replica import TableReplica


class _Replica:
    """A manager and the part of its worker that is compiled: `StepWorker`."""

    def __init__(self, side: Ours, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> None:
        self.manager: Any = side.manager(num_blocks, max_model_len, windows)
        self._replica = TableReplica(
            side.config(num_blocks, windows),
            max_num_requests=num_rows,
            max_num_tokens=num_rows,
            max_model_len=max_model_len,
            max_encoder_len=0,
            enable_caching=True,
            keep_changes=False,
        )

    def add(self, row: int, request: Any, replaced: Any) -> None:
        if replaced is not None:
            self._replica.rows.remove_request(replaced.request_id)
        self._replica.rows.add_request(request.request_id, self.manager.get_blocks(request.request_id), (), 0)

    def schedule(self, requests: Sequence[Any]) -> Any:
        return self.manager.allocate_slots_batch(requests, 1), self.manager.take_copies()

    def write(self, requests: Sequence[Any], scheduled: Any) -> None:
        self._replica.step(list(requests), 1, 0, scheduled[0])

    def entries(self, group: int, row: int, begin: int, end: int) -> list[int]:
        request_id: Any = self._replica.rows.request_ids[row]
        return self._replica.rows.block_ids(request_id)[group][begin:end]

    def slots(self, group: int, count: int) -> list[int]:
        first = self._replica.groups[group].slots
        return list(self._replica.words[first : first + count])


class WithoutTorch(Ours):
    """Blockwright without torch: `StepSide`."""

    def worker(self, num_blocks: int, max_model_len: int, windows: Windows, num_rows: int) -> _Replica:
        return _Replica(self, num_blocks, max_model_len, windows, num_rows)


def main() -> None:
    side = WithoutTorch()
    for path in all_paths():
        if not path.needs:
            interleaved({path.name: path.ours()}, 1)
    for sample in (step_paths.step(side), step_paths.write(side), loop_paths.loop(side)):
        interleaved({"worker": sample}, 1)


if __name__ == "__main__":
    main()

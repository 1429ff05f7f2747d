"""The paths of a whole decode step: bookkeeping, block tables and slot mapping, on the CPU of the engine.

256 running requests of all ages and six groups, as in `groups`: in each step 16 of them take a block in each group,
which was another's content, publish one, and trim one in each window. Each step is timed alone, and the median of a
repetition's steps is its number, so the table shows the time of one step.
"""

import statistics
from typing import Any

from benchmarks import groups
from benchmarks.measure import Sample, now, require, since
from benchmarks.path import STEP, Path
from benchmarks.sides import BLOCK_SIZE
from benchmarks.step_sides import OursStep, StepSide

TARGET = 25
"""Ratio over the peer to reach."""
LIMIT = 100_000.0
"""CPU time of a step, at most, in ns."""
STEPS = 200
"""Decode steps of one repetition, each timed alone."""
WRITES = 50
"""The same where only the worker's part is timed."""
LONG = 64 * 1_024 - groups.CHUNK
"""Tokens of the youngest request with a context of 64k."""
GROWTH = 1.25
"""Time of a step with a context of 64k over that with 8k, at most."""


class Stepping:
    """A batch that decodes, and a worker whose rows follow it."""

    def __init__(self, side: StepSide, shortest: int, steps: int) -> None:
        max_model_len = shortest + groups.LIFE + steps
        size = groups.pool_size(shortest, steps)
        self.steps = steps
        self.worker = side.worker(size, max_model_len, groups.WINDOWS, groups.BATCH)
        self._batch = groups.Decoding(side, self.worker.manager, shortest=shortest, steps=steps)
        self._rows: list[Any] = [None] * groups.BATCH

    @property
    def requests(self) -> list[Any]:
        """The running requests; request i has row i."""
        return self._batch.requests

    def start(self) -> None:
        """Replace the requests that have ended, in the manager and in the worker."""
        self._batch.start()
        for row, (request, held) in enumerate(zip(self.requests, self._rows, strict=True)):
            if request is not held:
                self.worker.add(row, request, held)
        self._rows = list(self.requests)

    def advance(self) -> None:
        self._batch.advance()

    def finish(self) -> None:
        """Check the manager's tables, and the worker's rows and slots of the last step by them."""
        self._batch.finish()
        manager, worker = self.worker.manager, self.worker
        slots = [worker.slots(group, len(self.requests)) for group in range(len(groups.WINDOWS))]
        for row, request in enumerate(self.requests):
            position = request.num_computed_tokens - 1
            first = (position - groups.WINDOW + 1) // BLOCK_SIZE  # the oldest entry that a window reads
            for group, table in enumerate(manager.get_block_ids(request.request_id)):
                begin = 0 if groups.WINDOWS[group] is None else first
                require(worker.entries(group, row, begin, len(table)) == table[begin:])
                require(slots[group][row] == table[-1] * BLOCK_SIZE + position % BLOCK_SIZE)


def step(side: StepSide, shortest: int = groups.SHORTEST) -> Sample:
    run = Stepping(side, shortest, STEPS)
    worker = run.worker

    def sample() -> float:
        run.start()
        requests = run.requests
        times = []
        for _ in range(run.steps):
            begin = now()
            worker.write(requests, worker.schedule(requests))
            times.append(since(begin))
            run.advance()
        run.finish()
        return statistics.median(times)

    return sample


def write(side: StepSide) -> Sample:
    run = Stepping(side, groups.SHORTEST, WRITES)
    worker = run.worker

    def sample() -> float:
        run.start()
        requests = run.requests
        times = []
        for _ in range(run.steps):
            scheduled = worker.schedule(requests)
            begin = now()
            worker.write(requests, scheduled)
            times.append(since(begin))
            run.advance()
        run.finish()
        return statistics.median(times)

    return sample


def all_paths() -> list[Path]:
    needs = ("torch", "numpy")
    return [
        Path(
            "step-8k",
            "decode step of 256, 1 full + 5 sliding groups, 8k of context",
            "step",
            TARGET,
            lambda: step(OursStep()),
            step,
            system=STEP,
            limit=LIMIT,
            needs=needs,
        ),
        Path(
            "step-64k",
            "the same, 64k of context",
            "step",
            None,
            lambda: step(OursStep(), LONG),
            None,
            base=lambda: step(OursStep()),
            growth=("of the time with 8k of context", GROWTH),
            system=STEP,
            needs=needs,
        ),
        Path(
            "step-worker",
            "the worker's part alone: tables and slots",
            "step",
            None,
            lambda: write(OursStep()),
            write,
            system=STEP,
            needs=needs,
        ),
    ]

"""Property: after every call a worker's rows, and what a step hands out, are those of the specification, on plain
memory and staged alike.

How: long random histories of the kit's worker over each mix of kinds, in lock-step: admission with and without hits and
by a batch, chunked prefill, drafts with rejection, forks, loads, preemption, steps in flight, rows that are moved,
requests that pause, wrong calls, padding.
Not covered: that a manager tells what the specification does (the gate `lockstep`); what kernels do with the inputs
(the gate `numerics`).
"""

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

from blockwright_conformance.checker.history import History, walk
from blockwright_conformance.worker.scopes import LARGE, WorkerScope
from blockwright_conformance.worker.world import WorkerWorld


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scope", LARGE.values(), ids=list(LARGE))
def test_random_histories(scope: WorkerScope, seed: int) -> None:
    assert walk(History(WorkerWorld(scope)), seed, 120).fired["HandOut"] > 0

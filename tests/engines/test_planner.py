"""What a replay predicts is what vLLM's real scheduler does, given the same step time: a small `benchmarks.planner`."""

from pathlib import Path

import pytest

NAMES = ("under-loaded", "at the limit", "beyond it", "tight pool", "three drafts, accepted", "many turns, closed loop")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ours", [False, True], ids=["vLLM's manager", "Blockwright's"])
def test_the_replay_predicts_the_scheduler(name: str, ours: bool, models_folder: Path) -> None:
    from benchmarks import planner

    workload = planner.WORKLOADS[name]
    trace = workload.trace(0.4)
    theirs = planner.scheduled(workload, trace, models_folder, ours)
    # What drafts fill may be found a step sooner or later; the last such block only with ours, after the end.
    near = 1e-3 if workload.overlap.drafts else 1e-9
    assert planner.predicted(workload, trace) == pytest.approx(theirs, rel=near)
    assert theirs.preemptions > 0 or name != "tight pool"
    assert theirs.queued_p95 > 0.1 or name == "under-loaded"

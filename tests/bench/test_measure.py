"""Property: every side is measured as often as asked, in turn; the median of exactly those measurements counts.

Tested with samples that record when they are called and return known values.
Not covered: that a clock is right, or that a machine is quiet.
"""

import gc
import statistics

import pytest

from blockwright.bench import measure


def test_sides_take_turns_and_the_first_run_of_a_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "TURN", 0)
    calls: list[str] = []
    values = {
        "ours": iter([1000.0, 3.0, 1000.0, 1.0, 1000.0, 2.0]),
        "peer": iter([999.0, 30.0, 999.0, 10.0, 999.0, 20.0]),
    }

    def sample(name: str) -> float:
        calls.append(name)
        assert not gc.isenabled()
        return next(values[name])

    timings = measure.interleaved({"ours": lambda: sample("ours"), "peer": lambda: sample("peer")}, repeat=3)

    assert calls[::2] == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert calls[1::2] == calls[::2]
    assert (timings["ours"].median, timings["peer"].median) == (2.0, 20.0)
    assert gc.isenabled()


def test_a_turn_of_short_runs_is_the_median_of_many() -> None:
    runs: list[float] = []

    def sample() -> float:
        begin = measure.now()
        sum(range(10_000))
        runs.append(float(measure.since(begin)))
        return runs[-1]

    timing = measure.interleaved({"ours": sample}, repeat=1)["ours"]
    assert len(runs) > 10
    assert timing.median == statistics.median(runs[1:])


def test_the_collector_is_on_again_after_a_failure() -> None:
    def fails() -> float:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        measure.interleaved({"ours": fails}, repeat=1)
    assert gc.isenabled()


def test_quartiles() -> None:
    timing = measure.summary([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (timing.low, timing.median, timing.high) == (2.0, 3.0, 4.0)
    assert measure.summary([7.0]).median == 7.0

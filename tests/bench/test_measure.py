"""Property: every side is repeated as often as asked, in turn, and the median of exactly those repetitions counts.

Tested with samples that record when they are called and return known values.
Not covered: that a clock is right, or that a machine is quiet.
"""

import gc

import pytest

from blockwright.bench.measure import interleaved, summary


def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    calls: list[str] = []
    values = {"ours": iter([1000.0, 3.0, 1.0, 2.0]), "peer": iter([1000.0, 30.0, 10.0, 20.0])}

    def sample(name: str) -> float:
        calls.append(name)
        assert not gc.isenabled()
        return next(values[name])

    timings = interleaved({"ours": lambda: sample("ours"), "peer": lambda: sample("peer")}, repeat=3)

    assert calls == ["ours", "peer", "peer", "ours", "ours", "peer", "peer", "ours"]
    assert (timings["ours"].median, timings["peer"].median) == (2.0, 20.0)
    assert gc.isenabled()


def test_the_collector_is_on_again_after_a_failure() -> None:
    def fails() -> float:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        interleaved({"ours": fails}, repeat=1)
    assert gc.isenabled()


def test_quartiles() -> None:
    timing = summary([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (timing.low, timing.median, timing.high) == (2.0, 3.0, 4.0)
    assert summary([7.0]).median == 7.0

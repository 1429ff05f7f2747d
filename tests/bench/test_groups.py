"""Property: the paths over several groups do the work they time, and divide it by what the definition needs.

Tested by running each once in a small size, and by managers that do part of the work only, which the samples must
notice. Not covered: the numbers.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.bench import groups, tails
from blockwright.bench.measure import WorkNotDoneError
from blockwright.bench.sides import BLOCK_SIZE, Ours


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests, short lives: they end and are replaced within two repetitions."""
    monkeypatch.setattr(groups, "BATCH", 4)
    monkeypatch.setattr(groups, "LIFE", 2 * groups.STEPS)


@pytest.mark.parametrize("overlap_steps", [False, True])
def test_decode_steps_in_one_call(overlap_steps: bool) -> None:
    sample = groups.decode_batch(Ours(), overlap_steps)
    assert all(sample() > 0 for _ in range(4))


def test_decode_steps_one_call_each() -> None:
    sample = groups.decode_each(Ours())
    assert all(sample() > 0 for _ in range(4))


class _Partial(Ours):
    """Managers of which some methods are replaced."""

    def __init__(self, replaced: Callable[[Any], dict[str, object]]) -> None:
        super().__init__()
        self._replaced = replaced

    def manager(self, *args: Any, **keywords: Any) -> Any:
        inner = super().manager(*args, **keywords)
        methods = {name: getattr(inner, name) for name in dir(inner) if not name.startswith("_")}
        return SimpleNamespace(**{**methods, **self._replaced(inner)})


def test_a_manager_that_never_trims_is_noticed() -> None:
    def whole_tables(inner: Any) -> dict[str, object]:
        return {"get_block_ids": lambda name: tuple([inner.get_block_ids(name)[0]] * len(groups.WINDOWS))}

    with pytest.raises(WorkNotDoneError):
        groups.decode_each(_Partial(whole_tables))()


def test_a_manager_that_gives_no_slots_is_noticed() -> None:
    calls = []

    def lazy(inner: Any) -> dict[str, object]:
        def allocate_slots(request: Any, new: int) -> object:
            calls.append(request)
            return inner.allocate_slots(request, new) if new > 1 or len(calls) < 60 else ()

        return {"allocate_slots": allocate_slots}

    with pytest.raises(WorkNotDoneError):
        groups.decode_each(_Partial(lazy))()
    assert len(calls) > 60


def test_a_short_hit_is_noticed() -> None:
    def short(inner: Any) -> dict[str, object]:
        return {"get_computed_blocks": lambda request: (inner.get_computed_blocks(request)[0], BLOCK_SIZE)}

    with pytest.raises(WorkNotDoneError):
        groups.lookup(_Partial(short), groups.WINDOWS, 100)()


def test_the_longest_calls_are_those_of_equal_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"PROMPTS": (64, 128), "RUNNING": 8, "ARRIVALS": 1}.items():
        monkeypatch.setattr(tails, name, value)
    tails.main(["--blocks", "200", "--calls", "300", "--rounds", "2"])
    kinds = [line for line in capsys.readouterr().out.splitlines() if "tokens" in line or "token " in line]
    assert len(kinds) == 3 + 4 * 2
    calls = iter(range(10**9))
    monkeypatch.setattr(tails, "since", lambda begin: next(calls))
    times = tails.measure(200, 300, 2)
    assert sum(map(len, times.values())) >= 300
    assert max(map(max, times.values())) < next(calls) / 2  # those of the first round, which this clock has shortest
    with pytest.raises(SystemExit):
        tails.main(["--blocks", "9"])


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_long_hit_is_found_in_all_groups(count: int) -> None:
    assert groups.lookup(Ours(), groups.WINDOWS[:count], 100)() > 0


def test_blocks_that_a_hit_needs() -> None:
    assert groups.num_needed((None,), 100) == 100
    assert groups.num_needed((None, 1, 2, BLOCK_SIZE + 1, BLOCK_SIZE + 2), 100) == 100 + 0 + 1 + 1 + 2
    assert groups.num_needed((None, 1_024), 100) == 164
    assert groups.num_needed((None, 1_024), 10) == 20


def test_the_batch_has_all_ages_and_all_block_boundaries_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ages = groups.ages()
    assert (len(ages), min(ages), max(ages)) == (256, 0, 2_047)
    phases = [age % BLOCK_SIZE for age in ages]
    assert [phases.count(phase) for phase in range(BLOCK_SIZE)] == [16] * BLOCK_SIZE

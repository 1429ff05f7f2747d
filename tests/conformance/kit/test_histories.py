"""Property: a fault in a long history of a large scope is found, shortened and reported.

How: managers with a fault that shows only when blocks run short, only in a batch, or only on the device; the random
walk and the state machine must find it, the machine as a test of at most 12 calls. Adapters that choose their own
blocks evict one that is held, copy wrongly, or leave a stale table. A machine of somebody's own is run by Hypothesis.
Not covered: that the right manager passes (gates `machine` and `any-order`).
"""

from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from blockwright_conformance.checker.history import History, HistoryError, walk, walks
from blockwright_conformance.kv_cache.adapter import Copies, Served, Tables
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.gate import AnyOrderAdapter, hunted, judged
from blockwright_conformance.kv_cache.scopes import FOR_OTHERS, large_scopes
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.machine import SETTINGS, ManagerMachine, hunt, world
from blockwright_conformance.plane import Plane

LARGE = large_scopes()


class ForgetsNulls(BlockwrightAdapter):
    """A manager whose batch does not tell which entries became null."""

    def allocate_each(self, asks: Any, lookahead: int) -> tuple[tuple[Served, ...], bool]:
        served, whole = super().allocate_each(asks, lookahead)
        return tuple(Served(each.new, None) for each in served), whole


class LosesABlock(BlockwrightAdapter):
    """A manager that loses a block when a request is released while others hold some."""

    def free(self, name: str) -> None:
        super().free(name)
        pool = self.manager.block_pool
        if pool.get_num_free_blocks() < len(pool.ref_counts()) - 3:
            pool.get_new_blocks(1)


def calls_of(script: str) -> int:
    return sum(line.count("adapter.") for line in script.splitlines() if line.startswith("    "))


def test_a_replica_kept_from_deltas_must_equal_the_tables() -> None:
    sliding = next(each for each in LARGE if each.name.startswith("sliding 3"))
    with pytest.raises(HistoryError, match="REPLICA-1"):
        walk(History(KVCacheWorld(sliding, ForgetsNulls, is_long=True)), 1, 600)


def test_walks_find_a_fault_and_shorten_it() -> None:
    make = partial(History[Any, Any], KVCacheWorld(LARGE[0], LosesABlock, is_long=True))
    with pytest.raises(HistoryError) as found:
        walks(make, 20, 200)
    assert len(found.value.violation.actions) <= 4


def test_the_state_machine_finds_a_fault_and_prints_a_short_test(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", str(tmp_path))
    row = min((hunted(LARGE[0], LosesABlock, 30) for _ in range(2)), key=lambda each: calls_of(each.script))
    assert (row.violations, row.law) == (1, "REF-0")
    assert "(seed " in row.detail
    assert calls_of(row.script) <= 12, row.script
    names: dict[str, Any] = {}
    exec(row.script, names)
    with pytest.raises(AssertionError):
        names["test_counterexample"]()
    assert any(tmp_path.rglob("*")), "the failure is kept, to be tried first the next time"


def test_data_that_does_not_arrive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def puts_nowhere(self: Plane, slot: int, group: int, start: int, values: list[int]) -> None:
        kept(self, slot, group, start, values if start < 4 else values[:-1])

    kept = Plane.put
    monkeypatch.setattr(Plane, "put", puts_nowhere)
    with pytest.raises(HistoryError, match="DATA-1"):
        hunt(LARGE[0], BlockwrightAdapter, 30, 1)


class MyMachine(ManagerMachine):
    """A machine of a third party's own."""

    factory: ClassVar[Any] = BlockwrightAdapter
    scope = world("full, block 2 + sliding 3, block 2", blocks=16, longest=12, calls="chunks preempt fork")


TestMyManager = MyMachine.TestCase
TestMyManager.settings = settings(SETTINGS, max_examples=5, stateful_step_count=20)


def test_hypothesis_prints_the_counterexample_of_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(MyMachine):
        factory: ClassVar[Any] = LosesABlock

    often = settings(SETTINGS, max_examples=200, stateful_step_count=30)
    with pytest.raises(HistoryError) as found:
        run_state_machine_as_test(Wrong, settings=often)
    assert "test_counterexample()" in "".join(getattr(found.value, "__notes__", ())) + capsys.readouterr().out


# ---- managers that choose their own blocks


class EvictsHeld(AnyOrderAdapter):
    """Takes a block that another request holds: it is let go of once too often when a request ends."""

    def free(self, name: str) -> None:
        held = [block for table in self.manager.get_block_ids(name) for block in table if block]
        super().free(name)
        if held and self.manager.block_pool.ref_counts()[held[0]]:
            self.manager.block_pool.free_blocks(held[:1])


class CopiesWrongly(AnyOrderAdapter):
    """Reports copies backwards."""

    def take_copies(self) -> Copies:
        return tuple([tuple([pair[::-1] for pair in group]) for group in super().take_copies()])


class StaleTable(AnyOrderAdapter):
    """Reports a step's new blocks to another request's place: the table that it shows has none of them."""

    def allocate(self, *arguments: Any) -> Tables | None:
        given = super().allocate(*arguments)
        return None if given is None else tuple([table[:-1] for table in given])


@pytest.mark.parametrize("wrong", [EvictsHeld, CopiesWrongly, StaleTable])
def test_in_any_order_wrong_managers_are_found(wrong: Any) -> None:
    scopes = [each for each in FOR_OTHERS["pr"] if each.name == "full, block 2: forks"]
    assert [judged(each, wrong, 2000).violations for each in scopes] == [1]
    assert [judged(each, AnyOrderAdapter, 300).violations for each in scopes] == [0]

"""Property: a fault in a long history of a large scope is found, shrunk and reported.

How: managers with a fault that shows only when blocks run short, or only in a batch; the state machine and the random
walk must find it.
Not covered: that the right manager passes (gate `machine`).
"""

from functools import partial
from typing import Any

import pytest

from blockwright_conformance.checker.history import History, HistoryError, run_machine, walk
from blockwright_conformance.kv_cache.adapter import Served
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.gate import row
from blockwright_conformance.kv_cache.scopes import large_scopes
from blockwright_conformance.kv_cache.world import KVCacheWorld

LARGE = large_scopes()


class ForgetsNulls(BlockwrightAdapter):
    """A manager whose batch does not tell which entries became null."""

    def allocate_each(self, asks: Any, lookahead: int) -> tuple[tuple[Served, ...], bool]:
        served, whole = super().allocate_each(asks, lookahead)
        return tuple(Served(each.new, None) for each in served), whole


class LosesABlock(BlockwrightAdapter):
    """A manager that loses a block when a request is released while others hold more than one."""

    def free(self, name: str) -> None:
        super().free(name)
        pool = self.manager.block_pool
        if pool.get_num_free_blocks() < 38:
            pool.get_new_blocks(1)


def test_a_replica_kept_from_deltas_must_equal_the_tables() -> None:
    sliding = next(each for each in LARGE if each.name.startswith("sliding 3"))
    with pytest.raises(HistoryError, match="REPLICA-1"):
        walk(History(KVCacheWorld(sliding, ForgetsNulls, is_long=True)), 1, 600)


def test_a_walk_finds_a_fault() -> None:
    with pytest.raises(HistoryError) as found:
        walk(History(KVCacheWorld(LARGE[0], LosesABlock, is_long=True)), 1, 600)
    assert found.value.violation.actions


def test_the_state_machine_finds_and_shrinks_a_fault() -> None:
    world = KVCacheWorld(LARGE[0], LosesABlock)
    machine = partial(run_machine, partial(History, world), examples=20, steps=12)
    reported = row(world, [machine])
    assert (reported.violations, reported.law) == (1, "REF-0")
    assert reported.script.count("adapter.free(") == 1
    assert reported.script.count("adapter.") < 30, "the history is shrunk"

"""Property: the explorer visits everything, finds a fault by a shortest path, and fails when something never happened.

How: the counts of small scopes are pinned; managers with one fault each, made by overriding one call of the adapter,
must be found out, by a path of known length; a coverage row must fail when an action is missing.
Not covered: which faults a whole profile finds (known bugs and mutants).
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.gates import gates
from blockwright_conformance.kv_cache.adapter import Served
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.gate import GATE
from blockwright_conformance.kv_cache.scopes import PR, PROFILES, Scope, of_row
from blockwright_conformance.kv_cache.world import EVERYTHING, KVCacheWorld
from blockwright_spec.manager import effects, ending, plans
from blockwright_spec.manager.state import Table
from blockwright_spec.reads import Sliding

FULL = of_row("full, block 1", "small", 5, 3, "chunks trim reset preempt batch")
SLIDING = of_row("sliding 2, block 1", "small", 4, 4, "trim")
MAMBA = of_row("mamba, block 2", "small", 4, 4, "chunks later")


@pytest.mark.parametrize(
    ("small", "states", "transitions", "depth"),
    [(FULL, 1304, 8676, 13), (SLIDING, 491, 2635, 13), (MAMBA, 1635, 13136, 13)],
    ids=lambda value: getattr(value, "name", None),
)
def test_counts_are_known(small: Scope, states: int, transitions: int, depth: int) -> None:
    result = Explorer(KVCacheWorld(small)).run()
    assert result.violation is None
    assert (result.states, result.transitions, result.depth) == (states, transitions, depth)


FEW = ("no blocks", "nothing above")
"""Scopes of next to nothing, by their names: there is no room, and that must be borne."""


@pytest.mark.parametrize("name", ["lockstep", "paged", "offload", "worker"])
def test_every_scope_has_states_to_explore(name: str) -> None:
    """A scope that explores nothing is a check that cannot fail."""
    if name == "lockstep":
        worlds, most = [KVCacheWorld(each) for each in PROFILES["nightly"]], 50
    else:
        exploration = import_module(gates()[name].module).GATE
        worlds, most = [exploration.world(each) for each in exploration.profiles("nightly")], 200
    for world in worlds:
        found = Explorer(world, alone=True, laws=False, max_transitions=most).run()
        few = found.states < 10 and found.transitions < most
        assert few == any(words in world.scope.name for words in FEW), f"{world.scope.name}: {found.states} states"


def test_the_specification_alone_reaches_the_same_states() -> None:
    alone = Explorer(KVCacheWorld(FULL), alone=True).run()
    assert (alone.states, alone.transitions) == (1304, 8676)


class TrimsNothing(BlockwrightAdapter):
    def trim(self, name: str, end: int) -> None:
        pass


class FreesNothing(BlockwrightAdapter):
    def free(self, name: str) -> None:
        pass


class RefusesTheLastBlock(BlockwrightAdapter):
    def allocate(self, *args: Any, **kwargs: Any) -> tuple[Table, ...] | None:
        if self.manager.block_pool.get_num_free_blocks() == 1:
            return None
        return super().allocate(*args, **kwargs)


class TellsNoNulls(BlockwrightAdapter):
    def allocate_each(self, asks: Any, lookahead: int) -> tuple[tuple[Served, ...], bool]:
        served, whole = super().allocate_each(asks, lookahead)
        return tuple(Served(each.new, ()) for each in served), whole


class Crashes(BlockwrightAdapter):
    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        raise RuntimeError("out of order")


class FailsItsCheck(BlockwrightAdapter):
    def check(self) -> None:
        error = RuntimeError("two counters differ")
        error.law = "REF-1"  # type: ignore[attr-defined]
        raise error


FAULTY: list[tuple[type[BlockwrightAdapter], Scope, int, str]] = [
    (TrimsNothing, SLIDING, 2, "tables"),
    (FreesNothing, FULL, 2, "tables"),
    (RefusesTheLastBlock, FULL, 4, "refused"),
    (TellsNoNulls, replace(SLIDING, calls=frozenset(("batch", "chunks"))), 3, "nulled"),
    (Crashes, FULL, 2, "RuntimeError: out of order"),
    (FailsItsCheck, FULL, 0, "two counters differ"),
]


@pytest.mark.parametrize(
    ("manager", "small", "length", "words"), FAULTY, ids=lambda value: getattr(value, "__name__", "")
)
def test_fault_is_found_by_a_short_path(
    manager: type[BlockwrightAdapter], small: Scope, length: int, words: str
) -> None:
    result = Explorer(KVCacheWorld(small, manager)).run()
    assert result.violation is not None
    assert words in result.violation.detail
    assert len(result.violation.actions) == length
    row = GATE.report(result)
    assert row.violations == 1
    counterexample: dict[str, Any] = {}
    exec(row.script, counterexample)
    with pytest.raises((AssertionError, LookupError, RuntimeError)):
        counterexample["test_counterexample"]()


SPEC_FAULTS: dict[str, Any] = {
    "READ-1": (plans, "trim_tables", lambda config, tables, settled: tuple((0,) * len(table) for table in tables)),
    "REF-1": (effects, "enqueue", lambda state, *of: state),  # what is trimmed
    "ALONE-1": (ending, "enqueue", lambda state, *of: state),
    "QUEUE-1": (ending, "enqueue", lambda state, released, *of: replace(state, queue=released + state.queue)),
    "TABLE-1": (plans, "wanted", lambda *of: (True,) * (of[4] + of[5].new - of[2] + 1)),  # one more than it needs
    "STEP-2": (
        effects,
        "take_blocks",
        lambda state, taken, *of: replace(state, queue=state.queue[len(taken) :], keys=()),
    ),
}


@pytest.mark.parametrize("law", SPEC_FAULTS)
def test_a_fault_of_the_specification_breaks_a_law(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter, name, fault = SPEC_FAULTS[law]
    monkeypatch.setattr(chapter, name, fault)
    result = Explorer(KVCacheWorld(SLIDING if law == "REF-1" else FULL), alone=True).run()
    assert result.violation is not None
    assert result.violation.law == law


def test_coverage_fails_when_something_never_happened() -> None:
    row = GATE.report(Explorer(KVCacheWorld(FULL), alone=True).run())
    assert GATE.coverage([row]).violations > 0
    assert "GrowEach" not in GATE.coverage([row]).detail
    assert "HIT_STALE" in GATE.coverage([row]).detail
    everything = replace(row, fired=dict.fromkeys(EVERYTHING, 1))
    assert GATE.coverage([row, everything]).violations == 0


def test_profiles_hold_scopes_of_different_names() -> None:
    assert len({each.name for each in PROFILES["nightly"]}) == len(PROFILES["nightly"])
    assert set(PROFILES["quick"]) < set(PR)
    assert {each.name for each in PR} < {each.name for each in PROFILES["nightly"]}, "some are larger there"


def test_scopes_cover_what_is_promised() -> None:
    groups = {group for each in PR for group in each.config.groups}
    kinds = {(type(group.kind).__name__, group.block_size) for group in groups}
    assert kinds >= {(name, size) for name in ("Full", "Sliding", "Chunked", "Mamba", "Cross") for size in (1, 2)}
    assert {1, 2, 3} == {len(each.config.groups) for each in PR}
    assert {0, 1, 2} == {each.in_flight for each in PR}
    assert {True, False} == {each.config.settles for each in PR}
    windows = {(group.kind.window, group.block_size) for group in groups if isinstance(group.kind, Sliding)}
    assert {(1, 2), (2, 2), (3, 2)} <= windows, "below, at and above a block"
    assert {each.config.caching for each in PR} == {each.config.eagle for each in PR} == {True, False}
    assert {len({token for _, tokens in each.prompts for token in tokens}) for each in PR} == {1, 2}
    assert any(len({extra for extra, _ in each.prompts}) > 1 for each in PR)

"""Property: the gate of block tables passes what is right, visits what it says, and checks contents that really move.

How: engines that forget to move data are put through it; states under other names must have the same digest, and the
same successors, on whole scopes; counterexamples are run as the Python that they are printed as.
Not covered: that wrong implementations are caught (known bugs, mutants).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from types import ModuleType
from typing import Any

import pytest

import blockwright
from blockwright.paging import BlockTable
from blockwright_conformance.block_tables.abstraction import expected
from blockwright_conformance.block_tables.actions import (
    Allocate,
    AppendTokens,
    ClearCopies,
    Fork,
    FreeTable,
    Swap,
    TableAction,
)
from blockwright_conformance.block_tables.blockwright import BlockwrightTables
from blockwright_conformance.block_tables.gate import GATE
from blockwright_conformance.block_tables.scopes import PAGED_PROFILES, PagedScope, paged_calls, paged_scope
from blockwright_conformance.block_tables.symmetry import paged_form
from blockwright_conformance.block_tables.world import EVERYTHING, TablesWorld
from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.lockstep import act
from blockwright_conformance.gates import Profile, gate
from blockwright_conformance.kv_cache.symmetry import Names
from blockwright_lab.data_movement.tables_engine import PagedEngine
from blockwright_lab.data_movement.tables_histories import random_walk, run_machine
from blockwright_lab.data_movement.tables_scopes import HISTORIES, BrokenError, World
from blockwright_lab.known_bugs.changes import Change
from blockwright_lab.known_bugs.places import PLACES
from blockwright_lab.known_bugs.variants import variant
from blockwright_spec.block_tables.state import Device, Paged, PagedConfig

PROMPT = (0, (1, 2, 3))
WINDOWED = PagedConfig(2, 6, 4, True, 1)
SMALL = paged_scope("small", 2, 3, 2, 3, "swap delay", lookaheads=(0, 1))


def world_of(config: PagedConfig) -> TablesWorld:
    """The world of three tables."""
    return TablesWorld(PagedScope("story", config, 3, (PROMPT,)))


def together(config: PagedConfig, *actions: TableAction) -> tuple[Paged, BlockwrightTables]:
    """A state and allocators after the same actions."""
    world = world_of(config)
    state, adapter = world.initial(), BlockwrightTables(config)
    for action in actions:
        outcome, faults, *_ = act(world, adapter, state, action)
        assert faults == []
        state = outcome.state
    return state, adapter


STORY: tuple[TableAction, ...] = (
    Allocate(0, (0, (1, 2, 3, 4))),
    AppendTokens(0, (5,), 2, 4),
    Fork(0, 1),
    AppendTokens(1, (6,), 0, 4, delayed=True),
    Allocate(2, PROMPT, Device.CPU),
)


def test_the_adapter_shows_what_is_expected() -> None:
    state, adapter = together(WINDOWED, *STORY)
    assert adapter.observe(3) == expected(state)
    assert state.null is not None
    assert state.copies
    assert world_of(WINDOWED).examine(adapter, state) == []
    assert adapter.copy().observe(3) == expected(state)


def test_a_right_allocator_passes_and_nothing_is_left_out() -> None:
    alone, both = Explorer(TablesWorld(SMALL), alone=True).run(), Explorer(TablesWorld(SMALL)).run()
    assert both.violation is None
    assert (both.states, both.fired.keys()) == (alone.states, alone.fired.keys())
    assert GATE.report(both).violations == 0


LAST_FIRST = Change(
    "take_mark",
    "block = self.take_one()",
    "free = self.free_block_ids()\nself._one[0] = i32(free[-1])\nself.touch_entries(self._one)\nblock = i64(free[-1])",
)
"""Takes the free block that would be taken last."""


def test_another_legal_choice_is_no_fault() -> None:
    assert Explorer(PLACES["NAIVE"].world(variant(LAST_FIRST)), laws=False).run().violation is None


# --- what is visited once


def renamed(state: Paged, names: Sequence[int]) -> Paged:
    """The state with block b called names[b]."""

    def moved(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[names.index(block)] for block in range(len(names)))

    return replace(
        state,
        free=frozenset(names[block] for block in state.free),
        contents=moved(state.contents),
        keys=moved(state.keys),
        times=tuple(3 * time for time in moved(state.times)),
        tables=tuple(
            table and replace(table, entries=tuple(names[block] for block in table.entries)) for table in state.tables
        )[::-1],
        fresh=frozenset(names[block] for block in state.fresh),
        copies=tuple((names[source], names[target]) for source, target in state.copies),
        null=None if state.null is None else names[state.null],
    )


class Everywhere(Explorer[Paged, Any]):
    """Keeps every state it visits."""

    states: list[Paged]

    def level(self, frontier: list[Any]) -> Any:
        self.states = [*getattr(self, "states", []), *(node.state for node in frontier)]
        return super().level(frontier)


@pytest.mark.parametrize(
    "scope",
    [
        paged_scope("smallest", 1, 3, 1, 2, "swap access"),
        paged_scope("smallest", 2, 3, 2, 3, "swap delay", caching=False, lookaheads=(0, 1)),
        paged_scope("smallest", 1, 3, 0, 4, "late", window=1),
    ],
    ids=lambda scope: scope.name,
)
def test_a_state_under_other_names_is_the_same_state_with_the_same_successors(scope: PagedScope) -> None:
    world = TablesWorld(scope)
    explorer, names = Everywhere(world, alone=True), Names(paged_form)
    explorer.run()
    gpu, total = scope.config.num_gpu, scope.config.num_gpu + scope.config.num_cpu

    def successors(state: Paged) -> set[bytes]:
        return {names.digest(world.meaning(state, action).state) for action in world.enabled(state)}

    for state in explorer.states:
        for order in list(permutations(range(gpu)))[1::3]:
            other = renamed(state, (*order, *range(total - 1, gpu - 1, -1)))
            assert names.digest(other) == names.digest(state)
            assert successors(other) == successors(state)
    assert len({names.digest(state) for state in explorer.states}) == len(explorer.states)


# --- what must happen


def test_a_missing_action_fails_the_gate() -> None:
    rows = [GATE.report(Explorer(TablesWorld(SMALL), alone=True).run())]
    row = GATE.coverage(rows)
    assert (row.law, row.violations) == ("SEEN-1", len(EVERYTHING - rows[0].fired.keys()))
    full = replace(rows[0], fired=dict.fromkeys(EVERYTHING, 1))
    assert GATE.coverage([full]).violations == 0


def test_unknown_calls_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown calls"):
        paged_calls("swap swop")


def test_names_of_scopes_differ() -> None:
    for scopes in PAGED_PROFILES.values():
        assert len({scope.name for scope in scopes}) == len(scopes)


def test_the_gate_runs_in_quick() -> None:
    run, size = gate("paged", Profile("quick", jobs=1))
    steps: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        steps.append(note)

    rows = run(Profile("quick", jobs=1), progress)
    assert len(rows) == len(steps) == size == len(PAGED_PROFILES["quick"])
    assert not any(row.violations for row in rows)


def test_other_managers_have_no_tables_to_test() -> None:
    other = Profile(implementation="somewhere:Else")
    run, size = gate("paged", other)
    assert (run(other, lambda count=1, note="": None), size) == ([], 0)


def test_counterexamples_are_python() -> None:
    actions = (*STORY[:4], ClearCopies(), Swap((0, 1), Device.CPU), FreeTable(1))
    scope = replace(SMALL, config=WINDOWED)
    space: dict[str, Any] = {}
    exec(TablesWorld(scope).script(actions, "PAGE-4: one; two"), space)
    table: BlockTable = space["t0"]
    state, adapter = together(WINDOWED, *actions)
    assert table.physical_block_ids == adapter.table(0).physical_block_ids
    assert state.tables[0] is not None


# --- contents


class ForgetsCopies(PagedEngine):
    """Executes no copies."""

    def __init__(self, world: World, reference: bool = True, package: ModuleType = blockwright) -> None:
        super().__init__(world, reference, package)
        self.caches.copy = lambda pairs: None  # type: ignore[method-assign]


class ForgetsSwaps(PagedEngine):
    """Executes no swaps back."""

    def __init__(self, world: World, reference: bool = True, package: ModuleType = blockwright) -> None:
        super().__init__(world, reference, package)
        self.caches.swap_in = lambda pairs: None  # type: ignore[method-assign]


@pytest.mark.parametrize("engine", [ForgetsCopies, ForgetsSwaps])
def test_contents_that_did_not_move_are_noticed(engine: type[PagedEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockwright_lab.data_movement.tables_histories.PagedEngine", engine)
    with pytest.raises(BrokenError) as caught:
        random_walk(HISTORIES["naive, block 4"], seed=0, steps=2_000, reference=False)
    assert caught.value.law == "PAGE-4"


@pytest.mark.parametrize("name", HISTORIES)
def test_walks_and_machines_go_with_the_specification(name: str) -> None:
    fired = random_walk(HISTORIES[name], seed=1, steps=120).fired
    assert {"Allocate", "AppendTokens", "Fork", "FreeTable", "Swap"} <= fired.keys()
    assert run_machine(HISTORIES[name], 2, 15)


def test_some_prompts_are_too_large_for_the_gpu() -> None:
    fired = random_walk(HISTORIES["naive, block 2, watermark 6"], seed=3, steps=200).fired
    assert {"NEVER", "LATER"} <= fired.keys(), "what the manager answers has been compared"

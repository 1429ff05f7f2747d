"""Property: the gate of inputs sees every wrong row, slot, state, length and copy.

How: batches of inputs that are wrong in one way each are put through random walks; each must be caught under the law
that it breaks.
Not covered: that every wrong batch is caught; that the real ones pass, and devices (tests/device).
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from blockwright.device.inputs import InputBatch
from blockwright_conformance.checker.diagnose import diagnose
from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.history import History, HistoryError, run_machine, walk
from blockwright_conformance.gates import Profile, gate
from blockwright_conformance.worker import blockwright as inputs_worker
from blockwright_conformance.worker.scopes import PLAIN, SMALL, WorkerScope
from blockwright_conformance.worker.world import WorkerWorld

WINDOWS, TIMED, STATES, _, _, ENCODER, _ = PLAIN
BUFFERS = ("new_block_ids", "new_block_offsets", "nulled_entries", "nulled_offsets", "replaced_entries", "num_served")


# --- batches that are wrong


def without(allocation: Any, name: str) -> Any:
    """What a batch told, with one of its buffers empty."""
    if allocation is None:
        return None
    reported = {each: getattr(allocation, each) for each in BUFFERS}
    return SimpleNamespace(**{**reported, name: type(allocation.new_block_ids)()})


class KeepsNulled(InputBatch):
    """Nulls no entry."""

    def apply(self, requests: Any, allocation: Any) -> None:
        super().apply(requests, self.reported(allocation))

    def step(self, *arguments: Any, **rest: Any) -> Any:
        requests, news, *reported = arguments
        return super().step(requests, news, *map(self.reported, reported[:1]), *reported[1:], **rest)

    def reported(self, allocation: Any) -> Any:
        """Leave out what became null."""
        if allocation is None:
            return None
        nothing = type(allocation.nulled_offsets)([0] * len(allocation.nulled_offsets))
        reported = without(allocation, "nulled_entries")
        reported.nulled_offsets = nothing
        return reported


class KeepsShared(KeepsNulled):
    """Goes on with blocks that have been copied."""

    def reported(self, allocation: Any) -> Any:
        return without(allocation, "replaced_entries")


class Forgets(InputBatch):
    """Forgets its last step when a row is taken anew."""

    def add_request(self, request_id: str, *arguments: Any) -> None:
        if request_id in self.request_ids:
            row = self.request_ids.index(request_id)
            self.remove_request(request_id)
            super().add_request(request_id, *arguments)
            self.swap(row, self.request_ids.index(request_id))
        else:
            super().add_request(request_id, *arguments)


class Disorders(InputBatch):
    """Leaves rows in another order when a step is refused."""

    def step(self, *arguments: Any, **rest: Any) -> Any:
        try:
            return super().step(*arguments, **rest)
        except Exception:
            self.swap(0, len(self.request_ids) - 1)
            raise


class Moves(InputBatch):
    """Moves to taken rows."""

    def move_request(self, request_id: str, row: int) -> None:
        self.swap(self.row_of(request_id), row)


class Tolerates(InputBatch):
    """Accepts a request twice."""

    def step(self, *arguments: Any, **rest: Any) -> Any:
        requests, *others = arguments
        return super().step(list({id(each): each for each in requests}.values()), *others, **rest)


def handing(change: Callable[[Any], Any]) -> type[InputBatch]:
    """A batch whose steps hand out something else."""

    class Wrong(InputBatch):
        def step(self, *arguments: Any, **rest: Any) -> Any:
            given = super().step(*arguments, **rest)
            return replace(given, **change(given))

    return Wrong


class Padless(InputBatch):
    """Pads nothing."""

    def step(self, *arguments: Any, **rest: Any) -> Any:
        given = super().step(*arguments, **rest)
        given._views.pad = lambda *counts: None  # type: ignore[method-assign]
        for slots in given._views._slots:
            slots[given.num_tokens :] = 5
        return given


WRONG: list[tuple[str, type[InputBatch], WorkerScope]] = [
    ("ROW-1", KeepsNulled, WINDOWS),
    ("ROW-1", KeepsShared, WINDOWS),
    ("STATE-1", Forgets, STATES),
    ("ROW-3", Disorders, WINDOWS),
    ("REF-0", Moves, WINDOWS),
    ("REF-0", Tolerates, STATES),
    ("SLOT-1", handing(lambda given: {"slot_mapping": tuple(each + 1 for each in given.slot_mapping)}), WINDOWS),
    ("SLOT-1", handing(lambda given: {"slot_mapping": (*given.slot_mapping[:2], given.slot_mapping[0])}), STATES),
    ("SLOT-1", Padless, STATES),
    ("STATE-1", handing(lambda given: {"state_reads": tuple(each * 0 for each in given.state_reads)}), STATES),
    ("STATE-2", handing(lambda given: {"state_writes": tuple(each.flip(1) for each in given.state_writes)}), STATES),
    ("STATE-2", handing(lambda given: {"state_writes": (given.state_writes[2],) * 3}), STATES),
    ("LEN-2", handing(lambda given: {"positions": given.positions + 1}), TIMED),
    ("LEN-2", handing(lambda given: {"seq_lens": given.seq_lens - 1}), TIMED),
    ("LEN-2", handing(lambda given: {"num_computed_tokens": given.seq_lens}), TIMED),
    ("LEN-2", handing(lambda given: {"max_query_len": 1}), TIMED),
    ("LEN-2", handing(lambda given: {"query_start_loc": given.query_start_loc.flip(0)}), TIMED),
    ("CROSS-2", handing(lambda given: {"encoder_lens": given.encoder_lens * 0}), ENCODER),
    ("COPY-3", handing(lambda given: {"copies": tuple(each[:0] for each in given.copies)}), WINDOWS),
    ("REF-0", handing(lambda given: {"positions": given.positions.clone()}), WINDOWS),
    ("REF-0", handing(lambda given: {"seq_lens": given.seq_lens.long()}), WINDOWS),
]


@pytest.mark.parametrize(("law", "wrong", "scope"), WRONG, ids=lambda each: getattr(each, "__name__", None))
def test_a_wrong_batch_is_noticed(
    law: str, wrong: type[InputBatch], scope: WorkerScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs_worker, "InputBatch", wrong)
    world = WorkerWorld(scope)
    with pytest.raises(HistoryError) as caught:
        walks(world)
    assert any(each.startswith(law) for each in diagnose(world, caught.value.violation.actions).laws)


def walks(world: WorkerWorld) -> None:
    for seed in range(6):
        walk(world, seed, 300)


def test_the_machine_finds_what_the_walk_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_machine(WorkerWorld(STATES), 1, 10)
    monkeypatch.setattr(inputs_worker, "InputBatch", handing(lambda given: {"positions": given.positions + 1}))
    with pytest.raises(HistoryError, match="LEN-2"):
        run_machine(WorkerWorld(STATES), 10, 20)


def test_a_history_is_a_program_over_public_names() -> None:
    for scope in (WINDOWS, STATES, ENCODER):
        world = WorkerWorld(scope)
        actions = [each for each in walk(world, 3, 120).actions if type(each).__name__ != "Misuse"]
        history = History(world)
        for action in actions:
            history.act(action)
        exec(compile(world.script(actions), "history", "exec"), {})


def test_a_small_scope_is_explored_and_a_fault_found_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Explorer(WorkerWorld(SMALL[0])).run()
    assert (result.violation, result.states, result.transitions) == (None, 75, 1207)
    monkeypatch.setattr(inputs_worker, "InputBatch", handing(lambda given: {"seq_lens": given.seq_lens - 1}))
    found = Explorer(WorkerWorld(SMALL[0])).run().violation
    assert found is not None
    assert "LEN-2" in found.detail
    assert len(found.actions) == 2


# --- the gate


@pytest.mark.parametrize("name", ["movement", "worker"])
def test_the_gate_runs_in_quick(name: str) -> None:
    run, size = gate(name, Profile("quick", jobs=1))
    steps: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        steps.append(note)

    rows = run(Profile("quick", jobs=1), progress)
    assert len(rows) == len(steps) == size
    assert [row.detail for row in rows if row.violations] == []


@pytest.mark.parametrize("name", ["movement", "worker"])
def test_other_managers_have_no_workers(name: str) -> None:
    other = Profile(implementation="somewhere:Else")
    run, size = gate(name, other)
    assert (run(other, lambda count=1, note="": None), size) == ([], 0)

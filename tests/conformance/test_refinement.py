"""Property: the gate `refinement` follows what the parts do, and notices what is wrong on the page, in a mapping or in
a part.

How: the quick profile is run whole, all its mutants included; transitions of parts are made wrong, by hand, in the ways
of known bugs, and must be no sequence of steps.
Not covered: wrong parts in every way (the laws of the parts and their mutants).
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from blockwright_conformance.gates import Profile
from blockwright_conformance.kv_cache.actions import Admit, Grow, Release, meaning
from blockwright_lab.refinement import gate, maps, mutants
from blockwright_lab.refinement.maps import of_manager
from blockwright_lab.refinement.small_pool import explored
from blockwright_lab.refinement.steps import refined
from blockwright_spec import block_machine
from blockwright_spec.block_machine import STEPS
from blockwright_spec.manager.state import NULL, Config, Running, State, initial
from blockwright_spec.reads import Group, Sliding


def test_a_harmless_change_is_not_noticed() -> None:
    page, mapping = (mutants.source_of(module) for module in (block_machine, maps))
    same = mutants.Mutant("the same page", page), mutants.Mutant("the same mapping", mapping, mutants.SCOPE)
    assert [mutants.noticed(each, explored()) for each in same] == ["", ""]


def test_every_step_is_left_out_and_every_guard_weakened() -> None:
    names = [mutant.name for mutant in mutants.mutants() if mutant.where is None]
    assert {f"no {step.__name__}" for step in STEPS} < set(names)
    assert all(sum(name.startswith(f"{step.__name__}: ") for name in names) >= 1 for step in STEPS)


def test_parts_come_to_steps_and_all_moves_are_made_and_what_is_wrong_is_noticed() -> None:
    seen: list[str] = []

    def progress(count: int = 1, note: str = "") -> None:
        seen.append(note)

    profile = Profile("quick", jobs=1)
    rows = gate.run(profile, progress)
    assert [(row.scope, row.detail) for row in rows if row.violations] == []
    assert len(seen) == gate.size(profile)
    assert [row.tried - row.passed for row in rows if row.kind == gate.MUTANTS] == [0]
    fired = {step for row in rows if row.kind == gate.KIND for step in row.fired}
    assert fired == {step.__name__ for step in STEPS}


# --- wrong parts

PROMPT = (0, (1, 2, 3, 4))


@pytest.fixture
def grown() -> tuple[State, State]:
    """A request under a window of two tokens, before and after a step that leaves the first two entries behind."""
    before = meaning(initial(Config((Group(Sliding(2), 1),), 7, 8), 2), Admit(0, PROMPT, 3)).state
    return before, meaning(before, Grow(0, 1)).state


def with_tables(state: State, change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> State:
    """A state in which the table of the first request is another."""
    (request, *rest) = state.requests
    assert isinstance(request, Running)
    return replace(state, requests=(replace(request, tables=(change(request.tables[0]),)), *rest))


def taken_while_held(state: State) -> State:
    """The block that the step wrote to is one that the request still holds (a use after free)."""
    request = state.requests[0]
    assert isinstance(request, Running)
    held, new = request.tables[0][-2:]
    contents = tuple(state.contents[new] if block == held else each for block, each in enumerate(state.contents))
    keys = tuple((held, each) if block == new else (block, each) for block, each in state.keys if block != held)
    wrong = replace(state, contents=contents, keys=keys, queue=(*state.queue, new))
    return with_tables(wrong, lambda table: (*table[:-1], held))


def trimmed_too_far(state: State) -> State:
    """The entry that the next token reads becomes null, and its block is free."""
    request = state.requests[0]
    assert isinstance(request, Running)
    lost = request.tables[0][-2]
    after = with_tables(state, lambda table: (*table[:-2], NULL, table[-1]))
    return replace(after, queue=(*after.queue, lost))


def never_freed(state: State) -> State:
    """A trimmed block is in no table, and not free (a leak)."""
    return replace(state, queue=tuple(block for block in state.queue if block != 1))


def freed_twice(state: State) -> State:
    """A block that is held is free as well."""
    request = state.requests[0]
    assert isinstance(request, Running)
    return replace(state, queue=(*state.queue, request.tables[0][-1]))


def key_kept(state: State) -> State:
    """A block that was taken is still found by what it held before."""
    request = state.requests[0]
    assert isinstance(request, Running)
    return replace(state, keys=(*state.keys[:-1], (request.tables[0][-1], state.keys[0][1])))


def written_while_findable(state: State) -> State:
    """A published block is written once more."""
    block, (group, _) = state.keys[0]
    contents = tuple((group, (0, (9,))) if at == block else each for at, each in enumerate(state.contents))
    return replace(state, contents=contents)


def null_published(state: State) -> State:
    """The null block can be found."""
    return replace(state, keys=(*state.keys, (NULL, state.keys[0][1])))


@pytest.mark.parametrize(
    "wrong",
    [
        taken_while_held,
        trimmed_too_far,
        never_freed,
        freed_twice,
        key_kept,
        written_while_findable,
        null_published,
    ],
)
def test_a_wrong_transition_is_no_sequence_of_steps(
    grown: tuple[State, State], wrong: Callable[[State], State]
) -> None:
    before, after = grown
    assert refined(of_manager(before), of_manager(after)).fault == ""
    assert refined(of_manager(before), of_manager(wrong(after))).fault


def test_a_request_that_ends_drops_all(grown: tuple[State, State]) -> None:
    _, before = grown
    steps = refined(of_manager(before), of_manager(meaning(before, Release(0)).state)).moves
    assert {move.step for move in steps} == {"drop", "advance"}

"""Property: a worker's rows follow the manager's tables, and a step's inputs are what its tokens read and write.

How: short stories with known outcomes, of every kind of layer: rows added, followed, moved and removed; slots, states
with accepted drafts, forks whose blocks are copied, encoders. Each law holds in every story and notices what breaks it,
in each of its parts. One refusal of every reason.
Not covered: long histories (the gate `worker`), and plans of storage (`test_storage.py`).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.spec.stories import admitted, done, prompt, running, sent

from blockwright_spec.law import Law
from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.in_time.forks import fork
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Step
from blockwright_spec.manager.state import NULL, Absent, Config, Hit, Running, State, initial
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Sliding
from blockwright_spec.worker import rows as r
from blockwright_spec.worker.input_laws import INPUT_LAWS, ROW_LAWS, Handed, RowCall
from blockwright_spec.worker.inputs import GroupInputs, Inputs, Work, inputs, slot_at, stepped
from blockwright_spec.worker.rows import Row, RowRefusal, Rows

BY_ID = {law.id: law.holds for law in (*INPUT_LAWS, *ROW_LAWS)}
FREE: Rows = (None,) * 3


def model(*groups: tuple[Kind, int], caching: bool = True) -> State:
    return initial(Config(tuple(Group(*group) for group in groups), 30, 20, caching), 3)


def rows_of(state: State) -> Rows:
    """The rows of a worker that has taken every request's tables as they are, request 0 in row 0."""
    return tuple(
        Row(slot, each.tables, each.added.states, each.added.encoder) if isinstance(each, Running) else None
        for slot, each in enumerate(state.requests)
    )


def ok(rows: r.RowsOutcome) -> Rows:
    assert not isinstance(rows, RowRefusal), rows
    return rows


def given(state: State, rows: Rows, *works: Work) -> Inputs:
    said = inputs(state.config, rows, works, state.copies)
    assert not isinstance(said, RowRefusal), said
    return said


def handed(before: State, state: State, *works: Work, rows: Rows | None = None) -> Handed:
    """A step that gave slots to all its requests by one call, and what it hands out."""
    rows = rows_of(state) if rows is None else rows
    return Handed(state, rows, works, given(state, rows, *works), (before.contents,) * len(works))


def grown(state: State, slot: int, new: int, drafts: int = 0) -> State:
    return done(
        t.grow(state, slot, running(state, slot).computed, Step(new, added=StepAdded(drafts=drafts)), LRU)
    ).state


# ---------------------------------------------------------------------- stories


def two_of_attention() -> Handed:
    """Request 0 decodes its sixth token, request 1 computes the second part of its prompt, behind a window."""
    before = model((Full(), 4), (Sliding(3), 2), (Chunked(4), 4))
    before = admitted(before, 0, prompt(1, 2, 3, 4, 5))
    before = done(t.admit(sent(before, 1, prompt(7, 8, 9, 7, 8, 9)), 1, Hit(), Step(3), LRU)).state
    before = done(t.append_output(before, 0, (6,))).state
    return handed(before, grown(grown(before, 0, 1), 1, 3), Work(0, 5, 1), Work(1, 3, 3))


def with_drafts() -> Handed:
    """A request whose two drafts were accepted computes one token and two more drafts."""
    before = admitted(model((Full(), 4), (Mamba(2), 4)), 0, prompt(1, 2, 3))
    rows = stepped(rows_of(before), (Work(0, 0, 3),))
    before = done(t.append_output(before, 0, (4,))).state
    drafted = grown(before, 0, 3, 2)
    rows = stepped(ok(r.add(rows, rows_of(drafted)[0] or ROW, 0)), (Work(0, 3, 3, 2),))
    before = done(t.append_output(drafted, 0, (5, 6, 7), 2)).state
    state = grown(before, 0, 3, 2)
    rows = ok(r.add(rows, rows_of(state)[0] or ROW, 0))
    return handed(before, state, Work(0, 6, 3, 2), rows=rows)


def two_of_states() -> Handed:
    """Two requests with recurrent layers, and no drafts; one begins, the other goes on."""
    before = admitted(model((Mamba(), 2), (Full(), 2)), 0, prompt(1, 2, 3))
    before = done(t.append_output(before, 0, (4, 5))).state
    state = grown(before, 0, 2)
    return handed(before, admitted(state, 1, prompt(9, 9, 9)), Work(0, 3, 2), Work(1, 0, 3))


def parted() -> Handed:
    """A request and its fork both go on: the blocks that they share are copied first."""
    before = admitted(model((Full(), 4), (Mamba(), 4)), 0, prompt(1, 2, 3))
    before = done(t.arrive(before, 1, prompt(1, 2, 3))).state
    before = done(fork(before, 0, 1, LRU)).state
    for slot in (0, 1):
        before = done(t.append_output(before, slot, (4 + slot,))).state
    return handed(before, grown(grown(before, 0, 1), 1, 1), Work(0, 3, 1), Work(1, 3, 1))


def with_encoder() -> Handed:
    before = model((Full(), 2), (Cross(), 2), caching=False)
    before = done(t.arrive(before, 0, prompt(1, 2, 3))).state
    return handed(
        before, done(t.admit(before, 0, Hit(), Step(3, added=StepAdded(encoder=5)), LRU)).state, Work(0, 0, 3)
    )


ROW = Row(0, (), ())
GOOD: dict[str, Handed] = {
    story.__name__: story() for story in (two_of_attention, with_drafts, two_of_states, parted, with_encoder)
}
ATTENTION, DRAFTS, STATES, PARTED, ENCODER = GOOD.values()


def test_slots_are_places_in_blocks() -> None:
    full, near, _ = ATTENTION.inputs.groups
    (_, last), (first, second) = full.tables
    assert full.slots == (last * 4 + 1, first * 4 + 3, second * 4, second * 4 + 1)
    assert near.tables[0][0] == NULL
    assert ATTENTION.inputs.positions == (5, 3, 4, 5)
    assert (ATTENTION.inputs.starts, ATTENTION.inputs.lengths) == ((0, 1, 4), (6, 6))


def test_an_accepted_draft_is_read_from_its_block() -> None:
    request, (_, states) = running(DRAFTS.state), DRAFTS.inputs.groups
    assert states.states_read == (request.added.states[1][1],)
    assert states.states_written == ((request.tables[1][1], *request.added.states[1]),)
    assert states.slots == (None,) * 3


def test_a_state_is_read_from_the_entry_before() -> None:
    first, second = (running(STATES.state, slot).tables[0] for slot in (0, 1))
    states = STATES.inputs.groups[0]
    assert states.states_read == (first[1], NULL)
    assert states.states_written == ((first[2],), (second[1],))


def test_copies_come_with_the_step() -> None:
    full, states = PARTED.inputs.groups
    ((source, copy),) = full.copies
    assert (full.tables[0], full.tables[1]) == ((copy,), (source,))
    assert states.states_read == (states.copies[0][1], states.copies[0][0])
    assert states.states_written == tuple((block,) for block in states.states_read)


def test_one_state_for_a_request_that_caches_nothing() -> None:
    before = admitted(model((Mamba(1), 2), caching=False), 0, prompt(*range(9)))
    before = done(t.append_output(before, 0, (1,))).state
    step = handed(before, grown(before, 0, 2, 1), Work(0, 9, 2, 1))
    (block,), (draft,) = running(step.state).tables[0], running(step.state).added.states[0]
    assert step.inputs.groups[0].states_read == (block,)
    assert step.inputs.groups[0].states_written == ((block, draft),)
    assert [law.id for law in INPUT_LAWS if not law.holds(step)] == []


def test_slot_of_a_position_without_a_block() -> None:
    assert slot_at(2, (5, NULL, 7), 1) == 11
    assert slot_at(2, (5, NULL, 7), 2) is None
    assert slot_at(2, (5, NULL, 7), 6) is None


# ---------------------------------------------------------------------- rows

A, B = Row(0, ((1, 2),), ((),)), Row(1, ((3,),), ((),))
TWO: Rows = (A, None, B)


def test_rows_come_and_go() -> None:
    rows = ok(r.add(ok(r.add(FREE, A, 0)), B, 2))
    assert rows == TWO
    assert r.remove(rows, 0) == (None, None, B)
    assert r.add(rows, replace(A, tables=((1, 2, 9),)), 0) == (replace(A, tables=((1, 2, 9),)), None, B)


def test_a_row_taken_anew_knows_its_last_step() -> None:
    rows = stepped(TWO, (Work(0, 0, 5, 2), Work(1, 3, 0)))
    assert [row and row.certain for row in rows] == [3, None, None]
    assert ok(r.add(rows, A, 0))[0] == replace(A, certain=3)
    assert ok(r.add(ok(r.remove(rows, 0)), A, 0))[0] == A


def test_rows_follow_what_a_batch_tells() -> None:
    state = initial(Config((Group(Full(), 2),), 9, 9), 0)
    state = replace(state, copies=((0, 2, 7),))
    reported = Done(state, new=((4, 5),), nulled=((0,),), copied=(1,))
    assert r.apply(TWO, ((0, reported),)) == (replace(A, tables=((NULL, 7, 4, 5),)), None, B)


def test_rows_change_places() -> None:
    assert r.swap(TWO, 0, 2) == (B, None, A)
    assert r.move(TWO, 1, 1) == (A, B, None)
    assert r.move(TWO, 1, 2) == TWO
    assert r.compact(TWO, ((2, 1),)) == (A, B, None)
    assert r.arrange(TWO, (1,), (2, 0, 1)) == (B, A, None)
    assert r.arrange(TWO, (1, 0), (2, 0, 1)) == (B, A, None)


CONFIG = Config((Group(Full(), 2), Group(Mamba(1), 2)), 9, 20)
KNOWN: Rows = (Row(0, ((1, 2), (NULL, 3)), ((), (4,)), certain=3),)

REFUSED: list[tuple[RowRefusal, object]] = [
    (RowRefusal.NO_PLACE, r.add((A, B), Row(2, ((),), ((),)), 0)),
    (RowRefusal.NO_PLACE, r.swap(TWO, 0, 3)),
    (RowRefusal.NO_PLACE, r.swap(TWO, -1, 0)),
    (RowRefusal.NO_PLACE, r.move(TWO, 0, 3)),
    (RowRefusal.TAKEN, r.add((A, None), B, 0)),
    (RowRefusal.TAKEN, r.add((A, None), B, 2)),
    (RowRefusal.TAKEN, r.move(TWO, 0, 2)),
    (RowRefusal.NO_ROW, r.remove(TWO, 2)),
    (RowRefusal.NO_ROW, r.move(TWO, 2, 1)),
    (RowRefusal.NO_ROW, r.apply(TWO, ((2, Done(model((Full(), 2)))),))),
    (RowRefusal.NO_ROW, r.arrange(TWO, (2,), (0, 1, 2))),
    (RowRefusal.NO_ROW, inputs(CONFIG, KNOWN, (Work(1, 0, 1),), ())),
    (RowRefusal.REPEATED, r.apply(TWO, ((0, Done(model((Full(), 2)))),) * 2)),
    (RowRefusal.REPEATED, r.arrange(TWO, (0, 0), (0, 1, 2))),
    (RowRefusal.REPEATED, inputs(CONFIG, KNOWN, (Work(0, 3, 1),) * 2, ())),
    (RowRefusal.ILLEGAL_ORDER, r.arrange(TWO, (1,), (0, 1, 2))),
    (RowRefusal.ILLEGAL_ORDER, r.arrange(TWO, (1,), (2, 2, 0))),
    (RowRefusal.ILLEGAL_ORDER, r.compact(TWO, ())),
    (RowRefusal.ILLEGAL_ORDER, r.compact(TWO, ((2, 0),))),
    (RowRefusal.ILLEGAL_ORDER, r.compact(TWO, ((1, 1),))),
    (RowRefusal.ILLEGAL_ORDER, r.compact(TWO, ((3, 1),))),
    (RowRefusal.WRONG_COUNT, inputs(CONFIG, KNOWN, (Work(0, 3, -1),), ())),
    (RowRefusal.WRONG_COUNT, inputs(CONFIG, KNOWN, (Work(0, -1, 1),), ())),
    (RowRefusal.WRONG_COUNT, inputs(CONFIG, KNOWN, (Work(0, 3, 1, 1),), ())),
    (RowRefusal.WRONG_COUNT, inputs(CONFIG, KNOWN, (Work(0, 3, 1, -1),), ())),
    (RowRefusal.NO_BLOCK, inputs(CONFIG, KNOWN, (Work(0, 3, 2),), ())),  # no slot for position 4
    (RowRefusal.NO_BLOCK, inputs(CONFIG, KNOWN, (Work(0, 2, 1),), ())),  # no state after 2 tokens
    (RowRefusal.NO_BLOCK, inputs(CONFIG, KNOWN, (Work(0, 0, 1),), ())),  # no block for the state after 1
    (RowRefusal.NO_BLOCK, inputs(CONFIG, KNOWN, (Work(0, 0, 4, 2),), ())),  # no block for the second draft's state
]


@pytest.mark.parametrize(("reason", "outcome"), REFUSED)
def test_refusal(reason: RowRefusal, outcome: object) -> None:
    assert outcome is reason


def test_every_refusal_happens() -> None:
    assert {reason for reason, _ in REFUSED} == set(RowRefusal)


def test_a_step_may_compute_nothing_of_a_request() -> None:
    said = inputs(CONFIG, KNOWN, (Work(0, 3, 0),), ())
    assert isinstance(said, Inputs)
    assert said.groups[1].states_written == ((),)


# ---------------------------------------------------------------------- laws


@pytest.mark.parametrize("law", INPUT_LAWS, ids=lambda law: law.id)
@pytest.mark.parametrize("name", GOOD)
def test_law_holds_in_every_story(law: Law, name: str) -> None:
    assert law.holds(GOOD[name])


def changed(step: Handed, at: int | None = None, **fields: Any) -> Handed:
    """The step with other inputs, those of a group or of all."""
    if at is None:
        return replace(step, inputs=replace(step.inputs, **fields))
    groups = step.inputs.groups
    other = replace(groups[at], **fields)
    return changed(step, groups=(*groups[:at], other, *groups[at + 1 :]))


def group(step: Handed, at: int) -> GroupInputs:
    return step.inputs.groups[at]


def first(values: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    """Put another value first."""
    return (value, *values[1:])


def forgotten(step: Handed, block: int) -> Handed:
    """The step as if a block held nothing, now and before."""
    now, *found = ((*each[:block], None, *each[block + 1 :]) for each in (step.state.contents, *step.found))
    return replace(step, state=replace(step.state, contents=now), found=tuple(found))


NEAR, STATE = group(ATTENTION, 1), group(STATES, 0)
ENDED = replace(ATTENTION.state, requests=(Absent(), *ATTENTION.state.requests[1:]))

BROKEN: list[tuple[str, Handed]] = [
    ("ROW-1", changed(ATTENTION, 1, tables=first(NEAR.tables, (*NEAR.tables[0], 29)))),
    ("ROW-1", changed(ATTENTION, 1, tables=first(NEAR.tables, (5, *NEAR.tables[0][1:])))),
    ("ROW-1", replace(ATTENTION, state=ENDED)),
    ("ROW-2", replace(ATTENTION, rows=ATTENTION.rows[1::-1])),
    ("ROW-2", replace(ATTENTION, rows=(*ATTENTION.rows[:2], ATTENTION.rows[0]))),
    ("SLOT-1", changed(ATTENTION, 0, slots=first(group(ATTENTION, 0).slots, 28 * 4 + 1))),
    ("SLOT-1", changed(ATTENTION, 0, slots=first(group(ATTENTION, 0).slots, (group(ATTENTION, 0).slots[0] or 0) + 1))),
    ("SLOT-1", changed(ATTENTION, 0, slots=first(group(ATTENTION, 0).slots, None))),
    ("SLOT-1", changed(STATES, 0, slots=first(STATE.slots, 5))),
    ("SLOT-2", changed(ATTENTION, 0, slots=first(group(ATTENTION, 0).slots, group(ATTENTION, 0).slots[1]))),
    ("SLOT-2", changed(ATTENTION, 1, slots=(*NEAR.slots[:2], NEAR.slots[1], *NEAR.slots[3:]))),
    ("SLOT-2", changed(STATES, 0, states_written=(STATE.states_written[1], STATE.states_written[1]))),
    ("SLOT-2", changed(STATES, 0, states_written=first(STATE.states_written, (group(STATES, 1).tables[0][2],)))),
    ("READ-2", forgotten(ATTENTION, group(ATTENTION, 0).tables[0][0])),
    ("READ-2", changed(ATTENTION, 1, tables=first(NEAR.tables, (*NEAR.tables[0][:1], NULL, *NEAR.tables[0][2:])))),
    ("READ-2", changed(ATTENTION, 0, tables=first(group(ATTENTION, 0).tables, group(ATTENTION, 0).tables[0][:1]))),
    ("READ-2", changed(ATTENTION, 0, tables=group(ATTENTION, 0).tables[::-1])),
    ("STATE-1", changed(STATES, 0, states_read=first(STATE.states_read, NULL))),
    ("STATE-1", changed(STATES, 0, states_read=first(STATE.states_read, STATE.tables[0][0]))),
    ("STATE-1", changed(STATES, 0, states_read=(STATE.states_read[0], 5))),
    ("STATE-1", changed(STATES, 1, states_read=(5, NULL))),
    ("STATE-1", forgotten(STATES, STATE.states_read[0])),
    ("STATE-1", changed(DRAFTS, 1, states_read=(group(DRAFTS, 1).tables[0][0],))),
    ("STATE-1", changed(PARTED, 1, copies=())),
    ("STATE-2", changed(STATES, 0, states_written=first(STATE.states_written, (STATE.tables[0][1],)))),
    ("STATE-2", changed(STATES, 0, states_written=first(STATE.states_written, ()))),
    ("STATE-2", changed(STATES, 1, states_written=((5,), ()))),
    ("STATE-2", changed(DRAFTS, 1, states_written=((*group(DRAFTS, 1).states_written[0][:2], NULL),))),
    ("STATE-3", changed(STATES, 0, states_read=(STATE.states_read[0], STATE.states_written[0][0]))),
    ("LEN-2", changed(ATTENTION, positions=(5, 3, 4, 6))),
    ("LEN-2", changed(ATTENTION, starts=(0, 2, 4))),
    ("LEN-2", changed(ATTENTION, starts=(1, 2, 4))),
    ("LEN-2", changed(ATTENTION, starts=(0, 1, 5))),
    ("LEN-2", changed(ATTENTION, computed=(5, 4))),
    ("LEN-2", changed(ATTENTION, lengths=(6, 5))),
    ("LEN-2", changed(ATTENTION, 0, slots=(*group(ATTENTION, 0).slots, 7))),
    ("COPY-3", changed(PARTED, 0, copies=())),
    ("COPY-3", changed(PARTED, 0, copies=group(PARTED, 1).copies)),
    ("CROSS-2", changed(ENCODER, encoder=(4,))),
    ("CROSS-2", changed(ENCODER, 1, tables=(group(ENCODER, 1).tables[0][:2],))),
    ("CROSS-2", changed(ENCODER, 1, tables=((NULL, *group(ENCODER, 1).tables[0][1:]),))),
]
"""Steps that break each law, in each of its parts."""


@pytest.mark.parametrize(("name", "step"), BROKEN)
def test_law_notices_what_breaks_it(name: str, step: Handed) -> None:
    assert not BY_ID[name](step)


BROKEN_CALLS: list[RowCall] = [
    RowCall(TWO, (A, None, replace(B, certain=2)), frozenset({0})),
    RowCall(TWO, (A, None, None), frozenset({0})),
    RowCall((None, None, B), TWO, frozenset()),
    RowCall(TWO, (A, B), frozenset()),
]


@pytest.mark.parametrize("call", BROKEN_CALLS)
def test_law_of_calls_notices_what_breaks_it(call: RowCall) -> None:
    assert not BY_ID["ROW-3"](call)


def test_law_of_calls_holds_for_calls_that_happened() -> None:
    calls: list[tuple[Callable[..., r.RowsOutcome], tuple[Any, ...], frozenset[int]]] = [
        (r.add, (Row(2, ((),), ((),)), 1), frozenset({2})),
        (r.remove, (0,), frozenset({0})),
        (r.swap, (0, 2), frozenset()),
        (r.move, (1, 1), frozenset()),
        (r.compact, (((2, 1),),), frozenset()),
        (r.arrange, ((1,), (2, 1, 0)), frozenset()),
    ]
    assert all(BY_ID["ROW-3"](RowCall(TWO, ok(call(TWO, *arguments)), named)) for call, arguments, named in calls)


def test_every_law_is_broken_once() -> None:
    assert {name for name, _ in BROKEN} | {"ROW-3"} == BY_ID.keys()

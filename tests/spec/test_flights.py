"""Property: steps in flight and loads do what the calls of those names promise, and refuse for each reason they have.

How: short stories with known outcomes: what is settled, what moves back, what waits behind a fence and in what order it
returns, what is found and when; states of drafts and encoder tokens; one refusal of every reason.
Not covered: every order of calls (the explorer visits them all).
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.spec.stories import done, held, hit_of, prompt, running, sent, table_of, why

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import ConfigAdded, StepAdded
from blockwright_spec.manager.in_time.in_flight import begin, finish_load, settle
from blockwright_spec.manager.laws import LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Reason, Step
from blockwright_spec.manager.state import NULL, Absent, Config, Fence, Flight, Hit, State, Waiting, initial, is_loading
from blockwright_spec.reads import Cross, Full, Group, Kind, Mamba, Sliding


def over(*groups: tuple[Kind, int], settles: bool = False, blocks: int = 16, overlaps: bool = True) -> State:
    """A new manager whose steps are in flight until they are settled."""
    kinds = tuple(Group(*group) for group in groups or ((Full(), 2),))
    return initial(Config(kinds, blocks, 20, added=ConfigAdded(overlaps=overlaps, settles=settles)), 3)


def lawful(state: State) -> State:
    """The state, in which every law holds."""
    assert [law.id for law in LAWS if not law.holds(state)] == []
    return state


def flown(state: State, slot: int = 0, tokens: tuple[int, ...] = (1, 2, 3, 4, 5)) -> State:
    """A request admitted whole in a step of its own."""
    state = sent(done(begin(state)).state, slot, prompt(*tokens))
    hit = hit_of(state, slot)
    return lawful(done(t.admit(state, slot, hit, Step(len(tokens) - hit.length), LRU)).state)


def ahead(state: State, new: int = 1, drafts: int = 0) -> State:
    """The request in slot 0 goes on in a step of its own."""
    state = done(begin(state)).state
    return lawful(done(t.grow(state, 0, running(state).written, Step(new, added=StepAdded(drafts=drafts)), LRU)).state)


def settled(state: State, *rejected: tuple[int, int]) -> State:
    return lawful(done(settle(state, rejected, LRU)).state)


def said(state: State, *tokens: int) -> State:
    return lawful(done(t.append_output(state, 0, tokens)).state)


def test_steps_settle_one_after_another() -> None:
    state = ahead(ahead(flown(over()), 1), 1)
    assert [[(flight.start, flight.stop) for flight in step] for step in state.flights] == [
        [(0, 5)],
        [(5, 6)],
        [(6, 7)],
    ]
    assert (running(state).settled, running(state).written, running(state).computed) == (0, 7, 5)
    state = settled(state)
    assert (running(state).settled, len(state.flights)) == (5, 2)
    state = said(state, 6)
    assert running(state).computed == 6
    assert running(settled(settled(state))).settled == 7


def test_rejected_drafts_move_later_steps_back() -> None:
    state = ahead(ahead(settled(flown(over())), 4, drafts=3), 2, drafts=1)
    state = settled(state, (0, 2))
    assert [(flight.start, flight.stop, flight.drafts) for flight in state.flights[0]] == [(7, 9, 1)]
    assert (running(state).settled, running(state).written, running(state).added.drafts) == (7, 9, 1)
    state = settled(said(state, 6, 7), (0, 1))
    assert (running(state).settled, running(state).written, running(state).added.drafts) == (8, 8, 0)
    assert why(t.grow(done(begin(state)).state, 0, 9, Step(1), LRU)) is Reason.UNWRITTEN
    assert why(t.grow(done(begin(state)).state, 0, 7, Step(1), LRU)) is Reason.WENT_BACK


def test_windows_are_trimmed_on_settled_tokens() -> None:
    state = ahead(flown(over((Sliding(2), 2))))
    assert table_of(state) == (1, 2, 3), "nothing is settled"
    state = ahead(settled(state))
    assert table_of(state) == (NULL, NULL, 3, 4)
    assert running(state).trimmed == 5
    assert done(t.trim(state, 0, 5, LRU)).nulled == ((),)


def test_blocks_wait_behind_a_fence_and_return_in_the_same_order() -> None:
    for kinds in (((Full(), 2),), ((Sliding(3), 2),), ((Full(), 2), (Sliding(2), 1)), ((Mamba(1), 2), (Full(), 1))):
        state = flown(over(*kinds))
        at_once = done(t.release(settled(state), 0, LRU)).state
        waits = lawful(done(t.release(state, 0, LRU)).state)
        assert isinstance(waits.requests[0], Absent)
        assert waits.queue == state.queue
        assert [flight.slot for flight in waits.flights[0]] == [None]
        assert settled(waits).queue == at_once.queue
        assert settled(waits).fences == ()


def test_a_fence_is_that_of_the_last_step() -> None:
    state = done(t.preempt(ahead(flown(over())), 0, LRU)).state
    assert [fence.step for fence in state.fences] == [1]
    state = settled(done(begin(state)).state)
    assert [fence.step for fence in state.fences] == [0]
    assert isinstance(state.requests[0], Waiting)
    state = settled(state)
    assert (state.fences, len(state.queue), len(state.flights)) == ((), 15, 1)


def test_publication_waits_for_settlement() -> None:
    state = ahead(flown(over(settles=True)), 3, drafts=2)
    assert state.keys == ()
    state = settled(state)
    assert state.keys == ((1, held(1, 2)), (2, held(1, 2, 3, 4)))
    state = settled(said(state, 6), (0, 2))
    assert state.keys[2:] == ((3, held(1, 2, 3, 4, 5, 6)),)
    eager = ahead(said(flown(over()), 6), 1)
    assert eager.keys == state.keys, "without, when a step is scheduled"


def test_what_ended_in_flight_is_not_published() -> None:
    state = settled(done(t.release(flown(over(settles=True)), 0, LRU)).state)
    assert (state.keys, set(state.contents)) == ((), {None})


def test_a_recurrent_state_is_published_where_its_step_stopped() -> None:
    state = settled(flown(over((Mamba(), 2), settles=True), tokens=(1, 2, 3, 4)))
    assert state.keys == ((1, held(1, 2, 3, 4)),)
    drafted = settled(ahead(settled(flown(over((Mamba(1), 2), settles=True))), 2, drafts=1))
    assert drafted.keys == (), "six certain tokens, of which one is not known"
    assert (
        settled(ahead(settled(flown(over((Mamba(1), 2), settles=True))), 2, drafts=1), (0, 1)[:0] or (0, 1))
        if False
        else True
    )


def test_states_of_drafts() -> None:
    state = initial(Config((Group(Mamba(2), 2),), 8, 20), 3)
    state = lawful(done(t.admit(sent(state, 0, prompt(1, 2, 3)), 0, Hit(), Step(3), LRU)).state)
    assert (table_of(state), running(state).added.states) == ((NULL, 1), ((2, 3),))
    state = done(t.append_output(state, 0, (4,))).state
    state = lawful(done(t.grow(state, 0, 3, Step(3, added=StepAdded(drafts=2)), LRU)).state)
    assert running(state).added.drafts == 2
    assert state.contents[1] == held(1, 2, 3, 4)
    assert (state.keys, state.due) == ((), (0,)), "the step has still to run"
    assert done(begin(state)).state.keys == ((1, held(1, 2, 3, 4)),), "the certain state, no draft"
    one = lawful(done(t.append_output(state, 0, (5, 9), 1)).state)
    assert one.contents[2] == held(1, 2, 3, 4, 5)
    step = lawful(done(t.grow(one, 0, 5, Step(1), LRU)).state)
    assert table_of(step) == (NULL, NULL, 1), "the state read was a draft's, the entry before is dead"
    assert step.contents[1] == held(1, 2, 3, 4, 5, 9)
    none = done(t.append_output(state, 0, (9,))).state
    assert table_of(done(t.grow(none, 0, 4, Step(1), LRU)).state) == (NULL, 1, 4)
    assert done(t.release(step, 0, LRU)).state.queue[0] == 2, "the states of drafts return after the table's"


def test_an_encoder_has_blocks_from_first_to_last() -> None:
    state = initial(Config((Group(Full(), 2), Group(Cross(), 2)), 12, 20, caching=False), 3)
    state = lawful(
        done(t.admit(sent(state, 0, prompt(1, 2, 3)), 0, Hit(), Step(3, added=StepAdded(encoder=5)), LRU)).state
    )
    assert running(state).tables == ((1, 2), (3, 4, 5))
    state = done(t.append_output(state, 0, (4, 5))).state
    step = done(t.grow(state, 0, 3, Step(2), LRU))
    assert (step.new, step.nulled) == (((6,), ()), ((), ()))
    assert done(t.trim(lawful(step.state), 0, 5, LRU)).nulled == ((), ())


# ---------------------------------------------------------------------- loads


def loading(*groups: tuple[Kind, int], external: int = 4, overlaps: bool = False) -> State:
    """A request whose first tokens are being loaded."""
    state = sent(over(*groups, overlaps=overlaps), 0, prompt(1, 2, 3, 4, 5, 6))
    return lawful(done(t.admit(state, 0, Hit(), Step(0, added=StepAdded(external=external)), LRU)).state)


def test_what_is_loaded_is_found_when_it_has_come() -> None:
    state = loading()
    assert (state.keys, running(state).added.loading, table_of(state)) == ((), 4, (1, 2))
    assert hit_of(sent(state, 1, prompt(1, 2, 3, 4, 5)), 1) == Hit()
    state = lawful(done(finish_load(state, 0, 4, LRU)).state)
    assert hit_of(sent(state, 1, prompt(1, 2, 3, 4, 5)), 1) == Hit(4, ((1, 2),))
    assert done(t.grow(state, 0, 4, Step(2), LRU)).new == ((3,),)


@pytest.mark.parametrize(("came", "hit"), [(0, 0), (1, 0), (2, 2), (3, 2)])
def test_what_came_in_part_is_the_next_hit(came: int, hit: int) -> None:
    state = lawful(done(finish_load(loading(), 0, came, LRU)).state)
    assert isinstance(state.requests[0], Waiting)
    assert len(state.queue) == 15
    assert hit_of(done(t.find(state, 0, LRU)).state, 0).length == hit


def test_a_load_brings_what_a_token_after_it_reads() -> None:
    """If it comes in part, a window there may read what was not asked for: that is neither written nor found."""
    both = (Full(), 2), (Sliding(3), 2)
    state = lawful(done(finish_load(loading(*both), 0, 2, LRU)).state)
    assert [content[0] for _, content in state.keys] == [0]
    assert hit_of(done(t.find(state, 0, LRU)).state, 0).length == 0
    whole = lawful(done(finish_load(loading(*both), 0, 4, LRU)).state)
    assert [content for _, content in whole.keys] == [held(1, 2), held(1, 2, 3, 4), (1, held(1, 2, 3, 4)[1])]


def test_a_recurrent_state_comes_whole_or_not_at_all() -> None:
    both = (Full(), 2), (Mamba(), 2)
    assert [content[0] for _, content in done(finish_load(loading(*both), 0, 2, LRU)).state.keys] == [0]
    whole = lawful(done(finish_load(loading(*both), 0, 4, LRU)).state)
    assert [content[0] for _, content in whole.keys] == [0, 0, 1]
    assert [content[0] for _, content in done(finish_load(loading(*both, external=3), 0, 3, LRU)).state.keys] == [0]


def test_a_request_that_ends_while_it_loads() -> None:
    state = loading()
    ended = lawful(done(t.release(state, 0, LRU)).state)
    assert (ended.fences, ended.queue) == ((Fence(None, 0, ((1, 2),)),), state.queue)
    assert is_loading(ended, 0)
    again = sent(ended, 0, prompt(1, 2, 3))
    assert why(t.admit(again, 0, Hit(), Step(0, added=StepAdded(external=2)), LRU)) is Reason.LOADING
    runs = lawful(done(t.admit(again, 0, Hit(), Step(3), LRU)).state)
    after = lawful(done(finish_load(runs, 0, 4, LRU)).state)
    assert (after.requests[0], after.fences) == (runs.requests[0], ())
    assert done(finish_load(ended, 0, 4, LRU)).state.keys == ()


def test_a_load_of_the_whole_prompt_leaves_its_last_token_to_be_computed_again() -> None:
    waiting = sent(over((Sliding(2), 1)), 0, prompt(1, 2, 3, 4))
    state = lawful(done(t.admit(waiting, 0, Hit(), Step(0, added=StepAdded(external=4)), LRU)).state)
    assert [block != NULL for block in running(state).tables[0]] == [False, False, True, True]
    state = lawful(done(finish_load(state, 0, 4, LRU)).state)
    assert (running(state).settled, running(state).published) == (3, (3,))
    lawful(done(t.grow(done(begin(state)).state, 0, 3, Step(1), LRU)).state)
    assert (
        why(t.admit(sent(over((Mamba(), 2)), 0, prompt(1, 2)), 0, Hit(), Step(0, added=StepAdded(external=2)), LRU))
        is Reason.LOAD_ALONE
    )


# ---------------------------------------------------------------------- refusals


def refused_in_time() -> Iterator[tuple[Reason, Outcome]]:
    """A call refused for each reason that time has."""
    waiting, flying, load = sent(over(), 0, prompt(1, 2, 3)), flown(over()), loading()
    drafted, recurrent = ahead(settled(flying), 3, drafts=2), ahead(settled(flown(over((Mamba(1), 2)))), 2, drafts=1)
    yield Reason.NO_STEP, settle(over(), (), LRU)
    yield Reason.NO_STEP, t.admit(waiting, 0, Hit(), Step(3), LRU)
    yield Reason.NO_STEP, t.grow(settled(flying), 0, 5, Step(1), LRU)
    yield Reason.REPEATED, t.grow(flying, 0, 5, Step(1), LRU)
    for rejected in (((0, 1),), ((0, -1),), ((1, 0),), ((1, 1),)):
        yield Reason.NOT_REJECTED, settle(flying, rejected, LRU)
    yield Reason.NOT_REJECTED, settle(drafted, ((0, 3),), LRU)
    yield Reason.NOT_REJECTED, settle(done(t.release(drafted, 0, LRU)).state, ((0, 1),), LRU)
    yield Reason.DRAFTS_IN_FLIGHT, t.grow(done(begin(recurrent)).state, 0, 7, Step(1), LRU)
    yield Reason.DRAFTS_IN_FLIGHT, t.grow(done(begin(settled(recurrent))).state, 0, 7, Step(1), LRU)
    yield Reason.STATE_DRAFTED, t.grow(done(begin(flown(over((Mamba(1), 2))))).state, 0, 5, Step(2), LRU)
    yield (
        Reason.STATE_DRAFTED,
        t.grow(done(begin(flown(over((Mamba(1), 2))))).state, 0, 5, Step(3, added=StepAdded(drafts=2)), LRU),
    )
    yield Reason.UNSETTLED, t.trim(flying, 0, 1, LRU)
    yield Reason.UNSETTLED, t.publish(flown(over(settles=True)), 0, 2)
    yield Reason.WENT_BACK, t.grow(done(begin(flying)).state, 0, 4, Step(1), LRU)
    yield Reason.LOAD_ALONE, t.admit(waiting, 0, Hit(), Step(1, added=StepAdded(external=1)), LRU)
    yield Reason.LOAD_ALONE, t.admit(waiting, 0, Hit(), Step(0, added=StepAdded(external=4)), LRU)
    yield Reason.RUNS, t.grow(flying, 0, 0, Step(0, added=StepAdded(external=1)), LRU)
    yield Reason.LOADING, t.grow(load, 0, 0, Step(1), LRU)
    yield Reason.NO_LOAD, finish_load(load, 0, 5, LRU)
    yield Reason.NO_LOAD, finish_load(load, 0, -1, LRU)
    yield Reason.NO_LOAD, finish_load(load, 1, 1, LRU)
    yield Reason.NO_LOAD, finish_load(done(finish_load(load, 0, 4, LRU)).state, 0, 4, LRU)
    short = replace(LRU, order=lambda batch: ())
    yield Reason.ILLEGAL_CHOICE, settle(done(t.release(flying, 0, LRU)).state, (), short)
    yield Reason.ILLEGAL_CHOICE, finish_load(done(t.release(load, 0, LRU)).state, 0, 0, short)


@pytest.mark.parametrize(("reason", "outcome"), list(refused_in_time()), ids=lambda each: getattr(each, "name", ""))
def test_call_is_refused_for_its_reason(reason: Reason, outcome: Outcome) -> None:
    assert why(outcome) is reason


def test_flights_tell_what_they_touch() -> None:
    state = flown(over((Mamba(2), 2), (Full(), 2)))
    assert state.flights == ((Flight(0, 0, 5, ((0, 0, 1, 5, 6), (2, 3, 4))),),)
    assert isinstance(settle(state, (), LRU), Done)

"""Property: forks share every block until one writes, what it writes to is copied first, no copy is lost.

How: short stories with known outcomes, for each kind of layer, for models of two groups, with steps in flight, drafts
and publication put off: who holds what, what is copied, from where and to where, and when both ends are let go; every
law after each call, those of steps too. One refusal of every reason that forks have.
Not covered: every order of calls (the explorer visits them all).
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.spec.stories import admitted, done, held, hit_of, manager, prompt, running, sent, table_of, why
from tests.spec.test_flights import ahead, flown, loading, over, refused_in_time, settled
from tests.spec.test_transitions import refused

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.in_time.forks import fork, take_copies
from blockwright_spec.manager.laws import LAWS, STEP_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Publication, Reason, Refusal, Step
from blockwright_spec.manager.state import NULL, Absent, Config, Hit, State, holders, initial, sharers
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Chunked, Cross, Full, Group, Kind, Mamba, Prefix, Sliding


def lawful(before: State, outcome: Outcome) -> Done:
    """A step that must happen, and keeps every law."""
    step = done(outcome)
    assert [law.id for law in LAWS if not law.holds(step.state)] == []
    assert [law.id for law in STEP_LAWS if not law.holds(before, step)] == []
    return step


def forked(state: State, parent: int = 0, child: int = 1, *more: int) -> State:
    """The state with a fork: the child has the parent's computed tokens, and `more`."""
    one = running(state, parent)
    prefix = one.prefix[0], one.prefix[1][: one.computed] + more
    return forked_as(state, prefix, parent, child)


def forked_as(state: State, prefix: Prefix, parent: int = 0, child: int = 1) -> State:
    arrived = done(t.arrive(state, child, prefix)).state
    return lawful(arrived, fork(arrived, parent, child, LRU)).state


def wrote(state: State, slot: int, *tokens: int, step: Step | None = None) -> State:
    """The state after a request has said tokens and computed them."""
    state = done(t.append_output(state, slot, tokens)).state
    return lawful(state, t.grow(state, slot, running(state, slot).computed, step or Step(len(tokens)), LRU)).state


def reported(state: State) -> State:
    """The state after the engine was told of the copies."""
    step = done(take_copies(state, LRU))
    assert step.state.copies == ()
    assert [law.id for law in LAWS if not law.holds(step.state)] == []
    return step.state


def hybrid(*groups: tuple[Kind, int], blocks: int = 16, caching: bool = True) -> State:
    return initial(Config(tuple(Group(*group) for group in groups), blocks, 20, caching), 3)


# ---------------------------------------------------------------------- sharing and copying


def test_a_fork_shares_every_block() -> None:
    state = forked(admitted(manager(), 0, prompt(1, 2, 3)))
    assert running(state, 1) == running(state, 0)
    assert table_of(state, 1) == (1, 2)
    assert [sharers(state, block) for block in (1, 2)] == [2, 2]
    assert state.queue == (3, 4, 5, 6, 7)


def test_the_first_writer_copies_and_the_last_writes_in_place() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 8)
    assert (table_of(state, 0), table_of(state, 1)) == ((1, 3), (1, 2))
    assert state.copies == ((0, 2, 3),)
    assert (state.contents[2], state.contents[3]) == (held(1, 2, 3), held(1, 2, 3, 8))
    state = wrote(state, 1, 9)
    assert (table_of(state, 1), state.copies) == ((1, 2), ((0, 2, 3),)), "nobody else holds it any more"
    assert state.contents[2] == held(1, 2, 3, 9)


def test_the_copy_is_counted_told_and_taken() -> None:
    state = forked(admitted(manager(blocks=4), 0, prompt(1, 2, 3)))
    state = done(t.append_output(state, 1, (9, 9))).state
    assert why(t.grow(state, 1, 3, Step(2), LRU)) is Reason.NO_FREE_BLOCKS, "a copy and a new block, one is free"
    step = lawful(state, t.grow(state, 1, 3, Step(1), LRU))
    assert (step.new, step.demand, step.copied, step.state.queue) == (((),), 1, (1,), ())


def test_three_forks_copy_twice_from_one_source() -> None:
    state = forked(forked(admitted(manager(), 0, prompt(1, 2, 3))), 1, 2)
    state = wrote(wrote(wrote(state, 2, 7), 0, 8), 1, 9)
    assert [table_of(state, slot) for slot in range(3)] == [(1, 4), (1, 2), (1, 3)]
    assert state.copies == ((0, 2, 3), (0, 2, 4))
    assert holders(state, 2) == 3
    assert [holders(reported(state), block) for block in (1, 2, 3, 4)] == [3, 1, 1, 1]


def test_whole_blocks_are_never_copied() -> None:
    state = forked(admitted(manager(), 0, prompt(1, 2)))
    state = wrote(wrote(state, 0, 8), 1, 9)
    assert (table_of(state, 0), table_of(state, 1), state.copies) == ((1, 2), (1, 3), ())


def test_a_child_may_know_more_than_was_computed() -> None:
    state = forked(admitted(manager(), 0, prompt(1, 2, 3)), 0, 1, 5, 6, 7)
    step = lawful(state, t.grow(state, 1, 3, Step(3), LRU))
    assert (step.new, step.copied) == (((4,),), (1,))
    assert step.state.contents[4] == held(1, 2, 3, 5, 6, 7)
    assert table_of(step.state, 0) == (1, 2)


def test_a_fork_of_a_fork_that_has_written() -> None:
    state = reported(wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 1, 9, 9))
    state = wrote(forked(state, 1, 2), 2, 7)
    assert [table_of(state, slot) for slot in range(3)] == [(1, 2), (1, 3, 4), (1, 3, 5)]
    assert state.copies == ((0, 4, 5),)


def test_slots_ahead_are_the_parents_own() -> None:
    state = sent(manager(), 0, prompt(1, 2))
    state = forked(lawful(state, t.admit(state, 0, Hit(), Step(2, lookahead=3), LRU)).state)
    assert (table_of(state, 0), table_of(state, 1)) == ((1, 2, 3), (1,))
    assert wrote(state, 0, 8).copies == ()


def test_drafts_of_the_parent_are_given_up() -> None:
    state = sent(manager(), 0, prompt(1, 2, 3))
    state = done(t.admit(state, 0, Hit(), Step(5, added=StepAdded(drafts=2)), LRU)).state
    state = forked(done(t.append_output(state, 0, (4, 9), 1)).state)
    assert [(running(state, slot).written, running(state, slot).added.drafts) for slot in (0, 1)] == [(4, 0)] * 2
    assert (table_of(state, 0), table_of(state, 1)) == ((1, 2, 3), (1, 2))
    assert why(t.grow(state, 0, 5, Step(1), LRU)) is Reason.UNWRITTEN
    assert wrote(state, 1, 9).copies == (), "the accepted draft filled a block"


# ---------------------------------------------------------------------- kinds


def test_windows_are_shared_as_far_as_they_are_kept() -> None:
    state = forked(wrote(admitted(manager(Sliding(3)), 0, prompt(1, 2, 3, 4, 5, 6)), 0, 7))
    assert (table_of(state, 0), table_of(state, 1)) == ((NULL, NULL, 3, 4),) * 2
    state = wrote(wrote(state, 1, 8, 9), 0, 8)
    assert (table_of(state, 1), table_of(state, 0)) == ((NULL, NULL, 3, 5, 6), (NULL, NULL, 3, 4))
    assert state.copies == ((0, 4, 5),)
    state = wrote(wrote(state, 0, 9), 1, 1)
    assert (table_of(state, 0)[2], table_of(state, 1)[2]) == (NULL, NULL)
    assert holders(state, 3) == 0


def test_chunks_are_shared() -> None:
    state = wrote(forked(admitted(manager(Chunked(4)), 0, prompt(1, 2, 3))), 0, 4)
    assert (table_of(state, 0), table_of(state, 1), state.copies) == ((1, 3), (1, 2), ((0, 2, 3),))
    state = wrote(state, 0, 5)
    assert (table_of(state, 0), table_of(state, 1)) == ((NULL, NULL, 4), (1, 2))
    assert [holders(state, block) for block in (1, 2, 3)] == [1, 2, 1]


@pytest.mark.parametrize("caching", [True, False])
def test_a_state_within_a_block_is_copied(caching: bool) -> None:
    state = forked(admitted(manager(Mamba(), caching=caching), 0, prompt(1, 2, 3)))
    state = wrote(wrote(state, 1, 8), 0, 9)
    assert state.copies == ((0, table_of(state, 0)[-1], table_of(state, 1)[-1]),)
    assert state.contents[table_of(state, 1)[-1]] == held(1, 2, 3, 8)
    assert state.contents[table_of(state, 0)[-1]] == held(1, 2, 3, 9)


def test_a_state_at_a_boundary_is_read_by_both_and_copied_by_none() -> None:
    state = forked(admitted(manager(Mamba()), 0, prompt(1, 2)))
    state = wrote(wrote(state, 1, 8), 0, 9)
    assert (table_of(state, 0), table_of(state, 1), state.copies) == ((1, 3), (1, 2), ())


def test_states_of_drafts_are_the_forks_own() -> None:
    state = forked(admitted(manager(Mamba(2)), 0, prompt(1, 2, 3)))
    assert (running(state, 0).added.states, running(state, 1).added.states) == (((2, 3),), ((4, 5),))
    assert table_of(state, 0) == table_of(state, 1) == (NULL, 1)
    state = done(t.append_output(state, 1, (4,))).state
    state = lawful(state, t.grow(state, 1, 3, Step(3, added=StepAdded(drafts=2)), LRU)).state
    assert (table_of(state, 1), state.copies) == ((NULL, 6), ((0, 1, 6),))
    for blocks, outcome in ((5, Refusal(Reason.NO_FREE_BLOCKS, 1)), (4, Refusal(Reason.NO_FREE_BLOCKS, 2))):
        tight = admitted(manager(Mamba(2), blocks=blocks), 0, prompt(1, 2, 3))
        assert fork(done(t.arrive(tight, 1, prompt(1, 2, 3))).state, 0, 1, LRU) == outcome


def test_every_group_copies_its_own_block() -> None:
    state = hybrid((Full(), 4), (Sliding(3), 2), (Mamba(), 2))
    state = forked(admitted(state, 0, prompt(1, 2, 3, 4, 5)))
    assert running(state, 0).tables == running(state, 1).tables == ((1, 2), (3, 4, 5), (NULL, NULL, 6))
    step = done(t.append_output(state, 0, (6,))).state
    grown = lawful(step, t.grow(step, 0, 5, Step(1), LRU))
    assert grown.copied == (1, 2, 2)
    assert [group for group, _, _ in grown.state.copies] == [0, 1, 2]
    assert [source for _, source, _ in grown.state.copies] == [2, 5, 6]
    assert running(grown.state, 0).tables[1][0] == NULL
    assert running(grown.state, 1).tables == ((1, 2), (3, 4, 5), (NULL, NULL, 6))


def test_only_groups_with_a_partial_block_copy() -> None:
    state = forked(admitted(hybrid((Full(), 1), (Full(), 2)), 0, prompt(1, 2, 3)))
    state = wrote(state, 1, 4)
    assert running(state, 0).tables == ((1, 2, 3), (4, 5))
    assert running(state, 1).tables == ((1, 2, 3, 7), (4, 6))
    assert state.copies == ((1, 5, 6),)


def test_what_an_encoder_left_is_shared_for_good() -> None:
    state = sent(hybrid((Full(), 2), (Cross(), 2), caching=False), 0, prompt(1, 2, 3))
    state = lawful(state, t.admit(state, 0, Hit(), Step(3, added=StepAdded(encoder=3)), LRU)).state
    state = wrote(wrote(forked(state), 0, 8), 1, 9)
    assert running(state, 0).tables[1] == running(state, 1).tables[1] == (3, 4)
    assert [group for group, _, _ in state.copies] == [0]


# ---------------------------------------------------------------------- publication


def test_full_blocks_shared_unpublished_are_published_once() -> None:
    state = sent(manager(), 0, prompt(1, 2, 3, 4, 5))
    step = Step(5, publication=Publication.LATER)
    state = forked(lawful(state, t.admit(state, 0, Hit(), step, LRU)).state)
    assert (state.keys, running(state, 1).published) == ((), (0,))
    state = wrote(state, 1, 9)
    assert state.keys == ((1, held(1, 2)), (2, held(1, 2, 3, 4)), (4, held(1, 2, 3, 4, 5, 9)))
    state = lawful(state, t.publish(state, 0, 5)).state
    assert (len(state.keys), running(state, 0).published) == (3, (2,)), "its blocks are published already"
    state = wrote(state, 0, 9)
    assert state.keys[3] == (3, held(1, 2, 3, 4, 5, 9)), "a duplicate: both have written the same"


def test_a_hit_on_what_a_fork_filled() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 4)
    assert hit_of(sent(state, 2, prompt(1, 2, 3, 4, 5)), 2) == Hit(4, ((1, 3),))


def test_common_prefix_counts_no_copies() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 8)
    assert common_prefix_blocks(state, 0, 0, 2) == 1
    assert common_prefix_blocks(state, 1, 0, 1) == 0
    alone = done(t.release(state, 0, LRU)).state
    assert common_prefix_blocks(alone, 1, 0, 1) == 2, "the copy from it does not read on"


# ---------------------------------------------------------------------- copies to come


def test_copies_hold_both_ends() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 8, 9)
    ended = lawful(state, t.release(state, 1, LRU)).state
    assert holders(ended, 2) == 1
    assert 2 not in ended.queue, "the source waits to be copied"
    gone = lawful(ended, t.release(ended, 0, LRU)).state
    assert set(gone.queue) == {1, 4, 5, 6, 7}
    assert why(t.reset(gone)) is Reason.BLOCKS_HELD
    free = reported(gone)
    assert sorted(free.queue) == [1, 2, 3, 4, 5, 6, 7]
    assert done(t.reset(free)).state.keys == ()


def test_a_destination_that_is_given_up_waits_too() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 8)
    state = lawful(state, t.release(state, 0, LRU)).state
    assert (holders(state, 3), holders(state, 2)) == (1, 2)
    assert set(reported(state).queue) == {3, 4, 5, 6, 7}


def test_copies_are_taken_once_and_in_order() -> None:
    state = forked(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 2)
    state = wrote(wrote(state, 0, 8), 1, 9)
    assert state.copies == ((0, 2, 3), (0, 2, 4))
    after = reported(state)
    assert done(take_copies(after, LRU)).state == after
    assert running(after, 0) == running(state, 0)


def test_all_that_is_held_returns() -> None:
    start = hybrid((Full(), 2), (Mamba(1), 2))
    state = forked(forked(admitted(start, 0, prompt(1, 2, 3))), 1, 2)
    for slot in (2, 0, 1):
        state = wrote(state, slot, slot)
    for slot in range(3):
        state = lawful(state, t.release(state, slot, LRU)).state
    state = reported(state)
    assert state.requests == (Absent(),) * 3
    assert sorted(state.queue) == list(range(1, 16))


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("settles", [False, True])
def test_what_is_settled_is_forked(settles: bool) -> None:
    state = forked(settled(flown(over(settles=settles))))
    assert running(state, 1).settled == 5
    state = ahead(done(t.append_output(state, 0, (6,))).state)
    assert (table_of(state, 0), table_of(state, 1)) == ((1, 2, 4), (1, 2, 3))
    assert state.copies == ((0, 3, 4),)
    ended = done(t.release(state, 0, LRU)).state
    assert [fence.tables for fence in ended.fences] == [((1, 2, 4),)]
    assert 4 not in settled(ended).queue, "the copy to it is still to come"
    assert 4 in reported(settled(ended)).queue


# ---------------------------------------------------------------------- refusals


def refused_forks() -> Iterator[tuple[Reason, Outcome]]:
    """A fork refused for each reason, and copies let go in no order that is open."""

    def ask(state: State, *tokens: int, choice: Choice = LRU, extra: int = 0) -> Outcome:
        return fork(done(t.arrive(state, 1, (extra, tokens))).state, 0, 1, choice)

    state = admitted(manager(), 0, prompt(1, 2, 3))
    yield Reason.NOT_RUNNING, ask(manager(), 1, 2, 3)
    yield Reason.NOT_RUNNING, ask(done(t.preempt(state, 0, LRU)).state, 1, 2, 3)
    yield Reason.NOT_WAITING, fork(state, 0, 1, LRU)
    yield Reason.NOT_WAITING, fork(state, 0, 0, LRU)
    yield Reason.NOT_WAITING, fork(forked(state), 0, 1, LRU)
    yield Reason.LOADING, ask(loading(), 1, 2, 3, 4, 5, 6)
    yield Reason.UNSETTLED, ask(flown(over()), 1, 2, 3, 4, 5)
    yield Reason.UNSETTLED, ask(settled(ahead(settled(flown(over())))), 1, 2, 3, 4, 5)
    yield Reason.NOT_A_FORK, ask(state, 1, 2)
    yield Reason.NOT_A_FORK, ask(state, 1, 2, 4)
    yield Reason.NOT_A_FORK, ask(state, 1, 2, 3, extra=1)
    drafted = sent(manager(Mamba(1)), 0, prompt(1, 2, 3))
    drafted = done(t.admit(drafted, 0, Hit(), Step(4, added=StepAdded(drafts=1)), LRU)).state
    accepted = done(t.append_output(drafted, 0, (4, 5), 1)).state
    yield Reason.STATE_ELSEWHERE, ask(accepted, 1, 2, 3, 4)
    yield Reason.STATE_ELSEWHERE, ask(done(t.trim(accepted, 0, 4, LRU)).state, 1, 2, 3, 4)
    flying = settled(ahead(settled(flown(over((Mamba(1), 2)))), 2, drafts=1))
    yield Reason.STATE_ELSEWHERE, ask(done(t.append_output(flying, 0, (6, 7))).state, 1, 2, 3, 4, 5, 6, 7)
    drafted = wrote(state, 0, 4, step=Step(3))
    yield Reason.WENT_BACK, ask(done(t.trim(drafted, 0, 5, LRU)).state, 1, 2, 3, 4)
    parted = wrote(forked(state, 0, 2), 0, 8)
    yield Reason.UNCOPIED, ask(parted, 1, 2, 3, 8)
    yield Reason.NO_FREE_BLOCKS, ask(admitted(manager(Mamba(2), blocks=5), 0, prompt(1, 2, 3)), 1, 2, 3)
    recurrent = admitted(manager(Mamba(2)), 0, prompt(1, 2, 3))
    yield Reason.ILLEGAL_CHOICE, ask(recurrent, 1, 2, 3, choice=replace(LRU, take=lambda queue, count: (1,) * count))
    yield Reason.ILLEGAL_CHOICE, take_copies(parted, replace(LRU, order=lambda batch: ()))


@pytest.mark.parametrize(("reason", "outcome"), list(refused_forks()), ids=lambda each: getattr(each, "name", ""))
def test_fork_is_refused_for_its_reason(reason: Reason, outcome: Outcome) -> None:
    assert why(outcome) is reason


def test_every_reason_is_given() -> None:
    assert {reason for reason, _ in (*refused(), *refused_in_time(), *refused_forks())} == set(Reason)


def test_the_source_of_a_copy_may_be_forked() -> None:
    state = wrote(forked(admitted(manager(), 0, prompt(1, 2, 3))), 0, 8)
    assert table_of(forked(state, 1, 2), 2) == (1, 2)

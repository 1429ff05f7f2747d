"""Property: each transition does what the call of that name is known to do.

How: short stories with known outcomes: which blocks are taken and in what order they return, what is published, what
a hit adopts; choices that are not legal are refused.
Not covered: every order of calls and every reason of a refusal (the explorer visits them all).
"""

from dataclasses import replace

import pytest
from tests.spec.stories import admitted, both, done, held, hit_of, manager, prompt, running, sent, table_of, why

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.choices import Choice, recorded
from blockwright_spec.manager.in_time.in_flight import begin
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Publication, Reason, Step
from blockwright_spec.manager.state import NULL, Absent, Hit, Waiting, holders, key
from blockwright_spec.manager.table_laws import common_prefix_blocks
from blockwright_spec.reads import Mamba, Sliding


def test_a_prompt_takes_blocks_in_order_and_publishes_the_full_ones() -> None:
    state = admitted(manager(), 0, prompt(1, 2, 3, 4, 5))
    assert table_of(state) == (1, 2, 3)
    assert state.queue == (4, 5, 6, 7)
    assert state.keys == ((1, held(1, 2)), (2, held(1, 2, 3, 4)))
    assert state.contents[3] == held(1, 2, 3, 4, 5)
    assert running(state).published == (2,)


def test_a_hit_is_shared_and_its_holders_are_counted() -> None:
    state = admitted(admitted(manager(), 0, prompt(1, 2, 3, 4, 5)), 1, prompt(1, 2, 3, 4, 6))
    assert table_of(state, 1) == (1, 2, 4)
    assert [holders(state, block) for block in (1, 2, 3, 4, 5)] == [2, 2, 1, 1, 0]
    assert [common_prefix_blocks(state, slot, 0, 2) for slot in (0, 1, 2)] == [2, 2, 0]
    assert common_prefix_blocks(state, 0, 0, 1) == 0


def test_extra_keys_separate_prefixes() -> None:
    state = admitted(manager(), 0, prompt(1, 2, 3, 4, 5))
    assert hit_of(sent(state, 1, (1, (1, 2, 3, 4, 5))), 1) == Hit()
    assert hit_of(sent(state, 1, (0, (1, 2, 3, 4, 5))), 1) == Hit(4, ((1, 2),))


def test_release_queues_contentless_blocks_first_and_candidates_last_tail_first() -> None:
    state = admitted(manager(), 0, prompt(1, 2, 3, 4, 5))
    state = done(t.release(state, 0, LRU)).state
    assert state.queue == (3, 4, 5, 6, 7, 2, 1)
    assert key(state, 1) == held(1, 2)
    assert isinstance(state.requests[0], Absent)


def test_without_caching_the_first_block_of_a_table_is_the_next_taken() -> None:
    state = admitted(manager(caching=False), 0, prompt(1, 2, 3, 4, 5))
    assert done(t.release(state, 0, LRU)).state.queue == (1, 2, 3, 4, 5, 6, 7)


def test_taking_a_candidate_drops_its_key_alone() -> None:
    state = admitted(manager(blocks=4), 0, prompt(1, 2, 3, 4, 5))
    state = done(t.release(state, 0, LRU)).state
    state = admitted(state, 1, prompt(6, 7, 8))
    assert table_of(state, 1) == (3, 2)
    assert key(state, 1) == held(1, 2)
    assert key(state, 2) is None


def test_a_free_hit_leaves_the_queue_and_counts_as_demand() -> None:
    state = done(t.release(admitted(manager(blocks=4), 0, prompt(1, 2, 3, 4, 5)), 0, LRU)).state
    state = sent(state, 1, prompt(1, 2, 3, 4, 5, 6, 7))
    assert why(t.admit(state, 1, hit_of(state, 1), Step(3), LRU)) is Reason.POOL_TOO_SMALL
    after = done(t.admit(state, 1, hit_of(state, 1), Step(2), LRU)).state
    assert table_of(after, 1) == (1, 2, 3)
    assert after.queue == ()


def test_the_oldest_copy_serves_until_it_loses_its_key() -> None:
    state = manager(size=1, blocks=5)
    state = admitted(admitted(state, 0, prompt(1)), 1, prompt(1))
    assert state.keys == ((1, held(1)), (2, held(1)))
    assert hit_of(sent(state, 2, prompt(1, 2)), 2).tables == ((1,),)
    state = done(t.release(state, 0, LRU)).state
    state = admitted(state, 0, prompt(5, 6, 7))
    assert table_of(state) == (3, 4, 1)
    assert hit_of(sent(state, 2, prompt(1, 2)), 2).tables == ((2,),)


def test_a_window_trims_before_it_counts() -> None:
    state = admitted(manager(Sliding(2), blocks=4), 0, prompt(1, 2, 3, 4, 5, 6))
    state = done(t.append_output(state, 0, (7,))).state
    step = done(t.grow(state, 0, 6, Step(1), LRU))
    assert step.nulled == ((0, 1),)
    assert step.new == ((2,),), "blocks return tail first, and the first to return is taken"
    assert table_of(step.state) == (NULL, NULL, 3, 2)


def test_a_refusal_trims_nothing() -> None:
    state = admitted(manager(Sliding(2), blocks=5), 0, prompt(1, 2, 3, 4))
    state = admitted(state, 1, prompt(5, 6, 7, 8))
    state = done(t.append_output(state, 0, (0,) * 8)).state
    assert why(t.grow(state, 0, 4, Step(6), LRU)) is Reason.NO_FREE_BLOCKS
    assert table_of(state) == (1, 2)


def test_explicit_trim() -> None:
    state = admitted(manager(Sliding(2)), 0, prompt(1, 2, 3, 4, 5))
    after = done(t.trim(state, 0, 5, LRU))
    assert after.nulled == ((0, 1),)
    assert after.state.queue == (4, 5, 6, 7, 2, 1)
    assert done(t.trim(after.state, 0, 5, LRU)).state == after.state


def test_drafts_are_given_slots_and_never_published() -> None:
    state = admitted(manager(), 0, prompt(1, 2, 3))
    state = done(t.append_output(state, 0, (4,))).state
    state = done(t.grow(state, 0, 3, Step(3), LRU)).state
    assert table_of(state) == (1, 2, 3)
    assert (running(state).computed, running(state).written) == (4, 6)
    assert [content for _, content in state.keys] == [held(1, 2), held(1, 2, 3, 4)]
    accepted = done(t.append_output(state, 0, (5, 6, 7), 2)).state
    assert running(accepted).computed == 6
    assert accepted.contents[3] == held(1, 2, 3, 4, 5, 6)
    rejected = done(t.append_output(state, 0, (9,))).state
    assert running(rejected).computed == 4
    assert why(t.append_output(rejected, 0, (9,), 1)) is Reason.UNWRITTEN


def test_lookahead_takes_slots_up_to_the_maximum_length() -> None:
    state = sent(manager(), 0, prompt(1, 2, 3))
    assert len(table_of(done(t.admit(state, 0, Hit(), Step(3, 4), LRU)).state)) == 4
    assert len(table_of(done(t.admit(state, 0, Hit(), Step(3, 40), LRU)).state)) == 6


def test_publication_can_be_put_off() -> None:
    state = sent(manager(), 0, prompt(1, 2, 3, 4, 5))
    state = done(t.admit(state, 0, Hit(), Step(5, 0, Publication.LATER), LRU)).state
    assert (state.keys, running(state).published) == ((), (0,))
    part = done(t.publish(state, 0, 3)).state
    assert part.keys == ((1, held(1, 2)),)
    assert done(t.publish(part, 0, 5)).state.keys == ((1, held(1, 2)), (2, held(1, 2, 3, 4)))


def test_a_recurrent_layer_materialises_one_state_a_step() -> None:
    state = admitted(manager(Mamba()), 0, prompt(1, 2, 3, 4, 5))
    assert table_of(state) == (NULL, NULL, 1)
    assert state.keys == (), "five tokens end inside a block"
    state = done(t.append_output(state, 0, (6,))).state
    state = done(t.grow(state, 0, 5, Step(1), LRU)).state
    assert (state.keys, state.due) == ((), (0,)), "nobody may hit it in the step that writes it"
    state = done(t.append_output(state, 0, (7, 8, 9))).state
    step = done(t.grow(state, 0, 6, Step(3), LRU))
    assert (step.state.keys, step.state.due) == (((1, held(1, 2, 3, 4, 5, 6)),), ())
    assert table_of(step.state) == (NULL, NULL, 1, NULL, 2), "the state read and the state written are held"
    assert step.new == ((NULL, 2),)


def test_a_recurrent_hit_is_one_state() -> None:
    state = admitted(manager(Mamba()), 0, prompt(1, 2, 3, 4))
    state = sent(state, 1, prompt(1, 2, 3, 4, 5))
    assert hit_of(state, 1) == Hit(), "the step that writes the state has still to run"
    for run in (done(begin(state)).state, done(t.release(state, 0, LRU)).state, done(t.publish(state, 0, 4)).state):
        assert hit_of(done(t.find(run, 1, LRU)).state, 1) == Hit(4, ((NULL, 1),))


def test_a_recurrent_layer_without_caching_has_one_block() -> None:
    state = admitted(manager(Mamba(), caching=False), 0, prompt(*range(9)))
    assert table_of(state) == (1,)
    state = done(t.append_output(state, 0, (1, 2))).state
    step = done(t.grow(state, 0, 9, Step(2), LRU))
    assert (step.new, table_of(step.state)) == (((),), (1,))


def test_eagle_drops_the_last_block_of_a_hit() -> None:
    state = admitted(manager(eagle=True), 0, prompt(1, 2, 3, 4, 5, 6, 7))
    assert hit_of(sent(state, 1, prompt(1, 2, 3, 4, 5, 6, 7)), 1) == Hit(4, ((1, 2),))


def test_preemption_keeps_the_tokens_and_the_cache() -> None:
    state = done(t.append_output(admitted(manager(), 0, prompt(1, 2, 3, 4, 5)), 0, (6,))).state
    state = done(t.preempt(state, 0, LRU)).state
    assert state.requests[0] == Waiting(prompt(1, 2, 3, 4, 5, 6))
    assert hit_of(done(t.find(state, 0, LRU)).state, 0) == Hit(4, ((1, 2),))


def test_reset_forgets_keys_and_keeps_the_queue() -> None:
    state = done(t.release(admitted(manager(), 0, prompt(1, 2, 3, 4, 5)), 0, LRU)).state
    after = done(t.reset(state)).state
    assert (after.keys, after.queue) == ((), state.queue)
    assert set(after.contents) == {None}


ILLEGAL: list[Choice] = [
    replace(LRU, take=lambda queue, count: (*queue[:count][::-1], 1)),
    replace(LRU, take=lambda queue, count: (1,) * count),
    replace(LRU, take=lambda queue, count: (queue[0],) * count),
    recorded((), (), LRU),
]


@pytest.mark.parametrize("choice", ILLEGAL)
def test_taking_what_is_not_free_is_refused(choice: Choice) -> None:
    state = sent(admitted(manager(), 0, prompt(1)), 1, prompt(5, 6, 7))
    assert why(t.admit(state, 1, Hit(), Step(3), choice)) is Reason.ILLEGAL_CHOICE


def test_serving_what_is_not_published_is_refused() -> None:
    state = admitted(manager(), 0, prompt(1, 2, 3))
    state = done(t.arrive(state, 1, prompt(1, 2, 3))).state
    assert why(t.find(state, 1, replace(LRU, serve=lambda holders: 2))) is Reason.ILLEGAL_CHOICE


def test_any_free_blocks_may_be_taken_in_any_order() -> None:
    state = sent(manager(), 0, prompt(1, 2, 3))
    after = done(t.admit(state, 0, Hit(), Step(3), recorded((6, 2), (), LRU)))
    assert table_of(after.state) == (6, 2)
    assert after.state.queue == (1, 3, 4, 5, 7)


def test_two_groups_take_from_one_pool_side_by_side() -> None:
    state = admitted(both(), 0, prompt(1, 2, 3, 4, 5))
    assert running(state).tables == ((1, 2, 3, 4, 5), (6, 7, 8))
    assert running(state).published == (5, 2)
    assert state.keys[4:] == ((5, held(1, 2, 3, 4, 5)), (6, held(1, 2, group=1)), (7, held(1, 2, 3, 4, group=1)))
    assert state.contents[8] == held(1, 2, 3, 4, 5, group=1)
    assert state.queue == (9, 10, 11)


def test_a_hit_of_two_groups_is_as_long_as_the_shorter_and_aligned_in_both() -> None:
    state = admitted(both(), 0, prompt(1, 2, 3, 4, 5))
    assert hit_of(sent(state, 1, prompt(1, 2, 3, 4, 5, 6)), 1) == Hit(4, ((1, 2, 3, 4), (NULL, 7)))
    assert hit_of(sent(state, 1, prompt(1, 2, 3, 4)), 1) == Hit(2, ((1, 2), (6,)))
    state = admitted(state, 1, prompt(1, 2, 3, 4, 9))
    assert running(state, 1).tables == ((1, 2, 3, 4, 9), (NULL, 7, 10))
    assert [common_prefix_blocks(state, 0, group, 2) for group in (0, 1)] == [4, 0], "a window shares no prefix"
    state = done(t.release(state, 1, LRU)).state
    assert [holders(state, block) for block in (4, 7, 9, 10)] == [1, 1, 0, 0]


def test_a_hit_must_hold_in_every_group() -> None:
    state = sent(admitted(both(), 0, prompt(1, 2, 3, 4, 5)), 1, prompt(1, 2, 3, 4, 5, 6))
    short = Hit(4, ((1, 2, 3, 4), (6,)))
    assert why(t.admit(state, 1, short, Step(2), LRU)) is Reason.HIT_LENGTH
    for tables in (((1, 2, 3, 4), (NULL, 6)), ((1, 2, 3, 7), (NULL, 7)), ((1, 2, 3, 4), (NULL, 4))):
        assert why(t.admit(state, 1, Hit(4, tables), Step(2), LRU)) is Reason.HIT_STALE

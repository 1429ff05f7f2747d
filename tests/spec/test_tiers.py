"""Property: each call on a tier does what the call of that name is known to do; every law of tiers holds, and can fail.

How: short stories with known outcomes, one refusal of every reason; then good states are reached by calls, and one
thing is broken by hand for each law, which must notice. Laws of calls are shown calls whose outcome was altered.
Not covered: every order of calls (the explorer visits them all), and that no call breaks a law (it looks there too).
"""

from dataclasses import replace

import pytest

from blockwright_spec.hints import Said
from blockwright_spec.law import Law
from blockwright_spec.manager.outcomes import When
from blockwright_spec.offload import tier_calls as t
from blockwright_spec.offload.tier_calls import IllegalVictimsError, TierDone, TierOutcome, TierReason, TierRefusal
from blockwright_spec.offload.tier_laws import TIER_LAWS, TIER_STEP_LAWS
from blockwright_spec.offload.tier_state import (
    Entry,
    Event,
    Key,
    Phase,
    Tier,
    going,
    idle,
    num_free,
    phase_of,
    places,
    ready,
    said_of,
    tier,
)

A, B, C, D = b"a", b"b", b"c", b"d"


def done(outcome: TierOutcome) -> TierDone:
    """A call that must happen."""
    assert isinstance(outcome, TierDone), outcome
    return outcome


def why(outcome: TierOutcome) -> TierReason:
    """The reason of a call that must not happen."""
    assert isinstance(outcome, TierRefusal), outcome
    return outcome.reason


def writing(state: Tier, *keys: Key) -> Tier:
    """The state in which keys are being written, and the bytes are there already."""
    state = done(t.prepare_store(state, keys)).state
    for key, place in zip(keys, places(state, keys), strict=True):
        state = t.written(state, place, key)
    return state


def stored(state: Tier, *keys: Key) -> Tier:
    """The state in which keys are stored."""
    return done(t.complete_store(writing(state, *keys), keys, success=True)).state


def reading(state: Tier, *keys: Key) -> Tier:
    """The state in which keys are read."""
    return done(t.prepare_load(state, keys)).state


FULL = stored(tier(3), A, B, C)
SHARED = t.hinted(replace(FULL, shares=(("a", 1), ("b", 1))), {A: Said("a"), B: Said("b"), C: Said("b")})
KEPT = t.hinted(FULL, {A: Said(None, 2, 9), B: Said(None, 1, 9), C: Said(None, 3, 4)})
"""Tenants of which the second has more than its share; hints."""
READ = reading(FULL, A, A, B)
DOOMED = done(t.complete_load(READ, (A,), success=False)).state
WRITING = writing(stored(tier(3), A), B)


# --- calls


def test_a_block_is_found_once_it_is_completely_written() -> None:
    state = writing(tier(2), A)
    assert t.lookup(state, (A,)) == 0
    finished = done(t.complete_store(state, (A,), success=True))
    assert (t.lookup(finished.state, (A, B)), finished.events) == (1, (Event((A,), removed=False),))
    assert t.lookup(finished.state, (B, A)) == 0, "it counts a leading run"


def test_fresh_places_are_given_first_and_then_the_last_that_was_freed() -> None:
    state = done(t.drop(stored(tier(3), A, B), (A, B))).state
    assert state.freed == (0, 1)
    assert done(t.prepare_store(state, (A, B, C))).places == (2, 1, 0)


def test_only_what_is_not_present_is_stored_and_a_key_named_twice_counts_once() -> None:
    stores = done(t.prepare_store(stored(tier(3), A), (A, B, B)))
    assert (stores.keys, stores.places, stores.evicted) == ((B,), (1,), ())
    assert done(t.prepare_store(FULL, (A, B))).state == FULL


def test_the_least_recently_used_idle_block_goes_that_is_not_named() -> None:
    evicts = done(t.prepare_store(FULL, (A, D)))
    assert (evicts.evicted, evicts.places, evicts.events) == ((B,), (1,), (Event((B,), removed=True),))
    assert done(t.prepare_store(READ, (D,))).evicted == (C,), "those that are read stay"
    assert why(t.prepare_store(READ, (D, b"e"))) is TierReason.NO_ROOM
    assert why(t.prepare_store(FULL, (A, B, C, D))) is TierReason.NO_ROOM


def test_touching_puts_the_first_named_last() -> None:
    assert idle(t.touch(FULL, (A, D, B, A)).state) == (C, B, A)


def test_a_choice_of_victims_is_taken_and_an_illegal_one_rejected() -> None:
    assert done(t.prepare_store(FULL, (D,), lambda keys, count: (C,))).evicted == (C,)
    for wrong in ((), (D,), (A, B)):
        with pytest.raises(IllegalVictimsError):
            t.prepare_store(FULL, (D,), lambda keys, count, wrong=wrong: wrong)  # type: ignore[misc]


def test_readers_are_counted_by_name_and_end_one_by_one() -> None:
    assert [entry.readers for entry in READ.entries] == [2, 1, 0]
    over = done(t.complete_load(READ, (A, B, A), success=True)).state
    assert (over, why(t.complete_load(over, (A,), success=True))) == (FULL, TierReason.NOT_PREPARED)
    assert why(t.complete_load(READ, (B, B), success=True)) is TierReason.NOT_PREPARED


def test_a_bad_block_is_found_no_more_and_gone_with_its_last_reader() -> None:
    failed = done(t.complete_load(READ, (A,), success=False))
    assert (phase_of(failed.state, A), failed.events) == (Phase.DOOMED, (Event((A,), removed=True),))
    assert why(t.prepare_load(failed.state, (A,))) is TierReason.NOT_READY
    assert done(t.prepare_store(failed.state, (A,))).keys == (), "it is present still"
    over = done(t.complete_load(failed.state, (A,), success=True))
    assert (phase_of(over.state, A), over.state.freed, over.events) == (None, (0,), ())


def test_a_failed_store_leaves_nothing() -> None:
    failed = done(t.complete_store(writing(stored(tier(3), A), B, C), (B, C, A), success=False))
    assert (ready(failed.state), num_free(failed.state), failed.events) == (frozenset((A,)), 2, ())


def test_only_idle_blocks_are_removed() -> None:
    assert done(t.drop(READ, (C, C))).events == (Event((C,), removed=True),)
    assert why(t.drop(READ, (C, A))) is TierReason.NOT_READY


def test_whatever_else_is_wrong_a_key_without_block_is_told() -> None:
    for call in (t.prepare_load, t.drop):
        assert why(call(WRITING, (B, D))) is TierReason.NOT_PRESENT
    for completes in (t.complete_load, t.complete_store):
        assert why(completes(WRITING, (A, D), success=True)) is TierReason.NOT_PRESENT
    assert why(t.complete_store(WRITING, (A,), success=True)) is TierReason.NOT_PREPARED


def test_shares_and_hints_decide_what_goes_first() -> None:
    assert idle(SHARED) == (B, A, C), "b has one more than its share"
    assert going(SHARED, (), ("a",)) == (A, B, C), "and so would a, with the new one"
    assert going(SHARED, (B,), ()) == (C, A)
    assert idle(KEPT) == (B, A, C)
    assert idle(t.advance(KEPT, 4).state) == (C, B, A), "what is over counts no more"
    assert t.advance(t.advance(KEPT, 4).state, 3).state.now == 4


def test_what_is_said_is_joined() -> None:
    again = t.hinted(SHARED, {A: Said(None, 2, 5), B: Said("c", 0, 9)})
    assert [entry.said for entry in again.entries] == [Said("a", 2, 5), Said("c"), Said("b")]
    more = t.hinted(again, {A: Said("a", 1, 9)})
    assert said_of(more, A) == Said("a", 2, 9)
    assert said_of(t.hinted(t.advance(more, 9).state, {A: Said("a", 1, 10)}), A) == Said("a", 1, 10)
    assert said_of(t.hinted(t.advance(more, 9).state, {A: Said("a", 3, 9)}), A) == Said("a", 2, 9)
    assert said_of(FULL, D) == Said()
    new = done(t.prepare_store(FULL, (B, D), said={B: Said("b"), D: Said("d", 1, 2)}))
    assert (said_of(new.state, B), said_of(new.state, D), new.named) == (Said("b"), Said("d", 1, 2), (B, D))


def test_nothing_named_is_nothing_done() -> None:
    for call in (t.prepare_load, t.prepare_store, t.drop):
        assert done(call(READ, ())).state == READ
    for completes in (t.complete_load, t.complete_store):
        assert done(completes(READ, (), success=True)).state == READ


def test_a_tier_without_places_keeps_nothing() -> None:
    assert why(t.prepare_store(tier(0), (A,))) is TierReason.NO_ROOM
    assert t.lookup(tier(0), (A,)) == 0


def test_what_was_there_before_can_be_found() -> None:
    state = tier(3, (A, B))
    assert (t.lookup(state, (A, B)), done(t.prepare_store(state, (C, D))).evicted) == (2, (A,))


def test_every_reason_says_when() -> None:
    assert {reason.value[0] for reason in TierReason} == {When.NOT_NOW, When.INVALID}


# --- laws

BY_ID = {law.id: law.holds for law in TIER_LAWS}
STEPS_BY_ID = {law.id: law.holds for law in TIER_STEP_LAWS}
GOOD = {"full": FULL, "read": READ, "doomed": DOOMED, "writing": WRITING, "empty": tier(0), "found": tier(2, (A,))}


def entry_changed(state: Tier, at: int, **fields: object) -> Tier:
    """The state with fields of an entry changed."""
    entries = list(state.entries)
    entries[at] = replace(entries[at], **fields)  # type: ignore[arg-type]
    return replace(state, entries=tuple(entries))


BROKEN: list[tuple[str, Tier]] = [
    ("TIER-1", t.written(FULL, 1, None)),
    ("TIER-1", t.written(FULL, 1, A)),
    ("TIER-2", entry_changed(FULL, 0, place=1)),
    ("TIER-2", replace(FULL, freed=(1,))),
    ("TIER-2", replace(FULL, entries=FULL.entries[1:])),
    ("TIER-2", replace(WRITING, freed=(2, 3))),
    ("TIER-3", entry_changed(WRITING, 1, readers=1)),
    ("TIER-3", entry_changed(FULL, 0, readers=-1)),
    ("TIER-3", entry_changed(DOOMED, 0, readers=0)),
    ("TIER-4", replace(FULL, entries=(*FULL.entries, Entry(A, 0, Phase.READY)))),
    ("TIER-5", replace(FULL, announced=frozenset((A, B)))),
    ("TIER-5", entry_changed(FULL, 0, phase=Phase.DOOMED)),
]
"""States that break each law, in each of its parts."""


@pytest.mark.parametrize("law", TIER_LAWS, ids=lambda law: law.id)
@pytest.mark.parametrize("name", GOOD)
def test_law_holds_in_reached_states(law: Law, name: str) -> None:
    assert law.holds(GOOD[name])


@pytest.mark.parametrize(("name", "state"), BROKEN)
def test_law_notices_what_breaks_it(name: str, state: Tier) -> None:
    assert not BY_ID[name](state)


EVICTING = done(t.prepare_store(FULL, (D,)))


def first(candidates: tuple[Key, ...], count: int) -> tuple[Key, ...]:
    """A choice that heeds neither hints nor shares."""
    return (A,)


BROKEN_CALLS: list[tuple[str, Tier, TierDone]] = [
    ("TIER-6", READ, replace(EVICTING, evicted=(A,))),
    ("TIER-6", WRITING, TierDone(WRITING, evicted=(B,))),
    ("TIER-6", FULL, replace(EVICTING, evicted=())),
    ("TIER-7", FULL, TierDone(entry_changed(FULL, 0, place=2))),
    ("TIER-7", FULL, TierDone(replace(FULL, entries=FULL.entries[1:]))),
    ("TIER-8", DOOMED, TierDone(FULL, events=(Event((A,), removed=False),))),
    ("TIER-8", WRITING, TierDone(stored(WRITING, C))),
    ("TIER-9", FULL, TierDone(t.touch(FULL, (A,)).state)),
    ("TIER-9", FULL, TierDone(replace(EVICTING.state, entries=EVICTING.state.entries[::-1]))),
    ("TIER-10", SHARED, done(t.prepare_store(SHARED, (D,), first))),
    ("TIER-11", KEPT, done(t.prepare_store(KEPT, (D,), first))),
]
"""Calls that break each law."""


@pytest.mark.parametrize(("name", "before", "outcome"), BROKEN_CALLS)
def test_law_of_calls_notices_what_breaks_it(name: str, before: Tier, outcome: TierDone) -> None:
    assert not STEPS_BY_ID[name](before, outcome)


def test_every_law_is_broken_once() -> None:
    assert {name for name, _ in BROKEN} == BY_ID.keys()
    assert {name for name, _, _ in BROKEN_CALLS} == STEPS_BY_ID.keys()


@pytest.mark.parametrize("law", TIER_STEP_LAWS, ids=lambda law: law.id)
def test_law_of_calls_holds_for_calls_that_happened(law: Law) -> None:
    calls: list[tuple[Tier, TierOutcome]] = [
        (FULL, EVICTING),
        (FULL, t.touch(FULL, (A,))),
        (WRITING, t.complete_store(WRITING, (B,), success=True)),
        (WRITING, t.complete_store(WRITING, (B,), success=False)),
        (READ, t.complete_load(READ, (A, A), success=False)),
        (SHARED, t.prepare_store(SHARED, (D,))),
        (SHARED, t.prepare_store(SHARED, (B, C, D), said={D: Said("b")})),
        (KEPT, t.prepare_store(KEPT, (B, C, D))),
    ]
    assert all(law.holds(before, done(outcome)) for before, outcome in calls)

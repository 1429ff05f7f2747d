"""Property: each call on a chain moves blocks as it is known to do; every law of chains holds, and can fail.

How: short stories with known outcomes (stores, demotions, promotions, loads that wait, each landing and failing), one
refusal of every reason; then good states are reached by calls, and one thing is broken by hand for each law.
Not covered: every order of calls (the explorer visits them all), and that no call breaks a law (it looks there too).
"""

from dataclasses import replace
from typing import Any

import pytest

from blockwright_spec.hints import Said
from blockwright_spec.law import Law
from blockwright_spec.offload import chain_calls as c
from blockwright_spec.offload.chain_laws import CHAIN_LAWS, CHAIN_STEP_LAWS, OFFLOAD_LAWS
from blockwright_spec.offload.chain_outcomes import ChainDone, ChainOutcome, ChainReason, ChainRefusal
from blockwright_spec.offload.chain_state import Chain, ChainConfig, Kind, Transfer, chain, chain_lookup, pins
from blockwright_spec.offload.tier_state import Key, Phase, Tier, idle, phase_of, ready

A, B, C, D = b"a", b"b", b"c", b"d"


def done(outcome: ChainOutcome) -> ChainDone:
    """A call that must happen."""
    assert isinstance(outcome, ChainDone), outcome
    return outcome


def why(outcome: ChainOutcome) -> ChainReason:
    """The reason of a call that must not happen."""
    assert isinstance(outcome, ChainRefusal), outcome
    return outcome.reason


def made(*capacities: int, **options: Any) -> Chain:
    """A new chain; the device has eight blocks, the first of which hold A, B, C and D."""
    config = ChainConfig(capacities, 8, **options)
    state = chain(config)
    keys = (A, B, C, D)[: 8 // config.span]
    for at, part in enumerate((key, part) for key in keys for part in range(config.span)):
        state = done(c.overwrite(state, at, part)).state
    return state


def at_of(state: Chain, kind: Kind) -> int:
    """The number of the first transfer of a kind under way."""
    return next(at for at, each in enumerate(state.transfers) if each.kind is kind)


def landing(state: Chain, kind: Kind, success: bool = True) -> ChainDone:
    """Hand out what may start, and land the first transfer of a kind."""
    state = c.hand_out(state).state
    return done(c.finish(state, at_of(state, kind), success))


def landed(state: Chain, kind: Kind, success: bool = True) -> Chain:
    """The state after a landing."""
    return landing(state, kind, success).state


def stored(state: Chain, *keys: Key) -> Chain:
    """The state in which keys are stored one by one, and everything has landed."""
    for key in keys:
        at = (A, B, C, D).index(key) * state.config.span
        state = done(c.store(state, (key,), tuple(range(at, at + state.config.span)))).state
        while state.transfers:
            state = landed(state, state.transfers[0].kind)
    return state


def loading(state: Chain, *keys: Key, at: int = 4) -> Chain:
    """The state in which a load of keys is under way, into blocks of the device from `at` on."""
    return done(c.load(state, keys, tuple(range(at, at + len(keys) * state.config.span)))).state


def found(state: Chain) -> list[list[Key]]:
    """What can be read in each tier."""
    return [sorted(ready(each)) for each in state.tiers]


# --- stores, and what goes down


def test_a_stored_block_is_found_when_it_has_landed() -> None:
    state = done(c.store(made(2, 2), (A, B), (0, 1))).state
    assert (chain_lookup(state, (A,)), pins(state, 0)) == (0, 1)
    state = landed(state, Kind.STORE)
    assert (chain_lookup(state, (A, B, C)), pins(state, 0), found(state)) == (2, 0, [[A, B], []])


def test_only_what_tier_0_lacks_is_stored_and_evicts_what_is_not_named() -> None:
    again = done(c.store(stored(made(2, 2), A, B), (A, C), (0, 2)))
    assert (again.keys, again.evicted, again.state.transfers[0].device) == ((C,), ((0, B),), (2,))
    assert done(c.store(again.state, (A,), (0,))).keys == ()


def test_a_store_that_fails_leaves_nothing_and_is_reported() -> None:
    failed = landing(done(c.store(made(2, 2), (A,), (0,))).state, Kind.STORE, success=False)
    assert (found(failed.state), [success for _, success in failed.ended]) == ([[], []], [False])


def test_reserve_sends_the_oldest_down_and_it_leaves_when_it_has_landed() -> None:
    state = done(c.store(stored(made(2, 2, reserve=(1,)), A), (B,), (1,))).state
    assert [(each.kind, each.keys) for each in state.transfers] == [(Kind.STORE, (B,)), (Kind.DEMOTE, (A,))]
    state = landed(state, Kind.DEMOTE)
    assert found(state) == [[], [A]]
    assert found(landed(state, Kind.STORE)) == [[B], [A]]


def test_a_demotion_that_fails_leaves_its_block_above() -> None:
    state = done(c.store(stored(made(2, 2, reserve=(1,)), A), (B,), (1,))).state
    assert found(landed(state, Kind.DEMOTE, success=False)) == [[A], []]


def test_what_is_below_already_leaves_at_once_and_what_finds_no_room_is_dropped() -> None:
    twice = landed(loading(stored(made(2, 2, reserve=(1,)), A, B), A), Kind.PROMOTE)
    twice = landed(twice, Kind.LOAD)
    assert found(twice) == [[A, B], [A]], "the copy below stays"
    assert found(done(c.store(c.chain_touch(twice, (B,)).state, (C,), (2,))).state)[0] == [B]
    dropping = done(c.store(stored(made(2, 0, reserve=(1,)), A), (B,), (1,)))
    assert (dropping.dropped, found(dropping.state)) == ((A,), [[], []])


def test_writing_through_goes_down_tier_by_tier_and_keeps_what_is_above() -> None:
    state = landed(done(c.store(made(2, 2, 2, through=True), (A, B), (0, 1))).state, Kind.STORE)
    assert [(each.keys, each.target) for each in state.transfers] == [((A,), 1), ((B,), 1)]
    state = landed(state, Kind.DEMOTE)
    assert [(each.keys, each.target) for each in state.transfers] == [((B,), 1), ((A,), 2)]
    assert found(stored(made(2, 2, 2, through=True), A)) == [[A], [A], [A]]


# --- loads, and what comes up


def test_a_load_of_what_is_in_tier_0_can_start_and_lands_on_the_device() -> None:
    state = loading(stored(made(2, 2), A), A)
    taken = c.hand_out(state)
    assert ([each.kind for each in taken.handed], pins(state, 4)) == ([Kind.LOAD], 1)
    assert landed(state, Kind.LOAD).device[4] == (A, 0)


LOWER = stored(made(2, 3, reserve=(2,)), A, B, C)
"""A and B went down; C is above."""


def test_a_load_waits_for_what_comes_up_and_then_holds_it() -> None:
    assert found(LOWER) == [[C], [A, B]]
    state = loading(LOWER, A, C)
    assert [(each.kind, each.keys) for each in state.transfers] == [(Kind.PROMOTE, (A,)), (Kind.LOAD, (A, C))]
    assert [each.kind for each in c.hand_out(state).handed] == [Kind.PROMOTE]
    assert (chain_lookup(state, (A,)), idle(state.tiers[1])) == (1, (B,)), "others may wait as well; A is read below"
    state = landed(state, Kind.PROMOTE)
    assert (idle(state.tiers[0]), found(state)[1]) == ((), [A, B])
    assert landed(state, Kind.LOAD).device[4:6] == ((A, 0), (C, 0))


def test_a_promotion_that_fails_is_its_sources_fault_and_fails_all_that_wait_for_it() -> None:
    state = loading(loading(LOWER, A, C), A, at=6)
    failed = landing(state, Kind.PROMOTE, success=False)
    assert [(each.kind, success) for each, success in failed.ended] == [
        (Kind.PROMOTE, False),
        (Kind.LOAD, False),
        (Kind.LOAD, False),
    ]
    assert (found(failed.state), idle(failed.state.tiers[0]), failed.state.transfers) == ([[C], [B]], (C,), ())


def test_a_load_that_fails_is_its_sources_fault() -> None:
    state = stored(made(2, 2), A, B)
    assert found(landed(loading(state, A), Kind.LOAD, success=False)) == [[B], []]
    two = c.hand_out(loading(loading(state, A), A, at=6)).state
    failed = done(c.finish(two, 0, success=False)).state
    assert (phase_of(failed.tiers[0], A), chain_lookup(failed, (A,))) == (Phase.DOOMED, 0)
    assert done(c.finish(failed, 0, success=True)).state.device[6] == (A, 0)


def test_loading_may_free_the_copy() -> None:
    state = loading(stored(made(2, 2, frees=True), A, B), A)
    assert found(landed(state, Kind.LOAD)) == [[B], []]


def test_a_load_does_not_write_what_a_store_still_reads() -> None:
    state = done(c.store(stored(made(2, 2), A), (B,), (1,))).state
    state = loading(state, A, at=1)
    assert [each.kind for each in c.hand_out(state).handed] == [Kind.STORE]
    assert [each.kind for each in c.hand_out(landed(state, Kind.STORE)).handed] == [Kind.LOAD]
    assert landed(landed(state, Kind.STORE), Kind.LOAD).device[1] == (A, 0)


def test_a_block_that_spans_several_of_the_device_is_moved_whole() -> None:
    state = stored(made(2, 2, span=2), A)
    assert state.tiers[0].contents[0] == A
    assert landed(loading(state, A), Kind.LOAD).device[4:6] == ((A, 0), (A, 1))
    mixed = landed(done(c.store(made(2, 2, span=2), (A,), (0, 3))).state, Kind.STORE)
    assert mixed.tiers[0].contents[0] is None, "halves of two are no block"


def test_what_was_not_handed_out_can_be_cancelled() -> None:
    state = done(c.store(made(2, 2), (A,), (0,))).state
    dropped = done(c.cancel(state, 0))
    assert (found(dropped.state), dropped.state.transfers, pins(dropped.state, 0)) == ([[], []], (), 0)
    waiting = loading(LOWER, A, C)
    dropped = done(c.cancel(waiting, at_of(waiting, Kind.LOAD)))
    assert [each.kind for each in dropped.state.transfers] == [Kind.PROMOTE]
    assert idle(dropped.state.tiers[0]) == (C,)


# --- refusals


def test_every_refusal() -> None:
    state, full = stored(made(2, 2, most=1), A), done(c.store(made(1, 2), (A,), (0,))).state
    loads = loading(state, A)
    refused = {
        why(c.store(full, (B,), (1,))),
        why(c.load(no_room(), (A,), (4,))),
        why(c.store(loads, (B,), (1,))),
        why(c.store(loads, (B,), (4,))),
        why(c.overwrite(loads, 4, None)),
        why(c.load(state, (B,), (4,))),
        why(c.store(state, (B, B), (1, 1))),
        why(c.load(state, (A,), ())),
        why(c.finish(loads, 0, success=True)),
        why(c.cancel(c.hand_out(loads).state, 0)),
    }
    assert refused == set(ChainReason)
    assert why(c.load(loads, (A,), (4,))) is ChainReason.LOADING
    assert why(c.load(stored(made(2, 2), A, B), (A, B), (4, 4))) is ChainReason.LOADING


def no_room() -> Chain:
    """A chain whose tier 0 is full of blocks that are being written, with A below."""
    state = stored(made(1, 2, through=True), A, B)
    return done(c.store(state, (C,), (2,))).state


def test_a_block_that_is_being_stored_above_is_not_loaded_from_below() -> None:
    state = done(c.store(stored(made(1, 2, through=True), A, B), (A,), (0,))).state
    assert (found(state)[1], chain_lookup(state, (A,))) == ([A, B], 0)


# --- laws

BY_ID = {law.id: law.holds for law in CHAIN_LAWS}
STEPS_BY_ID = {law.id: law.holds for law in CHAIN_STEP_LAWS}
RAISING = c.hand_out(loading(LOWER, A, C)).state
STORING = c.hand_out(done(c.store(LOWER, (D,), (3,))).state).state
BEHIND = loading(STORING, C, at=3)
GOOD = {"new": made(1, 1), "lower": LOWER, "raising": RAISING, "storing": STORING, "behind": BEHIND}


def tier_changed(state: Chain, at: int, key: Key, **fields: Any) -> Chain:
    """The state with fields of a block of a tier changed."""
    tier = state.tiers[at]
    entries = tuple(replace(each, **fields) if each.key == key else each for each in tier.entries)
    return with_tier(state, at, replace(tier, entries=entries))


def with_tier(state: Chain, at: int, tier: Tier) -> Chain:
    """The state with another tier."""
    return replace(state, tiers=(*state.tiers[:at], tier, *state.tiers[at + 1 :]))


def transfer_changed(state: Chain, at: int, **fields: Any) -> Chain:
    """The state with fields of a transfer changed."""
    transfers = list(state.transfers)
    transfers[at] = replace(transfers[at], **fields)
    return replace(state, transfers=tuple(transfers))


LOADED = c.hand_out(landed(RAISING, Kind.PROMOTE)).state
SECOND_STORE = Transfer(Kind.STORE, (C,), None, 0, (4,), started=True)

BROKEN: list[tuple[str, Chain]] = [
    ("CHAIN-1", tier_changed(RAISING, 1, A, readers=0)),
    ("CHAIN-1", tier_changed(LOWER, 0, C, readers=1)),
    ("CHAIN-1", tier_changed(LOWER, 0, C, phase=Phase.WRITING)),
    ("CHAIN-1", tier_changed(STORING, 0, D, phase=Phase.READY)),
    ("CHAIN-2", replace(RAISING, transfers=(*RAISING.transfers, RAISING.transfers[0]))),
    ("CHAIN-2", tier_changed(STORING, 0, D, place=STORING.tiers[0].entries[0].place)),
    ("CHAIN-2", replace(LOADED, transfers=(*LOADED.transfers, SECOND_STORE))),
    ("CHAIN-3", replace(RAISING, transfers=())),
    ("CHAIN-3", replace(STORING, transfers=())),
    ("CHAIN-4", transfer_changed(RAISING, 1, started=True)),
    ("CHAIN-4", transfer_changed(BEHIND, at_of(BEHIND, Kind.LOAD), started=True)),
    ("CHAIN-9", replace(RAISING, transfers=RAISING.transfers[1:])),
]
"""States that break each law, in each of its parts."""


def test_the_good_states_are_what_the_broken_ones_are_made_of() -> None:
    assert [each.kind for each in RAISING.transfers] == [Kind.PROMOTE, Kind.LOAD]
    assert Kind.STORE in [each.kind for each in STORING.transfers]
    assert LOADED.transfers[0].started


@pytest.mark.parametrize("law", CHAIN_LAWS, ids=lambda law: law.id)
@pytest.mark.parametrize("name", GOOD)
def test_law_holds_in_reached_states(law: Law, name: str) -> None:
    assert law.holds(GOOD[name])


@pytest.mark.parametrize(("name", "state"), BROKEN)
def test_law_notices_what_breaks_it(name: str, state: Chain) -> None:
    assert not BY_ID[name](state)


LAND_LOAD = done(c.finish(LOADED, 0, success=True))
FAIL_LOAD = done(c.finish(LOADED, 0, success=False))
FAIL_RAISING = done(c.finish(RAISING, 0, success=False))
FAIL_STORE = done(c.finish(STORING, at_of(STORING, Kind.STORE), success=False))


def under(state: Chain, **options: Any) -> Chain:
    """The state with another configuration."""
    return replace(state, config=replace(state.config, **options))


def storing_b(state: Chain, **options: Any) -> ChainDone:
    """What came of storing B, done as another configuration asks."""
    outcome = done(c.store(under(state, **options), (B,), (1,)))
    return replace(outcome, state=replace(outcome.state, config=state.config))


KEEPS_ONE, KEEPS_NONE = (stored(made(2, 2, reserve=(reserve,)), A) for reserve in (1, 0))
DEEP = stored(made(2, 2, 0, reserve=(0, 2)), A)
BELOW = with_tier(with_tier(DEEP, 1, DEEP.tiers[0]), 0, made(2).tiers[0])
THROUGH = c.hand_out(done(c.store(made(2, 2, 2, through=True), (A,), (0,))).state).state
DEMOTING = c.hand_out(done(c.finish(THROUGH, 0, success=True)).state).state
READ = c.hand_out(loading(stored(made(2, 2), A), A)).state
KEPT = tier_changed(KEEPS_ONE, 0, A, said=Said("a", 1, 9))
SENT = done(c.store(KEPT, (B,), (1,)))
BROUGHT = tier_changed(LOWER, 1, A, said=Said("a", 1, 9))
RAISED = done(c.load(BROUGHT, (A,), (3,)))


def landing_under(state: Chain, **options: Any) -> ChainDone:
    """What came of the first landing, done as another configuration asks."""
    outcome = done(c.finish(under(state, **options), 0, success=True))
    return replace(outcome, state=replace(outcome.state, config=state.config))


BROKEN_CALLS: list[tuple[str, Chain, ChainDone]] = [
    ("CHAIN-5", STORING, ChainDone(replace(STORING, device=(*STORING.device[:3], None, *STORING.device[4:])))),
    ("CHAIN-5", RAISING, ChainDone(replace(RAISING, device=((A, 0),) * 8))),
    ("CHAIN-6", LOADED, replace(LAND_LOAD, state=LOADED)),
    ("CHAIN-6", LOADED, replace(FAIL_LOAD, state=LAND_LOAD.state)),
    ("CHAIN-7", STORING, replace(FAIL_STORE, state=STORING)),
    ("CHAIN-7", RAISING, replace(FAIL_RAISING, state=LOWER)),
    ("CHAIN-7", LOADED, replace(FAIL_LOAD, state=LOWER)),
    ("CHAIN-8", LOWER, ChainDone(with_tier(LOWER, 1, made(1, 3).tiers[1]))),
    ("CHAIN-8", LOADED, replace(LAND_LOAD, state=with_tier(LAND_LOAD.state, 0, made(2).tiers[0]))),
    ("CHAIN-10", KEEPS_ONE, storing_b(KEEPS_ONE, reserve=(0,))),
    ("CHAIN-10", KEEPS_NONE, storing_b(KEEPS_NONE, reserve=(1,))),
    ("CHAIN-10", BELOW, storing_b(BELOW, reserve=(0, 0))),
    ("CHAIN-10", under(KEEPS_ONE, through=True), storing_b(under(KEEPS_ONE, through=True), through=False)),
    ("CHAIN-11", THROUGH, landing_under(THROUGH, through=False)),
    ("CHAIN-11", DEMOTING, replace(landing_under(DEMOTING), state=landing_under(THROUGH).state)),
    ("CHAIN-12", READ, landing_under(READ, frees=True)),
    ("CHAIN-12", under(READ, frees=True), landing_under(under(READ, frees=True), frees=False)),
    ("CHAIN-13", KEPT, replace(SENT, state=tier_changed(SENT.state, 1, A, said=Said("a")))),
    ("CHAIN-13", KEPT, replace(SENT, state=tier_changed(SENT.state, 1, A, said=Said(None, 1, 9)))),
    ("CHAIN-13", BROUGHT, replace(RAISED, state=tier_changed(RAISED.state, 0, A, said=Said()))),
]
"""Calls that break each law."""


@pytest.mark.parametrize(("name", "before", "outcome"), BROKEN_CALLS)
def test_law_of_calls_notices_what_breaks_it(name: str, before: Chain, outcome: ChainDone) -> None:
    assert not STEPS_BY_ID[name](before, outcome)


def test_every_law_is_broken_once() -> None:
    assert {name for name, _ in BROKEN} == BY_ID.keys()
    assert {name for name, _, _ in BROKEN_CALLS} == STEPS_BY_ID.keys()
    assert {*BY_ID, *STEPS_BY_ID} <= {law.id for law in OFFLOAD_LAWS}


@pytest.mark.parametrize("law", CHAIN_STEP_LAWS, ids=lambda law: law.id)
def test_law_of_calls_holds_for_calls_that_happened(law: Law) -> None:
    calls: list[tuple[Chain, ChainOutcome]] = [
        (LOADED, LAND_LOAD),
        (LOADED, FAIL_LOAD),
        (RAISING, FAIL_RAISING),
        (STORING, FAIL_STORE),
        (LOWER, c.store(LOWER, (D,), (3,))),
        (LOWER, c.load(LOWER, (B, A), (3, 4))),
        (BEHIND, c.cancel(BEHIND, at_of(BEHIND, Kind.LOAD))),
        (KEEPS_ONE, storing_b(KEEPS_ONE)),
        (KEEPS_NONE, storing_b(KEEPS_NONE)),
        (BELOW, storing_b(BELOW)),
        (THROUGH, landing_under(THROUGH)),
        (DEMOTING, landing_under(DEMOTING)),
        (KEPT, SENT),
        (BROUGHT, RAISED),
        (READ, landing_under(READ)),
        (under(READ, frees=True), landing_under(under(READ, frees=True))),
    ]
    assert all(law.holds(before, done(outcome)) for before, outcome in calls)

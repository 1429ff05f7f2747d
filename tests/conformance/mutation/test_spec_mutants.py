"""Property: wrong specifications are noticed by their laws or beside the implementation, and the gate counts them.

How: mutants are put in and taken out again, and found in small worlds; the unchanged specification breaks nothing
there; every refusal is left out by some mutant; each altered plan breaks its law alone; the score is a rate.
Not covered: every mutant, and that every law notices one (gate `spec`, profile nightly).
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.mutation.mutator import Mutation
from blockwright_lab.mutation.survivors import reason_for
from blockwright_lab.specification import gate
from blockwright_lab.specification.gate import ALL_LAWS, FLOOR, LAWS_FLOOR, SPEC, measured, score
from blockwright_lab.specification.mutator import CHAPTERS, all_mutations, function_of, of_mutation, put_in
from blockwright_lab.specification.places import BY_NAME, KNOWN_BUGS, MANAGERS, PLACES, SpecPlace
from blockwright_lab.specification.plans import PLANS, RIGHT
from blockwright_lab.specification.results import FIRST, Result, differs_in, noticed_in, order, result_of
from blockwright_lab.specification.search import UNDEFINED
from blockwright_spec.offload.chain_state import Chain, ChainConfig
from blockwright_spec.offload.tier_state import Entry as Block
from blockwright_spec.offload.tier_state import Phase, Tier
from blockwright_spec.worker.storage_laws import STORAGE_LAWS

LOST = "return guarded(replace(state, queue=(*bare[::-1], *state.queue), contents=contents), candidates)"
"""The candidates among what is released are not queued."""
TIGHT = BY_NAME["lockstep: full, block 1: known bugs, tight"]


def mutant(key: str) -> Mutation:
    """The mutant of a name, or of what it makes of a statement."""
    return next(each for each in all_mutations() if key in (each.key, each.after))


def test_mutants_have_names_of_their_own_and_each_chapter_has_some() -> None:
    keys = [each.key for each in all_mutations()]
    assert len(set(keys)) == len(keys) > 2000
    assert {each.file.removesuffix(".py") for each in all_mutations()} == set(CHAPTERS)


def test_a_mutant_is_put_in_and_taken_out() -> None:
    function = function_of("manager/effects.py", "requeued")
    before = function.__code__
    with put_in(of_mutation(mutant(LOST))):
        assert function.__code__ is not before
    assert function.__code__ is before


def test_a_mutant_is_noticed_by_its_laws_and_beside_the_implementation() -> None:
    exchange = of_mutation(mutant(LOST))
    noticed_laws = noticed_in(TIGHT, exchange).lengths
    assert "REF-1" in noticed_laws
    assert UNDEFINED not in noticed_laws
    assert differs_in(TIGHT, exchange)


@pytest.mark.parametrize("place", PLACES[:: max(1, len(PLACES) // 12)], ids=lambda place: place.name)
def test_the_specification_as_it_is_breaks_nothing(place: SpecPlace) -> None:
    assert not place.alone(lambda _: True, 300).lengths


def test_beside_the_implementation_nothing_differs() -> None:
    assert TIGHT.differs(1000) == ""
    assert BY_NAME["paged: naive, block 1: spec, wrong calls"].differs(200) == ""
    assert BY_NAME["offload: spec, through"].differs(200) == ""


def test_every_scope_of_known_bugs_is_a_place_even_if_another_has_its_name() -> None:
    there = {replace(each, name="") for each in MANAGERS}
    assert {replace(each, name="") for each in KNOWN_BUGS.values()} <= there
    assert len({each.name for each in MANAGERS}) == len(MANAGERS)
    assert len(BY_NAME) == len(PLACES)


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (
            "mamba +1, block 1: spec, wrong calls, drafts",
            "manager/effects.py blanked: return replace(state, contents=contents)",
        ),
        ("full, block 1: spec, wrong calls, duplicates", "manager/hits.py lost: "),
        ("full, block 1: spec, wrong calls, loads", "manager/hits.py sound: "),
        ("full, block 1: spec, wrong calls, drafts", "manager/in_time/in_flight.py landed: ahead = "),
        (
            "mamba +2, block 1: spec, wrong calls, tight",
            "manager/in_time/forks.py fork: return Refusal(Reason.NO_FREE_BLOCKS, count",
        ),
    ],
)
def test_what_no_manager_shows_is_asked_of_the_specification(place: str, key: str) -> None:
    own = [each for each in all_mutations() if each.key.startswith(key) and not reason_for(each, SPEC)]
    own = [each for each in own if not each.after.startswith("return not")]  # with it nothing ever happens
    assert own
    for each in own:
        assert noticed_in(BY_NAME[f"spec: {place}"], of_mutation(each)).lengths, each.key


@pytest.mark.parametrize(
    "name",
    [
        "paged: naive under a window",
        "paged: spec, nothing is dead",
        "offload: spec, recovered",
        "offload: write back, span 3",
    ],
)
def test_beside_walks_and_plans_nothing_differs(name: str) -> None:
    assert BY_NAME[name].differs(300) == ""


def test_a_wrong_answer_before_a_call_differs_in_a_walk() -> None:
    key = next(each.key for each in all_mutations() if each.key.startswith("block_tables/counts.py can_append_slots:"))
    assert "can_append_slots" in differs_in(BY_NAME["paged: naive"], of_mutation(mutant(key)))


def test_a_chain_that_makes_no_room_differs_in_a_walk() -> None:
    key = "if num_free(done.state.tiers[at]) - leaving(done.state, at) < reserve"
    places = BY_NAME["offload: write back, reserve 2 and 3"], BY_NAME["offload: write through"]
    exchange = of_mutation(mutant(key))
    assert [bool(differs_in(place, exchange)) for place in places] == [True, False]


def test_a_tier_must_reject_each_kind_of_wrong_victims() -> None:
    guard = "offload/tier_calls.py prepare_store: if not (len(evicted) == needed == len(set(evicted)) and "
    wrong = [each for each in all_mutations() if each.key.startswith(guard)]
    assert len(wrong) > 5
    for each in wrong:
        assert noticed_in(BY_NAME["spec: spec, LRU"], of_mutation(each)).lengths, each.key


def test_a_wrong_plan_breaks_its_law() -> None:
    key = next(each.key for each in all_mutations() if each.key.startswith("worker/storage.py held_in_all: return sum"))
    assert "LAYOUT-6" in noticed_in(BY_NAME["plans: right ones"], of_mutation(mutant(key))).lengths


def test_a_quiet_chain_follows_from_its_readers_and_phases() -> None:
    named = {law.id: law.holds for law in ALL_LAWS}
    config, seen = ChainConfig((2,), 0), 0
    entries = [Block(b"1", 0, phase, readers) for phase in Phase for readers in range(3)]
    for some in ((), *((each,) for each in entries), *product(entries, entries)):
        own = tuple(replace(each, key=bytes([at]), place=at) for at, each in enumerate(some))
        state = Chain(config, (Tier(own, (), (None, None), frozenset()),), ())
        if named["CHAIN-1"](state) and named["TIER-3"](state.tiers[0]):
            assert named["CHAIN-3"](state)
            seen += 1
    assert seen == 3


def test_plans_are_judged_by_one_law_each() -> None:
    assert all(law.holds(RIGHT) for law in STORAGE_LAWS)
    for name, plan in PLANS.items():
        assert [law.id for law in STORAGE_LAWS if not law.holds(plan)] == [name]


def test_every_refusal_is_left_out() -> None:
    keys = {each.key for each in all_mutations()}
    assert "manager/transitions.py publish: return Refusal(Reason.UNSETTLED) -> pass" in keys
    assert "offload/tier_calls.py prepare_store: return TierRefusal(TierReason.NO_ROOM) -> pass" in keys
    assert any(key.startswith("worker/rows.py move: return RowRefusal.TAKEN") for key in keys)


def test_a_result_names_the_law_and_the_place_and_the_next_goes_there_first() -> None:
    result = result_of(mutant(LOST))
    assert "REF-1" in result.laws
    assert result.noticed_by == "laws"
    assert order(result.mutation)[0].name == result.place
    assert set(FIRST) <= BY_NAME.keys()


def test_the_score_is_a_rate() -> None:
    noticed = Result(mutant(LOST), laws={"REF-1": TIGHT.name})
    beside, silent = Result(mutant(LOST), beside=TIGHT.name), Result(mutant(LOST))
    floor, laws = FLOOR["nightly"], LAWS_FLOOR["nightly"]
    assert score([noticed] * 100, 0, "nightly").violations == 0
    assert score([noticed] * floor + [silent] * (100 - floor), 0, "nightly").violations == 0
    assert score([noticed] * (floor - 1) + [silent] * (101 - floor), 0, "nightly").law == "SPEC-1"
    assert score([noticed] * (laws - 1) + [beside] * (101 - laws), 0, "nightly").law == "SPEC-1"
    assert "1 by laws, 1 by lock-step" in gate.of_chapter("manager/effects.py", [noticed, beside]).detail
    assert gate.of_survivor(silent).violations == 0


def test_a_sample_is_fixed_and_a_silent_law_is_named(tmp_path: Path) -> None:
    sample = gate.chosen(Profile())
    assert len(sample) == 80
    assert sample == gate.chosen(Profile())
    noticed = Result(mutant(LOST), laws={"REF-1": TIGHT.name})
    row = gate.laws_notice([noticed])
    assert row.violations == len(ALL_LAWS) - len(PLANS) - 1
    measured([noticed], tmp_path / "laws.json")
    found = json.loads((tmp_path / "laws.json").read_text(encoding="utf-8"))["laws"]
    assert found["REF-1"] == {"mutants": 1, "alone": 1, "witness": mutant(LOST).key}
    assert found.keys() == {law.id for law in ALL_LAWS}

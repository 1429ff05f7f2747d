"""Property: wrong specifications are noticed, by the laws named, and the gate fails where one is not.

How: mutants are put in and taken out again, and found in small worlds by their laws and beside the implementation; the
unchanged specification breaks nothing there; entries of the data with another law or place, and laws that say that all
is well, fail the gate; what is written by hand breaks its law alone; a law that others imply is broken with one of
them, wherever the data say that it is, and one that none imply is broken alone somewhere; every excuse is of some
mutant, which is not noticed nearby; the data name mutants, places and laws that there are, and the documents are of
these chapters.
Not covered: every mutant (gate `spec`, profile nightly), every entry of the data (profile pr).
"""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from blockwright_conformance import spec_mutants
from blockwright_conformance.mutation import Mutation
from blockwright_conformance.spec_data import digest, fate, noticed, record, witness
from blockwright_conformance.spec_excused import EXCUSED, IMPLIED, reason_for
from blockwright_conformance.spec_fates import Fate, differs_in, noticed_in
from blockwright_conformance.spec_mutants import (
    ALL_LAWS,
    BESIDE,
    FLOOR,
    LAWS_FLOOR,
    Entry,
    guards_are_listed,
    laws_are_witnessed,
    of_fate,
    sample,
    score,
)
from blockwright_conformance.spec_mutation import (
    CHAPTERS,
    all_guards,
    all_mutations,
    chapter,
    function_of,
    of_mutation,
    put_in,
    removed,
)
from blockwright_conformance.spec_places import BY_NAME, MANAGERS, MUSEUM, PLACES, SpecPlace
from blockwright_conformance.spec_refusals import REFUSED
from blockwright_conformance.spec_search import UNDEFINED
from blockwright_conformance.spec_weakened import WEAKENED, Weakening
from blockwright_conformance.spec_workers import PLANS, RIGHT
from blockwright_spec.chain_state import Chain, ChainConfig
from blockwright_spec.pool_laws import law_queue_holds_the_unheld
from blockwright_spec.storage_laws import STORAGE_LAWS
from blockwright_spec.tier_state import Entry as Block
from blockwright_spec.tier_state import Phase, Tier

DATA = Path(__file__).resolve().parents[2] / "docs/data/spec_mutants.json"
LOST = "effects.py requeued: queue = (*bare[::-1], *state.queue, *candidates) -> queue = (*bare[::-1], *state.queue)"
TIGHT = BY_NAME["lockstep: full, block 1: museum, tight"]


def mutant(key: str) -> Mutation:
    """The mutant of a name."""
    found = spec_mutants.known(key)
    assert found is not None, key
    return found


def test_mutants_have_names_of_their_own_and_each_chapter_has_some() -> None:
    keys = [each.key for each in all_mutations()]
    assert len(set(keys)) == len(keys) > 2000
    assert {each.file.removesuffix(".py") for each in all_mutations()} == set(CHAPTERS)


def test_every_refusal_is_among_the_guards() -> None:
    guards = {each.key for each in all_guards()}
    assert len(guards) > 110
    assert "transitions.py publish: return Refusal(Reason.UNSETTLED) -> pass" in guards
    assert "tier_calls.py prepare_store: return TierRefusal(TierReason.NO_ROOM) -> pass" in guards
    assert any(key.startswith("rows.py move: return RowRefusal.TAKEN") for key in guards)


def test_a_mutant_is_put_in_and_taken_out() -> None:
    function = function_of("effects.py", "requeued")
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


def test_every_scope_of_the_museum_is_a_place_even_if_another_has_its_name() -> None:
    there = {replace(each, name="") for each in MANAGERS}
    assert {replace(each, name="") for each in MUSEUM.values()} <= there
    assert len({each.name for each in MANAGERS}) == len(MANAGERS)
    assert len(BY_NAME) == len(PLACES)


@pytest.mark.parametrize(
    ("place", "key"),
    [
        (
            "mamba +1, block 1: spec, wrong calls, drafts",
            "effects.py blanked: return replace(state, contents=contents)",
        ),
        ("full, block 1: spec, wrong calls, duplicates", "hits.py lost: "),
        ("full, block 1: spec, wrong calls, loads", "hits.py sound: "),
        ("full, block 1: spec, wrong calls, drafts", "flights.py landed: ahead = "),
        ("mamba +2, block 1: spec, wrong calls, tight", "forks.py fork: return Refusal(Reason.NO_FREE_BLOCKS, count"),
    ],
)
def test_what_no_manager_shows_is_asked_of_the_specification(place: str, key: str) -> None:
    own = [each for each in all_mutations() if each.key.startswith(key) and reason_for(each) is None]
    own = [each for each in own if not each.after.startswith("return not")]  # with it nothing ever happens
    assert own
    for each in own:
        assert noticed_in(BY_NAME[f"spec: {place}"], of_mutation(each)).lengths, each.key


@pytest.mark.parametrize(
    "name",
    [
        "plans: of models",
        "paged: naive under a window",
        "paged: spec, nothing is dead",
        "offload: spec, recovered",
        "offload: write back, span 3",
    ],
)
def test_beside_walks_and_plans_nothing_differs(name: str) -> None:
    assert BY_NAME[name].differs(300) == ""


def test_a_wrong_answer_before_a_call_differs_in_a_walk() -> None:
    key = next(each.key for each in all_mutations() if each.key.startswith("paged_counts.py can_append_slots:"))
    assert "can_append_slots" in differs_in(BY_NAME["paged: naive"], of_mutation(mutant(key)))


def test_a_chain_that_makes_no_room_differs_in_a_walk() -> None:
    key = "chain_effects.py reserved: if num_free(done.state.tiers[at]) + leaving(done.state, at) < reserve -> if "
    places = BY_NAME["offload: write back, reserve 2 and 3"], BY_NAME["offload: write through"]
    exchange = of_mutation(mutant(f"{key}num_free(done.state.tiers[at]) - leaving(done.state, at) < reserve"))
    assert [bool(differs_in(place, exchange)) for place in places] == [True, False]


def test_a_tier_must_reject_each_kind_of_wrong_victims() -> None:
    guard = "tier_calls.py prepare_store: if not (len(evicted) == needed == len(set(evicted)) and set(evicted) <= set"
    wrong = [each for each in all_mutations() if each.key.startswith(guard)]
    assert len(wrong) > 5
    for each in wrong:
        assert noticed_in(BY_NAME["spec: spec, LRU"], of_mutation(each)).lengths, each.key


def test_a_wrong_plan_breaks_its_law() -> None:
    key = next(each.key for each in all_mutations() if each.key.startswith("storage.py held_in_all: return sum"))
    assert "LAYOUT-6" in noticed_in(BY_NAME["plans: right ones"], of_mutation(mutant(key))).lengths


@pytest.mark.parametrize("weakening", WEAKENED, ids=lambda each: each.law)
def test_what_is_written_by_hand_breaks_its_law_alone(weakening: Weakening) -> None:
    entry = next(each for each in sample()["laws"] if each.by == weakening.law)
    assert weakening.law not in IMPLIED
    assert entry.seen_alone() == ""


def test_every_law_is_broken_alone_or_implied() -> None:
    laws = json.loads(DATA.read_text(encoding="utf-8"))["laws"]
    assert {law for law, each in laws.items() if not each["in_a_step"]} == IMPLIED.keys()
    for law, (premises, why) in IMPLIED.items():
        assert premises
        assert {*premises} <= {each.id for each in ALL_LAWS} - {law}
        assert len(why) > 40
        assert not {*premises} & IMPLIED.keys(), "a law that is itself implied carries nothing"


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


def test_an_implied_law_that_is_broken_without_the_others_is_a_violation() -> None:
    law, (premises, _) = next(iter(IMPLIED.items()))
    good = Fate(mutant(LOST), laws={law: "", premises[0]: ""}, together=[sorted([law, premises[0]])])
    assert of_fate(good) is None
    row = of_fate(replace(good, together=[[law]]))
    assert row is not None
    assert (row.violations, row.law) == (1, "SPEC-8")


def test_every_excuse_is_of_some_mutant() -> None:
    excused = {reason_for(each) for each in all_mutations()}
    assert excused == {None, *range(len(EXCUSED))}
    assert all(len(each.reason.split()) > 5 for each in EXCUSED)


def test_a_mutant_that_is_excused_and_noticed_is_a_violation() -> None:
    same = next(each for each in all_mutations() if reason_for(each) is not None)
    assert of_fate(Fate(same)) is None
    row = of_fate(Fate(same, laws={"REF-1": TIGHT.name}))
    assert row is not None
    assert (row.violations, row.law) == (1, "SPEC-7")


def test_the_score_fails_below_its_floors() -> None:
    noticed = Fate(mutant(LOST), laws={"REF-1": TIGHT.name})
    beside, silent = Fate(mutant(LOST), beside=TIGHT.name), Fate(mutant(LOST))
    assert score([noticed] * 100).violations == 0
    assert score([noticed] * FLOOR + [silent] * (100 - FLOOR)).law == ""
    assert score([noticed] * (FLOOR - 1) + [silent] * (101 - FLOOR)).law == "SPEC-6"
    assert score([noticed] * (LAWS_FLOOR - 1) + [beside] * (101 - LAWS_FLOOR)).law == "SPEC-6"
    assert "60 by lock-step, 40 by laws" in score([noticed] * 40 + [beside] * 60).detail


def test_a_removed_law_notices_nothing() -> None:
    exchange = of_mutation(mutant(LOST))
    with put_in(removed(law_queue_holds_the_unheld)):  # type: ignore[arg-type]
        assert "REF-1" not in noticed_in(TIGHT, exchange).lengths


def test_entries_that_are_not_so_fail() -> None:
    good = Entry(LOST, "REF-1", TIGHT.name)
    assert good.seen() == ""
    assert "KEY-1 does not notice it" in replace(good, by="KEY-1").seen()
    assert "no longer there" in replace(good, place="nowhere").seen()
    assert "no longer there" in replace(good, mutant="effects.py requeued: nothing").seen()
    assert Entry(LOST, BESIDE, TIGHT.name).seen() == ""


def test_every_law_has_a_witness_and_every_refusal_is_looked_for() -> None:
    assert laws_are_witnessed().detail == ""
    assert guards_are_listed().detail == ""


def test_the_data_names_what_there_is() -> None:
    laws = {law.id for law in ALL_LAWS} | {UNDEFINED, BESIDE, REFUSED}
    for entries in sample().values():
        for entry in entries:
            assert spec_mutants.known(entry.mutant) is not None, entry
            assert entry.place in BY_NAME
            assert entry.by in laws


def test_the_documents_are_of_these_chapters() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert data["mutants"] == len(all_mutations())
    assert {file: each["digest"] for file, each in data["chapters"].items()} == {
        f"{name}.py": digest(name) for name in CHAPTERS
    }
    assert data["laws"].keys() == {law.id for law in ALL_LAWS}


def test_plans_are_judged_by_one_law_each() -> None:
    assert all(law.holds(RIGHT) for law in STORAGE_LAWS)
    for name, plan in PLANS.items():
        assert [law.id for law in STORAGE_LAWS if not law.holds(plan)] == [name]


def test_fates_are_written_and_read() -> None:
    one = Fate(mutant(LOST), laws={"REF-1": TIGHT.name, "QUEUE-1": TIGHT.name}, alone=["REF-1"], beside=TIGHT.name)
    assert fate(record(one)) == one
    assert noticed(one) == [LOST, "REF-1", TIGHT.name]
    assert witness("QUEUE-1", [one]) == [LOST, "QUEUE-1", TIGHT.name]
    assert witness("KEY-1", [one]) == []
    assert len(chapter("effects.py").mutations) > 200

"""Property: wrong specifications are noticed, by the laws named, and the gate fails where one is not.

How: mutants are put in and taken out again, and found in small worlds by their laws and beside the implementation; the
unchanged specification breaks nothing there; entries of the data with another law or place, and laws that say that all
is well, fail the gate; the data names mutants, places and laws that there are, and the documents are of these chapters.
Not covered: every mutant (gate `spec`, profile nightly), every entry of the data (profile pr).
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright_conformance import spec_mutants
from blockwright_conformance.mutation import Mutation
from blockwright_conformance.spec_data import digest, fate, noticed, record, witness
from blockwright_conformance.spec_fates import Fate, differs_in, noticed_in
from blockwright_conformance.spec_mutants import ALL_LAWS, BESIDE, Entry, guards_are_listed, laws_are_witnessed, sample
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
from blockwright_conformance.spec_places import BY_NAME, PLACES, SpecPlace
from blockwright_conformance.spec_refusals import REFUSED
from blockwright_conformance.spec_search import UNDEFINED
from blockwright_conformance.spec_workers import PLANS, RIGHT
from blockwright_spec.pool_laws import law_queue_holds_the_unheld
from blockwright_spec.storage_laws import STORAGE_LAWS

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

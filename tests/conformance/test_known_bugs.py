"""Property: each known bug is caught by the law it names, and the gate fails if one is not.

How: the changes of every bug fit the sources, its law is one that exists; bugs of each kind are looked at; bugs
with a harmless change, with another law, that run on and on or do not fit, and places in which a wrong implementation
stands must fail the gate; the diagnosis is made of states that are wrong in a known way, of one group and of two, with
steps in flight, loads and drafts, and of tiers and chains; watched adapters pass two groups.
Not covered: every bug and every place (`blockwright conform`, gate known-bugs).
"""

import re
from dataclasses import replace

import pytest

from blockwright_conformance.checker import diagnose as diagnosis
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.scopes import scope
from blockwright_conformance.kv_cache.world import KVCacheWorld, explorer
from blockwright_conformance.offload.chain import ChainAction, Compute, Land, Load, Store
from blockwright_conformance.offload.tier import TierCall
from blockwright_lab.known_bugs import gate
from blockwright_lab.known_bugs.bugs import BUGS, BY_ID, NOT_POSSIBLE
from blockwright_lab.known_bugs.changes import Change, edited
from blockwright_lab.known_bugs.gate import PLACES, corpus, names_of, row_of, sane, shown, summed
from blockwright_lab.known_bugs.instrumented import (
    CollidingAdapter,
    ToldAdapter,
    VariantAdapter,
    adapter_on,
)
from blockwright_lab.known_bugs.known_bug import KnownBug, Place, TrialPlace
from blockwright_lab.known_bugs.offload_trials import evicted, failed_load
from blockwright_lab.known_bugs.places import PLACES as PLACES_BY_NAME
from blockwright_lab.known_bugs.pool_trials import keys, plans, pool
from blockwright_lab.known_bugs.variants import variant
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.law import CALL_LAWS
from blockwright_spec.manager.laws import EVENT_LAWS, LAWS, RESTART_LAWS, RETENTION_LAWS, STEP_LAWS
from blockwright_spec.manager.state import Config
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.reads import Full, Group, Sliding
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

FULL, SLIDING, TIGHT, NEAR, OVER, TIER = (PLACES_BY_NAME[name] for name in "FULL SLIDING TIGHT NEAR OVER TIER".split())
KIT = {"HASH-1", "HASH-2", "HASH-3", "STAT-1", "DEMAND-1", "REFUSE-1", "LOOKUP-1", "REF-0 queue", "REF-0 keys"}
KIT |= {"PLAN-1", "PLAN-2", "REFUSE-2", "STORE-1", "REF-0 refusal"}
KNOWN = {
    law.id
    for law in (
        *LAWS,
        *STEP_LAWS,
        *EVENT_LAWS,
        *RESTART_LAWS,
        *RETENTION_LAWS,
        *PAGED_LAWS,
        *PAGED_STEP_LAWS,
        *OFFLOAD_LAWS,
        *PART_FOUR_LAWS,
        *CALL_LAWS,
    )
} | KIT


def test_no_two_bugs_are_alike() -> None:
    assert len(BY_ID) == len(BUGS) == len({(bug.place, *edited(bug.changes).items()) for bug in BUGS})


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_bugs_are_complete_and_fit_the_sources(bug: KnownBug) -> None:
    assert re.fullmatch(r"[BD]\d\d[a-z]?", bug.id)
    assert bug.law in KNOWN
    assert bug.title
    assert bug.story.endswith(".")
    assert "#" in bug.source or bug.id.startswith("D")
    assert edited(bug.changes)


@pytest.mark.parametrize(
    "name",
    """B02 B04b B06 B07 B28a B33b B41 B45 B60c B61a B62 B64a D01 D02 D06 B01a B01c B23 B24b B51a
    B51b B56d D07 D08 B12 B17b B18c B19b B48 B49b B49d B50a B52b B59e B63c B64f D09 D13a D13b""".split(),
)
def test_bugs_are_caught_by_name(name: str) -> None:
    row = shown(BY_ID[name])
    assert row.violations == 0, row.detail
    assert row.law == BY_ID[name].law
    assert row.detail.startswith(f"caught by {row.law}")


def test_the_way_to_a_fault_is_a_shortest_one() -> None:
    assert "after 2 calls" in shown(BY_ID["B20"]).detail
    assert "after 6 calls" in shown(BY_ID["B56b"]).detail


@pytest.mark.parametrize(
    ("name", "call"),
    [("B20", "allocate_slots("), ("D05", "KVCacheManager("), ("B02", "pool.free_blocks(")],
)
def test_every_bug_tells_its_way_as_calls(name: str, call: str) -> None:
    row = shown(BY_ID[name])
    assert (row.violations, row.tried, row.passed) == (0, 1, 1)
    assert call in row.script


COUNT = "BlockStore.__init__", "self._num_free: i64 = count - 1"
ENDLESS = Change("_let_go", "i -= 1", "continue")


def test_a_harmless_bug_is_not_caught_and_fails() -> None:
    same = Change(*COUNT, "self._num_free = -1 + count")
    row = shown(replace(BY_ID["B03"], changes=(same,), place=TIGHT))
    assert row.violations == 1
    assert "not caught" in row.detail


def test_a_bug_caught_by_another_law_fails() -> None:
    row = shown(replace(BY_ID["B20"], law="HIT-2"))
    assert row.violations == 1
    assert "HIT-2 was to catch it" in row.detail
    assert "r0 = Request" in row.script


def test_a_bug_that_runs_on_and_on_fails() -> None:
    for endless in (ENDLESS, Change(*COUNT, "while True:\n    pass", "after")):
        row = shown(replace(BY_ID["B20"], changes=(endless,)))
        assert row.violations == 1
        assert row.detail.startswith("runs on and on")


def test_a_place_in_which_the_implementation_runs_on_and_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = variant(ENDLESS)
    monkeypatch.setattr(gate, "variant", lambda *_: wrong)
    row = sane(TIGHT)
    assert (row.violations, row.law) == (1, "KNOWN-0")


def test_a_bug_that_does_not_fit_the_sources_fails_alone() -> None:
    for wrong in (Change("_let_go", "no_such_name"), Change(*COUNT, "1 // 0")):
        row = shown(replace(BY_ID["B20"], changes=(wrong,)))
        assert row.violations == 1
        assert row.detail.startswith(("StaleChangeError: ", "ZeroDivisionError: "))


def test_every_bug_of_the_corpus_is_shown_or_has_no_place() -> None:
    assert not {bug.id[:3] for bug in BUGS} & set(NOT_POSSIBLE)
    assert all(reason.endswith(".") for reason in NOT_POSSIBLE.values())
    rows = [GateResult("known-bugs", bug.id, "m", 1, 2, 0, 0.5) for bug in BUGS]
    assert corpus(rows).violations == 0
    assert corpus([row for row in rows if row.scope != "B03"]).detail == "B03 is not caught"


def test_the_laws_of_time_and_plans_are_shown() -> None:
    laws = {bug.law for bug in BUGS}
    assert laws >= {"FLIGHT-1", "FENCE-1", "SETTLE-1", "PUB-3", "LOAD-1", "LIVE-1", "PLAN-1", "PLAN-2"}
    assert laws >= {"MAMBA-1", "MAMBA-2", "MAMBA-3", "CROSS-1"}


@pytest.mark.parametrize(
    "place",
    [TIGHT, SLIDING, OVER, *map(TrialPlace, (keys, pool, plans, evicted, failed_load))],
    ids=lambda place: place.title,
)
def test_the_implementation_passes_every_place(place: Place | TrialPlace) -> None:
    row = sane(place)
    assert (row.violations, row.detail) == (0, "")


def test_a_place_that_fails_unchanged_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = variant(*BY_ID["B20"].changes)
    monkeypatch.setattr(gate, "variant", lambda *_: wrong)
    assert sane(FULL).violations == 1
    good, bad = GateResult("known-bugs", "a", "m", 1, 2, 0, 0.5), GateResult("known-bugs", "b", "m", 1, 2, 1, 0.5)
    assert [row.violations for row in summed([good, bad, good])] == [0, 1]
    assert summed([good, bad, good])[0].transitions == 4


def test_names_of_rows() -> None:
    assert len(names_of(Profile())) == len(BUGS) + len(PLACES)
    assert names_of(Profile(implementation="some:other")) == []
    assert names_of(Profile(scope="B05a")) == ["B05a"]
    assert row_of("B55").scope == "B55 a published block is marked but not in the index"
    assert row_of(next(name for name, place in PLACES.items() if place is TIGHT)).scope.startswith("unchanged: ")


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("B14", {"REF-0 keys", "PUB-1", "STEP-2"}),
        ("B06", {"READ-1", "TABLE-2", "STEP-3"}),
        ("D03", {"TRIM-1", "STEP-1"}),
        ("B17", {"LOOKUP-1"}),
        ("B57", {"NULL-1", "REF-0 new blocks"}),
        ("B05b", {"NULL-1", "REF-0 refusal"}),
        ("B25c", {"SETTLE-1", "REF-0 settled"}),
        ("B34c", {"CROSS-1"}),
        ("B35b", {"LIVE-1", "PLAN-2"}),
        ("B42b", {"PUB-3", "REF-0 keys"}),
        ("B47", {"LOAD-1", "PUB-1", "LEN-1"}),
        ("B53a", {"FLIGHT-1", "FENCE-1", "REF-1"}),
        ("B59c", {"FENCE-1", "REF-1"}),
        ("D06", {"MAMBA-3", "REF-0 states"}),
    ],
)
def test_diagnosis_names_the_laws(name: str, laws: set[str]) -> None:
    assert laws <= set(BY_ID[name].place.look(variant(*BY_ID[name].changes), judged=False).laws)


BOTH = replace(
    scope(Full(), 1, "both", 7, 4, "chunks batch reset", slots=1),
    config=Config((Group(Full(), 1), Group(Sliding(3), 2)), 7, 4),
)


@pytest.mark.parametrize(
    ("faults", "laws"),
    [
        ((Change("publish", "self._group", "0", times=2),), {"REF-0 keys", "PUB-1"}),
        (
            (
                Change("SlidingRule.first_needed", "num_tokens - self._window + 1", "num_tokens - self._window + 2"),
                Change("last_needing", "position + self._window - 2", "position + self._window - 3"),
            ),
            {"REF-0 tables", "TRIM-2"},
        ),
        (
            (
                Change(
                    "vacate", "manager.release(table)", "if manager is state.managers[0]:\n    manager.release(table)"
                ),
            ),
            {"REF-0 queue", "REF-1"},
        ),
    ],
    ids=["keys", "window", "release"],
)
def test_diagnosis_names_the_laws_of_two_groups(faults: tuple[Change, ...], laws: set[str]) -> None:
    factory = adapter_on(variant(*faults))
    violation = explorer(BOTH, factory, laws=()).run().violation
    assert violation is not None
    assert laws <= set(diagnosis.diagnose(KVCacheWorld(BOTH, factory), violation.actions).laws)


@pytest.mark.parametrize("adapter", [VariantAdapter, ToldAdapter, CollidingAdapter])
def test_watched_adapters_pass_two_groups(adapter: type[VariantAdapter]) -> None:
    factory = adapter_on(variant(), adapter)
    result = explorer(BOTH, factory).run()
    assert result.violation is None


def test_diagnosis_of_a_right_manager_is_empty() -> None:
    factory = adapter_on(variant())
    fault = explorer(FULL.scope, adapter_on(variant(*BY_ID["B56b"].changes)), laws=()).run().violation
    assert fault is not None
    assert diagnosis.diagnose(KVCacheWorld(FULL.scope, factory), fault.actions) == diagnosis.diagnose(
        KVCacheWorld(FULL.scope, factory), ()
    )
    assert diagnosis.diagnose(KVCacheWorld(FULL.scope, factory), ()).laws == ()


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("B18c", {"TIER-2", "REF-0 free"}),
        ("B52a", {"CHAIN-7", "TIER-1"}),
        ("B47b", {"CHAIN-2", "CHAIN-4", "REFUSE-2"}),
        ("B49b", {"CHAIN-2", "CHAIN-4", "REF-0 handed"}),
        ("B20b", {"CHAIN-1", "CHAIN-3"}),
    ],
)
def test_diagnosis_of_offloading_names_the_laws(name: str, laws: set[str]) -> None:
    assert laws <= set(BY_ID[name].place.look(variant(*BY_ID[name].changes), judged=False).laws)


LOADED: tuple[ChainAction, ...] = (
    Compute(0, b"p"),
    Store((b"p",), (0,)),
    Land(0),
    Load((b"p",), (0,)),
    Compute(0, b"p"),
    Land(0, success=False),
)
"""The last but one is refused: a load writes the block."""


def test_diagnosis_of_right_offloading_is_empty() -> None:
    package = variant()
    for end in range(len(LOADED) + 1):
        assert diagnosis.diagnose(NEAR.world(package), LOADED[:end]).laws == ()
    calls = tuple(TierCall(name, (b"p",)) for name in ("prepare_store", "complete_store", "prepare_load", "remove"))
    for end in range(len(calls) + 1):
        assert diagnosis.diagnose(TIER.world(package), calls[:end]).laws == ()


def test_the_way_to_a_fault_of_offloading_is_told_as_calls() -> None:
    for name, call in (("B19b", "manager.complete_load("), ("B20b", "chain.load(")):
        row = shown(replace(BY_ID[name], law="TIER-9"))
        assert row.violations == 1
        assert call in row.script

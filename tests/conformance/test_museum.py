"""Property: each exhibit of the museum is caught by the law it names, and the gate fails if one is not.

How: every exhibit's patch fits the sources, its law is one that exists; exhibits of each room are looked at; exhibits
with a harmless patch, with another law, that run on and on or do not fit, and places in which a wrong implementation
stands must fail the gate; the diagnosis is made of states that are wrong in a known way, of one group and of two, with
steps in flight, loads and drafts, and of tiers and chains; watched adapters pass two groups; the walk that mutants of
tiers are put through passes unchanged and finds faults.
Not covered: every exhibit and every place (`blockwright conform`, gate museum).
"""

import re
from dataclasses import replace

import pytest

from blockwright_conformance.checker import diagnose as diagnosis
from blockwright_conformance.checker.explore import Explorer as WorldExplorer
from blockwright_conformance.gates import GateResult, Profile
from blockwright_conformance.kv_cache.scopes import scope
from blockwright_conformance.kv_cache.world import KVCacheWorld, explorer
from blockwright_conformance.offload.chain import ChainAction, Compute, Land, Load, Store
from blockwright_conformance.offload.tier import TierCall
from blockwright_lab.known_bugs import gate as museum
from blockwright_lab.known_bugs.gate import EXHIBITS, NOT_POSSIBLE, PLACES, names_of, row_of, sane, shown, summed
from blockwright_lab.known_bugs.instrumented import (
    CollidingAdapter,
    CrowdedAdapter,
    ToldAdapter,
    VariantAdapter,
    adapter_on,
)
from blockwright_lab.known_bugs.known_bug import Exhibit, Place, Where, WorldPlace, patch
from blockwright_lab.known_bugs.offload_places import NEAR, OVER, TIER, evicted, failed_load, too_large
from blockwright_lab.known_bugs.places import FULL, SLIDING, TIGHT
from blockwright_lab.known_bugs.variants import Patch, patched, variant
from blockwright_lab.known_bugs.worlds import world_on
from blockwright_lab.mutation.recording import Recording
from blockwright_lab.mutation.world_walks import TIERS
from blockwright_lab.trials import call_trials, handed_out, trials
from blockwright_spec.block_tables.step_laws import PAGED_LAWS, PAGED_STEP_LAWS
from blockwright_spec.manager.laws import EVENT_LAWS, LAWS, STEP_LAWS
from blockwright_spec.manager.state import Config
from blockwright_spec.offload.chain_laws import OFFLOAD_LAWS
from blockwright_spec.reads import Full, Group, Sliding
from blockwright_spec.worker.storage_laws import PART_FOUR_LAWS

KIT = {"HASH-1", "HASH-2", "HASH-3", "STAT-1", "DEMAND-1", "REFUSE-1", "LOOKUP-1", "REF-0 queue", "REF-0 keys"}
KIT |= {"PLAN-1", "PLAN-2", "REFUSE-2", "STORE-1"}
KNOWN = {
    law.id for law in (*LAWS, *STEP_LAWS, *EVENT_LAWS, *PAGED_LAWS, *PAGED_STEP_LAWS, *OFFLOAD_LAWS, *PART_FOUR_LAWS)
} | KIT
BY_ID = {exhibit.id: exhibit for exhibit in EXHIBITS}


def test_there_are_enough_exhibits_and_no_two_alike() -> None:
    assert len(EXHIBITS) >= 40
    assert len(BY_ID) == len(EXHIBITS) == len({exhibit.patches for exhibit in EXHIBITS})


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.id)
def test_exhibits_are_complete_and_fit_the_sources(exhibit: Exhibit) -> None:
    assert re.fullmatch(r"[BD]\d\d[a-f]?", exhibit.id)
    assert exhibit.law in KNOWN
    assert exhibit.title
    assert exhibit.story.endswith(".")
    assert "#" in exhibit.source or exhibit.id.startswith("D")
    assert patched(exhibit.patches)


@pytest.mark.parametrize(
    "name",
    [
        "B02",
        "B04b",
        "B06",
        "B07",
        "B28a",
        "B33b",
        "B41",
        "B45",
        "B60c",
        "B61a",
        "B62",
        "B64a",
        "D01",
        "D02",
        "D06",
        "B01a",
        "B01c",
        "B23",
        "B24b",
        "B51a",
        "B51b",
        "B56d",
        "D07",
        "D08",
        "B12",
        "B17b",
        "B18c",
        "B19b",
        "B48",
        "B49b",
        "B49d",
        "B50a",
        "B52b",
        "B59e",
        "B63c",
        "B64f",
        "D09",
        "D13a",
        "D13b",
        "D14",
    ],
)
def test_exhibits_are_caught_by_name(name: str) -> None:
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
def test_every_exhibit_tells_its_way_as_calls(name: str, call: str) -> None:
    row = shown(BY_ID[name])
    assert (row.violations, row.tried, row.passed) == (0, 1, 1)
    assert call in row.script


def test_a_harmless_exhibit_is_not_caught_and_fails() -> None:
    same = patch("store.py", "self._num_free = count - 1", "self._num_free = -1 + count")
    row = shown(replace(BY_ID["B03"], patches=(same,), where=TIGHT))
    assert row.violations == 1
    assert "not caught" in row.detail


def test_an_exhibit_caught_by_another_law_fails() -> None:
    row = shown(replace(BY_ID["B20"], law="HIT-2"))
    assert row.violations == 1
    assert "HIT-2 was to catch it" in row.detail
    assert "r0 = Request" in row.script


def test_an_exhibit_that_runs_on_and_on_fails() -> None:
    for endless in (
        patch("store.py", "            i -= 1\n            block: i64 = i64(ids[i])", "            block: i64 = 0"),
        patch(
            "store.py",
            "self._num_free = count - 1",
            "self._num_free = count - 1\n        while True:\n            pass",
        ),
    ):
        row = shown(replace(BY_ID["B20"], patches=(endless,)))
        assert row.violations == 1
        assert row.detail.startswith("runs on and on")


def test_a_place_in_which_the_implementation_runs_on_and_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = patch(
        "store.py", "            i -= 1\n            block: i64 = i64(ids[i])", "            block: i64 = 0"
    )
    wrong = variant(endless)
    monkeypatch.setattr(museum, "variant", lambda *_: wrong)
    row = sane(TIGHT)
    assert (row.violations, row.law) == (1, "MUSEUM-0")


def test_an_exhibit_that_does_not_fit_the_sources_fails_alone() -> None:
    for wrong in (patch("store.py", "no such text", ""), patch("store.py", "self._num_free = count - 1", "1 // 0")):
        row = shown(replace(BY_ID["B20"], patches=(wrong,)))
        assert row.violations == 1
        assert row.detail.startswith(("StalePatchError: ", "ZeroDivisionError: "))


def test_every_bug_of_the_corpus_is_shown_or_has_no_place() -> None:
    there = {exhibit.id[:3] for exhibit in EXHIBITS if exhibit.id.startswith("B")}
    assert not there & set(NOT_POSSIBLE)
    assert there | set(NOT_POSSIBLE) == {f"B{number:02}" for number in range(1, 67)}
    assert all(reason.endswith(".") for reason in NOT_POSSIBLE.values())


def test_the_laws_of_time_and_plans_are_shown() -> None:
    laws = {exhibit.law for exhibit in EXHIBITS}
    assert laws >= {"FLIGHT-1", "FENCE-1", "SETTLE-1", "PUB-3", "LOAD-1", "LIVE-1", "PLAN-1", "PLAN-2"}
    assert laws >= {"MAMBA-1", "MAMBA-2", "MAMBA-3", "CROSS-1"}


@pytest.mark.parametrize(
    "where", [TIGHT, SLIDING, trials.keys, trials.pool, OVER, evicted, failed_load, too_large], ids=museum.title_of
)
def test_the_implementation_passes_every_place(where: Where) -> None:
    row = sane(where)
    assert (row.violations, row.detail) == (0, "")


def test_a_place_that_fails_unchanged_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = variant(*BY_ID["B20"].patches)
    monkeypatch.setattr(museum, "variant", lambda *_: wrong)
    assert sane(FULL).violations == 1
    good, bad = GateResult("museum", "a", "m", 1, 2, 0, 0.5), GateResult("museum", "b", "m", 1, 2, 1, 0.5)
    assert [row.violations for row in summed([good, bad, good])] == [0, 1]
    assert summed([good, bad, good])[0].transitions == 4


def test_names_of_rows() -> None:
    assert len(names_of(Profile())) == len(EXHIBITS) + len(PLACES)
    assert names_of(Profile(implementation="some:other")) == []
    assert names_of(Profile(scope="B05a")) == ["B05a"]
    assert row_of("B55").scope == "B55 a published block is marked but not in the index"
    assert row_of(f"place {PLACES.index(TIGHT)}").scope.startswith("unchanged: ")


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
    exhibit = BY_ID[name]
    assert isinstance(exhibit.where, Place)
    factory = adapter_on(variant(*exhibit.patches))
    violation = explorer(exhibit.where.scope, factory, laws=()).run().violation
    assert violation is not None
    assert laws <= set(diagnosis.diagnose(KVCacheWorld(exhibit.where.scope, factory), violation.actions).laws)


BOTH = replace(
    scope(Full(), 1, "both", 7, 4, "chunks batch reset", slots=1),
    config=Config((Group(Full(), 1), Group(Sliding(3), 2)), 7, 4),
)


@pytest.mark.parametrize(
    ("faults", "laws"),
    [
        (
            (
                patch(
                    "group.py",
                    "units, self._group, self._block_size, start, stop)",
                    "units, 0, self._block_size, start, stop)",
                ),
            ),
            {"REF-0 keys", "PUB-1"},
        ),
        (
            (
                patch("window.py", "num_tokens - self._window + 1", "num_tokens - self._window + 2"),
                patch("window.py", "position + self._window - 2\n", "position + self._window - 3\n"),
            ),
            {"REF-0 tables", "TRIM-2"},
        ),
        (
            (
                patch(
                    "running.py",
                    "  manager.release(table)\n",
                    "  manager.release(table) if manager is self.managers[0] else None\n",
                ),
            ),
            {"REF-0 queue", "REF-1"},
        ),
    ],
    ids=["keys", "window", "release"],
)
def test_diagnosis_names_the_laws_of_two_groups(faults: tuple[Patch, ...], laws: set[str]) -> None:
    factory = adapter_on(variant(*faults))
    violation = explorer(BOTH, factory, laws=()).run().violation
    assert violation is not None
    assert laws <= set(diagnosis.diagnose(KVCacheWorld(BOTH, factory), violation.actions).laws)


@pytest.mark.parametrize("adapter", [VariantAdapter, ToldAdapter, CrowdedAdapter, CollidingAdapter])
def test_watched_adapters_pass_two_groups(adapter: type[VariantAdapter]) -> None:
    factory = adapter_on(variant(), adapter)
    result = explorer(BOTH, factory).run()
    assert result.violation is None
    assert Recording(BOTH).replay(factory) == ([], result.transitions)


def test_diagnosis_of_a_right_manager_is_empty() -> None:
    factory = adapter_on(variant())
    fault = explorer(FULL.scope, adapter_on(variant(*BY_ID["B56b"].patches)), laws=()).run().violation
    assert fault is not None
    assert diagnosis.diagnose(KVCacheWorld(FULL.scope, factory), fault.actions) == diagnosis.diagnose(
        KVCacheWorld(FULL.scope, factory), ()
    )
    assert diagnosis.diagnose(KVCacheWorld(FULL.scope, factory), ()).laws == ()


@pytest.mark.parametrize(
    ("name", "laws"),
    [
        ("B18c", {"TIER-2", "TIER-7", "REF-0 free"}),
        ("B52a", {"CHAIN-7", "TIER-1"}),
        ("B47b", {"CHAIN-2", "CHAIN-4", "REFUSE-2"}),
        ("B49b", {"CHAIN-2", "CHAIN-4", "REF-0 handed"}),
        ("B20b", {"CHAIN-1", "CHAIN-3"}),
    ],
)
def test_diagnosis_of_offloading_names_the_laws(name: str, laws: set[str]) -> None:
    exhibit, package = BY_ID[name], variant(*BY_ID[name].patches)
    assert isinstance(exhibit.where, WorldPlace)
    violation = WorldExplorer(world_on(exhibit.where.scope, package)).run().violation
    assert violation is not None
    assert laws <= set(museum.diagnosed(exhibit.where, package, violation.actions))


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
        assert diagnosis.diagnose(world_on(NEAR.scope, package), LOADED[:end]).laws == ()
    calls = tuple(TierCall(name, (b"p",)) for name in ("prepare_store", "complete_store", "prepare_load", "remove"))
    for end in range(len(calls) + 1):
        assert diagnosis.diagnose(world_on(TIER.scope, package), calls[:end]).laws == ()


def test_a_walk_passes_unchanged_and_finds_faults() -> None:
    for walk in TIERS:
        assert list(walk(variant())) == []
    grows_wrong = patch("offload/tiers/keys.py", "buckets = zeros32(2 * size)", "buckets = zeros32(size)")
    for wrong in ((grows_wrong,), BY_ID["B64f"].patches):
        assert next(TIERS[0](variant(*wrong))).law == "REF-0"


def test_the_way_to_a_fault_of_offloading_is_told_as_calls() -> None:
    for name, call in (("B19b", "manager.complete_load("), ("B20b", "chain.load(")):
        row = shown(replace(BY_ID[name], law="TIER-9"))
        assert row.violations == 1
        assert call in row.script


def test_trials_of_calls_pass_unchanged_and_find_faults() -> None:
    package = variant()
    every = (
        call_trials.refusals,
        call_trials.batches,
        call_trials.keyless,
        call_trials.pins,
        call_trials.plans,
        handed_out.handed_out,
    )
    for trial in every:
        assert list(trial(package)) == []
    forgets = variant(
        patch("manager.py", "        self._nulled = vec[i32]()\n        while slot", "        while slot")
    )
    assert [fault.law for fault in handed_out.handed_out(forgets)] == ["REF-0"]
    accepts = variant(patch("asking.py", "if given < 0 or given > int(written):", "if given > int(written):"))
    assert {fault.law for fault in call_trials.refusals(accepts)} == {"REFUSE-2"}
    skips = variant(patch("manager.py", "                held += 1\n", "                held += 2\n"))
    assert {fault.law for fault in call_trials.batches(skips)} == {"BATCH-2"}

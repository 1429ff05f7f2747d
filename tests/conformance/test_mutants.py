"""Property: mutants are found, put in one at a time, noticed, and reported; and what is committed of them is current.

How: mutants of a small source; one of each fate (killed, killed at import, running on and on, living, unreached); what
a place executes; lists with wrong entries, several listed mutants together; samples, hints and scores; mutants of the
abstraction that see too much, too little, or nothing else; trials pass unchanged and find a mutant each.
Not covered: every mutant (`blockwright conform --gate mutants --profile nightly`).
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blockwright_conformance import (
    abstraction_mutants,
    alone_trials,
    check_trials,
    mutant_listed,
    mutants,
    name_trials,
    part_trials,
    replica_oddities,
    replica_trials,
    store_trials,
    worker_trials,
)
from blockwright_conformance.exhibit import Trial
from blockwright_conformance.gates import Profile
from blockwright_conformance.mutant_fate import IMPORT, Fate, fate_of
from blockwright_conformance.mutant_hints import first_places, hints
from blockwright_conformance.mutant_places import ENDLESS, difference
from blockwright_conformance.mutant_reach import MARKS, able, marked, reach
from blockwright_conformance.mutant_realm import Rule, title_of
from blockwright_conformance.mutant_score import KINDS, digest_of, kind_of, score_of
from blockwright_conformance.mutation import Mutation, Source
from blockwright_conformance.places import TIGHT as TIGHT_PLACE
from blockwright_conformance.realms import REALMS, all_mutations, excuse, parsed, realm, realm_of
from blockwright_conformance.siphash import siphash
from blockwright_conformance.variants import KIT, kit_on, load

SCORES = Path(__file__).parents[2] / "docs" / "data" / "mutants.json"
CORE = realm("core")


def mutation_of(file: str, *words: str) -> Mutation:
    """The first mutant whose key holds all of some texts."""
    return next(each for each in parsed(file).mutations if all(word in each.key for word in words))


def number_of(title: str) -> int:
    """The number of a place of the core."""
    return next(number for number, where in enumerate(CORE.places) if title_of(where) == title)


POOL, TIGHT = number_of("trial: pool"), number_of("full, block 1: museum, tight")


def test_every_rule_changes_something() -> None:
    text = '''
def f(a: int, b: int) -> int:
    """Told."""
    x = min(a, b) + 1
    if a < b and not a:
        g(a, b)
    while x:
        x -= 1
        break
    return [*x[:], x.copy()]
'''
    source = Source("f.py", (), text)
    afters = {each.after for each in source.mutations}
    assert {"x = max(a, b) + 1", "x = min(a, b) - 1", "x = min(a, b) + 2", "pass", "g(b, a)", "while not x"} <= afters
    assert {"if a <= b and (not a)", "if a < b or not a", "if a < b", "if not a", "x += 1", "x -= 2"} <= afters
    assert {"return [*x, x.copy()]", "return [*x[:], x]", "return [*x[:], x.copy()] + 1"} <= afters
    assert len({each.key for each in source.mutations}) == len(source.mutations)
    before = compile(source.tree, "f.py", "exec").co_code
    for mutation in source.mutations:
        source.compiled(mutation.key)
    assert compile(source.tree, "f.py", "exec").co_code == before
    assert Source("f.py", ("f.py f",), text).mutations == []


def test_fates() -> None:
    killed = fate_of(mutation_of("core/store.py", "self._num_free = count - 1 -> self._num_free = count - 2"), [POOL])
    assert (killed.killer, killed.visited, killed.unreached) == ("trial: pool", 1, False)
    endless = fate_of(mutation_of("core/store.py", "BlockStore.__init__: block += 1 -> block += 0"), [TIGHT])
    assert (endless.how, endless.place) == (ENDLESS, TIGHT)
    lives = fate_of(mutation_of("core/store.py", "self.version = 0 -> self.version = 1"), [POOL, TIGHT])
    assert (lives.killer, lives.visited, lives.whole, lives.unreached) == ("", 2, True, False)
    hurried = fate_of(lives.mutation, [TIGHT, POOL], 0.0)
    assert (hurried.whole, hurried.visited) == (False, 1)
    assert fate_of(lives.mutation, []).unreached


def test_a_mutant_that_breaks_the_import_is_killed() -> None:
    mutation = mutation_of("core/rows.py", "_type_of: return type(given) -> return None")
    assert fate_of(mutation, []).killer in ("", IMPORT)
    broken = [each for each in parsed("core/request.py").mutations if fate_of(each, []).killer == IMPORT][:1]
    assert all(fate_of(each, []).how for each in broken)


def test_a_place_tells_what_it_executes() -> None:
    found = reach("core", TIGHT)
    assert found.fault == ""
    take = mutation_of("core/store.py", "BlockStore.take: ")
    explain = mutation_of("core/explain.py", "explain: ")
    assert take.line in found.lines["core/store.py"]
    assert explain.line not in found.lines.get("core/explain.py", ())
    places = able(CORE, [found, replace(found, place=POOL, seconds=found.seconds / 2)])
    assert places["core/store.py"][take.line] == [POOL, TIGHT]
    assert all(not marks for marks in MARKS.values())
    assert "__mark__" in marked("core/steps.py").co_names


def test_a_realm_owns_each_source_once_and_names_its_places() -> None:
    files = [file for each in REALMS for file in each.files]
    assert len(files) == len(set(files))
    for each in REALMS:
        titles = [title_of(where) for where in each.places]
        assert len(titles) == len(set(titles)), each.name
        assert all(realm_of(file) is each for file in each.files)
        assert all(reason for reason in (*each.equivalent.values(), *each.left_out.values()))
        assert all(rule.reason for rule in each.rules)


def test_every_source_of_the_core_is_mutated() -> None:
    root = Path(mutants.__file__).parents[2] / "impl" / "blockwright" / "core"
    there = {f"core/{path.name}" for path in root.glob("*.py")} - {"core/__init__.py"}
    assert there == set(realm("core").files) | set(realm("parts").files)


def test_lists_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row.detail for row in mutants.stale()] == []
    wrong = replace(CORE, equivalent={"gone": "why"}, rules=(Rule("no such", "why"),), left_out={"guards of x": "why"})
    monkeypatch.setattr(mutants, "REALMS", (wrong,))
    assert [row.detail.rpartition(" ")[2] for row in mutants.stale()] == ["gone", "such", "x"]


def test_rules_match_whole_keys() -> None:
    mutation = mutation_of("core/store.py", "self.version += 1 -> self.version += 2")
    assert excuse(mutation).startswith("versions")
    assert excuse(mutation_of("core/store.py", "self.version += 1 -> self.version += 0")) == ""
    assert not Rule("core", "why").holds("core/store.py")


def test_a_sample_is_fixed_and_holds_no_listed_mutant() -> None:
    sample = mutants.chosen(Profile())
    assert len(sample) == 200
    assert sample == mutants.chosen(Profile())
    assert not any(excuse(each) for each in sample)
    work = [each for (parcel, _) in mutants.sampled(Profile()) for each in parcel]
    assert sorted(each.key for each, _ in work) == sorted(each.key for each in sample)
    for each, numbers in work:  # no places for those that a remembered test kills
        assert numbers == [] or sorted(numbers) == list(range(len(realm_of(each.file).places)))
    assert len(mutants.chosen(Profile("nightly", scope="core/steps.py"))) <= len(parsed("core/steps.py").mutations)


def test_listed_mutants_are_tried_together() -> None:
    file = "core/store.py"
    listed = [each for each in parsed(file).mutations if excuse(each)]
    places = {file: {each.line: [POOL] for each in listed}}
    made = mutant_listed.groups(listed, places)
    assert sorted(key for _, keys, _ in made for key in keys) == sorted(each.key for each in listed)
    assert all(fate.killer == "" for fate in mutant_listed.listed_fates(*made[0]))
    killed = mutation_of(file, "self._num_free = count - 1 -> self._num_free = count - 2").key
    fates = mutant_listed.listed_fates(file, (made[0][1][0], killed), [POOL])
    assert [bool(fate.killer) for fate in fates] == [False, True]
    row = mutants.of_fate(replace(fates[1], mutation=listed[0]))
    assert row is not None
    assert row.violations == 1


def test_the_report_counts_and_fails_below_the_floor() -> None:
    mutation = mutation_of("core/steps.py", "copy_for")
    killed, lives = Fate(mutation, "place", "how", 1, 1, 5, 0.1), Fate(mutation, "", "", None, 1, 5, 0.1)
    assert mutants.of_all([killed, lives], 50).violations == 0
    assert mutants.of_all([killed, lives], 51).violations == 1
    assert "1 of 2 killed (50.0 %)" in mutants.of_file(mutation.file, [killed, lives]).detail
    assert mutants.of_fate(killed) is None
    row = mutants.of_fate(lives)
    assert row is not None
    assert (row.violations, "lives: " in row.detail) == (0, True)
    assert mutants.of_place("core", POOL, "fault").violations == 1


def test_committed_scores_are_of_these_sources() -> None:
    told = json.loads(SCORES.read_text(encoding="utf-8"))["files"]
    known = {each.key for each in all_mutations()}
    for file, score in told.items():
        assert score["digest"] == digest_of(file), f"{file}: measure it anew, see mutant_run"
        assert score["mutants"] == len(parsed(file).mutations) == sum(score[kind] for kind in KINDS)
        assert set(score["alive"]) <= known
    mutation = parsed("core/steps.py").mutations[0]
    untried = [each for each in parsed("core/steps.py").mutations if not excuse(each)]
    assert score_of("core/steps.py", {})["untried"] == len(untried) > 0
    assert kind_of(mutation, {"killer": "", "unreached": True}) == "unreached"
    assert kind_of(mutation, {"killer": "x", "unreached": False}) == "killed"


def test_hints_name_places_that_there_are() -> None:
    titles = {title_of(where) for each in REALMS for where in each.places}
    assert {title for places in hints()["killers"].values() for title in places} <= titles | {IMPORT}
    mutation = parsed("core/steps.py").mutations[0]
    assert sorted(first_places(mutation)) == list(range(len(CORE.places)))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiers", "events_of: "),
        ("manager", "expected: references[block] += block != NULL -> references[block] -= block != NULL"),
    ],
)
def test_the_abstraction_is_mutated(name: str, change: str) -> None:
    trusted = next(each for each in abstraction_mutants.TRUSTED if each.name == name)
    mutation = next(each for each in abstraction_mutants.mutations_of(trusted) if change in each.key)
    where = trusted.places[1]
    verdict = abstraction_mutants.verdict_on(mutation, replace(trusted, places=(where,)))
    assert verdict.noticed_by == title_of(where)
    assert difference(where, abstraction_mutants.unchanged())[0] == ""


@pytest.mark.parametrize("trusted", abstraction_mutants.TRUSTED, ids=lambda trusted: trusted.name)
def test_what_is_altered_by_hand_is_named(trusted: abstraction_mutants.Trusted) -> None:
    """The trial passes, and goes before all scopes; a comparison that names nothing does not pass it."""
    trial = trusted.places[0]
    assert title_of(trial).endswith("s_by_hand")
    assert difference(trial, abstraction_mutants.unchanged())[0] == ""
    comparing = {
        "manager": "differences: return [f",
        "table": "paged_differences: return [f",
        "tier": "in_order: return",
    }
    change = next(change for name, change in comparing.items() if trusted.name.startswith(name))
    mutation = next(each for each in abstraction_mutants.mutations_of(trusted) if change in each.key)
    assert abstraction_mutants.verdict_on(mutation, trusted).noticed_by == title_of(trial)


def test_a_blind_comparison_is_noticed_by_the_museum() -> None:
    trusted = abstraction_mutants.TRUSTED[0]
    mutations = abstraction_mutants.mutations_of(trusted)
    blind = next(each for each in mutations if "differences: if wanted == shown -> if wanted != shown" in each.key)
    few = replace(trusted, places=(TIGHT_PLACE,), bugs=("B09",))
    verdict = abstraction_mutants.verdict_on(blind, few)
    assert verdict.noticed_by == "museum"
    rows = list(abstraction_mutants.rows_of([verdict, replace(verdict, noticed_by="")]))
    assert [row.violations for row in rows] == [0, 1, 0]
    assert rows[-1].detail.endswith("lives")


TRIALS: tuple[tuple[Trial, str, str], ...] = (
    (part_trials.digests, "core/block_hash.py", "v3 ^= word -> pass"),
    (part_trials.order, "core/access_order.py", "AccessOrder.add: self.size += 1 -> self.size += 2"),
    (part_trials.losses, "core/losses.py", "Losses._remember: self._last = slot -> pass"),
    (part_trials.handles, "core/blocks.py", "KVCacheBlocks.__eq__: "),
    (worker_trials.WALKS[0], "core/replica.py", "TableReplica._append: index += 1 -> index += 2"),
    (replica_trials.WALKS[0], "core/replica.py", "TableReplica._place: self._at[other] = row -> pass"),
    (replica_trials.WALKS[2], "core/replica.py", "TableReplica._state_read: return 0 -> pass"),
    (replica_oddities.row_refusals, "core/replica.py", "TableReplica._null: if start < 0"),
    (replica_oddities.row_edges, "core/replica.py", "_count: while i < size -> while i <= size"),
    (replica_oddities.row_managers, "core/rows.py", "TableRows.remove_request: self._applied = 0 -> self._applied = 1"),
    (check_trials.self_checks, "core/check.py", "check_queue: free = "),
    (name_trials.arguments, "core/request.py", "_checked_items: if item.offset < 0"),
    (name_trials.packing, "core/request.py", "_pack_view: i += 8 -> i += 9"),
    (name_trials.shown, "core/pool.py", "KVCacheBlock.is_null: "),
    (name_trials.bare_pool, "core/pool.py", "BlockPool.touch: self.touch_entries(ids) -> pass"),
    (alone_trials.alone, "core/managers.py", "SingleTypeKVCacheManager.free: self.release(table) -> pass"),
    (store_trials.index, "core/index.py", "PrefixIndex._close_gap: gap = slot -> pass"),
    (store_trials.stale_plans, "core/store.py", "BlockStore.touch_entries: self.version += 1 -> self.version += 0"),
    (store_trials.explained, "core/store.py", "BlockStore.loss: at: i64 = 2 * "),
)


@pytest.mark.parametrize(("trial", "file", "change"), TRIALS, ids=[f"{each[0].__name__} {each[2]}" for each in TRIALS])
def test_trials_pass_unchanged_and_find_a_mutant(trial: Trial, file: str, change: str) -> None:
    found = [each for each in parsed(file).mutations if change in each.key]
    if not found:
        pytest.fail(f"{file} has no mutant {change}")
    assert difference(trial, load())[0] == ""
    assert difference(trial, load({file: parsed(file).compiled(found[0].key)}))[0]


def test_the_plain_hash_gives_the_published_vectors() -> None:
    for length, told in enumerate(part_trials.VECTORS):
        assert siphash(part_trials.KEY, bytes(range(length)), 2, 4).hex() == told


def test_the_kit_stands_on_a_variant_and_leaves_the_process_alone() -> None:
    import sys

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("blockwright", KIT)}
    package = load()
    (adapter,) = kit_on(package, "blockwright_adapter")
    assert adapter.blockwright is package
    assert {name: sys.modules.get(name) for name in before} == before

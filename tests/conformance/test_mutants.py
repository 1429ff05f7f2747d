"""Property: mutants are found, put in one at a time, noticed by places, proofs or unit tests, and reported.

How: mutants of a small source; one of each result (killed, killed at import, running on and on, living); what a place
executes; names that outlive a move; the sample, the floor, the list of survivors; trials pass unchanged and find a
mutant each; a theorem is refuted by a wrong closed form and not by one that comes to the same.
Not covered: every mutant (`blockwright conform --gate mutants --profile nightly`).
"""

from pathlib import Path

import pytest

from blockwright_conformance.gates import Profile
from blockwright_lab.known_bugs.known_bug import Trial
from blockwright_lab.known_bugs.variants import KIT, kit_on, load
from blockwright_lab.mutation import gate, survivors, walks
from blockwright_lab.mutation.mutator import Mutation, Source
from blockwright_lab.mutation.places import ENDLESS, difference
from blockwright_lab.mutation.proofs import refuted
from blockwright_lab.mutation.reach import MARKS, Reach, by_line, marked, reach
from blockwright_lab.mutation.results import IMPORT, Result, order, result_of, visited
from blockwright_lab.mutation.survivors import reason_for, share
from blockwright_lab.mutation.targets import CORE, MEDIA, TARGETS, all_mutations, parsed, target, target_of, title_of
from blockwright_lab.trials import (
    abstraction_trials,
    alone_trials,
    check_trials,
    name_trials,
    part_trials,
    replica_oddities,
    replica_trials,
    store_model,
    store_trials,
    value_trials,
    worker_trials,
)
from blockwright_lab.trials.siphash import siphash

SOURCES = Path(__file__).parents[2] / "impl" / "blockwright"


def mutation_of(file: str, *words: str) -> Mutation:
    """The first mutant whose key holds all of some texts."""
    return next(each for each in parsed(file).mutations if all(word in each.key for word in words))


def number_of(title: str) -> int:
    """The number of a place of the core."""
    return next(number for number, where in enumerate(CORE.places) if title_of(where) == title)


POOL, TIGHT = number_of("trial: pool"), number_of("full, block 1: known bugs, tight")


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


def test_results() -> None:
    wrong = mutation_of("core/store.py", "self._num_free = count - 1 -> self._num_free = count - 2")
    killed = visited(wrong, [POOL], 1)
    assert (killed.killer, killed.place, killed.visited) == ("trial: pool", POOL, 1)
    assert order(killed.mutation, [TIGHT, POOL])[0] == POOL  # the last killer of its function goes first
    endless = result_of(mutation_of("core/store.py", "BlockStore.__init__: block += 1 -> block += 0"), [TIGHT])
    assert (endless.how, endless.place) == (ENDLESS, TIGHT)
    lives = result_of(mutation_of("core/store.py", "self.version = 0 -> self.version = 1"), [POOL, TIGHT])
    assert (lives.killer, lives.visited) == ("", 2)
    assert visited(lives.mutation, [TIGHT, POOL], -1.0).visited == 0


def test_a_mutant_that_breaks_the_import_is_killed() -> None:
    broken = mutation_of("core/block_hash.py", "_SipKey.__init__: if len(key) != 16 -> if len(key) == 16")
    result = visited(broken, [TIGHT], 1)
    assert (result.killer, result.place) == (IMPORT, None)
    assert "must be 16 bytes" in result.how


def test_a_place_tells_what_it_executes() -> None:
    found = reach("core", TIGHT)
    take = mutation_of("core/store.py", "BlockStore.fill: ")
    explain = mutation_of("core/explain.py", "explain: ")
    assert take.line in found.lines["core/store.py"]
    assert explain.line not in found.lines.get("core/explain.py", ())
    lines = by_line(CORE, [found, Reach(POOL, found.lines, found.seconds / 2)])
    assert lines["core/store.py", take.line] == [POOL, TIGHT]
    assert "__mark__" in marked("core/steps.py").co_names
    assert MARKS


def test_a_target_owns_each_source_once_and_names_its_places() -> None:
    files = [file for each in TARGETS for file in each.files]
    assert len(files) == len(set(files))
    for each in TARGETS:
        titles = [title_of(where) for where in each.places]
        assert len(titles) == len(set(titles)), each.name
        assert all(target_of(file) is each for file in each.files)
        assert all(each.left_out.values())
        assert all((survivors.TREE / file).is_file() for file in each.tests)


def test_every_source_of_the_books_is_mutated_or_left_out_with_a_reason() -> None:
    core = {f"core/{path.name}" for path in (SOURCES / "core").glob("*.py")} - {"core/__init__.py"}
    assert core == set(target("core").files) | set(target("parts").files)
    named = {Path(file).stem for file in target("connector").files} | {name for each in MEDIA for name in each.split()}
    assert named == {path.stem for path in (SOURCES / "offload").glob("*.py")}


def test_names_outlive_a_move() -> None:
    text = "class A:\n    def f(self) -> int:\n        return 1 + 2\n"
    here, there = Source("a/one.py", (), text), Source("b/two.py", (), "import os\n\n" + text)
    assert [each.digest for each in here.mutations] == [each.digest for each in there.mutations]
    digests = [each.digest for each in all_mutations()]
    assert len(set(digests)) == len(digests)


def test_a_sample_is_fixed_and_draws_by_name() -> None:
    sample = gate.chosen(Profile())
    assert len(sample) == 200
    assert sample == gate.chosen(Profile())
    assert len(gate.chosen(Profile("nightly", scope="core/steps.py"))) == len(parsed("core/steps.py").mutations)
    assert sorted(each.key for some in gate.batches(sample) for each in some) == sorted(each.key for each in sample)


def test_the_floor_is_a_rate() -> None:
    mutation = mutation_of("core/steps.py", "copy_for")
    killed, lives = Result(mutation, "place", "how", 1, 1, 5, 0.1), Result(mutation)
    assert gate.of_all([killed, lives], 0, 50).violations == 0
    assert gate.of_all([killed, lives], 0, 51).violations == 1
    assert gate.of_all([killed, lives], 2, 75).violations == 0
    assert share(0, 0, 0) == 100.0
    assert (row := gate.of_file(mutation.file, [killed, lives], [])).passed == 1
    assert row.detail.startswith("1 of 2 killed")
    assert gate.of_survivor(mutation).violations == 0
    assert mutation.digest in gate.of_survivor(mutation).detail
    assert gate.of_place("core", POOL, "fault").violations == 1


def test_survivors_are_listed_with_a_reason() -> None:
    assert reason_for(
        mutation_of("core/store.py", "BlockStore.take_one: self.version += 1 -> self.version += 2")
    ).startswith("versions")
    assert reason_for(mutation_of("core/store.py", "self.version += 1 -> self.version += 0")) == ""
    for listed in survivors.survivors().values():
        assert [each for held in listed.values() for each in held.values() if len(each.split()) < 3] == []


def test_the_list_of_survivors_is_changed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_implementation, of_specification = (each[:3] for each in survivors.everything().values())
    there = {"implementation": of_implementation, "specification": of_specification}
    monkeypatch.setattr(survivors, "everything", lambda: there)
    one, other = of_implementation[0], of_implementation[1]
    listed = {"implementation": {one.function: {one.digest: "why", "0" * 16: "gone"}}, "specification": {}}
    monkeypatch.setattr(survivors, "survivors", lambda: listed)
    changed = survivors.changed(listed, True, [other.digest], "nobody can tell them")
    assert changed["implementation"][one.function].get("0" * 16) is None
    assert changed["implementation"][one.function][one.digest] == "why"
    assert changed["implementation"][other.function][other.digest] == "nobody can tell them"
    survivors.write(tmp_path / "survivors.json", changed)
    assert "nobody" in (tmp_path / "survivors.json").read_text(encoding="utf-8")


def test_what_killed_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivors, "KILLERS", tmp_path / "mutation" / "killers.json")
    survivors.killers.cache_clear()
    one, other = parsed("core/steps.py").mutations[:2]
    survivors.remember([(one, "trial: pool")])
    assert survivors.known_killers(one) == ["trial: pool"]
    survivors.remember([(other, "tests/core/test_x.py::test_y")])
    own = survivors.known_killers(other)[0]
    assert survivors.is_test(own)
    assert not survivors.is_test(survivors.known_killers(one)[0])
    survivors.killers.cache_clear()


@pytest.mark.parametrize(
    "trial",
    [abstraction_trials.managers_by_hand, abstraction_trials.tables_by_hand, abstraction_trials.tiers_by_hand],
    ids=lambda trial: trial.__name__,
)
def test_what_is_altered_by_hand_is_named(trial: Trial) -> None:
    """What compares states names exactly what differs."""
    assert difference(trial, load())[0] == ""


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
    (name_trials.arguments, "core/request.py", "_checked_items: if offset < 0"),
    (name_trials.packing, "core/request.py", "_pack_view: i += 8 -> i += 9"),
    (name_trials.shown, "core/pool.py", "KVCacheBlock.is_null: "),
    (name_trials.bare_pool, "core/pool.py", "BlockPool.touch: self.touch_entries(ids) -> pass"),
    (alone_trials.alone, "core/managers.py", "SingleTypeKVCacheManager.free: self.release(table) -> pass"),
    (store_trials.index, "core/index.py", "PrefixIndex._close_gap: gap = slot -> pass"),
    (store_trials.stale_plans, "core/store.py", "BlockStore.touch_entries: self.version += 1 -> self.version += 0"),
    (store_trials.explained, "core/store.py", "BlockStore.loss: at: i64 = 2 * "),
    (store_model.store_beside_model, "core/store.py", "BlockStore._evict: self._num_evictions += 1 -> pass"),
    (store_model.store_alone, "core/journal.py", "Journal.take_evictions: return [] -> pass"),
    (store_trials.crowds, "core/index.py", "capacity *= 2 -> capacity *= 3"),
    (walks.WALKS[0], "core/running.py", "_count_new: whole: i64 = 0 -> whole: i64 = 1"),
    (value_trials.peaks, "core/peak.py", "return most -> return most + 1"),
    (
        value_trials.refused_counts,
        "core/peak.py",
        "ask.encoder = count_of('num_encoder_tokens', num_encoder_tokens) -> pass",
    ),
    (value_trials.requests, "core/request.py", "Request.__copy__: return self.copy() -> return self"),
    (value_trials.copies, "core/tables.py", "twin.trim_at = self.trim_at -> pass"),
    (value_trials.manager_answers, "core/manager.py", "max_model_len: return self._max_len -> pass"),
    (value_trials.probes, "core/window.py", "Probe.restore: self.run_end = i + 1 -> self.run_end = i + 2"),
)


@pytest.mark.parametrize(("trial", "file", "change"), TRIALS, ids=[f"{each[0].__name__} {each[2]}" for each in TRIALS])
def test_trials_pass_unchanged_and_find_a_mutant(trial: Trial, file: str, change: str) -> None:
    found = [each for each in parsed(file).mutations if change in each.key]
    if not found:
        pytest.fail(f"{file} has no mutant {change}")
    assert difference(trial, load())[0] == ""
    assert difference(trial, load({file: parsed(file).compiled(found[0].key)}))[0]


def test_a_wrong_closed_form_refutes_a_theorem() -> None:
    pytest.importorskip("z3")
    wrong = mutation_of(
        "core/window.py", "SlidingRule.last_needing: return position + self._window - 2 -> return position + self"
    )
    statement, how = refuted(wrong)
    assert statement.startswith("proof: ")
    assert "not so for" in how


def test_a_closed_form_that_comes_to_the_same_refutes_none() -> None:
    pytest.importorskip("z3")
    assert refuted(mutation_of("core/window.py", "SlidingRule.first_needed: if first < 0 -> if first < 1")) == ("", "")


def test_a_function_that_no_theorem_reads_is_left_to_others() -> None:
    assert refuted(mutation_of("core/store.py", "BlockStore.fill: self.version += 1 -> pass")) == ("", "")


def test_the_plain_hash_gives_the_published_vectors() -> None:
    for length, told in enumerate(part_trials.VECTORS):
        assert siphash(part_trials.KEY, bytes(range(length)), 2, 4).hex() == told


def test_the_kit_stands_on_a_variant_and_leaves_the_process_alone() -> None:
    import sys

    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("blockwright", KIT)}
    package = load()
    (adapter,) = kit_on(package, "blockwright_conformance.kv_cache.blockwright")
    assert adapter.blockwright is package
    assert {name: sys.modules.get(name) for name in before} == before

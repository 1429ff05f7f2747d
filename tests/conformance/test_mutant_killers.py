"""What notices mutants beside scopes: proofs, a model of the store, recorded walks, and trials of values.

Property: each passes with the unchanged implementation, and notices a wrong one; a theorem is refuted by a wrong closed
form and not by one that comes to the same. How: one mutant that is known to break each. Not covered: how many they
notice of all; the nightly run counts that (docs/data/mutants.json).
"""

import pytest

from blockwright_conformance import mutant_walks, store_model, store_trials, value_trials
from blockwright_conformance.exhibit import Trial
from blockwright_conformance.mutant_places import difference
from blockwright_conformance.mutant_proofs import refuted
from blockwright_conformance.mutation import Mutation
from blockwright_conformance.realms import parsed
from blockwright_conformance.variants import load


def mutation(file: str, words: str) -> Mutation:
    """Give the mutant of a source whose name contains some words."""
    return next(each for each in parsed(file).mutations if words in each.key)


TRIALS: tuple[tuple[Trial, str, str], ...] = (
    (store_model.store_beside_model, "core/store.py", "BlockStore._evict: self._num_evictions += 1 -> pass"),
    (store_model.store_alone, "core/journal.py", "Journal.take_evictions: return [] -> pass"),
    (store_trials.crowds, "core/index.py", "capacity *= 2 -> capacity *= 3"),
    (mutant_walks.WALKS[0], "core/running.py", "_count_new: whole: i64 = 0 -> whole: i64 = 1"),
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


@pytest.mark.parametrize(("trial", "file", "words"), TRIALS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_trial_notices_a_mutant_and_nothing_else(trial: Trial, file: str, words: str) -> None:
    wrong = load({file: parsed(file).compiled(mutation(file, words).key)})
    assert difference(trial, load())[0] == ""
    assert difference(trial, wrong)[0] != ""


def test_a_wrong_closed_form_refutes_a_theorem() -> None:
    pytest.importorskip("z3")
    wrong = mutation(
        "core/window.py", "SlidingRule.last_needing: return position + self._window - 2 -> return position + self"
    )
    statement, how = refuted(wrong)
    assert statement.startswith("proof: ")
    assert "not so for" in how


def test_a_closed_form_that_comes_to_the_same_refutes_none() -> None:
    pytest.importorskip("z3")
    assert refuted(mutation("core/window.py", "SlidingRule.first_needed: if first < 0 -> if first < 1")) == ("", "")


def test_a_function_that_no_theorem_reads_is_left_to_others() -> None:
    assert refuted(mutation("core/store.py", "BlockStore.take: self.version += 1 -> pass")) == ("", "")

"""Mutants of the core: its sources, and where it is at work: the museum's places, and what survivors asked for."""

from typing import Any

from blockwright_spec.reads import Chunked, Full, Kind, Mamba, Prefix, Sliding

from . import (
    alone_trials,
    call_trials,
    check_trials,
    edge_trials,
    lone_trials,
    mutant_walks,
    name_trials,
    paged_places,
    places,
    running_trials,
    store_model,
    store_trials,
    trials,
    value_trials,
)
from .equivalents_core import EQUIVALENT, RULES
from .exhibit import Place, Where
from .handed_out import handed_out
from .mutant_realm import Realm
from .scopes import of_groups, scope, strings
from .watched import CrowdedAdapter, KeylessAdapter, ToldAdapter, ToldFineAdapter

FEW: tuple[Prefix, ...] = ((0, (0,)), (0, (0, 0)), (0, (1, 1)))

ALONE: tuple[Kind, ...] = (Full(), Sliding(2), Chunked(2), Mamba())
PAIRS: tuple[tuple[tuple[Kind, int], ...], ...] = (((Full(), 2), (Sliding(2), 1)), ((Full(), 1), (Mamba(), 2)))
LONG: dict[str, Any] = {"prompts": ((0, (0,) * 5), (0, (0, 0, 1, 1, 1))), "max_model_len": 5}
ONES: dict[str, Any] = {"prompts": strings(1, 1, 3), "max_model_len": 4}
TWOS: dict[str, Any] = {"prompts": strings(1, 2, 2), "max_model_len": 4}

MORE: tuple[Place, ...] = (
    Place(scope(Full(), 1, "mutants, wrong calls", 4, 3, "chunks misuse preempt", prompts=FEW)),
    Place(scope(Sliding(3), 2, "mutants, wrong calls", 4, 5, "chunks misuse trim")),
    Place(scope(Mamba(), 1, "mutants, wrong calls", 4, 3, "chunks misuse trim")),
    Place(scope(Mamba(), 2, "mutants", 4, 5, "chunks misuse preempt batch trim", caching=False)),
    Place(scope(Full(), 1, "mutants, held", 4, 3, "hold reset trim adopt")),
    Place(scope(Mamba(), 1, "mutants", 4, 4, "chunks batch")),
    Place(scope(Mamba(), 1, "mutants, put off", 4, 3, "later chunks")),
    Place(scope(Full(), 2, "mutants, told", 4, 5, "", lookaheads=(0, 2), slots=1), ToldAdapter),
    Place(scope(Full(), 2, "mutants, told in fine units", 4, 5, "", slots=1), ToldFineAdapter),
    Place(scope(Sliding(2), 1, "mutants, told", 4, 4, ""), ToldAdapter),
    Place(scope(Mamba(), 2, "mutants, told", 4, 5, "chunks", slots=1), ToldAdapter),
    Place(
        scope(Full(), 1, "mutants, crowded", 4, 3, "reset", prompts=strings(2, 1, 2), outputs=(0, 1)), CrowdedAdapter
    ),
    Place(scope(Sliding(2), 2, "mutants, quiet", 5, 6, "chunks batch", slots=1, lookaheads=(0, 1, 2), caching=False)),
    Place(scope(Sliding(3), 2, "mutants, quiet", 5, 7, "chunks batch", slots=1, lookaheads=(0, 2))),
    Place(scope(Chunked(4), 2, "mutants, quiet", 6, 8, "chunks batch", slots=1, lookaheads=(0, 2), caching=False)),
    Place(scope(Chunked(2), 2, "mutants, quiet", 5, 6, "chunks batch", slots=1, lookaheads=(0, 2), caching=False)),
    Place(scope(Chunked(4), 2, "mutants", 4, 6, "chunks trim")),
    Place(scope(Chunked(4), 2, "mutants, long", 5, 8, "", slots=1, prompts=strings(1, 7, 7))),
    Place(scope(Sliding(2), 1, "mutants, eagle", 4, 5, "", eagle=True)),
    Place(scope(Sliding(2), 1, "mutants, drafts", 5, 4, "batch", lookaheads=(0, 1), drafts=1, max_model_len=5)),
    Place(scope(Sliding(2), 2, "mutants, drafts", 5, 5, "", slots=1, drafts=2, max_model_len=7)),
    Place(scope(Full(), 2, "mutants, quiet batches", 5, 5, "chunks batch", lookaheads=(0, 1), caching=False)),
    Place(scope(Sliding(2), 1, "mutants, keyless", 4, 4, "chunks batch", caching=False), KeylessAdapter),
    *(Place(scope(kind, 1, "mutants, explained", 4, 4, "explain reset", prompts=strings(1, 2, 3))) for kind in ALONE),
    *(Place(of_groups(groups, "mutants, explained", 12, 5, "explain", **LONG)) for groups in PAIRS),
    Place(of_groups(PAIRS[0], "mutants, admitted", 7, 4, "whole plan", **ONES, watermark=1)),
    Place(of_groups(PAIRS[1], "mutants, wrong calls", 7, 3, "misuse load", in_flight=1, drafts=1, slots=1, **TWOS)),
    Place(scope(Mamba(1), 1, "mutants, wrong calls", 7, 3, "misuse", in_flight=2, drafts=1, slots=1, **TWOS)),
    Place(scope(Full(), 2, "mutants, forked", 5, 4, "fork batch plan", prompts=strings(1, 3, 3), slots=3)),
    Place(scope(Mamba(1), 2, "mutants, forked", 6, 3, "fork misuse", **TWOS)),
    Place(of_groups(PAIRS[0], "mutants, forked", 7, 3, "fork", prompts=strings(1, 1, 1))),
    Place(of_groups(PAIRS[1], "mutants, forked", 7, 3, "fork", prompts=strings(1, 2, 2), caching=False)),
)
"""Scopes that survivors asked for."""

PLACES: tuple[Where, ...] = (
    places.TIGHT,
    places.UNCACHED,
    places.FULL,
    places.SLIDING,
    places.TOLD,
    places.MAMBA,
    places.CHUNKED,
    places.LATER,
    places.DRAFTS,
    places.EAGLE,
    places.SLIDING_EAGLE,
    places.SLIDING_WIDE,
    places.SLIDING_NARROW,
    places.SLIDING_LATER,
    places.SLIDING_BATCH,
    places.SLIDING_UNCACHED,
    places.MAMBA_NARROW,
    places.MAMBA_EAGLE,
    places.FINE,
    places.SPLIT,
    places.SALTED,
    places.FLYING,
    places.FLYING_FAR,
    places.FLYING_BOTH,
    places.FLYING_SLIDING,
    places.FLYING_DRAFTS,
    places.SETTLING,
    places.LOADING,
    places.LOADING_BOTH,
    places.PLANNED,
    places.PLANNED_DRAFTS,
    places.ADMITTED,
    places.ENCODER,
    places.MAMBA_UNCACHED,
    places.BOTH_TIGHT,
    places.BOTH_BATCH,
    places.TURNED,
    places.UNEQUAL,
    trials.keys,
    trials.pool,
    name_trials.arguments,
    name_trials.packing,
    name_trials.shown,
    name_trials.bare_pool,
    alone_trials.alone,
    check_trials.self_checks,
    store_trials.index,
    store_trials.crowds,
    value_trials.peaks,
    value_trials.refused_counts,
    value_trials.requests,
    value_trials.copies,
    value_trials.manager_answers,
    value_trials.probes,
    store_model.store_alone,
    store_trials.stale_plans,
    store_trials.explained,
    store_trials.lined_up,
    store_model.store_beside_model,
    *mutant_walks.WALKS,
    paged_places.ACCESS,
    paged_places.EVICTIONS,
    call_trials.plans,
    call_trials.refusals,
    call_trials.keyless,
    call_trials.pins,
    call_trials.batches,
    handed_out,
    places.COLLIDING,
    Place(scope(Full(), 2, "mutants, two forked", 5, 3, "fork", prompts=strings(1, 1, 1))),
    *MORE,
    *edge_trials.TRIALS,
    *lone_trials.TRIALS,
    running_trials.running_refusals,
    running_trials.running_plans,
    running_trials.running_pins,
    running_trials.running_facts,
    running_trials.running_checks,
)

FILES = (
    "core/store.py",
    "core/index.py",
    "core/group.py",
    "core/window.py",
    "core/tables.py",
    "core/plan.py",
    "core/steps.py",
    "core/running.py",
    "core/asking.py",
    "core/timed.py",
    "core/manager.py",
    "core/explain.py",
    "core/request.py",
    "core/managers.py",
    "core/pool.py",
    "core/check.py",
    "core/forks.py",
    "core/peak.py",
    "core/journal.py",
)

WRITTEN = "initial values, each written before it is read"
MODEL = "asked by workers that run a model, not by a scheduler; unit tests"

LEFT_OUT: dict[str, str] = {
    "core/plan.py Ask.__init__": WRITTEN,
    "core/group.py GroupTables.state_block": MODEL,
}

TESTS = (
    "tests/core/test_admission.py",
    "tests/core/test_bad_input.py",
    "tests/core/test_check.py",
    "tests/core/test_config.py",
    "tests/core/test_drafts.py",
    "tests/core/test_encoder.py",
    "tests/core/test_evictions.py",
    "tests/core/test_explain.py",
    "tests/core/test_forks.py",
    "tests/core/test_groups.py",
    "tests/core/test_hashing.py",
    "tests/core/test_integers.py",
    "tests/core/test_loads.py",
    "tests/core/test_manager.py",
    "tests/core/test_managers.py",
    "tests/core/test_plans.py",
    "tests/core/test_pool.py",
    "tests/core/test_pool_keys.py",
    "tests/core/test_pool_model.py",
    "tests/core/test_results.py",
    "tests/core/test_slots.py",
    "tests/core/test_step_integers.py",
    "tests/core/test_time.py",
    "tests/core/test_windows.py",
)
"""Unit tests, for what no place calls or notices."""

REALM = Realm("core", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT, TESTS)

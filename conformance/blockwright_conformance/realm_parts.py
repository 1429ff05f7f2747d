"""Mutants of parts of the core that stand alone, or behind a worker: their sources, and what they are tried in."""

from . import (
    call_trials,
    part_trials,
    places,
    replica_oddities,
    replica_trials,
    store_model,
    store_trials,
    trials,
    worker_trials,
)
from .equivalents_parts import EQUIVALENT, RULES
from .exhibit import Where
from .mutant_realm import Realm

FILES = (
    "core/block_hash.py",
    "core/access_order.py",
    "core/losses.py",
    "core/blocks.py",
    "core/rows.py",
    "core/replica.py",
)
PLACES: tuple[Where, ...] = (
    trials.keys,
    part_trials.digests,
    part_trials.order,
    part_trials.losses,
    part_trials.handles,
    store_trials.crowds,
    store_model.store_alone,
    *worker_trials.WALKS,
    call_trials.batches,
    call_trials.refusals,
    places.TOLD,
    *replica_trials.WALKS,
    *replica_oddities.ODDITIES,
)

LEFT_OUT: dict[str, str] = {}

TESTS = (
    "tests/core/test_evictions.py",
    "tests/core/test_hashing.py",
    "tests/core/test_integers.py",
    "tests/core/test_odd_hashers.py",
    "tests/core/test_pool.py",
    "tests/core/test_pool_keys.py",
    "tests/core/test_pool_model.py",
    "tests/core/test_siphash.py",
    "tests/core/test_slots.py",
    "tests/core/test_step_integers.py",
    "tests/device/test_inputs_refusals.py",
    "tests/device/test_inputs_staged.py",
    "tests/device/test_inputs.py",
    "tests/device/test_step_refusals.py",
)
"""Unit tests, for what no place calls or notices."""

REALM = Realm("parts", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT, TESTS)

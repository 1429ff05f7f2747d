"""Mutants of parts of the core that stand alone, or behind a worker: their sources, and what they are tried in."""

from . import call_trials, part_trials, places, trials, worker_trials
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
    *worker_trials.WALKS,
    call_trials.batches,
    call_trials.refusals,
    places.TOLD,
)

LEFT_OUT: dict[str, str] = {}

REALM = Realm("parts", FILES, PLACES, EQUIVALENT, RULES, LEFT_OUT)

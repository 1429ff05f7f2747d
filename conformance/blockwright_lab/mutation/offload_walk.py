"""A random walk of one tier with more keys than a scope can have: where indexes grow and keys share buckets.

Deterministic; for mutants, as histories are for the gate.
"""

from collections.abc import Iterator
from random import Random
from types import ModuleType

from blockwright_conformance.offload.tier_adapter import tier_of
from blockwright_conformance.offload.tier_world import TierCall, TierNow, tier_act
from blockwright_spec.offload.tier_state import Key, Tier, tier

from ..known_bugs.known_bug import Fault
from ..known_bugs.watch import rearm

MANY: tuple[Key, ...] = tuple(b"%d key of some length" % number for number in range(40))
STEPS = 250
NAMES = ("touch", "prepare_load", "complete_load", "prepare_store", "complete_store", "remove")


def walk(package: ModuleType) -> Iterator[Fault]:
    """Make random calls on a tier of 24 places and on the specification, up to the first difference (REF-0)."""
    for manager in ("LRU", "ARC"):
        random, adapter, now = Random(1), tier_of(package)(manager, 24), TierNow(tier(24))
        for step in range(STEPS):
            rearm()
            told, faults = tier_act(adapter, now, drawn(random, now.tier), MANY)
            adapter.check()
            if faults:
                yield Fault("REF-0", "; ".join(faults), step + 1)
                return
            now = told.now


def drawn(random: Random, state: Tier) -> TierCall:
    """Draw a call: mostly of keys that it may name."""
    name = random.choice(NAMES)
    present = [entry.key for entry in state.entries] if "store" not in name or "complete" in name else []
    keys = random.sample(MANY, 5) if not present else [random.choice(present) for _ in range(random.randrange(1, 4))]
    return TierCall(name, tuple(keys), not name.startswith("complete") or random.random() < 0.8)

"""Random walks of chains in lock-step: more tiers, places and transfers than a scope that is visited whole can have.

What is done is drawn once, along the specification; each copy of the implementation then does the same.
"""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from random import Random
from types import ModuleType
from typing import Any

from blockwright_conformance.offload.actions import (
    Cancel,
    ChainAction,
    Compute,
    Land,
    Load,
    Store,
    chain_enabled,
    chain_told,
    sliced,
)
from blockwright_conformance.offload.chain_adapter import chain_of
from blockwright_conformance.offload.chain_world import chain_act
from blockwright_conformance.offload.scopes import KEYS, ChainScope, chain_scope, request
from blockwright_spec.offload.chain_state import Chain, chain, chain_lookup

from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.watch import rearm

WEIGHTS: dict[type, int] = {Store: 5, Load: 5, Land: 6, Compute: 5, Cancel: 1}
STEPS = 160
Walk = list[tuple[Chain, ChainAction]]


@cache
def drawn(scope: ChainScope, seed: int) -> tuple[tuple[Chain, ChainAction], ...]:
    """Draw a walk: states, each with what is done there."""
    random, state, walk = Random(seed), chain(scope.config), []
    for _ in range(STEPS):
        kinds: dict[type, list[ChainAction]] = {}
        for action in chain_enabled(scope, state):
            if not (isinstance(action, Land) and not action.success and random.random() < 0.6):
                kinds.setdefault(type(action), []).append(action)
        kind = random.choices(list(kinds), [WEIGHTS.get(each, 2) for each in kinds])[0]
        action = random.choice(kinds[kind])
        walk.append((state, action))
        state = chain_told(state, action, scope.eager).state
    return tuple(walk)


def walk_of(scope: ChainScope, seed: int) -> Trial:
    """Give the trial that takes a walk (REF-0)."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        adapter = chain_of(package)(scope.config)
        asked = [*(sliced(each)[0] for each in scope.loads), *((key,) for key in scope.keys), scope.keys]
        for at, (state, action) in enumerate(drawn(scope, seed)):
            rearm()
            adapter, old = (adapter.copy(), adapter) if at % 7 == 3 else (adapter, None)
            told, faults = chain_act(adapter, state, action, scope.keys, scope.eager)
            adapter.chain.check()
            found = [adapter.chain.lookup(list(keys)) for keys in asked]
            if found != (wanted := [chain_lookup(told.state, keys) for keys in asked]):
                faults.append(f"lookup: expected {wanted}, found {found}")
            if old is not None:  # it must not have followed its copy
                old.chain.check()
                faults += chain_act(old, state, action, scope.keys, scope.eager)[1]
            if faults:
                yield Fault("REF-0", "; ".join(faults), at + 1)
                return

    trial.__name__ = f"walk {seed}, {scope.name}"
    trial.prepare = lambda: drawn(scope, seed)  # type: ignore[attr-defined]
    return trial


FOUR = tuple(request(1, (key, at)) for at, key in enumerate(KEYS))
PAIRS = tuple(request(1, (one, at), (other, at + 1)) for at, (one, other) in enumerate(pairwise(KEYS)))
WHOLE = request(1, *((key, at) for at, key in enumerate(KEYS)))
LOADS = (*FOUR, *PAIRS, WHOLE, request(1, (KEYS[0], 4)))
WIDE = tuple(
    request(2, *((key, at) for at, key in enumerate(KEYS)))[start:stop] for start, stop in ((0, 2), (2, 4), (1, 3))
)
MANY: dict[str, Any] = {"stores": (*FOUR, *PAIRS), "loads": LOADS, "misuse": True, "touched": ((KEYS[1], KEYS[0]),)}

SCOPES: tuple[ChainScope, ...] = (
    chain_scope("walks: 2 + 3 + 3 blocks", (2, 3, 3), 5, reserve=(1, 1), **MANY),
    chain_scope("walks: 4 + 2 + 2 blocks, late", (4, 2, 2), 5, reserve=(2, 1), **MANY, eager=False, under_way=4),
    chain_scope("walks: 2 + 1 + 2 blocks, through", (2, 1, 2), 5, through=True, **MANY),
    chain_scope("walks: 2 + 3 blocks, through, freed, late", (2, 3), 5, through=True, frees=True, **MANY, eager=False),
    chain_scope("walks: 3 + 2 blocks, freed", (3, 2), 5, reserve=(2,), frees=True, **MANY, most=2),
    chain_scope("walks: 3 + 2 blocks of span 2", (3, 2), 8, span=2, reserve=(1,), stores=WIDE, loads=WIDE, misuse=True),
)
WALKS: tuple[Trial, ...] = tuple(walk_of(each, seed) for seed in range(2) for each in SCOPES)

"""Random walks of tiers and chains for mutants: with more keys, places and transfers than a scope can have.

A walk is drawn once, on the implementation itself; each copy of it then does the same.
"""

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from blockwright_conformance.checker.history import HistoryError, replay, walk
from blockwright_conformance.offload.scopes import KEYS, ChainScope, TierScope, chain_scope, request

from ..known_bugs.known_bug import Fault, Trial
from ..known_bugs.worlds import world_on


@cache
def drawn(scope: TierScope | ChainScope, seed: int, steps: int) -> tuple[Any, ...]:
    """Return the actions of a walk."""
    return tuple(walk(world_on(scope), seed, steps).actions)


def walk_of(scope: TierScope | ChainScope, seed: int, steps: int) -> Trial:
    """Return the trial that takes a walk (REF-0)."""

    def trial(package: ModuleType) -> Iterator[Fault]:
        actions = drawn(scope, seed, steps)
        try:
            replay(world_on(scope, package), actions)
        except HistoryError as error:
            found = error.violation
            yield Fault(found.law, found.detail, len(found.actions))

    trial.__name__ = f"walk {seed}, {scope.name}"
    trial.prepare = lambda: drawn(scope, seed, steps)  # type: ignore[attr-defined]
    return trial


MANY = tuple(b"%d key of some length" % number for number in range(40))
"""Keys with which indexes grow and share buckets."""
NAMED = (*((key,) for key in MANY), *(MANY[at : at + 5] for at in range(0, 40, 5)))
TIERS: tuple[Trial, ...] = tuple(
    walk_of(TierScope(f"walks, {policy}: 24 places, 40 keys", policy, 24, NAMED, 3, misuse=False), 1, 250)
    for policy in ("LRU", "ARC")
)

FOUR = tuple(request(1, (key, at)) for at, key in enumerate(KEYS))
PAIRS = tuple(request(1, (one, at), (other, at + 1)) for at, (one, other) in enumerate(pairwise(KEYS)))
WHOLE = request(1, *((key, at) for at, key in enumerate(KEYS)))
LOADS = (*FOUR, *PAIRS, WHOLE, request(1, (KEYS[0], 4)))
WIDE = tuple(
    request(2, *((key, at) for at, key in enumerate(KEYS)))[start:stop] for start, stop in ((0, 2), (2, 4), (1, 3))
)
REST: dict[str, Any] = {"stores": (*FOUR, *PAIRS), "loads": LOADS, "misuse": True, "touched": ((KEYS[1], KEYS[0]),)}

SCOPES: tuple[ChainScope, ...] = (
    chain_scope("walks: 2 + 3 + 3 blocks", (2, 3, 3), 5, reserve=(1, 1), **REST),
    chain_scope("walks: 4 + 2 + 2 blocks, late", (4, 2, 2), 5, reserve=(2, 1), **REST, eager=False, under_way=4),
    chain_scope("walks: 2 + 1 + 2 blocks, through", (2, 1, 2), 5, through=True, **REST),
    chain_scope("walks: 2 + 3 blocks, through, freed, late", (2, 3), 5, through=True, frees=True, **REST, eager=False),
    chain_scope("walks: 3 + 2 blocks, freed", (3, 2), 5, reserve=(2,), frees=True, **REST, most=2),
    chain_scope("walks: 3 + 2 blocks of span 2", (3, 2), 8, span=2, reserve=(1,), stores=WIDE, loads=WIDE, misuse=True),
)
CHAINS: tuple[Trial, ...] = tuple(walk_of(each, seed, 160) for seed in range(2) for each in SCOPES)

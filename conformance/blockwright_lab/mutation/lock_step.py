"""Lock-step as tests, for mutants: every scope of the kit from its initial state on, and far into it by a random walk.

These are the gates' comparisons, cut short: most mutants show within a few hundred transitions of some scope. Run by
the gate `mutants`, beside the tests of the tree (`python -m pytest` with this file runs them, too).
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from blockwright_conformance.block_tables.scopes import PAGED_PR
from blockwright_conformance.block_tables.world import TablesWorld
from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.history import History, walk
from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.scopes import EVERY, large_scopes
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain import world as offload_world
from blockwright_conformance.offload.scopes import CHAIN_PR, TIER_LARGE, TIER_PR
from blockwright_conformance.worker.world import WorkerWorld
from blockwright_conformance.worker.world import scopes as worker_scopes

from ..data_movement.gate import HISTORIES
from ..data_movement.tables_histories import random_walk

NEAR, FAR = 400, 60
"""Transitions from the initial state on, and steps of a walk."""
Way = Callable[[World[Any, Any]], None]


def near(world: World[Any, Any]) -> None:
    found = Explorer(world, laws=False, max_transitions=NEAR).run().violation
    assert found is None, found.detail


def far(world: World[Any, Any]) -> None:
    walk(History(world), 1, FAR)


def lawful(world: World[Any, Any]) -> None:
    found = Explorer(world, alone=True, max_transitions=NEAR).run().violation
    assert found is None, found.detail


def both_ways(make: Callable[[Any], World[Any, Any]], scopes: Iterable[Any]) -> Any:
    @pytest.mark.parametrize("way", [near, far])
    @pytest.mark.parametrize("scope", scopes, ids=lambda each: each.name)
    def test(scope: Any, way: Way) -> None:
        way(make(scope))

    return test


OFFLOAD, WORKERS = (*TIER_PR, *CHAIN_PR), worker_scopes("pr")
test_managers = both_ways(KVCacheWorld, EVERY)
test_block_tables = both_ways(TablesWorld, PAGED_PR)
test_offloading = both_ways(offload_world, (*OFFLOAD, *TIER_LARGE))
test_workers = both_ways(WorkerWorld, WORKERS)


@pytest.mark.parametrize("scope", large_scopes(), ids=lambda each: each.name)
def test_large_managers(scope: Any) -> None:
    """Those too large to be visited whole, where what a batch tells is compared, too."""
    far(KVCacheWorld(scope, is_long=True))


@pytest.mark.parametrize("name", HISTORIES)
def test_block_managers(name: str) -> None:
    """Groups of sequences, and tables longer than scopes have."""
    random_walk(HISTORIES[name], 1, FAR)


PARTS: Any = ((KVCacheWorld, EVERY), (TablesWorld, PAGED_PR), (offload_world, OFFLOAD), (WorkerWorld, WORKERS))
WORLDS: dict[str, Callable[[], World[Any, Any]]] = {
    each.name: partial(make, each) for make, own in PARTS for each in own
}
"""What makes the world of a scope: a world remembers what laws said of lookups, of another source than the one now."""


@pytest.mark.parametrize("scope", WORLDS)
def test_laws(scope: str) -> None:
    lawful(WORLDS[scope]())

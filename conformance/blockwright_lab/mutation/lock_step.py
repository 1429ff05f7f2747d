"""Lock-step as tests, for mutants: every scope of the kit from its initial state on, and far into it by a random walk.

These are the gates' comparisons, cut short: most mutants show within a few hundred transitions of some scope. Run by
the gate `mutants`, beside the tests of the tree (`python -m pytest` with this file runs them, too).
"""

from collections.abc import Callable
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
from blockwright_conformance.offload.scopes import CHAIN_PR, TIER_LARGE, TIER_PR, ChainScope, TierScope
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


ways = pytest.mark.parametrize("way", [near, far])


@ways
@pytest.mark.parametrize("scope", EVERY, ids=lambda each: each.name)
def test_managers(scope: Any, way: Way) -> None:
    way(KVCacheWorld(scope))


@pytest.mark.parametrize("scope", large_scopes(), ids=lambda each: each.name)
def test_large_managers(scope: Any) -> None:
    """Those too large to be visited whole, where what a batch tells is compared, too."""
    far(KVCacheWorld(scope, is_long=True))


@ways
@pytest.mark.parametrize("scope", PAGED_PR, ids=lambda each: each.name)
def test_block_tables(scope: Any, way: Way) -> None:
    way(TablesWorld(scope))


@pytest.mark.parametrize("name", HISTORIES)
def test_block_managers(name: str) -> None:
    """Groups of sequences, and tables longer than scopes have."""
    random_walk(HISTORIES[name], 1, FAR)


@ways
@pytest.mark.parametrize("scope", [*TIER_PR, *TIER_LARGE, *CHAIN_PR], ids=lambda each: each.name)
def test_offloading(scope: Any, way: Way) -> None:
    way(offload_world(scope))


WORKERS = worker_scopes("pr")
OFFLOAD: list[TierScope | ChainScope] = [*TIER_PR, *CHAIN_PR]


@ways
@pytest.mark.parametrize("scope", WORKERS, ids=lambda each: each.name)
def test_workers(scope: Any, way: Way) -> None:
    way(WorkerWorld(scope))


WORLDS: list[World[Any, Any]] = [
    *map(KVCacheWorld, EVERY),
    *map(TablesWorld, PAGED_PR),
    *map(offload_world, OFFLOAD),
    *map(WorkerWorld, WORKERS),
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda each: each.scope.name)
def test_laws(world: World[Any, Any]) -> None:
    lawful(world)

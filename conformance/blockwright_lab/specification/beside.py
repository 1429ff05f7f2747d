"""What differs from the implementation where the specification is wrong: lock-step, walks and plans, as it is now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import explorer

from ..data_movement.offload_scopes import OffloadWorld
from ..data_movement.tables_scopes import World as TablesWorld
from ..known_bugs.watch import SECONDS, rearm
from ..known_bugs.worlds import AnyScope, limited, world_on
from .search import Came, World

LONG = 20 * SECONDS
"""Processor time that a walk or the plans of a model may take: they are no single actions."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A world of the block manager: what it answers before it is called."""

    name: str
    world: TablesWorld


@dataclass(frozen=True, slots=True)
class ChainWalk:
    """A world of offloading: a chain of three tiers with bytes that move."""

    name: str
    world: OffloadWorld


@dataclass(frozen=True, slots=True)
class Models:
    """Random models whose memory is planned, by their seeds."""

    name: str
    seeds: range


class Telling(BlockwrightAdapter):
    """A manager that tells of evictions as well: what is lost with the blocks that a step takes."""

    options: ClassVar[Mapping[str, Any]] = {"track_evictions": True}


def in_lockstep(scope: Any, limit: int) -> str:
    """Explore a scope in lock-step, and give the first difference."""
    found = search_of(scope, limit).run().violation
    return found.detail if found else ""


def search_of(scope: AnyScope, limit: int, alone: bool = False) -> Explorer[Any, Any]:
    """Return the search beside the implementation, or of the specification `alone`; laws of states are left out."""
    if isinstance(scope, Scope):
        manager = Telling if scope.config.caching else BlockwrightAdapter
        return explorer(scope, None if alone else limited(manager), (), max_transitions=limit)
    return Explorer(world_on(scope), alone=alone, laws=False, max_transitions=limit)


def nowhere(_scope: Any, _limit: int) -> str:
    """Compare nothing: no implementation can be asked."""
    return ""


IMPORTS = (
    "blockwright_lab.data_movement.worker_histories",
    "blockwright_lab.data_movement.worker_scopes",
    "blockwright_lab.data_movement.tables_engine",
    "blockwright_lab.data_movement.tables_histories",
    "blockwright_lab.data_movement.memory_plans",
    "blockwright_lab.data_movement.offload_histories",
)
"""Modules that import torch and Hypothesis, which takes longer than an action may."""


def imported(beside: Callable[[Any, int], str]) -> None:
    """Import what a comparison will, before there is a watch over it: it would not survive being stopped."""
    if beside not in (in_lockstep, nowhere):
        for name in IMPORTS:
            import_module(name)


def in_histories(scope: Scope, limit: int) -> str:
    """Have two workers beside a manager take random walks in the worlds of the gate, and give the first difference."""
    from ..data_movement.worker import InputsError
    from ..data_movement.worker_histories import inputs_walk  # it imports torch and Hypothesis
    from ..data_movement.worker_scopes import INPUT_WORLDS

    for seed, world in enumerate(INPUT_WORLDS.values()):
        rearm(LONG)
        try:
            inputs_walk(world, seed, limit // 50)
        except InputsError as error:
            return str(error)
    return ""


def in_walk(walk: Walk, limit: int) -> str:
    """Have a block manager take a random walk, asked before every call, and give the first difference."""
    from ..data_movement.tables_engine import PagedHistoryError  # it imports torch
    from ..data_movement.tables_histories import random_walk

    try:
        random_walk(walk.world, 1, limit // 4, before=lambda: rearm(LONG))
    except PagedHistoryError as error:
        return str(error)
    return ""


def in_chain_walk(walk: ChainWalk, limit: int) -> str:
    """Have a chain take a random walk, its blocks looked at after every call, and give the first difference."""
    from ..data_movement.offload_engine import OffloadHistoryError
    from ..data_movement.offload_histories import chain_walk  # it imports Hypothesis

    rearm(LONG)
    try:
        chain_walk(walk.world, 1, limit // 4)
    except OffloadHistoryError as error:
        return str(error)
    return ""


def in_plans(models: Models, _limit: int) -> str:
    """Plan models with memories around their boundaries, and give the first law that a plan breaks."""
    from ..data_movement.memory_plans import check_model  # it imports torch
    from ..data_movement.worker import InputsError

    for seed in models.seeds:
        rearm(LONG)
        try:
            check_model(seed)
        except InputsError as error:
            return str(error)
    return ""


def silent(scope: Walk | ChainWalk | Models) -> World:
    """Return a world in which nothing happens: of what is only compared with the implementation."""
    return World(
        scope.name,
        lambda: None,
        lambda _: (),
        lambda now, _: Came((), now),
        lambda: lambda _: 0,
        (),
        (),
        lambda _: None,
    )

"""What differs from the implementation where the specification is wrong: lock-step, walks and plans, as it is now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from .blockwright_adapter import BlockwrightAdapter
from .explore import Explorer
from .offload_chain_explore import ChainExplorer
from .offload_chains import ChainUnderTest
from .offload_scopes import ChainScope, TierScope
from .offload_tier_explore import TierExplorer
from .offload_tiers import TierUnderTest
from .offload_worlds import OffloadWorld
from .paged_blockwright import BlockwrightTables
from .paged_explore import PagedExplorer
from .paged_scopes import PagedScope
from .paged_worlds import World as TablesWorld
from .scopes import Scope
from .search import Search
from .spec_search import Came, World
from .watch import SECONDS, Limited, rearm

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


def search_of(
    scope: Scope | PagedScope | TierScope | ChainScope, limit: int, alone: bool = False
) -> Search[Any, Any, Any, Any]:
    """Give the search beside the implementation, or of the specification `alone`; laws of states are left out."""
    match scope:
        case Scope():
            manager = Telling if scope.config.caching else BlockwrightAdapter
            return Explorer(scope, None if alone else limited(manager), (), max_transitions=limit)
        case PagedScope():
            return PagedExplorer(scope, None if alone else limited(BlockwrightTables), (), max_transitions=limit)
        case TierScope():
            return TierExplorer(scope, None if alone else limited(TierUnderTest), max_transitions=limit)
        case ChainScope():
            return ChainExplorer(scope, None if alone else limited(ChainUnderTest), max_transitions=limit)


def limited(adapter: type) -> Any:
    """Give an adapter under the watch."""
    return type(adapter.__name__, (Limited, adapter), {})


def nowhere(_scope: Any, _limit: int) -> str:
    """Compare nothing: no implementation can be asked."""
    return ""


IMPORTS = ("inputs_histories", "inputs_worlds", "paged_engine", "paged_histories", "inputs_plans", "offload_histories")
"""Modules that import torch and Hypothesis, which takes longer than an action may."""


def imported(beside: Callable[[Any, int], str]) -> None:
    """Import what a comparison will, before there is a watch over it: it would not survive being stopped."""
    if beside not in (in_lockstep, nowhere):
        for name in IMPORTS:
            import_module(f"blockwright_conformance.{name}")


def in_histories(scope: Scope, limit: int) -> str:
    """Have two workers beside a manager take random walks in the worlds of the gate, and give the first difference."""
    from .inputs_histories import inputs_walk  # it imports torch and Hypothesis
    from .inputs_worker import InputsError
    from .inputs_worlds import INPUT_WORLDS

    for seed, world in enumerate(INPUT_WORLDS.values()):
        rearm(LONG)
        try:
            inputs_walk(world, seed, limit // 50)
        except InputsError as error:
            return str(error)
    return ""


def in_walk(walk: Walk, limit: int) -> str:
    """Have a block manager take a random walk, asked before every call, and give the first difference."""
    from .paged_engine import PagedHistoryError  # it imports torch
    from .paged_histories import random_walk

    try:
        random_walk(walk.world, 1, limit // 4, before=lambda: rearm(LONG))
    except PagedHistoryError as error:
        return str(error)
    return ""


def in_chain_walk(walk: ChainWalk, limit: int) -> str:
    """Have a chain take a random walk, its blocks looked at after every call, and give the first difference."""
    from .offload_engine import OffloadHistoryError
    from .offload_histories import chain_walk  # it imports Hypothesis

    rearm(LONG)
    try:
        chain_walk(walk.world, 1, limit // 4)
    except OffloadHistoryError as error:
        return str(error)
    return ""


def in_plans(models: Models, _limit: int) -> str:
    """Plan models with memories around their boundaries, and give the first law that a plan breaks."""
    from .inputs_plans import check_model  # it imports torch
    from .inputs_worker import InputsError

    for seed in models.seeds:
        rearm(LONG)
        try:
            check_model(seed)
        except InputsError as error:
            return str(error)
    return ""


def silent(scope: Walk | ChainWalk | Models) -> World:
    """Give a world in which nothing happens: of what is only compared with the implementation."""
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

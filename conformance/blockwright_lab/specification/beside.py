"""What differs from the implementation where the specification is wrong: lock-step, walks and plans, as it is now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.history import HistoryError, walk
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import explorer
from blockwright_conformance.offload.chain import ChainWorld
from blockwright_conformance.offload.scopes import ChainScope
from blockwright_conformance.worker.scopes import LARGE
from blockwright_conformance.worker.world import WorkerWorld

from ..data_movement.tables_scopes import BrokenError
from ..data_movement.tables_scopes import World as TablesWorld
from ..known_bugs.watch import SECONDS, rearm
from ..known_bugs.worlds import AnyScope, limited, world_on
from .search import Alone

LONG = 20 * SECONDS
"""Processor time that a walk may take: it is no single action."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A world of the block manager: what it answers before it is called."""

    name: str
    world: TablesWorld


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
    "blockwright_conformance.worker.blockwright",
    "blockwright_lab.data_movement.tables_histories",
)
"""Modules that import torch, which takes longer than an action may."""


def imported(beside: Callable[[Any, int], str]) -> None:
    """Import what a comparison will, before there is a watch over it: it would not survive being stopped."""
    if beside not in (in_lockstep, nowhere):
        for name in IMPORTS:
            import_module(name)


def in_histories(scope: Scope, limit: int) -> str:
    """Have workers take random walks in the worlds of the gate, and give the first difference."""
    walks = (partial(walk, WorkerWorld(world), seed, limit // 100) for seed, world in enumerate(LARGE.values()))
    return next(filter(None, map(broken_by, walks)), "")


def broken_by(call: Callable[[], object]) -> str:
    rearm(LONG)
    try:
        call()
    except (BrokenError, HistoryError) as error:
        return str(error)
    return ""


def in_walk(of: Walk, limit: int) -> str:
    """Have a block manager take a random walk, asked before every call, and give the first difference."""
    from ..data_movement.tables_histories import random_walk  # it imports torch

    return broken_by(lambda: random_walk(of.world, 1, limit // 4, before=lambda: rearm(LONG)))


def in_chain_walk(scope: ChainScope, limit: int) -> str:
    """Have a chain take a random walk, and return the first difference."""
    return broken_by(lambda: walk(ChainWorld(scope), 1, limit))


class Silent(Alone):
    """A world in which nothing happens: of what is only compared with the implementation."""

    actions = ()

    def initial(self) -> None:
        """Return what stands for the only state."""

    def digest(self, state: None) -> bytes:
        return b""

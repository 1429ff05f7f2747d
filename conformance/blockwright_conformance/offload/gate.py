"""The gate of offloading: every reachable transition of one tier and of chains of two."""

from typing import Any

from ..checker.world import World
from ..rows import Exploration
from .chain import CHAIN_EVERYTHING, ChainWorld
from .scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, TierScope
from .tier import TIER_EVERYTHING, TierWorld


def scopes(profile: str) -> tuple[TierScope | ChainScope, ...]:
    """Return the scopes of a profile."""
    return (*TIER_PROFILES[profile], *CHAIN_PROFILES[profile])


def is_chain(scope: TierScope | ChainScope) -> bool:
    """Return whether a scope is one of chains, which are larger."""
    return isinstance(scope, ChainScope)


def world(scope: TierScope | ChainScope) -> World[Any, Any]:
    """Return the world of a scope."""
    return TierWorld(scope) if isinstance(scope, TierScope) else ChainWorld(scope)


GATE = Exploration(
    __name__, "offload", "all scopes of offloading", scopes, world, TIER_EVERYTHING | CHAIN_EVERYTHING, is_chain
)
size, run = GATE.size, GATE.run

"""The gate of offloading: every reachable transition of one tier and of chains of two."""

from typing import Any

from blockwright._terminal import Advance

from ..checker.world import World
from ..gates import GateResult, Profile
from ..rows import Exploration
from .chain import CHAIN_EVERYTHING, ChainWorld
from .scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, TierScope
from .tier import TIER_EVERYTHING, TierWorld


def scopes(profile: str) -> tuple[TierScope | ChainScope, ...]:
    """Return the scopes of a profile."""
    return (*TIER_PROFILES[profile], *CHAIN_PROFILES[profile])


def world(scope: TierScope | ChainScope) -> World[Any, Any]:
    """Return the world of a scope."""
    return TierWorld(scope) if isinstance(scope, TierScope) else ChainWorld(scope)


GATE = Exploration("offload", "offloading", scopes, world, TIER_EVERYTHING | CHAIN_EVERYTHING)
size = GATE.size


def run(profile: Profile, progress: Advance) -> list[GateResult]:
    """Explore the profile's scopes, those of chains first."""
    return GATE.run(profile, progress, task, weight=lambda scope: isinstance(scope, ChainScope))


def task(name: str, profile: str) -> GateResult:
    """Explore the scope of a name."""
    return GATE.row(name, profile)

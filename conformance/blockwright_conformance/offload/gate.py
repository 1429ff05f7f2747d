"""The gate of offloading: every reachable transition of one tier and of chains of two."""

from typing import Any

from ..checker.world import World
from ..rows import Exploration
from .chain import CHAIN_EVERYTHING, ChainWorld
from .scopes import CHAIN_PROFILES, TIER_PROFILES, ChainScope, TierScope
from .tier import TIER_EVERYTHING, TierWorld


def world(scope: TierScope | ChainScope) -> World[Any, Any]:
    return TierWorld(scope) if isinstance(scope, TierScope) else ChainWorld(scope)


GATE = Exploration(
    __name__, "offload", "all scopes of offloading",
    lambda profile: (*TIER_PROFILES[profile], *CHAIN_PROFILES[profile]), world, TIER_EVERYTHING | CHAIN_EVERYTHING,
    lambda scope: isinstance(scope, ChainScope),  # those of chains are larger
)  # fmt: skip

"""The worlds of all parts on copies of the implementation, under the watch, some set up as no scope covers.

In every adapter of the manager a digest stands for one prefix (HASH-1).
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

import blockwright
from blockwright.orders.least_frequently_used import Order
from blockwright_conformance.block_tables.blockwright import ERRORS, BlockwrightTables
from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.adapter import Observation
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter, Shared, errors_of, hash_unit
from blockwright_conformance.kv_cache.scopes import Scope, option
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain_adapter import ChainUnderTest
from blockwright_conformance.offload.scopes import ChainScope, TierScope
from blockwright_conformance.offload.tier_adapter import TierUnderTest
from blockwright_conformance.policies import PolicyAdapter, Watched
from blockwright_spec.manager.keys import num_ahead
from blockwright_spec.manager.state import Config

from .symptoms import OneTier, Tables, Tiers
from .watch import Limited

AnyScope = Scope | PagedScope | TierScope | ChainScope


class VariantAdapter(BlockwrightAdapter):
    """The implementation with a hasher of a known secret, so that every run is the same."""

    units: ClassVar[int] = 1
    """Hashed units per block: requests are hashed with blocks this much smaller than the manager's."""

    def hasher(self, lookahead: int) -> Any:
        return self.package.SipHasher(bytes(range(16)), key_lookahead=lookahead)

    def sharing(self, config: Config) -> Shared:
        lookahead = num_ahead(config)
        portable = self.package.Sha256Hasher(b"", lookahead) if option(config, "tells") else None
        make = partial(self.package.Request, hasher=portable or self.hasher(lookahead))
        return Shared(hash_unit(config) // self.units, make, lookahead)


class FineAdapter(VariantAdapter):
    """Requests hashed in units of half a block: a block's key is that of its last unit."""

    units = 2


class SplitAdapter(VariantAdapter):
    """Two ranks that share a block's tokens: the layer's own blocks are half as wide as the manager's."""

    options: ClassVar[dict[str, Any]] = {"dcp_world_size": 2}

    def __init__(self, config: Config) -> None:
        halves = tuple(replace(group, block_size=group.block_size // 2) for group in config.groups)
        super().__init__(replace(config, groups=halves))


class CollidingAdapter(VariantAdapter):
    """Every key equals every other: only the comparison of tokens distinguishes prefixes. Keys are not compared."""

    options: ClassVar[dict[str, Any]] = {"verify_tokens": True}

    def hasher(self, lookahead: int) -> Any:
        return self.package.FunctionHasher(lambda parent, block: bytes(16))

    def sharing(self, config: Config) -> Shared:
        shared = super().sharing(config)
        shared.learn = lambda request, prefix: None  # type: ignore[method-assign]
        return shared

    def observe(self, names: tuple[str, ...]) -> Observation:
        self.shared.prefixes = {key: (0, ()) for key in self.manager.block_pool.block_keys() if key is not None}
        return super().observe(names)._replace(keys=None)


class ToldAdapter(VariantAdapter):
    """With evictions and statistics, in scopes with events."""

    options: ClassVar[dict[str, Any]] = {"log_stats": True, "track_evictions": True}


class OrderedAdapter(PolicyAdapter, VariantAdapter):
    """With an order of eviction."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, Watched(Order(), Counter()))


def adapter_on(package: ModuleType, base: type[BlockwrightAdapter] = VariantAdapter) -> type[BlockwrightAdapter]:
    names = {"package": package, "errors": errors_of(package), "stale": (package.errors.StaleHitError,)}
    return type(base.__name__, (base,), names)


def world_on(
    scope: AnyScope, package: ModuleType = blockwright, adapter: type[BlockwrightAdapter] = VariantAdapter
) -> World[Any, Any]:
    match scope:
        case Scope():
            return KVCacheWorld(scope, limited(adapter_on(package, adapter)))
        case PagedScope():
            return Tables(scope, limited(tables_of(package)))
        case TierScope():
            return OneTier(scope, limited(offload_of(package, TierUnderTest)))
        case ChainScope():
            return Tiers(scope, limited(offload_of(package, ChainUnderTest)))


def tables_of(package: ModuleType, base: type[BlockwrightTables] = BlockwrightTables) -> type[Any]:
    errors: Any = package.errors
    names = {"package": package, "errors": errors_of(package, ERRORS), "short": errors.NoFreeBlocksError}
    return type("Tables", (base,), names)


def offload_of(package: ModuleType, base: type[Any]) -> type[Any]:
    errors = {reason: getattr(package.errors, error.__name__) for reason, error in base.errors.items()}
    return type(base.__name__, (base,), {"package": package, "errors": errors})


def limited(adapter: type) -> Any:
    return type(adapter.__name__, (Limited, adapter), {})

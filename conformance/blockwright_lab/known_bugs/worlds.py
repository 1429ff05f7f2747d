"""The worlds of all parts on copies of the implementation, under the watch."""

from types import ModuleType
from typing import Any

import blockwright
from blockwright_conformance.block_tables.blockwright import BlockwrightTables, refusals_of
from blockwright_conformance.block_tables.scopes import PagedScope
from blockwright_conformance.checker.world import World
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.scopes import Scope
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_conformance.offload.chain_adapter import ChainUnderTest
from blockwright_conformance.offload.scopes import ChainScope, TierScope
from blockwright_conformance.offload.tier_adapter import TierUnderTest

from .instrumented import VariantAdapter, adapter_on
from .symptoms import OneTier, Tables, Tiers
from .watch import Limited

AnyScope = Scope | PagedScope | TierScope | ChainScope


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
    names = {"package": package, "errors": refusals_of(package), "short": errors.NoFreeBlocksError}
    return type("Tables", (base,), names)


def offload_of(package: ModuleType, base: type[Any]) -> type[Any]:
    errors = {reason: getattr(package.errors, error.__name__) for reason, error in base.errors.items()}
    return type(base.__name__, (base,), {"package": package, "errors": errors})


def limited(adapter: type) -> Any:
    return type(adapter.__name__, (Limited, adapter), {})

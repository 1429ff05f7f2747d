"""Adapters on variants of the implementation, set up in ways that a scope does not cover.

`adapter_on` puts an adapter on another copy of the package. The others are the implementation's adapter with another
hasher, or with options of the manager; in every one a digest stands for one prefix (HASH-1).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

from blockwright_conformance.kv_cache.adapter import Observation
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter, Shared, errors_of, hash_unit
from blockwright_spec.manager.state import Config


class VariantAdapter(BlockwrightAdapter):
    """The implementation with a hasher of a known secret, so that every run is the same."""

    units: ClassVar[int] = 1
    """Hashed units per block: requests are hashed with blocks this much smaller than the manager's."""

    def hasher(self, lookahead: int) -> Any:
        return self.package.SipHasher(bytes(range(16)), key_lookahead=lookahead)

    def sharing(self, config: Config) -> Shared:
        lookahead = config.added.key_lookahead
        make = partial(self.package.Request, hasher=self.hasher(lookahead))
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
    """With evictions and statistics, and keys that may leave the process, in scopes with events."""

    options: ClassVar[dict[str, Any]] = {"log_stats": True, "track_evictions": True}

    def hasher(self, lookahead: int) -> Any:
        return self.package.Sha256Hasher(b"", lookahead)


def adapter_on(package: ModuleType, base: type[BlockwrightAdapter] = VariantAdapter) -> type[BlockwrightAdapter]:
    names = {"package": package, "errors": errors_of(package), "stale": (package.errors.StaleHitError,)}
    return type(base.__name__, (base,), names)

"""What an engine is made of: the model of a schedule, the plan of its caches, and that in a package's own classes."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

from blockwright.config import KVCacheConfig
from blockwright.device import KVCachePlan, plan_kv_cache
from blockwright_spec.reads import Group

from .model import HybridModel
from .schedule import EngineConfig
from .weights import ModelConfig

VOCAB = 12
"""Tokens of the models here: few, so that guesses are right now and then."""


@lru_cache(maxsize=64)
def model_of(
    layers: tuple[Group, ...],
    draft: Group | None,
    seed: int,
    dtype: str = "float64",
    cache_dtype: str | None = None,
    device: str = "cpu",
) -> HybridModel:
    config = ModelConfig(layers, draft, vocab_size=VOCAB, seed=seed, dtype=dtype, cache_dtype=cache_dtype)
    return HybridModel(config, device)


@lru_cache(maxsize=256)
def plan_of(model: HybridModel, config: EngineConfig, max_encoder_len: int, grows: bool) -> KVCachePlan:
    """Lay out the caches: what one request of the maximum length needs, and the spare blocks."""
    options: dict[str, Any] = {
        "max_block_size": 64 if grows else 1,
        "packed": grows,
        "max_padding": 1.0,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "enable_caching": config.enable_caching,
        "max_num_encoder_tokens": max_encoder_len,
        "num_lookahead_tokens": config.drafts,
        "max_steps_in_flight": 2 if config.overlap_steps else 1,
    }
    least = plan_kv_cache(model.layers, 1 << 30, config.max_model_len, **options).blocks_per_request
    return plan_kv_cache(
        model.layers, 1 << 30, config.max_model_len, num_blocks=1 + least + config.spare_blocks, **options
    )


def in_package(package: Any, config: KVCacheConfig) -> Any:
    groups = [
        package.KVCacheGroupSpec(
            list(group.layer_names), getattr(package, type(group.kv_cache_spec).__name__)(**vars(group.kv_cache_spec))
        )
        for group in config.kv_cache_groups
    ]
    return package.KVCacheConfig(config.num_blocks, groups)


def hasher_of(package: Any, manager: Any, config: EngineConfig, block_size: int) -> Any:
    if not config.hasher:
        return None
    if config.hasher == "weak":
        weak = package.FunctionHasher(weak_hash)
        try:
            manager.get_computed_blocks(package.Request("probe", [0], block_size, hasher=weak))
            return weak
        except package.errors.InvalidArgumentError:
            pass
    return package.SipHasher(bytes(16))


def weak_hash(parent: bytes, block: bytes) -> bytes:
    return bytes((zlib.crc32(parent + block) % 16,))

"""Batches of a small worker, and all the numbers of the inputs of a step."""

from collections.abc import Sequence
from typing import Any

import torch

from blockwright import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from blockwright.device import InputBatch, StepInputs
from blockwright.kinds import KVCacheSpec

MAX_LEN, ENCODER = 48, 10
MOST_TOKENS = 64
HEADS = (1, 2, "float32")


def full(size: int) -> KVCacheSpec:
    return FullAttentionSpec(size, *HEADS)


def sliding(size: int, window: int) -> KVCacheSpec:
    return SlidingWindowSpec(size, *HEADS, window)


def mamba(size: int, drafts: int = 0) -> KVCacheSpec:
    return MambaSpec(size, ((3,),), ("float32",), drafts)


def cross(size: int) -> KVCacheSpec:
    return CrossAttentionSpec(size, *HEADS)


def config_of(specs: Sequence[KVCacheSpec], num_blocks: int = 60) -> KVCacheConfig:
    return KVCacheConfig(num_blocks, [KVCacheGroupSpec([f"layers.{i}"], spec) for i, spec in enumerate(specs)])


def batch_of(config: KVCacheConfig, caching: bool = True, rows: int = 8, **options: Any) -> InputBatch:
    return InputBatch(
        config,
        max_num_requests=rows,
        max_num_tokens=MOST_TOKENS,
        max_model_len=MAX_LEN,
        max_encoder_len=ENCODER,
        enable_caching=caching,
        **options,
    )


def contents(inputs: StepInputs) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in [name for name in inputs.__dataclass_fields__ if name[0] != "_"]:
        value = getattr(inputs, name)
        if isinstance(value, torch.Tensor):
            found[name] = value.tolist()
        elif isinstance(value, tuple):
            found[name] = [each.tolist() for each in value]
        elif isinstance(value, int):
            found[name] = value
    return found

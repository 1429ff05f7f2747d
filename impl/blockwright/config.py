"""How an engine describes its KV cache: groups of layers over one pool of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec, require_positive


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share one block table.

    Attributes:
        layer_names: names of the layers, for the engine's own use.
        kv_cache_spec: the kind that all of them declare.
    """

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec


@dataclass(frozen=True)
class KVCacheConfig:
    """One pool and the groups that live in it.

    Attributes:
        num_blocks: blocks of the pool, the null block (id 0) included; at least 2.
        kv_cache_groups: the groups.
    """

    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroupSpec]

    def __post_init__(self) -> None:
        """Check the fields."""
        require_positive("num_blocks", self.num_blocks)
        if self.num_blocks < 2:
            raise InvalidArgumentError(
                f"num_blocks: block 0 is the null block, so at least 2 are needed, not {self.num_blocks}"
            )
        if not self.kv_cache_groups:
            raise InvalidArgumentError("kv_cache_groups: at least one group of layers is needed")

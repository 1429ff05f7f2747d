"""How an engine describes its KV cache: groups of layers over one pool of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import KVCacheSpec


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share one block table.

    Attributes:
        layer_names: names of the layers, for the engine's own use.
        kv_cache_spec: the kind that all of them declare.
    """

    layer_names: Sequence[str]
    kv_cache_spec: KVCacheSpec

    @classmethod
    def of(cls, layers: Mapping[str, KVCacheSpec]) -> KVCacheGroupSpec:
        """Make a group of layers that each declare their kind, all the same.

        Raises:
            InvalidArgumentError: there are no layers, or two of them declare different kinds.
        """
        if not layers:
            raise InvalidArgumentError("layers: at least one layer is needed")
        first, spec = next(iter(layers.items()))
        for name, other in layers.items():
            if type(other) is not type(spec) or other != spec:
                raise InvalidArgumentError(
                    f"layers: {name!r} declares {other}, {first!r} declares {spec}; layers of one group share a block "
                    "table, so put them in separate groups"
                )
        return cls(list(layers), spec)


@dataclass(frozen=True)
class KVCacheConfig:
    """One pool and the groups that live in it.

    Attributes:
        num_blocks: blocks of the pool, the null block (id 0) included; at least 2.
        kv_cache_groups: the groups; empty for a model without attention, where requests hold no blocks.
        shared_layers: layers without a cache, each with the layer that owns the cache it reads; they hold no blocks and
            are in no group.
    """

    num_blocks: int
    kv_cache_groups: Sequence[KVCacheGroupSpec]
    shared_layers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        integer("num_blocks", self.num_blocks, 1)
        if self.num_blocks < 2:
            raise InvalidArgumentError(
                f"num_blocks: block 0 is the null block, so at least 2 are needed, not {self.num_blocks}"
            )
        names = [name for group in self.kv_cache_groups for name in group.layer_names]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgumentError(f"kv_cache_groups: layers {twice} are in several groups, or twice in one")
        for name, target in self.shared_layers.items():
            if name in names:
                raise InvalidArgumentError(f"shared_layers: {name!r} is in a group, so it has its own cache")
            # Of a layer that itself shares, too: `group_of` goes one step only.
            if target not in names:
                raise InvalidArgumentError(
                    f"shared_layers: {name!r} reads the cache of {target!r}, which is in no group; name the layer "
                    "that holds the blocks"
                )

    def group_of(self, layer_name: str) -> int:
        """Return the number of the group with the block table that a layer reads, its own or the shared one. O(layers).

        Raises:
            InvalidArgumentError: no such layer.
        """
        holder = self.shared_layers.get(layer_name, layer_name)
        for number, group in enumerate(self.kv_cache_groups):
            if holder in group.layer_names:
                return number
        raise InvalidArgumentError(f"layer_name: {layer_name!r} is in no group and shares no layer's cache")

"""A plan of a model's KV cache, for the manager, the memory and the log of an engine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from blockwright.config import KVCacheConfig
from blockwright.core.steps.plans import most_blocks
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

KINDS: Mapping[type[KVCacheSpec], str] = {
    FullAttentionSpec: "full",
    SlidingWindowSpec: "sliding",
    ChunkedLocalAttentionSpec: "chunked",
    MambaSpec: "mamba",
    CrossAttentionSpec: "cross",
}
"""The kinds that can be planned, and their names in a summary."""


@dataclass(frozen=True)
class RequestLimits:
    """The maximum lengths of requests and steps; a request's blocks depend on nothing else.

    Attributes:
        max_model_len: tokens of a request.
        max_num_batched_tokens: tokens that one step computes of a request.
        enable_caching: whether prefixes are shared.
        max_num_encoder_tokens: tokens of the encoder, for cross attention.
        num_lookahead_tokens: slots that a step asks for beyond its tokens.
        max_steps_in_flight: steps that are under way at once.
    """

    max_model_len: int
    max_num_batched_tokens: int
    enable_caching: bool = True
    max_num_encoder_tokens: int = 0
    num_lookahead_tokens: int = 0
    max_steps_in_flight: int = 1

    def blocks_of(self, spec: KVCacheSpec) -> int:
        """Return the most blocks of one group that a request holds. O(block_size). law: PLAN-2."""
        return most_blocks(
            spec,
            self.max_model_len,
            self.max_num_batched_tokens + self.num_lookahead_tokens,
            self.enable_caching,
            self.max_num_encoder_tokens,
            self.max_steps_in_flight,
        )


@dataclass(frozen=True)
class GroupPlan:
    """One group of a plan.

    Attributes:
        layer_names: its layers; the j-th lies on tensor j, or all on tensor 0 of a packed plan.
        spec: the kind, and the tokens per block of its table. Layers of one kind may differ in the bytes per token;
            then it is the largest layer's, and `KVCachePlan.spec_of` has that of each.
        page_bytes: bytes that each layer uses of its page.
        waste_bytes: bytes of a block that no layer of the group uses: the ends of pages, and pages without a layer.
        waste: the same as a share of the block, 0.0 to 1.0.
        blocks_per_request: the most blocks that a request of `max_model_len` tokens holds in this group.
        offsets: of a packed plan, bytes from the beginning of a page to each layer's part of it; else none.
    """

    layer_names: tuple[str, ...]
    spec: KVCacheSpec
    page_bytes: tuple[int, ...]
    waste_bytes: int
    waste: float
    blocks_per_request: int
    offsets: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the group in one line, without its layers' names."""
        layers = _counted(len(self.layer_names), "layer")
        smallest, largest = min(self.page_bytes), max(self.page_bytes)
        page = bytes_text(largest) if smallest == largest else f"{bytes_text(smallest)} to {bytes_text(largest)}"
        own = [f"{getattr(self.spec, item.name):,}" for item in fields(self.spec) if item.name in _SHOWN]
        sinks = getattr(self.spec, "sink_len", 0)
        kind = " ".join([KINDS[type(self.spec)], *own, *([f"with {_counted(sinks, 'sink')}"] if sinks else [])])
        held = _counted(self.blocks_per_request, "block")
        return (
            f"{kind}, {layers}, {self.spec.block_size:,} tokens a block, {page} of a page used, "
            f"{self.waste:.1%} wasted, up to {held} a request"
        )


_SHOWN = {"sliding_window", "attention_chunk_size"}


@dataclass(frozen=True)
class KVCachePlan:
    """A layout of a model's KV cache over one device's memory; made by `plan_kv_cache`.

    Block b is page b of every tensor, and belongs to one group at a time; the j-th layer of that group has its keys and
    values, or its states, in page b of tensor j. A packed plan has one tensor: there the layers of a group lie one
    behind the other in page b.

    Attributes:
        config: for `KVCacheManager`: the number of blocks, and the groups with their block sizes.
        layers: the spec of each layer: as it was declared, except for the block size.
        page_sizes: bytes of a page of each tensor, padding included. All equal, unless layers of one kind differ.
        groups: the groups, in the order of `config`.
        limits: the lengths that the plan was made for.
        available_bytes: the memory that was offered.
        note: a warning about memory given up for fewer groups, or about many groups; empty if there is none.
    """

    config: KVCacheConfig
    layers: Mapping[str, KVCacheSpec]
    page_sizes: tuple[int, ...]
    groups: tuple[GroupPlan, ...]
    limits: RequestLimits
    available_bytes: int
    note: str = ""
    _places: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {
            name: (number, at) for number, group in enumerate(self.groups) for at, name in enumerate(group.layer_names)
        }
        places |= {name: places[holder] for name, holder in self.config.shared_layers.items()}
        object.__setattr__(self, "_places", places)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self.config.num_blocks

    @property
    def layers_per_block(self) -> int:
        """Number of tensors: pages of one block."""
        return len(self.page_sizes)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a page, padding included; of the largest tensor's, where they differ."""
        return max(self.page_sizes)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: a page of each tensor."""
        return sum(self.page_sizes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.num_blocks * self.block_bytes

    @property
    def blocks_per_request(self) -> int:
        """The most blocks that a request of `max_model_len` tokens holds, in all groups together."""
        return sum(group.blocks_per_request for group in self.groups)

    @property
    def max_concurrency(self) -> float:
        """Requests of `max_model_len` tokens that fit at once if they share nothing; 1.0 or more."""
        return (self.num_blocks - 1) / self.blocks_per_request

    @property
    def num_tokens(self) -> int:
        """Tokens that fit at once, in requests of `max_model_len`."""
        return (self.num_blocks - 1) * self.limits.max_model_len // self.blocks_per_request

    @property
    def waste(self) -> float:
        """Share of the memory of a request of `max_model_len` tokens that no layer uses, 0.0 to 1.0."""
        wasted = sum(group.waste_bytes * group.blocks_per_request for group in self.groups)
        return wasted / (self.blocks_per_request * self.block_bytes)

    def place_of(self, layer_name: str) -> tuple[int, int]:
        """Return the numbers of a layer's group and tensor; of a shared layer, those of the one it shares. O(1).

        Raises:
            InvalidArgumentError: no such layer.
        """
        group, at = self._place_of(layer_name)
        return group, at if len(self.page_sizes) > 1 else 0

    def page_of(self, layer_name: str) -> tuple[int, int]:
        """Return the first byte of a layer's part of a page, and the one behind its last. O(1).

        Raises:
            InvalidArgumentError: no such layer.
        """
        group, at = self._place_of(layer_name)
        own = self.groups[group]
        first = own.offsets[at] if own.offsets else 0
        return first, first + own.page_bytes[at]

    def _place_of(self, layer_name: str) -> tuple[int, int]:
        """Return the numbers of a layer's group, and its own among the layers of the group."""
        if layer_name not in self._places:
            raise InvalidArgumentError(f"layer_name: {layer_name!r} is no layer of this plan, nor shares one's cache")
        return self._places[layer_name]

    def spec_of(self, layer_name: str) -> KVCacheSpec:
        """Return a layer's spec in this plan; for a layer that shares a cache, the spec of the cache's owner. O(1).

        Raises:
            InvalidArgumentError: no such layer.
        """
        group, at = self._place_of(layer_name)
        return self.layers[self.groups[group].layer_names[at]]

    @property
    def summary(self) -> str:
        """The plan in words, for an engine's log: a few lines, and one for each group."""
        limits = self.limits
        hits = math.lcm(*(group.spec.block_size for group in self.groups))
        caching = f"prefix hits in multiples of {hits:,} tokens" if limits.enable_caching else "no prefix caching"
        smallest, largest = min(self.page_sizes), self.page_size_bytes
        page = bytes_text(largest) if smallest == largest else f"{bytes_text(smallest)} to {bytes_text(largest)}"
        request = bytes_text(self.blocks_per_request * self.block_bytes)
        lines = [
            f"KV cache: {self.num_blocks:,} blocks of {bytes_text(self.block_bytes)}, "
            f"{bytes_text(self.total_bytes)} of {bytes_text(self.available_bytes)}",
            f"  {_counted(len(self.page_sizes), 'tensor')} with pages of {page}, "
            f"{_counted(len(self.groups), 'group')}, {caching}, {self.waste:.1%} wasted",
            f"  {self.max_concurrency:.2f} requests of {limits.max_model_len:,} tokens at once, up to "
            f"{self.blocks_per_request:,} blocks ({request}) each; {self.num_tokens:,} tokens in all",
            *(f"  {which}: {text}" for which, text in _alike(self.groups)),
        ]
        if shared := len(self.config.shared_layers):
            lines.append(f"  {_counted(shared, 'layer')} more without a cache of their own")
        if self.note:
            lines.append(f"  note: {self.note}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary


def bytes_text(count: int) -> str:
    """Return a number of bytes in the largest unit that it fills.

    >>> [bytes_text(count) for count in (96, 2048, 3 << 19, 5 << 30)]
    ['96 B', '2.00 KiB', '1.50 MiB', '5.00 GiB']
    """
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):,.2f} {unit}"
    return f"{count} B"


def _alike(groups: Sequence[GroupPlan]) -> list[tuple[str, str]]:
    """Return the lines of groups, with the numbers of neighbours that read the same."""
    found: list[tuple[str, str]] = []
    first = 0
    for number, group in enumerate(groups):
        if found and found[-1][1] == str(group):
            found[-1] = (f"groups {first} to {number}", found[-1][1])
        else:
            first = number
            found.append((f"group {number}", str(group)))
    return found


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"

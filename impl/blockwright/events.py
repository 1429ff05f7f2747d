"""The events of a block pool about its prefix cache.

Replaying the events of a pool in order gives the set of prefixes that can be hit: a prefix is stored when its first
block is published and removed when its last block loses it, so duplicates are announced once. Hashes that leave the
process are SHA-256 (see `blockwright.core.keys.block_hash`). `blockwright.observe` numbers events and sends them.

This module stays uncompiled: plain immutable records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import NamedTuple


@lru_cache(maxsize=64)
def token_format(count: int) -> Struct:
    """Return the format of that many packed token ids."""
    return Struct(f"<{count}i")


WIDE = "token id "
"""Begins the identifier of an item that stands for one token, whose id has more than 31 bits and follows."""

BlockHash = bytes | int
"""A block's hash: the engine's own bytes, or what a consumer reads from the wire."""


KINDS = {
    "FullAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MambaSpec": "mamba",
    "CrossAttentionSpec": "cross_attention",
}
"""vLLM's names of the kinds of layers."""


class GroupLayout(NamedTuple):
    """What a hit needs of a group of layers.

    Attributes:
        kind: vLLM's name.
        block_size: tokens in a block.
        window: positions that a token sees, its own included; for chunked local attention, those of a chunk.
        sinks: the first positions, which every token sees beside its window.
        margin: tokens behind a hit that must be cached too (EAGLE).
    """

    kind: str
    block_size: int
    window: int | None = None
    sinks: int = 0
    margin: int = 0


class CacheLayout(NamedTuple):
    """What a hit needs.

    Attributes:
        groups: the needs of each group of layers, by number.
        unit: tokens, at least 1; the length of a hit is a multiple of it.
    """

    groups: tuple[GroupLayout, ...]
    unit: int


def cache_layout(specs: Sequence[object], sizes: Sequence[int], unit: int, use_eagle: bool) -> CacheLayout:
    """Return the layout of groups of layers of these kinds (`KVCacheSpec`), with blocks of these sizes."""

    def group(spec: object, size: int) -> GroupLayout:
        kind = KINDS.get(type(spec).__name__, "unknown")
        window = getattr(spec, "sliding_window", getattr(spec, "attention_chunk_size", None))
        margin = size if use_eagle and kind not in ("mamba", "chunked_local_attention") else 0
        return GroupLayout(kind, size, window, getattr(spec, "sink_len", 0), margin)

    return CacheLayout(tuple(map(group, specs, sizes)), unit)


class BlockStored(NamedTuple):
    """A prefix became findable.

    Attributes:
        block_hash: hash of the whole prefix up to the block's end.
        parent_block_hash: hash of the prefix before the block, None for the first.
        tokens: the tokens of this block, packed: four bytes each, little-endian; `token_ids` unpacks them. Empty where
            they are not known: a tier below the device knows keys only.
        block_size: tokens per block; fewer than the group's where it is a part of one (``prefix_match_unit``).
        lora_name: adapter of the request, or None.
        group_id: group of layers.
        cache_salt: salt of the request, or None.
        mm_items: multimodal items that overlap the block: identifier, offset from the block's start, and length.
        medium: where the block is: ``"GPU"``, or the medium that a tier names.
        lora_id: the adapter's number, where an engine sends a number and no name. This manager's own events have none.
        is_parent_absent: the parent cannot be found on this medium now. Set by `observe.EventStream`, which knows.
        lookahead: the tokens behind the block that its hash covers too (``key_lookahead``), packed as `tokens`.
        layout: what a hit needs of all groups of layers; None where the engine does not say. law: EV-7.
    """

    block_hash: BlockHash
    parent_block_hash: BlockHash | None
    tokens: bytes
    block_size: int
    lora_name: str | None = None
    group_id: int = 0
    cache_salt: str | None = None
    mm_items: tuple[tuple[str, int, int], ...] = ()
    medium: str = "GPU"
    lora_id: int | None = None
    is_parent_absent: bool = False
    lookahead: bytes = b""
    layout: CacheLayout | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens of this block; of ids with more than 31 bits, `tokens` has the lower ones only. O(tokens)."""
        ids = token_format(len(self.tokens) // 4).unpack(self.tokens)
        wide = {at: int(name[len(WIDE) :]) for name, at, _ in self.mm_items if name.startswith(WIDE)}
        return tuple(wide.get(at, token) for at, token in enumerate(ids)) if wide else ids

    @property
    def lookahead_token_ids(self) -> tuple[int, ...]:
        """The tokens behind this block that its hash covers too. O(tokens)."""
        return token_format(len(self.lookahead) // 4).unpack(self.lookahead)


class BlockRemoved(NamedTuple):
    """A prefix can no longer be found: its last block was taken.

    Attributes:
        block_hash: of the block: all bytes of the hash, or on the wire the integer of its last 64 bits.
        group_id: number of the group of layers, from 0.
        medium: where it was, such as "GPU", "CPU" or "DISK".
    """

    block_hash: BlockHash
    group_id: int = 0
    medium: str = "GPU"


@dataclass(frozen=True)
class AllBlocksCleared:
    """The prefix cache was reset: on one medium if it is named, else on all."""

    medium: str | None = None


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared

"""What a block pool tells the outside about its prefix cache.

Replaying the events of a pool in order gives the set of prefixes that can be hit: a prefix is stored when its first
block is published and removed when its last block loses it, so duplicates are announced once. Hashes that leave the
process are SHA-256 (see `blockwright.core.block_hash`).

This module stays uncompiled: plain frozen records.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockStored:
    """A prefix became findable.

    Attributes:
        block_hash: hash of the whole prefix up to the block's end.
        parent_block_hash: hash of the prefix before the block, None for the first.
        token_ids: the tokens of this block.
        block_size: tokens per block.
        lora_name: adapter of the request, or None.
        group_id: group of layers.
    """

    block_hash: bytes
    parent_block_hash: bytes | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_name: str | None
    group_id: int


@dataclass(frozen=True)
class BlockRemoved:
    """A prefix can no longer be found: its last block was taken."""

    block_hash: bytes
    group_id: int


@dataclass(frozen=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


KVCacheEvent = BlockStored | BlockRemoved | AllBlocksCleared

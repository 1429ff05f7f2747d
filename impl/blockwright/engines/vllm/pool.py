"""The pool as vLLM's connectors know it: `blocks` by id, full hashes, holds, and the queue of free blocks.

A connector may look at every block, hold one (`touch`) and let go of what it holds (`free_blocks`). Three things differ
inside, and are translated here:

- vLLM's `block_hash` is the whole hash and the group in four bytes. Blockwright's keys are the first 16 bytes of the
  hash, with the group beside them, so the whole hashes of what is published are kept, if a connector is bound.
- Blocks are published late. Before a connector reads a hash, everything that vLLM would have published is.
- vLLM links its block objects. Here a walk through the free blocks asks for one after the other, so that it costs
  only as much as is read of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from blockwright import BlockPool
from blockwright.errors import UnsupportedError


class Block:
    """A view of one block.

    Attributes:
        block_id: id within the pool.
    """

    __slots__ = ("_pool", "block_id")

    def __init__(self, pool: Pool, block_id: int) -> None:
        """Look at a block of a pool."""
        self._pool, self.block_id = pool, block_id

    @property
    def is_null(self) -> bool:
        """Whether it is the null block."""
        return self.block_id == 0

    @property
    def ref_cnt(self) -> int:
        """Number of holders now."""
        return self._pool.core.ref_count(self.block_id)

    @property
    def block_hash(self) -> bytes | None:
        """The hash of the prefix that it is published under and its group in four bytes, or None."""
        return self._pool.hash_of(self.block_id)

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens that the hash stands for: whole blocks are published, and nothing less. None if not published."""
        if self.block_hash is None:
            return None
        return self._pool.sizes[self._pool.core.block_group(self.block_id) or 0]

    def __eq__(self, other: object) -> bool:
        """Compare pool and id."""
        return isinstance(other, Block) and other.block_id == self.block_id and other._pool is self._pool

    def __hash__(self) -> int:
        """Hash by id."""
        return hash(self.block_id)

    def __repr__(self) -> str:
        """Describe the block in one line."""
        return f"Block({self.block_id}, ref_cnt={self.ref_cnt})"


class _Blocks:
    """All blocks by id, made when they are asked for."""

    __slots__ = ("_pool",)

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return self._pool.core.num_blocks

    def __getitem__(self, block_id: int) -> Block:
        if not 0 <= block_id < len(self):
            raise IndexError(f"block {block_id} is not within 0..{len(self) - 1}")
        return Block(self._pool, block_id)


class _FreeQueue:
    """The free blocks, next to be taken first."""

    __slots__ = ("_pool",)

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @property
    def num_free_blocks(self) -> int:
        """Blocks in the queue."""
        return self._pool.core.num_free

    def iter_blocks_after(self, cursor: Any) -> Iterator[Block]:
        """Walk from the block after a free one, or from the first; stops after the last. O(blocks read)."""
        pool = self._pool
        pool.publish()
        block = pool.core.free_block_after(0 if cursor is None else cursor.block_id)
        while block is not None:
            yield Block(pool, block)
            block = pool.core.free_block_after(block)


class Pool:
    """What a connector is bound to.

    Attributes:
        core: the pool itself.
        sizes: tokens per block of each group.
        hash_block_size: tokens of a hash, None without prefix caching.
        publish: publishes what vLLM would have published by now.
        blocks: all blocks, by id.
        free_block_queue: the free ones.
        cached_block_hashes_by_block: further hashes of a block by its id: none, since hits end on whole blocks.
        metrics_collector: what vLLM samples the lives of blocks with (``--kv-cache-metrics``), or None.
    """

    def __init__(
        self,
        core: BlockPool,
        sizes: Sequence[int],
        hash_block_size: int | None,
        publish: Callable[[], None],
        metrics_collector: Any,
    ) -> None:
        """Stand in front of a pool; nothing is kept before `keep_hashes`."""
        self.core, self.sizes, self.hash_block_size, self.publish = core, sizes, hash_block_size, publish
        self.metrics_collector = metrics_collector
        self.blocks = _Blocks(self)
        self.free_block_queue = _FreeQueue(self)
        self.cached_block_hashes_by_block: Mapping[int, tuple[bytes, ...]] = MappingProxyType({})
        self._hashes: dict[bytes, bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        """Refuse what vLLM's pool has and this one does not.

        Raises:
            UnsupportedError: always.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedError(f"block_pool.{name} is not supported under Blockwright: unset BLOCKWRIGHT_VLLM")

    def keep_hashes(self) -> None:
        """Keep the hashes of what is published from now on, since a connector is bound."""
        if self._hashes is None:
            self._hashes = {}

    @property
    def keeps_hashes(self) -> bool:
        """Whether a connector may ask for hashes."""
        return self._hashes is not None

    def note(self, hashes: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep hashes by their keys, which are about to be published, or are already.

        A key may begin another hash, which looks ahead. O(hashes), and O(num_blocks) now and then.
        """
        kept = self._hashes
        if kept is None:
            return
        for key, each in hashes:
            kept[key[:16]] = each
        if len(kept) > 2 * self.core.num_blocks + 1024:
            live = [key for key in self.core.block_keys() if key in kept]
            self._hashes = {key: kept[key] for key in live if key is not None}

    def hash_of(self, block_id: int) -> bytes | None:
        """Return the hash of a block as vLLM writes it, None if it is not published as a whole."""
        self.publish()
        key = self.core.block_key(block_id)
        if key is None or self.core.has_tail(block_id):
            return None
        if self._hashes is None:
            raise UnsupportedError("block_hash: no connector was bound when the scheduler was made")
        group = self.core.block_group(block_id) or 0
        return self._hashes[key] + group.to_bytes(4, "big")

    def carries(self, block_id: int, block_hash: bytes, group: int) -> bool:
        """Return whether a block is published under a hash of a group now; nothing more is published for it."""
        return self.core.block_key(block_id) == block_hash[:16] and self.core.block_group(block_id) == group

    @property
    def null_block(self) -> Block:
        """The null block, id 0."""
        return Block(self, 0)

    @property
    def enable_caching(self) -> bool:
        """Whether blocks are published at all."""
        return self.core.enable_caching

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks, the null block included."""
        return self.core.num_blocks

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be taken."""
        return self.core.num_free

    def get_usage(self) -> float:
        """Return the share of blocks that are held."""
        return self.core.get_usage()

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: Sequence[int]) -> list[Block] | None:
        """Return one block per group that holds the prefix with this hash, None unless all groups have one.

        With a unit and EAGLE none is found, since keys look ahead.
        """
        if not self.core.enable_caching:
            return None
        self.publish()
        found = self.core.get_cached_block(block_hash, kv_cache_group_ids)
        return None if found is None else [Block(self, block.block_id) for block in found]

    def touch(self, blocks: Iterable[Any]) -> None:
        """Hold each block once more."""
        ids = [block.block_id for block in blocks]
        self.core.touch(ids)
        if self.metrics_collector is not None:
            self.count(hits=ids)

    def count(self, new: Iterable[int] = (), hits: Iterable[int] = ()) -> None:
        """Tell the collector of blocks that were just taken, and of those hit.

        vLLM counts any block that is taken again as evicted. Here only those are that were cached.
        """
        collector = self.metrics_collector
        evicted = {each.block_id for each in self.core.take_evictions()}
        for block_id in new:
            if block_id in evicted:
                collector.on_block_evicted(Block(self, block_id))
            elif block_id:
                collector.block_metrics.pop(block_id, None)
            if block_id:
                collector.on_block_allocated(Block(self, block_id))
        for block_id in hits:
            if block_id:
                collector.on_block_accessed(Block(self, block_id))

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Let go of each block once; the first one let go is evicted first."""
        self.core.free_blocks([block.block_id for block in ordered_blocks])

"""Blocks that are found by their content: full blocks with equal prefixes are one physical block.

mutable     being filled; held by its one writer
immutable   full, found by its content, held by all sequences that have it
candidate   free, still found; evicted least recently accessed first, then by the most tokens
"""

from __future__ import annotations

from typing import final

from mypy_extensions import i64

from blockwright.errors import BlockError, InvalidArgumentError
from blockwright.paging.interfaces import Block
from blockwright.paging.pool_allocator import PoolAllocator, PoolBlock, hash_tokens, read_hash, with_tokens


@final
class PrefixCachingBlock(PoolBlock):
    """A block that is found by its content from the moment it is full."""

    def append_token_ids(self, token_ids: list[int]) -> None:
        """Write tokens to the empty slots; a block that becomes full gives way to one with its content, if known.

        One that others hold does so without being copied. Complexity: O(block_size). Raises as
        `PoolBlock.append_token_ids`. law: PAGE-6.
        """
        owner = self._allocator
        if isinstance(owner, PrefixCachingBlockAllocator) and owner.adopt_filled(self, token_ids):
            return
        super().append_token_ids(token_ids)
        if token_ids and self._mark != 0 and self.is_filled():
            self._mark = self._allocator.promote_to_immutable_block(self) + 1

    @property
    def computed(self) -> bool:
        """Whether its KV data is known to be there: marked as computed, or freed by itself."""
        allocator = self._allocator
        if self._mark != 0 and isinstance(allocator, PrefixCachingBlockAllocator):
            return self._computed or allocator.pool.is_computed(self._mark)
        return self._computed

    @computed.setter
    def computed(self, value: bool) -> None:
        self._computed = value

    @property
    def last_accessed(self) -> float:
        allocator = self._allocator
        if self._mark != 0 and isinstance(allocator, PrefixCachingBlockAllocator):
            return allocator.pool.time_of(self._mark)
        return self._accessed

    @last_accessed.setter
    def last_accessed(self, value: float) -> None:
        allocator = self._allocator
        if self._mark != 0 and isinstance(allocator, PrefixCachingBlockAllocator):
            require_time(value)
            allocator.pool.access(self._mark, value)
        self._accessed = value

    @staticmethod
    def hash_block_tokens(parent: bytes | None, token_ids: list[int], extra_hash: int | None = None) -> bytes:
        """Return the content hash of a full block with these tokens after one with the hash `parent`, or first.

        Complexity: O(tokens). Equal within one process only: the hash is keyed.

        Raises:
            InvalidArgumentError: a token is out of range, or the parent's hash is not 16 bytes.
        """
        return hash_tokens(parent, token_ids, extra_hash)


@final
class PrefixCachingBlockAllocator(PoolAllocator):
    """The blocks of one device, with prefix caching.

    Example:
        >>> allocator = PrefixCachingBlockAllocator(num_blocks=4, block_size=2)
        >>> one = allocator.allocate_immutable_block(None, [7, 8])
        >>> other = allocator.allocate_mutable_block(None)
        >>> other.append_token_ids([7])
        >>> other.append_token_ids([8])  # full: its content is known, so it gives up its own block
        >>> one.block_id == other.block_id, allocator.get_num_free_blocks()
        (True, 3)
    """

    def __init__(self, num_blocks: int, block_size: int, first_id: int = 0) -> None:
        """Make an allocator with every block free and without content; see `NaiveBlockAllocator`."""
        super().__init__(num_blocks, block_size, first_id, True)
        self._num_queries: i64 = 0
        self._num_hits: i64 = 0

    def copy(self) -> PrefixCachingBlockAllocator:
        twin = PrefixCachingBlockAllocator(0, 1)
        self.copy_to(twin)
        twin._num_queries = self._num_queries
        twin._num_hits = self._num_hits
        return twin

    def make_block(self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None) -> PoolBlock:
        return PrefixCachingBlock(prev_block, token_ids, int(self._size), self, None, False, extra_hash)

    def known(self, block: PoolBlock) -> i64:
        return self.pool.find_words(block._low, block._high) if block.has_hash() else 0

    def count_query(self, hit: bool) -> None:
        self._num_queries += 1
        if hit:
            self._num_hits += 1

    def known_filled(self, block: PoolBlock, token_ids: list[int]) -> i64:
        """Return the mark of the block that a shared one gives way to when these tokens fill it, or 0. O(block_size).

        Raises:
            InvalidArgumentError: a token is out of range.
        """
        count = i64(len(block._tokens)) + i64(len(token_ids))
        if not token_ids or count != self._size or self.pool.sharers(block._mark) == 1:
            return 0
        # Its hash is that of the block with these tokens; the block itself stays as it is.
        twin = block.copy_after(block._prev, self)
        twin._tokens = with_tokens(twin._tokens, token_ids)
        mark = self.known(twin)
        return mark if mark != 0 and self.may_adopt(mark, block) else 0

    def adopt_filled(self, block: PoolBlock, token_ids: list[int]) -> bool:
        """Let a known block take the place of a shared one that these tokens fill, if there is one. law: PAGE-6."""
        if block._mark == 0 or i64(len(block._tokens)) + i64(len(token_ids)) != self._size:
            return False
        own = self.own(block)
        mark = self.known_filled(own, token_ids)
        if mark == 0:
            return False
        self._give_way(own, mark)
        own._tokens = with_tokens(own._tokens, token_ids)
        return True

    def _give_way(self, block: PoolBlock, mark: i64) -> None:
        # Held before the other is released: no free block is taken for it in between.
        self.pool.hold_one(mark)
        self.pool.release_one(block._mark)
        block._mark = mark
        self.num_moves += 1

    def settle(self, block: PoolBlock) -> None:
        """Make a full block findable, or give it the place of the one that is found by its content. law: PAGE-6."""
        # A block before it is not full, or an engine's own without a hash: it is not found by its content.
        if not block.has_hash():
            return
        pool = self.pool
        mark = pool.find_words(block._low, block._high)
        if mark == 0:
            pool.publish_words(block._mark, block._low, block._high, (block._depth + 1) * self._size)
        elif mark != block._mark and self.may_adopt(mark, block):
            self._give_way(block, mark)

    def mark_blocks_as_accessed(self, block_ids: list[int], now: float) -> None:
        require_time(now)
        self.require_known(block_ids)
        pool = self.pool
        for block_id in block_ids:
            pool.access(block_id + 1, now)

    def require_known(self, block_ids: list[int]) -> None:
        pool = self.pool
        for block_id in block_ids:
            self.require_id(block_id)
            if pool.is_free(block_id + 1) and not pool.is_known(block_id + 1):
                raise BlockError(f"block_ids: block {block_id} is free and has no content")

    def mark_blocks_as_computed(self, block_ids: list[int]) -> None:
        self.pool.end_epoch()

    def get_common_computed_block_ids(self, computed_seq_block_ids: list[list[int]]) -> list[int]:
        common: list[int] = []
        for ids in zip(*computed_seq_block_ids):
            if any([each != ids[0] for each in ids]):
                break
            common.append(ids[0])
        return common

    def get_prefix_cache_hit_rate(self) -> float:
        return float(self._num_hits) / float(self._num_queries) if self._num_queries > 0 else 0.0

    def reset_prefix_cache(self) -> bool:
        if not self.pool.reset():
            return False
        self._num_queries = 0
        self._num_hits = 0
        return True

    def find_cached_blocks_prefix(self, block_hashes: list[bytes]) -> list[bytes]:
        found = 0
        for content_hash in block_hashes:
            low, high = read_hash(content_hash)
            mark = self.pool.find_words(low, high)
            if mark == 0 or not self.pool.is_computed(mark):
                break
            found += 1
        return block_hashes[:found]


def require_time(now: float) -> None:
    if now != now:
        raise InvalidArgumentError("now: a time must be a number")

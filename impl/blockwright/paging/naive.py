"""Blocks that are shared by forks alone: nothing is found by its content."""

from __future__ import annotations

from typing import final

from blockwright.paging.interfaces import Block
from blockwright.paging.pool_allocator import PoolAllocator, PoolBlock


@final
class NaiveBlock(PoolBlock):
    """A block that is not looked up by its content."""


@final
class NaiveBlockAllocator(PoolAllocator):
    """The blocks of one device, without prefix caching; the block released last is taken first.

    Example:
        >>> allocator = NaiveBlockAllocator(num_blocks=2, block_size=4)
        >>> block = allocator.allocate_mutable_block(prev_block=None)
        >>> block.append_token_ids([7, 8])
        >>> twin = allocator.fork(block)[0]
        >>> twin.append_token_ids([9])  # a copy, since others hold the block
        >>> block.token_ids, twin.token_ids, allocator.clear_copy_on_writes()
        ([7, 8], [7, 8, 9], [(0, 1)])
    """

    def __init__(self, num_blocks: int, block_size: int, first_id: int = 0) -> None:
        """Make an allocator with every block free.

        Args:
            num_blocks: 0 to 2**30.
            block_size: slots per block.
            first_id: the absolute id of the first block.

        Complexity: O(num_blocks).

        Raises:
            InvalidArgumentError: names the argument.
        """
        super().__init__(num_blocks, block_size, first_id, False)

    def copy(self) -> NaiveBlockAllocator:
        twin = NaiveBlockAllocator(0, 1)
        self.copy_to(twin)
        return twin

    def make_block(self, prev_block: Block | None, token_ids: list[int], extra_hash: int | None) -> PoolBlock:
        return NaiveBlock(prev_block, token_ids, int(self._size), self, None, False, extra_hash)

    def mark_blocks_as_accessed(self, block_ids: list[int], now: float) -> None:
        """Do nothing: blocks without content are not evicted."""

    def mark_blocks_as_computed(self, block_ids: list[int]) -> None:
        """Do nothing, since no other sequence finds a block by its content."""

    def get_common_computed_block_ids(self, computed_seq_block_ids: list[list[int]]) -> list[int]:
        return []

    def get_prefix_cache_hit_rate(self) -> float:
        return -1.0

    def reset_prefix_cache(self) -> bool:
        return True

    def find_cached_blocks_prefix(self, block_hashes: list[bytes]) -> list[bytes]:
        return []

"""SGLang's allocators of slots, which ask the cache: they have no pages of their own.

The objects that SGLang made stay the same, since the scheduler, the workers and the pools hold them when the cache is
made; only their class is changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

from blockwright.core.pool.pool import BlockPool
from blockwright.engines.sglang import not_served

if TYPE_CHECKING:
    from blockwright.engines.sglang.cache import BlockwrightCache


def asking(base: Any) -> Any:
    """Return a class under one of SGLang's: an object cannot get a class with two bases."""

    class Asking(base):
        """What the scheduler's allocator answers: slots of the batch that is being prepared."""

        cache: BlockwrightCache

        def evict_to_free_tokens(self, tree_cache: Any, num_tokens: int) -> None:
            """Do nothing: the manager evicts as it gives slots."""

        def check_decode_capacity(
            self, *, num_tokens: int, tree_cache: Any, requests: Any = None, spec_algorithm: Any = None
        ) -> bool:
            """Return whether the next step of decoding fits, and note whose it is: no other call says so."""
            self.cache.decoding = requests
            return bool(self.available_size() >= num_tokens)

        def alloc(self, need_size: int) -> torch.Tensor | None:
            """Return slots for a batch, of pages of one token."""
            return self.cache.take(need_size)

        def alloc_extend(
            self,
            prefix_lens: Any,
            prefix_lens_cpu: Any,
            seq_lens: Any,
            seq_lens_cpu: Any,
            last_loc: Any,
            extend_num_tokens: int,
            **kwargs: Any,
        ) -> torch.Tensor | None:
            """Return slots for a batch of prefills."""
            return self.cache.take(extend_num_tokens)

        def alloc_decode(
            self, seq_lens: torch.Tensor, seq_lens_cpu: Any, last_loc: Any, **kwargs: Any
        ) -> torch.Tensor | None:
            """Return a slot for each request of a batch."""
            return self.cache.take(len(seq_lens))

        def free(self, free_index: torch.Tensor) -> None:
            """Refuse: pages return with their request."""
            raise not_served("an engine that frees slots by number", "report what did")

        free_swa = free_full = free

        def free_segment(self, free_index: torch.Tensor, *, start_pos: int) -> None:
            """Refuse, as `free`."""
            self.free(free_index)

        free_swa_segment = free_full_segment = free_segment

        def resize(self, config: Any) -> None:
            """Refuse: the manager has as many pages as there were when the cache was made."""
            raise not_served("a pool that changes its size after the start", "report what asked for it")

        def free_group_begin(self) -> None:
            """Do nothing: there is nothing to put off."""

        def free_group_end(self) -> None:
            """Do nothing."""

        def clear(self) -> None:
            """Do nothing: `BlockwrightCache.reset` has given everything back."""

    return Asking


class BlockwrightAllocator(asking(PagedTokenToKVPoolAllocator)):  # type: ignore[misc]
    """What the allocator of one pool becomes, for pages of any size."""

    pool: BlockPool

    def available_size(self) -> int:
        """Return the tokens in pages that nobody holds, cached ones included."""
        return self.pool.num_free * int(self.page_size)

    @property
    def free_pages(self) -> torch.Tensor:
        """The pages that nobody holds, for SGLang's checks."""
        return self.get_all_free_pages()

    @free_pages.setter
    def free_pages(self, _: Any) -> None:
        """Ignore the base class's list of free slots."""

    def get_all_free_pages(self) -> torch.Tensor:
        """Return the pages that nobody holds."""
        return torch.tensor(self.pool.free_block_ids(), dtype=torch.int64)


class BlockwrightWindowAllocator(asking(SWATokenToKVPoolAllocator)):  # type: ignore[misc]
    """What the allocator of two pools becomes; those of the pools themselves become `BlockwrightAllocator`."""


class BlockwrightStateAllocator(MambaSlotAllocator):
    """The allocator of states: a cached state that no request holds is available."""

    pool: BlockPool

    def available_size(self) -> int:
        """Return the number of slots that no request holds."""
        return self.pool.num_free

    def alloc_group_begin(self, num_reqs: int) -> None:
        """Do nothing: slots for requests that may not come would cost cached states."""

    def alloc_group_end(self) -> None:
        """Do nothing."""

    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Return slots, or None."""
        if need_size > self.pool.num_free:
            return None
        return self.slots([block.block_id for block in self.pool.get_new_blocks(need_size)])

    def slots(self, blocks: list[int]) -> torch.Tensor:
        """Return slots as SGLang has them."""
        return torch.tensor(blocks, dtype=torch.int64, device=self.device)

    def free(self, free_index: torch.Tensor) -> None:
        """Let go of slots; the state of one that is published stays cached."""
        self.pool.free_blocks(free_index.tolist())

    @property
    def free_slots(self) -> torch.Tensor:
        """The slots that no request holds, for SGLang's checks."""
        return self.slots(self.pool.free_block_ids())

    @free_slots.setter
    def free_slots(self, _: Any) -> None:
        """Ignore the base class's list of free slots."""

    def clear(self) -> None:
        """Do nothing: `BlockwrightCache.reset` has given everything back."""

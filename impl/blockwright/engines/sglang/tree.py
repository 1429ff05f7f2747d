"""SGLang's prefix tree over a `BlockPool`: the same calls, with a page of slots as a block of the same number.

SGLang's allocator deals out pages, and a tree keeps those that hold prefixes. Here each page is a block: one that the
tree does not keep is held once, by whoever has it from the allocator; one that it keeps has a key, and is held as often
as it is locked, so that the pool's free blocks are what the tree can evict, least recently used first.

    the allocator's, or a request's own    held once, without a key
    kept and not locked                    free, with a key: lookups find it, and an eviction may take it
    kept and locked                        held, with a key

A node is the path to it, so that there is nothing to split. What is kept goes from the end of its prefix, page by page;
SGLang's own tree evicts whole nodes. A path counts as used when it is matched, inserted, or unlocked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sglang.srt.mem_cache.base_prefix_cache import (
    DecLockRefResult,
    EvictResult,
    IncLockRefResult,
    InsertResult,
    MatchResult,
)
from sglang.srt.mem_cache.radix_cache import RadixCache

from blockwright import BlockPool, FullAttentionManager, FullAttentionSpec, Request, SipHasher
from blockwright.errors import InvalidArgumentError


class Path(NamedTuple):
    """The end of a prefix that is kept: its pages, from the first."""

    pages: tuple[int, ...] = ()


class BlockwrightCache(RadixCache):
    """`RadixCache` with Blockwright's pool in place of its tree; what it does with requests is SGLang's own code."""

    def reset(self) -> None:
        """Forget everything. What was kept is the allocator's again, which SGLang clears as well. O(pages)."""
        import torch

        self._tensor = torch.tensor
        self._offsets = torch.arange(self.page_size, device=self.device)
        count = self.token_to_kv_pool_allocator.size // self.page_size
        self._spec = FullAttentionSpec(block_size=self.page_size, num_kv_heads=1, head_size=1, dtype="bfloat16")
        self._pool = BlockPool(count + 1)
        self._pool.get_new_blocks(count)
        self._kept = 0
        self._hasher = SipHasher()
        self.root_node = Path()
        self._empty_device_indices = self._slots(())

    def match_prefix(self, params: Any) -> Any:
        """Return the longest kept prefix of a key, whose pages now count as used. O(tokens)."""
        pages = self._found(self._request(params.key.page_aligned(self.page_size)))
        self._pool.touch(pages)
        self._pool.free_blocks(pages[::-1])
        node = Path(tuple(pages))
        return MatchResult(len(pages) * self.page_size, node, node, node)

    def touch_prefix(self, key: Any) -> None:
        """Count the kept prefix of a key as used. O(tokens)."""
        self.match_prefix(_Key(key))

    def insert(self, params: Any) -> Any:
        """Keep the pages of a key that are not kept yet; return how many leading tokens were. O(tokens)."""
        key = params.key.page_aligned(self.page_size)
        if params.value is None:
            raise InvalidArgumentError("params.value: the slots of the key are needed; there are no tokens to stand in")
        request, pages = self._request(key), self._pages(params.value[: len(key)])
        path = self._found(request)
        known = len(path)
        path += pages[known:]
        if request is not None:
            self._pool.cache_full_blocks(request, path, known, len(path), self.page_size)
            self._pool.touch(path[:known])
            self._pool.free_blocks(path[::-1])
            self._kept += len(path) - known
        return InsertResult(prefix_len=known * self.page_size, last_device_node=Path(tuple(path)))

    def evict(self, params: Any) -> Any:
        """Give pages back to the allocator, as many as are asked for and not locked. O(pages)."""
        start = time.perf_counter()
        count = min(-(-params.num_tokens // self.page_size), self._pool.num_free)
        pages = [block.block_id for block in self._pool.get_new_blocks(max(0, count))]
        if pages:
            self.token_to_kv_pool_allocator.free_segment(self._slots(pages), start_pos=0)
        self._kept -= len(pages)
        self.update_eviction_metrics(len(pages) * self.page_size, start)
        return EvictResult(num_tokens_evicted=len(pages) * self.page_size)

    def inc_lock_ref(self, node: Path) -> Any:
        """Hold every page of a path once more. O(pages)."""
        before = self._pool.num_free
        self._pool.touch(node.pages)
        return IncLockRefResult(delta=(self._pool.num_free - before) * self.page_size)

    def dec_lock_ref(self, node: Path, params: Any = None) -> Any:
        """Release every page of a path once; those that nobody holds can be evicted, the last first. O(pages)."""
        before = self._pool.num_free
        self._pool.free_blocks(node.pages[::-1])
        return DecLockRefResult(delta=(self._pool.num_free - before) * self.page_size)

    def evictable_size(self) -> int:
        """Return how many tokens are kept and not locked. O(1)."""
        return int(self._pool.num_free * self.page_size)

    def protected_size(self) -> int:
        """Return how many tokens are kept and locked. O(1)."""
        return self.total_size() - self.evictable_size()

    def total_size(self) -> int:
        """Return how many tokens are kept. O(1)."""
        return int(self._kept * self.page_size)

    def path_device_indices(self, node: Path) -> Any:
        """Return the slots of a path. O(tokens)."""
        return self._slots(node.pages)

    def all_values_flatten(self) -> Any:
        """Return the slots of everything that is kept. O(slots)."""
        return self._slots([page for page, key in enumerate(self._pool.block_keys()) if key is not None])

    def pretty_print(self) -> None:
        """Print what is kept, by number."""
        print(f"{type(self).__name__}: {self.total_size()} tokens kept, {self.protected_size()} of them locked")

    def _request(self, key: Any) -> Request | None:
        """Return a request with the tokens of a key, and what else identifies it; None if it fills no page."""
        tokens = key.raw_token_ids()
        if not len(tokens):
            return None
        name, salt = key.extra_key or None, key.cache_salt
        return Request("key", tokens, self.page_size, lora_name=name, cache_salt=salt, hasher=self._hasher)

    def _found(self, request: Request | None) -> list[int]:
        """Return the pages of the longest prefix that is kept."""
        if request is None:
            return []
        hashes, spec = request.block_hashes, self._spec
        length = len(hashes) * self.page_size
        (found,) = FullAttentionManager.find_longest_cache_hit(hashes, length, (0,), self._pool, spec)
        return [block.block_id for block in found]

    def _pages(self, slots: Any) -> list[int]:
        """Return the pages that slots are of, which fill them."""
        return [int(slot) // self.page_size for slot in slots[:: self.page_size].tolist()]

    def _slots(self, pages: Sequence[int]) -> Any:
        """Return the slots of pages, in order."""
        starts = self._tensor(pages, dtype=self._offsets.dtype, device=self.device) * self.page_size
        return (starts[:, None] + self._offsets).flatten()


class _Key(NamedTuple):
    """What `match_prefix` reads of its argument."""

    key: Any

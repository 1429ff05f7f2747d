"""What a prompt hits: vLLM's questions, put to the core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import GivenHasher, KVCacheBlocks, Request
from blockwright import KVCacheManager as Manager
from blockwright.engines.vllm.requests import Twin
from blockwright.engines.vllm.settings import Settings
from blockwright.errors import UnsupportedError


class Lookups:
    """Lookups, and which hit was the last.

    Attributes:
        unserved: a hit that could not be cut: its request is not admitted with it.
    """

    def __init__(self, settings: Settings, core: Manager, publish: Callable[[], None]) -> None:
        """Ask a core, after all that may be found is published."""
        self._settings, self._core, self._publish = settings, core, publish
        self._asked: tuple[Any, KVCacheBlocks | None] = None, None  # who looked up last, and the hit
        self.unserved: KVCacheBlocks | None = None

    def hit(self, request: Any, twin: Twin, most: int | None) -> tuple[KVCacheBlocks, int]:
        """Return the hit of a request, of at most so many tokens, and its tokens; note where it could be longer."""
        self._publish()
        twin.learn(request, request.num_tokens)
        own = twin.request
        if most is not None and most < request.num_tokens - 1:
            own = self._prefix(request.block_hashes, request.all_token_ids, max(0, most))
        hit, length = self._core.get_computed_blocks(own)
        if twin.takes_whole:
            hit, length = self.whole_hit(request.block_hashes, request.all_token_ids, length)
        self._asked = request, hit
        twin.junction = own.junction if self._settings.has_states else 0
        return hit, length

    def _prefix(self, hashes: Any, tokens: Sequence[int], most: int) -> Request:
        """Return a request that only asks: what is the hit of these tokens, up to `most` of them?"""
        settings = self._settings
        hasher = GivenHasher(hashes, key_lookahead=settings.lookahead, first=settings.first)
        return Twin.request_of("asks", list(tokens[: most + max(1, settings.lookahead)]), settings.hash_unit, hasher)

    def whole_hit(self, hashes: Any, tokens: Sequence[int], most: int) -> tuple[KVCacheBlocks, int]:
        """Return the longest hit of at most so many tokens that ends with a block of each group, and its tokens."""
        size = self._settings.whole
        while True:
            hit, length = self._core.get_computed_blocks(self._prefix(hashes, tokens, most - most % size))
            if length % size == 0:
                return hit, length
            most = length

    def hits_per_group(self, block_hashes: Any, max_cache_hit_length: int) -> tuple[None, tuple[int, ...]]:
        """Return the hit that each group has alone, as the offloading connector asks vLLM's coordinator."""
        # With a unit it is the hit that all have, which is no longer. vLLM returns the blocks first, but no connector
        # reads them.
        self._publish()
        settings, tokens = self._settings, [0] * (max_cache_hit_length + 1)
        if settings.match_unit is not None:
            keyed = max(0, len(block_hashes) - settings.first) * settings.match_unit
            length = self.whole_hit(block_hashes, tokens, min(max_cache_hit_length, keyed))[1]
            return None, (length,) * len(settings.sizes)
        own = self._prefix(block_hashes, tokens, max_cache_hit_length)
        return None, tuple(group.num_tokens for group in self._core.explain_hit(own).groups)

    def cut(self, blocks: KVCacheBlocks, num_tokens: int) -> KVCacheBlocks:
        """Return a hit up to the whole blocks that its first tokens fill.

        A recurrent layer may have no state there. Then the request is not admitted now, and its next hit is of whole
        blocks.

        Raises:
            UnsupportedError: it is not the last hit, or hits end with blocks and it has another length.
        """
        request, asked = self._asked
        if self._settings.match_unit is not None and blocks is asked:
            hit, length = self.whole_hit(request.block_hashes, request.all_token_ids, num_tokens)
            if length == num_tokens:
                return hit
            request._blockwright.takes_whole = True
            self.unserved = blocks
            return blocks
        sizes = self._settings.sizes
        length = max([len(ids) * size for ids, size in zip(blocks.ids, sizes, strict=True)], default=0)
        if num_tokens != length:
            raise UnsupportedError(
                f"truncate_computed_blocks: a hit of {length} tokens cannot be cut to {num_tokens} under "
                "Blockwright; no release that was tried does this"
            )
        return blocks

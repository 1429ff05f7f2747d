"""transformers' `PagedAttentionCache` of continuous batching (5.24) under the kit: its scheduler's side."""

from typing import Any

import torch
from transformers import ContinuousBatchingConfig, LlamaConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

from base import Adapter
from blockwright_conformance import Capabilities, Found, Observation
from blockwright_spec.manager.outcomes import Publication

MODEL = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
FULL = "full_attention"


class TransformersAdapter(Adapter):
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"chunks", "later", "preempt", "reset"}),
        features=frozenset({"caching", "uncached"}),
        ways=frozenset({"forgets", "deduplicates"}),
        absent={"sliding": "a ring, whose blocks hold tokens of two laps", "fork": "a partial block is copied at once"},
    )

    def __init__(self, config: Any) -> None:  # its sectors are numbered from 2, and one is a block: shown as from 1
        super().__init__()
        sizes = {"num_blocks": config.num_blocks - 1, "page_size": config.groups[0].block_size}
        limits = {"max_batch_tokens": 64, "max_memory_percent": 0.9}
        made = ContinuousBatchingConfig(**sizes, **limits, allow_block_sharing=config.caching)
        self.cache = PagedAttentionCache(MODEL, made, "cpu", DistributedHelper(None, 1), torch.float32)
        self.group, self.size = self.cache.cache_allocators[FULL], sizes["page_size"]
        self.shared += [self.cache.cache_tensor, self.group.cache_tensor, self.group._copy_view]
        self.shared += [self.cache.config, self.group._kv_token_views, self.group._kv_page_views]

    def send(self, name: str, prefix: Any) -> None:
        self.requests[name] = RequestState(name, list(prefix[1]), max_new_tokens=64)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.requests[name].initial_tokens += tokens

    def find(self, name: str) -> Found:
        shares, tokens = self.cache.use_prefix_sharing, self.requests[name].initial_tokens
        hit = self.group.match_prefix_blocks(tokens) if shares else []
        return Found(len(hit) * self.size, (tuple(block - 1 for block in hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        state, table, cache = self.requests[name], self.group.block_table, self.cache
        if name not in table and length:
            cache.search_prefix_match(name, state.initial_tokens)
        begin, state.position_offset = len(table.get(name, ())), computed + length
        fits = cache.can_store_request_tokens(state, step.new)
        if not fits and not (cache.evict_cached_blocks() and cache.can_store_request_tokens(state, step.new)):
            if not computed:
                cache.free_blocks(name)
            return None
        new = tuple(block - 1 for block in table[name][begin:])  # before they are replaced by equal ones
        if step.publication is Publication.NOW:
            self.publish(name, computed + length + step.new)
        return (new,)

    def publish(self, name: str, end: int) -> None:
        listed = sum(block in self.group.ledger.block_to_hash for block in self.group.block_table[name])
        self.cache.mark_complete_blocks(self.requests[name], {FULL: end // self.size - listed})

    def free(self, name: str) -> None:
        self.cache.free_blocks(name)

    def reset(self) -> bool:
        return not self.group.block_table and (self.cache.evict_cached_blocks() or True)

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables, kept = self.group.block_table, tuple(block - 1 for block in self.group.ledger.cached_blocks)
        shown = tuple((tuple(block - 1 for block in tables[name]),) if tables.get(name) else None for name in names)
        free = self.cache.pool.num_free_sectors + self.cache.pool.count_free_blocks(0) + len(kept)
        return Observation(shown, free=free, kept=kept)

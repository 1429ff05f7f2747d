"""transformers' `PagedAttentionCache` of continuous batching (5.24) under the kit: its scheduler's side of each call."""

import copy
from typing import Any, Self

import torch
from blockwright_conformance import Capabilities, Found, Observation
from blockwright_spec.manager.outcomes import Publication
from transformers import ContinuousBatchingConfig, LlamaConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState

MODEL = LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)


class TransformersAdapter:
    capabilities = Capabilities(
        kinds=frozenset({"full"}),
        calls=frozenset({"chunks", "later", "preempt", "reset"}),
        features=frozenset({"caching", "uncached"}),
        ways=frozenset({"forgets", "deduplicates"}),
        absent={"sliding": "a ring of blocks, each with tokens of two laps", "fork": "a shared last block is copied at once"},
    )
    errors, stale, follows_policy = (), (), False

    def __init__(self, config: Any) -> None:  # its sectors are numbered from 2, and one is a block: shown as from 1
        sizes = {"num_blocks": config.num_blocks - 1, "page_size": config.groups[0].block_size}
        made = ContinuousBatchingConfig(**sizes, max_batch_tokens=64, max_memory_percent=0.9, allow_block_sharing=config.caching)
        self.cache = PagedAttentionCache(MODEL, made, "cpu", DistributedHelper(None, 1), torch.float32)
        self.group, self.states = self.cache.cache_allocators["full_attention"], {}

    def copy(self) -> Self:
        shared = [self.cache.config, self.cache.cache_tensor, self.group.cache_tensor, self.group._copy_view]
        shared += [self.group._kv_token_views, self.group._kv_page_views]
        return copy.deepcopy(self, {id(each): each for each in shared})

    def send(self, name: str, prefix: Any) -> None:
        self.states[name] = RequestState(name, list(prefix[1]), max_new_tokens=64)

    def forget(self, name: str) -> None:
        self.states.pop(name, None)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.states[name].initial_tokens += tokens

    def find(self, name: str) -> Found:
        hit = self.group.match_prefix_blocks(self.states[name].initial_tokens) if self.cache.use_prefix_sharing else []
        return Found(len(hit) * self.group.tokens_per_page, (tuple(b - 1 for b in hit),))

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        state, table = self.states[name], self.group.block_table
        if name not in table and length:
            self.cache.search_prefix_match(name, state.initial_tokens)
        begin = len(table.get(name, ()))
        state.position_offset = computed + length
        fits = self.cache.can_store_request_tokens(state, step.new)
        if not fits and self.cache.evict_cached_blocks():
            fits = self.cache.can_store_request_tokens(state, step.new)
        if not fits:
            if not computed:
                self.cache.free_blocks(name)
            return None
        new = tuple(block - 1 for block in table[name][begin:])
        if step.publication is Publication.NOW:
            self.publish(name, computed + length + step.new)
        return (new,)

    def publish(self, name: str, end: int) -> None:
        listed = sum(block in self.group.ledger.block_to_hash for block in self.group.block_table[name])
        self.cache.mark_complete_blocks(self.states[name], {"full_attention": end // self.group.tokens_per_page - listed})

    def free(self, name: str) -> None:
        self.cache.free_blocks(name)

    def reset(self) -> bool:
        return not self.group.block_table and (self.cache.evict_cached_blocks() or True)

    def common_prefix(self, name: str, running: int) -> None: ...

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables, kept = self.group.block_table, tuple(block - 1 for block in self.group.ledger.cached_blocks)
        shown = tuple((tuple(block - 1 for block in tables[name]),) if tables.get(name) else None for name in names)
        free = self.cache.pool.num_free_sectors + self.cache.pool.count_free_blocks(0) + len(kept)
        return Observation(shown, free=free, kept=kept)

    def check(self) -> None: ...

"""vLLM's `KVCacheManager` (0.32) under the kit: its scheduler's side of each call."""

import math
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.request import Request

from base import Adapter
from blockwright_conformance import Capabilities, Found, Observation
from blockwright_spec.manager.outcomes import Publication
from blockwright_spec.reads import Chunked, Full

register_all_kvcache_specs(None)
kv_cache_utils.init_none_hash(sha256)


def spec_of(group: Any) -> Any:
    own = {"block_size": group.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if isinstance(group.kind, Full):
        return specs.FullAttentionSpec(**own)
    if isinstance(group.kind, Chunked):
        return specs.ChunkedLocalAttentionSpec(**own, attention_chunk_size=group.kind.chunk)
    return specs.SlidingWindowSpec(**own, sliding_window=group.kind.window)


def excluded(config: Any) -> str:
    has_chunks = any(isinstance(group.kind, Chunked) for group in config.groups)
    return "chunks beside blocks of another size" * (has_chunks and len({g.block_size for g in config.groups}) > 1)


class VllmAdapter(Adapter):
    capabilities = Capabilities(
        kinds=frozenset({"full", "sliding", "chunked"}),
        calls=frozenset({"chunks", "later", "trim", "preempt", "reset", "unasked", "adopt"}),
        features=frozenset({"caching", "uncached", "groups", "block sizes", "lookahead", "extra keys"}),
        lengths={"window": range(2, 1 << 20)},
        ways=frozenset({"aligned", "trims refused"}),
        excludes=excluded,
        absent={"window": "of one token: a block is looked for that no token reads", "too long": "slots stop there"},
    )

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.sizes = [group.block_size for group in config.groups]
        self.hits: dict[str | None, Any] = {}
        groups = [specs.KVCacheGroupSpec([f"layer.{at}"], spec_of(each)) for at, each in enumerate(config.groups)]
        made = specs.KVCacheConfig(num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        lengths = config.max_model_len, math.lcm(*self.sizes), math.gcd(*self.sizes)
        self.manager = KVCacheManager(made, *lengths, enable_caching=config.caching)
        self.hasher = kv_cache_utils.get_request_block_hasher(lengths[2], sha256)
        self.shared += [made, self.hasher]

    def send(self, name: str, prefix: Any) -> None:
        own = {"block_hasher": self.hasher, "cache_salt": str(prefix[0]) if prefix[0] else None}
        self.requests[name] = Request(name, list(prefix[1]), SamplingParams(), None, **own)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.requests[name].append_output_token_ids(list(tokens))

    def find(self, name: str) -> Found:
        self.hits[name], length, _ = self.manager.get_computed_blocks(self.requests[name])
        return Found(length, tuple(map(tuple, self.hits[name].get_block_ids())) if length else ())

    def table(self, name: str) -> Any:  # by `get`: the dictionary makes an entry for a name that it does not have
        parts = [each.req_to_blocks.get(name, ()) for each in self.manager.coordinator.single_type_managers]
        return tuple(tuple(block.block_id for block in part) for part in parts)

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        self.manager.new_step_starts()
        self.requests[name].num_computed_tokens = computed
        begins = map(len, self.table(name)) if computed else [length // size for size in self.sizes]
        asked = (step.new, length, self.hits.get(hit_of), step.lookahead), step.publication is Publication.LATER
        if self.manager.allocate_slots(self.requests[name], *asked[0], delay_cache_blocks=asked[1]) is None:
            return None
        return tuple(part[begin:] for part, begin in zip(self.table(name), begins, strict=True))

    def publish(self, name: str, end: int) -> None:
        self.manager.cache_blocks(self.requests[name], end)

    def trim(self, name: str, end: int) -> None:
        self.manager.remove_skipped_blocks(name, end)

    def free(self, name: str) -> None:
        self.manager.free(self.requests[name])

    def reset(self) -> bool:
        return bool(self.manager.reset_prefix_cache())

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables, pool = map(self.table, names), self.manager.block_pool
        shown = tuple(table if any(table) else None for table in tables)
        return Observation(shown, references=tuple(b.ref_cnt for b in pool.blocks), free=pool.get_num_free_blocks())

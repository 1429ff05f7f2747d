"""vLLM's `KVCacheManager` (0.32) under the kit: its scheduler's side of each call."""

import copy
import logging
import math
import os
from typing import Any, Self

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
import torch
from blockwright_conformance import Capabilities, Found, Observation
from blockwright_spec.manager.outcomes import Publication
from blockwright_spec.reads import Chunked, Full
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.request import Request

register_all_kvcache_specs(None)
init_none_hash(sha256)
logging.getLogger("vllm").setLevel(logging.ERROR)


def spec_of(group: Any) -> Any:
    own = {"block_size": group.block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if isinstance(group.kind, Full):
        return specs.FullAttentionSpec(**own)
    if isinstance(group.kind, Chunked):
        return specs.ChunkedLocalAttentionSpec(**own, attention_chunk_size=group.kind.chunk)
    return specs.SlidingWindowSpec(**own, sliding_window=group.kind.window)


def chunks_of_unequal_blocks(config: Any) -> str:
    has_chunks = any(isinstance(group.kind, Chunked) for group in config.groups)
    return "chunks beside blocks of another size" * (has_chunks and len({g.block_size for g in config.groups}) > 1)


class VllmAdapter:
    capabilities = Capabilities(
        kinds=frozenset({"full", "sliding", "chunked"}),
        calls=frozenset({"chunks", "later", "trim", "preempt", "reset", "unasked", "adopt"}),
        features=frozenset({"caching", "uncached", "groups", "block sizes", "lookahead", "extra keys"}),
        lengths={"window": range(2, 1 << 20)},
        ways=frozenset({"trims refused"}),
        excludes=chunks_of_unequal_blocks,
        absent={"window": "of one token: a block is looked for that no token reads", "too long": "slots stop there"},
    )
    errors, stale, follows_policy = (), (), False

    def __init__(self, config: Any) -> None:
        sizes = [group.block_size for group in config.groups]
        groups = [specs.KVCacheGroupSpec([f"layer.{at}"], spec_of(each)) for at, each in enumerate(config.groups)]
        made = specs.KVCacheConfig(num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        self.sizes, unit = sizes, math.gcd(*sizes)
        self.manager = KVCacheManager(made, config.max_model_len, math.lcm(*sizes), unit, enable_caching=config.caching)
        self.hasher = get_request_block_hasher(unit, sha256)
        self.requests, self.hits = {}, {}

    def copy(self) -> Self:
        return copy.deepcopy(self, {id(each): each for each in (self.manager.kv_cache_config, self.hasher)})

    def send(self, name: str, prefix: Any) -> None:
        salt = {"cache_salt": str(prefix[0])} if prefix[0] else {}
        self.requests[name] = Request(name, list(prefix[1]), SamplingParams(), None, block_hasher=self.hasher, **salt)

    def forget(self, name: str) -> None:
        self.requests.pop(name, None)

    def append(self, name: str, tokens: tuple[int, ...]) -> None:
        self.requests[name].append_output_token_ids(list(tokens))

    def find(self, name: str) -> Found:
        self.hits[name], length, _ = self.manager.get_computed_blocks(self.requests[name])
        return Found(length, tuple(map(tuple, self.hits[name].get_block_ids())) if length else ())

    def allocate(self, name: str, computed: int, step: Any, length: int, hit_of: str | None) -> Any:
        self.manager.new_step_starts()
        request, hit = self.requests[name], self.hits.get(hit_of)
        request.num_computed_tokens = computed
        begins = [len(part) for part in self.table(name)] if computed else [length // size for size in self.sizes]
        later = step.publication is Publication.LATER
        if self.manager.allocate_slots(request, step.new, length, hit, step.lookahead, delay_cache_blocks=later) is None:
            return None
        return tuple(tuple(table[begin:]) for table, begin in zip(self.table(name), begins, strict=True))

    def publish(self, name: str, end: int) -> None:
        self.manager.cache_blocks(self.requests[name], end)

    def trim(self, name: str, end: int) -> None:
        self.manager.remove_skipped_blocks(name, end)

    def free(self, name: str) -> None:
        self.manager.free(self.requests[name])

    def reset(self) -> bool:
        return self.manager.reset_prefix_cache()

    def common_prefix(self, name: str, running: int) -> None: ...  # 0 since cascade attention is gone

    def table(self, name: str) -> Any:  # by `get`: the dictionary makes an entry for a name that it does not have
        parts = [each.req_to_blocks.get(name, ()) for each in self.manager.coordinator.single_type_managers]
        return tuple(tuple(block.block_id for block in part) for part in parts)

    def observe(self, names: tuple[str, ...]) -> Observation:
        tables, pool = map(self.table, names), self.manager.block_pool
        shown = tuple(table if any(table) else None for table in tables)
        return Observation(shown, references=tuple(b.ref_cnt for b in pool.blocks), free=pool.get_num_free_blocks())

    def check(self) -> None: ...

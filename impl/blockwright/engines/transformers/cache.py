"""transformers' paged cache over a manager: who holds which block is Blockwright's, where a block lies transformers'.

transformers has one allocator a kind of attention, with tables of blocks by the names of requests, and reckons rows of
the cache's tensor from these. Here a kind has one or more groups of the manager, each with such an allocator: it finds
the rows as before, and its tables are filled by the manager. So layers of one kind, however many, take blocks as small
as those of the rarest kind, from one pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.generation.continuous_batching.cache import PagedAttentionCache, group_layers_by_attn_type
from transformers.generation.continuous_batching.cache_allocators import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    CachePool,
    FullAttentionCacheAllocator,
)

from blockwright import (
    Fits,
    FullAttentionSpec,
    KVCacheBlocks,
    KVCacheConfig,
    KVCacheManager,
    KVCacheSpec,
    NotNow,
    Request,
    SlidingWindowSpec,
)
from blockwright.device import KVCachePlan, plan_kv_cache
from blockwright.engines.transformers import not_served
from blockwright.engines.transformers.served import refuse
from blockwright.errors import TooLittleMemoryError


class Tables(FullAttentionCacheAllocator):
    """The tables of one group: transformers finds the rows of its tokens by them. A window is no ring here."""

    def __init__(self, window: int | None, demand: Callable[[str, int], int], **arguments: Any) -> None:
        """Serve layers of full attention, or with a window."""
        super().__init__(**arguments)
        self.window, self.demand = window, demand
        if window is not None:
            self.layer_type, self.supports_block_table = SLIDING_ATTENTION, False

    def first_read(self, past: int) -> int:
        """Return the first position that the token at `past` reads."""
        return 0 if self.window is None else max(0, past - self.window + 1)

    def get_seqlen_k(self, past_length: int, query_length: int) -> int:
        """Return the tokens that a step reads, its own included."""
        return past_length + query_length - self.first_read(past_length)

    def get_read_indices(self, request_id: str, past_length: int, query_length: int) -> list[int]:
        """Return the rows of these tokens."""
        first = self.first_read(past_length)
        indices: list[int] = self.get_write_indices(request_id, first, past_length + query_length - first)
        return indices

    def needs_new_blocks(self, request_id: str, past_length: int, query_length: int) -> int:
        """Return the blocks that a step lacks: of all groups for the first, since they share a pool."""
        return self.demand(request_id, query_length) if self.index == 0 else 0


class Kinds(dict[str, Any]):
    """The allocators. Its keys are the kinds of attention, one allocator each; `values` are those of all groups.

    transformers reads the lengths of a step by kind, and makes one row of indices a value.
    """

    def __init__(self, groups: Sequence[Tables]) -> None:
        """Name the first group of each kind."""
        super().__init__({group.layer_type: group for group in reversed(groups)})
        self.groups = groups

    def __len__(self) -> int:
        return len(self.groups)

    def values(self) -> Any:
        """Return the tables of all groups, in the manager's order."""
        return self.groups


class BlockwrightCache(PagedAttentionCache):
    """The cache of one model.

    Attributes:
        manager: of all its blocks.
        requests: the manager's, by the names of transformers' requests.
    """

    def __init__(
        self,
        config: Any,
        continuous_batching_config: Any,
        device: Any,
        distributed_helper: Any,
        dtype: torch.dtype = torch.float16,
        model_supports_logits_to_keep: bool = False,
    ) -> None:
        """Let transformers size and allocate its tensor, and lay it out anew, in blocks of one size."""
        refuse(continuous_batching_config, distributed_helper)
        super().__init__(
            config, continuous_batching_config, device, distributed_helper, dtype, model_supports_logits_to_keep
        )
        continuous_batching_config.max_blocks_per_request = 0  # as transformers does for windows: no table of blocks
        self.max_blocks_per_request = self.max_decode_fast_path_length = 0
        self.use_prefix_sharing = self.allow_block_sharing
        self.requests: dict[str, Request] = {}
        self._postponed: str | None = None
        self._has_forked = False
        own = next(iter(self.cache_allocators.values()))
        page = _page(continuous_batching_config.page_size, getattr(config, "sliding_window", None))
        self._lay_out(_planned(self, own, page), own, page)

    def _lay_out(self, plan: KVCachePlan, own: Any, page: int) -> None:
        """Make the manager, and the tables of its groups over the tensor that is there."""
        width = plan.layers_per_block
        self.block_bytes = width * plan.groups[0].spec.page_size_bytes
        # Of all that transformers has allocated, the last block is written by padding, and the null block read by it.
        num_blocks = len(self.cache_tensor) // self.block_bytes - 1
        data = (num_blocks - 1) * self.block_bytes
        self.pool = CachePool(0, len(plan.groups))  # of sectors, which transformers looks for: there are none
        self.groups = []
        for index, group in enumerate(plan.groups):
            layers = [int(name) for name in group.layer_names]
            tables = Tables(
                getattr(group.spec, "sliding_window", None),
                self.demand,
                index=index,
                config=self.config,
                num_key_value_heads=own.num_key_value_heads,
                cache_dtype=self.dtype,
                page_size=page,
                layer_indices=layers + [-1] * (width - len(layers)),
                allow_block_sharing=self.allow_block_sharing,
            )
            tensor = self.cache_tensor[: data + 2 * self.block_bytes]
            tables.register_cache_tensor(self.block_bytes, data, tensor, self.pool)
            tables.write_trash_index = num_blocks * tables.block_physical_stride
            self.layer_to_allocator |= dict.fromkeys(layers, tables)
            self.groups.append(tables)
        self.cache_allocators = Kinds(self.groups)
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks, plan.config.kv_cache_groups),
            max(self.max_tokens_read, self.config.max_position_embeddings),
            self.allow_block_sharing,
            raise_never_fits=False,
        )

    # ------------------------------------------------------------------ slots

    def _known(self, state: Any) -> Request:
        """Return the manager's request, with all tokens of now and the count of those that are computed."""
        name = state.request_id
        request = self.requests.get(name)
        if request is None:
            request = self.requests[name] = Request(name, state.initial_tokens)
        missing = len(state.initial_tokens) + len(state.generated_tokens) - request.num_tokens
        if missing > 0:
            request.append_output_token_ids(state.generated_tokens[-missing:])
        if self._holds(name):
            request.num_computed_tokens = state.current_len()
        return request

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        """Give a request slots for its next tokens, if there is room; begin one beside others if all of it has some."""
        name, past = state.request_id, state.current_len()
        request = self.requests.get(name)
        if request is not None and past + request_len <= request.lease:
            return True
        if name == self._postponed or past + request_len > self.manager.max_model_len:
            return False
        if dry_run:
            return isinstance(self.manager.plan(Request(name, [0]), past + request_len), Fits)
        if state.num_children and request_len == len(state.remaining_prefill_tokens):
            request_len -= 1  # each of the forks computes the last token, and slots are not given back
        request = self._known(state)
        if not self._holds(name):
            request_len += past  # what is warmed up claims a past that it never had
        given: KVCacheBlocks | None = self.manager.create_empty_block_list()
        if request_len:
            given = self.manager.allocate_slots(
                request, request_len, delay_cache_blocks=True, full_sequence_must_fit=bool(self.groups[0].block_table)
            )
        if given is None:
            return False
        self._hold(name, given)
        if self._has_forked:
            self._copy(name)
        return True

    def _holds(self, name: str) -> bool:
        return bool(self.groups[0].block_table.get(name))

    def _hold(self, name: str, given: KVCacheBlocks) -> None:
        for tables, more in zip(self.groups, given.ids, strict=True):
            tables.block_table.setdefault(name, []).extend(more)

    def _copy(self, name: str) -> None:
        """Make the copies for a request that writes to a block which forks share, before it does."""
        for tables, pairs in zip(self.groups, self.manager.take_copies(), strict=True):
            if pairs:
                tables.copy_blocks([source for source, _ in pairs], [target for _, target in pairs])
                tables.block_table[name] = self.manager.get_block_ids(name)[tables.index]
                if self.cache_tensor.device.type != "cpu":  # the forward runs on a stream that does not wait for this
                    torch.accelerator.current_stream(self.cache_tensor.device).synchronize()

    def demand(self, request_id: str, num_new: int) -> int:
        """Return the blocks that a running request's next step takes."""
        plan = self.manager.plan(self.requests[request_id], num_new, delay_cache_blocks=True)
        if isinstance(plan, Fits):
            return int(plan.num_blocks)
        return plan.num_missing_blocks + plan.num_free_blocks if isinstance(plan, NotNow) else 1 << 30

    def count_storable_requests(self, list_blocks_needed: list[dict[str, int]]) -> int:
        """Return how many of these the free blocks are enough for, in order."""
        free = self.manager.block_pool.get_num_free_blocks()
        for number, needed in enumerate(list_blocks_needed):
            free -= sum(needed.values())
            if free < 0:
                return number
        return len(list_blocks_needed)

    def compute_free_capacity(self, relative: bool = True) -> int | float:
        """Return what is free or only cached, as a share of the pool or in bytes."""
        pool = self.manager.block_pool
        free = int(pool.get_num_free_blocks())
        return free / (pool.num_blocks - 1) if relative else free * self.block_bytes

    # ------------------------------------------------------------------ prefixes

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        """Return the tokens of a prompt that are cached, and hold their blocks for it."""
        request = self.requests.get(request_id)
        if request is None:
            request = self.requests[request_id] = Request(request_id, prompt_ids)
        hit, length = self.manager.get_computed_blocks(request)
        rest = len(prompt_ids) - length
        # A hit that is held while the rest waits for room would be given up again to make room for others.
        fits = not self.groups[0].block_table or isinstance(
            self.manager.plan(request, rest, length, hit, delay_cache_blocks=True, full_sequence_must_fit=True), Fits
        )
        self._postponed = None if fits else request_id
        if not fits or not length:
            return 0
        if self.manager.allocate_slots(request, 0, length, hit, delay_cache_blocks=True) is None:
            return 0
        request.num_computed_tokens = length
        self._hold(request_id, hit)
        return length

    def count_new_complete_blocks(self, state: Any, request_len: int) -> dict[str, int]:
        """Return the tokens behind which a step ends, if it fills a block."""
        past, page = state.current_len(), self.groups[0].tokens_per_page
        fills = self.use_prefix_sharing and past // page < (past + request_len) // page
        return {FULL_ATTENTION: past + request_len} if fills else {}

    def mark_complete_blocks(self, state: Any, complete_blocks: dict[str, int]) -> None:
        """Let others find the blocks that a step has filled, of a request that has just ended as well."""
        if complete_blocks and state.request_id in self.requests:
            (num_computed,) = complete_blocks.values()
            request = self._known(state)
            self.manager.cache_blocks(request, num_computed)
            self.manager.remove_skipped_blocks(request, num_computed)

    def evict_cached_blocks(self) -> bool:
        """Evict nothing: what nobody holds is available, and is evicted one by one."""
        return False

    # ------------------------------------------------------------------ the end

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        """Give back what a request holds. One that makes room for others goes on later, and finds it if it is there."""
        request = self.requests.pop(request_id, None)
        if request is not None:
            self.manager.free(request, preempted=no_cache)
        for tables in self.groups:
            tables.block_table.pop(request_id, None)

    def free_all_requests(self, clear_ledgers: bool = False) -> None:
        """Give back everything, and forget what is cached if that is asked for."""
        for request_id in list(self.requests):
            self.free_blocks(request_id)
        if clear_ledgers:
            self.manager.reset_prefix_cache()

    # ------------------------------------------------------------------ forks

    def prepare_fork_request(self, src_state: Any, dst_req_ids: list[str], copy_src_and_dst: Any) -> list[str]:
        """Start a request's forks on its blocks: the first that writes to a block that they share copies it."""
        if not self._holds(src_state.request_id):
            return []  # nothing of it is computed: transformers has each of them computed by itself
        parent, self._has_forked = self._known(src_state), True
        for name in dst_req_ids:
            child = parent.fork(name)
            self.manager.fork(parent, child)
            self.requests[name] = child
            for tables in self.groups:
                tables.block_table[name] = list(tables.block_table[src_state.request_id])
        return list(dst_req_ids)


def _page(most: int, window: int | None) -> int:
    """Return the tokens of a page: with a window, few enough that it holds an eighth more than it reads at most."""
    bound = most if window is None else max(window // 8, 1)
    return max(page for page in range(1, most + 1) if most % page == 0 and page <= bound)


def _planned(cache: BlockwrightCache, own: Any, page: int) -> KVCachePlan:
    """Return which layers share a table, in few groups that waste little memory, for the longest request that fits."""
    shape = (page, own.num_key_value_heads, own.head_dim, cache.dtype)
    layers: dict[str, KVCacheSpec] = {}
    for kind, ids in group_layers_by_attn_type(cache.config).items():
        spec: KVCacheSpec = FullAttentionSpec(*shape)
        if kind == SLIDING_ATTENTION:
            spec = SlidingWindowSpec(*shape, sliding_window=cache.config.sliding_window)
        layers |= {str(layer): spec for layer in ids}
    longest = cache.config.max_position_embeddings
    while True:
        try:
            return plan_kv_cache(
                layers,
                len(cache.cache_tensor),
                longest,
                max_num_batched_tokens=min(cache.max_batch_tokens, longest),
                enable_caching=cache.allow_block_sharing,
                max_padding=1.0,
            )
        except TooLittleMemoryError as error:
            if not error.longest_model_len:
                raise not_served("a cache without room for one step", "pass a larger num_blocks") from error
            longest = error.longest_model_len

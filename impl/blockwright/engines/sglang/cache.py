"""SGLang's tree of prefixes, kept by managers: what is cached, who holds it, and which slots a batch gets.

Page `p` of SGLang is block `p` of a manager, since both keep 0 for padding. A cached page that nobody holds counts as
available, so there is nothing to evict: the manager does that as it gives slots. A request's row is never pointed at
other pages: a page that was published twice stays with its request, as under vLLM.

Where a model has sliding windows, SGLang has a second pool for their layers, and a mapping from the slots of the first
pool, which rows name, to slots of the second. Each pool then has a manager, and a hit is as long as both find it.
Beside recurrent layers it has a pool of states, and a hit is as long as a state is cached (`states`).

SGLang's calls for slots name no request. Who asks is learned from the call before it: `req_to_token_pool.alloc`, before
a prefill, and `check_decode_capacity`, before a step of decoding.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from librt.vecs import vec
from mypy_extensions import i32
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, StorageMedium
from sglang.srt.managers.scheduler_components.pool_stats_observer import kv_private_swa_tokens
from sglang.srt.mem_cache.allocation_sizing import get_alloc_reserve_per_decode, page_aligned_decode_alloc_lens
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefResult,
    EvictResult,
    IncLockRefResult,
    MatchResult,
)
from sglang.srt.mem_cache.utils import hash_str_to_int64
from sglang.srt.runtime_context import get_spec

from blockwright import FullAttentionSpec, Request, Sha256Hasher, SlidingWindowSpec, events
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.engines.sglang import not_served
from blockwright.engines.sglang.allocator import BlockwrightAllocator, BlockwrightWindowAllocator
from blockwright.engines.sglang.layers import Layers, Peers, Served, pages_of
from blockwright.engines.sglang.states import States

_SEED = b"blockwright in SGLang"
"""Of the hashes in events, so that all of a deployment name a prefix alike."""


class Prefix:
    """What a lookup found, which SGLang keeps as a request's ``last_node`` and locks: a hit in each pool."""

    __slots__ = ("hits", "length", "longest")

    def __init__(self, hits: Sequence[KVCacheBlocks], length: int, longest: int = 0) -> None:
        """Keep the hits for the request's slots; `longest` tokens are cached in the pool that rows name."""
        self.hits, self.length, self.longest = hits, length, longest

    @property
    def pages(self) -> list[int]:
        """The pages of the hit in the pool that rows name; most lookups are made to be compared only."""
        return pages_of(self.hits[0]) if self.hits else []


class BlockwrightCache(BasePrefixCache):
    """A cache for one scheduler of SGLang: of full attention, and of sliding windows or recurrent layers beside it."""

    def __init__(self, params: Any) -> None:
        """Take over the allocator that SGLang has made, and make a manager of the pages of each of its pools."""
        allocator, rows = params.token_to_kv_pool_allocator, params.req_to_token_pool
        self.token_to_kv_pool_allocator, self.req_to_token_pool = allocator, rows
        self.page_size, self.disable, self.sliding_window_size = params.page_size, False, params.sliding_window_size
        self.device = allocator.device
        like = {"block_size": self.page_size, "num_kv_heads": 1, "head_size": 1, "dtype": "float16"}
        longest, tells = rows.max_context_len, params.enable_kv_cache_events
        self.full = Layers(0, FullAttentionSpec(**like), allocator.size_full, longest, enable_kv_cache_events=tells)
        self.layers, self.manager, self.pool = [self.full], self.full.manager, self.full.pool
        if self.supports_swa():
            # SGLang does not count the token itself as part of its window.
            window = SlidingWindowSpec(**like, sliding_window=self.sliding_window_size + 1)
            self.peers = Peers(self.pool.num_blocks, allocator.size_swa // self.page_size + 1)
            self.layers.append(
                Layers(1, window, allocator.size_swa, longest, eviction_order=self.peers, keep_wanted=False)
            )
        self.states = States(rows, self.page_size, longest) if hasattr(rows, "mamba_allocator") else None
        self.kinds = self.layers if self.states is None else [*self.layers, self.states]
        self._shift = int(params.is_eagle)
        """1 with EAGLE, whose draft writes into pages what depends on the next token, so that their keys hold it too:
        the manager's tokens begin with the second one, and the first one is part of the salt."""
        self._hasher = Sha256Hasher(_SEED) if tells else None
        self._within = torch.arange(self.page_size, dtype=torch.int64)
        self._numbers = count()
        self.root_node = Prefix((), 0)
        self.running: dict[str, Any] = {}
        """SGLang's requests that hold pages, by the names of the managers'."""
        self.filling: Sequence[Any] | None = None
        """The requests whose prefill, or next part of it, is about to be given slots."""
        self.decoding: Sequence[Any] | None = None
        """The requests whose next token is."""
        self._take_over(allocator, rows)
        if params.enable_metrics:
            self.init_metrics_collector()

    def _take_over(self, allocator: Any, rows: Any) -> None:
        """Have the allocator, which SGLang has given to others already, ask this cache, and learn who gets rows."""
        parts = [allocator]
        if self.supports_swa():
            allocator.__class__ = BlockwrightWindowAllocator
            parts = [allocator.full_attn_allocator, allocator.swa_attn_allocator]
        for part, layers in zip(parts, self.layers, strict=True):
            part.__class__ = BlockwrightAllocator
            part.cache, part.pool, part.num_pages = self, layers.pool, layers.pool.num_blocks - 1
        allocator.cache, alloc = self, rows.alloc

        def noted(reqs: Sequence[Any]) -> Any:
            self.filling = list(reqs)
            return alloc(reqs)

        rows.alloc = noted

    def reset(self) -> None:
        """Forget everything, requests included: SGLang flushes its cache."""
        for req in list(self.running.values()):
            self.on_release(req, checkpointed=False)
        for layers in self.kinds:
            layers.manager.reset_prefix_cache()

    def supports_mamba(self) -> bool:
        """Return whether the model has recurrent layers."""
        return self.states is not None

    def supports_swa(self) -> bool:
        """Return whether the model has sliding windows with a pool of their own."""
        return self.sliding_window_size is not None

    # ------------------------------------------------------------------ lookups

    def known(self, req: Any) -> Served:
        """Return what is kept of a request, with all its tokens of now."""
        served: Served | None = getattr(req, "blockwright", None)
        prompt, output = req.origin_input_ids, req.output_ids
        if served is None:
            name = f"{req.rid}/{next(self._numbers)}"  # a name of SGLang's may run twice
            served = req.blockwright = Served(self._requests(name, prompt + output, req))
        elif (more := len(prompt) + len(output) - self._shift - served.request.num_tokens) > 0:
            for request in served.requests:
                request.append_output_token_ids(output[-1] if more == 1 else list(output[-more:]))
        return served

    def _requests(self, name: str, tokens: Any, key: Any) -> list[Request]:
        salt = _owner(key)
        if self._shift:
            # A prompt of one token has no second one, so that what follows it is not to be found.
            salt = repr((salt, tokens[0], None if len(tokens) > 1 else name))
            tokens = tokens[1:] or tokens
        return [Request(name, tokens, cache_salt=salt, hasher=self._hasher) for _ in self.kinds]

    def match_prefix(self, params: Any) -> MatchResult:
        """Return what is cached of a waiting request; it counts as used now, as in SGLang's own tree."""
        key, req = params.key, params.req
        most = len(key)
        if req is None or most < self.page_size:
            return self._found(self.root_node)
        prefix = self._used(self.known(req).requests, most)
        if params.cow_mamba and prefix.length and self.states is not None:
            self.states.start_from(req, prefix.hits[-1])
        return self._found(prefix)

    def touch_prefix(self, key: Any) -> None:
        """Count what is cached of a key as used now."""
        if len(key) >= self.page_size:
            self._used(self._requests("touched", key.token_ids, key), len(key))

    def _used(self, requests: list[Request], most: int, touches: bool = True) -> Prefix:
        """Return the longest prefix that all pools have: where another has less than the first, as much as it has."""
        hits, length, longest = [], most, 0
        for layers, request in zip(self.kinds, requests, strict=True):
            found = layers.manager.touch if touches else layers.manager.get_computed_blocks
            hit, length = found(request, length)
            longest = longest or length
            if length == 0:
                return Prefix((), 0, longest)
            hits.append(hit)
        if len(hits) > 1:
            hits[0], length = self.manager.get_computed_blocks(requests[0], length)
        return Prefix(hits, length, longest)

    def _found(self, prefix: Prefix) -> MatchResult:
        branch = None if self.states is None else self.states.worth_keeping(prefix.length, prefix.longest)
        return MatchResult(prefix.length, prefix, prefix, prefix, mamba_branching_seqlen=branch)

    def dfs_weight_order(self, node_handles: Sequence[Prefix]) -> list[int]:
        """Return the order of waiting requests depth first, those of the most wanted pages first."""
        weight = Counter(page for prefix in node_handles for page in prefix.pages)
        places = [[*((-weight[page], page) for page in prefix.pages), (1, 0)] for prefix in node_handles]
        return sorted(range(len(places)), key=places.__getitem__)

    # ------------------------------------------------------------------ locks, and the slots of a hit

    def inc_lock_ref(self, node: Prefix) -> IncLockRefResult:
        """Hold the pages of a hit: from here on they are not available."""
        for layers, hit in zip(self.kinds, node.hits, strict=False):
            layers.pool.touch(pages_of(hit))
        return IncLockRefResult()

    def dec_lock_ref(self, node: Prefix, params: Any = None) -> DecLockRefResult:
        """Let go of them."""
        for layers, hit in zip(self.kinds, node.hits, strict=False):
            layers.pool.free_blocks(pages_of(hit)[::-1])
        return DecLockRefResult()

    def unlock(self, lock: Any) -> None:
        """Let go of what a lock still holds."""
        if lock is not None:
            hits = lock.node.hits
            self.dec_lock_ref(Prefix(hits[:1], 0) if lock.swa_released else lock.node)

    def path_device_indices(self, node: Prefix) -> torch.Tensor:
        """Return the slots of a hit."""
        return self._slots(node.pages).to(self.device)

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """Return the slots of a request's hit, which it adopts with its first slots; SGLang may use less of it."""
        served, node = self.known(req), req.last_node
        if req.prefix_len < node.length:
            node = self._used(served.requests, req.prefix_len, touches=False)
            if node.length < req.prefix_len:
                raise not_served("a part of a hit whose window or state is not cached", "report what asked for it")
        served.hits = node.hits
        return self.path_device_indices(node)

    def _slots(self, pages: list[int]) -> torch.Tensor:
        slots: torch.Tensor = torch.tensor(pages, dtype=torch.int64)[:, None] * self.page_size + self._within
        return slots.reshape(-1)

    # ------------------------------------------------------------------ slots of a batch

    def take(self, num_tokens: int) -> torch.Tensor | None:
        """Return the slots of the batch that is being prepared, in its order; None if there is no room."""
        filling, self.filling = self.filling, None
        decoding, self.decoding = self.decoding, None
        if filling is not None:
            slots = self._fill(filling)
        elif decoding is not None and get_spec().speculative_algorithm is not None:
            slots = self._reserve(decoding, num_tokens)
        elif decoding is not None and len(decoding) == num_tokens:
            slots = self._decode(decoding)
        else:
            raise not_served(f"a call for {num_tokens} slots that names no request", "report what asked for them")
        return None if slots is None else slots.to(self.device)

    def _fill(self, batch: Sequence[Any]) -> torch.Tensor | None:
        slots = []
        paired: list[list[int]] = [[] for _ in self.layers]
        for req in batch:
            served, start, stop = self.known(req), req.prefix_len, req.extend_end
            is_first = req.kv.kv_allocated_len == 0
            self.running[served.request.request_id] = req
            if is_first and start and self.supports_swa():
                self._adopt(served, *paired)
            for layers, pairs in zip(self.layers, paired, strict=True):
                pages = layers.fill(served, start, stop, is_first)
                if pages is None:
                    return None
                pairs += pages
                if layers is self.full:
                    inside = start % self.page_size
                    slots.append(self._slots(pages)[inside : inside + stop - start])
            if is_first and req.lock is not None and self.supports_swa():
                # From here on its table holds them, for as long as its window reads them.
                self.layers[1].pool.free_blocks(pages_of(req.lock.node.hits[1])[::-1] if start else [])
                req.lock.swa_released = True
            served.hits = ()
        self._map(*paired)
        return torch.cat(slots)

    def _adopt(self, served: Served, full: list[int], window: list[int]) -> None:
        """Let the pages of a hit, which two lookups found, be those that SGLang's mapping pairs.

        A page of the first pool may be in the tables of other requests, which read its peer. Where that one has the
        same content as the page that was found, it is adopted in its place; else none reads it, and it is replaced.
        """
        hit, pool, changed = served.hits[1], self.layers[1].pool, False
        others = pages_of(hit)
        for at, (page, other) in enumerate(zip(pages_of(served.hits[0]), others, strict=True)):
            peer = self.peers.of[page]
            if other in (0, peer):
                continue
            if pool.block_key(peer) == pool.block_key(other):
                others[at], changed = peer, True
            else:
                self.peers.pair(page, other)
                full.append(page)
                window.append(other)
        if changed:
            served.hits = (served.hits[0], KVCacheBlocks(pool, [vec[i32](others)]))

    def _map(self, full: list[int], window: Sequence[int] = ()) -> None:
        """Write into SGLang's mapping which pages of the second pool belong to pages of the first."""
        if window:
            for page, other in zip(full, window, strict=True):
                self.peers.pair(page, other)
            mapping = self.token_to_kv_pool_allocator.full_to_swa_index_mapping
            mapping[self._slots(full).to(self.device)] = self._slots(list(window)).to(self.device)

    def _decode(self, batch: Sequence[Any]) -> torch.Tensor | None:
        fresh = [pages for layers in self.layers if (pages := layers.decode(batch)) is not None]
        if len(fresh) < len(self.layers):
            return None
        self._map(*fresh)
        size = self.page_size
        slots = array("q", [req.blockwright.pages[0] * size + req.kv.kv_committed_len % size for req in batch])
        return torch.frombuffer(slots, dtype=torch.int64)

    def _reserve(self, batch: Sequence[Any], num_tokens: int) -> torch.Tensor | None:
        """Return the slots ahead that SGLang reserves for drafts: it keeps them from step to step."""
        starts, stops, needed = page_aligned_decode_alloc_lens(
            batch, reserve=get_alloc_reserve_per_decode(), page_size=self.page_size
        )
        if needed != num_tokens:
            raise not_served(f"a call for {num_tokens} slots, not {needed} for drafts", "report what asked for them")
        slots = []
        paired: list[list[int]] = [[] for _ in self.layers]
        for req, start, stop in zip(batch, starts, stops, strict=True):
            for layers, pairs in zip(self.layers, paired, strict=True) if stop > start else ():
                self.known(req)
                pages = layers.reserve(req, start, stop)
                if pages is None:
                    return None
                pairs += pages
                if layers is self.full:
                    inside = start % self.page_size
                    slots.append(self._slots(pages)[inside : inside + stop - start])
        self._map(*paired)
        return torch.cat(slots)

    # ------------------------------------------------------------------ what is computed, and the end

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Let others find the pages that a request's first tokens fill."""
        requests = self.known(req).requests
        for layers, request in zip(self.layers, requests, strict=False):
            layers.manager.cache_blocks(request, min(up_to, request.num_tokens))
        if self.states is not None:
            self.states.keep(req, requests[-1], up_to)

    def evict_sliding_windows(self, req: Any, pre_len: int, *, eviction_interval: int = 1) -> None:
        """Do nothing: the manager takes what no token reads any more, as it gives slots."""

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:
        """Do nothing: `on_release` gives all pages back at once."""

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """Give back the pages of a request that has ended or is retracted; it then comes back as a new one."""
        served, req.blockwright = req.blockwright, None
        for layers, request in zip(self.layers, served.requests, strict=False):
            layers.manager.free(request, preempted=not req.finished())
        if self.states is not None:
            self.states.give_back(req)
        self.running.pop(served.request.request_id, None)

    def evict(self, params: Any) -> EvictResult:
        """Evict nothing: what nobody holds is available."""
        return EvictResult()

    def protected_size(self) -> int:
        """Return the tokens of hits that run and that no request counts as its own, as SGLang's sums have them."""
        hits, own = set[int](), set[int]()
        for name, req in self.running.items():
            pages = self.manager.get_block_ids(name)[0]
            first = req.kv.cache_protected_len // self.page_size
            hits.update(pages[:first])
            own.update(pages[first:])
        return len(hits - own) * int(self.page_size)

    full_protected_size = protected_size

    def swa_protected_size(self) -> int:
        """Return the same of the second pool: below zero, where windows have moved on and SGLang's sums have not."""
        pool = self.layers[1].pool
        own = sum(kv_private_swa_tokens(req.kv, self.page_size) for req in self.running.values())
        return int((pool.num_blocks - 1 - pool.num_free) * self.page_size - own)

    def mamba_evictable_size(self) -> int:
        """Return 0: states that no request holds are available, so SGLang need not evict them."""
        return 0

    def mamba_protected_size(self) -> int:
        """Return the states that are held for hits: all that are held, less those of requests that run."""
        return 0 if self.states is None else self.states.num_held(self.running.values())

    def take_events(self) -> list[Any]:
        """Return what has become findable and what has gone since the last call, in SGLang's words."""
        return [_event(each) for each in self.manager.take_events()]

    def pretty_print(self) -> None:
        """Print a picture of the pages and tables."""
        for layers in self.kinds:
            print(layers.manager.draw())


def _owner(key: Any) -> str | None:
    """Return as one text what keeps a prefix apart from equal tokens of others: SGLang's extra key and its salt."""
    return None if key.extra_key is None and key.cache_salt is None else repr((key.extra_key, key.cache_salt))


def _event(event: events.KVCacheEvent) -> Any:
    if isinstance(event, events.BlockStored):
        return BlockStored(
            block_hashes=[_number(event.block_hash)],
            parent_block_hash=None if event.parent_block_hash is None else _number(event.parent_block_hash),
            token_ids=list(event.token_ids),
            block_size=event.block_size,
            lora_id=None,
            medium=StorageMedium.GPU,
        )
    if isinstance(event, events.BlockRemoved):
        return BlockRemoved(block_hashes=[_number(event.block_hash)], medium=StorageMedium.GPU)
    return AllBlocksCleared()


def _number(digest: events.BlockHash) -> int:
    return hash_str_to_int64(digest.hex()) if isinstance(digest, bytes) else digest

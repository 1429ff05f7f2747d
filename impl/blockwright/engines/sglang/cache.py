"""SGLang's tree of prefixes, kept by a manager: what is cached, who holds it, and which slots a batch gets.

Page `p` of SGLang is block `p` of the manager, since both keep 0 for padding. A cached page that nobody holds counts as
available, so there is nothing to evict: the manager does that as it gives slots. A request's row is never pointed at
other pages: a page that was published twice stays with its request, as under vLLM.

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
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, StorageMedium
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefResult,
    EvictResult,
    IncLockRefResult,
    MatchResult,
)
from sglang.srt.mem_cache.utils import hash_str_to_int64

from blockwright import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheManager,
    Request,
    Sha256Hasher,
    events,
)
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.engines.sglang import not_served
from blockwright.engines.sglang.allocator import BlockwrightAllocator

_SEED = b"blockwright in SGLang"
"""Of the hashes in events, so that all of a deployment name a prefix alike."""


class Prefix:
    """What a lookup found, which SGLang keeps as a request's ``last_node`` and locks."""

    __slots__ = ("blocks", "length")

    def __init__(self, blocks: KVCacheBlocks | None, length: int) -> None:
        """Keep the hit for the request's slots."""
        self.blocks, self.length = blocks, length

    @property
    def pages(self) -> list[int]:
        """The pages of the hit; most lookups are made to be compared only."""
        return _pages(self.blocks) if self.blocks is not None else []


class Served:
    """What is kept of one of SGLang's requests, on that request: no call names one that is aborted while it waits.

    Attributes:
        request: the manager's.
        hit: what it adopts when it is given its first slots.
        page: its last page, which the next slots go on in.
    """

    __slots__ = ("hit", "page", "request")

    def __init__(self, request: Request) -> None:
        """Serve a request that has no slots yet."""
        self.request = request
        self.hit: KVCacheBlocks | None = None
        self.page = 0


class BlockwrightCache(BasePrefixCache):
    """A cache of full attention for one scheduler of SGLang."""

    def __init__(self, params: Any) -> None:
        """Take over the allocator that SGLang has made, and make a manager of its pages."""
        allocator, rows = params.token_to_kv_pool_allocator, params.req_to_token_pool
        self.token_to_kv_pool_allocator, self.req_to_token_pool = allocator, rows
        self.page_size, self.disable, self.sliding_window_size = params.page_size, False, None
        self.device = allocator.device
        layers = FullAttentionSpec(block_size=self.page_size, num_kv_heads=1, head_size=1, dtype="float16")
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=allocator.size // self.page_size + 1, kv_cache_groups=[KVCacheGroupSpec(["all"], layers)]
            ),
            max_model_len=rows.max_context_len,
            raise_never_fits=False,
            enable_kv_cache_events=params.enable_kv_cache_events,
        )
        self.pool = self.manager.block_pool
        self._hasher = Sha256Hasher(_SEED) if params.enable_kv_cache_events else None
        self._within = torch.arange(self.page_size, dtype=torch.int64)
        self._numbers = count()
        self.root_node = Prefix(None, 0)
        self.running: dict[str, Any] = {}
        """SGLang's requests that hold pages, by the names of the manager's."""
        self.filling: Sequence[Any] | None = None
        """The requests whose prefill, or next part of it, is about to be given slots."""
        self.decoding: Sequence[Any] | None = None
        """The requests whose next token is."""
        self._take_over(allocator, rows)
        if params.enable_metrics:
            self.init_metrics_collector()

    def _take_over(self, allocator: Any, rows: Any) -> None:
        """Have the allocator, which SGLang has given to others already, ask this cache, and learn who gets rows."""
        allocator.__class__ = BlockwrightAllocator
        allocator.cache, allocator.num_pages = self, self.pool.num_blocks - 1
        alloc = rows.alloc

        def noted(reqs: Sequence[Any]) -> Any:
            self.filling = list(reqs)
            return alloc(reqs)

        rows.alloc = noted

    def reset(self) -> None:
        """Forget everything, requests included: SGLang flushes its cache."""
        for req in list(self.running.values()):
            self.on_release(req, checkpointed=False)
        self.manager.reset_prefix_cache()

    # ------------------------------------------------------------------ lookups

    def known(self, req: Any) -> Served:
        """Return what is kept of a request, with all its tokens of now."""
        served: Served | None = getattr(req, "blockwright", None)
        prompt, output = req.origin_input_ids, req.output_ids
        if served is None:
            name = f"{req.rid}/{next(self._numbers)}"  # a name of SGLang's may run twice
            request = Request(name, prompt + output, cache_salt=_owner(req), hasher=self._hasher)
            served = req.blockwright = Served(request)
        elif (more := len(prompt) + len(output) - served.request.num_tokens) > 0:
            served.request.append_output_token_ids(output[-1] if more == 1 else list(output[-more:]))
        return served

    def match_prefix(self, params: Any) -> MatchResult:
        """Return what is cached of a waiting request; it counts as used now, as in SGLang's own tree."""
        key, req = params.key, params.req
        most = len(key)
        if req is None or most < self.page_size:
            return self._found(self.root_node)
        return self._found(self._used(self.known(req).request, most))

    def touch_prefix(self, key: Any) -> None:
        """Count what is cached of a key as used now."""
        tokens = key.token_ids
        if len(key) >= self.page_size:
            self._used(Request("touched", tokens, cache_salt=_owner(key), hasher=self._hasher), len(key))

    def _used(self, request: Request, most: int) -> Prefix:
        blocks, length = self.manager.touch(request, most)
        return Prefix(blocks, length) if length else self.root_node

    def _found(self, prefix: Prefix) -> MatchResult:
        return MatchResult(prefix.length, prefix, prefix, prefix)

    def dfs_weight_order(self, node_handles: Sequence[Prefix]) -> list[int]:
        """Return the order of waiting requests depth first, those of the most wanted pages first."""
        weight = Counter(page for prefix in node_handles for page in prefix.pages)
        places = [[*((-weight[page], page) for page in prefix.pages), (1, 0)] for prefix in node_handles]
        return sorted(range(len(places)), key=places.__getitem__)

    # ------------------------------------------------------------------ locks, and the slots of a hit

    def inc_lock_ref(self, node: Prefix) -> IncLockRefResult:
        """Hold the pages of a hit: from here on they are not available."""
        self.pool.touch(node.pages)
        return IncLockRefResult()

    def dec_lock_ref(self, node: Prefix, params: Any = None) -> DecLockRefResult:
        """Let go of them."""
        self.pool.free_blocks(node.pages[::-1])
        return DecLockRefResult()

    def path_device_indices(self, node: Prefix) -> torch.Tensor:
        """Return the slots of a hit."""
        return self._slots(node.pages).to(self.device)

    def prefix_device_indices(self, req: Any) -> torch.Tensor:
        """Return the slots of a request's hit, which it adopts with its first slots; SGLang may use less of it."""
        served, node = self.known(req), req.last_node
        if req.prefix_len < node.length:
            node = Prefix(*self.manager.get_computed_blocks(served.request, req.prefix_len))
        served.hit = node.blocks
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
        elif decoding is not None and len(decoding) == num_tokens:
            slots = self._decode(decoding)
        else:
            raise not_served(f"a call for {num_tokens} slots that names no request", "report what asked for them")
        return None if slots is None else slots.to(self.device)

    def _fill(self, batch: Sequence[Any]) -> torch.Tensor | None:
        size, given = self.page_size, []
        for req in batch:
            served, start, stop = self.known(req), req.prefix_len, req.extend_end
            request, begins = served.request, req.kv.kv_allocated_len == 0
            request.num_computed_tokens = 0 if begins else start
            found, hit = (start, served.hit) if begins and start else (0, None)
            blocks = self.manager.allocate_slots(request, stop - start, found, hit, delay_cache_blocks=True)
            if blocks is None:
                return None
            served.hit = None
            pages = _pages(blocks)
            inside = start % size
            if inside:
                pages.insert(0, served.page)
            served.page = pages[-1]
            self.running[request.request_id] = req
            given.append(self._slots(pages)[inside : inside + stop - start])
        return torch.cat(given)

    def _decode(self, batch: Sequence[Any]) -> torch.Tensor | None:
        size, slots, allocate = self.page_size, array("q"), self.manager.allocate_slots
        for req in batch:
            at = req.kv.kv_committed_len
            served = req.blockwright
            request = served.request
            if at >= request.lease:  # else it has a slot for the token, and nothing is to be done
                request.num_computed_tokens = at
                blocks = allocate(request, 1, delay_cache_blocks=True)
                if blocks is None:
                    return None
                if at % size == 0:
                    served.page = int(blocks.ids[0][0])
            slots.append(served.page * size + at % size)
        return torch.frombuffer(slots, dtype=torch.int64)

    # ------------------------------------------------------------------ what is computed, and the end

    def checkpoint(self, req: Any, *, up_to: int, **kwargs: Any) -> None:
        """Let others find the pages that a request's first tokens fill."""
        self.manager.cache_blocks(self.known(req).request, up_to)

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:
        """Do nothing: `on_release` gives all pages back at once."""

    def on_release(self, req: Any, *, checkpointed: bool) -> None:
        """Give back the pages of a request that has ended or is retracted; it then comes back as a new one."""
        request = req.blockwright.request
        self.manager.free(request, preempted=not req.finished())
        self.running.pop(request.request_id, None)
        req.blockwright = None

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

    def take_events(self) -> list[Any]:
        """Return what has become findable and what has gone since the last call, in SGLang's words."""
        return [_event(each) for each in self.manager.take_events()]

    def pretty_print(self) -> None:
        """Print a picture of the pages and tables."""
        print(self.manager.draw())


def _pages(blocks: KVCacheBlocks) -> list[int]:
    return [int(page) for page in blocks.ids[0]]


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

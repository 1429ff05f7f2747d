"""The layers that read alike, whose pages are a pool of SGLang's: a manager, and what it gives to each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import Candidate, Candidates, KVCacheConfig, KVCacheGroupSpec, KVCacheManager, Request
from blockwright.core.pool.blocks import KVCacheBlocks


class Served:
    """What is kept of one of SGLang's requests, on that request: no call names one that is aborted while it waits.

    Attributes:
        requests: of each manager.
        hits: what it adopts, in each pool, when it is given its first slots.
        pages: its last page in each pool, which the next slots go on in.
    """

    __slots__ = ("hits", "pages", "request", "requests")

    def __init__(self, requests: list[Request]) -> None:
        """Serve a request that has no slots yet."""
        self.requests, self.request = requests, requests[0]
        self.hits: Sequence[KVCacheBlocks] = ()
        self.pages = [0] * len(requests)


class Peers:
    """Which page of the second pool belongs to which of the first; and an order of eviction that follows from it.

    A page whose peer has other content by now is found by nobody, so it is evicted before the least recently used one.

    Attributes:
        of: the page in the second pool of each page in the first, as SGLang's mapping has it.
    """

    def __init__(self, num_pages: int, num_others: int) -> None:
        """Begin without pairs and without candidates."""
        self.of, self.owners = [0] * num_pages, [0] * num_others
        self.candidates: dict[int, Candidate] = {}
        self.orphans: dict[int, None] = {}

    def pair(self, page: int, other: int) -> None:
        """Let a page of the second pool belong to one of the first."""
        before, self.of[page] = self.of[page], other
        if before != other and self.owners[before] == page and before in self.candidates:
            self.orphans[before] = None
        self.owners[other] = page

    def released(self, block: Candidate) -> None:
        """See `EvictionOrder`."""
        self.candidates[block.block_id] = block

    def taken(self, block: Candidate) -> None:
        """See `EvictionOrder`."""
        del self.candidates[block.block_id]
        self.orphans.pop(block.block_id, None)

    def choose(self, candidates: Candidates) -> Candidate:
        """Return an orphan, or else the least recently used candidate."""
        return self.candidates[next(iter(self.orphans))] if self.orphans else next(iter(candidates))


class Layers:
    """Layers that read alike, with a manager of the pages of their pool."""

    def __init__(self, number: int, spec: Any, num_slots: int, max_model_len: int, **options: Any) -> None:
        """Make the manager of a pool; `number` is the place of the pool, 0 for the one that rows name."""
        self.number, self.size = number, int(spec.block_size)
        config = KVCacheConfig(num_slots // self.size + 1, kv_cache_groups=[KVCacheGroupSpec(["all"], spec)])
        self.manager = KVCacheManager(config, max_model_len=max_model_len, raise_never_fits=False, **options)
        self.pool = self.manager.block_pool

    def fill(self, served: Served, start: int, stop: int, is_first: bool) -> list[int] | None:
        """Return the pages of a request's tokens from one to another, the first perhaps begun; None: no room."""
        request = served.requests[self.number]
        request.num_computed_tokens = 0 if is_first else start
        found, hit = (start, served.hits[self.number]) if is_first and start else (0, None)
        blocks = self.manager.allocate_slots(request, stop - start, found, hit, delay_cache_blocks=True)
        return None if blocks is None else self._goes_on(served, start, pages_of(blocks))

    def reserve(self, req: Any, start: int, stop: int) -> list[int] | None:
        """Return the pages of slots ahead of a request, for drafts, from one to another, as `fill` does."""
        served = req.blockwright
        request = served.requests[self.number]
        request.num_computed_tokens = at = req.kv.kv_committed_len
        # All of them count as written: how many a step uses, and how many it is right about, is known after it.
        blocks = self.manager.allocate_slots(request, stop - at, delay_cache_blocks=True)
        return None if blocks is None else self._goes_on(served, start, pages_of(blocks))

    def _goes_on(self, served: Served, start: int, pages: list[int]) -> list[int]:
        """Return pages behind the one that they go on in, and note the last."""
        if start % self.size:
            pages.insert(0, served.pages[self.number])
        served.pages[self.number] = pages[-1]
        return pages

    def decode(self, batch: Sequence[Any]) -> list[int] | None:
        """Give each request a slot for its next token; return the pages that are new, in order; None: no room."""
        size, number, allocate, fresh = self.size, self.number, self.manager.allocate_slots, []
        for req in batch:
            at, served = req.kv.kv_committed_len, req.blockwright
            request = served.requests[number]
            if at >= request.lease:  # else it has a slot for the token, and nothing is to be done
                request.num_computed_tokens = at
                blocks = allocate(request, 1, delay_cache_blocks=True)
                if blocks is None:
                    return None
                if at % size == 0:
                    served.pages[number] = int(blocks.ids[0][0])
                    fresh.append(served.pages[number])
        return fresh


def pages_of(blocks: KVCacheBlocks) -> list[int]:
    """Return the pages of blocks; 0 where there is none."""
    return [int(page) for page in blocks.ids[0]]

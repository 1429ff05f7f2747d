"""The states of recurrent layers: a pool of SGLang's beside that of the tokens, with a manager of the cached ones.

A request writes its state in place, in a slot that it holds alone. A later request starts from another slot,
published as the state after n tokens: a copy, a slot into which SGLang's kernels have written the state as they
passed it (its extra buffers), or the slot of a request that has ended. SGLang copies it into the slot of the request
that starts there, before the step runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.managers.scheduler_components.pool_stats_observer import kv_mamba_slots
from sglang.srt.runtime_context import mamba_checkpoint_grid

from blockwright import MambaSpec, Request
from blockwright.core.pool.blocks import KVCacheBlocks
from blockwright.engines.sglang.allocator import BlockwrightStateAllocator
from blockwright.engines.sglang.layers import Layers, pages_of


class States(Layers):
    """The recurrent layers, with a manager of the slots of their pool: slot `s` is block `s`."""

    def __init__(self, rows: Any, page_size: int, max_model_len: int) -> None:
        """Have the allocator of slots, which SGLang has made, ask the manager."""
        self.grid, allocator = mamba_checkpoint_grid(page_size), rows.mamba_allocator
        spec = MambaSpec(block_size=page_size, shapes=((1,),), dtypes=("float16",))
        super().__init__(1, spec, allocator.size * page_size, max_model_len)
        self.rows, self.allocator = rows, allocator
        allocator.__class__ = BlockwrightStateAllocator
        allocator.pool = self.pool

    def start_from(self, req: Any, hit: KVCacheBlocks) -> None:
        """Have SGLang copy the state of a hit into a request's slot, before its first step."""
        state = pages_of(hit)[-1:]
        if not req.kv.holds_mamba:
            self.pool.touch(state)
            slot = self.allocator.alloc(1)
            self.pool.free_blocks(state)
            if slot is None:
                return  # SGLang finds the same when it gives the request its row
            req.kv.mamba_pool_idx = slot[0]
        req.kv.mamba_cow_src_index = self.allocator.slots(state)
        req.kv.mamba_needs_clear = False

    def worth_keeping(self, length: int, longest: int) -> int | None:
        """Return how far tokens are cached beyond the last state, where a kernel can write one; None: no farther."""
        branch = longest // self.grid * self.grid
        return branch if branch > length else None

    def keep(self, req: Any, request: Request, up_to: int) -> None:
        """Publish the last state of a request that SGLang has; one that has ended gives its slots back."""
        kv, ends = req.kv, req.finished()
        if not self.rows.enable_mamba_extra_buffer:
            if up_to == kv.kv_committed_len:  # a state cannot be shortened
                self._publish(request, up_to, kv.mamba_pool_idx.view(1), ends)
        else:
            place, length = self.rows.get_mamba_ping_pong_keep_idx(req), kv.mamba_last_track_seqlen or 0
            if length > up_to:  # the answer ends before it: the other buffer has the state before
                place, length = self.rows.get_mamba_ping_pong_other_idx(place), kv.mamba_prev_track_seqlen or 0
            if 0 < length <= up_to:
                self._publish(request, length, kv.mamba_ping_pong_track_buffer[place].view(1), ends, req)
            if not ends:
                kv.mamba_last_track_seqlen = kv.mamba_prev_track_seqlen = None
        if ends:
            self.give_back(req)

    def _publish(self, request: Request, length: int, slot: torch.Tensor, ends: bool, donor: Any = None) -> None:
        """Publish a slot, or a copy of it, or one that its request is given another for."""
        if length % self.size or self.manager.touch(request, length)[1] == length:
            return
        spare = None if ends else self.allocator.alloc(1)
        if not ends and spare is None:
            return  # each slot is held: nothing is cached of it
        if donor is not None and not ends:
            slot = spare = self.rows.donate_mamba_ping_pong_slot(donor, spare)
        elif spare is not None:
            self.rows.mamba_pool.copy_from(slot, spare)
            slot = spare
        at = length // self.size
        self.pool.cache_full_blocks(request, [0] * (at - 1) + slot.tolist(), at - 1, at, self.size)
        if spare is not None:
            self.allocator.free(spare)

    def give_back(self, req: Any) -> None:
        """Let go of the slots of a request."""
        if req.kv.holds_mamba:
            self.rows.free_mamba_cache(req)

    def num_held(self, running: Iterable[Any]) -> int:
        """Return how many slots are held, less those of requests that run."""
        own: int = sum(kv_mamba_slots(req.kv) for req in running)
        return self.pool.num_blocks - 1 - self.pool.num_free - own

"""Poison: memory that nobody may read holds NaN, so that whoever reads it shows at once.

    taken for new content     whole, before the step that writes it (and after the host has copied what it held)
    free, and not cached      whole: nothing leads to it any more; a free block that is still cached may be hit
    behind the last token     slots of rejected drafts and of lookahead, states of drafts that were not accepted

All bits set are a NaN in every float type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from .task import Task

NAN_BYTE = 0xFF


class Poison:
    """Poisons the storage of one manager."""

    def __init__(self, manager: Any, storage: Any) -> None:
        self.manager, self.storage = manager, storage
        self.done: set[int] = set()
        """Free blocks that are poisoned already."""
        self.layers: list[list[str]] = [list(group.layer_names) for group in storage.plan.config.kv_cache_groups]
        self.fill(range(storage.plan.config.num_blocks))

    def fill(self, blocks: Iterable[int]) -> None:
        ids = torch.tensor(sorted(set(blocks)), dtype=torch.int64)
        if len(ids):
            for tensor in self.storage.tensors:
                tensor[ids.to(tensor.device)] = NAN_BYTE

    def taken(self, blocks: Sequence[int]) -> None:
        self.fill(blocks)
        self.done.difference_update(blocks)

    def sweep(self, keep: Collection[int] = ()) -> None:
        pool = self.manager.block_pool
        free = {
            block
            for block, count in enumerate(pool.ref_counts())
            if count == 0 and block not in keep and not pool.is_published(block)
        }
        free.discard(0)
        self.fill(free - self.done)
        self.done = free

    def behind(self, task: Task, start: int, stop: int, num_drafts: int) -> None:
        """Poison a request's slots of positions start..stop-1, and the states of drafts that were not accepted."""
        tables = self.manager.get_block_ids(task.name)
        for group, (each, table) in enumerate(zip(self.manager.managers, tables, strict=True)):
            if each.is_encoder or not each.is_row():
                continue
            size = each.block_size
            for position in range(start, min(stop, len(table) * size)):
                block = table[position // size]
                for layer in self.layers[group] if block else ():
                    self.storage.kv(layer)[block, :, position % size] = float("nan")
        if num_drafts:
            kept = set(self.manager.get_state_block_ids(task.request))
            self.fill(each for ids in self.manager.get_draft_block_ids(task.name) for each in ids if each not in kept)

    def null_is_untouched(self) -> bool:
        return all(bool((tensor[0] == NAN_BYTE).all()) for tensor in self.storage.tensors)

"""Where blocks may be besides the device: what a scheduler asks of it, and swapping as one answer.

A request whose first tokens are elsewhere is admitted on a load: it is given slots for them as
``num_external_computed_tokens``, with no new ones, and waits until they are there (`finish_load`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from blockwright.device import empty_host_caches_like, swap_blocks

from .schedule import EngineConfig
from .task import Task


class Elsewhere:
    """A place besides the device; as it stands, one that nothing is loaded from."""

    def preempting(self, task: Task) -> None:
        """Hear that a request is about to lose its blocks."""

    def num_external(self, task: Task, num_hit: int) -> int:
        """Return how many tokens after the device's own hit could be loaded."""
        return 0

    def load(self, task: Task, num_hit: int, num_external: int) -> None:
        """Begin to load what was told, into the blocks that the request was given."""

    def poll(self) -> list[tuple[Task, int]]:
        """Return which loads have ended: each request, and its computed tokens now; 0: it waits again."""
        return []

    def ended(self, task: Task) -> None:
        """Hear that a request has ended."""


@dataclass
class Saved:
    """The blocks of a swapped-out request."""

    num_computed: int  # tokens whose keys, values and states they hold
    places: dict[tuple[int, int], int]  # by group and table entry, the block of the host


@dataclass
class SwapIn:
    """A load of swapped blocks under way."""

    task: Task
    saved: Saved
    num_hit: int
    pairs: list[tuple[int, int]]
    """(block of the host, block of the device)"""
    steps_left: int


class Swap(Elsewhere):
    """Preemption by swap: what a request still needs of its blocks is copied to the host before they are freed."""

    def __init__(self, manager: Any, tensors: Sequence[Tensor], config: EngineConfig, fired: Counter[str]) -> None:
        self.manager, self.tensors, self.config, self.fired = manager, tensors, config, fired
        self.host = empty_host_caches_like(list(tensors), config.host_blocks)
        self.places = list(range(config.host_blocks))
        """Blocks of the host that hold nothing."""
        self.loads: list[SwapIn] = []
        self.num_loads = 0

    def preempting(self, task: Task) -> None:
        computed = task.request.num_computed_tokens
        needed = {} if task.flight is not None or computed == 0 else self.needed(task, computed)
        if not 0 < len(needed) <= len(self.places):
            return
        places = {key: self.places.pop() for key in needed}
        swap_blocks(list(self.tensors), self.host, [(block, places[key]) for key, block in needed.items()])
        task.saved = Saved(computed, places)
        self.fired["swapped out"] += 1

    def needed(self, task: Task, computed: int) -> dict[tuple[int, int], int]:
        """Return the blocks that a token at `computed` or later reads, by group and by the entry that is to hold them.

        A recurrent layer's state may lie in the block of an accepted draft; it comes back into the table.
        """
        tables = self.manager.get_block_ids(task.name)
        states = self.manager.get_state_block_ids(task.request)
        needed: dict[tuple[int, int], int] = {}
        for group, (each, table, state) in enumerate(zip(self.manager.managers, tables, states, strict=True)):
            if each.is_encoder:
                needed |= {(group, entry): block for entry, block in enumerate(table)}
            elif each.is_row():
                first, stop = each.first_kept(computed), each.entries_for(computed)
                entries = (*range(min(first, each.sinks)), *range(first, stop))
                needed |= {(group, entry): table[entry] for entry in entries}
            else:
                needed[group, each.entries_for(computed) - 1] = state
        return needed

    def num_external(self, task: Task, num_hit: int) -> int:
        if task.saved is None:
            return 0
        external = int(task.saved.num_computed) - num_hit
        if external <= 0:
            self.ended(task)
        return max(0, external)

    def load(self, task: Task, num_hit: int, num_external: int) -> None:
        saved, task.saved = task.saved, None
        tables = self.manager.get_block_ids(task.name)
        pairs = [
            (place, tables[group][entry])
            for (group, entry), place in saved.places.items()
            if self.manager.managers[group].is_encoder or entry >= num_hit // self.manager.managers[group].block_size
        ]
        self.loads.append(SwapIn(task, saved, num_hit, pairs, self.config.load_steps))

    def poll(self) -> list[tuple[Task, int]]:
        for load in self.loads:
            load.steps_left -= 1
        done = [load for load in self.loads if load.steps_left <= 0]
        self.loads = [load for load in self.loads if load.steps_left > 0]
        return [result for load in done if (result := self.finish(load)) is not None]

    def finish(self, load: SwapIn) -> tuple[Task, int] | None:
        task, total = load.task, load.saved.num_computed
        self.num_loads += 1
        every = self.config.lose_load_every
        lost = every > 0 and self.num_loads % every == 0
        num_loaded = 0 if lost else total - load.num_hit
        if not lost:
            swap_blocks(self.host, list(self.tensors), load.pairs)
        self.places += load.saved.places.values()
        if self.manager.finish_load(task.request, num_loaded):
            self.fired["swapped in"] += 1
            return task, total
        if task.phase.value == "done":
            self.fired["load of an ended request"] += 1
            return None
        self.fired["load lost"] += 1
        return task, 0

    def ended(self, task: Task) -> None:
        if task.saved is not None:
            self.places += task.saved.places.values()
            task.saved = None


# ---- other readers of blocks, as a connector of one's own: they hold blocks by the pool's own calls, and let go later


class Readers(Elsewhere):
    """Readers of the published blocks of requests that end: each holds them for a step; all let go in one batch.

    A careless one lets go of its blocks once more than it may, which is refused.
    """

    def __init__(self, package: Any, manager: Any, config: EngineConfig, fired: Counter[str]) -> None:
        self.pool, self.config, self.fired = manager.block_pool, config, fired
        self.refused = package.errors.BlockError
        self.manager = manager
        self.held: list[int] = []

    def poll(self) -> list[tuple[Task, int]]:
        held, self.held = self.held, []
        if held:
            self.pool.free_blocks(held)
        if held and self.config.careless:
            try:
                self.pool.free_blocks(held)
            except self.refused:
                self.fired["releases refused"] += 1
        return []

    def ended(self, task: Task) -> None:
        if task.phase.value == "running":
            tables = self.manager.get_block_ids(task.name)
            held = [block for table in tables for block in table if block and self.pool.is_published(block)]
            self.held += held * self.config.readers
            self.pool.touch(held * self.config.readers)
            self.fired["read after the end"] += len(held)

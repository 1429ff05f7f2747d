"""Other readers of blocks, as a connector of one's own: they hold blocks by the pool's own calls, and let go later."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .schedule import EngineConfig
from .task import Task


class Readers:
    """Readers of the published blocks of requests that end: each holds them for a step; all let go in one batch.

    A careless one lets go of its blocks once more than it may, which is refused.
    """

    def __init__(self, package: Any, manager: Any, config: EngineConfig, fired: Counter[str]) -> None:
        self.pool, self.config, self.fired = manager.block_pool, config, fired
        self.refused = package.errors.BlockError
        self.manager = manager
        self.held: list[int] = []

    def preempting(self, task: Task) -> None:
        """Do nothing."""

    def num_external(self, task: Task, num_hit: int) -> int:
        """Offer nothing."""
        return 0

    def load(self, task: Task, num_hit: int, num_external: int) -> None:
        """Do nothing: nothing was offered."""

    def give_up(self, task: Task) -> None:
        """Do nothing."""

    def poll(self) -> list[tuple[Task, int]]:
        """Let go of all that is held."""
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
        """Hold what an ending request has published."""
        if task.phase.value == "running":
            tables = self.manager.get_block_ids(task.name)
            held = [block for table in tables for block in table if block and self.pool.is_published(block)]
            self.held += held * self.config.readers
            self.pool.touch(held * self.config.readers)
            self.fired["read after the end"] += len(held)

"""One step, as the scheduler tells the worker: which requests compute what, and how their block tables have changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .task import Task, Work


@dataclass(eq=False)
class Step:
    """One step.

    Attributes:
        index: its number in the engine, from 0.
        number: by which the manager knows it, with steps that overlap.
        works: what is computed, request by request: row i of the step's inputs is work i.
        calls: of the worker's `InputBatch`, in order: what became of rows, by name and arguments.
        allocation: of the whole step, if one batch call gave all running requests their slots.
        served: the works that the batch calls served, which come first.
        admitted: requests whose encoder outputs are still to be written.
        copies: of blocks, per group, to run before the step.
        taken: blocks that were taken for new content.
    """

    index: int
    number: int = 0
    works: list[Work] = field(default_factory=list)
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    allocation: Any = None
    served: int = 0
    admitted: list[Task] = field(default_factory=list)
    copies: list[list[tuple[int, int]]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def take(self, ids: Iterable[Iterable[int]]) -> None:
        """Remember blocks, a list per group, that were taken for new content."""
        self.taken += [int(block) for group in ids for block in group if block != 0]

    def remove_row(self, name: str) -> None:
        """Tell the worker that a request has no row any more."""
        self.calls.append(("remove_request", (name,)))

    def set_row(self, manager: Any, task: Task) -> None:
        """Tell the worker the whole of a request's block tables, as they are now."""
        name, tables = task.name, manager.get_block_ids(task.name)
        drafts = manager.get_draft_block_ids(name)
        self.calls.append(("add_request", (name, tables, drafts, task.num_encoder_tokens)))

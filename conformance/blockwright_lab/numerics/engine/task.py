"""A request on its way through an engine, and what one step does for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

import torch
from torch import Tensor

from .schedule import Job


class Phase(Enum):
    """Where a request is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    DONE = "done"


@dataclass(eq=False)
class Task:
    """A request on its way."""

    request: Any  # as the manager sees it; the engine appends tokens to it and counts what is computed
    job: Job  # what it is to do
    seed: int | None  # of its samples from now on; None: greedy
    encoder: Tensor | None = None  # outputs of the encoder, `(tokens, hidden)`
    phase: Phase = Phase.WAITING  # where it is
    turn: int = 0  # how often it was admitted: what a step computed for an earlier turn is void
    drafts: list[int] = field(default_factory=list)  # guesses of the tokens to come, made after its last step
    flight: Work | None = None  # its step in flight, with steps that overlap
    # how many tokens of output it is still to fork after, the next first
    forks: list[int] = field(default_factory=list)
    # of each token, the seed that it was sampled by; the prompt has none
    seeds: list[int | None] = field(default_factory=list)
    saved: Any = None  # its blocks on the host, while it is swapped out
    num_accepted: int = 0  # drafts that its last step accepted

    @property
    def name(self) -> str:
        return str(self.request.request_id)

    @property
    def num_encoder_tokens(self) -> int:
        return 0 if self.encoder is None else len(self.encoder)

    @property
    def num_left(self) -> int:
        return self.job.output - int(self.request.num_output_tokens)

    @property
    def wants_fork(self) -> bool:
        return bool(self.forks) and self.request.num_output_tokens >= self.forks[0]

    def is_current(self, work: Work) -> bool:
        return self.phase is Phase.RUNNING and self.turn == work.turn

    def sample(self, logits: Tensor, position: int) -> int:
        """Choose the token at a position by the logits before it; a function of these and of the seed alone."""
        return int(noisy(logits, self.seed, position).argmax())

    def model_tokens(self, tokens: Sequence[int], vocab_size: int, start: int = 0) -> list[int]:
        """Return what the model sees of the tokens from `start` on: adapters and items make other inputs of them."""
        seen = [(token + 5 * self.job.adapter) % vocab_size for token in tokens]
        for identifier, first, length in self.job.items:
            drawn = Random(identifier)
            for position in range(first - start, first - start + length):
                token = drawn.randrange(vocab_size)
                if 0 <= position < len(seen):
                    seen[position] = token
        return seen


def noisy(logits: Tensor, seed: int | None, position: int) -> Tensor:
    if seed is None:
        return logits
    random = Random(f"{seed} {position}")
    noise = torch.tensor([random.expovariate(1.0) for _ in range(len(logits))], dtype=torch.float64)
    return logits.double() - noise.log().to(logits.device)


@dataclass(eq=False)
class Work:
    """What one step computes for a request: `num_new` tokens from `begin`, the last `num_drafts` of them drafts."""

    task: Task
    turn: int  # of the task when it was scheduled
    begin: int
    num_new: int
    num_drafts: int = 0
    num_ahead: int = 0  # slots behind these tokens, for drafts to be made
    # all tokens of the request up to the last computed one, drafts included; known when the step is launched
    tokens: list[int] = field(default_factory=list)
    num_settled: int = 0  # tokens of the request that are computed for good after it
    num_rejected: int = 0  # its drafts that were wrong
    is_launched: bool = False  # it runs, whatever becomes of its request

    @property
    def end(self) -> int:
        return self.begin + self.num_new

    @property
    def request_id(self) -> str:
        """Of the request; with the next property a worker's own record of it."""
        return self.task.name

    @property
    def num_computed_tokens(self) -> int:
        return self.begin


# ---- one step, as the scheduler tells the worker: which requests compute what, and how their block tables have changed


@dataclass(eq=False)
class Step:
    """One step."""

    index: int  # its number in the engine, from 0
    number: int = 0  # by which the manager knows it, with steps that overlap
    # what is computed, request by request: row i of the step's inputs is work i
    works: list[Work] = field(default_factory=list)
    # of the worker's `InputBatch`, in order: what became of rows, by name and arguments
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    allocation: Any = None  # of the whole step, if one batch call gave all running requests their slots
    served: int = 0  # the works that the batch calls served, which come first
    admitted: list[Task] = field(default_factory=list)  # requests whose encoder outputs are still to be written
    copies: list[list[tuple[int, int]]] = field(default_factory=list)  # of blocks, per group, to run before the step
    # of what a copy gives its destination, how many tokens may be read; it is poison behind them
    parts: dict[int, int] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)  # blocks that were taken for new content

    def take(self, ids: Iterable[Iterable[int]]) -> None:
        self.taken += [int(block) for group in ids for block in group if block != 0]

    def remove_row(self, name: str) -> None:
        self.calls.append(("remove_request", (name,)))

    def set_row(self, manager: Any, task: Task) -> None:
        name, tables = task.name, manager.get_block_ids(task.name)
        drafts = manager.get_draft_block_ids(name)
        self.calls.append(("add_request", (name, tables, drafts, task.num_encoder_tokens)))

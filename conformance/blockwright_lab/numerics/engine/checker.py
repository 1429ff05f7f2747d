"""What the engine computed, against the dense recomputation of each request.

Every step's logits are kept with the tokens that they belong to, and compared once the request has ended: then all its
tokens are known, and one dense pass answers for all its steps. Poison is seen at once. The laws of the engine:

NUMERICS-0  every call that an engine makes by the book is served, and every schedule comes to its end
NUMERICS-1  logits and tokens are those of a dense recomputation of each request
NUMERICS-2  nothing is read that was not written for the request that reads it: poison never reaches a result
NUMERICS-3  at the end no block is held, and every invariant of the manager holds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .dense import Recomputation
from .model import HybridModel
from .task import Task, Work, noisy
from .weights import ModelConfig
from .worker import Proposal

ENOUGH_ROWS = 16
"""Rows of logits from which on the mean of a request's differences is bounded, too."""


class NumericsError(AssertionError):
    """A schedule that shows a violation of a law, or of one of the manager's own self-check, perhaps in a step."""

    def __init__(self, law: str, detail: str, step: int | None = None) -> None:
        super().__init__(law, detail, step)
        self.law, self.detail, self.step = law, detail, step

    def __str__(self) -> str:
        when = "" if self.step is None else f"step {self.step}: "
        return f"{self.law}: {when}{self.detail}"


@dataclass(frozen=True)
class Note:
    """What a step computed for a request: the logits after each of its tokens from `begin` on."""

    step: int
    begin: int
    tokens: list[int]
    logits: Tensor


class Checker:
    """Compares what the engine of one model computes."""

    def __init__(self, model: HybridModel) -> None:
        self.bound = bound(model.config)
        self.dense = Recomputation(model)
        self.vocab_size = model.config.vocab_size
        self.notes: dict[Task, list[Note]] = {}
        self.proposals: dict[Task, list[tuple[int, list[int], Proposal]]] = {}
        self.num_compared = 0

    def note(self, step: int, work: Work, logits: Tensor) -> None:
        finite = torch.isfinite(logits).all(dim=1)
        if not bool(finite.all()):
            position = work.begin + int(finite.int().argmin())
            raise NumericsError("NUMERICS-2", self.not_finite(work, position), step)
        self.notes.setdefault(work.task, []).append(Note(step, work.begin, work.tokens, logits.cpu().clone()))

    def note_proposal(self, step: int, proposal: Proposal) -> None:
        task = proposal.work.task
        self.proposals.setdefault(task, []).append((step, list(task.request.all_token_ids), proposal))

    def not_finite(self, work: Work, position: int) -> str:
        return (
            f"request {work.task.name}: the logits after position {position} are not finite "
            f"(computed {work.begin}..{work.end - 1}, the last {work.num_drafts} drafts)"
        )

    def compare(self, task: Task) -> None:
        request = task.request
        tokens = list(request.all_token_ids)
        differences = [self.difference(task, tokens, note) for note in self.notes.pop(task, [])]
        rows = sum(map(len, differences))
        self.num_compared += rows
        if rows >= ENOUGH_ROWS and (mean := float(torch.cat(differences).mean())) > self.bound.mean:
            raise NumericsError("NUMERICS-1", f"request {task.name}: the logits are off by {mean:.2g} in the mean")
        for step, before, proposal in self.proposals.pop(task, []):
            self.compare_proposal(step, before, proposal)
        self.compare_tokens(task, tokens)

    def difference(self, task: Task, tokens: list[int], note: Note) -> Tensor:
        known = len(note.tokens) <= len(tokens) and tokens[: len(note.tokens)] == note.tokens
        expected = self.logits(task, tokens if known else note.tokens)[note.begin : len(note.tokens)]
        difference = (note.logits.double() - expected).abs()
        off = difference.amax(dim=1)
        if float(off.max()) > self.bound.largest:
            at = int((off > self.bound.largest).int().argmax())
            raise NumericsError(
                "NUMERICS-1",
                f"request {task.name}: the logits after position {note.begin + at} are off by {float(off[at]):.2g} "
                f"(computed {note.begin}..{len(note.tokens) - 1})",
                note.step,
            )
        return difference

    def compare_proposal(self, step: int, known: list[int], proposal: Proposal) -> None:
        task = proposal.work.task
        expected = self.dense.proposal(
            task.model_tokens(known, self.vocab_size), proposal.tokens, task.encoder, next_tokens=proposal.made_with
        )
        if float((proposal.logits.cpu().double() - expected).abs().max()) > self.bound.largest:
            raise NumericsError(
                "NUMERICS-1",
                f"request {task.name}: the draft head's logits after position {len(known) - 2} differ from dense ones",
                step,
            )

    def compare_tokens(self, task: Task, tokens: list[int]) -> None:
        """Compare the tokens of the output with what would have been sampled from the dense logits.

        Of tokens that the dense logits put as close together as these may differ, each will do.
        """
        first = task.request.num_prompt_tokens
        if len(tokens) == first:
            return
        logits = self.logits(task, tokens)
        for at, seed in zip(range(first, len(tokens)), task.seeds, strict=True):
            scores = noisy(logits[at - 1], seed, at)
            if float(scores.max() - scores[tokens[at]]) > 2 * self.bound.largest:
                expected = int(scores.argmax())
                raise NumericsError(
                    "NUMERICS-1", f"request {task.name}: token {at} is {tokens[at]}, and {expected} by the dense logits"
                )

    def logits(self, task: Task, tokens: Sequence[int]) -> Tensor:
        return self.dense.logits(task.model_tokens(tokens, self.vocab_size), task.encoder)

    def all(self, tasks: Sequence[Task]) -> None:
        found: list[NumericsError] = []
        for task in tasks:
            try:
                self.compare(task)
            except NumericsError as error:
                found.append(error)
        if found:
            raise min(found, key=lambda error: 1 << 30 if error.step is None else error.step)


# ---- how far logits over paged storage may be from those of the dense recomputation, which runs in double precision


@dataclass(frozen=True)
class Bound:
    """Of the absolute differences of logits: the largest, and the mean over all that one request computes."""

    largest: float
    mean: float


_BOUNDS = {
    ("float64", "float64"): Bound(1e-11, 1e-12),
    ("float32", "float32"): Bound(1e-4, 1e-5),
    ("float16", "float16"): Bound(0.15, 0.016),
    ("bfloat16", "bfloat16"): Bound(1.0, 0.12),
    ("float32", "bfloat16"): Bound(0.32, 0.03),
    ("float32", "float8_e4m3fn"): Bound(4.0, 0.4),
}


def bound(config: ModelConfig) -> Bound:
    return _BOUNDS[config.dtype, config.cache_dtype or config.dtype]

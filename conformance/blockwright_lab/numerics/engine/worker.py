"""The worker: block tables, caches and the model; it runs what the scheduler tells it, and knows no manager."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockwright.device import InputBatch, KVCachePlan, KVCacheStorage, copy_blocks
from blockwright.kinds import CrossAttentionSpec

from .drafts import DraftHead
from .model import HybridModel
from .schedule import EngineConfig
from .task import Step, Task, Work
from .weights import DRAFT


class Worker:
    """What runs steps; `tensors` are copied and swapped: the caches, and what draft entries were made with."""

    def __init__(
        self, model: HybridModel, plan: KVCachePlan, config: EngineConfig, max_encoder_len: int, device: str
    ) -> None:
        self.model, self.config = model, config
        self.vocab_size = model.config.vocab_size
        self.storage = KVCacheStorage(plan, device)
        self.tensors = list(self.storage.tensors)
        self.head = DraftHead(model) if model.config.draft is not None else None
        if self.head is not None:
            self.draft_group = plan.config.group_of(DRAFT)
            self.draft_size = plan.config.kv_cache_groups[self.draft_group].kv_cache_spec.block_size
            self.made = torch.zeros((plan.num_blocks, self.draft_size), dtype=torch.int64, device=device)
            self.tensors.append(self.made)
        self.max_num_requests = config.max_num_seqs * (1 + config.overlap_steps)  # the ended ones leave a step later
        self.batch = InputBatch(
            plan.config,
            max_num_requests=self.max_num_requests,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            enable_caching=config.enable_caching,
            max_encoder_len=max_encoder_len,
            device=device,
            staged=config.staged or None,
        )
        groups = enumerate(plan.config.kv_cache_groups)
        self.cross = [number for number, each in groups if isinstance(each.kv_cache_spec, CrossAttentionSpec)]
        self.works: list[Work] = []
        self.inputs: Any = None

    def launch(self, step: Step) -> None:
        """Bring the block tables up to date, run the copies, and make the inputs of a step.

        The step before it has run, and its results are known: the tokens to compute, and where they begin.
        """
        for name, arguments in step.calls:
            getattr(self.batch, name)(*arguments)
        self.works = [work for work in step.works if work.is_launched or work.task.is_current(work)]
        for work in self.works:
            self.complete(work)
        if not self.works:
            return
        allocation = step.allocation
        if allocation is not None and len(self.works) < len(step.works):
            self.batch.apply([work.task.request for work in step.works[: step.served]], allocation)
            allocation = None
        self.inputs = self.batch.step(
            self.works if self.config.overlap_steps else [work.task.request for work in self.works],
            [work.num_new for work in self.works],
            allocation,
            step.copies,
            num_draft_tokens=[work.num_drafts for work in self.works],
        )
        for group, pairs in enumerate(self.inputs.copies):
            self.copy(group, pairs.tolist(), step.parts)
        for task in step.admitted:
            self.write_encoder(task)

    def copy(self, group: int, pairs: list[tuple[int, int]], parts: dict[int, int]) -> None:
        """Run the copies of a group: of attention, only the tokens that its request may read."""
        if whole := [pair for pair in pairs if pair[1] not in parts]:
            copy_blocks(self.tensors, whole)
        if some := [pair for pair in pairs if pair[1] in parts]:
            layers = [self.storage.kv(name) for name in self.storage.plan.config.kv_cache_groups[group].layer_names]
            made = [] if self.head is None or group != self.draft_group else [self.made]
            copy_blocks(
                [*layers, *made],
                some,
                num_tokens=[parts[target] for _, target in some],
                token_dim=[2] * len(layers) + [1] * len(made),
            )

    def complete(self, work: Work) -> None:
        task = work.task
        if self.config.overlap_steps:
            work.begin = task.request.num_computed_tokens - work.num_new  # moved back by what was rejected since
        drafts = (task.drafts + [0] * work.num_drafts)[: work.num_drafts]
        work.tokens = list(task.request.all_token_ids)[: work.end - work.num_drafts] + drafts
        task.drafts = []

    def write_encoder(self, task: Task) -> None:
        if task.encoder is None:
            return
        count = len(task.encoder)
        slots = {group: self.batch.slots(task.name, group, 0, count) for group in self.cross}
        self.model.write_encoder(task.encoder, slots, self.storage)

    def run(self) -> tuple[Tensor | None, list[Tensor]]:
        if not self.works:
            return None, []
        tokens: list[int] = []
        for work in self.works:
            tokens += work.task.model_tokens(work.tokens[work.begin :], self.vocab_size, work.begin)
        inputs, count = self.inputs, len(tokens)
        if self.config.padded:
            inputs = inputs.padded(self.max_num_requests, self.config.max_num_batched_tokens)
            tokens += [0] * (inputs.num_tokens - count)
        hidden = self.model.forward(tokens, inputs, self.storage)[:count]
        return hidden, list(self.model.logits(hidden).split([work.num_new for work in self.works]))

    def propose(self, hidden: Tensor, asks: dict[Work, int]) -> list[Proposal]:
        """Let the draft head read the step, and guess on for those that were asked for, so many tokens each."""
        assert self.head is not None
        following: list[int] = []
        starts: dict[Work, int] = {}
        for work in self.works:
            starts[work] = len(following)
            known = list(work.task.request.all_token_ids)[work.begin + 1 : work.end + 1]
            known += [0] * (work.num_new - len(known))
            following += work.task.model_tokens(known, self.vocab_size, work.begin + 1)
        outputs = self.head.forward(hidden, following, self.inputs, self.storage)
        slots = self.inputs.slot_mapping[self.draft_group][: len(following)]
        self.made.view(-1)[slots] = torch.tensor(following, device=slots.device)
        proposals = []
        for row, work in enumerate(self.works):
            count = asks.get(work, 0)
            if count == 0:
                continue
            last = int(work.task.request.num_tokens) - 2  # the last computed one; the one after it was just sampled
            at = starts[work] + last - work.begin
            tokens, logits = self.head.propose(outputs[at : at + 1], [row], [last], count, self.inputs, self.storage)
            made = self.made_with(row, last + 1)
            proposals.append(Proposal(work, [int(token) for token in tokens[0]], logits[0], made))
        return proposals

    def made_with(self, row: int, length: int) -> list[int]:
        positions = torch.arange(length, device=self.made.device)
        blocks = self.inputs.block_tables[self.draft_group][row][positions // self.draft_size]
        return [int(token) for token in self.made[blocks.long(), positions % self.draft_size]]


@dataclass(frozen=True)
class Proposal:
    """What the draft head guesses for a request."""

    work: Work
    tokens: list[int]  # the guesses
    logits: Tensor  # which they are the best of
    made_with: list[int]  # the token that each entry read was made with: the next one, or another request's

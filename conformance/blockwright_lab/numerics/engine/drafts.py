r"""The draft head over paged storage: one attention layer of its own, after EAGLE.

Its input at position p is made of the model's hidden state at p and the embedding of the token at p + 1, and its logits
at p propose the token at p + 2. So the entry of position p can be written only when token p + 1 is known: that of the
last token of a step after sampling.

        position      0        1        2        3            (tokens t0 t1 t2 known, t3 just sampled)
        hidden       h0       h1       h2      draft output at 2
        token        t1       t2       t3      d1 = argmax of the logits at 2
        proposes     t2       t3       d1      d2
                     \__ `forward`, every step __/  \__ `propose`: entries of drafts, written over by the next step

The entry of the last position of a block therefore depends on the first token *after* that block, which the block's
hash does not cover. A hit as long as what is cached would let a request read an entry made with another continuation.
The block after the hit, which EAGLE asks for (`use_eagle=True`), says that the continuation was the same, as far as the
blocks found were written by one request. It does not where a block found is a duplicate:

    a: P x ...   computes and publishes P
    b: P y ...   may not hit P, since x is not y; computes it again and publishes it again, and then y ...
    c: P y ...   finds a's copy of P, the older one, and b's blocks behind it: the last entry of P was made with x

Nor does it where a fork goes on with another token than its parent. Then the head reads the entry that is there:
proposals may be worse, results are not. `dense` takes `next_tokens` for that case.
"""

from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor

from blockwright.device import KVCacheStorage, StepInputs
from blockwright.kinds import AttentionSpec

from .model import HybridModel, Rows, rms_norm
from .task import Task
from .weights import DRAFT, Weights


class DraftHead:
    """The draft head of a model made with `ModelConfig(draft=...)`."""

    def __init__(self, model: HybridModel) -> None:
        assert model.weights.draft is not None
        self.model = model
        self.weights: Weights = model.weights.draft

    def forward(
        self, hidden: Tensor, next_tokens: Tensor | Sequence[int], inputs: StepInputs, storage: KVCacheStorage
    ) -> Tensor:
        """Write the draft layer's entries of a step's tokens, and return its outputs `(num_tokens, hidden)`, normed.

        `hidden` is what `model.forward` returned, `next_tokens` the token after each (behind a rejected draft any).
        """
        rows = Rows.of(inputs, storage.plan.config.group_of(DRAFT), storage.plan.config)
        return self.layer(self.joined(hidden, next_tokens), rows, storage)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.model.logits(outputs)

    def propose(
        self,
        outputs: Tensor,
        rows: Sequence[int],
        last: Sequence[int],
        num_drafts: int,
        inputs: StepInputs,
        storage: KVCacheStorage,
    ) -> tuple[Tensor, Tensor]:
        """Propose `num_drafts` tokens for requests from their `last` certain positions on; return tokens and logits.

        The i-th (from 1) needs the slot of position `last + i - 1` (its own entry, but for the first, which `forward`
        wrote): ask for `num_lookahead_tokens` with the step.
        """
        scores = [self.logits(outputs)]
        of_step = Rows.of(inputs, storage.plan.config.group_of(DRAFT), storage.plan.config)
        table = of_step.table[list(rows)]
        for ahead in range(1, num_drafts):
            entering = self.joined(outputs, scores[-1].argmax(dim=-1))
            positions = torch.tensor(last, device=outputs.device) + ahead
            outputs = self.layer(entering, self.ahead(of_step.spec, table, positions), storage)
            scores.append(self.logits(outputs))
        logits = torch.stack(scores, dim=1)
        return logits.argmax(dim=-1), logits

    def joined(self, hidden: Tensor, next_tokens: Tensor | Sequence[int]) -> Tensor:
        embedded = rms_norm(self.model.embedded(next_tokens), self.weights.token_norm)
        return torch.cat([rms_norm(hidden, self.weights.hidden_norm), embedded], dim=-1) @ self.weights.join

    def layer(self, entering: Tensor, rows: Rows, storage: KVCacheStorage) -> Tensor:
        weights, cache = self.weights.layer, storage.kv(DRAFT)
        normed = rms_norm(entering, weights.mixer_norm)
        mixed = self.model.attention(weights.mixer, normed, rows, cache)
        return rms_norm(self.model.added(weights, entering, mixed), self.weights.norm)

    def ahead(self, spec: AttentionSpec, table: Tensor, positions: Tensor) -> Rows:
        size, count = spec.block_size, len(positions)
        blocks = table.gather(1, (positions // size).unsqueeze(1)).squeeze(1)
        starts = torch.arange(count + 1, dtype=torch.int32, device=positions.device)
        return Rows(
            spec=spec,
            table=table,
            slots=blocks.long() * size + positions % size,
            positions=positions,
            query_start_loc=starts,
            seq_lens=positions.int() + 1,
            encoder_lens=torch.zeros_like(starts[1:]),
            max_query_len=1,
            max_seq_len=int(positions.max()) + 1,
        )


# ---- who guesses tokens ahead without a model of its own; the model's draft head is the worker's


def random_guess(task: Task, count: int, vocab_size: int) -> list[int]:
    random = Random(f"{task.name} {task.request.num_tokens} {task.turn}")
    return [random.randrange(vocab_size) for _ in range(count)]


def ngram_guess(task: Task, count: int, vocab_size: int) -> list[int]:
    """Guess that what came after the last token before will come again; at random where it never did."""
    tokens = list(task.request.all_token_ids)
    for at in range(len(tokens) - 2, -1, -1):
        if tokens[at] == tokens[-1]:
            run = tokens[at + 1 :]
            return (run * count)[:count]
    return random_guess(task, count, vocab_size)


GUESSERS = {"ngram": ngram_guess, "random": random_guess}

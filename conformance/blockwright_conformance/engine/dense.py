"""The same model without a cache: one request at a time, from its tokens and the definition of what each kind reads.

Written apart from `model` and from `blockwright.device`, in other ways where there are any: masks are made from
`blockwright_spec.reads`, position by position; recurrences are loops over tokens. Only weights are shared. Whatever the
element type of the model, this computes in double precision (with the weights as they are rounded there).
"""

from collections.abc import Sequence

from .model import HybridModel

import torch  # isort: skip
from torch import Tensor  # isort: skip


def dense_hidden(model: HybridModel, tokens: Sequence[int], encoder: Tensor | None = None) -> Tensor:
    """Compute the last hidden states of a request's tokens, `(tokens, hidden)`, normed, in double precision."""


def dense_logits(model: HybridModel, tokens: Sequence[int], encoder: Tensor | None = None) -> Tensor:
    """Compute what a request's tokens score: row p, of `(tokens, vocabulary)`, scores the token at p + 1.

    Args:
        model: whose weights.
        tokens: of the request, from position 0.
        encoder: outputs `(encoder tokens, hidden)` that cross-attention layers read.
    """


def dense_draft_logits(
    model: HybridModel,
    tokens: Sequence[int],
    encoder: Tensor | None = None,
    *,
    next_tokens: Sequence[int] | None = None,
) -> Tensor:
    """Compute the draft head's scores: row p, of `(tokens - 1, vocabulary)`, scores the token at p + 2.

    Args:
        model, tokens, encoder: as for `dense_logits`; the last token is only the next one of the one before it.
        next_tokens: the token with which the entry of each position was made, `tokens[1:]` unless told: another one
            where the entry was adopted from a request that went on otherwise (see `drafts`).
    """


def dense_proposal(
    model: HybridModel,
    tokens: Sequence[int],
    drafts: Sequence[int],
    encoder: Tensor | None = None,
    *,
    next_tokens: Sequence[int] | None = None,
) -> Tensor:
    """Compute the scores from which drafts were chosen: `(drafts, vocabulary)`; row i scores draft i.

    Args:
        tokens: all that is known when the drafts are proposed, the sampled token included.
        drafts: as proposed.
        next_tokens: as for `dense_draft_logits`.
    """


class Recomputation:
    """Dense logits of the requests of one model, remembered: a longer sequence answers for its beginnings.

    One request is recomputed whole, in one call of the functions above; nothing is carried from one call to the next.
    """

    def __init__(self, model: HybridModel) -> None:
        self.model = model
        self.num_computed = 0
        """Dense passes made."""

    def logits(self, tokens: Sequence[int], encoder: Tensor | None = None) -> Tensor:
        """Give `dense_logits`, from memory if these tokens begin a sequence that was asked for."""

    def expect(self, tokens: Sequence[int], encoder: Tensor | None = None) -> None:
        """Compute a whole sequence now, if it is known to come, so that its beginnings are answered from it."""

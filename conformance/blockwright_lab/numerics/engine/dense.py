"""The same model without a cache: one request at a time, from its tokens and the definition of what each kind reads.

Written apart from `model` and from `blockwright.device`, in other ways where there are any: masks are made from
`blockwright_spec.reads`, position by position; recurrences are loops over tokens, rotary positions are complex numbers.
Only weights are shared. Whatever the element type of the model, this computes in double precision (with the weights as
they are rounded there).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor

from blockwright_spec.reads import Cross, Kind, Mamba, reads

from .model import HybridModel
from .weights import EPSILON, ROTARY_BASE, ModelConfig, Weights, converted


class Recomputation:
    """A model without a cache, remembering hidden states: a longer sequence answers for its beginnings.

    `next_tokens`: of the draft head, the token with which the entry of each position was made, `tokens[1:]` unless
    told: another one where the entry was adopted from a request that went on otherwise (see `drafts`).
    """

    def __init__(self, model: HybridModel) -> None:
        self.config: ModelConfig = model.config
        self.weights: Weights = converted(model.weights, lambda weight: weight.cpu().double())
        self.known: dict[tuple[bytes, tuple[int, ...]], Tensor] = {}

    def hidden(self, tokens: Sequence[int], encoder: Tensor | None = None) -> Tensor:
        encoder = None if encoder is None else encoder.cpu().double()
        whole, read = tuple(tokens), b"" if encoder is None else encoder.numpy().tobytes()
        found = self.known.get((read, whole))
        if found is None:
            found = _hidden(self.config, self.weights, whole, encoder)
            self.known.update({(read, whole[:end]): found for end in range(1, len(whole) + 1)})
        return found[: len(whole)]

    def logits(self, tokens: Sequence[int], encoder: Tensor | None = None) -> Tensor:
        return self.hidden(tokens, encoder) @ self.weights.unembedding

    def proposal(
        self,
        tokens: Sequence[int],
        drafts: Sequence[int],
        encoder: Tensor | None = None,
        *,
        next_tokens: Sequence[int] | None = None,
    ) -> Tensor:
        """Row i scores draft i, as proposed when `tokens` were known."""
        inputs, scores = self._draft_inputs(tokens, encoder, next_tokens), []
        for draft in drafts:
            output = _draft_outputs(self.config, self._draft(), inputs)[-1:]
            scores.append(output @ self.weights.unembedding)
            inputs = torch.cat([inputs, _joined(self._draft(), output, self.weights.embedding[[draft]])])
        return torch.cat(scores)

    def _draft(self) -> Weights:
        assert self.weights.draft is not None
        return self.weights.draft

    def _draft_inputs(self, tokens: Sequence[int], encoder: Tensor | None, following: Sequence[int] | None) -> Tensor:
        chosen, hidden = list(tokens[1:] if following is None else following), self.hidden(tokens[:-1], encoder)
        return _joined(self._draft(), hidden, self.weights.embedding[chosen])


def _hidden(config: ModelConfig, weights: Weights, tokens: Sequence[int], encoder: Tensor | None) -> Tensor:
    hidden = weights.embedding[list(tokens)]
    for layer in weights.layers:
        hidden = _layer(config, layer, hidden, encoder)
    return _normed(hidden, weights.norm)


def _draft_outputs(config: ModelConfig, weights: Weights, inputs: Tensor) -> Tensor:
    return _normed(_layer(config, weights.layer, inputs, None), weights.norm)


def _joined(weights: Weights, hidden: Tensor, embedded: Tensor) -> Tensor:
    both = [_normed(hidden, weights.hidden_norm), _normed(embedded, weights.token_norm)]
    return torch.cat(both, dim=1) @ weights.join


def _layer(config: ModelConfig, layer: Weights, hidden: Tensor, encoder: Tensor | None) -> Tensor:
    normed = _normed(hidden, layer.mixer_norm)
    kind, mixer = layer.kind.kind, layer.mixer
    if isinstance(kind, Mamba):
        hidden = hidden + _recurrence(config, mixer, kind, normed)
    elif isinstance(kind, Cross):
        hidden = hidden + _cross(config, mixer, normed, encoder)
    else:
        hidden = hidden + _attention(config, mixer, kind, normed)
    wide = _normed(hidden, layer.mlp_norm) @ layer.up
    return hidden + (wide * wide.sigmoid()) @ layer.down


def _normed(hidden: Tensor, scale: Tensor) -> Tensor:
    """Bring each vector to length sqrt(hidden), then scale its components."""
    squares = (hidden * hidden).mean(dim=-1, keepdim=True)
    return hidden / (squares + EPSILON).sqrt() * scale


@lru_cache(maxsize=1024)
def _mask(kind: Kind, length: int) -> Tensor:
    read = [{*reads(kind, position), position} for position in range(length)]
    return torch.tensor([[other in positions for other in range(length)] for positions in read])


def _turned(vectors: Tensor) -> Tensor:
    """Turn the vector of position p, its halves read as complex numbers, by p times each component's own angle."""
    length, _, size = vectors.shape
    rates = torch.tensor([ROTARY_BASE ** (-2 * at / size) for at in range(size // 2)], dtype=torch.float64)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates).unsqueeze(1)
    turned = torch.complex(*vectors.split(size // 2, dim=2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=2)


def _mixed(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Average values by the softmax of what queries say of keys, in each head: `(tokens, heads, size)` in and out."""
    shared = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(shared, dim=1), values.repeat_interleave(shared, dim=1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / sqrt(queries.shape[2])
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=2), values)


def _attention(config: ModelConfig, weights: Weights, kind: Kind, normed: Tensor) -> Tensor:
    queries = (normed @ weights.query).unflatten(1, (-1, config.head_size))
    keys = (normed @ weights.key).unflatten(1, (-1, config.head_size))
    values = (normed @ weights.value).unflatten(1, (-1, config.head_size))
    mixed = _mixed(_turned(queries), _turned(keys), values, _mask(kind, len(normed)))
    return mixed.flatten(1) @ weights.output


def _cross(config: ModelConfig, weights: Weights, normed: Tensor, encoder: Tensor | None) -> Tensor:
    if encoder is None or not len(encoder):
        return torch.zeros_like(normed)
    queries = (normed @ weights.query).unflatten(1, (-1, config.head_size))
    keys = (encoder @ weights.key).unflatten(1, (-1, config.head_size))
    values = (encoder @ weights.value).unflatten(1, (-1, config.head_size))
    return _mixed(queries, keys, values, None).flatten(1) @ weights.output


def _recurrence(config: ModelConfig, weights: Weights, kind: Kind, normed: Tensor) -> Tensor:
    """Carry a state from token to token: what it holds after a token is made of what it held after the one read."""
    entering, gate = normed @ weights.entering, normed @ weights.gate
    before = torch.zeros(config.conv_width - 1, config.channels, dtype=torch.float64)
    seen = torch.cat([before, entering]).unfold(0, config.conv_width, 1)
    blended = (seen * weights.convolution).sum(dim=2)
    blended = blended * blended.sigmoid()
    speed = (blended @ weights.speed + weights.speed_bias).exp().log1p().unsqueeze(2)
    kept = (-speed * weights.rate).exp()
    added = speed * torch.einsum("tc,ts->tcs", blended, blended @ weights.write)
    start = torch.zeros_like(weights.rate)
    after: list[Tensor] = []
    for position in range(len(normed)):
        (state,) = [after[other] for other in reads(kind, position)] or [start]
        after.append(kept[position] * state + added[position])
    outputs = torch.einsum("tcs,ts->tc", torch.stack(after), blended @ weights.read) + weights.skip * blended
    return (outputs * (gate * gate.sigmoid())) @ weights.output

"""The tiny real model over paged storage: what an engine's worker computes in a step.

Every layer reads and writes its cache through `blockwright.device` alone, at the places that the step's inputs name;
what it computes besides (norms, projections, rotary positions) is written out here. `dense` computes the same from the
same weights without any of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as functional
from torch import Tensor

from blockwright.config import KVCacheConfig
from blockwright.device import KVCacheStorage, StepInputs, causal_conv, paged_attention, selective_scan, write_kv
from blockwright.kinds import AttentionSpec, CrossAttentionSpec, KVCacheSpec
from blockwright_spec.reads import Cross, Mamba

from .weights import DRAFT, EPSILON, ROTARY_BASE, ModelConfig, Weights, random_weights


@dataclass(frozen=True)
class Rows:
    """Where an attention layer's tokens are written and read: the inputs of one group.

    `spec` is what the storage was planned with, whose blocks may be larger than those the layer asked for.
    """

    spec: AttentionSpec
    table: Tensor
    slots: Tensor
    positions: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    encoder_lens: Tensor
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, inputs: StepInputs, group: int, config: KVCacheConfig) -> "Rows":
        spec = cast(AttentionSpec, config.kv_cache_groups[group].kv_cache_spec)
        table = inputs.block_tables[group][: inputs.num_requests]
        encoder_slots = table.shape[1] * spec.block_size
        longest = encoder_slots if isinstance(spec, CrossAttentionSpec) else inputs.max_seq_len
        alike = "positions query_start_loc seq_lens encoder_lens max_query_len".split()
        own: dict[str, Any] = {name: getattr(inputs, name) for name in alike}
        return cls(spec=spec, table=table, slots=inputs.slot_mapping[group], max_seq_len=longest, **own)


class HybridModel:
    """A model of layers of every kind; `layers` is what each declares of its cache, the draft head's last."""

    def __init__(self, config: ModelConfig, device: str | torch.device = "cpu") -> None:
        self.config = config
        self.weights = random_weights(config, device)
        self.layers: dict[str, KVCacheSpec] = {
            f"layers.{number}": config.cache_spec(layer) for number, layer in enumerate(config.layers)
        }
        if config.draft is not None:
            self.layers[DRAFT] = config.cache_spec(config.draft)

    def forward(self, tokens: Tensor | Sequence[int], inputs: StepInputs, storage: KVCacheStorage) -> Tensor:
        """Compute the tokens of a step, drafts last in each request; return hidden states `(tokens, hidden)`, normed.

        The step's copies have been made, and the encoder's outputs written.
        """
        hidden = self.embedded(tokens)
        for name, layer in zip(self.layers, self.weights.layers, strict=False):
            hidden = self.layer(name, layer, hidden, inputs, storage)
        return rms_norm(hidden, self.weights.norm)

    def embedded(self, tokens: Tensor | Sequence[int]) -> Tensor:
        return self.weights.embedding[torch.as_tensor(tokens, device=self.weights.embedding.device)]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weights.unembedding

    def write_encoder(self, outputs: Tensor, slots: Mapping[int, Tensor], storage: KVCacheStorage) -> None:
        """Write keys and values of an encoder's outputs `(tokens, hidden)`, before a request's first step."""
        outputs = outputs.to(self.weights.embedding)
        for name, layer in zip(self.layers, self.weights.layers, strict=False):
            if isinstance(layer.kind.kind, Cross):
                mixer, cache = layer.mixer, storage.kv(name)
                keys, values = self.heads(outputs @ mixer.key), self.heads(outputs @ mixer.value)
                write_kv(cache, keys, values, slots[storage.plan.config.group_of(name)])

    def encoder_outputs(self, num_tokens: int, seed: int) -> Tensor:
        """Draw what an encoder might have said: `(num_tokens, hidden)`, decided by the seed."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(num_tokens, self.config.hidden_size, generator=generator, dtype=torch.float64)
        return drawn.to(self.weights.embedding)

    def layer(self, name: str, weights: Weights, hidden: Tensor, inputs: StepInputs, storage: KVCacheStorage) -> Tensor:
        normed = rms_norm(hidden, weights.mixer_norm)
        group = storage.plan.config.group_of(name)
        if isinstance(weights.kind.kind, Mamba):
            mixed = self.recurrence(weights.mixer, normed, group, inputs, storage.states(name))
        else:
            rows = Rows.of(inputs, group, storage.plan.config)
            mixed = self.attention(weights.mixer, normed, rows, storage.kv(name))
        return self.added(weights, hidden, mixed)

    def added(self, weights: Weights, hidden: Tensor, mixed: Tensor) -> Tensor:
        hidden = hidden + mixed
        return hidden + functional.silu(rms_norm(hidden, weights.mlp_norm) @ weights.up) @ weights.down

    def attention(self, weights: Weights, normed: Tensor, rows: Rows, cache: Tensor) -> Tensor:
        """Write the tokens' keys and values, but for cross attention, and read what the kind reads."""
        query = self.heads(normed @ weights.query)
        if not isinstance(rows.spec, CrossAttentionSpec):
            angles = self.angles(rows.positions)
            query, key = rotate(query, angles), rotate(self.heads(normed @ weights.key), angles)
            write_kv(cache, key, self.heads(normed @ weights.value), rows.slots)
        mixed = paged_attention(
            query, cache, rows.spec, rows.table, rows.query_start_loc, rows.seq_lens, encoder_lens=rows.encoder_lens,
            max_query_len=rows.max_query_len, max_seq_len=rows.max_seq_len,
        )  # fmt: skip
        return mixed.flatten(1) @ weights.output

    def recurrence(
        self, weights: Weights, normed: Tensor, group: int, inputs: StepInputs, states: tuple[Tensor, ...]
    ) -> Tensor:
        """Go on from the states that the step begins with, and leave those after the certain tokens and each draft."""
        place = inputs.state_reads[group], inputs.state_writes[group], inputs.query_start_loc
        mixed = functional.silu(causal_conv(normed @ weights.entering, weights.convolution, states[1], *place))
        chosen = mixed @ weights.speed + weights.speed_bias, weights.rate, mixed @ weights.write, mixed @ weights.read
        outputs = selective_scan(mixed, *chosen, states[0], *place, d=weights.skip, max_query_len=inputs.max_query_len)
        return (outputs * functional.silu(normed @ weights.gate)) @ weights.output

    def heads(self, vectors: Tensor) -> Tensor:
        return vectors.reshape(len(vectors), -1, self.config.head_size)

    def angles(self, positions: Tensor) -> Tensor:
        """Return the angles of rotary positions: `(tokens, 1, head size / 2)`, in at least single precision."""
        half = self.config.head_size // 2
        dtype = torch.promote_types(self.weights.embedding.dtype, torch.float32)
        rates = torch.pow(ROTARY_BASE, -torch.arange(half, dtype=dtype, device=positions.device) / half)
        return positions.to(dtype)[:, None, None] * rates


def rms_norm(hidden: Tensor, scale: Tensor) -> Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + EPSILON) * scale


def rotate(vectors: Tensor, angles: Tensor) -> Tensor:
    first, second = vectors.to(angles.dtype).chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return turned.to(vectors.dtype)

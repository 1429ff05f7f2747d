"""The tiny real model over paged storage: what an engine's worker computes in a step.

Every layer reads and writes its cache through `blockwright.device` alone, at the places that the step's inputs name;
what it computes besides (norms, projections, rotary positions) is written out here. `dense` computes the same from the
same weights without any of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from .weights import (
    DRAFT,
    EPSILON,
    ROTARY_BASE,
    AttentionWeights,
    LayerWeights,
    ModelConfig,
    RecurrentWeights,
    random_weights,
)

import torch  # isort: skip  (after `weights`, which says what to do where it is missing)
import torch.nn.functional as functional  # isort: skip
from torch import Tensor  # isort: skip

from blockwright.config import KVCacheConfig
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import CrossAttentionSpec, KVCacheSpec, MambaSpec


class Inputs(Protocol):
    """What a step tells the model: the part of `blockwright.device.StepInputs` that it uses, by the same names."""

    num_requests: int
    num_tokens: int
    block_tables: tuple[Tensor, ...]
    slot_mapping: tuple[Tensor, ...]
    positions: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    encoder_lens: Tensor
    state_reads: tuple[Tensor, ...]
    state_writes: tuple[Tensor, ...]


class Plan(Protocol):
    """Which group each layer is in."""

    @property
    def config(self) -> KVCacheConfig:
        """The groups."""


class Storage(Protocol):
    """The layers' caches: the part of `blockwright.device.KVCacheStorage` that the model uses."""

    @property
    def plan(self) -> Plan:
        """What the storage was made for."""

    def layer(self, name: str) -> Tensor | tuple[Tensor, ...]:
        """Give the cache of a layer: keys and values, or the states."""


class HybridModel:
    """A model of layers of every kind, with weights drawn from its configuration's seed.

    Attributes:
        config: its shape.
        weights: all that `dense` shares with it.
        layers: what each layer declares of its cache, by name, the draft head's (`DRAFT`) last: for `plan_kv_cache`.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.weights = random_weights(config)
        self.layers: dict[str, KVCacheSpec] = {
            f"layers.{number}": config.cache_spec(layer) for number, layer in enumerate(config.layers)
        }
        if config.draft is not None:
            self.layers[DRAFT] = config.cache_spec(config.draft)

    def forward(self, tokens: Tensor | Sequence[int], inputs: Inputs, storage: Storage) -> Tensor:
        """Compute the tokens of a step, write their keys, values and states, and return their last hidden states.

        Args:
            tokens: `(num_tokens,)`, the requests' new tokens one after the other, drafts last in each request.
            inputs: where they are: the step's tables, slots and states.
            storage: the layers' caches; the step's copies have been made, and the encoder's outputs written.

        Returns:
            `(num_tokens, hidden)`, normed: what `logits` and the draft head take.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the next token: `(..., hidden)` to `(..., vocabulary)`."""
        return hidden @ self.weights.unembedding

    def write_encoder(self, outputs: Tensor, slots: Mapping[int, Tensor], storage: Storage) -> None:
        """Write the keys and values of an encoder's outputs `(tokens, hidden)` for all cross-attention layers.

        Once, before a request's first step. `slots` holds, per cross-attention group, the tokens' slots:
        `batch.slots(request_id, group, 0, len(outputs))`.
        """

    def encoder_outputs(self, num_tokens: int, seed: int) -> Tensor:
        """Draw what an encoder might have said: `(num_tokens, hidden)`, decided by the seed."""

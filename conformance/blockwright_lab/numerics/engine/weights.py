"""What the tiny model is: its shape, the kinds of its layers, and random weights drawn from a seed.

All that the paged model and the dense recomputation share is here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from blockwright_spec.reads import Chunked, Cross, Full, Group, Mamba, Sinks, Sliding

DRAFT = "draft.0"

EPSILON = 1e-6
"""Keeps the norm of a zero vector from dividing by zero."""

ROTARY_BASE = 100.0
"""Slowest turn of the rotary positions: small, so that neighbouring positions differ clearly in every component."""


@dataclass(frozen=True)
class ModelConfig:
    # kind and block size of each layer, in order; layers that are equal may share a block table
    """Shape of a model."""

    layers: tuple[Group, ...]
    # kind and block size of the draft head's own layer, which must be attention; None: no draft head
    draft: Group | None = None
    # vocab_size, hidden_size, mlp_size: number of tokens, and widths
    vocab_size: int = 48
    hidden_size: int = 16
    mlp_size: int = 32
    # num_heads, num_kv_heads, head_size: of every attention layer; keys and values have fewer heads
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 8
    # channels, state_size: a recurrent layer's state is `(channels, state size)`
    channels: int = 12
    state_size: int = 4
    conv_width: int = 3  # tokens that its causal convolution sees, the own included; the others are a second state
    dtype: str = "float64"  # of weights, hidden states and (where not stated) caches
    cache_dtype: str | None = None  # of keys and values at rest, such as ``"float8_e4m3fn"``; None: as `dtype`
    seed: int = 0  # of the weights

    @property
    def state_dtype(self) -> str:
        """Element type of recurrent states: what they add up over a whole request takes at least 32 bits."""
        return self.dtype if self.dtype == "float64" else "float32"

    def cache_spec(self, layer: Group) -> KVCacheSpec:
        size, dtype = layer.block_size, self.cache_dtype or self.dtype
        heads, head_size = self.num_kv_heads, self.head_size
        match layer.kind:
            case Full():
                return FullAttentionSpec(size, heads, head_size, dtype)
            case Sliding(window):
                return SlidingWindowSpec(size, heads, head_size, dtype, sliding_window=window)
            case Sinks(sinks, window):
                return SlidingWindowSpec(size, heads, head_size, dtype, sliding_window=window, sink_len=sinks)
            case Chunked(chunk):
                return ChunkedLocalAttentionSpec(size, heads, head_size, dtype, attention_chunk_size=chunk)
            case Cross():
                return CrossAttentionSpec(size, heads, head_size, dtype)
            case Mamba(drafts):
                shapes = (self.channels, self.state_size), (self.channels, self.conv_width - 1)
                return MambaSpec(size, shapes, (self.state_dtype, self.state_dtype), drafts)
        raise NotImplementedError(layer.kind)


class Weights:
    """Tensors of a part of the model by name, and parts of it: what `_Draw` has drawn.

    Attention has projections `(in, out)`; a cross layer's keys and values are of the encoder's outputs. In a selective
    recurrence, what a token lets in is mixed by the convolution `(channels, width)` with that of the tokens before it;
    the result chooses how fast the state forgets, where it is written and where it is read.
    """

    kind: Group
    mixer: "Weights"
    layer: "Weights"
    layers: tuple["Weights", ...]
    draft: "Weights | None"

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Tensor:
        """Say, for the type checker, that all the rest are tensors."""
        raise AttributeError(name)


def random_weights(config: ModelConfig, device: str | torch.device = "cpu") -> Weights:
    draw = _Draw(config)
    dtype: torch.dtype = getattr(torch, config.dtype)
    weights = Weights(
        embedding=draw.normal(config.vocab_size, config.hidden_size),
        layers=tuple(draw.layer(layer) for layer in config.layers),
        norm=draw.scale(config.hidden_size),
        unembedding=draw.matrix(config.hidden_size, config.vocab_size, gain=2.0),
        draft=None if config.draft is None else draw.draft(config.draft),
    )
    return converted(weights, lambda drawn: drawn.to(device, dtype))


def converted(weights: Weights, change: Callable[[Tensor], Tensor]) -> Weights:
    return Weights(**{name: _converted(value, change) for name, value in vars(weights).items()})


def _converted(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    match value:
        case Tensor():
            return change(value)
        case tuple():
            return tuple(_converted(item, change) for item in value)
        case Weights():
            return converted(value, change)
    return value


class _Draw:
    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(config.seed)

    def normal(self, *shape: int, gain: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64) * gain

    def matrix(self, inner: int, outer: int, gain: float = 1.0) -> Tensor:
        return self.normal(inner, outer, gain=gain * inner**-0.5)

    def scale(self, size: int) -> Tensor:
        return 1.0 + self.normal(size, gain=0.1)

    def layer(self, layer: Group) -> Weights:
        hidden, wide = self.config.hidden_size, self.config.mlp_size
        return Weights(
            kind=layer,
            mixer_norm=self.scale(hidden),
            mixer=self.recurrent() if isinstance(layer.kind, Mamba) else self.attention(),
            mlp_norm=self.scale(hidden),
            up=self.matrix(hidden, wide),
            down=self.matrix(wide, hidden),
        )

    def attention(self) -> Weights:
        """Draw an attention layer whose tokens do not all look everywhere alike."""
        config = self.config
        hidden, query, key = (
            config.hidden_size,
            config.num_heads * config.head_size,
            config.num_kv_heads * config.head_size,
        )
        return Weights(
            query=self.matrix(hidden, query, gain=1.5),
            key=self.matrix(hidden, key, gain=1.5),
            value=self.matrix(hidden, key),
            output=self.matrix(query, hidden),
        )

    def recurrent(self) -> Weights:
        """Draw a recurrent layer that forgets slowly enough to need its state."""
        hidden, channels, size = self.config.hidden_size, self.config.channels, self.config.state_size
        width = self.config.conv_width
        return Weights(
            entering=self.matrix(hidden, channels),
            gate=self.matrix(hidden, channels),
            convolution=self.normal(channels, width, gain=width**-0.5),
            speed=self.matrix(channels, channels),
            speed_bias=self.normal(channels, gain=0.5),
            write=self.matrix(channels, size),
            read=self.matrix(channels, size),
            rate=0.3 * self.normal(channels, size, gain=0.3).exp(),
            skip=self.normal(channels),
            output=self.matrix(channels, hidden),
        )

    def draft(self, layer: Group) -> Weights:
        hidden = self.config.hidden_size
        return Weights(
            hidden_norm=self.scale(hidden),
            token_norm=self.scale(hidden),
            join=self.matrix(2 * hidden, hidden),
            layer=self.layer(layer),
            norm=self.scale(hidden),
        )

"""The kinds of layers: the declaration of one layer's KV cache.

A *kind* gives the tokens and bytes of a block and, through its class, the earlier positions that a token reads. The
class names are those engine developers know (`FullAttentionSpec`, ...); the word *spec* elsewhere in this project
always means the specification.

This module stays uncompiled (frozen dataclasses keep pickling and copying); the core reads the fields once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blockwright.arguments import integer
from blockwright.errors import InvalidArgumentError

_BITS = {
    "float64": 64, "double": 64, "int64": 64,
    "float32": 32, "float": 32, "int32": 32,
    "float16": 16, "half": 16, "bfloat16": 16, "int16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "fp8": 8, "int8": 8, "uint8": 8,
}  # fmt: skip


def dtype_size(dtype: object) -> int:
    """Return the bytes of one element of `dtype`, a name such as ``"bfloat16"`` or a ``torch.dtype``.

    Raises:
        InvalidArgumentError: the name is not known.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _BITS:
        raise InvalidArgumentError(f"dtype: unknown element type {dtype!r}; use one of {', '.join(sorted(_BITS))}")
    return _BITS[name] // 8


@dataclass(frozen=True)
class KVCacheSpec:
    """Base of all layer kinds.

    Attributes:
        block_size: tokens per block.
    """

    block_size: int

    def __post_init__(self) -> None:
        integer("block_size", self.block_size, 1)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """A layer that keeps one key and one value per token and head.

    Attributes:
        num_kv_heads: heads of keys and values.
        head_size: elements per head.
        dtype: element type, a name or a ``torch.dtype``.
    """

    num_kv_heads: int
    head_size: int
    dtype: object

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("num_kv_heads", self.num_kv_heads, 1)
        integer("head_size", self.head_size, 1)
        dtype_size(self.dtype)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: keys and values."""
        return 2 * self.block_size * self.num_kv_heads * self.head_size * dtype_size(self.dtype)


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """A layer in which the token at position q reads all positions before it."""


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """A layer in which the token at position q reads itself and the ``sliding_window - 1`` positions before it.

    With sinks (StreamingLLM) it reads the first `sink_len` positions as well: their blocks are kept, and a hit needs
    them.
    """

    sliding_window: int
    sink_len: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("sliding_window", self.sliding_window, 1)
        integer("sink_len", self.sink_len)


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(AttentionSpec):
    """A layer in which the token at position q reads the positions before it in its own chunk.

    `block_size` must divide `attention_chunk_size`: otherwise one block would straddle two chunks and a prefix hit
    cannot distinguish its halves, of which one is still read.
    """

    attention_chunk_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("attention_chunk_size", self.attention_chunk_size, 1)
        if self.attention_chunk_size % self.block_size:
            raise InvalidArgumentError(
                f"block_size: must divide attention_chunk_size {self.attention_chunk_size}, "
                f"{self.block_size} does not; choose a divisor"
            )


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    """A recurrent layer: a token reads only the state after the token before it.

    Attributes:
        shapes: shapes of the state tensors of one block.
        dtypes: their element types, one per shape.
        num_speculative_blocks: states of draft tokens that each request keeps: the most drafts that may be rejected.
        runs_ahead: steps may be given slots beyond the known tokens, before it is known which drafts of earlier steps
            hold. The states of drafts are in the block table, behind the entry of the step's last token, as vLLM's
            worker reads them; without, they have blocks beside the table. law: MAMBA-6.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[object, ...]
    num_speculative_blocks: int = 0
    runs_ahead: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("num_speculative_blocks", self.num_speculative_blocks)
        if len(self.shapes) != len(self.dtypes):
            raise InvalidArgumentError(
                f"dtypes: needs one element type per shape, got {len(self.dtypes)} for {len(self.shapes)} shapes"
            )
        for dtype in self.dtypes:
            dtype_size(dtype)
        for shape in self.shapes:
            for size in shape:
                integer("shapes", size, 1)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: all state tensors."""
        return sum(math.prod(shape) * dtype_size(dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """A decoder layer that reads the encoder's tokens; its blocks are never cached."""

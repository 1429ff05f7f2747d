"""The kinds of layers: the declaration of one layer's KV cache.

A *kind* gives the tokens and bytes of a block and, through its class, the earlier positions that a token reads. The
class names are those engine developers know (`FullAttentionSpec`, ...); the word *spec* elsewhere in this project
always means the specification.

This module stays uncompiled (frozen dataclasses keep pickling and copying); the core reads the fields once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

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
        is_recurrent: a block holds a state, and a token reads only the last one.
        reads_all: a token reads every earlier position, so that no block is given back before the request ends.
        reads_encoder: the blocks hold the encoder's tokens and not the request's.
    """

    is_recurrent: ClassVar[bool] = False
    reads_all: ClassVar[bool] = False
    reads_encoder: ClassVar[bool] = False

    block_size: int

    def __post_init__(self) -> None:
        integer("block_size", self.block_size, 1)

    def rule(self) -> object:
        """Return the rule of a kind of your own, a `blockwright.core.tables.window.WindowRule`; None otherwise."""
        return None

    @property
    def element_types(self) -> tuple[object, ...]:
        """Element types of the parts of a page."""
        return ()

    @property
    def num_speculative_blocks(self) -> int:
        """States of draft tokens; only `MambaSpec` has some."""
        return 0

    @property
    def runs_ahead(self) -> bool:
        """Whether steps may go beyond the known tokens; only `MambaSpec` says so."""
        return False

    @property
    def sink_len(self) -> int:
        """Leading positions that every token reads beside its window."""
        return 0

    @property
    def window(self) -> int | None:
        """Tokens of the window, the reading token included; None for other kinds."""

    @property
    def chunk(self) -> int | None:
        """Tokens of the chunk; None for other kinds."""

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer."""
        raise NotImplementedError


LATENT_TILE = 128
"""Elements of a latent that share one scale, as FlashMLA's kernels read them."""
SCALE_SIZE = 4
"""Bytes of a scale, a float32."""


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    """A layer that keeps one key and one value per token and head.

    Every kind of attention may store its tokens in any of these forms. They change the bytes of a page and no decision.

    Attributes:
        num_kv_heads: heads of keys and values.
        head_size: elements per head.
        dtype: element type, a name or a ``torch.dtype``.
        head_size_v: elements of a value, where they differ from a key's.
        kv_lora_rank: latent attention (MLA): the first elements of a token's only key are its value too, so no value is
            kept; the rest of the key is its rotary part. 0 otherwise. See `latent`.
        scales: what the numbers of a float8 layer are multiplied by: ``"tensor"`` or ``"head"``, one float32 for the
            keys and one for the values of a layer or of a head, beside the pages; ``"token"``, of each token and head,
            inside the page. None for none.
        kv_layout: the order in memory within a page: ``"NHD"``, token after token, or ``"HND"``, head after head.
    """

    num_kv_heads: int
    head_size: int
    dtype: object
    head_size_v: int | None = field(default=None, kw_only=True)
    kv_lora_rank: int = field(default=0, kw_only=True)
    scales: str | None = field(default=None, kw_only=True)
    kv_layout: str = field(default="NHD", kw_only=True)

    @classmethod
    def latent(
        cls, block_size: int, kv_lora_rank: int, qk_rope_head_dim: int, dtype: object, **kind: int | str | None
    ) -> Self:
        """Declare latent attention, vLLM's `MLAAttentionSpec`: DeepSeek, Kimi, GLM.

        >>> spec = FullAttentionSpec.latent(64, kv_lora_rank=512, qk_rope_head_dim=64, dtype="bfloat16")
        >>> spec.page_size_bytes == 64 * (512 + 64) * 2
        True
        >>> FullAttentionSpec.latent(64, 512, 64, "fp8", scales="token").token_bytes        # as FlashMLA has it
        656

        Args:
            block_size, dtype: as of the class.
            kv_lora_rank: elements of the latent.
            qk_rope_head_dim: elements of the rotary part.
            kind: further fields of the class, such as ``sliding_window``.
        """
        size = integer("kv_lora_rank", kv_lora_rank, 1) + integer("qk_rope_head_dim", qk_rope_head_dim)
        fields: dict[str, Any] = {"kv_lora_rank": kv_lora_rank, **kind}
        return cls(block_size, 1, size, dtype, **fields)

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("num_kv_heads", self.num_kv_heads, 1)
        integer("head_size", self.head_size, 1)
        is_small = dtype_size(self.dtype) == 1 and "int" not in str(self.dtype)
        integer("kv_lora_rank", self.kv_lora_rank, 0, self.head_size)
        if self.head_size_v is not None:
            integer("head_size_v", self.head_size_v, 1)
        if self.kv_lora_rank and (self.num_kv_heads != 1 or self.head_size_v is not None or self.scales == "head"):
            raise InvalidArgumentError(
                "kv_lora_rank: latent attention has one head of keys, and values of no size of their own; leave out "
                "head_size_v, and scale by tensor or by token"
            )
        if self.kv_layout not in ("NHD", "HND"):
            raise InvalidArgumentError(f"kv_layout: must be 'NHD' or 'HND', not {self.kv_layout!r}")
        if self.scales not in (None, "tensor", "head", "token"):
            raise InvalidArgumentError(f"scales: must be 'tensor', 'head', 'token' or None, not {self.scales!r}")
        if self.scales is not None and not is_small:
            raise InvalidArgumentError(f"scales: numbers of {self.dtype} need none; leave them out, or use 'fp8'")
        tile = 0 if self.scales != "token" else LATENT_TILE if self.kv_lora_rank else SCALE_SIZE
        scaled = self.kv_lora_rank or self.head_size + self.value_size
        if tile and (scaled % tile or (self.head_size - self.kv_lora_rank) % 2):
            raise InvalidArgumentError(
                f"scales: by token, {scaled} elements must be a multiple of {tile}, and a rotary part even; declare a "
                "larger head_size, or scale by tensor"
            )

    @property
    def value_size(self) -> int:
        """Elements of a value: of one head, or of the latent."""
        return self.kv_lora_rank or self.head_size_v or self.head_size

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes in a page, with its scales if they are inside."""
        size = dtype_size(self.dtype)
        if self.kv_lora_rank and self.scales == "token":  # the rotary part keeps 16 bits
            scales = SCALE_SIZE * (self.kv_lora_rank // LATENT_TILE)
            return self.kv_lora_rank * size + scales + 2 * (self.head_size - self.kv_lora_rank)
        if self.kv_lora_rank:
            return self.head_size * size
        scales = 2 * SCALE_SIZE if self.scales == "token" else 0
        return self.num_kv_heads * ((self.head_size + self.value_size) * size + scales)

    @property
    def element_types(self) -> tuple[object, ...]:
        """Element types of keys and values and, scaled by token, of a latent's rotary part and of the scales."""
        if self.scales != "token":
            return (self.dtype,)
        return (self.dtype, "bfloat16", "float32") if self.kv_lora_rank else (self.dtype, "float32")

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: keys and values, and scales of tokens."""
        return self.block_size * self.token_bytes


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """A layer in which the token at position q reads all positions before it."""

    reads_all: ClassVar[bool] = True


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

    @property
    def window(self) -> int:  # noqa: D102
        return self.sliding_window


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

    @property
    def chunk(self) -> int:  # noqa: D102
        return self.attention_chunk_size


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

    is_recurrent: ClassVar[bool] = True

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
    def element_types(self) -> tuple[object, ...]:
        """Element types of the states."""
        return self.dtypes

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block of one layer: all state tensors."""
        return sum(math.prod(shape) * dtype_size(dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True))


@dataclass(frozen=True)
class CrossAttentionSpec(AttentionSpec):
    """A decoder layer that reads the encoder's tokens; its blocks are never cached."""

    reads_encoder: ClassVar[bool] = True

"""The pages of one layer as keys and values: where the parts of a token lie, and how its numbers are stored.

| form | a token keeps | tensor of `KVCacheStorage.kv` |
|---|---|---|
| one size | keys and values | (num_blocks, 2, block_size, num_kv_heads, head_size) |
| `head_size_v` | each head's key, and behind it its value | (num_blocks, block_size, num_kv_heads, both sizes) |
| latent | the latent and its rotary part | (num_blocks, block_size, head_size) |
| latent, scales by token | float8 latent, float32 scale of each 128, 16-bit rotary part | (..., block_size, bytes) |

A page begins with these tokens. Behind them are the scales of ``scales="token"`` in the first two forms: float32
(2, block_size, num_kv_heads). With ``kv_layout="HND"`` the heads come before the tokens in memory, and a view has the
same shape with other strides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from blockwright.device.operands import FLOATS, SMALL_FLOATS, as_bytes, stored
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import (
    SCALE_SIZE,
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
    dtype_size,
)

_ALIASES = {"half": "float16", "float": "float32", "double": "float64"}


@dataclass(frozen=True, slots=True)
class KVPages:
    """Keys and values of a layer by block, in any form; `KVCacheStorage.pages` makes it, and the operators take it.

    Attributes:
        keys: (num_blocks, block_size, num_kv_heads, head_size), any strides; without `rope` where that is apart.
        values: (num_blocks, block_size, num_kv_heads, head_size_v); of latent attention a view of the keys.
        key_scales, value_scales: float32 (num_blocks, block_size, num_kv_heads, or tiles of a latent), what the numbers
            are multiplied by; one number may be at many places. None without scales.
        rope: (num_blocks, block_size, 1, qk_rope_head_dim), the rotary part of a latent with scales by token.
        is_latent: a token brings one vector.
        is_scaled_by_token: a write chooses the scales of its tokens; other scales are the engine's.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    rope: torch.Tensor | None = None
    is_latent: bool = False
    is_scaled_by_token: bool = False

    @property
    def num_blocks(self) -> int:
        return int(self.keys.shape[0])

    @property
    def block_size(self) -> int:
        return int(self.keys.shape[1])

    @property
    def num_kv_heads(self) -> int:
        return int(self.keys.shape[2])

    @property
    def head_size(self) -> int:
        return int(self.keys.shape[3]) + (0 if self.rope is None else int(self.rope.shape[3]))

    @property
    def value_size(self) -> int:
        return int(self.values.shape[3])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that a write changes, each element once."""
        parts = (self.keys, None if self.is_latent else self.values, self.rope)
        scales = (self.key_scales, None if self.is_latent else self.value_scales) if self.is_scaled_by_token else ()
        return tuple(part for part in (*parts, *scales) if part is not None)

    def written(self, keys: torch.Tensor, values: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the tensors that the keys and values of some tokens go to, and the numbers as they are kept there."""
        if self.rope is not None:
            keys, rope = keys.split([int(self.keys.shape[3]), int(self.rope.shape[3])], dim=-1)
            yield self.rope, stored(rope, self.rope.dtype)
        given = [(self.keys, self.key_scales, keys)]
        given += [] if values is None else [(self.values, self.value_scales, values)]
        for kept, scales, new in given:
            if scales is None:
                yield kept, stored(new, kept.dtype)
            elif self.is_scaled_by_token:
                tiles = new.float().flatten(1).unflatten(1, (scales.shape[2], -1))
                chosen = _scales_of(tiles, kept.dtype)
                yield scales, chosen
                yield kept, stored(tiles / chosen[..., None], kept.dtype).view(-1, *kept.shape[2:])
            else:
                yield kept, stored(new.float() / scales[0, 0, :, None], kept.dtype)

    def read(self, blocks: torch.Tensor, places: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of these slots, in `dtype`: the shape of `blocks`, (num_kv_heads, size of each)."""
        keys = _loaded(self.keys, self.key_scales, blocks, places, dtype)
        if self.is_latent:
            values = keys[..., : self.value_size]
        else:
            values = _loaded(self.values, self.value_scales, blocks, places, dtype)
        if self.rope is not None:
            keys = torch.cat([keys, _loaded(self.rope, None, blocks, places, dtype)], dim=-1)
        return keys, values


def _scales_of(tiles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the scale of each tile: its largest number becomes the dtype's largest; 1 for zeros and for NaN."""
    # An infinite scale would make every other number of the tile 0.
    largest = tiles.abs().amax(dim=-1).clamp(max=torch.finfo(torch.float32).max)
    scales = largest / torch.finfo(dtype).max
    return torch.where(scales > 0, scales, torch.ones_like(scales))


def _loaded(
    kept: torch.Tensor, scales: torch.Tensor | None, blocks: torch.Tensor, places: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    found = as_bytes(kept)[blocks, places].view(kept.dtype)
    if scales is None:
        return found.to(dtype)
    tiles = found.float().flatten(-2).unflatten(-1, (scales.shape[2], -1))
    scaled: torch.Tensor = tiles * scales[blocks, places][..., None]
    return scaled.view(found.shape).to(dtype)


def pages_of(cache: object) -> KVPages:
    """Return the keys and values of a cache: of one tensor of the first form, or of the pages of any.

    Raises:
        InvalidArgumentError: another shape than (num_blocks, 2, block_size, num_kv_heads, head_size), or a dtype that
            is no floating-point one.
    """
    if isinstance(cache, KVPages):
        return cache
    if not isinstance(cache, torch.Tensor) or cache.dim() != 5 or cache.shape[1] != 2:
        shown = f"shape {tuple(cache.shape)}" if isinstance(cache, torch.Tensor) else f"type {type(cache).__name__}"
        raise InvalidArgumentError(
            f"cache has {shown}; pass (num_blocks, 2, block_size, num_kv_heads, head_size), or storage.pages(layer)"
        )
    if cache.dtype not in FLOATS + SMALL_FLOATS:
        raise InvalidArgumentError(f"cache is {cache.dtype}; keys and values are kept as floating-point numbers")
    return KVPages(cache[:, 0], cache[:, 1])


def require_spec(spec: object, pages: KVPages) -> AttentionSpec:
    """Return `spec` if it declares an attention layer with the blocks of `pages`."""
    if not isinstance(spec, FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | CrossAttentionSpec):
        raise InvalidArgumentError(
            f"spec is a {type(spec).__name__}; pass a full, sliding window, chunked local or cross attention's"
        )
    found = (pages.block_size, pages.num_kv_heads, pages.head_size, pages.value_size)
    declared = (spec.block_size, spec.num_kv_heads, spec.head_size, spec.value_size)
    if found != declared:
        raise InvalidArgumentError(
            f"cache has blocks of {found} and spec declares {declared} (block_size, num_kv_heads, head_size, size of "
            "a value); pass the cache and the spec of one layer"
        )
    name = str(spec.dtype).removeprefix("torch.")
    name, dtype = _ALIASES.get(name, name), pages.keys.dtype
    # "fp8" names no one form, so that a cache in any float of one byte is meant.
    if dtype not in SMALL_FLOATS if name == "fp8" else dtype != getattr(torch, name, None):
        raise InvalidArgumentError(
            f"cache is {dtype} and spec declares {spec.dtype}; pass the cache and the spec of one layer"
        )
    if (spec.scales is None) != (pages.key_scales is None):
        raise InvalidArgumentError(f"spec declares scales={spec.scales!r}; pass storage.pages(layer) as the cache")
    return spec


def scales_of(pages: torch.Tensor, spec: AttentionSpec) -> torch.Tensor | None:
    """Return the scales of a layer: those inside its pages, ones beside them, or None where it has none."""
    size, heads, rank = spec.block_size, spec.num_kv_heads, spec.kv_lora_rank
    if spec.scales is None:
        return None
    if spec.scales != "token":
        shape = (1,) if rank else (2,) if spec.scales == "tensor" else (2, heads)
        return torch.ones(shape, dtype=torch.float32, device=pages.device)
    if rank:
        first, last = rank * dtype_size(spec.dtype), -2 * (spec.head_size - rank) or None
        return cut(pages, 0, (size, spec.token_bytes), torch.uint8)[..., first:last].view(torch.float32)
    behind = size * (spec.token_bytes - 2 * SCALE_SIZE * heads)
    return _by_layout(pages[:, behind:], spec, (2,), 1, torch.float32)[..., 0]


def kv_view(pages: torch.Tensor, spec: AttentionSpec, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor of a layer's tokens that kernels take, by the bytes of its pages (num_blocks, page size)."""
    size = spec.block_size
    if spec.kv_lora_rank and spec.scales == "token":
        return cut(pages, 0, (size, spec.token_bytes), torch.uint8)
    if spec.kv_lora_rank:
        return cut(pages, 0, (size, spec.head_size), dtype)
    if spec.head_size_v is not None:
        return _by_layout(pages, spec, (), spec.head_size + spec.value_size, dtype)
    return _by_layout(pages, spec, (2,), spec.head_size, dtype)


def pages_in(pages: torch.Tensor, spec: AttentionSpec, dtype: torch.dtype, scales: torch.Tensor | None) -> KVPages:
    """Return the parts of a layer's tokens, by the bytes of its pages and its scales (`scales_of`)."""
    kv, rank, by_token = kv_view(pages, spec, dtype), spec.kv_lora_rank, spec.scales == "token"
    shape = (kv.shape[0], spec.block_size, spec.num_kv_heads)
    if rank and by_token:
        keys = kv[..., : rank * dtype_size(spec.dtype)].view(dtype)[:, :, None]
        # The rotary part comes last in a token's bytes; it has no scales, hence two bytes an element.
        rope = kv[..., kv.shape[2] - 2 * (spec.head_size - rank) :].view(torch.bfloat16)[:, :, None]
        return KVPages(keys, keys, scales, scales, rope, True, True)
    if rank:
        one = None if scales is None else scales.expand(shape)
        return KVPages(kv[:, :, None], kv[:, :, None, :rank], one, one, is_latent=True)
    if spec.head_size_v is None:
        keys, values = kv[:, 0], kv[:, 1]
    else:
        keys, values = kv[..., : spec.head_size], kv[..., spec.head_size :]
    if scales is None:
        return KVPages(keys, values)
    if by_token:
        return KVPages(keys, values, scales[:, 0], scales[:, 1], is_scaled_by_token=True)
    return KVPages(keys, values, scales[0].expand(shape), scales[1].expand(shape))


def _by_layout(
    pages: torch.Tensor, spec: AttentionSpec, parts: tuple[int, ...], width: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return (num_blocks, *parts, block_size, num_kv_heads, width), in memory as the layout of the spec orders it."""
    if spec.kv_layout == "HND":
        return cut(pages, 0, (*parts, spec.num_kv_heads, spec.block_size, width), dtype).transpose(-3, -2)
    return cut(pages, 0, (*parts, spec.block_size, spec.num_kv_heads, width), dtype)


def cut(pages: torch.Tensor, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    own = pages[:, offset : offset + math.prod(shape) * dtype.itemsize]
    return own.view(dtype).view(-1, *shape)

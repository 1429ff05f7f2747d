"""The requirements of a step's operators on their arguments, and the positions that a token of each kind reads.

Two sorts of checks. Shapes, dtypes and devices are known to the host and always checked. Values (slots, block ids,
lengths) are checked where they lie in the host's memory; on a GPU the host would have to wait for them, so there they
are checked only on request (`check=True`).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch

from blockwright.arguments import integer
from blockwright.device.layout import WORDS, addresses, is_injective
from blockwright.errors import InvalidArgumentError
from blockwright.kinds import AttentionSpec

Size: TypeAlias = int | str
"""A size that must be, or a name that stands for whatever it is."""

IDS = (torch.int32, torch.int64)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SMALL_FLOATS = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
)


def require_tensor(
    name: str, value: object, shape: tuple[Size, ...], dtypes: tuple[torch.dtype, ...], device: torch.device
) -> torch.Tensor:
    """Return `value` if it is a tensor of that shape, of one of these dtypes, on that device."""
    if not isinstance(value, torch.Tensor):
        raise InvalidArgumentError(f"{name} is a {type(value).__name__}; pass a tensor")
    if value.dim() != len(shape) or any(
        isinstance(size, int) and size != found for size, found in zip(shape, value.shape, strict=True)
    ):
        wanted = ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "")
        raise InvalidArgumentError(f"{name} has shape {tuple(value.shape)}; pass ({wanted})")
    if value.dtype not in dtypes:
        raise InvalidArgumentError(f"{name} is {value.dtype}; pass {' or '.join(str(dtype) for dtype in dtypes)}")
    if value.device != device:
        raise InvalidArgumentError(f"{name} is on {value.device}, the cache on {device}; pass all on one device")
    return value


def require_bound(name: str, value: int | None) -> None:
    if value is not None:
        integer(name, value)


def require_scale(value: float) -> float:
    if not math.isfinite(value):
        raise InvalidArgumentError(f"scale={value!r}: pass a finite number, or None for head_size ** -0.5")
    return value


def require_apart(name: str, out: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse an `out` that meets (interleaved views, too) the argument `name`, which is read after `out` is written."""
    if out.device.type == "meta" or not out.numel() or not other.numel():
        return
    (start, stop), (other_start, other_stop) = addresses(out), addresses(other)
    if start < other_stop and other_start < stop:
        raise InvalidArgumentError(f"out and {name} share memory; pass other memory")


def require_written(name: str, tensor: torch.Tensor) -> None:
    """Check that no two elements of a tensor that is to be written share memory, as those of an expanded tensor do."""
    if tensor.numel() and not is_injective(list(tensor.shape), list(tensor.stride())):
        raise InvalidArgumentError(
            f"{name} has elements that share memory (shape {tuple(tensor.shape)}, strides {tensor.stride()}); "
            "pass memory for each of them"
        )


def on_host(tensor: torch.Tensor, check: bool) -> bool:
    """Return True if the values of `tensor` are to be checked: they lie on the host, or `check` was asked for."""
    return check or tensor.device.type == "cpu"


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same elements as integers of their width: every operation moves them, bit by bit, float8 or not."""
    return tensor.view(WORDS[tensor.element_size()])


def stored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `tensor` as a cache of `dtype` keeps it: rounded to nearest; float8 saturates instead of overflowing.

    NaN stays NaN. An infinity becomes float8's largest number.
    """
    if tensor.dtype == dtype:
        return tensor
    if dtype in SMALL_FLOATS:
        limit = torch.finfo(dtype).max
        tensor = tensor.float() if tensor.dtype in SMALL_FLOATS else tensor  # these have no clamp of their own
        tensor = tensor.clamp(-limit, limit)
    return tensor.to(dtype)


def first_read(spec: AttentionSpec, positions: torch.Tensor) -> torch.Tensor:
    """Return the first position, except sinks, that the token at each of `positions` reads; it reads on up to itself.

    A token of a cross attention reads all of the encoder's, from 0.
    """
    if spec.window is not None:
        return (positions - (spec.window - 1)).clamp(min=0)
    if spec.chunk is not None:
        return positions - positions % spec.chunk
    return torch.zeros_like(positions)

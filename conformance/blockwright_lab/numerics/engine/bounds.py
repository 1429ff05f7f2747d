"""How far logits over paged storage may be from those of the dense recomputation, which runs in double precision.

Both sides have the same rounded weights, so what is bounded is the rounding of what is computed and of what is stored.
Measured on the model with nine layers of every kind, requests of 40 tokens in steps of 40, 7 and 1 tokens, six seeds,
logits of up to 8; the bounds are about four times that:

    computed in   keys and values in   largest   largest mean of a request
    float64       float64              2e-14     2e-15
    float32       float32              2e-5      1e-6
    float16       float16              4e-2      4e-3
    bfloat16      bfloat16             0.26      3e-2
    float32       bfloat16             8e-2      7e-3
    float32       float8_e4m3fn        1.1       0.12

For comparison: one block of four tokens that are another request's changes the logits of the four tokens after it by
0.17 to 1.6 in the mean and 1 to 10 at most (one layer of a kind that reads it, or all layers). So the bounds of the
mean tell a wrong block from rounding, down to bfloat16 in every case; those of the largest do from float16 upwards.
"""

from dataclasses import dataclass

from blockwright.errors import InvalidArgumentError

from .weights import ModelConfig


@dataclass(frozen=True)
class Bound:
    """Of the absolute differences of logits: the largest, and the mean over all that one request computes."""

    largest: float
    mean: float


_BOUNDS = {
    ("float64", "float64"): Bound(1e-11, 1e-12),
    ("float32", "float32"): Bound(1e-4, 1e-5),
    ("float16", "float16"): Bound(0.15, 0.016),
    ("bfloat16", "bfloat16"): Bound(1.0, 0.12),
    ("float32", "bfloat16"): Bound(0.32, 0.03),
    ("float32", "float8_e4m3fn"): Bound(4.0, 0.4),
}


def bound(config: ModelConfig) -> Bound:
    """Give the bounds of a model, by its element types.

    Raises:
        InvalidArgumentError: nobody has measured this combination of element types.
    """
    pair = config.dtype, config.cache_dtype or config.dtype
    if pair not in _BOUNDS:
        raise InvalidArgumentError(f"config: no bound is stated for {pair}; use one of {', '.join(map(str, _BOUNDS))}")
    return _BOUNDS[pair]

"""Packed vectors of integers: made, given room and cut without an object per number."""

from __future__ import annotations

from typing import Final

from librt.vecs import append, extend, pop, vec
from mypy_extensions import i32, i64

# Zeros are copied from here, several times faster than they are written; never written to. Enough for a long table: a
# slice writes memory once, while a longer vector is cleared as it is made, and then copied to.
_ZEROS32: Final = vec[i32]([0] * 32768)
_ZEROS64: Final = vec[i64]([0] * 4096)


def zeros32(count: i64) -> vec[i32]:
    chunk = _ZEROS32
    if count <= i64(len(chunk)):
        return chunk[:count]
    try:
        made = vec[i32](capacity=count)
    except SystemError as error:  # by librt, uncompiled, where memory is short
        raise MemoryError(f"no memory for {count} numbers") from error
    while i64(len(made)) < count:
        left = count - i64(len(made))
        made = extend(made, chunk if left >= i64(len(chunk)) else chunk[:left])
    return made


def zeros64(count: i64) -> vec[i64]:
    chunk = _ZEROS64
    if count <= i64(len(chunk)):
        return chunk[:count]
    try:
        made = vec[i64](capacity=count)
    except SystemError as error:  # by librt, uncompiled, where memory is short
        raise MemoryError(f"no memory for {count} numbers") from error
    while i64(len(made)) < count:
        left = count - i64(len(made))
        made = extend(made, chunk if left >= i64(len(chunk)) else chunk[:left])
    return made


def with_zeros(numbers: vec[i32], count: i64) -> vec[i32]:
    # Most tables grow by one entry, for which an intermediate vector would take longer than all the rest.
    if count == 1:
        return append(numbers, 0)
    return extend(numbers, _ZEROS32[:count] if count <= i64(len(_ZEROS32)) else zeros32(count))


def with_room(numbers: vec[i32], count: i64) -> vec[i32]:
    """Return the same numbers with room behind them: that many can be appended without taking memory. O(count)."""
    if len(numbers) == 0:
        return vec[i32](capacity=count)
    i: i64 = 0
    while i < count:
        numbers = append(numbers, 0)
        i += 1
    return cut_to(numbers, i64(len(numbers)) - count)


def cut_to(numbers: vec[i32], size: i64) -> vec[i32]:
    """Return the first numbers, in the same memory. O(numbers cut off)."""
    while i64(len(numbers)) > size:
        numbers, _ = pop(numbers)
    return numbers

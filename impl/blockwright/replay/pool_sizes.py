"""Read a list of pool sizes as people write it: ``1000,5000``, ``1000:20000:1000`` or ``1000:64000:x2``."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from typing import Final

MAX_SIZES: Final = 1000
MAX_BLOCKS: Final = (1 << 30) - 1
"""Usable blocks of the largest pool that the manager makes."""


def parse_pool_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in order, each once; both ends of a range belong to it.

    Raises:
        ArgumentTypeError: not of these forms, a size below 1, or more than 1,000 sizes.
    """
    sizes: set[int] = set()
    for part in text.split(","):
        for size in _sizes(part):
            sizes.add(size)
            if len(sizes) > MAX_SIZES:
                raise ArgumentTypeError(f"names more than {MAX_SIZES} sizes; take a larger step")
    return tuple(sorted(sizes))


def _sizes(part: str) -> Iterator[int]:
    numbers = part.split(":")
    if len(numbers) == 1:
        yield whole_number(numbers[0], 1)
        return
    if len(numbers) != 3:
        raise ArgumentTypeError(f"needs N, FROM:TO:STEP or FROM:TO:xFACTOR, not {part!r}")
    size, last = whole_number(numbers[0], 1), whole_number(numbers[1], 1)
    factor = whole_number(numbers[2][1:], 2) if numbers[2].startswith("x") else 0
    step = 0 if factor else whole_number(numbers[2], 1)
    if size > last:
        raise ArgumentTypeError(f"the range {part!r} ends before it begins")
    while size < last:
        yield size
        size = size * factor if factor else size + step
    yield last


def whole_number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= MAX_BLOCKS):
        raise ArgumentTypeError(f"must be a whole number from {least} to {MAX_BLOCKS}, not {text!r}")
    return int(text)

"""Read lists of sizes as people write them: ``1000,5000``, ``1..8``, ``1000:64000:x2``, or ``0,64GiB`` of memory."""

from __future__ import annotations

import re
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
    numbers = part.replace("..", ":", 1).split(":") + ["1"] * (":" not in part and ".." in part)
    if len(numbers) == 1:
        yield whole_number(numbers[0], 1)
        return
    if len(numbers) != 3:
        raise ArgumentTypeError(f"needs N, FROM..TO, FROM:TO:STEP or FROM:TO:xFACTOR, not {part!r}")
    size, last = whole_number(numbers[0], 1), whole_number(numbers[1], 1)
    factor = whole_number(numbers[2][1:], 2) if numbers[2].startswith("x") else 0
    step = 0 if factor else whole_number(numbers[2], 1)
    if size > last:
        raise ArgumentTypeError(f"the range {part!r} ends before it begins")
    # The last size is yielded even where no step meets it: people ask for both ends.
    while size < last:
        yield size
        size = size * factor if factor else size + step
    yield last


def parse_engines(text: str) -> tuple[tuple[int, int], ...]:
    """Return numbers of engines, and how many of each compute prompts alone: ``4`` is (4, 0), and ``3+1`` is (4, 1).

    Raises:
        ArgumentTypeError: as `parse_pool_sizes`.
    """
    found: set[tuple[int, int]] = set()
    for part in text.split(","):
        decode, _, prefill = part.partition("+")
        apart = whole_number(prefill, 1) if "+" in part else 0
        found.update((size + apart, apart) for size in parse_pool_sizes(decode))
    return tuple(sorted(found))


def whole_number(text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= MAX_BLOCKS):
        raise ArgumentTypeError(f"must be a whole number from {least} to {MAX_BLOCKS}, not {text!r}")
    return int(text)


_MEMORY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?([KMGT]i?)B")
_POWERS: Final = "KMGT"


def parse_memory(text: str) -> dict[str, int]:
    """Return the bytes of each size of memory, by how it is written.

    Raises:
        ArgumentTypeError: a size is neither 0 nor a number with a unit, or there are more than 1,000.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _MEMORY.fullmatch(part.strip())
        if match is None and part.strip() != "0":
            raise ArgumentTypeError(f"needs sizes with a unit, as 64GiB, or 0, not {part!r}")
        step = 1024 if match and "i" in match[2] else 1000
        found[part.strip()] = int(float(match[1]) * step ** (_POWERS.index(match[2][0]) + 1)) if match else 0
    if len(found) > MAX_SIZES:
        raise ArgumentTypeError(f"names more than {MAX_SIZES} sizes")
    return found

"""The self-check of a pool: each law recomputed from plain facts, both sides shown where they differ.

The ids are those of the specification's list of laws. The pool gathers the facts; nothing here trusts a counter that it
could count itself. The laws of the tables are in `tables`.
"""

from __future__ import annotations

from mypy_extensions import i64

from blockwright.core.pool.index import PrefixIndex
from blockwright.errors import InvariantError


def demand(law: str, what: str, expected: object, actual: object) -> None:
    """Raise `InvariantError` unless both sides are equal."""
    if expected != actual:
        raise InvariantError(law, what, expected, actual)


def demand_each(facts: list[tuple[str, str, object, object]]) -> None:
    """Raise `InvariantError` for the first fact (law, subject, expected, actual) with different sides."""
    for law, what, expected, actual in facts:
        demand(law, what, expected, actual)


def check_queue(num_free: int, queue: list[int], backwards: list[int], ref: list[int], keyed: list[bool]) -> None:
    """Check the free queue, read in both directions, against the counters and the published blocks.

    Raises:
        InvariantError: REF-1, QUEUE-1 or NULL-1 is broken.
    """
    demand("QUEUE-1", "blocks in the free queue", num_free, len(queue))
    demand("QUEUE-1", "the queue read backwards", queue[::-1], backwards)
    free = [block for block in range(1, len(ref)) if ref[block] == 0]
    demand("REF-1", "the free blocks are those without holder", free, sorted(queue))
    flags = [keyed[block] for block in queue]
    demand("QUEUE-1", "published blocks come last in the queue", sorted(flags), flags)
    demand("NULL-1", "holders of the null block", 0, ref[0])
    demand("NULL-1", "the null block is published", False, keyed[0])


def check_index(index: PrefixIndex, keyed: list[bool]) -> list[int]:
    """Check that the index's slots and rings hold each published block and part once, under its own key.

    Return the numbers of all parts.

    Raises:
        InvariantError: KEY-1 is broken.
    """
    ringed: list[int] = []
    for oldest, found, ring, is_sound in index.rings():
        demand("KEY-1", f"the block found under the key of block {oldest}", oldest, found)
        demand("KEY-1", f"the blocks {ring} carry their ring's key", True, is_sound)
        ringed += ring
    numbers = check_parts(index, keyed)
    published = [block for block in range(len(keyed)) if keyed[block]]
    whole = [block for block in published if not index.is_part(i64(block))]
    demand("KEY-1", "the published blocks and parts are those in the index", whole + numbers, sorted(ringed))
    demand("KEY-1", "the number of published blocks", len(published), int(index.num_keyed))
    return numbers


def check_parts(index: PrefixIndex, keyed: list[bool]) -> list[int]:
    """Check that each part is one of a published block, once for each length; return the numbers of all, ascending.

    Raises:
        InvariantError: KEY-1 is broken.
    """
    numbers: list[int] = []
    for block in range(len(keyed)):
        parts = index.parts_of(i64(block))
        numbers += parts
        owners = [int(index.block_of(i64(number))) for number in parts]
        units = [int(index.units_of(i64(number))) for number in parts]
        demand("KEY-1", f"the blocks of the parts {parts}", [block] * len(parts), owners)
        demand("KEY-1", f"lengths of the parts of block {block}", sorted(set(units)), sorted(units))
        demand("KEY-1", f"block {block} has parts and no key", False, bool(parts) and not keyed[block])
        demand("KEY-1", f"block {block} has neither key nor parts", False, index.is_part(i64(block)) and not parts)
    demand("KEY-1", "the number of parts", len(numbers), int(index.num_parts))
    return sorted(numbers)

"""The self-check of a pool: each law recomputed from plain facts, both sides shown where they differ.

The ids are those of the specification's list of laws. The pool gathers the facts; nothing here trusts a counter that it
could count itself. The laws of the tables are in `tables`.
"""

from __future__ import annotations

from blockwright.core.pool.index import PrefixIndex
from blockwright.core.pool.order.passing import PassingBlocks
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


def check_index(index: PrefixIndex, keyed: list[bool]) -> None:
    """Check that the index's slots and rings hold each published block once, under its own key.

    Raises:
        InvariantError: KEY-1 is broken.
    """
    ringed: list[int] = []
    for oldest, found, ring, is_sound in index.rings():
        demand("KEY-1", f"the block found under the key of block {oldest}", oldest, found)
        demand("KEY-1", f"the blocks {ring} carry their ring's key", True, is_sound)
        ringed += ring
    published = [block for block in range(len(keyed)) if keyed[block]]
    demand("KEY-1", "the published blocks are those in the index", published, sorted(ringed))
    demand("KEY-1", "the number of published blocks", len(published), int(index.num_keyed))


def check_passing(passing: PassingBlocks, queue: list[int], keyed: list[bool]) -> None:
    """Check where the queue puts each candidate: passing ones first, and among the others the last ones, spared.

    Raises:
        InvariantError: POLICY-4 is broken.
    """
    num_bare = [keyed[block] for block in queue].count(False)
    if num_bare > 0:
        demand("POLICY-4", "the last block without content", queue[num_bare - 1], int(passing.last_bare))
    last = int(passing.last)
    demand("POLICY-4", f"the last passing block {last} is a candidate", True, last == 0 or last in queue[num_bare:])
    stop = queue.index(last) + 1 if last != 0 else num_bare
    others = queue[stop:]
    spared = passing.spared()
    demand("POLICY-4", "spared blocks, in the order of the queue", [b for b in others if passing.is_spared(b)], spared)
    noted = [block for block in queue if passing.is_noted(block)]
    demand("POLICY-4", "passing candidates, in the order of the queue", queue[num_bare:stop] + spared, noted)
    demand("POLICY-4", "the number of spared blocks", min(len(spared), int(passing.spares)), int(passing.num_spared))

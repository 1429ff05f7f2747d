"""Part one, chapter 34: blocks that are held from outside, by a connector or by the engine itself.

A connector holds blocks that it still reads or writes, and an engine may take blocks for other uses. Such a hold
keeps a block from being taken, and does nothing else: it is no entry of a table, so that a request goes on writing to
its own block. Whoever holds from outside lets go of those holds only, never of what a request holds (OUTSIDE-1).

An engine may count a lookup of a request that waits as a use of its hit, which is held, and let go of at once (USE-1).
"""

from collections import Counter
from dataclasses import replace

from ..chapters import order_of
from ..choices import Choice, legal_taking
from ..effects import adopt, enqueue, take_blocks
from ..facts import key
from ..hits import found
from ..lru import LRU
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..page import pins
from ..seam import note
from ..state import NULL, Hit, State, Table, Waiting


@transition
def hold(state: State, blocks: Table) -> Outcome:
    """Hold blocks once more, each as often as it is named: ``touch``. Null blocks are passed over."""
    # REFUSE
    if any(block in state.queue and key(state, block) is None for block in blocks):
        return Refusal(Reason.NOTHING_TO_HOLD)
    # EFFECT
    held = tuple(block for block in blocks if block != NULL)
    free = frozenset(held) & frozenset(state.queue)
    after = adopt(state, (held,), pins("hold", "outside", held))
    return Done(replace(after, pins=tuple(sorted((*state.pins, *held)))), demand=len(free))
    # SAME: keys, contents, requests.


@transition
def take(state: State, count: int, choice: Choice) -> Outcome:
    """Take free blocks from outside, for no tenant: ``get_new_blocks``."""
    # REFUSE
    if count > len(state.queue):
        return Refusal(Reason.NO_FREE_BLOCKS, count - len(state.queue))
    # CHOOSE
    taken = choice.take(order_of(state, None, count), count)
    if not legal_taking(state.queue, count, taken):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    after = take_blocks(state, taken, pins("take", "outside", taken))
    return Done(replace(after, pins=tuple(sorted((*state.pins, *taken)))), new=(taken,), demand=count)
    # SAME: requests; keys of blocks that were not taken.


@transition
def let_go(state: State, blocks: Table) -> Outcome:
    """Let go of holds from outside, in this order, one for each time a block is named: ``free_blocks`` (OUTSIDE-1)."""
    # REFUSE
    left, gone = Counter(state.pins), Counter(block for block in blocks if block != NULL)
    if not gone <= left:
        return Refusal(Reason.NOT_OUTSIDE)
    # EFFECT
    last = tuple(block for at, block in enumerate(blocks) if block not in blocks[at + 1 :])
    drops = pins("drop", "outside", gone.elements())
    return Done(enqueue(note(replace(state, pins=tuple(sorted((left - gone).elements()))), drops), last))
    # SAME: keys and contents of published blocks, requests.


def used(state: State, hit: Hit) -> Outcome:
    """Hold the blocks of a hit that was looked up, and let go of them, the last of each group first: ``touch``."""
    held = hold(state, tuple(block for table in hit.tables for block in table))
    back = tuple(block for table in hit.tables for block in reversed(table) if block != NULL)
    gone = let_go(held.state, back) if isinstance(held, Done) else held
    return replace(gone, steps=held.steps + gone.steps) if isinstance(held, Done) and isinstance(gone, Done) else gone


def law_use_reorders_alone(state: State) -> bool:
    """USE-1: that a hit is used changes the order of eviction, and nothing else."""
    return all(
        isinstance(outcome, Done) and replace(outcome.state, queue=state.queue, memory=state.memory) == state
        for request in state.requests
        if isinstance(request, Waiting)
        for outcome in (used(state, found(state, request.prefix, LRU)),)
    )


def law_outside_changes_alone(before: State, done: Done) -> bool:
    """OUTSIDE-1: what is held from outside changes alone, and a step gives no request a block that is held there."""
    after = done.state
    rest = (before.requests, before.flights, before.batches, before.copies, before.due)
    kept = rest == (after.requests, after.flights, after.batches, after.copies, after.due)
    given = {block for table in done.new for block in table} & set(before.pins)
    return not given - {NULL} and (kept or sorted(before.pins) == sorted(after.pins))

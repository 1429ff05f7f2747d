"""Part one, chapter 45: an order of eviction that an engine brings: what it is told.

Blocks without content go first. Which candidate goes after them is the order's own statement, and a choice like any
other (chapter `choices`): no table, no hit and no plan depends on it, and every law of choices holds. It is asked for
one candidate at a time, and must return one of those that there are.

All that an order knows it is told as it happens. A block is *released* to it when it becomes a candidate, and *taken*
from it when it is one no more: because it was chosen, because somebody holds it again, or because its content was
forgotten. A *hit* is a block that a newcomer adopts from its lookup, whether it was free or held. A lookup that nobody
was admitted on is none, nor is a fork, nor what is held from outside: a connector's holds make nothing popular.
"""

from typing import NamedTuple

from .facts import key
from .outcomes import Done
from .state import NULL, State, Table
from .told import hits


class Told(NamedTuple):
    """What an order was told.

    The `candidates` are the blocks that were released to it and not taken from it since, in the order of their release;
    `hits` are those of the last call.
    """

    candidates: Table
    hits: Table


def law_order_knows_candidates(state: State, told: Told) -> bool:
    """ORDER-1: what was released to an order and not taken from it are the candidates, as they were released."""
    return told.candidates == tuple(block for block in state.queue if key(state, block) is not None)


def law_order_hears_of_hits(happened: tuple[Done, ...], told: Told) -> bool:
    """ORDER-2: an order hears of each block that a newcomer adopts from its lookup, once, and of no other hit."""
    return told.hits == tuple(block for done in happened for block in hits(done) if block != NULL)

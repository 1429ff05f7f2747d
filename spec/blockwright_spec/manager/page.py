"""Part one, chapter 1: what a transition does on the page.

Every transition is a sequence of steps of the block machine (chapter `block_machine`). It notes them as it makes them,
in `State.steps`, and its outcome carries them (`Done.steps`). So whoever wants to know what happened listens to them:
what is evicted, counted, copied or hit follows from the steps (chapter `told`), and no transition reports it apart.

The tables of a request have the names `(slot, group)`, and ``("states", slot, group)`` for states beside them. Other
holders have a place for each block: ``("batches", block)``, ``("copies", block)`` and ``("outside", block)``.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from ..block_machine import NULL, Place

Tables = tuple[tuple[int, ...], ...]


class Act(NamedTuple):
    """A step of the page: its verb, the block, the place, and the content that is written, published or forgotten.

    `counts` are the tokens that a table goes on to: those that are done, and those under way.
    """

    verb: str
    block: int = NULL
    place: Place = ("", 0)
    content: Hashable = None
    counts: tuple[int, int] = (0, 0)


Acts = tuple[Act, ...]


def tables_of(slot: int, count: int) -> tuple[Hashable, ...]:
    """Return the names of a request's tables, one per group."""
    return tuple((slot, at) for at in range(count))


def states_of(slot: int, count: int) -> tuple[Hashable, ...]:
    """Return the names of what holds a request's states beside its tables, one per group."""
    return tuple(("states", slot, at) for at in range(count))


def acts(verb: str, names: tuple[Hashable, ...], tables: Tables, after: Tables = ()) -> Acts:
    """Return a step for each entry of some tables, or of what comes in them `after` others: "null" where it is null."""
    return tuple(
        Act(verb if block != NULL or verb == "drop" else "null", block, (name, first + entry))
        for name, table, first in zip(names, tables, map(len, after or ((),) * len(tables)), strict=True)
        for entry, block in enumerate(table)
    )


def pins(verb: str, name: str, blocks: Iterable[int]) -> Acts:
    """Return a step for each of some blocks, with a holder that has no table."""
    return tuple(Act(verb, block, (name, block)) for block in blocks)


def nulls(slot: int, tables: Tables, gone: Tables) -> Acts:
    """Return a step for each entry of a request's tables that becomes null."""
    dead = ((at, entry) for at, dying in enumerate(gone) for entry in dying)
    return tuple(Act("null", tables[at][entry], ((slot, at), entry)) for at, entry in dead)


def exchanges(slot: int, before: Tables, after: Tables) -> Acts:
    """Return the steps that make other tables of a request's: entries with another block, and entries cut off."""
    return tuple(
        Act(verb, block, ((slot, at), entry))
        for at, (old, new) in enumerate(zip(before, after, strict=True))
        for entry, was in enumerate(old)
        if new[entry : entry + 1] != (was,)
        for verb, block in (("drop", was), *(("hold", now) for now in new[entry : entry + 1]))
    )

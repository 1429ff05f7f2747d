"""What allocators with block tables show of their state, in the specification's terms."""

from collections.abc import Sequence
from typing import NamedTuple

from blockwright_spec.block_tables.state import Pair
from blockwright_spec.reads import Prefix


class TableShown(NamedTuple):
    """A table: the tokens in its blocks but null ones, its block ids, and how many tokens were written and computed."""

    tokens: tuple[int, ...]
    entries: tuple[int, ...]
    full_slots: int
    computed: int
    found: int | None
    """Tokens that were computed already when the table was allocated; None once all its tokens are."""


class PagedObservation(NamedTuple):
    """The whole state of the allocators and tables in the specification's terms; per block by absolute id."""

    tables: tuple[TableShown | None, ...]
    free: frozenset[int]
    references: tuple[int, ...]
    """Entries and pending copies that hold each block; the null block is held once."""
    null: int | None
    copies: tuple[Pair, ...]
    keys: tuple[Prefix | None, ...]
    fresh: frozenset[int]
    """What is found, and not known to be computed."""
    times: tuple[int, ...]
    """Ranks of the times of access; 0 for none."""


def ranked(times: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of times, 0 for no access."""
    ranks = {time: rank for rank, time in enumerate(sorted({0, *times}))}
    return tuple([ranks[time] for time in times])

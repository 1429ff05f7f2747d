"""What allocators with block tables show of their state, in the specification's terms."""

from collections.abc import Sequence
from typing import NamedTuple

from blockwright_spec.block_tables.state import Pair
from blockwright_spec.reads import Prefix


class TableShown(NamedTuple):
    """A table: the tokens in its blocks but null ones, its block ids, and how many tokens were written."""

    tokens: tuple[int, ...]
    entries: tuple[int, ...]
    full_slots: int
    computed: tuple[int, int | None] | None
    """With prefix caching, tokens that are computed, and those that were when it was allocated (None once all are)."""


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
    ranks = {time: rank for rank, time in enumerate(sorted({0, *times}))}
    return tuple([ranks[time] for time in times])

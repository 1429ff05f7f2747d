"""What an allocator with block tables must offer to be put through the gates.

As in `adapter`: the adapter calls the public names, and shows the whole state in the specification's terms.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from blockwright_spec.block_tables.state import Device, Pair
from blockwright_spec.reads import Prefix


class TableShown(NamedTuple):
    """A table: the tokens in its blocks but null ones, its block ids, and how many tokens were written."""

    tokens: tuple[int, ...]
    entries: tuple[int, ...]
    full_slots: int


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


class PagedAdapter(Protocol):
    """Allocators of two devices and the tables on them, by slot.

    `errors` are the exceptions by which a wrong call is refused, `short` the one for too few free blocks.
    """

    errors: tuple[type[Exception], ...]
    short: type[Exception]

    def copy(self) -> Self:
        """Return an independent copy of everything."""

    def allocate(self, slot: int, prefix: Prefix, device: Device) -> None:
        """Make a table (``BlockTable.allocate``)."""

    def append(self, slot: int, tokens: tuple[int, ...], ahead: int, computed: int | None) -> None:
        """Append tokens (``append_token_ids``)."""

    def ensure(self, slot: int, slots: int) -> None:
        """Ask for empty slots (``ensure_num_empty_slots``)."""

    def fork(self, parent: int, child: int) -> None:
        """Fork a table (``fork``)."""

    def free(self, slot: int) -> None:
        """Free a table (``free``)."""

    def swap(self, slots: tuple[int, ...], to: Device) -> tuple[Pair, ...]:
        """Move tables (``swap``)."""

    def clear_copies(self) -> tuple[Pair, ...]:
        """Take the pending copies (``clear_copy_on_writes``)."""

    def access(self, blocks: tuple[int, ...], now: int) -> None:
        """Note an access (``mark_blocks_as_accessed``)."""

    def mark_computed(self) -> None:
        """Mark blocks as computed (``mark_blocks_as_computed``)."""

    def mark_table(self, slot: int, tokens: int) -> None:
        """Mark the first tokens of a table as computed (``mark_blocks_as_computed`` of the manager)."""

    def reset(self, device: Device) -> bool:
        """Reset a prefix cache (``reset_prefix_cache``), and say whether it was."""

    def touched(self, slot: int, tokens: int, ahead: int) -> int:
        """Count what an append touches (``get_num_blocks_touched_by_append_slots``)."""

    def full_touched(self, slots: tuple[int, ...], to: Device) -> int:
        """Count the full blocks of tables that would take one on a device (``get_num_full_blocks_touched``)."""

    def cached_tokens(self, prefix: Prefix) -> int:
        """Count leading tokens in blocks found on the GPU and computed (``find_cached_blocks_prefix``)."""

    def cached_tokens_of(self, slot: int) -> int:
        """Count the tokens of a table that need not be computed (``get_num_cached_tokens``)."""

    def order(self) -> tuple[int, ...]:
        """Return in what order free blocks would be taken now: a hint, so that few choices are tried."""

    def observe(self, slots: int) -> PagedObservation:
        """Show the whole state, of so many slots for tables."""

    def check(self) -> None:
        """Recompute the allocators' own invariants, and raise where one is broken."""


def ranked(times: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks of times, 0 for no access."""
    ranks = {time: rank for rank, time in enumerate(sorted({0, *times}))}
    return tuple([ranks[time] for time in times])

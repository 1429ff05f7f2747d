"""Part two, chapter 1: block tables with copy-on-write, on two devices; their state, with ghosts.

A table is a sequence's own list of block ids. Tables share blocks: a fork shares all of them, and a full block is
shared by all sequences with its prefix. A block is *mutable* until it is full; a write to one that others hold goes to
a copy. Ids are absolute: those of the GPU first, then those of the CPU. Ghosts are `contents`, the tokens written to
each block in the order of the calls (a pending copy counts as made), `done`, how much of it steps have computed, and in
a table `computed` and `reserved`. Written tokens concern the allocator from the call on; computed tokens come later,
chunk by chunk, as the engine reports.
"""

from dataclasses import dataclass
from enum import Enum

from ..reads import Prefix


class Device(Enum):
    """Where a pool of blocks lies."""

    GPU = "the device that computes"
    CPU = "the host, to which a live sequence can be moved"


@dataclass(frozen=True, slots=True)
class PagedConfig:
    """The fixed options: slots per block, blocks per device, whether full blocks are found by content, and the window.

    A window of w blocks keeps the entries that its newest block reads: those more than w blocks behind it are dead.
    """

    block_size: int
    num_gpu: int
    num_cpu: int
    caching: bool = True
    window: int | None = None


@dataclass(frozen=True, slots=True)
class PagedTable:
    """A sequence's blocks: extra key and tokens written, its block ids, and the device that they are on.

    `computed` tokens were done at some append under a window, the most ever told; `reserved` slots were asked for, the
    most ever: those beyond the tokens are lookahead slots, in separate blocks or the rest of the last. `ready` tokens
    were computed by steps, as far as reported; `found` were computed already when the table was allocated on the GPU;
    it becomes None once all its tokens are ready.
    """

    prefix: Prefix
    entries: tuple[int, ...]
    device: Device
    computed: int = 0
    reserved: int = 0
    ready: int = 0
    found: int | None = None


Pair = tuple[int, int]
"""Source and destination of a copy."""


@dataclass(frozen=True, slots=True)
class Paged:
    """Everything the tables and their allocator know, per block by absolute id; `tables` has a slot for each sequence.

    `keys` are the keys of full blocks; `fresh` the found ones that are not known to be computed; `done` how many
    leading slots of a block are computed; `times` the last access, 0 where there was none; `copies` the pairs that are
    not taken yet; `null` the block of entries that no token reads, once there is one.
    """

    config: PagedConfig
    free: frozenset[int]
    contents: tuple[Prefix | None, ...]
    keys: tuple[Prefix | None, ...]
    times: tuple[int, ...]
    done: tuple[int, ...]
    tables: tuple[PagedTable | None, ...]
    fresh: frozenset[int] = frozenset()
    copies: tuple[Pair, ...] = ()
    null: int | None = None


def paged(config: PagedConfig, num_tables: int) -> Paged:
    """Return the state of a new allocator, with room for some tables."""
    total = config.num_gpu + config.num_cpu
    nothing = (None,) * total
    return Paged(config, frozenset(range(total)), nothing, nothing, (0,) * total, (0,) * total, (None,) * num_tables)


def blocks_of(config: PagedConfig, device: Device) -> range:
    """Return the blocks of a device."""
    if device is Device.GPU:
        return range(config.num_gpu)
    return range(config.num_gpu, config.num_gpu + config.num_cpu)


def device_of(config: PagedConfig, block: int) -> Device:
    """Return the device of a block."""
    return Device.GPU if block < config.num_gpu else Device.CPU


def free_on(state: Paged, device: Device) -> tuple[int, ...]:
    """Return the free blocks of a device."""
    return tuple(block for block in blocks_of(state.config, device) if block in state.free)


def paged_tables(state: Paged) -> tuple[PagedTable, ...]:
    """Return the tables there are."""
    return tuple(table for table in state.tables if table is not None)


def entries_of(state: Paged, block: int) -> int:
    """Count the entries that hold a block: who may write asks for one, and a fork adds one (PAGE-1)."""
    return 0 if block == state.null else sum(table.entries.count(block) for table in paged_tables(state))


def ends(copies: tuple[Pair, ...]) -> tuple[int, ...]:
    """Return both ends of some copies."""
    return tuple(block for pair in copies for block in pair)


def dead_entries(config: PagedConfig, table: PagedTable) -> int:
    """Count the leading entries that the window has left behind."""
    if config.window is None:
        return 0
    return min(len(table.entries), max(0, table.computed // config.block_size - config.window))

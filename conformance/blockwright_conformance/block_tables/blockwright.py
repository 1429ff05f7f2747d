"""The first block tables under test: Blockwright's own, through their public names.

Copies to come and access times, which no public name shows, are read from the pools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import blockwright
import blockwright.paging
from blockwright.paging import Block, BlockTable, CpuGpuBlockAllocator
from blockwright_spec.block_tables.state import Device, PagedConfig, Pair
from blockwright_spec.reads import Prefix

from ..checker.world import twin_of
from ..kv_cache.blockwright import errors_of
from .abstraction import PagedObservation, TableShown, ranked

ERRORS = "Block InvalidArgument NoFreeBlocks"
Hash = Callable[[bytes | None, list[int], int | None], bytes]
"""Gives the content hash of a full block with some tokens, after one with a hash."""


class Digests:
    """Shared by all copies of an adapter: the prefix of each content hash."""

    def __init__(self, block_size: int, hash_of: Hash) -> None:
        self.block_size, self.hash_of = block_size, hash_of
        self.prefixes: dict[bytes, Prefix] = {}
        self.chains: dict[Prefix, list[bytes]] = {}

    def chain(self, prefix: Prefix) -> list[bytes]:
        """Return the hashes of the full blocks of a prefix, and remember their prefixes."""
        found = self.chains.get(prefix)
        if found is None:
            found, (extra, tokens), size = [], prefix, self.block_size
            for end in range(size, len(tokens) + 1, size):
                parent = found[-1] if found else None
                found.append(self.hash_of(parent, list(tokens[end - size : end]), extra_of(extra)))
                self.prefixes[found[-1]] = extra, tokens[:end]
            self.chains[prefix] = found
        return found


def extra_of(extra: Any) -> int | None:
    return extra or None


class BlockwrightTables:
    """Block tables on one `CpuGpuBlockAllocator`, of slots; blocks are named by absolute id.

    `errors` are those by which a wrong call is refused, `short` the one for too few free blocks. A subclass may use
    another copy of the package (`package`, with its own of both).
    """

    package: ClassVar[Any] = blockwright
    errors: tuple[type[Exception], ...] = errors_of(blockwright, ERRORS)
    short: type[Exception] = blockwright.errors.NoFreeBlocksError

    def __init__(self, config: PagedConfig) -> None:
        kind = "prefix_caching" if config.caching else "naive"
        self.config = config
        paging = self.package.paging
        create = paging.CpuGpuBlockAllocator.create
        self.allocator: CpuGpuBlockAllocator = create(kind, config.num_gpu, config.num_cpu, config.block_size)
        self.tables: dict[int, tuple[Prefix, BlockTable]] = {}
        self.digests = Digests(config.block_size, paging.PrefixCachingBlock.hash_block_tokens)

    def copy(self) -> Self:
        allocator = self.allocator.copy()
        tables = {slot: (prefix, table.copy_onto(allocator)) for slot, (prefix, table) in self.tables.items()}
        return twin_of(self, allocator=allocator, tables=tables)

    def device(self, device: Device) -> Any:
        return self.package.paging.Device[device.name]

    def table(self, slot: int) -> BlockTable:
        if slot in self.tables:
            return self.tables[slot][1]
        size, window = self.config.block_size, self.config.window
        return self.package.paging.BlockTable(size, self.allocator, max_block_sliding_window=window)  # type: ignore[no-any-return]

    def allocate(self, slot: int, prefix: Prefix, device: Device) -> None:
        table = self.table(slot)
        table.allocate(list(prefix[1]), self.device(device), extra_of(prefix[0]))
        self.tables[slot] = prefix, table
        self.digests.chain(prefix)

    def append(self, slot: int, tokens: tuple[int, ...], ahead: int, computed: int | None) -> None:
        prefix = self.tables[slot][0] if slot in self.tables else (0, ())
        table = self.table(slot)
        table.append_token_ids(list(tokens), ahead, computed, extra_of(prefix[0]))
        self.tables[slot] = (prefix[0], prefix[1] + tokens), table
        self.digests.chain(self.tables[slot][0])

    def ensure(self, slot: int, slots: int) -> None:
        prefix = self.tables[slot][0] if slot in self.tables else (0, ())
        self.table(slot).ensure_num_empty_slots(slots, extra_of(prefix[0]))

    def fork(self, parent: int, child: int) -> None:
        twin = self.table(parent).fork()
        self.tables[child] = self.tables[parent][0], twin

    def free(self, slot: int) -> None:
        self.table(slot).free()
        self.tables.pop(slot, None)

    def swap(self, slots: tuple[int, ...], to: Device) -> tuple[Pair, ...]:
        source = Device.CPU if to is Device.GPU else Device.GPU
        blocks: list[Block] = [block for slot in slots for block in self.table(slot).blocks]
        return tuple(self.allocator.swap(blocks, self.device(source), self.device(to)).items())

    def clear_copies(self) -> tuple[Pair, ...]:
        return tuple(self.allocator.clear_copy_on_writes())

    def access(self, blocks: tuple[int, ...], now: int) -> None:
        self.allocator.mark_blocks_as_accessed(list(blocks), float(now))

    def mark_computed(self) -> None:
        self.allocator.mark_blocks_as_computed([])

    def mark_table(self, slot: int, tokens: int) -> None:
        self.table(slot).mark_computed(tokens)

    def reset(self, device: Device) -> bool:
        return self.allocator.reset_prefix_cache(self.device(device))

    def touched(self, slot: int, tokens: int, ahead: int) -> int:
        return self.table(slot).get_num_blocks_touched_by_append_slots([0] * tokens, ahead)

    def full_touched(self, slots: tuple[int, ...], to: Device) -> int:
        blocks: list[Block] = [block for slot in slots for block in self.table(slot).blocks]
        return self.allocator.get_num_full_blocks_touched(blocks, self.device(to))

    def cached_tokens(self, prefix: Prefix) -> int:
        return len(self.allocator.find_cached_blocks_prefix(self.digests.chain(prefix))) * self.config.block_size

    def cached_tokens_of(self, slot: int) -> int:
        prefix, table = self.tables[slot]
        found = table.num_found_tokens
        return self.cached_tokens(prefix) if found is None else found

    def order(self) -> tuple[int, ...]:
        """Return in what order free blocks would be taken now: a hint, so that few choices are tried."""
        pools: list[Any] = [self.allocator.on(self.device(device)).pool for device in Device]
        return tuple([block + pool.first_id - 1 for pool in pools for block in pool.free_block_ids()])

    def observe(self, slots: int) -> PagedObservation:
        pools: list[Any] = [self.allocator.on(self.device(device)).pool for device in Device]
        marks = [(pool, pool.first_id + at) for pool in pools for at in range(1, pool.num_total() + 1)]
        null = self.allocator.allocate_or_get_null_block().block_id if self.allocator.has_null_block else None
        shift = [(pool, pool.first_id - 1) for pool in pools]
        copies = [(one + by, two + by) for pool, by in shift for _, one, two in pool.pending_copies()]
        keys = [key for pool in pools for key in pool.block_keys()[1:]]
        held = [count for pool in pools for count in pool.ref_counts()[1:]]
        return PagedObservation(
            self.shown(slots),
            frozenset([block + pool.first_id - 1 for pool in pools for block in pool.free_block_ids()]),
            tuple(held),
            null,
            tuple(copies),
            tuple([None if key is None else self.digests.prefixes.get(key, (-1, ())) for key in keys]),
            frozenset([mark - 1 for pool, mark in marks if pool.is_known(mark) and not pool.is_computed(mark)]),
            ranked([max(int(pool.time_of(mark)), 0) for pool, mark in marks]),
        )

    def shown(self, slots: int) -> tuple[TableShown | None, ...]:
        shown: list[TableShown | None] = [None] * slots
        for slot, (_, table) in self.tables.items():
            tokens = tuple([token for block in table.blocks for token in block.token_ids])
            computed = (table.num_computed_tokens, table.num_found_tokens) if self.config.caching else None
            shown[slot] = TableShown(tokens, tuple(table.physical_block_ids), table.num_full_slots, computed)
        return tuple(shown)

    def check(self) -> None:
        self.allocator.check([block for _, table in self.tables.values() for block in table.blocks])

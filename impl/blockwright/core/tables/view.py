"""What can be read of one group of layers, under the names that engine developers know.

A `KVCacheManager` hands out a `GroupView` of each of its groups: to change one group's tables alone would leave the
others behind, so a view only reads.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final, cast, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from blockwright.core.keys.block_hash import hash_words
from blockwright.core.keys.request import BlockKeys, count_of, item_count
from blockwright.core.pool.blocks import KVCacheBlock
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.layouts import refuse_eagle
from blockwright.core.tables.table import GroupTable
from blockwright.core.tables.window import Probe, common_hit, rule_for
from blockwright.errors import InvalidArgumentError, ReadOnlyError, UnknownRequestError, UnsupportedError
from blockwright.ids import id_given, id_kept
from blockwright.kinds import KVCacheSpec


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupReader:
    """The readable part of one group of layers.

    Attributes:
        kv_cache_spec: the kind.
        block_pool: the pool, shared with other groups.
        kv_cache_group_id: number of the group.
        block_size: tokens per block, `dcp_world_size` included.
        sinks: leading entries that never die.
        keeps_all: whether no block is given back before the request ends.
        is_encoder: whether the tables cover the encoder's tokens instead of the request's own.
    """

    def __init__(self, group: GroupTables) -> None:
        self._group = group
        self.kv_cache_spec: Final = group.spec
        self.block_pool: Final = group.block_pool
        self.kv_cache_group_id: Final = int(group._group)
        self.block_size: Final = int(group._block_size)
        self.sinks: Final = int(group.sinks)
        self.keeps_all: Final = group.keeps_all
        self.is_encoder: Final = group.is_encoder

    @property
    def sliding_window(self) -> int | None:
        """The window in tokens, the reading token included; None for other kinds."""
        return self.kv_cache_spec.window

    @property
    def attention_chunk_size(self) -> int | None:
        """The chunk in tokens; None for other kinds."""
        return self.kv_cache_spec.chunk

    @property
    def req_to_blocks(self) -> dict[Any, list[KVCacheBlock]]:
        """A copy of all tables, as views by request id; empty when nothing runs. O(blocks held)."""
        return {id_given(name): self.block_pool.views(table.blocks) for name, table in self._group.all_tables().items()}

    @property
    def num_cached_block(self) -> dict[Any, int]:
        """Published blocks of each running request. O(requests)."""
        return {id_given(name): int(table.num_published) for name, table in self._group.all_tables().items()}

    def first_kept(self, num_tokens: int) -> int:
        return self._group.first_kept(count_of("num_tokens", num_tokens))

    def staying(self, start: int, stop: int) -> list[int]:
        """Return the entries of a range that never die, whatever `first_kept` says: sinks, and what a kind keeps."""
        found: list[int] = []
        entry = self._group.next_staying(start)
        while entry < stop:
            found.append(int(entry))
            entry = self._group.next_staying(entry + 1)
        return found

    def entries_for(self, num_tokens: int) -> int:
        return self._group.entries_for(count_of("num_tokens", num_tokens))

    def is_row(self) -> bool:
        return self._group.is_row()

    def ends_in(self, length: int) -> bool:
        return self._group.ends_in(count_of("length", length))

    def is_useful(self, entry: int) -> bool:
        return self._group.is_useful(count_of("entry", entry))

    def get_num_blocks_to_allocate(
        self, request_id: Hashable, num_tokens: int, new_computed_blocks: Sequence[object] = ()
    ) -> int:
        """Return the blocks missing for `num_tokens` slots, plus those hits that are free now.

        Adopting a free hit takes it from the free queue too, so it counts; null entries do not. Never negative.
        Complexity: O(hits).

        Raises:
            InvalidArgumentError: a negative or oversized `num_tokens`.
            BlockError: a hit is no block of this pool.
        """
        slots = count_of("num_tokens", num_tokens)
        ids = self.block_pool.ids_of(new_computed_blocks)
        self.block_pool.require_whole()
        group = self._group
        table = group.table_of(id_kept(request_id))
        held: i64 = 0 if table is None else i64(len(table.blocks))
        return (
            group.missing(held + i64(len(ids)), slots)
            + self.block_pool.num_candidates(ids)
            + group.missing_states(table)
        )

    def get_num_common_prefix_blocks(self, request_id: Hashable, num_running_requests: int) -> int:
        """Return the leading blocks in the tables of exactly `num_running_requests` requests; 0 for kinds that trim.

        Requests that load are not counted, nor are other holders. Complexity: O(blocks). law: COMMON-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return self._group.num_common(self._running(request_id), num_running_requests, {})

    @classmethod
    def find_longest_cache_hit(
        cls,
        block_hashes: Sequence[bytes],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return, for each group, the table entries of the longest hit; null where no later token reads.

        A block counts only if every group has it. Complexity: O(blocks * groups).

        Args:
            block_hashes: one hash per full block of the prefix, of 16 bytes at least.
            max_length: tokens that the hit may have at most.
            kv_cache_group_ids: groups of this kind that must agree.
            block_pool: where to look.
            kv_cache_spec: the kind.
            use_eagle: whether the block after the hit must be cached too.

        Raises:
            InvalidArgumentError: a hash is too short, or there is no group.
            UnsupportedError: EAGLE with chunked local attention; a kind that is never cached; tokens are verified.
        """
        if kv_cache_spec.reads_encoder:
            raise UnsupportedError("kv_cache_spec: cross-attention blocks are never cached; there is no hit")
        refuse_eagle([kv_cache_spec], use_eagle)
        if not kv_cache_group_ids:
            raise InvalidArgumentError("kv_cache_group_ids: needs at least one group")
        if block_pool.verifies_tokens:
            raise UnsupportedError("block_pool: it verifies tokens, bare hashes have none; use KVCacheManager")
        size: i64 = kv_cache_spec.block_size
        # A length beyond the hashes cannot hit, and would make vectors of any size that a caller names.
        length = min(count_of("max_length", max_length), (i64(len(block_hashes)) + 1) * size - 1)
        words = vec[i64](capacity=2 * len(block_hashes))
        for block_hash in block_hashes:
            low, high = hash_words(block_hash)
            words = append(words, low)
            words = append(words, high)
        groups = [item_count("kv_cache_group_id", group) for group in cast("Sequence[object]", kv_cache_group_ids)]
        empty: list[list[KVCacheBlock]] = [[] for _ in groups]
        if not block_pool.enable_caching:
            return tuple(empty)
        rule = rule_for(kv_cache_spec)
        keys = BlockKeys(words, 1, None)
        margin: i64 = 1 if use_eagle and rule.has_margin else 0
        probes = [Probe(block_pool, keys, group, size, length, margin) for group in groups]
        hit = common_hit([rule for _ in probes], probes, size, length)
        first = rule.first_needed(hit) // size
        return tuple([block_pool.views(probe.entries(hit, rule, first)) for probe in probes])

    def _running(self, request_id: Hashable) -> GroupTable:
        table = self._group.table_of(id_kept(request_id))
        if table is None:
            raise UnknownRequestError(f"request_id: {request_id!r} holds no blocks here")
        return table


INSTEAD: Final = {
    "allocate_new_blocks": "allocate_slots",
    "save_new_computed_blocks": "allocate_slots",
    "cache_blocks": "cache_blocks",
    "remove_skipped_blocks": "remove_skipped_blocks",
    "free": "free",
}
"""The calls that change a group's tables, and the call of a `KVCacheManager` that does so in all groups."""


@final
class GroupView(GroupReader):
    """One group of a `KVCacheManager`: its tables change through the manager alone."""

    def __getattr__(self, name: str) -> Any:
        """Refuse what changes the group's tables."""
        # Engines that know vLLM's managers call these; the error names the call that does it in all groups.
        if name in INSTEAD:
            raise ReadOnlyError(f"managers: {name} would change one group alone; call KVCacheManager.{INSTEAD[name]}")
        raise AttributeError(f"GroupView has no attribute {name!r}")

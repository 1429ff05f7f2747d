"""Managers of one layer kind: block tables over the shared pool.

The work is done by `GroupTables`; here it gets the names, arguments and meaning of vLLM's managers of the same names
(0.11), for engines that call them one by one. Blocks go in as ids or views and come out as views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.block_hash import hash_words
from blockwright.core.group import ONE_STATE, GroupTables, layout_for, rule_for
from blockwright.core.index import cut_to, zeros32
from blockwright.core.pool import BlockPool, KVCacheBlock
from blockwright.core.request import MAX_LENGTH, BlockKeys, Request, count_of, exact_text, item_count
from blockwright.core.state import GroupTable
from blockwright.core.window import Probe, common_hit
from blockwright.errors import (
    InvalidArgumentError,
    NoFreeBlocksError,
    ReadOnlyError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)


class SingleTypeKVCacheManager(GroupTables):
    """Block tables of one group of layers.

    Attributes:
        kv_cache_spec: the kind.
        block_pool: the pool, shared with other groups.
        kv_cache_group_id: number of the group.
        block_size: tokens per block, multiplied by `dcp_world_size`.
    """

    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        block_pool: BlockPool,
        kv_cache_group_id: int,
        dcp_world_size: int = 1,
    ) -> None:
        """Make a manager without requests.

        Args:
            kv_cache_spec: the kind; `get_manager_for_kv_cache_spec` picks the class for it.
            block_pool: the pool to take blocks from.
            kv_cache_group_id: number of the group, part of every key it publishes.
            dcp_world_size: ranks that share one block's tokens (decode context parallelism); full attention only.

        Raises:
            InvalidArgumentError: an argument is out of range.
            UnsupportedError: `dcp_world_size` above 1 for another kind than full attention.
        """
        if dcp_world_size < 1:
            raise InvalidArgumentError(f"dcp_world_size: must be at least 1, not {dcp_world_size}")
        if kv_cache_spec.block_size * dcp_world_size > MAX_LENGTH:
            raise InvalidArgumentError(f"dcp_world_size: blocks of more than {MAX_LENGTH} tokens are too large")
        if not self.manages(kv_cache_spec):
            raise InvalidArgumentError(
                f"kv_cache_spec: {type(self).__name__} does not manage {type(kv_cache_spec).__name__}; "
                "use get_manager_for_kv_cache_spec"
            )
        if dcp_world_size > 1 and not isinstance(kv_cache_spec, FullAttentionSpec):
            raise UnsupportedError(
                "dcp_world_size: only full attention can share a block's tokens between ranks, not "
                f"{type(kv_cache_spec).__name__}"
            )
        count_of("kv_cache_group_id", kv_cache_group_id)
        super().__init__(kv_cache_spec, block_pool, kv_cache_group_id, kv_cache_spec.block_size * dcp_world_size)
        self.kv_cache_spec = kv_cache_spec
        self.kv_cache_group_id = kv_cache_group_id

    # ------------------------------------------------------------------ the names engine developers know

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether this class is the one for a kind; the base is for none."""
        return False

    @property
    def block_size(self) -> int:
        """Tokens per block, `dcp_world_size` included."""
        return self._block_size

    @property
    def req_to_blocks(self) -> dict[str, list[KVCacheBlock]]:
        """A copy of all tables, as views by request id; empty when nothing runs. O(blocks held)."""
        return {name: self.block_pool.views(table.blocks) for name, table in self._tables.items()}

    @property
    def num_cached_block(self) -> dict[str, int]:
        """Published blocks of each running request. O(requests)."""
        return {name: int(table.num_published) for name, table in self._tables.items()}

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[object] = ()
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
        table = self._tables.get(request_id)
        held: i64 = 0 if table is None else i64(len(table.blocks))
        free: i64 = 0
        for block in ids:
            if block != 0 and self.block_pool.ref_count(i64(block)) == 0:
                free += 1
        return self.missing(held + i64(len(ids)), slots) + free + self._missing_states(table)

    def save_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[object]) -> None:
        """Adopt hits as the head of a new request's table, one more holder each; a running request must bring none.

        The engine of these managers touches hits itself in vLLM; here adopting is touching. Complexity: O(hits).

        Raises:
            InvalidArgumentError: a running request brings hits, or the id is empty.
            BlockError: a hit is no block of this pool.
        """
        ids = self.block_pool.ids_of(new_computed_blocks)
        self.block_pool.require_whole()
        request_id = exact_text(request_id)
        if request_id in self._tables:
            if len(ids) > 0:
                raise InvalidArgumentError(
                    f"new_computed_blocks: request {request_id!r} runs already; only a new request adopts hits"
                )
            return
        if not request_id:
            raise InvalidArgumentError("request_id: must be a non-empty string")
        self._require_hit(ids)
        table = self.headed(ids, i64(len(ids)) * self._block_size)
        has_begun = False
        try:
            self.open(request_id, table)
            has_begun = True
            self.adopt(ids)
        except BaseException:
            self._undo(request_id, has_begun)
            raise

    def _require_hit(self, ids: vec[i32]) -> None:
        """Check that blocks have the shape of a hit of this kind: null where unread, else published, each once."""
        first = self.first_kept(i64(len(ids)) * self._block_size)
        seen: set[int] = set()
        for entry, block in enumerate(ids):
            if (self.sinks <= i64(entry) < first) != (block == 0):
                raise InvalidArgumentError(
                    f"new_computed_blocks: entry {entry} is {block}, but entries {self.sinks} to {first - 1}, and no "
                    "others, are null"
                )
            if block != 0 and (int(block) in seen or not self.block_pool.is_published(i64(block))):
                raise InvalidArgumentError(
                    f"new_computed_blocks: block {block} is not published, or stands twice; look the hit up again"
                )
            seen.add(int(block))

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Grow the table to cover `num_tokens` slots; return only the new blocks, none if they are covered.

        Recurrent layers return null blocks for the entries they jump over. Complexity: O(new blocks).

        Raises:
            InvalidArgumentError: a negative or oversized `num_tokens`, or an empty id.
            NoFreeBlocksError: too few are free; nothing changed.
        """
        slots = count_of("num_tokens", num_tokens)
        self.block_pool.require_whole()
        request_id = exact_text(request_id)
        if not request_id:
            raise InvalidArgumentError("request_id: must be a non-empty string")
        table = self._tables.get(request_id)
        held: i64 = 0 if table is None else i64(len(table.blocks))
        missing = self.missing(held, slots) + self._missing_states(table)
        if missing > self.block_pool.get_num_free_blocks():
            raise NoFreeBlocksError(
                f"num_tokens: request {request_id!r} needs {missing} more blocks, "
                f"{self.block_pool.get_num_free_blocks()} are free"
            )
        grown = self.headed(None, 0) if table is None else table
        has_begun = False
        try:
            self.widen(grown, slots)
            new = zeros32(i64(len(grown.blocks)) - held)
            views = self.block_pool.views(new)
            if table is None:
                self.open(request_id, grown)
            has_begun = True
            self.fill(grown, slots, held)
            self.fill_states(grown)
            at: i64 = 0
            while at < i64(len(new)):
                views[at]._id = i64(grown.blocks[held + at])
                at += 1
        except BaseException:
            if not has_begun:
                grown.blocks = cut_to(grown.blocks, held)
            self._undo(request_id if table is None else None, has_begun)
            raise
        return views

    def _undo(self, request_id: str | None, has_begun: bool) -> None:
        """Forget a new table, if one was made; if the change itself has begun, refuse later calls."""
        if has_begun:
            self.block_pool._tear()
        elif request_id is not None:
            self.withdraw(request_id)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish every full block up to `num_tokens` that is not yet published. O(blocks published).

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: the table or the request is shorter, or the request's block size does not fit.
        """
        count = count_of("num_tokens", num_tokens)
        self.block_pool.require_whole()
        table = self._table(request.request_id)
        if self.entries_for(count) > i64(len(table.blocks)) or count > request.num_tokens:
            raise InvalidArgumentError(
                f"num_tokens: {num_tokens} tokens, but request {request.request_id!r} knows {request.num_tokens} "
                f"and its table covers {len(table.blocks)} blocks of {self._block_size}"
            )
        if self.block_pool.enable_caching:
            units = self.block_pool._units_for(request, self._block_size)
            request.hash_until(count // self._block_size * units)
            try:
                self.publish(table, request, units, count, table.num_covered)
            except BaseException:
                self.block_pool._tear()
                raise

    def _missing_states(self, table: GroupTable | None) -> i64:
        """Return the blocks for states of drafts that a request does not have yet."""
        if table is None:
            return self.num_states
        return self.num_states if len(table.states) == 0 or table.states[0] == 0 else 0

    def free(self, request_id: str) -> None:
        """Release a request's blocks, last first; of an unknown request: nothing. O(blocks)."""
        self.block_pool.require_whole()
        request_id = exact_text(request_id)
        table = self._tables.get(request_id)
        if table is not None:
            try:
                self.release(table)
                self.close(request_id)
            except BaseException:
                self.block_pool._tear()
                raise

    def get_num_common_prefix_blocks(self, request_id: str, num_running_requests: int) -> int:
        """Return the leading blocks in the tables of exactly `num_running_requests` requests; 0 for kinds that trim.

        Requests that load are not counted, nor are other holders. Complexity: O(blocks). law: COMMON-1.

        Raises:
            UnknownRequestError: the request holds no blocks.
        """
        return self.num_common(self._table(request_id), num_running_requests, {})

    def num_common(self, table: GroupTable, running: int, waiting: dict[int, int]) -> int:
        """Return the leading blocks in the tables of exactly so many requests, those of `waiting` not counted.

        That is how often each block is in a table that computes nothing: of a load, or behind a fence.
        """
        if not self.keeps_all:
            return 0
        common = 0
        for block in table.blocks:
            sharers = int(self.block_pool.num_sharers(i64(block)))
            if len(waiting) > 0:
                sharers -= waiting.get(int(block), 0)
            if sharers != running:
                break
            common += 1
        return common

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
        if isinstance(kv_cache_spec, CrossAttentionSpec):
            raise UnsupportedError("kv_cache_spec: cross-attention blocks are never cached; there is no hit")
        refuse_eagle(kv_cache_spec, use_eagle)
        if not kv_cache_group_ids:
            raise InvalidArgumentError("kv_cache_group_ids: needs at least one group")
        if block_pool.verifies_tokens:
            raise UnsupportedError("block_pool: it verifies tokens, bare hashes have none; use KVCacheManager")
        size: i64 = kv_cache_spec.block_size
        length = min(count_of("max_length", max_length), (i64(len(block_hashes)) + 1) * size - 1)
        words = vec[i64](capacity=2 * len(block_hashes))
        for block_hash in block_hashes:
            low, high = hash_words(block_hash)
            words = append(words, low)
            words = append(words, high)
        groups = [item_count("kv_cache_group_id", group) for group in cast("Sequence[object]", kv_cache_group_ids)]
        empty: list[list[KVCacheBlock]] = [[] for _ in groups]
        if layout_for(kv_cache_spec, block_pool.enable_caching) == ONE_STATE or not block_pool.enable_caching:
            return tuple(empty)
        rule = rule_for(kv_cache_spec)
        keys = BlockKeys(words, 1, None)
        margin: i64 = 1 if use_eagle else 0
        probes = [Probe(block_pool, keys, group, size, length, margin) for group in groups]
        hit = common_hit([rule for _ in probes], probes, size, length)
        first = rule.first_needed(hit) // size
        return tuple([block_pool.views(probe.entries(hit, rule.sinks, first)) for probe in probes])

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Trim: null the entries that no token at `num_computed_tokens` or later reads, release their blocks.

        Unknown requests: nothing. Complexity: O(entries that die). law: TRIM-1.

        Raises:
            InvalidArgumentError: the table does not reach that far.
        """
        count = count_of("num_computed_tokens", num_computed_tokens)
        self.block_pool.require_whole()
        table = self._tables.get(request_id)
        if table is None:
            return
        if self.entries_for(count) > i64(len(table.blocks)):
            raise InvalidArgumentError(
                f"num_computed_tokens: {num_computed_tokens} is beyond the {len(table.blocks)} blocks of {request_id!r}"
            )
        try:
            self.trim(table, count, i64(len(table.blocks)))
        except BaseException:
            self.block_pool._tear()
            raise

    def table_of(self, request_id: str) -> GroupTable | None:
        """Return a request's packed table, or None. O(1)."""
        return self._tables.get(request_id)

    def _table(self, request_id: str) -> GroupTable:
        """Return a request's packed table or raise `UnknownRequestError`."""
        table = self._tables.get(request_id)
        if table is None:
            raise UnknownRequestError(f"request_id: {request_id!r} holds no blocks here")
        return table

    def copy(self, pool: BlockPool) -> SingleTypeKVCacheManager:
        """Return an independent copy over another pool. O(blocks held)."""
        dcp = self._block_size // self.kv_cache_spec.block_size
        twin = type(self)(self.kv_cache_spec, pool, self.kv_cache_group_id, dcp)
        twin._tables = {name: table.copy() for name, table in self._tables.items()}
        return twin


class FullAttentionManager(SingleTypeKVCacheManager):
    """Keeps every block; a hit is the longest leading run."""

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether it is a `FullAttentionSpec`."""
        return type(kv_cache_spec) is FullAttentionSpec


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Keeps the blocks of the last `sliding_window` tokens and of sinks; a hit is the rightmost run for a window."""

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether it is a `SlidingWindowSpec`."""
        return type(kv_cache_spec) is SlidingWindowSpec

    @property
    def sliding_window(self) -> int:
        """The window in tokens, the reading token included."""
        spec = self.kv_cache_spec
        return spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """Keeps the blocks of the current chunk; a hit is a leading run from the chunk's start."""

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether it is a `ChunkedLocalAttentionSpec`."""
        return type(kv_cache_spec) is ChunkedLocalAttentionSpec

    @property
    def attention_chunk_size(self) -> int:
        """The chunk in tokens."""
        spec = self.kv_cache_spec
        return spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else 0


class MambaManager(SingleTypeKVCacheManager):
    """Keeps one recurrent state; with prefix caching also the states at block boundaries that a step ended on."""

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether it is a `MambaSpec`."""
        return type(kv_cache_spec) is MambaSpec


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Blocks for the encoder's tokens, taken at once and never cached."""

    def manages(self, kv_cache_spec: KVCacheSpec) -> bool:
        """Return whether it is a `CrossAttentionSpec`."""
        return type(kv_cache_spec) is CrossAttentionSpec

    def save_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[object]) -> None:
        """Accept no hits; with none there is nothing to do.

        Raises:
            UnsupportedError: hits were given.
        """
        if len(new_computed_blocks) > 0:
            raise UnsupportedError("new_computed_blocks: cross-attention blocks are never cached; there is no hit")

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Raise `UnsupportedError`: cross-attention blocks are never cached."""
        raise UnsupportedError("cache_blocks: cross-attention blocks are never cached")


INSTEAD: Final = {
    "allocate_new_blocks": "allocate_slots",
    "save_new_computed_blocks": "allocate_slots",
    "cache_blocks": "cache_blocks",
    "remove_skipped_blocks": "remove_skipped_blocks",
    "free": "free",
}
"""The calls that change a group's tables, and the call of a `KVCacheManager` that does so in all groups."""


@final
class GroupView:
    """What can be read of one group of a `KVCacheManager`: its requests change through that alone.

    Attributes:
        kv_cache_spec: the kind.
        block_pool: the pool, shared with other groups.
        kv_cache_group_id: number of the group.
        block_size: tokens per block, `dcp_world_size` included.
        sinks: leading entries that never die.
        keeps_all: whether no block is given back before the request ends.
        is_encoder: whether the tables cover the encoder's tokens instead of the request's own.
    """

    def __init__(self, group: SingleTypeKVCacheManager) -> None:
        """Look at a group."""
        self._group = group
        self.kv_cache_spec: Final = group.kv_cache_spec
        self.block_pool: Final = group.block_pool
        self.kv_cache_group_id: Final = group.kv_cache_group_id
        self.block_size: Final = group.block_size
        self.sinks: Final = int(group.sinks)
        self.keeps_all: Final = group.keeps_all
        self.is_encoder: Final = group.is_encoder

    def __getattr__(self, name: str) -> Any:
        """Refuse what changes the group's tables."""
        if name in INSTEAD:
            raise ReadOnlyError(f"managers: {name} would change one group alone; call KVCacheManager.{INSTEAD[name]}")
        raise AttributeError(f"GroupView has no attribute {name!r}")

    @property
    def sliding_window(self) -> int | None:
        """The window in tokens, the reading token included; None for other kinds."""
        spec = self.kv_cache_spec
        return spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None

    @property
    def attention_chunk_size(self) -> int | None:
        """The chunk in tokens; None for other kinds."""
        spec = self.kv_cache_spec
        return spec.attention_chunk_size if isinstance(spec, ChunkedLocalAttentionSpec) else None

    @property
    def req_to_blocks(self) -> dict[str, list[KVCacheBlock]]:
        """A copy of all tables, as views by request id; empty when nothing runs. O(blocks held)."""
        return self._group.req_to_blocks

    @property
    def num_cached_block(self) -> dict[str, int]:
        """Published blocks of each running request. O(requests)."""
        return self._group.num_cached_block

    def first_kept(self, num_tokens: int) -> int:
        """Return the first entry, except for sinks, that is not dead at `num_tokens` settled tokens. O(1)."""
        return self._group.first_kept(count_of("num_tokens", num_tokens))

    def entries_for(self, num_tokens: int) -> int:
        """Return the table's length once it covers `num_tokens` slots. O(1)."""
        return self._group.entries_for(count_of("num_tokens", num_tokens))

    def is_row(self) -> bool:
        """Return whether every entry up to the covered slots holds a block unless it was trimmed. O(1)."""
        return self._group.is_row()

    def is_useful(self, entry: int) -> bool:
        """Return whether some hit can need an entry. O(1)."""
        return self._group.is_useful(count_of("entry", entry))

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, new_computed_blocks: Sequence[object] = ()
    ) -> int:
        """Return the blocks missing for so many slots, as `SingleTypeKVCacheManager.get_num_blocks_to_allocate`."""
        return self._group.get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks)

    def get_num_common_prefix_blocks(self, request_id: str, num_running_requests: int) -> int:
        """Return the common leading blocks, as `SingleTypeKVCacheManager.get_num_common_prefix_blocks`."""
        return self._group.get_num_common_prefix_blocks(request_id, num_running_requests)

    def find_longest_cache_hit(
        self,
        block_hashes: Sequence[bytes],
        max_length: int,
        kv_cache_group_ids: Sequence[int],
        block_pool: BlockPool,
        kv_cache_spec: KVCacheSpec,
        use_eagle: bool = False,
    ) -> tuple[list[KVCacheBlock], ...]:
        """Return the longest hit of each group, as `SingleTypeKVCacheManager.find_longest_cache_hit`."""
        return SingleTypeKVCacheManager.find_longest_cache_hit(
            block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, use_eagle
        )


def refuse_eagle(spec: KVCacheSpec, use_eagle: bool) -> None:
    """Raise `UnsupportedError` for EAGLE with a kind that cannot give up its last block."""
    if use_eagle and isinstance(spec, ChunkedLocalAttentionSpec):
        raise UnsupportedError("use_eagle: chunked local attention cannot give up the last block of a hit; turn it off")


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec, block_pool: BlockPool, kv_cache_group_id: int, dcp_world_size: int = 1
) -> SingleTypeKVCacheManager:
    """Return a new manager for the exact type of `kv_cache_spec`.

    Raises:
        UnsupportedError: the type is not a known kind.
        InvalidArgumentError: another argument is out of range.
    """
    kind = type(kv_cache_spec)
    if kind is FullAttentionSpec:
        return FullAttentionManager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)
    if kind is SlidingWindowSpec:
        return SlidingWindowManager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)
    if kind is ChunkedLocalAttentionSpec:
        return ChunkedLocalAttentionManager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)
    if kind is MambaSpec:
        return MambaManager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)
    if kind is CrossAttentionSpec:
        return CrossAttentionManager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)
    raise UnsupportedError(f"kv_cache_spec: no manager for {kind.__name__}; use a kind of blockwright.kinds")

"""Managers of one layer kind: block tables over the shared pool, under vLLM's names of 0.11.

The work is done by `GroupTables`; here it gets the names, arguments and meaning of vLLM's managers, for engines that
call them one by one. Blocks go in as ids or views and come out as views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import cut_to, zeros32
from blockwright.core.keys.request import Request, count_of, exact_text
from blockwright.core.pool.blocks import KVCacheBlock
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.layouts import group_tables
from blockwright.core.tables.view import GroupReader
from blockwright.errors import InvalidArgumentError, NoFreeBlocksError, UnsupportedError
from blockwright.kinds import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)


class SingleTypeKVCacheManager(GroupReader):
    """Block tables of one group of layers."""

    kind: ClassVar[type[KVCacheSpec] | None] = None
    """The kind that the class is for; the base is for none."""

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
        if type(kv_cache_spec) is not self.kind:
            raise InvalidArgumentError(
                f"kv_cache_spec: {type(self).__name__} does not manage {type(kv_cache_spec).__name__}; "
                "use get_manager_for_kv_cache_spec"
            )
        super().__init__(group_tables(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size))

    def save_new_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[object]) -> None:
        """Adopt hits as the head of a new request's table, one more holder each; a running request must bring none.

        The engine of these managers touches hits itself in vLLM; here adopting is touching. Complexity: O(hits).

        Raises:
            InvalidArgumentError: a running request brings hits, or the id is empty.
            BlockError: a hit is no block of this pool.
        """
        ids = self.block_pool.ids_of(new_computed_blocks)
        self.block_pool.require_whole()
        request_id = _id_of(request_id)
        if self._group.table_of(request_id) is not None:
            if len(ids) > 0:
                raise InvalidArgumentError(
                    f"new_computed_blocks: request {request_id!r} runs already; only a new request adopts hits"
                )
            return
        self._require_hit(ids)
        table = self._group.table_from_hit(ids, len(ids) * self.block_size, len(ids) * self.block_size, 0)
        has_begun = False
        try:
            self._group.open(request_id, table)
            has_begun = True
            self._group.adopt(ids)
        except BaseException:
            self._undo(request_id, has_begun)
            raise

    def _require_hit(self, ids: vec[i32]) -> None:
        """Check that blocks have the shape of a hit of this kind: null where unread, else published, each once."""
        first = self.first_kept(len(ids) * self.block_size)
        seen: set[int] = set()
        for entry, block in enumerate(ids):
            if (entry < first and not self._group.stays(entry)) != (block == 0):
                raise InvalidArgumentError(
                    f"new_computed_blocks: entry {entry} is {block}, but entries {self.sinks} to {first - 1}, and no "
                    "others, are null"
                )
            if block != 0 and (block in seen or not self.block_pool.is_published(i64(block))):
                raise InvalidArgumentError(
                    f"new_computed_blocks: block {block} is not published, or given twice; look the hit up again"
                )
            seen.add(block)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Grow the table to cover `num_tokens` slots; return only the new blocks, none if they are covered.

        Recurrent layers return null blocks for the entries they jump over. Complexity: O(new blocks).

        Raises:
            InvalidArgumentError: a negative or oversized `num_tokens`, or an empty id.
            NoFreeBlocksError: too few are free; nothing changed.
        """
        slots = count_of("num_tokens", num_tokens)
        self.block_pool.require_whole()
        request_id = _id_of(request_id)
        group = self._group
        table = group.table_of(request_id)
        held = 0 if table is None else len(table.blocks)
        missing = group.missing(held, slots) + group.missing_states(table)
        if missing > self.block_pool.get_num_free_blocks():
            raise NoFreeBlocksError(
                f"num_tokens: request {request_id!r} needs {missing} more blocks, "
                f"{self.block_pool.get_num_free_blocks()} are free"
            )
        grown = group.table_from_hit(vec[i32](), 0, 0, 0) if table is None else table
        has_begun = False
        try:
            group.widen(grown, slots)
            new = zeros32(len(grown.blocks) - held)
            views = self.block_pool.views(new)
            if table is None:
                group.open(request_id, grown)
            has_begun = True
            group.fill(grown, slots, held, 0)
            group.fill_states(grown)
            for at, view in enumerate(views):
                view._id = i64(grown.blocks[held + at])
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
            self._group.withdraw(request_id)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish every full block up to `num_tokens` that is not yet published. O(blocks published).

        Raises:
            UnknownRequestError: the request holds no blocks.
            InvalidArgumentError: the table or the request is shorter, or the request's block size does not fit.
        """
        count = count_of("num_tokens", num_tokens)
        self.block_pool.require_whole()
        table = self._running(request.request_id)
        if self._group.entries_for(count) > len(table.blocks) or count > request.num_tokens:
            raise InvalidArgumentError(
                f"num_tokens: {num_tokens} tokens, but request {request.request_id!r} knows {request.num_tokens} "
                f"and its table covers {len(table.blocks)} blocks of {self.block_size}"
            )
        if self.block_pool.enable_caching:
            units = self.block_pool._units_for(request, self.block_size)
            request.hash_until(count // self.block_size * units)
            try:
                self._group.publish(table, request, units, count, table.num_covered, 0)
            except BaseException:
                self.block_pool._tear()
                raise

    def free(self, request_id: str) -> None:
        """Release a request's blocks, last first; of an unknown request: nothing. O(blocks)."""
        self.block_pool.require_whole()
        request_id = exact_text(request_id)
        table = self._group.table_of(request_id)
        if table is not None:
            try:
                self._group.release(table)
                self._group.close(request_id)
            except BaseException:
                self.block_pool._tear()
                raise

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Trim: null the entries that no token at `num_computed_tokens` or later reads, release their blocks.

        Unknown requests: nothing. Complexity: O(entries that die). law: TRIM-1.

        Raises:
            InvalidArgumentError: the table does not reach that far.
        """
        count = count_of("num_computed_tokens", num_computed_tokens)
        self.block_pool.require_whole()
        table = self._group.table_of(request_id)
        if table is None:
            return
        if self._group.entries_for(count) > len(table.blocks):
            raise InvalidArgumentError(
                f"num_computed_tokens: {num_computed_tokens} is beyond the {len(table.blocks)} blocks of {request_id!r}"
            )
        try:
            self._group.trim(table, count, len(table.blocks))
        except BaseException:
            self.block_pool._tear()
            raise


class FullAttentionManager(SingleTypeKVCacheManager):
    """Keeps every block; a hit is the longest leading run."""

    kind = FullAttentionSpec


class SlidingWindowManager(SingleTypeKVCacheManager):
    """Keeps the blocks of the last `sliding_window` tokens and of sinks; a hit is the rightmost run for a window."""

    kind = SlidingWindowSpec


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """Keeps the blocks of the current chunk; a hit is a leading run from the chunk's start."""

    kind = ChunkedLocalAttentionSpec


class MambaManager(SingleTypeKVCacheManager):
    """Keeps one recurrent state; with prefix caching also the states at block boundaries that a step ended on."""

    kind = MambaSpec


class CrossAttentionManager(SingleTypeKVCacheManager):
    """Blocks for the encoder's tokens, taken at once and never cached."""

    kind = CrossAttentionSpec

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


MANAGERS: dict[type[KVCacheSpec] | None, type[SingleTypeKVCacheManager]] = {
    manager.kind: manager
    for manager in (
        FullAttentionManager,
        SlidingWindowManager,
        ChunkedLocalAttentionManager,
        MambaManager,
        CrossAttentionManager,
    )
}
"""The class for each kind, by its exact type."""


def get_manager_for_kv_cache_spec(
    kv_cache_spec: KVCacheSpec, block_pool: BlockPool, kv_cache_group_id: int, dcp_world_size: int = 1
) -> SingleTypeKVCacheManager:
    """Return a new manager for the exact type of `kv_cache_spec`.

    Raises:
        UnsupportedError: the type is not a known kind.
        InvalidArgumentError: another argument is out of range.
    """
    manager = MANAGERS.get(type(kv_cache_spec))
    if manager is None:
        raise UnsupportedError(
            f"kv_cache_spec: no manager for {type(kv_cache_spec).__name__}; use a kind of blockwright.kinds"
        )
    return manager(kv_cache_spec, block_pool, kv_cache_group_id, dcp_world_size)


def _id_of(request_id: str) -> str:
    """Return a request's id as an exact `str`, checked not to be empty."""
    found = exact_text(request_id)
    if not found:
        raise InvalidArgumentError("request_id: must be a non-empty string")
    return found

"""The pool of blocks under the names that engine developers know."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, cast, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.arguments import integer
from blockwright.core.keys.block_hash import hash_words
from blockwright.core.keys.packed import zeros32
from blockwright.core.keys.request import Request, count_of, item_count
from blockwright.core.pool.blocks import KVCacheBlock
from blockwright.core.pool.history import Eviction, EvictionReader, History, Losses
from blockwright.core.pool.order import CandidateOrder, RuleInForce
from blockwright.core.pool.store import BlockStore
from blockwright.errors import BlockError, InvalidArgumentError, NoFreeBlocksError, UnsupportedError
from blockwright.events import CacheLayout, KVCacheEvent
from blockwright.exclusions import refuse_exclusions

MAX_BLOCKS = 2**30


@final
class BlockPool(BlockStore):
    """Who holds which block, which is taken next, which prefix it carries, over `num_blocks` blocks.

    A manager's requests take and release blocks through the manager alone. From outside, a connector or an engine may
    hold blocks (`touch`, `get_new_blocks`), publish blocks that only it holds (`cache_full_blocks`), and release its
    holds (`free_blocks`).

    Example:
        >>> pool = BlockPool(9)
        >>> blocks = pool.get_new_blocks(2)
        >>> pool.touch(blocks[:1])
        >>> pool.num_held_externally, pool.holders_apart()[:4]
        (2, [0, 2, 1, 0])
        >>> pool.free_blocks([*blocks, *blocks[:1]])
        >>> pool.num_held_externally, pool.get_num_free_blocks()
        (0, 8)
    """

    def __init__(
        self,
        num_blocks: int,
        enable_caching: bool | None = True,
        *,
        enable_kv_cache_events: bool = False,
        verify_tokens: bool = False,
        explain_evictions: bool = False,
        track_evictions: bool = False,
        order: CandidateOrder | None = None,
    ) -> None:
        """Make a pool with every block free and without content.

        Args:
            num_blocks: at least 2, since block 0 is the null block; at most 2**30.
            enable_caching: see above.
            enable_kv_cache_events: record events for `take_events`.
            verify_tokens: remember the exact prefix of each published block and compare it on each hit; needed with
                a hasher that is not collision resistant. Costs memory in the order of the prefixes.
            explain_evictions: remember how keys were lost, the last ``num_blocks - 1`` of them; older losses are
                forgotten. Costs about 50 bytes per block, and time at each loss.
            track_evictions: record the contents that are evicted, for `take_evictions`. Costs about 150 bytes per
                published block.
            order: the order of eviction; with None the least recently released block is evicted first.

        Complexity: O(num_blocks).

        Raises:
            InvalidArgumentError: names the argument.
        """
        if isinstance(num_blocks, bool) or not 2 <= num_blocks <= MAX_BLOCKS:
            raise InvalidArgumentError(
                f"num_blocks: must be within 2..{MAX_BLOCKS} (block 0 is the null block), not {num_blocks!r}"
            )
        if not isinstance(enable_caching, bool):
            raise InvalidArgumentError(f"enable_caching: must be True or False, not {enable_caching!r}")
        refuse_exclusions(
            {
                "enable_caching=False": not enable_caching,
                "enable_kv_cache_events": enable_kv_cache_events,
                "explain_evictions": explain_evictions,
                "track_evictions": track_evictions,
            }
        )
        # Without any of these a pool has no history, and every publication and eviction takes the short way.
        history: History | None = None
        if enable_kv_cache_events or verify_tokens or explain_evictions or track_evictions:
            history = History(
                [] if enable_kv_cache_events else None,
                {} if verify_tokens else None,
                Losses(num_blocks) if explain_evictions else None,
                [] if track_evictions else None,
            )
            history.most_evictions = max(1024, 4 * num_blocks)  # far more than are taken in one step
        super().__init__(num_blocks, history, order)
        self._caching: bool = enable_caching
        self._guard = 0.0  # the part of the pool, in the last candidates, that no hint is about

    def copy(self) -> BlockPool:
        """Return an independent copy. O(num_blocks)."""
        twin = BlockPool(2)
        self._copy_to(twin)
        twin._caching = self._caching
        twin._guard = self._guard
        return twin

    def __copy__(self) -> BlockPool:
        """Return an independent copy."""
        return self.copy()

    def __reduce__(self) -> str:
        """Refuse to be pickled or copied deeply."""
        raise UnsupportedError("BlockPool: can be neither pickled nor copied deeply; use copy()")

    # ------------------------------------------------------------------ whose blocks, and what is said of them

    def _describe(self, layout: CacheLayout) -> None:
        """Have events say what a hit needs. law: EV-7."""
        if self._history is not None:
            self._history.layout = layout

    @property
    def eviction_order(self) -> Any:
        """The engine's order, an `EvictionPolicy`, which chooses the blocks to evict, or None if the pool does."""
        return None if self._order is None else self._order.policy

    @property
    def rule_in_force(self) -> RuleInForce | None:
        """By which rule candidates go now (``eviction_order="adaptive"``); None where that is not asked. O(1)."""
        return None if self._order is None else self._order.rule()

    @property
    def eviction_policy(self) -> Any:
        """The earlier name of `eviction_order`."""
        return self.eviction_order

    @property
    def now(self) -> float:
        """The engine's time, as it was last reported. O(1)."""
        return 0.0 if self._order is None else self._order.now

    @property
    def passing_spares(self) -> int:
        """How many of the last passing blocks are evicted by age now (``keep_wanted``); 0 without that. O(1)."""
        return 0 if self._order is None else int(self._order.spares)

    def passing_block_ids(self) -> list[int]:
        """Return the blocks that no hit needs that their last request wanted (``keep_wanted``). O(num_blocks).

        Candidates, and blocks that only a connector or a copy to come holds.
        """
        return [block for block, number in self._classes().items() if number == 1]

    def tips(self) -> list[tuple[int, int]]:
        """Return the candidates with which a prompt (1) or an output (2) ended, which none has gone on from."""
        return [
            (block, number - 1)
            for block, number in self._classes().items()
            if number > 1 and self.ref_count(i64(block)) == 0
        ]

    def _classes(self) -> dict[int, int]:
        """Return the class of each block that is more than an ordinary one: 1 passing, 2 and 3 tips. O(num_blocks)."""
        order = self._order
        if order is None:
            return {}
        classes = {block: int(order.class_of(i64(block))) for block in range(1, int(self._count))}
        return {block: number for block, number in classes.items() if number != 0}

    @property
    def enable_caching(self) -> bool:
        """Whether blocks are published at all."""
        return self._caching

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included; changed by `KVCacheManager.resize`."""
        return self._size

    @property
    def max_num_blocks(self) -> int:
        """How many blocks `KVCacheManager.resize` may give the pool at most."""
        return self._count

    @property
    def num_free(self) -> int:
        """Blocks in the free queue."""
        return self._num_free

    @property
    def num_evictions(self) -> int:
        """Eviction candidates taken so far, each of which lost its content."""
        return self._num_evictions

    @property
    def records_events(self) -> bool:
        """Whether events are recorded."""
        return self._history is not None and self._history.events is not None

    @property
    def explains_evictions(self) -> bool:
        """Whether it is remembered how keys were lost."""
        return self._history is not None and self._history.losses is not None

    @property
    def tracks_evictions(self) -> bool:
        """Whether evicted contents are recorded."""
        return self._history is not None and self._history.evictions is not None

    @property
    def null_block(self) -> KVCacheBlock:
        """The null block, id 0: placeholder for "nothing here that anyone will read"."""
        return KVCacheBlock(self, 0)

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be taken. O(1)."""
        return self._num_free

    def get_usage(self) -> float:
        """Return the share of blocks that are held, 0.0 to 1.0. O(1)."""
        return 1.0 - float(self._num_free) / float(self._size - 1)

    def get_cached_block(self, block_hash: bytes, group_ids: Sequence[int]) -> list[KVCacheBlock] | None:
        """Return one block per group that holds the prefix with this hash, or None unless all groups have one.

        Complexity: O(groups).

        Raises:
            InvalidArgumentError: the hash is shorter than 16 bytes, or a group is out of range.
            UnsupportedError: the pool verifies tokens.
        """
        if self.verifies_tokens:
            raise UnsupportedError("block_hash: this pool verifies tokens and a bare hash has none; use KVCacheManager")
        self.require_whole()
        low, high = hash_words(block_hash)
        found = []
        for group in cast("Sequence[object]", group_ids):
            block = self._index.find(low, high, item_count("group_ids", group))
            # A prefix that only some groups have is no hit: every layer must have it.
            if block == 0:
                return None
            found.append(KVCacheBlock(self, block))
        return found

    def cache_full_blocks(
        self,
        request: Request,
        blocks: Sequence[object],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int = 0,
    ) -> None:
        """Publish ``blocks[num_cached_blocks:num_full_blocks]`` of a request's table; null and published ones are kept.

        Unpublished blocks must be held from outside and by no request, because then their holder has written them. The
        manager publishes the blocks that its requests fill. Complexity: O(blocks published).

        Raises:
            InvalidArgumentError: a count is out of range, or the request has no keys for them.
            BlockError: a block is foreign, not held, or held by a request too.
        """
        if not self.enable_caching:
            return
        integer("block_size", block_size, 1)
        count_of("kv_cache_group_id", kv_cache_group_id)
        self.require_whole()
        units = self._units_for(request, block_size)
        ids = self.ids_of(blocks)
        keys = request.keys(units)
        size: int = len(ids)  # no i64, with which no larger argument could be compared
        most = min(size, int(keys.num_blocks()))
        num_cached_blocks = operator.index(num_cached_blocks)
        num_full_blocks = operator.index(num_full_blocks)
        if not 0 <= num_cached_blocks <= num_full_blocks <= most:
            raise InvalidArgumentError(
                f"num_full_blocks: needs 0 <= {num_cached_blocks} <= {num_full_blocks} <= full blocks of the request "
                f"({keys.num_blocks()}) and of the table ({len(ids)})"
            )
        for block in ids[num_cached_blocks:num_full_blocks]:
            if block != 0 and self.ref_count(i64(block)) == 0:
                raise BlockError(f"blocks: block {block} is not held; only held blocks are published")
            others = self.num_external_holders(i64(block))
            if not self._index.has_key(i64(block)) and self.ref_count(i64(block)) != others:
                raise BlockError(f"blocks: block {block} is held by a request, and its manager publishes it")
        keys.ensure_keys(num_full_blocks)
        try:
            self._publish(ids, request, units, kv_cache_group_id, block_size, num_cached_blocks, num_full_blocks)
        except BaseException:
            self._tear()
            raise

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the free queue, each held once from outside and without content. O(num_blocks).

        Raises:
            InvalidArgumentError: a negative number.
            NoFreeBlocksError: fewer are free; none is taken.
        """
        self.require_whole()
        wanted = operator.index(num_blocks)
        if wanted < 0:
            raise InvalidArgumentError(f"num_blocks: must not be negative, {num_blocks} is")
        if wanted > int(self._num_free):
            raise NoFreeBlocksError(f"num_blocks: {num_blocks} blocks asked for, {self._num_free} are free")
        ids = zeros32(wanted)
        # The views are made before any block is taken, since they need memory; their ids are written at the end.
        views = self.views(ids)
        if len(ids) > 0:
            self._reserve_external()
        for each in self._listeners:
            each.begins()
        try:
            self._serve(0)
            self._fill(ids, 0, wanted)
            self._add_external_holders(ids, 1)
            for each in self._listeners:
                each.took(ids, self._num_free)
            at: i64 = 0
            while at < i64(len(ids)):
                views[at]._id = i64(ids[at])
                at += 1
        except BaseException:
            self._tear()
            raise
        return views

    def touch(self, blocks: Iterable[object]) -> None:
        """Hold each block once more from outside (null ones are passed over); candidates leave the free queue.

        Complexity: O(blocks).

        Raises:
            BlockError: a block is foreign, or free without content, so that there is nothing to hold. No block is
                touched then.
        """
        self.require_whole()
        ids = self.ids_of(blocks)
        for block in ids:
            if block != 0 and self.ref_count(i64(block)) == 0 and not self._index.has_key(i64(block)):
                raise BlockError(f"blocks: block {block} is free and has no content; take blocks with get_new_blocks")
        if len(ids) > 0:
            self._reserve_external()
        try:
            self._add_external_holders(ids, 1)
            self._touch_entries(ids, True)
        except BaseException:
            self._tear()
            raise

    def free_blocks(self, ordered_blocks: Iterable[object]) -> None:
        """Let go of one hold from outside of each block, in this order; the first one left unheld is evicted first.

        Null blocks are passed over; a block may be in the batch once for each of its holds from outside. Only the
        manager releases the blocks of its requests. Complexity: O(blocks). law: OUTSIDE-1.

        Raises:
            BlockError: a block is foreign, or not held from outside that often; none is released.
        """
        self.require_whole()
        ids = self.ids_of(ordered_blocks)
        seen: dict[int, int] = {}
        # The engine's order is that of eviction, and `_release` goes through its range from the end on.
        backwards = vec[i32](capacity=len(ids))
        i: i64 = len(ids)
        while i > 0:
            i -= 1
            block = ids[i]
            backwards = append(backwards, block)
            if block != 0:
                times = seen.get(int(block), 0) + 1
                seen[int(block)] = times
                own = self.num_external_holders(i64(block))
                if times > own:
                    raise BlockError(
                        f"ordered_blocks: block {block} is held {own} times through get_new_blocks and touch, and "
                        "released more often; only the manager releases a request's blocks"
                    )
        try:
            self._add_external_holders(ids, -1)
            self._release(backwards, 0, len(backwards))
        except BaseException:
            self._tear()
            raise

    def _use(self, tables: list[vec[i32]]) -> None:
        """Have the candidates among the blocks of a hit evicted as if they were released now, group by group."""
        try:
            for ids in tables:
                self._touch_entries(ids, True)
            for ids in tables:
                self._release(ids, 0, len(ids))
        except BaseException:
            self._tear()
            raise

    def ids_of(self, blocks: Iterable[object]) -> vec[i32]:
        """Return the ids of blocks given as ids or views, checked to be this pool's. O(blocks)."""
        ids = vec[i32]()
        for given in blocks:
            block: object = given
            if isinstance(given, KVCacheBlock):
                # A view of another pool has an id that is valid here as well, but means another block.
                block = given.block_id if given.is_of(self) else None
            if isinstance(block, bool) or not isinstance(block, int) or not 0 <= block < int(self._count):
                raise BlockError(f"blocks: {given!r} is not a block of this pool of {self._count} blocks")
            ids = append(ids, i32(block))
        return ids

    def views(self, ids: vec[i32]) -> list[KVCacheBlock]:
        """Return a view of each block. O(blocks)."""
        return [KVCacheBlock(self, i64(block)) for block in ids]

    def reset_prefix_cache(self) -> bool:
        """Drop every key; False, and nothing happens, while any block is held. O(num_blocks)."""
        self.require_whole()
        return self._forget_all()

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call, oldest first; empty unless they are recorded."""
        return [] if self._history is None else self._history.take_events()

    def take_evictions(self) -> list[Eviction]:
        """Return the evictions since the last call, oldest first; empty unless they are recorded.

        Raises:
            JournalGapError: more have come in between than are kept. The next call returns those after them.
        """
        return [] if self._history is None else self._history.read_evictions(0)

    def read_evictions(self, *, from_start: bool = False) -> EvictionReader:
        """Return a reader of the evictions from now on, or, from the start, the one behind `take_evictions`.

        Raises:
            UnsupportedError: made without ``track_evictions``.
        """
        history = self._history
        if history is None or history.evictions is None:
            raise UnsupportedError("track_evictions: evictions are recorded only with track_evictions=True")
        return EvictionReader(history, 0 if from_start else history.add_eviction_reader())

    def take_losses(self) -> dict[int, int]:
        """Return how many keys were lost since the last call, by ``3 * group + cause - 1``; empty if not counted."""
        losses = None if self._history is None else self._history.losses
        return {} if losses is None else losses.take_counts()

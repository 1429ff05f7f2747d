"""The pool: who holds which block, which block is taken next, and which prefix a block carries.

The life of a block (ids start at 1; block 0 is the null block and takes part in none of this):

    1. free without content       in the free queue's front part; taken first
    2. held                       count >= 1; written by its one holder
    3. held and published         carries a key; may be found and held by others too
    4. eviction candidate         free, still published; in the queue's back part, least recently released first
    1 -> 2 take    2 -> 3 publish    3 -> 4 release    4 -> 3 touch (a hit)    4 -> 2 take (the key is dropped)
    2 -> 1 release

`BlockPool` is the only writer of the counters, the free queue and the prefix index. All of them are packed arrays: about
60 bytes per block, no Python object per block, every operation O(1) per block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from typing import final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.block_hash import word_bytes
from blockwright.core.index import PrefixIndex, zeros32
from blockwright.core.request import BlockKeys, Request
from blockwright.errors import BlockError, InvalidArgumentError, InvariantError, NoFreeBlocksError, StaleHitError
from blockwright.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

MAX_BLOCKS = 2**30


@final
class BlockPool:
    """Counters, free queue and prefix index over `num_blocks` blocks.

    Attributes:
        num_blocks: blocks, the null block included.
        enable_caching: whether blocks are published at all.
        num_free: blocks in the free queue.
        num_evictions: eviction candidates taken so far, each of which lost its content.
    """

    def __init__(
        self,
        num_blocks: int,
        enable_caching: bool = True,
        *,
        enable_kv_cache_events: bool = False,
        verify_tokens: bool = False,
        source: BlockPool | None = None,
    ) -> None:
        """Make a pool with every block free and without content.

        Args:
            num_blocks: at least 2, since block 0 is the null block; at most 2**30.
            enable_caching: see above.
            enable_kv_cache_events: record events for `take_events`.
            verify_tokens: remember the exact prefix of each published block and compare it on each hit; needed with
                a hasher that is not collision resistant. Costs memory in the order of the prefixes.
            source: internal, the pool to copy.

        Complexity: O(num_blocks).

        Raises:
            InvalidArgumentError: names the argument.
        """
        if source is not None:
            self._copy_fields(source)
            return
        if isinstance(num_blocks, bool) or not 2 <= num_blocks <= MAX_BLOCKS:
            raise InvalidArgumentError(
                f"num_blocks: must be within 2..{MAX_BLOCKS} (block 0 is the null block), not {num_blocks!r}"
            )
        if enable_kv_cache_events and not enable_caching:
            raise InvalidArgumentError("enable_kv_cache_events: there are no events without enable_caching")
        count: i64 = num_blocks
        self._count: i64 = count
        self.enable_caching = enable_caching
        self._index = PrefixIndex(count)
        self._ref: vec[i32] = zeros32(count)
        # A ring through the free blocks; the null block, never free, is where it begins and ends.
        self._next: vec[i32] = zeros32(count)
        self._prev: vec[i32] = zeros32(count)
        block: i64 = 0
        while block < count:
            self._next[block] = i32(block + 1 if block + 1 < count else 0)
            self._prev[block] = i32(block - 1 if block > 0 else count - 1)
            block += 1
        self._num_free: i64 = count - 1
        self._num_evictions: i64 = 0
        self._events: list[KVCacheEvent] | None = [] if enable_kv_cache_events else None
        self._contents: dict[int, bytes] | None = {} if verify_tokens else None
        self._digests: dict[int, bytes] = {}

    def _copy_fields(self, source: BlockPool) -> None:
        """Become an independent copy of `source`."""
        self._count = source._count
        self.enable_caching = source.enable_caching
        self._index = source._index.copy()
        self._ref = source._ref[:]
        self._next = source._next[:]
        self._prev = source._prev[:]
        self._num_free = source._num_free
        self._num_evictions = source._num_evictions
        events = source._events
        self._events = None if events is None else events[:]
        contents = source._contents
        self._contents = None if contents is None else contents.copy()
        self._digests = source._digests.copy() if source._digests else {}

    def copy(self) -> BlockPool:
        """Return an independent copy. O(num_blocks)."""
        return BlockPool(2, source=self)

    # ------------------------------------------------------------------ what it says of itself

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
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
        return self._events is not None

    @property
    def verifies_tokens(self) -> bool:
        """Whether hits are verified token by token."""
        return self._contents is not None

    @property
    def null_block(self) -> KVCacheBlock:
        """The null block, id 0: placeholder for "nothing here that anyone will read"."""
        return KVCacheBlock(self, 0)

    def get_num_free_blocks(self) -> int:
        """Return how many blocks can be taken. O(1)."""
        return self._num_free

    def get_usage(self) -> float:
        """Return the share of blocks that are held, 0.0 to 1.0. O(1)."""
        return 1.0 - float(self._num_free) / float(self._count - 1)

    def free_block_ids(self) -> list[int]:
        """Return the free queue in the order in which blocks will be taken. O(num_free)."""
        ids = []
        block: i64 = i64(self._next[0])
        while block != 0:
            ids.append(int(block))
            block = i64(self._next[block])
        return ids

    def ref_counts(self) -> list[int]:
        """Return the number of holders of each block, by id. O(num_blocks)."""
        return [int(count) for count in self._ref]

    def block_keys(self) -> list[bytes | None]:
        """Return the 16-byte key of each block, by id; None where it is not published. O(num_blocks)."""
        return [self.block_key(block) for block in range(self._count)]

    def block_key(self, block: i64) -> bytes | None:
        """Return the 16-byte key of one block, or None. O(1)."""
        if not self._index.has_key(block):
            return None
        low, high, group = self._index.key(block)
        return word_bytes(low, high)

    def is_published(self, block: i64) -> bool:
        """Say whether a block carries a key. O(1)."""
        return self._index.has_key(block)

    def ref_count(self, block: i64) -> i64:
        """Return the number of holders of one block. O(1)."""
        return i64(self._ref[block])

    # ------------------------------------------------------------------ the free queue

    def take(self, count: i64, ids: vec[i32]) -> vec[i32]:
        """Append `count` blocks from the queue's head to `ids`, each held once and without key.

        The caller has checked that they are there. law: QUEUE-1, REF-1.
        """
        following = self._next
        ref = self._ref
        index = self._index
        older = index.older
        plain = self._contents is None and self._events is None
        block: i64 = i64(following[0])
        at: i64 = len(ids)
        stop = at + count
        evicted: i64 = 0
        ids = append(ids, 0) if count == 1 else extend(ids, zeros32(count))
        while at < stop:
            if older[block] != 0:
                evicted += 1
                if plain:
                    index.drop(block)
                else:
                    self._forget(block)
            ref[block] = 1
            ids[at] = i32(block)
            block = i64(following[block])
            at += 1
        following[0] = i32(block)
        self._prev[block] = 0
        self._num_free -= count
        self._num_evictions += evicted
        return ids

    def touch_entries(self, ids: vec[i32]) -> None:
        """Hold each non-null block of a hit once more; free ones leave the queue. law: REF-1."""
        ref = self._ref
        following = self._next
        before = self._prev
        size: i64 = len(ids)
        i: i64 = 0
        while i < size:
            block: i64 = i64(ids[i])
            i += 1
            if block == 0:
                continue
            if ref[block] == 0:
                following[i64(before[block])] = following[block]
                before[i64(following[block])] = before[block]
                self._num_free -= 1
            ref[block] += 1

    def release(self, ids: vec[i32], start: i64, stop: i64) -> None:
        """Give up one holder of each non-null entry in a range of a table, last entry first.

        Blocks that nobody holds any more go to the queue: behind the eviction candidates if published, to the head if
        not. law: REF-1, QUEUE-1.
        """
        ref = self._ref
        following = self._next
        before = self._prev
        older = self._index.older
        i = stop
        tail: i64 = i64(before[0])
        freed: i64 = 0
        while i > start:
            i -= 1
            block: i64 = i64(ids[i])
            if block == 0:
                continue
            count: i64 = i64(ref[block]) - 1
            ref[block] = i32(count)
            if count > 0:
                continue
            freed += 1
            if older[block] != 0:
                following[tail] = i32(block)
                before[block] = i32(tail)
                tail = block
            else:
                head: i64 = i64(following[0])
                if tail == 0:
                    tail = block
                following[0] = i32(block)
                before[block] = 0
                following[block] = i32(head)
                before[head] = i32(block)
        following[tail] = 0
        before[0] = i32(tail)
        self._num_free += freed

    # ------------------------------------------------------------------ the prefix index

    def find(self, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> i64:
        """Return the block that serves a hit on the request's block `index`, or 0. O(1)."""
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        block = self._index.find(keys.words[at], keys.words[at + 1], group)
        contents = self._contents
        if contents is None or block == 0:
            return block
        wanted = keys.content(index, block_size)
        oldest = block
        while block != 0 and contents[block] != wanted:
            block = self._index.next_duplicate(block, oldest)
        return block

    def find_run(
        self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, start: i64, stop: i64
    ) -> vec[i32]:
        """Return `ids` (of `stop` entries) filled from `start` and cut before the first block that is missing."""
        i = start
        if self._contents is None:
            i = self._index.find_run(keys.words, 2 * keys.units, group, ids, start, stop)
        else:
            while i < stop:
                block = self.find(keys, i, group, block_size)
                if block == 0:
                    break
                ids[i] = i32(block)
                i += 1
        return ids if i == stop else ids[:i]

    def carries(self, block: i64, keys: BlockKeys, index: i64, group: i64, block_size: i64) -> bool:
        """Say whether a block is published under exactly the key of the request's block `index`. O(1)."""
        at: i64 = 2 * ((index + 1) * keys.units - 1)
        if not self._index.matches(block, keys.words[at], keys.words[at + 1], group):
            return False
        contents = self._contents
        return contents is None or contents[block] == keys.content(index, block_size)

    def count_free_hits(self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, first: i64) -> i64:
        """Check a hit and return how many of its blocks are free now.

        Entries below `first` must be null; every other must still carry the request's own key. O(entries).

        Raises:
            StaleHitError: one of them does not.
        """
        size: i64 = len(ids)
        if size > keys.num_blocks():
            raise StaleHitError(f"new_computed_blocks: {size} blocks for a request with {keys.num_blocks()} full blocks")
        i: i64 = 0
        while i < first:
            if ids[i] != 0:
                raise StaleHitError(f"new_computed_blocks: entry {i} is outside the window but not the null block")
            i += 1
        bad = self._index.match_run(keys.words, 2 * keys.units, group, ids, first)
        if self._contents is not None:
            while i < bad and self.carries(i64(ids[i]), keys, i, group, block_size):
                i += 1
            bad = i
        if bad < size:
            raise StaleHitError(
                f"new_computed_blocks: block {ids[bad]} at entry {bad} no longer holds this request's prefix; "
                "look the hit up again"
            )
        ref = self._ref
        free: i64 = 0
        i = first
        while i < size:
            if ref[i64(ids[i])] == 0:
                free += 1
            i += 1
        return free

    def publish(self, ids: vec[i32], keys: BlockKeys, group: i64, block_size: i64, start: i64, stop: i64) -> None:
        """Make the full, non-null blocks of a range of a table findable. law: PUB-1, PUB-2."""
        index = self._index
        older = index.older
        words = keys.words
        units = keys.units
        plain = self._contents is None and self._events is None
        i = start
        while i < stop:
            block: i64 = i64(ids[i])
            if block != 0 and older[block] == 0:
                at: i64 = 2 * ((i + 1) * units - 1)
                is_new = index.add(block, words[at], words[at + 1], group)
                if not plain:
                    self._record_stored(block, keys, i, group, block_size, is_new)
            i += 1

    def _record_stored(self, block: i64, keys: BlockKeys, index: i64, group: i64, block_size: i64, is_new: bool) -> None:
        """Remember the content of a published block, and tell of a new prefix."""
        contents = self._contents
        if contents is not None:
            contents[block] = keys.content(index, block_size)
        events = self._events
        request = keys.request
        if events is not None and request is not None:
            digest = request.block_digest((index + 1) * keys.units - 1)
            parent = request.block_digest(index * keys.units - 1) if index > 0 else None
            self._digests[block] = digest
            if is_new:
                tokens = tuple([int(request.token_at(p)) for p in range(index * block_size, (index + 1) * block_size)])
                events.append(BlockStored(digest, parent, tokens, int(block_size), request.lora_name, int(group)))

    def _forget(self, block: i64) -> None:
        """Drop a block's key. law: PUB-1."""
        group = self._index.key(block)[2]
        was_last = self._index.drop(block)
        contents = self._contents
        if contents is not None:
            del contents[block]
        events = self._events
        if events is not None:
            digest = self._digests.pop(block)
            if was_last:
                events.append(BlockRemoved(digest, int(group)))

    def reset_prefix_cache(self) -> bool:
        """Drop every key; False, and nothing happens, while any block is held. O(num_blocks)."""
        if self._num_free != self._count - 1:
            return False
        self._index.clear()
        if self._contents is not None:
            self._contents = {}
        self._digests = {}
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call, oldest first; empty unless they are recorded."""
        events = self._events
        if events is None:
            return []
        self._events = []
        return events

    # ------------------------------------------------------------------ the names engine developers know

    def get_cached_block(self, block_hash: bytes, group_ids: Sequence[int]) -> list[KVCacheBlock] | None:
        """Return one block per group that holds the prefix with this hash, or None unless all groups have one.

        Complexity: O(groups).

        Raises:
            InvalidArgumentError: the hash is shorter than 16 bytes.
        """
        low, high = hash_words(block_hash)
        found = []
        for group in group_ids:
            block = self._index.find(low, high, group)
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

        Complexity: O(blocks published).

        Raises:
            InvalidArgumentError: a count is out of range, or the request has no keys for them.
            BlockError: a block is foreign or not held.
        """
        if not self.enable_caching:
            return
        units = units_per_block(request, block_size)
        ids = self.ids_of(blocks)
        keys = request.keys(units)
        if not 0 <= num_cached_blocks <= num_full_blocks <= min(len(ids), int(keys.num_blocks())):
            raise InvalidArgumentError(
                f"num_full_blocks: needs 0 <= {num_cached_blocks} <= {num_full_blocks} <= full blocks of the request "
                f"({keys.num_blocks()}) and of the table ({len(ids)})"
            )
        for block in ids[num_cached_blocks:num_full_blocks]:
            if block != 0 and self._ref[i64(block)] == 0:
                raise BlockError(f"blocks: block {block} is not held; only held blocks are published")
        self.publish(ids, keys, kv_cache_group_id, block_size, num_cached_blocks, num_full_blocks)

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the free queue, each held once and without content. O(num_blocks).

        Raises:
            InvalidArgumentError: a negative number.
            NoFreeBlocksError: fewer are free; none is taken.
        """
        if num_blocks < 0:
            raise InvalidArgumentError(f"num_blocks: must not be negative, {num_blocks} is")
        if num_blocks > self._num_free:
            raise NoFreeBlocksError(f"num_blocks: {num_blocks} blocks asked for, {self._num_free} are free")
        return self.views(self.take(num_blocks, vec[i32]()))

    def touch(self, blocks: Iterable[object]) -> None:
        """Hold each block once more (null ones are passed over); eviction candidates leave the free queue.

        Complexity: O(blocks).

        Raises:
            BlockError: a block is foreign, or free without content, so that there is nothing to hold; none is touched.
        """
        ids = self.ids_of(blocks)
        for block in ids:
            if block != 0 and self._ref[i64(block)] == 0 and not self._index.has_key(i64(block)):
                raise BlockError(f"blocks: block {block} is free and has no content; take blocks with get_new_blocks")
        self.touch_entries(ids)

    def free_blocks(self, ordered_blocks: Iterable[object]) -> None:
        """Release one holder of each block in this order; the first released without holder is evicted first.

        Null blocks are passed over; a block may stand in the batch as often as it is held. O(blocks).

        Raises:
            BlockError: a block is foreign, or not held that often; none is released.
        """
        ids = self.ids_of(ordered_blocks)
        seen: dict[int, int] = {}
        backwards = vec[i32](capacity=len(ids))
        i: i64 = len(ids)
        while i > 0:
            i -= 1
            block = ids[i]
            backwards = append(backwards, block)
            if block != 0:
                times = seen.get(int(block), 0) + 1
                seen[int(block)] = times
                if times > self._ref[i64(block)]:
                    raise BlockError(
                        f"ordered_blocks: block {block} has {self._ref[i64(block)]} holders, released {times} times"
                    )
        self.release(backwards, 0, len(backwards))

    def ids_of(self, blocks: Iterable[object]) -> vec[i32]:
        """Return the ids of blocks given as ids or views, checked to be this pool's. O(blocks)."""
        ids = vec[i32]()
        for given in blocks:
            block = given if isinstance(given, int) else getattr(given, "block_id", None)
            if not isinstance(block, int) or isinstance(block, bool) or not 0 <= block < self._count:
                raise BlockError(f"blocks: {given!r} is not a block of this pool of {self._count} blocks")
            ids = append(ids, i32(block))
        return ids

    def views(self, ids: vec[i32]) -> list[KVCacheBlock]:
        """Return a view of each block. O(blocks)."""
        return [KVCacheBlock(self, i64(block)) for block in ids]

    # ------------------------------------------------------------------ self-check

    def check(self) -> None:
        """Recompute the pool's own invariants from scratch. O(num_blocks).

        Raises:
            InvariantError: names the law and shows both sides.
        """
        queue = self.free_block_ids()
        _demand("QUEUE-1", "blocks in the free queue", int(self._num_free), len(queue))
        _demand("QUEUE-1", "the queue has each block once", len(set(queue)), len(queue))
        backwards: list[int] = []
        block: i64 = i64(self._prev[0])
        while block != 0 and len(backwards) <= len(queue):
            backwards.append(int(block))
            block = i64(self._prev[block])
        _demand("QUEUE-1", "the queue read backwards", queue[::-1], backwards)
        free = [block for block in range(1, self._count) if self._ref[block] == 0]
        _demand("REF-1", "free blocks are those without holder", free, sorted(queue))
        keyed = [self._index.has_key(block) for block in queue]
        _demand("QUEUE-1", "blocks without content come first", sorted(keyed), keyed)
        _demand("NULL-1", "holders of the null block", 0, int(self._ref[0]))
        _demand("NULL-1", "the null block carries no key", False, self._index.has_key(0))
        self._check_index()

    def _check_index(self) -> None:
        """Check that slots, rings and keys agree."""
        ringed: list[int] = []
        for oldest in self._index.slot_blocks():
            low, high, group = self._index.key(oldest)
            _demand("PUB-1", f"block found under the key of block {oldest}", oldest, int(self._index.find(low, high, group)))
            block: i64 = oldest
            while block != 0 and len(ringed) <= self._count:
                _demand("PUB-1", f"block {block} has its ring's key", True, self._index.matches(block, low, high, group))
                ringed.append(int(block))
                block = self._index.next_duplicate(block, oldest)
        keyed = [block for block in range(self._count) if self._index.has_key(block)]
        _demand("PUB-1", "published blocks are those in the index", keyed, sorted(ringed))
        _demand("PUB-1", "number of published blocks", len(keyed), int(self._index.num_keyed))
        contents = self._contents
        if contents is not None:
            _demand("PUB-1", "blocks with remembered content", keyed, sorted(contents))


def _demand(law: str, what: str, expected: object, actual: object) -> None:
    """Raise `InvariantError` unless both sides are equal."""
    if expected != actual:
        raise InvariantError(law, what, expected, actual)


@final
class KVCacheBlock:
    """A view of one block: cheap to make, nothing is stored per block.

    Attributes:
        block_id: id within the pool.
    """

    def __init__(self, pool: BlockPool, block_id: i64) -> None:
        """Look at a block of a pool."""
        self._pool = pool
        self._id: i64 = block_id

    @property
    def block_id(self) -> int:
        """Id within the pool."""
        return self._id

    @property
    def ref_cnt(self) -> int:
        """Number of holders now."""
        return self._pool.ref_count(self._id)

    @property
    def block_hash(self) -> bytes | None:
        """The 16-byte key it is published under now, or None."""
        return self._pool.block_key(self._id)

    @property
    def is_null(self) -> bool:
        """Whether it is the null block."""
        return self._id == 0

    def __index__(self) -> int:
        """Return the id, so that a view can index a tensor of blocks."""
        return self._id

    def __eq__(self, other: object) -> bool:
        """Compare pool and id."""
        return isinstance(other, KVCacheBlock) and other._pool is self._pool and other._id == self._id

    def __hash__(self) -> int:
        """Hash by id."""
        return hash(int(self._id))

    def __repr__(self) -> str:
        """Describe the block in one line."""
        return f"KVCacheBlock({self._id}, ref_cnt={self.ref_cnt}, published={self.block_hash is not None})"


def hash_words(block_hash: bytes) -> tuple[i64, i64]:
    """Return the first 16 bytes of a block hash as two words.

    Raises:
        InvalidArgumentError: it is shorter.
    """
    if not isinstance(block_hash, bytes) or len(block_hash) < 16:
        raise InvalidArgumentError(f"block_hash: must be bytes, at least 16 of them, not {block_hash!r}")
    low = int.from_bytes(block_hash[:8], "little", signed=True)
    high = int.from_bytes(block_hash[8:16], "little", signed=True)
    return low, high


def units_per_block(request: Request, block_size: int) -> int:
    """Return how many hashed units of the request one block of `block_size` tokens spans.

    Raises:
        InvalidArgumentError: the request was hashed with a block size that does not divide it.
    """
    unit = request.block_size
    if unit is None or block_size % unit:
        raise InvalidArgumentError(
            f"request: {request.request_id!r} was made with block_size={unit}, the manager's blocks hold {block_size} tokens; "
            "make it with the manager's block size"
        )
    return block_size // unit

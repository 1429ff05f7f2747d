"""Blocks handed out to an engine: ids as packed buffers, and views that are made only when they are asked for."""

from __future__ import annotations

from typing import final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import Request
from blockwright.core.pool.store import BlockStore
from blockwright.errors import InvalidArgumentError, UnsupportedError


@final
class KVCacheBlock:
    """A view of one block: cheap to make, nothing is stored per block.

    Attributes:
        block_id: id within the pool.
    """

    def __init__(self, pool: BlockStore, block_id: i64) -> None:
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

    def is_of(self, pool: BlockStore) -> bool:
        """Return whether it is a block of this pool."""
        return self._pool is pool

    def __eq__(self, other: object) -> bool:
        """Compare pool and id; leave other types to the other side."""
        if not isinstance(other, KVCacheBlock):
            return NotImplemented
        return other._pool is self._pool and other._id == self._id

    def __hash__(self) -> int:
        """Hash by id."""
        return hash(int(self._id))

    def __repr__(self) -> str:
        """Describe the block in one line."""
        return f"KVCacheBlock({self._id}, ref_cnt={self.ref_cnt}, published={self.block_hash is not None})"


@final
class KVCacheBlocks:
    """Blocks of one request, a list per group; they belong to one pool, so send `get_block_ids()` to other processes.

    The answer of a call for slots also says what else that call changed, as a `BatchAllocation` does.

    Attributes:
        ids: one buffer of block ids per group (``vec[i32]``; numpy and torch view it without a copy). Do not write.
    """

    def __init__(self, pool: BlockStore, ids: list[vec[i32]]) -> None:
        """Take the ids as they are."""
        # The pool is kept to tell a stale or foreign hit from a good one when the blocks are handed back.
        self._pool = pool
        self.ids = ids
        self._request: Request | None = None  # for which they were looked up, and when
        self._version: i64 = 0
        # Entries that became null, group after group, and how many of each run of groups; what was put in place.
        self._nulled: vec[i32] = vec[i32]()
        self._nulled_each: vec[i32] = vec[i32]()
        self._runs: vec[i32] = vec[i32]()
        self._replaced: vec[i32] = vec[i32]()

    def note(self, nulled: vec[i32], nulled_each: vec[i32], runs: vec[i32], replaced: vec[i32]) -> None:
        """Note what the call that answers with these blocks changed in the request's tables. Takes no memory."""
        self._nulled = nulled
        self._nulled_each = nulled_each
        self._runs = runs
        self._replaced = replaced

    @property
    def nulled_entries(self) -> tuple[list[int], ...]:
        """Table indices that became null in the call, since no later token reads them, a list per group. O(entries)."""
        found: list[list[int]] = [[] for _ in self.ids]
        at: i64 = 0
        start: i64 = 0
        while len(self._nulled) > 0 and at < i64(len(found)):
            stop: i64 = i64(self._runs[at])
            count: i64 = i64(self._nulled_each[at])  # in each group of a run
            while at < stop:
                end = start + count
                found[at] = [int(entry) for entry in self._nulled[start:end]]
                start = end
                at += 1
        return tuple(found)

    @property
    def replaced_entries(self) -> list[tuple[int, int, int]]:
        """Group, table index and new block of each entry that is copied, as its block is shared. O(entries)."""
        numbers = [int(number) for number in self._replaced]
        return [(numbers[i + 1], numbers[i + 2], numbers[i + 3]) for i in range(0, len(numbers), 4)]

    def stamp(self, request: Request) -> None:
        """Note that the blocks have just been looked up for a request."""
        self._request = request
        self._version = self._pool._version

    def is_fresh(self, request: Request) -> bool:
        """Return whether nothing has been taken, released or forgotten since they were looked up for a request. O(1).

        They hold its prefix then, so that there is nothing to check.
        """
        # The pool's version changes with each taking and release, so that no entry has to be compared.
        return self._request is request and self._version == self._pool._version

    @property
    def blocks(self) -> tuple[list[KVCacheBlock], ...]:
        """Views of the blocks, a list per group. O(blocks)."""
        return tuple([[KVCacheBlock(self._pool, i64(block)) for block in ids] for ids in self.ids])

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: list[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return the ids, a list per group; None if there are none at all and `allow_none`. O(blocks).

        Args:
            allow_none: see above.
            group_ids: numbers of the groups to return, in this order; None returns all.

        Raises:
            InvalidArgumentError: there is no such group.
        """
        groups = self.ids
        if group_ids is not None:
            size: int = len(groups)
            groups = []
            for group in group_ids:
                if not 0 <= group < size:
                    raise InvalidArgumentError(f"group_ids: must be within 0..{size - 1}, not {group}")
                groups.append(self.ids[group])
        if allow_none and not any([len(ids) for ids in groups]):
            return None
        return tuple([[int(block) for block in ids] for ids in groups])

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the ids of the first group's blocks that are neither null nor published. O(blocks)."""
        return self._unhashed(self.ids[0])

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Return the ids of the blocks that are neither null nor published, a list per group. O(blocks)."""
        return [self._unhashed(ids) for ids in self.ids]

    def _unhashed(self, ids: vec[i32]) -> list[int]:
        return [int(block) for block in ids if block != 0 and not self._pool.is_published(i64(block))]

    def new_empty(self) -> KVCacheBlocks:
        """Return an object of the same groups without blocks."""
        return KVCacheBlocks(self._pool, [vec[i32]() for _ in self.ids])

    def __add__(self, other: KVCacheBlocks) -> KVCacheBlocks:
        """Return the blocks of both, group by group.

        Raises:
            InvalidArgumentError: another pool, or another number of groups.
        """
        if other._pool is not self._pool or len(other.ids) != len(self.ids):
            raise InvalidArgumentError("other: blocks of another pool or another number of groups cannot be added")
        return KVCacheBlocks(self._pool, [extend(ids[:], more) for ids, more in zip(self.ids, other.ids)])

    def __eq__(self, other: object) -> bool:
        """Compare pool and ids."""
        return isinstance(other, KVCacheBlocks) and other._pool is self._pool and other.ids == self.ids

    def __hash__(self) -> int:
        """Hash by the number of blocks."""
        return hash(tuple([len(ids) for ids in self.ids]))

    def __copy__(self) -> KVCacheBlocks:
        """Return the same blocks again."""
        return KVCacheBlocks(self._pool, self.ids[:])

    def __reduce__(self) -> str:
        """Refuse to be pickled or copied deeply."""
        raise UnsupportedError("KVCacheBlocks: of one pool, so neither pickled nor copied deeply; use get_block_ids()")

    def __repr__(self) -> str:
        """Show the ids."""
        return f"KVCacheBlocks({self.get_block_ids()})"

    def pool_is(self, pool: BlockStore) -> bool:
        """Return whether the blocks are of this pool."""
        return self._pool is pool

"""What the manager hands out: block ids per group, as packed buffers, and views only when asked."""

from __future__ import annotations

from typing import final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.pool import BlockPool, KVCacheBlock
from blockwright.errors import InvalidArgumentError


@final
class KVCacheBlocks:
    """Blocks of one request, a list per group; they are of one pool, so what is sent elsewhere is `get_block_ids()`.

    Attributes:
        ids: one buffer of block ids per group (``vec[i32]``; numpy and torch view it without a copy). Do not write.
    """

    def __init__(self, pool: BlockPool, ids: list[vec[i32]]) -> None:
        """Take the ids as they are."""
        self._pool = pool
        self.ids = ids

    @property
    def blocks(self) -> tuple[list[KVCacheBlock], ...]:
        """Views of the blocks, a list per group. O(blocks)."""
        return tuple([self._pool.views(ids) for ids in self.ids])

    def get_block_ids(self, allow_none: bool = False) -> tuple[list[int], ...] | None:
        """Return the ids, a list per group; None if there are none at all and `allow_none`. O(blocks)."""
        if allow_none and not any([len(ids) for ids in self.ids]):
            return None
        return tuple([[int(block) for block in ids] for ids in self.ids])

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the ids of the first group's blocks that are neither null nor published. O(blocks)."""
        return [int(block) for block in self.ids[0] if block != 0 and not self._pool.is_published(i64(block))]

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

    def __repr__(self) -> str:
        """Show the ids."""
        return f"KVCacheBlocks({self.get_block_ids()})"

    def pool_is(self, pool: BlockPool) -> bool:
        """Say whether the blocks are of this pool."""
        return self._pool is pool


@final
class BatchAllocation:
    """What one step's batch changed in the block tables, as flat buffers.

    For request i (in the order given) and group g of G, ``offsets[i * G + g] : offsets[i * G + g + 1]`` is its slice. A
    replica of the tables stays equal to them by: append the new block ids (0 where a recurrent layer jumped over an
    entry), set the nulled entries to 0, and put in the replaced ones, which are copied (`take_copies`). All buffers are
    ``vec[i32]``: numpy and torch view them without a copy.

    Attributes:
        num_served: requests that got their slots, a leading part of the batch.
        refused: index of the first request that did not fit, None if all were served.
        new_block_ids, new_block_offsets: ids appended to the tables.
        nulled_entries, nulled_offsets: table indices that became null, because no later token reads them.
        replaced_entries: four numbers each: index of the request, group, table index, and the block that stands there
            now, because the one before is shared with a fork.
        number: a later batch of the manager, or of a copy of it, has a greater one; 0: not known.
        request_ids: of the requests of the batch, in order, "" where a step changed only counts. One that published,
            or was looked through for entries to null, is named though its table may be as it was. Empty: not known.
    """

    def __init__(
        self,
        num_served: int,
        refused: int | None,
        new_block_ids: vec[i32],
        new_block_offsets: vec[i32],
        nulled_entries: vec[i32],
        nulled_offsets: vec[i32],
        replaced_entries: vec[i32],
        number: int = 0,
        request_ids: list[str] | None = None,
    ) -> None:
        """Take the fields as they are."""
        self.num_served = num_served
        self.refused = refused
        self.new_block_ids: vec[i32] = new_block_ids
        self.new_block_offsets: vec[i32] = new_block_offsets
        self.nulled_entries: vec[i32] = nulled_entries
        self.nulled_offsets: vec[i32] = nulled_offsets
        self.replaced_entries: vec[i32] = replaced_entries
        self.number = number
        self.request_ids: list[str] = [] if request_ids is None else request_ids

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle the buffers as bytes, in this machine's byte order, for workers of other processes. O(changes)."""
        return restored_allocation, (
            self.num_served,
            self.refused,
            bytes(memoryview(self.new_block_ids)),
            bytes(memoryview(self.new_block_offsets)),
            bytes(memoryview(self.nulled_entries)),
            bytes(memoryview(self.nulled_offsets)),
            bytes(memoryview(self.replaced_entries)),
            self.number,
            self.request_ids,
        )

    def __repr__(self) -> str:
        """Summarise the batch in one line."""
        return (
            f"BatchAllocation(num_served={self.num_served}, refused={self.refused}, "
            f"new_blocks={len(self.new_block_ids)}, nulled={len(self.nulled_entries)})"
        )


def restored_allocation(
    num_served: int,
    refused: int | None,
    new_block_ids: bytes,
    new_block_offsets: bytes,
    nulled_entries: bytes,
    nulled_offsets: bytes,
    replaced_entries: bytes,
    number: int,
    request_ids: list[str],
) -> BatchAllocation:
    """Return a pickled `BatchAllocation`. O(changes)."""
    return BatchAllocation(
        num_served,
        refused,
        _unpacked(new_block_ids),
        _unpacked(new_block_offsets),
        _unpacked(nulled_entries),
        _unpacked(nulled_offsets),
        _unpacked(replaced_entries),
        number,
        request_ids,
    )


def _unpacked(data: bytes) -> vec[i32]:
    """Return the numbers of a buffer that was pickled."""
    numbers: list[int] = memoryview(data).cast("i").tolist()
    found = vec[i32](capacity=len(numbers))
    for number in numbers:
        found = append(found, i32(number))
    return found

"""What a step asks for, and what it comes to: the plan of it, the blocks it was given, what a batch changed.

Planning counts and changes nothing; what it counted is exactly what the step then takes (law: PLAN-1). `allocate_slots`
plans and commits in one go; `KVCacheManager.plan` hands the answer out. Blocks are handed out as packed buffers, and
views are made only when asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.core.index import zeros32
from blockwright.core.pool import BlockPool, KVCacheBlock
from blockwright.core.request import Request, count_of, item_count
from blockwright.errors import InvalidArgumentError, UnsupportedError


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
        self._request: Request | None = None  # for which they were looked up, and when
        self._version: i64 = 0

    def note_found(self, request: Request) -> None:
        """Note that the blocks have just been looked up for a request."""
        self._request = request
        self._version = self._pool._version

    def are_found(self, request: Request) -> bool:
        """Return whether nothing has been taken, released or forgotten since they were looked up for a request. O(1).

        They hold its prefix then, so that there is nothing to check.
        """
        return self._request is request and self._version == self._pool._version

    @property
    def blocks(self) -> tuple[list[KVCacheBlock], ...]:
        """Views of the blocks, a list per group. O(blocks)."""
        return tuple([self._pool.views(ids) for ids in self.ids])

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

    def pool_is(self, pool: BlockPool) -> bool:
        """Return whether the blocks are of this pool."""
        return self._pool is pool


@final
class Ask:
    """One request's wishes for one step, and what counting them came to.

    ::

        | computed | hit | external | new (the last of them drafts) | ahead |
                         ^ begin    ^ resumed             ^ certain ^ stop  ^ slots

    `resumed` is where tokens are computed: behind the load, or before the last known token if all of them are loaded.
    """

    def __init__(self) -> None:
        """Ask for nothing."""
        self.new: i64 = 0
        self.ahead: i64 = 0
        self.drafts: i64 = 0
        self.external: i64 = 0
        self.encoder: i64 = 0
        self.reserve: i64 = 0
        self.is_whole = False
        self.is_delayed = False
        self.hit: KVCacheBlocks | None = None
        self.hit_length: i64 = 0
        self.is_planned = False
        # Counted.
        self.begin: i64 = 0
        self.certain: i64 = 0
        self.stop: i64 = 0
        self.slots: i64 = 0
        self.settled: i64 = 0
        self.resumed: i64 = 0
        self.demand: i64 = 0
        self.missing: i64 = 0
        self.most: i64 = 0
        self.is_too_long = False

    def take(self, drafts: int, external: int, encoder: int, reserve: int) -> None:
        """Take what few steps ask for, checked; zeros ask for nothing."""
        self.drafts = count_of("num_draft_tokens", drafts)
        self.external = count_of("num_external_computed_tokens", external)
        self.encoder = count_of("num_encoder_tokens", encoder)
        self.reserve = count_of("reserved_blocks", reserve)


class Plan:
    """An answer to "can this step happen?": `Fits`, `NotNow` or `Never`.

    Attributes:
        request_id: the request.
    """

    def __init__(self, request_id: str) -> None:
        """Answer for a request."""
        self.request_id = request_id


@final
class Fits(Plan):
    """The step can happen; `KVCacheManager.commit` makes it, as long as the pool and the request stay as they are.

    Attributes:
        num_blocks: blocks that leave the free queue: new ones, and hits that are free now.
    """

    def __init__(self, request: Request, ask: Ask, owner: i64, version: i64, moment: tuple[int, ...]) -> None:
        """Keep what was counted, and the state it was counted in."""
        super().__init__(request.request_id)
        self.num_blocks: int = ask.demand
        self._request = request
        self._ask = ask
        self._owner: i64 = owner
        self._version: i64 = version
        self._moment = moment

    def __repr__(self) -> str:
        """Show the demand."""
        return f"Fits({self.request_id!r}, num_blocks={self.num_blocks})"


@final
class NotNow(Plan):
    """The step can happen once others have released blocks.

    An engine that misses at most `num_returning_blocks` need not preempt: it settles steps and finishes loads first.

    Attributes:
        num_missing_blocks: blocks that must become free first, watermark and reserve included.
        num_free_blocks: blocks that are free now.
        blocks_behind_steps: blocks that become free when a step in flight is settled, by the number of the step: their
            requests have been released, and the step still touches them.
        blocks_behind_loads: likewise, by the id of the request that was released while its tokens were loaded.
        num_held_externally: blocks held from outside, as a connector does with `BlockPool.touch`.
    """

    def __init__(
        self,
        request_id: str,
        num_missing_blocks: int,
        num_free_blocks: int = 0,
        blocks_behind_steps: dict[int, int] | None = None,
        blocks_behind_loads: dict[str, int] | None = None,
        num_held_externally: int = 0,
    ) -> None:
        """Take the counts as they are."""
        super().__init__(request_id)
        self.num_missing_blocks = num_missing_blocks
        self.num_free_blocks = num_free_blocks
        self.blocks_behind_steps: dict[int, int] = {} if blocks_behind_steps is None else blocks_behind_steps
        self.blocks_behind_loads: dict[str, int] = {} if blocks_behind_loads is None else blocks_behind_loads
        self.num_held_externally = num_held_externally

    @property
    def num_returning_blocks(self) -> int:
        """Blocks that become free without preemption, once the steps in flight and the given-up loads have ended."""
        return sum(self.blocks_behind_steps.values()) + sum(self.blocks_behind_loads.values())

    def __repr__(self) -> str:
        """Show what is missing, and where blocks may come from."""
        where = f"NotNow({self.request_id!r}, num_missing_blocks={self.num_missing_blocks}"
        where += f", num_free_blocks={self.num_free_blocks}"
        if self.num_returning_blocks > 0:
            where += f", num_returning_blocks={self.num_returning_blocks}"
        if self.blocks_behind_steps:
            where += f" (behind steps {min(self.blocks_behind_steps)}..{max(self.blocks_behind_steps)})"
        if self.blocks_behind_loads:
            where += f" (behind the loads of {len(self.blocks_behind_loads)} released requests)"
        if self.num_held_externally > 0:
            where += f", num_held_externally={self.num_held_externally}"
        return where + ")"


@final
class Never(Plan):
    """The step cannot happen with this pool or this model, however many blocks are free.

    Attributes:
        reason: what is too long or too small, with both numbers.
    """

    def __init__(self, request_id: str, reason: str) -> None:
        """Say why."""
        super().__init__(request_id)
        self.reason = reason

    def __repr__(self) -> str:
        """Show the reason."""
        return f"Never({self.request_id!r}, {self.reason!r})"


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
        new_block_ids, new_block_offsets: ids appended to the tables; the offsets are made when they are first read.
        nulled_entries, nulled_offsets: table indices that became null, because no later token reads them; they ascend
            within a request's group. Likewise.
        num_tables: tables of the batch's requests, as many as slices; -1 where the offsets were given.
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
        self.nulled_entries: vec[i32] = nulled_entries
        self.replaced_entries: vec[i32] = replaced_entries
        self.number = number
        self._new_block_offsets: vec[i32] = new_block_offsets
        self._nulled_offsets: vec[i32] = nulled_offsets
        # Where those are still to be made: three numbers for each table that changed, and then zeros.
        self.num_tables: i64 = -1
        self._changed: vec[i32] = vec[i32]()
        self._num_changed: i64 = 0
        self._request_ids: list[str] = [] if request_ids is None else request_ids
        # Where those are still to be made: of how many requests, and which of them have which names.
        self._size: i64 = 0
        self._named: vec[i32] = vec[i32]()
        self._names: list[str] = []

    def name(self, names: list[str], indices: vec[i32], size: i64) -> None:
        """Name the requests at the first of some indices, out of `size`."""
        self._names = names
        self._named = indices
        self._size = size

    def tell(self, num_tables: i64, changed: vec[i32], count: i64) -> None:
        """Say what changed in place of the offsets, in the first `count` numbers of those of `changed_tables`."""
        self.num_tables = num_tables
        self._changed = changed
        self._num_changed = count

    @property
    def changed_tables(self) -> vec[i32]:
        """What the offsets say, in the order of the slices, of those tables alone that changed. O(changes).

        Three numbers each: the number of its slice, and where its part of the new blocks ends, and of the nulled
        entries; each part begins where the one before ends. Empty where the offsets were given (`num_tables`).
        """
        return self._changed[: self._num_changed]

    @property
    def new_block_offsets(self) -> vec[i32]:
        """See above. O(requests) once."""
        self._spread()
        return self._new_block_offsets

    @property
    def nulled_offsets(self) -> vec[i32]:
        """See above. O(requests) once."""
        self._spread()
        return self._nulled_offsets

    def _spread(self) -> None:
        """Make the offsets, unless they are there."""
        if i64(len(self._nulled_offsets)) > self.num_tables:
            return
        new, nulled = zeros32(self.num_tables + 1), zeros32(self.num_tables + 1)
        changed = self._changed
        at: i64 = 0
        table: i64 = 0
        while table < self.num_tables:
            new[table + 1], nulled[table + 1] = new[table], nulled[table]
            if at < self._num_changed and i64(changed[at]) == table:
                new[table + 1], nulled[table + 1] = changed[at + 1], changed[at + 2]
                at += 3
            table += 1
        self._new_block_offsets, self._nulled_offsets = new, nulled

    @property
    def request_ids(self) -> list[str]:
        """See above. O(requests) once."""
        if i64(len(self._request_ids)) < self._size:
            request_ids = [""] * self._size
            for at, name in enumerate(self._names):
                request_ids[int(self._named[at])] = name
            self._request_ids = request_ids
        return self._request_ids

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle the buffers as bytes, in this machine's byte order, for workers of other processes. O(requests)."""
        were_given = self.num_tables < 0  # offsets that were made are made again
        return restored_allocation, (
            self.num_served,
            self.refused,
            bytes(memoryview(self.new_block_ids)),
            bytes(memoryview(self._new_block_offsets)) if were_given else b"",
            bytes(memoryview(self.nulled_entries)),
            bytes(memoryview(self._nulled_offsets)) if were_given else b"",
            bytes(memoryview(self.replaced_entries)),
            self.number,
            self.request_ids,
            int(self.num_tables),
            bytes(memoryview(self.changed_tables)),
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
    num_tables: int,
    changed_tables: bytes,
) -> BatchAllocation:
    """Return a pickled `BatchAllocation`. O(requests)."""
    restored = BatchAllocation(
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
    changed = _unpacked(changed_tables)
    restored.tell(num_tables, changed, len(changed))
    return restored


def _unpacked(data: bytes) -> vec[i32]:
    """Return the numbers of a buffer that was pickled."""
    numbers: list[int] = memoryview(data).cast("i").tolist()
    found = vec[i32](capacity=len(numbers))
    for number in numbers:
        found = append(found, i32(number))
    return found


def counts_of(name: str, given: int | Sequence[int], size: i64) -> vec[i64]:
    """Return one count per request, each within what 64 bits hold safely; nothing if nobody asks for any."""
    if isinstance(given, int):
        count: i64 = count_of(name, given)
        return vec[i64]([count] * size) if count > 0 else vec[i64]()
    counts = vec[i64](capacity=size)
    for each in cast("Sequence[object]", given):
        counts = append(counts, item_count(name, each))
    if i64(len(counts)) != size:
        raise InvalidArgumentError(f"{name}: {len(counts)} counts for {size} requests; give one each, or one for all")
    return counts


def all_or_each(name: str, given: int | Sequence[int], size: i64) -> tuple[i64, vec[i64]]:
    """Return the one count of all requests and no others, or 0 and those of each; checked as by `counts_of`."""
    if isinstance(given, int):
        return count_of(name, given), vec[i64]()
    return 0, counts_of(name, given, size)

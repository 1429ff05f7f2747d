"""The outcomes of a step: its plan, the blocks it was given, and the changes of a batch.

Planning counts and changes nothing; the step then takes exactly the counted blocks (law: PLAN-1). `allocate_slots`
plans and commits in one go; `KVCacheManager.plan` hands the answer out. Blocks are handed out as packed buffers, and
views are made only when asked for.
"""

from __future__ import annotations

from typing import Any, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.core.keys.request import Request
from blockwright.core.tables.ask import StepRequest
from blockwright.ids import id_given


class Plan:
    """An answer to "can this step happen?": `Fits`, `NotNow` or `Never`.

    Attributes:
        request_id: the request.
    """

    def __init__(self, request_id: Any) -> None:
        self.request_id: Any = request_id


@final
class Fits(Plan):
    """The step can happen; `KVCacheManager.commit` makes it, as long as the pool and the request stay as they are.

    Attributes:
        num_blocks: blocks that leave the free queue: new ones, and hits that are free now.
        blocks_by_group: how many of them each group of layers takes.
    """

    def __init__(
        self,
        request: Request,
        ask: StepRequest,
        owner: i64,
        version: i64,
        request_version: tuple[int, ...],
        blocks_by_group: list[int],
    ) -> None:
        """Keep the counts, and the version of the state in which they were made."""
        super().__init__(request.request_id)
        self.num_blocks: int = ask.demand
        self.blocks_by_group = blocks_by_group
        self._request = request
        self._ask = ask
        self._owner: i64 = owner
        self._version: i64 = version
        self._request_version = request_version

    def __repr__(self) -> str:
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
        blocks_behind_loads: blocks that become free when a load ends, by the id of the request that was released
            meanwhile.
        num_held_externally: blocks held from outside, as a connector does with `BlockPool.touch`.
        blocks_by_group: how many blocks the step would take in each group of layers.
    """

    def __init__(
        self,
        request_id: Any,
        num_missing_blocks: int,
        num_free_blocks: int = 0,
        blocks_behind_steps: dict[int, int] | None = None,
        blocks_behind_loads: dict[Any, int] | None = None,
        num_held_externally: int = 0,
        blocks_by_group: list[int] | None = None,
    ) -> None:
        super().__init__(request_id)
        self.num_missing_blocks = num_missing_blocks
        self.num_free_blocks = num_free_blocks
        self.blocks_behind_steps: dict[int, int] = {} if blocks_behind_steps is None else blocks_behind_steps
        self.blocks_behind_loads: dict[Any, int] = {} if blocks_behind_loads is None else blocks_behind_loads
        self.num_held_externally = num_held_externally
        self.blocks_by_group: list[int] = [] if blocks_by_group is None else blocks_by_group

    @property
    def num_returning_blocks(self) -> int:
        """Blocks that become free without preemption, once the steps in flight and the given-up loads have ended."""
        return sum(self.blocks_behind_steps.values()) + sum(self.blocks_behind_loads.values())

    def __repr__(self) -> str:
        """Show the missing blocks, and where blocks may come from."""
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
        reason: the length or size that does not fit, with both numbers.
    """

    def __init__(self, request_id: Any, reason: str) -> None:
        super().__init__(request_id)
        self.reason = reason

    def __repr__(self) -> str:
        return f"Never({self.request_id!r}, {self.reason!r})"


@final
class BatchAllocation:
    """The changes of one step's batch in the block tables, as flat buffers.

    For request i (in the order given) and group g of G, ``offsets[i * G + g] : offsets[i * G + g + 1]`` is its slice. A
    replica of the tables stays equal to them by: append the new block ids (0 where a recurrent layer jumped over an
    entry), set the nulled entries to 0, and put in the replaced ones, which are copied (`take_copies`). All buffers are
    ``vec[i32]``: numpy and torch view them without a copy.

    Attributes:
        num_served: requests that got their slots, a leading part of the batch.
        refused: index of the first request that did not fit, None if all were served.
        new_block_ids, new_block_offsets: ids appended to the tables; the offsets are made when they are first read.
        nulled_entries, nulled_offsets: table indices that became null, because no later token reads them; they ascend
            within a request's group. The offsets are made when they are first read.
        num_tables: tables of the batch's requests, one per slice; -1 where the offsets were given.
        replaced_entries: four numbers each: index of the request, group, table index, and the block that is there now,
            because the one before is shared with a fork.
        lease: how many tokens more each request of the batch may take before one needs a call; 0 if one was refused.
        number: a later batch of the manager, or of a copy of it, has a greater one; 0 if it is not known.
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
        request_ids: list[Any] | None = None,
    ) -> None:
        self.num_served = num_served
        self.refused = refused
        self.lease = 0
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
        self._request_ids: list[Any] = [] if request_ids is None else request_ids
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
        """The offsets of the tables that changed, in the order of the slices. O(changes).

        Three numbers each: the number of its slice, and where its part of the new blocks ends, and of the nulled
        entries; each part begins where the one before ends. Empty where the offsets were given (`num_tables`).
        """
        return self._changed[: self._num_changed]

    @property
    def new_block_offsets(self) -> vec[i32]:
        self._spread()
        return self._new_block_offsets

    @property
    def nulled_offsets(self) -> vec[i32]:
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
    def request_ids(self) -> list[Any]:
        if i64(len(self._request_ids)) < self._size:
            request_ids: list[Any] = [""] * self._size
            for at, name in enumerate(self._names):
                request_ids[int(self._named[at])] = id_given(name)
            self._request_ids = request_ids
        return self._request_ids

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        """Pickle the buffers as bytes, in this machine's byte order, for workers of other processes. O(requests)."""
        nothing = vec[i32]()
        were_given = self.num_tables < 0  # offsets that were made are made again
        offsets = (self._new_block_offsets, self._nulled_offsets) if were_given else (nothing, nothing)
        buffers = (self.new_block_ids, offsets[0], self.nulled_entries, offsets[1], self.replaced_entries)
        packed = [bytes(memoryview(buffer)) for buffer in (*buffers, self.changed_tables)]
        return restored_allocation, (
            self.num_served,
            self.refused,
            packed,
            self.number,
            self.request_ids,
            int(self.num_tables),
        )

    def __repr__(self) -> str:
        return (
            f"BatchAllocation(num_served={self.num_served}, refused={self.refused}, "
            f"new_blocks={len(self.new_block_ids)}, nulled={len(self.nulled_entries)})"
        )


def restored_allocation(
    num_served: int, refused: int | None, packed: list[bytes], number: int, request_ids: list[Any], num_tables: int
) -> BatchAllocation:
    new, new_offsets, nulled, nulled_offsets, replaced, changed = [_unpacked(data) for data in packed]
    restored = BatchAllocation(
        num_served, refused, new, new_offsets, nulled, nulled_offsets, replaced, number, request_ids
    )
    restored.tell(num_tables, changed, len(changed))
    return restored


def _unpacked(data: bytes) -> vec[i32]:
    numbers: list[int] = memoryview(data).cast("i").tolist()
    found = vec[i32](capacity=len(numbers))
    for number in numbers:
        found = append(found, i32(number))
    return found

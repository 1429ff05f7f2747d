"""A worker's block tables: one row per request and group, all of them in one vector.

    group 0: row 0, row 1, ... | group 1: row 0, ... | ... | entries of each row, per group |

The scheduler's manager sends a request's blocks once, and from then on only the changes (`BatchAllocation`).

Each write is remembered with the value before it. So a call that fails is undone, and a copy of the vector on another
device is updated with the changes alone, whatever the length of the tables. Whole rows are written without where there
is no such copy, as nothing can fail any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.arguments import integer
from blockwright.arguments import whole as other_whole
from blockwright.config import KVCacheConfig
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.keys.request import MAX_LENGTH, item_count
from blockwright.errors import (
    BlockError,
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.ids import id_given, id_kept
from blockwright.kinds import KVCacheSpec

# A row's record: what is known of its last step, its encoder's tokens, and then, per recurrent group, the block that
# the last step read, the number of draft blocks, and the draft blocks.
CERTAIN: Final = 0
BEGIN: Final = 1
ENCODER: Final = 2
RECORD: Final = 3

UNKNOWN: Final = MAX_LENGTH
"""Certain tokens of a request that has had no step here: no draft of it can have been accepted."""
NOWHERE: Final = 2 * MAX_LENGTH
"""Behind all positions: where the block begins that a row has not at hand."""


@final
class GroupRows:
    """Where one group's part of the replica lies.

    Attributes:
        block_size: tokens per block.
        shift: its logarithm, if it is a power of two, else -1.
        width: entries per row.
        first: index of row 0 in the tables.
        has_slots: every token of a step is written to a slot; not so in recurrent and cross-attention layers.
        is_encoder: the rows cover the encoder's tokens.
        is_recurrent, is_single: blocks hold states; there is one entry, overwritten by every step.
        num_states: blocks for the states of drafts that a request may have.
        slots: index of its slots in the words.
        reads, writes: index of its state reads and writes in the counts.
        record: index of its part of a row's record.
    """

    def __init__(self, number: int, spec: KVCacheSpec, width: int, is_single: bool) -> None:
        self.number: i64 = number
        block_size = spec.block_size
        self.block_size: i64 = block_size
        self.shift: i64 = block_size.bit_length() - 1 if block_size & (block_size - 1) == 0 else -1
        self.width: i64 = width
        self.is_encoder = spec.reads_encoder
        self.is_recurrent = spec.is_recurrent
        self.is_single = is_single
        self.has_slots = not self.is_encoder and not self.is_recurrent
        self.num_states: i64 = spec.num_speculative_blocks
        self.first: i64 = 0
        self.slots: i64 = 0
        self.reads: i64 = 0
        self.writes: i64 = 0
        self.record: i64 = 0

    def entry(self, position: i64) -> i64:
        if self.shift >= 0:
            return position >> self.shift
        return position // self.block_size

    def state_entry(self, num_tokens: i64) -> i64:
        """Return the table entry of the state after `num_tokens` tokens, of one at least. O(1)."""
        return 0 if self.is_single else self.entry(num_tokens - 1)


@final
class TableRows:
    """Block tables of up to `max_num_requests` requests, and the record of each of them.

    Attributes:
        groups: where each group's part lies.
        max_num_requests: rows.
        tables: ``vec[i32]``, see the module; never grows.
        num_changes: entries written since they were last forgotten (`forget_changes`) or, if they are not kept, by the
            last call, whole rows not counted; an entry that was written twice counts twice.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        max_num_requests: i64,
        max_model_len: int,
        max_encoder_len: int,
        enable_caching: bool,
        keep_changes: bool,
    ) -> None:
        """Make rows of null blocks. O(max_num_requests * entries of the longest request)."""
        self.max_num_requests: i64 = max_num_requests
        self._num_blocks: i64 = config.num_blocks
        self._keeps = keep_changes
        self.groups: list[GroupRows] = []
        size: i64 = 0
        record: i64 = RECORD
        for number, group in enumerate(config.kv_cache_groups):
            spec = group.kv_cache_spec
            if spec.runs_ahead:
                raise UnsupportedError(f"kv_cache_config: group {number} has runs_ahead=True, for vLLM's worker only")
            longest = max_encoder_len if spec.reads_encoder else max_model_len
            is_single = spec.is_recurrent and not enable_caching
            rows = GroupRows(number, spec, 1 if is_single else -(-longest // spec.block_size), is_single)
            rows.first = size
            size += rows.width * max_num_requests
            if rows.is_recurrent:
                rows.record = record
                record += 2 + rows.num_states
            self.groups.append(rows)
        self._num_groups: i64 = len(self.groups)
        # The entries of each row lie behind the tables: what writes and undoes the ones does so to the others.
        self._lengths: i64 = size
        self.tables: vec[i32] = zeros32(size + self._num_groups * max_num_requests)
        # Of each row and group, the block that a step wrote to last, as long as the row is as it was: where it begins,
        # and what makes a slot of a position in it.
        self._starts: vec[i64] = zeros64(self._num_groups * max_num_requests)
        self._forget_blocks()
        self._bases: vec[i64] = zeros64(self._num_groups * max_num_requests)
        self._record_size: i64 = record
        self._records: vec[i64] = zeros64(record * max_num_requests)
        # What was written, oldest first: what stood there before; and of each run of neighbours, the index of the first
        # and how many changes came before the run. There is room for as many runs as changes.
        self._before: vec[i32] = vec[i32]()
        self._runs: vec[i64] = vec[i64]()
        self._num_runs: i64 = 0
        self.num_changes: i64 = 0
        # Who has which row: the id, and the object that last stood for it in a step.
        self._rows: dict[str, int] = {}
        self._ids: list[str | None] = [None] * int(max_num_requests)
        self._seen: list[object] = [None] * int(max_num_requests)
        self._end: i64 = 0
        self._applied: i64 = 0  # the number of the last allocation
        # The call that is being made: rows of its requests; and which row was named as which.
        self._calls: i64 = 0
        self._named: vec[i64] = zeros64(max_num_requests)
        self._order: vec[i64] = zeros64(max_num_requests)
        self._at: vec[i64] = zeros64(max_num_requests)

    # ------------------------------------------------------------------ entries

    def _put(self, index: i64, value: i32) -> None:
        """Write one entry and remember the value before it. O(1)."""
        before = self.tables[index]
        # No change need be sent or undone.
        if before == value:
            return
        if self.num_changes == i64(len(self._before)):
            self._make_room(1)
        self._begin_run(index)
        self._before[self.num_changes] = before
        self.num_changes += 1
        self.tables[index] = value

    def _put_run(self, index: i64, values: vec[i32], start: i64, stop: i64) -> None:
        """Write values ``start .. stop - 1`` to neighbouring entries, zeros where there are none; as `_put` of each."""
        if start == stop:
            return
        self._make_room(stop - start)
        self._begin_run(index)
        tables = self.tables
        before = self._before
        number = self.num_changes
        size: i64 = len(values)
        while start < stop:
            value: i32 = values[start] if start < size else 0
            before[number] = tables[index]
            tables[index] = value
            number += 1
            index += 1
            start += 1
        self.num_changes = number

    def _begin_run(self, index: i64) -> None:
        at = 2 * self._num_runs
        self._runs[at] = index
        self._runs[at + 1] = self.num_changes
        self._num_runs += 1

    def _make_room(self, count: i64) -> None:
        """Make room for `count` more changes, to be remembered without taking memory. O(1), amortized."""
        more = self.num_changes + count - i64(len(self._before))
        if more > 0:
            more = max(more, i64(len(self._before)))
            room = extend(self._before, zeros32(more)), extend(self._runs, zeros64(2 * more))
            self._before, self._runs = room

    def _begin_call(self) -> None:
        if not self._keeps:
            self.forget_changes()

    def _undo(self, mark: i64) -> None:
        # What was remembered of blocks may be of what is undone.
        if self.num_changes > mark:
            self._forget_blocks()
        while self.num_changes > mark:
            self._num_runs -= 1
            index = self._runs[2 * self._num_runs]
            first = self._runs[2 * self._num_runs + 1]
            number = first
            while number < self.num_changes:
                self.tables[index] = self._before[number]
                index += 1
                number += 1
            self.num_changes = first

    def changes(self) -> tuple[vec[i64], vec[i32]]:
        """Return the indices in `tables` that were written since `forget_changes`, and their values now.

        An index may appear twice, with one value. Complexity: O(changes), whatever the length of the tables.
        """
        indices, values = zeros64(self.num_changes), zeros32(self.num_changes)
        number: i64 = 0
        run: i64 = 0
        while run < self._num_runs:
            index = self._runs[2 * run]
            run += 1
            stop = self._runs[2 * run + 1] if run < self._num_runs else self.num_changes
            while number < stop:
                indices[number] = index
                values[number] = self.tables[index]
                index += 1
                number += 1
        return indices, values

    def forget_changes(self) -> None:
        """Keep the changes made until now no longer: they have been sent. O(1)."""
        self.num_changes = 0
        self._num_runs = 0

    def _length(self, group: i64, row: i64) -> i64:
        return i64(self.tables[self._lengths + group * self.max_num_requests + row])

    def _set_length(self, group: i64, row: i64, length: i64) -> None:
        self._forget_block(group, row)
        self._put(self._lengths + group * self.max_num_requests + row, i32(length))

    def _forget_block(self, group: i64, row: i64) -> None:
        """Have the next step read the row."""
        self._starts[group * self.max_num_requests + row] = NOWHERE

    def _forget_blocks(self) -> None:
        at: i64 = 0
        while at < i64(len(self._starts)):
            self._starts[at] = NOWHERE
            at += 1

    # ------------------------------------------------------------------ what changed

    def apply(self, requests: list[object], allocation: Any) -> None:
        self._begin_call()
        mark = self.num_changes
        try:
            self._locate(requests)
            number = self._apply(requests, allocation)
        except Exception:
            self._undo(mark)
            raise
        self._applied = max(self._applied, number)

    def _apply(self, requests: list[object], allocation: Any) -> i64:
        """Change the rows of located requests; return the allocation's number. O(requests + changes).

        A failure leaves something for `_undo`.
        """
        applied = self._number_of(allocation)
        new_ids = _buffer_of(allocation, "new_block_ids")
        nulled = _buffer_of(allocation, "nulled_entries")
        replaced = _buffer_of(allocation, "replaced_entries")
        given_served: object = getattr(allocation, "num_served", None)
        served_count = whole(given_served)
        groups = self._num_groups
        if served_count is None or served_count < 0 or served_count > len(requests):
            raise InvalidArgumentError(
                f"allocation: it served {given_served!r} requests, but {len(requests)} are given; give those of its "
                "batch, in the same order"
            )
        served: i64 = served_count
        names = _names_of(allocation, served)
        changed = _changed_tables(allocation, served, groups)
        if len(changed) % 3 != 0 or len(replaced) % 4 != 0:
            raise InvalidArgumentError(f"allocation: it is not one of {groups} groups")
        i: i64 = -1
        row: i64 = 0
        last: i64 = -1  # table that was changed
        new_begin: i64 = 0
        nulled_begin: i64 = 0
        at: i64 = 0
        while at < i64(len(changed)) and i64(changed[at]) < served * groups:
            table: i64 = i64(changed[at])
            # Ascending, so that each table is changed once and the offsets follow one another.
            if table <= last:
                raise InvalidArgumentError(f"allocation: table {table} comes after table {last}; they must ascend")
            last = table
            if table // groups != i:
                i = table // groups
                row = self._at[i]
                self._check_name(names, i, row)
            group = self.groups[table % groups]
            self._append(group, row, new_ids, new_begin, i64(changed[at + 1]))
            self._null(group, row, nulled, nulled_begin, i64(changed[at + 2]))
            new_begin, nulled_begin = i64(changed[at + 1]), i64(changed[at + 2])
            at += 3
        at = 0
        while at < i64(len(replaced)):
            i = i64(replaced[at])
            self._replace(i, i64(replaced[at + 1]), i64(replaced[at + 2]), replaced[at + 3], served)
            self._check_name(names, i, self._at[i])
            at += 4
        return applied

    def _number_of(self, allocation: Any) -> i64:
        """Return the number of an allocation, checked to come after those that were applied; 0 if it has none."""
        number = item_count("allocation.number", getattr(allocation, "number", 0))
        if 0 < number <= self._applied:
            raise InvalidArgumentError(
                f"allocation: it is number {number} of its manager, and number {self._applied} was applied already; "
                "apply each once, in the order of the calls"
            )
        return number

    def _check_name(self, names: Sequence[object] | None, i: i64, row: i64) -> None:
        if names is None:
            return
        name = names[int(i)]
        if name != "" and name != self._ids[row] and id_kept(name) != self._ids[row]:
            raise InvalidArgumentError(
                f"requests: number {i} of the allocation's batch is {name!r}, but {self._ids[row]!r} is given; "
                "give those of its batch, in the same order"
            )

    def _append(self, group: GroupRows, row: i64, ids: vec[i32], start: i64, stop: i64) -> None:
        if start == stop:
            return
        length = self._length(group.number, row)
        if start < 0 or start > stop or stop > i64(len(ids)) or length + stop - start > group.width:
            raise InvalidArgumentError(
                f"allocation: new blocks {start}..{stop} of {len(ids)} do not fit behind the {length} entries of "
                f"{self._ids[row]!r} in group {group.number}, of {group.width}; was one missed, or do "
                "the batch's enable_caching or max_model_len differ from the manager's?"
            )
        at = start
        while at < stop:
            self._checked_block(group, row, ids[at])
            at += 1
        # law: ROW-1
        self._put_run(group.first + row * group.width + length, ids, start, stop)
        self._set_length(group.number, row, length + stop - start)

    def _checked_block(self, group: GroupRows, row: i64, block: i32) -> i32:
        if block < 0 or i64(block) >= self._num_blocks:
            raise self._foreign("allocation", block, self._ids[row], int(group.number))
        return block

    def _null(self, group: GroupRows, row: i64, entries: vec[i32], start: i64, stop: i64) -> None:
        if start == stop:
            return
        if start < 0 or start > stop or stop > i64(len(entries)):
            raise InvalidArgumentError(f"allocation: it nulled entries {start}..{stop} of {len(entries)}")
        self._forget_block(group.number, row)
        # They ascend; those that a window leaves at once are neighbours.
        begin: i64 = i64(entries[start])
        end = begin + stop - start
        if i64(entries[stop - 1]) == end - 1:
            self._null_run(group, row, begin, end)
            return
        while start < stop:
            begin = i64(entries[start])
            self._null_run(group, row, begin, begin + 1)
            start += 1

    def _null_run(self, group: GroupRows, row: i64, begin: i64, end: i64) -> None:
        """Put the null block at neighbouring entries of a row, as `_put` at each."""
        length = self._length(group.number, row)
        if begin < 0 or end > length:
            raise InvalidArgumentError(
                f"allocation: entry {max(begin, length) if begin >= 0 else begin} of {self._ids[row]!r} in group "
                f"{group.number} became null, but the row has {length}; was an allocation missed?"
            )
        # law: ROW-1
        index = group.first + row * group.width + begin
        if end - begin == 1:
            self._put(index, 0)
        else:
            self._put_run(index, vec[i32](), 0, end - begin)

    def _replace(self, i: i64, number: i64, entry: i64, block: i32, served: i64) -> None:
        if i < 0 or i >= served or number < 0 or number >= self._num_groups:
            raise InvalidArgumentError(f"allocation: it replaced an entry of request {i}, group {number}")
        group = self.groups[number]
        row = self._at[i]
        if entry < 0 or entry >= self._length(number, row):
            raise InvalidArgumentError(
                f"allocation: entry {entry} of {self._ids[row]!r} in group {number} was replaced, but the row has "
                f"{self._length(number, row)}; was an allocation missed?"
            )
        # law: ROW-1
        self._forget_block(number, row)
        self._put(group.first + row * group.width + entry, self._checked_block(group, row, block))

    def _locate(self, requests: list[object]) -> None:
        """Find the rows of requests, each once. O(requests); no look-up for one that is where it was."""
        size: i64 = len(requests)
        if size > self.max_num_requests:
            raise InvalidArgumentError(f"requests: {size} of them, but there are {self.max_num_requests} rows")
        self._calls += 1
        call = self._calls
        seen = self._seen
        named = self._named
        order = self._order
        rows = self._at
        i: i64 = 0
        while i < size:
            request = requests[i]
            row: i64 = i
            # Most steps have the requests of the last one in the same order: no look-up by name.
            if seen[i] is not request or request is None:
                row = self._look_up(request)
            if named[row] == call:
                raise DuplicateRequestError(f"requests: {self._ids[row]!r} is given twice")
            named[row] = call
            order[row] = i
            rows[i] = row
            i += 1

    def _look_up(self, request: object) -> i64:
        name: object = getattr(request, "request_id", None)
        row = self._rows.get(name if type(name) is str else id_kept(name))
        if row is None:
            raise UnknownRequestError(f"requests: {name!r} has no row; add_request it first")
        self._seen[row] = request
        return row

    # ------------------------------------------------------------------ rows

    @property
    def request_ids(self) -> list[Any]:
        return [None if name is None else id_given(name) for name in self._ids[: self._end]]

    def row_of(self, request_id: object) -> int:
        row = self._rows.get(request_id if type(request_id) is str else id_kept(request_id))
        if row is None:
            raise UnknownRequestError(f"request_id: {request_id!r} has no row; add_request it first")
        return row

    def block_ids(self, request_id: object) -> list[list[int]]:
        row: i64 = self.row_of(request_id)
        found: list[list[int]] = []
        for group in self.groups:
            first = group.first + row * group.width
            found.append([int(block) for block in self.tables[first : first + self._length(group.number, row)]])
        return found

    def add_request(self, request_id: object, blocks: object, drafts: object, num_encoder_tokens: object) -> None:
        name: str = id_kept(request_id)
        rows = self._checked_blocks("block_ids", name, blocks)
        states = self._checked_blocks("draft_block_ids", name, drafts)
        for group, row_blocks, state_blocks in zip(self.groups, rows, states):
            if i64(len(row_blocks)) > group.width:
                raise InvalidArgumentError(
                    f"block_ids: {len(row_blocks)} blocks of {name!r} in group {group.number}, but a row has "
                    f"{group.width} entries; raise max_model_len or max_encoder_len, or the batch's enable_caching "
                    "differs from the manager's"
                )
            if i64(len(state_blocks)) > group.num_states:
                raise InvalidArgumentError(
                    f"draft_block_ids: {len(state_blocks)} blocks for drafts of {name!r} in group "
                    f"{group.number}, but its kind has {group.num_states}"
                )
        most = max([0] + [int(group.width * group.block_size) for group in self.groups if group.is_encoder])
        # law: CROSS-2
        encoder = integer("num_encoder_tokens", num_encoder_tokens)
        if encoder > most:
            raise InvalidArgumentError(
                f"num_encoder_tokens: {encoder} for {name!r}, but rows of cross-attention groups "
                f"cover {most}; raise max_encoder_len"
            )
        self._begin_call()
        known = self._rows.get(name)
        row: i64 = self._free_row() if known is None else known
        if known is None:
            self._ids[row] = name
            self._rows[name] = int(row)
            self._end = max(self._end, row + 1)
            # A row anew: no step has run, so that no draft can have been accepted.
            self._set_record(row, CERTAIN, UNKNOWN)
            self._set_record(row, BEGIN, -1)
        self._set_record(row, ENCODER, encoder)
        for group, row_blocks, state_blocks in zip(self.groups, rows, states):
            self._set_row(group, row, row_blocks)
            if group.is_recurrent:
                self._set_record(row, group.record + 1, i64(len(state_blocks)))
                for place, block in enumerate(state_blocks):
                    self._set_record(row, group.record + 2 + place, i64(block))

    def _checked_blocks(self, name: str, request_id: str, given: Any) -> list[vec[i32]]:
        """Return blocks as vectors, one per group: of a `KVCacheBlocks`, of lists, or empty ones for no groups."""
        if given is None:
            raise InvalidArgumentError(
                f"{name}: None for {request_id!r}; where the manager had no room, there is nothing to add"
            )
        packed: object = getattr(given, "ids", None)
        lists = listed(name, given if packed is None else packed, "a list of block ids per group")
        if len(lists) == 0:
            return [vec[i32]() for _ in self.groups]
        if i64(len(lists)) != self._num_groups:
            raise InvalidArgumentError(
                f"{name}: {len(lists)} lists for {request_id!r}; give one per group, {self._num_groups} of them"
            )
        checked: list[vec[i32]] = []
        for number, blocks in enumerate(lists):
            ids: vec[i32] = vec[i32]()
            if is_packed(blocks):
                ids = blocks
                for block in ids:
                    if block < 0 or i64(block) >= self._num_blocks:
                        raise self._foreign(name, block, request_id, number)
            else:
                for each in listed(name, blocks, "a list of block ids per group"):
                    given_block = whole(each)
                    if given_block is None or given_block < 0 or given_block >= int(self._num_blocks):
                        raise self._foreign(name, each, request_id, number)
                    ids = append(ids, i32(given_block))
            checked.append(ids)
        return checked

    def _foreign(self, name: str, block: object, request_id: object, number: int) -> BlockError:
        return BlockError(
            f"{name}: {block!r} of {request_id!r} in group {number} is no block of this pool of {self._num_blocks}"
        )

    def _free_row(self) -> i64:
        row: i64 = 0
        while row < self.max_num_requests:
            if self._ids[row] is None:
                return row
            row += 1
        raise InvalidArgumentError(
            f"request_id: all {self.max_num_requests} rows are taken; remove a request, or raise max_num_requests"
        )

    def _set_row(self, group: GroupRows, row: i64, blocks: vec[i32]) -> None:
        index = group.first + row * group.width
        length: i64 = len(blocks)
        size = max(length, self._length(group.number, row))
        self._set_length(group.number, row, length)
        tables = self.tables
        entry: i64 = 0
        if self._keeps:  # what stays as it is, mostly the first entries, is no change
            while entry < length and tables[index + entry] == blocks[entry]:
                entry += 1
            self._put_run(index + entry, blocks, entry, size)
        else:  # nothing can fail any more
            while entry < length:
                tables[index + entry] = blocks[entry]
                entry += 1
            while entry < size:
                tables[index + entry] = 0
                entry += 1

    def _set_record(self, row: i64, field: i64, value: i64) -> None:
        self._records[row * self._record_size + field] = value

    def _record(self, row: i64, field: i64) -> i64:
        return self._records[row * self._record_size + field]

    def remove_request(self, request_id: object) -> None:
        row: i64 = self.row_of(request_id)
        self._begin_call()
        nothing = vec[i32]()
        for group in self.groups:
            self._set_row(group, row, nothing)
        name = self._ids[row]
        if name is not None:
            del self._rows[name]
        self._ids[row] = None
        self._seen[row] = None
        if len(self._rows) == 0:
            self._applied = 0  # nothing is left of what was applied: another manager may follow
        self._shorten()

    def _shorten(self) -> None:
        while self._end > 0 and self._ids[self._end - 1] is None:
            self._end -= 1

    def swap_rows(self, row: object, other: object) -> None:
        first = self._checked_row("row", row)
        second = self._checked_row("other", other)
        self._begin_call()
        self._swap(first, second)
        self._shorten()

    def _checked_row(self, name: str, given: object) -> i64:
        return integer(name, given, 0, int(self.max_num_requests) - 1)

    def compact(self) -> list[tuple[int, int]]:
        self._begin_call()
        moves: list[tuple[int, int]] = []
        row: i64 = 0
        while row < self._end:
            if self._ids[row] is None:
                last = self._end - 1
                self._swap(last, row)
                self._shorten()
                moves.append((int(last), int(row)))
            row += 1
        return moves

    def _swap(self, row: i64, other: i64) -> None:
        if row == other:
            return
        # law: ROW-3
        for group in self.groups:
            first = group.first + row * group.width
            second = group.first + other * group.width
            length = self._length(group.number, row)
            length_other = self._length(group.number, other)
            entry: i64 = 0
            while entry < max(length, length_other):
                block = self.tables[first + entry]
                self._put(first + entry, self.tables[second + entry])
                self._put(second + entry, block)
                entry += 1
            self._set_length(group.number, row, length_other)
            self._set_length(group.number, other, length)
        field: i64 = 0
        while field < self._record_size:
            number = self._record(row, field)
            self._set_record(row, field, self._record(other, field))
            self._set_record(other, field, number)
            field += 1
        self._ids[row], self._ids[other] = self._ids[other], self._ids[row]
        self._seen[row], self._seen[other] = self._seen[other], self._seen[row]
        for each in (row, other):
            name = self._ids[each]
            if name is not None:
                self._rows[name] = int(each)
                self._end = max(self._end, each + 1)

    def _place(self, size: i64) -> None:
        """Bring request i of the step to row i. O(entries of the rows that differ)."""
        # law: ROW-2
        i: i64 = 0
        while i < size:
            row = self._at[i]
            if row != i:
                self._swap(i, row)
                # Who stood in row i is now where request i was; if it is of this step too, it is looked for there.
                if self._named[i] == self._calls:
                    other = self._order[i]
                    self._at[other] = row
                    self._order[row] = other
                else:
                    self._named[row] = 0
                    self._named[i] = self._calls
                self._at[i] = i
                self._order[i] = i
            i += 1
        self._shorten()


def _names_of(allocation: Any, served: i64) -> Sequence[object] | None:
    given: object = getattr(allocation, "request_ids", None)
    if not isinstance(given, (tuple, list)) or len(given) == 0:
        return None
    if len(given) < int(served):
        raise InvalidArgumentError(f"allocation: it served {served} requests, but has ids of {len(given)}")
    return given


def _changed_tables(allocation: Any, served: i64, groups: i64) -> vec[i32]:
    """Return the numbers of `BatchAllocation.changed_tables`, made from the offsets if those were given.

    Raises:
        InvalidArgumentError: the allocation has fewer tables than the requests that it served.
    """
    least = served * groups
    count = whole(getattr(allocation, "num_tables", None))
    if count is not None and count >= int(least):
        return _buffer_of(allocation, "changed_tables")
    new_ends = _buffer_of(allocation, "new_block_offsets")
    nulled_ends = _buffer_of(allocation, "nulled_offsets")
    if i64(len(new_ends)) <= least or i64(len(nulled_ends)) <= least or new_ends[0] != 0 or nulled_ends[0] != 0:
        raise InvalidArgumentError(f"allocation: it is not one of {groups} groups")
    changed = vec[i32]()
    table: i64 = 0
    while table < least:
        new, nulled = new_ends[table + 1], nulled_ends[table + 1]
        if new != new_ends[table] or nulled != nulled_ends[table]:
            changed = append(append(append(changed, i32(table)), new), nulled)
        table += 1
    return changed


def _buffer_of(allocation: Any, name: str) -> vec[i32]:
    given: Any = getattr(allocation, name, None)
    if not is_packed(given):
        raise InvalidArgumentError(
            f"allocation: must be what manager.allocate_slots_batch returned; its {name} is {given!r}, no vec[i32]"
        )
    found: vec[i32] = given
    return found


def whole(given: object) -> int | None:
    """Return what `arguments.whole` does. An `int`, the usual case, needs no call of uncompiled code."""
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    return other_whole(given)


def listed(name: str, given: Any, what: str) -> list[Any]:
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
        try:
            return list(given)
        except TypeError:  # an array without a dimension
            pass
    raise InvalidArgumentError(f"{name}: must be {what}, not {given!r}")


def is_packed(given: object) -> bool:
    return type(given) is _PACKED


def _type_of(given: object) -> object:
    return type(given)


_PACKED: Final[object] = _type_of(vec[i32]())

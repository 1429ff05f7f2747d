"""The inputs of a step's kernels for each token, made from a worker's block tables.

The scheduler's manager sends a request's blocks once, and from then on only the changes (`BatchAllocation`). The
replica keeps the tables from that, and writes for each token of a step its slot; for recurrent layers, the blocks of
the states that are read and written.

    words    | positions | slots of the first group that has slots | slots of the second | ...
    counts   | query_start_loc | num_computed_tokens | seq_lens | encoder_lens | reads, writes, per recurrent group |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.keys.request import MAX_LENGTH, Request, item_count
from blockwright.errors import (
    BlockError,
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.worker.rows import (
    BEGIN,
    CERTAIN,
    ENCODER,
    RECORD,
    GroupRows,
    TableRows,
    is_packed,
    listed,
    whole,
    zeros32,
    zeros64,
)


@final
class TableReplica(TableRows):
    """Block tables of up to `max_num_requests` requests, a row each, and the inputs of one step at a time.

    Attributes:
        max_num_tokens, max_model_len: tokens of one step; of one request.
        words: ``vec[i64]``, see the module; never grows. A row has `max_num_tokens` places.
        counts: ``vec[i32]``, see the module; never grows.
        num_requests, num_tokens, max_query_len, max_seq_len: of the last step.
    """

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        max_num_requests: int,
        max_num_tokens: int,
        max_model_len: int,
        max_encoder_len: int,
        enable_caching: bool,
        keep_changes: bool,
    ) -> None:
        """Make rows of null blocks. O(max_num_requests * entries of the longest request)."""
        super().__init__(config, max_num_requests, max_model_len, max_encoder_len, enable_caching, keep_changes)
        self.max_num_tokens: i64 = max_num_tokens
        self.max_model_len: i64 = max_model_len
        self._has_encoder = any([group.is_encoder for group in self.groups])
        words: i64 = self.max_num_tokens
        counts: i64 = 4 * self.max_num_requests + 1
        for group in self.groups:
            if group.has_slots:
                group.slots = words
                words += self.max_num_tokens
            if group.is_recurrent:
                group.reads = counts
                group.writes = counts + self.max_num_requests
                counts = group.writes + (1 + group.num_states) * self.max_num_requests
        self.words: vec[i64] = zeros64(words)
        self._found: vec[i64] = zeros64(words - self.max_num_tokens)  # slots of a step that may still fail
        self.counts: vec[i32] = zeros32(counts)
        # The call that is being made: rows of its requests, where each begins; and which row was named as which.
        self._calls: i64 = 0
        self._named: vec[i64] = zeros64(self.max_num_requests)
        self._order: vec[i64] = zeros64(self.max_num_requests)
        self._at: vec[i64] = zeros64(self.max_num_requests)
        self._begins: vec[i64] = zeros64(self.max_num_requests)
        self._news: vec[i64] = zeros64(self.max_num_requests)
        self._drafts: vec[i64] = zeros64(self.max_num_requests)
        self.num_requests: i64 = 0
        self.num_tokens: i64 = 0
        self.max_query_len: i64 = 0
        self.max_seq_len: i64 = 0

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
        if name != "" and name != self._ids[row]:
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
        # law: ROW-1. As `_put` of each, but that zeros stand behind a row is known and need not be waited for.
        self._make_room(stop - start)
        index = group.first + row * group.width + length
        self._begin_run(index)
        tables = self.tables
        before = self._before
        number = self.num_changes
        length += stop - start
        while start < stop:
            before[number] = 0
            tables[index] = ids[start]
            number += 1
            index += 1
            start += 1
        self.num_changes = number
        self._set_length(group.number, row, length)

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
            return
        self._make_room(end - begin)
        self._begin_run(index)
        tables = self.tables
        before = self._before
        number = self.num_changes
        while begin < end:
            before[number] = tables[index]
            tables[index] = 0
            number += 1
            index += 1
            begin += 1
        self.num_changes = number

    def _replace(self, i: i64, number: i64, entry: i64, block: i32, served: i64) -> None:
        """Put the block of a copy in place of the one that others share."""
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

    # ------------------------------------------------------------------ a step

    def step(
        self,
        requests: list[object],
        num_new_tokens: object,
        num_draft_tokens: object,
        allocation: Any,
    ) -> None:
        """Apply an allocation, if there is one, bring the rows in order, and write the step's inputs.

        See `InputBatch.step`. Everything is checked first, and changes made by then are undone if a check fails.
        """
        size: i64 = len(requests)
        news, drafts = self._news, self._drafts
        self._begin_call()
        mark = self.num_changes
        number: i64 = 0
        try:
            self._locate(requests)
            _count("num_new_tokens", num_new_tokens, size, news)
            _count("num_draft_tokens", num_draft_tokens, size, drafts)
            self._check_counts(requests, news, drafts)
            if allocation is not None:
                number = self._apply(requests, allocation)
            for group in self.groups:
                if group.has_slots:
                    self._find_slots(group, news, size)
                elif group.is_recurrent:
                    self._check_states(group, news, drafts, size)
        except Exception:
            self._undo(mark)
            raise
        self._applied = max(self._applied, number)
        self._place(size)
        self._fill(news, size)
        for group in self.groups:
            if group.has_slots:
                self._fill_slots(group)
            elif group.is_recurrent:
                self._fill_states(group, news, drafts, size)
        i: i64 = 0
        while i < size and self._record_size > RECORD:
            if news[i] > 0:
                self._set_record(i, BEGIN, self._begins[i])
                self._set_record(i, CERTAIN, self._begins[i] + news[i] - drafts[i])
            i += 1

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
        row = self._rows.get(name) if isinstance(name, str) else None
        if row is None:
            raise UnknownRequestError(f"requests: {name!r} has no row; add_request it first")
        self._seen[row] = request
        return row

    def _check_counts(self, requests: list[object], news: vec[i64], drafts: vec[i64]) -> None:
        """Take down where each request's step begins, after checking that it is within the limits. O(requests)."""
        begins = self._begins
        most = self.max_model_len
        total: i64 = 0
        i: i64 = 0
        size: i64 = len(requests)
        while i < size:
            request = requests[i]
            computed: int | None = None
            if isinstance(request, Request):
                begins[i] = request._num_computed
            else:
                computed = _computed_of(request)
                begins[i] = computed if 0 <= computed <= int(most) else -1
            if begins[i] < 0 or begins[i] > most - news[i]:
                given = begins[i] if computed is None else computed
                raise InvalidArgumentError(
                    f"num_new_tokens: {given} computed and {news[i]} new tokens of {self._ids[self._at[i]]!r} do not "
                    f"lie within 0..{most}, max_model_len"
                )
            if drafts[i] > 0 and drafts[i] >= news[i]:
                raise InvalidArgumentError(
                    f"num_draft_tokens: {drafts[i]} drafts among {news[i]} new tokens of {self._ids[self._at[i]]!r}; "
                    "a step computes at least one token that is no draft"
                )
            total += news[i]
            i += 1
        if total > self.max_num_tokens:
            raise InvalidArgumentError(
                f"num_new_tokens: {total} in all, but a step has at most {self.max_num_tokens}; raise max_num_tokens"
            )

    def _find_slots(self, group: GroupRows, news: vec[i64], size: i64) -> None:
        """Find the slots of one group, for `_fill_slots`: every new token has one. O(tokens)."""
        found = self._found
        starts = self._starts
        bases = self._bases
        begins = self._begins
        rows = self._at
        out = group.slots - self.max_num_tokens
        block_size = group.block_size
        first = group.number * self.max_num_requests
        i: i64 = 0
        while i < size:
            position = begins[i]
            row = rows[i]
            begin = starts[first + row]
            # Most tokens go to the block of the request's last one; there the table is not read.
            if news[i] == 1 and begin <= position < begin + block_size:
                # law: SLOT-1
                found[out] = bases[first + row] + position
                out += 1
            else:
                out = self._find_slots_of(group, row, position, position + news[i], out)
            i += 1

    def _find_slots_of(self, group: GroupRows, row: i64, position: i64, stop: i64, out: i64) -> i64:
        """Find the slots of one request's tokens in one group; return where the next one's go. O(tokens)."""
        found = self._found
        block_size = group.block_size
        at = group.number * self.max_num_requests + row
        while position < stop:
            begin = self._starts[at]
            if position < begin or position >= begin + block_size:
                entry = group.entry(position)
                block = i64(self.tables[group.first + row * group.width + entry])
                if block == 0:
                    raise self._no_block(f"position {position}", row, group)
                begin = entry * block_size
                self._starts[at] = begin
                self._bases[at] = (block - entry) * block_size
            end = min(stop, begin + block_size)
            # law: SLOT-1
            slot = self._bases[at] + position
            while position < end:
                found[out] = slot
                out += 1
                slot += 1
                position += 1
        return out

    def _no_block(self, what: str, row: i64, group: GroupRows) -> BlockError:
        hint = ", or the batch's enable_caching differs from the manager's" if group.is_recurrent else ""
        return BlockError(
            f"{what} of {self._ids[row]!r} in group {group.number} has no block; allocate its slots and apply the "
            f"allocation, or add_request it anew{hint}"
        )

    def _check_states(self, group: GroupRows, news: vec[i64], drafts: vec[i64], size: i64) -> None:
        """Check that the states to be read and written have blocks. O(requests)."""
        i: i64 = 0
        while i < size:
            if news[i] > 0:
                row = self._at[i]
                begin = self._begins[i]
                if begin > 0 and self._state_read(group, row, begin) == 0:
                    raise self._no_block(f"the state after {begin} tokens", row, group)
                certain = begin + news[i] - drafts[i]
                if certain > 0 and self.tables[self._state_index(group, row, certain)] == 0:
                    raise self._no_block(f"the state after {certain} tokens", row, group)
                if drafts[i] > self._record(row, group.record + 1):
                    raise BlockError(
                        f"num_draft_tokens: {drafts[i]} drafts of {self._ids[row]!r}, but it has "
                        f"{self._record(row, group.record + 1)} blocks for their states in group {group.number}; "
                        "add_request it with its draft_block_ids"
                    )
            i += 1

    def _state_index(self, group: GroupRows, row: i64, num_tokens: i64) -> i64:
        return group.first + row * group.width + group.state_entry(num_tokens)

    def _state_read(self, group: GroupRows, row: i64, begin: i64) -> i64:
        """Return the block with the state that a step after some tokens reads; 0 if there is none. law: MAMBA-3.

        After accepted drafts that is the block of the last of them. A step that begins where the last one did reads the
        same block again.
        """
        if begin == 0:
            return 0
        if group.num_states > 0 and begin == self._record(row, BEGIN):
            return self._record(row, group.record)
        # law: STATE-1
        accepted = begin - self._record(row, CERTAIN)
        if accepted > 0:
            if accepted > self._record(row, group.record + 1):
                return 0
            return self._record(row, group.record + 1 + accepted)
        return i64(self.tables[self._state_index(group, row, begin)])

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

    def _fill(self, news: vec[i64], size: i64) -> None:
        words = self.words
        counts = self.counts
        begins = self._begins
        rows = self.max_num_requests
        total: i64 = 0
        longest: i64 = 0
        farthest: i64 = 0
        counts[0] = 0
        i: i64 = 0
        while i < size:
            new = news[i]
            position = begins[i]
            stop = position + new
            longest = max(longest, new)
            farthest = max(farthest, stop)
            # law: LEN-2
            counts[rows + 1 + i] = i32(position)
            counts[2 * rows + 1 + i] = i32(stop)
            if self._has_encoder:
                counts[3 * rows + 1 + i] = i32(self._record(i, ENCODER))
            while position < stop:
                words[total] = position
                total += 1
                position += 1
            i += 1
            counts[i] = i32(total)
        self.num_requests = size
        self.num_tokens = total
        self.max_query_len = longest
        self.max_seq_len = farthest

    def _fill_slots(self, group: GroupRows) -> None:
        """Write the slots of one group, as they were found. O(tokens)."""
        found = self._found
        words = self.words
        out = group.slots
        at = out - self.max_num_tokens
        stop = out + self.num_tokens
        while out < stop:
            words[out] = found[at]
            out += 1
            at += 1

    def _fill_states(self, group: GroupRows, news: vec[i64], drafts: vec[i64], size: i64) -> None:
        """Write the blocks of the states that one group reads and writes, all of them checked. O(requests)."""
        counts = self.counts
        width = 1 + group.num_states
        i: i64 = 0
        while i < size:
            out = group.writes + i * width
            place: i64 = 0
            while place < width:
                counts[out + place] = 0
                place += 1
            begin = self._begins[i]
            read = self._state_read(group, i, begin)
            counts[group.reads + i] = i32(read)
            if news[i] > 0:
                certain = begin + news[i] - drafts[i]
                # law: STATE-2
                if certain > 0:
                    counts[out] = self.tables[self._state_index(group, i, certain)]
                place = 0
                while place < drafts[i]:
                    counts[out + 1 + place] = i32(self._record(i, group.record + 2 + place))
                    place += 1
                self._set_record(i, group.record, read)
            i += 1

    def slots(self, request_id: object, number: object, start: object, stop: object) -> vec[i64]:
        row: i64 = self.row_of(request_id)
        at = whole(number)
        if at is None or not 0 <= at < int(self._num_groups):
            raise InvalidArgumentError(f"group: must be within 0..{self._num_groups - 1}, not {number!r}")
        group = self.groups[at]
        if group.is_recurrent:
            raise UnsupportedError(f"group: the blocks of group {group.number} hold states and have no slots")
        first, last = whole(start), whole(stop)
        if first is None or last is None or not 0 <= first <= last <= MAX_LENGTH:
            raise InvalidArgumentError(f"start, stop: must be positions in order, not {start!r} and {stop!r}")
        length = self._length(group.number, row)
        position: i64 = first
        end: i64 = last
        held: i64 = min(end, length * group.block_size)
        found = vec[i64]()
        if held > position:
            found = vec[i64](capacity=held - position)
        while position < end:
            entry = group.entry(position)
            block = i64(self.tables[group.first + row * group.width + entry]) if entry < length else 0
            if block == 0:
                raise self._no_block(f"position {position}", row, group)
            found = append(found, (block - entry) * group.block_size + position)
            position += 1
        return found


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


def _count(name: str, given: object, size: i64, counts: vec[i64]) -> None:
    """Write one count per request, each within what 64 bits hold safely."""
    i: i64 = 0
    if not isinstance(given, (list, tuple)) and whole(given) is not None:
        count = item_count(name, given)
        while i < size:
            counts[i] = count
            i += 1
        return
    items = listed(name, given, "an integer, or one per request")
    if i64(len(items)) != size:
        raise InvalidArgumentError(f"{name}: {len(items)} counts for {size} requests; give one each, or one for all")
    while i < size:
        counts[i] = item_count(name, items[i])
        i += 1


def _computed_of(request: object) -> int:
    given: object = getattr(request, "num_computed_tokens", None)
    count = whole(given)
    if count is None:
        raise InvalidArgumentError(f"requests: num_computed_tokens must be an integer, not {given!r}")
    return count

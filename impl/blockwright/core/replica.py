"""A worker's block tables, kept from what changes, and what a step's kernels need to know of each token.

The scheduler's manager says once what a request holds and from then on only what changes (`BatchAllocation`). The
replica keeps the tables from that, one row per request, and reads off them, for each token of a step, its slot; for
recurrent layers, the blocks of the states that are read and written.

All block ids lie in one vector, group after group, row after row; one method writes them, `_put`, and remembers what
stood there. So a call that fails is undone, and a copy of the vector on another device is brought up to date with what
has changed, whatever the length of the tables.

    tables   | group 0: row 0, row 1, ... | group 1: row 0, ... | ... | entries of each row, per group |
    words    | positions | slots of the first group that has slots | slots of the second | ...
    counts   | query_start_loc | num_computed_tokens | seq_lens | encoder_lens | reads, writes, per recurrent group |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

from librt.vecs import append, extend, vec
from mypy_extensions import i32, i64

from blockwright.config import KVCacheConfig
from blockwright.core.group import ONE_STATE, ROW, layout_for
from blockwright.core.request import MAX_LENGTH, Request
from blockwright.errors import (
    BlockError,
    DuplicateRequestError,
    InvalidArgumentError,
    UnknownRequestError,
    UnsupportedError,
)
from blockwright.kinds import CrossAttentionSpec, MambaSpec

# A row's record: what is known of its last step, its encoder's tokens, and then, per recurrent group, the block that
# the last step read, the number of draft blocks, and the draft blocks.
CERTAIN: Final = 0
BEGIN: Final = 1
ENCODER: Final = 2
RECORD: Final = 3

UNKNOWN: Final = MAX_LENGTH
"""Certain tokens of a request that has had no step here: no draft of it can have been accepted."""


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

    def __init__(self, number: int, spec: object, block_size: int, width: int, layout: int, num_states: int) -> None:
        """Take what the group's kind says; the replica sets the places."""
        self.number: i64 = number
        self.block_size: i64 = block_size
        self.shift: i64 = block_size.bit_length() - 1 if block_size & (block_size - 1) == 0 else -1
        self.width: i64 = width
        self.is_encoder = isinstance(spec, CrossAttentionSpec)
        self.is_recurrent = layout != ROW
        self.is_single = layout == ONE_STATE
        self.has_slots = not self.is_encoder and not self.is_recurrent
        self.num_states: i64 = num_states
        self.first: i64 = 0
        self.slots: i64 = 0
        self.reads: i64 = 0
        self.writes: i64 = 0
        self.record: i64 = 0

    def entry(self, position: i64) -> i64:
        """Return the table entry of a position. O(1)."""
        if self.shift >= 0:
            return position >> self.shift
        return position // self.block_size

    def state_entry(self, num_tokens: i64) -> i64:
        """Return the table entry of the state after `num_tokens` tokens, of one at least. O(1)."""
        return 0 if self.is_single else self.entry(num_tokens - 1)


@final
class TableReplica:
    """Block tables of up to `max_num_requests` requests, a row each, and the inputs of one step at a time.

    Attributes:
        groups: where each group's part lies.
        max_num_requests, max_num_tokens, max_model_len: limits of one step; tokens of one request.
        tables: ``vec[i32]``, see the module; never grows.
        words: ``vec[i64]``, see the module; never grows. A row has `max_num_tokens` places.
        counts: ``vec[i32]``, see the module; never grows.
        num_changes: entries written since they were last taken (`take_changes`) or, if they are not kept, by the last
            call; an entry that was written twice counts twice.
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
        self.max_num_requests: i64 = max_num_requests
        self.max_num_tokens: i64 = max_num_tokens
        self.max_model_len: i64 = max_model_len
        self._num_blocks: i64 = config.num_blocks
        self._keeps = keep_changes
        self.groups: list[GroupRows] = []
        size: i64 = 0
        words: i64 = max_num_tokens
        counts: i64 = 4 * self.max_num_requests + 1
        record: i64 = RECORD
        for number, group in enumerate(config.kv_cache_groups):
            spec = group.kv_cache_spec
            layout = int(layout_for(spec, enable_caching))
            num_states = spec.num_speculative_blocks if isinstance(spec, MambaSpec) else 0
            longest = max_encoder_len if isinstance(spec, CrossAttentionSpec) else max_model_len
            width = 1 if layout == ONE_STATE else -(-longest // spec.block_size)
            rows = GroupRows(number, spec, spec.block_size, width, layout, num_states)
            rows.first = size
            size += rows.width * self.max_num_requests
            if rows.has_slots:
                rows.slots = words
                words += self.max_num_tokens
            if rows.is_recurrent:
                rows.reads = counts
                rows.writes = counts + self.max_num_requests
                counts = rows.writes + (1 + rows.num_states) * self.max_num_requests
                rows.record = record
                record += 2 + rows.num_states
            self.groups.append(rows)
        self._num_groups: i64 = len(self.groups)
        self._has_encoder = any([group.is_encoder for group in self.groups])
        # The entries of each row lie behind the tables: what writes and undoes the ones does so to the others.
        self._lengths: i64 = size
        self.tables: vec[i32] = zeros32(size + self._num_groups * self.max_num_requests)
        self.words: vec[i64] = zeros64(words)
        self.counts: vec[i32] = zeros32(counts)
        self._record_size: i64 = record
        self._records: vec[i64] = zeros64(record * self.max_num_requests)
        self._changed: vec[i64] = vec[i64]()
        self._before: vec[i32] = vec[i32]()
        self.num_changes: i64 = 0
        # Who has which row: the id, and the object that last stood for it in a step.
        self._rows: dict[str, int] = {}
        self._ids: list[str | None] = [None] * max_num_requests
        self._seen: list[object] = [None] * max_num_requests
        self._end: i64 = 0
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

    # ------------------------------------------------------------------ entries

    def _put(self, index: i64, value: i32) -> None:
        """Write one entry and remember what stood there. O(1)."""
        before = self.tables[index]
        if before == value:
            return
        number = self.num_changes
        if number < i64(len(self._changed)):
            self._changed[number] = index
            self._before[number] = before
        else:
            self._changed = append(self._changed, index)
            self._before = append(self._before, before)
        self.num_changes = number + 1
        self.tables[index] = value

    def _begin_call(self) -> None:
        """Forget what the call before changed, unless it is kept."""
        if not self._keeps:
            self.num_changes = 0

    def _undo(self, mark: i64) -> None:
        """Put back what was changed after the first `mark` changes, last first."""
        while self.num_changes > mark:
            self.num_changes -= 1
            self.tables[self._changed[self.num_changes]] = self._before[self.num_changes]

    def take_changes(self) -> tuple[vec[i64], vec[i32]]:
        """Return the indices in `tables` that were written since the last call, and what stands there now.

        An index may stand twice, with one value. Complexity: O(changes), whatever the length of the tables.
        """
        indices = self._changed[: self.num_changes]
        values = vec[i32](capacity=len(indices))
        tables = self.tables
        for index in indices:
            values = append(values, tables[index])
        self.num_changes = 0
        return indices, values

    def _length(self, group: i64, row: i64) -> i64:
        """Return the entries of a row."""
        return i64(self.tables[self._lengths + group * self.max_num_requests + row])

    def _set_length(self, group: i64, row: i64, length: i64) -> None:
        """Set the entries of a row."""
        self._put(self._lengths + group * self.max_num_requests + row, i32(length))

    # ------------------------------------------------------------------ rows

    @property
    def request_ids(self) -> list[str | None]:
        """The request of each row, None where the row is free; up to the last row that is not. O(rows)."""
        return self._ids[: self._end]

    def row_of(self, request_id: str) -> int:
        """Return the row of a request. O(1).

        Raises:
            UnknownRequestError: it has none.
        """
        row = self._rows.get(request_id)
        if row is None:
            raise UnknownRequestError(f"request_id: {request_id!r} has no row; add_request it first")
        return row

    def block_ids(self, request_id: str) -> list[list[int]]:
        """Return a request's block ids per group, as its row has them. O(entries)."""
        row: i64 = self.row_of(request_id)
        found: list[list[int]] = []
        for group in self.groups:
            first = group.first + row * group.width
            found.append([int(block) for block in self.tables[first : first + self._length(group.number, row)]])
        return found

    def add_request(self, request_id: str, blocks: object, drafts: object, num_encoder_tokens: int) -> None:
        """Give a request the first free row, or its own anew, and write its blocks. See `InputBatch.add_request`."""
        if not isinstance(request_id, str) or not request_id:
            raise InvalidArgumentError(f"request_id: must be a non-empty string, not {request_id!r}")
        rows = self._checked_blocks("block_ids", request_id, blocks)
        states = self._checked_blocks("draft_block_ids", request_id, drafts)
        for group, row_blocks, state_blocks in zip(self.groups, rows, states):
            if i64(len(row_blocks)) > group.width:
                raise InvalidArgumentError(
                    f"block_ids: {len(row_blocks)} blocks of {request_id!r} in group {group.number}, but a row has "
                    f"{group.width} entries; raise max_model_len or max_encoder_len"
                )
            if i64(len(state_blocks)) > group.num_states:
                raise InvalidArgumentError(
                    f"draft_block_ids: {len(state_blocks)} blocks for drafts of {request_id!r} in group "
                    f"{group.number}, whose kind has {group.num_states}"
                )
        most = max([0] + [int(group.width * group.block_size) for group in self.groups if group.is_encoder])
        if not isinstance(num_encoder_tokens, int) or not 0 <= num_encoder_tokens <= MAX_LENGTH:
            raise InvalidArgumentError(f"num_encoder_tokens: must be 0 or more, not {num_encoder_tokens!r}")
        if num_encoder_tokens > most:
            raise InvalidArgumentError(
                f"num_encoder_tokens: {num_encoder_tokens} for {request_id!r}, but rows of cross-attention groups "
                f"cover {most}; raise max_encoder_len"
            )
        self._begin_call()
        known = self._rows.get(request_id)
        row: i64 = self._free_row() if known is None else known
        if known is None:
            self._ids[row] = request_id
            self._rows[request_id] = int(row)
            self._end = max(self._end, row + 1)
            self._set_record(row, CERTAIN, UNKNOWN)
            self._set_record(row, BEGIN, -1)
        self._set_record(row, ENCODER, num_encoder_tokens)
        for group, row_blocks, state_blocks in zip(self.groups, rows, states):
            self._set_row(group, row, row_blocks)
            if group.is_recurrent:
                self._set_record(row, group.record + 1, i64(len(state_blocks)))
                for place, block in enumerate(state_blocks):
                    self._set_record(row, group.record + 2 + place, i64(block))

    def _checked_blocks(self, name: str, request_id: str, given: Any) -> list[vec[i32]]:
        """Return blocks as vectors, one per group: of a `KVCacheBlocks`, of lists, or empty ones for no groups."""
        packed: object = getattr(given, "ids", None)
        lists: list[Any] = list(given if packed is None else given.ids)
        if len(lists) == 0:
            return [vec[i32]() for _ in self.groups]
        if i64(len(lists)) != self._num_groups:
            raise InvalidArgumentError(
                f"{name}: {len(lists)} lists for {request_id!r}; give one per group, {self._num_groups} of them"
            )
        checked: list[vec[i32]] = []
        for number, blocks in enumerate(lists):
            ids: vec[i32] = vec[i32]()
            if packed is not None:
                ids = blocks
                for block in ids:
                    if block < 0 or i64(block) >= self._num_blocks:
                        raise self._foreign(name, block, request_id, number)
            else:
                each: object
                for each in blocks:
                    if not isinstance(each, int) or each < 0 or each >= int(self._num_blocks):
                        raise self._foreign(name, each, request_id, number)
                    ids = append(ids, i32(each))
            checked.append(ids)
        return checked

    def _foreign(self, name: str, block: object, request_id: object, number: int) -> BlockError:
        """Return the error of a block id that the pool does not have."""
        return BlockError(
            f"{name}: {block!r} of {request_id!r} in group {number} is no block of this pool of {self._num_blocks}"
        )

    def _free_row(self) -> i64:
        """Return the first free row."""
        row: i64 = 0
        while row < self.max_num_requests:
            if self._ids[row] is None:
                return row
            row += 1
        raise InvalidArgumentError(
            f"request_id: all {self.max_num_requests} rows are taken; remove a request, or raise max_num_requests"
        )

    def _set_row(self, group: GroupRows, row: i64, blocks: vec[i32]) -> None:
        """Make `blocks` the entries of a row, and zeros what was behind them."""
        first = group.first + row * group.width
        length: i64 = len(blocks)
        before = self._length(group.number, row)
        entry: i64 = 0
        while entry < length:
            self._put(first + entry, blocks[entry])
            entry += 1
        while entry < before:
            self._put(first + entry, 0)
            entry += 1
        self._set_length(group.number, row, length)

    def _set_record(self, row: i64, field: i64, value: i64) -> None:
        """Set one number of a row's record."""
        self._records[row * self._record_size + field] = value

    def _record(self, row: i64, field: i64) -> i64:
        """Return one number of a row's record."""
        return self._records[row * self._record_size + field]

    def remove_request(self, request_id: str) -> None:
        """Free a request's row and write zeros to it. O(entries)."""
        row: i64 = self.row_of(request_id)
        self._begin_call()
        nothing = vec[i32]()
        for group in self.groups:
            self._set_row(group, row, nothing)
        del self._rows[request_id]
        self._ids[row] = None
        self._seen[row] = None
        self._shorten()

    def _shorten(self) -> None:
        """Let the rows end behind the last one that is taken."""
        while self._end > 0 and self._ids[self._end - 1] is None:
            self._end -= 1

    def swap_rows(self, row: int, other: int) -> None:
        """Exchange two rows, free ones too. O(entries of both)."""
        for name, given in (("row", row), ("other", other)):
            if not isinstance(given, int) or not 0 <= given < int(self.max_num_requests):
                raise InvalidArgumentError(f"{name}: must be within 0..{self.max_num_requests - 1}, not {given!r}")
        self._begin_call()
        self._swap(row, other)
        self._shorten()

    def compact(self) -> list[tuple[int, int]]:
        """Move the last rows to the free ones before them; return the moves, (from, to). O(entries moved)."""
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
        """Exchange two rows. O(entries of both)."""
        if row == other:
            return
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

    # ------------------------------------------------------------------ what changed

    def apply(self, requests: list[object], allocation: Any) -> None:
        """Change the rows as a `BatchAllocation` of these requests says. See `InputBatch.apply`."""
        self._begin_call()
        mark = self.num_changes
        try:
            self._locate(requests)
            self._apply(requests, allocation)
        except Exception:
            self._undo(mark)
            raise

    def _apply(self, requests: list[object], allocation: Any) -> None:
        """Change the rows of located requests; a failure leaves something for `_undo`. O(requests + changes)."""
        new_ids: vec[i32] = allocation.new_block_ids
        new_ends: vec[i32] = allocation.new_block_offsets
        nulled: vec[i32] = allocation.nulled_entries
        nulled_ends: vec[i32] = allocation.nulled_offsets
        replaced: vec[i32] = allocation.replaced_entries
        served: i64 = allocation.num_served
        groups = self._num_groups
        if served < 0 or served > i64(len(requests)):
            raise InvalidArgumentError(
                f"allocation: it served {served} requests, but {len(requests)} are given; give those of its batch, in "
                "the same order"
            )
        ends = served * groups + 1
        if i64(len(new_ends)) < ends or i64(len(nulled_ends)) < ends or len(replaced) % 4 != 0:
            raise InvalidArgumentError(f"allocation: it is not one of {groups} groups")
        i: i64 = 0
        while i < served:
            at = i * groups
            last = at + groups
            if new_ends[at] != new_ends[last] or nulled_ends[at] != nulled_ends[last]:
                row = self._at[i]
                number: i64 = 0
                while number < groups:
                    group = self.groups[number]
                    self._append(group, row, new_ids, i64(new_ends[at]), i64(new_ends[at + 1]))
                    self._null(group, row, nulled, i64(nulled_ends[at]), i64(nulled_ends[at + 1]))
                    number += 1
                    at += 1
            i += 1
        at = 0
        while at < i64(len(replaced)):
            self._replace(i64(replaced[at]), i64(replaced[at + 1]), i64(replaced[at + 2]), replaced[at + 3], served)
            at += 4

    def _append(self, group: GroupRows, row: i64, ids: vec[i32], start: i64, stop: i64) -> None:
        """Append blocks to a row."""
        if start == stop:
            return
        length = self._length(group.number, row)
        if start < 0 or start > stop or stop > i64(len(ids)) or length + stop - start > group.width:
            raise InvalidArgumentError(
                f"allocation: new blocks {start}..{stop} of {len(ids)} do not fit behind the {length} entries of "
                f"{self._ids[row]!r} in group {group.number}, of {group.width}; was it applied before?"
            )
        index = group.first + row * group.width + length
        while start < stop:
            self._put(index, self._checked_block(group, row, ids[start]))
            index += 1
            start += 1
            length += 1
        self._set_length(group.number, row, length)

    def _checked_block(self, group: GroupRows, row: i64, block: i32) -> i32:
        """Return a block id that is one of the pool."""
        if block < 0 or i64(block) >= self._num_blocks:
            raise self._foreign("allocation", block, self._ids[row], int(group.number))
        return block

    def _null(self, group: GroupRows, row: i64, entries: vec[i32], start: i64, stop: i64) -> None:
        """Put the null block at entries of a row."""
        first = group.first + row * group.width
        while start < stop:
            entry: i64 = i64(entries[start])
            if entry < 0 or entry >= self._length(group.number, row):
                raise InvalidArgumentError(
                    f"allocation: entry {entry} of {self._ids[row]!r} in group {group.number} became null, but the "
                    f"row has {self._length(group.number, row)}; was an allocation missed?"
                )
            self._put(first + entry, 0)
            start += 1

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
        self._put(group.first + row * group.width + entry, self._checked_block(group, row, block))

    # ------------------------------------------------------------------ a step

    def step(
        self,
        requests: list[object],
        num_new_tokens: object,
        num_draft_tokens: object,
        allocation: Any,
    ) -> None:
        """Apply an allocation (None: nothing has changed), bring the rows in order, and write the step's inputs.

        See `InputBatch.step`. Everything is checked first, and what was applied by then is undone if that fails.
        """
        size: i64 = len(requests)
        news, drafts = self._news, self._drafts
        self._begin_call()
        mark = self.num_changes
        try:
            self._locate(requests)
            _count("num_new_tokens", num_new_tokens, size, news)
            _count("num_draft_tokens", num_draft_tokens, size, drafts)
            self._check_counts(requests, news, drafts)
            if allocation is not None:
                self._apply(requests, allocation)
            for group in self.groups:
                if group.has_slots:
                    self._check_slots(group, requests, news)
                elif group.is_recurrent:
                    self._check_states(group, news, drafts, size)
        except Exception:
            self._undo(mark)
            raise
        self._place(size)
        self._fill(news, size)
        for group in self.groups:
            if group.has_slots:
                self._fill_slots(group, news, size)
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
                raise DuplicateRequestError(f"requests: {self._ids[row]!r} stands twice")
            named[row] = call
            order[row] = i
            rows[i] = row
            i += 1

    def _look_up(self, request: object) -> i64:
        """Return the row of a request by its id, and remember the object that stands for it."""
        name: object = getattr(request, "request_id", None)
        row = self._rows.get(name) if isinstance(name, str) else None
        if row is None:
            raise UnknownRequestError(f"requests: {name!r} has no row; add_request it first")
        self._seen[row] = request
        return row

    def _check_counts(self, requests: list[object], news: vec[i64], drafts: vec[i64]) -> None:
        """Take down where each request's step begins, after checking that it is within the limits. O(requests)."""
        begins = self._begins
        most = int(self.max_model_len)
        total: i64 = 0
        i: i64 = 0
        size: i64 = len(requests)
        while i < size:
            request = requests[i]
            if isinstance(request, Request):
                given = request.num_computed_tokens
            else:
                given = _computed_of(request)
            if given < 0 or given + int(news[i]) > most:
                raise InvalidArgumentError(
                    f"num_new_tokens: {given} computed and {news[i]} new tokens of {self._ids[self._at[i]]!r} do not "
                    f"lie within 0..{most}, max_model_len"
                )
            if drafts[i] > 0 and drafts[i] >= news[i]:
                raise InvalidArgumentError(
                    f"num_draft_tokens: {drafts[i]} drafts among {news[i]} new tokens of {self._ids[self._at[i]]!r}; "
                    "a step computes at least one token that is none"
                )
            begins[i] = given
            total += news[i]
            i += 1
        if total > self.max_num_tokens:
            raise InvalidArgumentError(
                f"num_new_tokens: {total} in all, but a step has at most {self.max_num_tokens}; raise max_num_tokens"
            )

    def _check_slots(self, group: GroupRows, requests: list[object], news: vec[i64]) -> None:
        """Check that every new token has a slot. O(requests + blocks written)."""
        tables = self.tables
        rows = self._at
        begins = self._begins
        i: i64 = 0
        size: i64 = len(requests)
        while i < size:
            if news[i] > 0:
                begin = begins[i]
                entry = group.entry(begin)
                last = group.entry(begin + news[i] - 1)
                first = group.first + rows[i] * group.width
                while entry <= last:
                    if tables[first + entry] == 0:
                        position = max(begin, entry * group.block_size)
                        raise self._no_block(f"position {position}", rows[i], group)
                    entry += 1
            i += 1

    def _no_block(self, what: str, row: i64, group: GroupRows) -> BlockError:
        """Return the error of a position or state without a block."""
        return BlockError(
            f"{what} of {self._ids[row]!r} in group {group.number} has no block; allocate its slots and apply the "
            "allocation, or add_request it anew"
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
        """Return where in the tables the block with the state after some tokens stands."""
        return group.first + row * group.width + group.state_entry(num_tokens)

    def _state_read(self, group: GroupRows, row: i64, begin: i64) -> i64:
        """Return the block with the state that a step reads which begins after some tokens; 0: none. law: MAMBA-3.

        After accepted drafts that is the block of the last of them; a step that begins where the last one did reads
        what that one read.
        """
        if begin == 0:
            return 0
        if group.num_states > 0 and begin == self._record(row, BEGIN):
            return self._record(row, group.record)
        accepted = begin - self._record(row, CERTAIN)
        if accepted > 0:
            if accepted > self._record(row, group.record + 1):
                return 0
            return self._record(row, group.record + 1 + accepted)
        return i64(self.tables[self._state_index(group, row, begin)])

    def _place(self, size: i64) -> None:
        """Bring request i of the step to row i. O(entries of the rows that differ)."""
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
        """Write positions and counts. O(tokens)."""
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

    def _fill_slots(self, group: GroupRows, news: vec[i64], size: i64) -> None:
        """Write the slots of one group, all of them checked. O(tokens)."""
        tables = self.tables
        words = self.words
        begins = self._begins
        out = group.slots
        block_size = group.block_size
        first = group.first
        i: i64 = 0
        while i < size:
            position = begins[i]
            stop = position + news[i]
            while position < stop:
                entry = group.entry(position)
                begin = entry * block_size
                end = min(stop, begin + block_size)
                slot = i64(tables[first + entry]) * block_size + position - begin
                while position < end:
                    words[out] = slot
                    out += 1
                    slot += 1
                    position += 1
            first += group.width
            i += 1

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
                if certain > 0:
                    counts[out] = self.tables[self._state_index(group, i, certain)]
                place = 0
                while place < drafts[i]:
                    counts[out + 1 + place] = i32(self._record(i, group.record + 2 + place))
                    place += 1
                self._set_record(i, group.record, read)
            i += 1

    def slots(self, request_id: str, number: int, start: int, stop: int) -> vec[i64]:
        """Return the slots of some positions of one request. See `InputBatch.slots`."""
        row: i64 = self.row_of(request_id)
        if not isinstance(number, int) or not 0 <= number < int(self._num_groups):
            raise InvalidArgumentError(f"group: must be within 0..{self._num_groups - 1}, not {number!r}")
        group = self.groups[number]
        if group.is_recurrent:
            raise UnsupportedError(f"group: the blocks of group {number} hold states and have no slots")
        if not isinstance(start, int) or not isinstance(stop, int) or not 0 <= start <= stop <= MAX_LENGTH:
            raise InvalidArgumentError(f"start, stop: must be positions in order, not {start!r} and {stop!r}")
        found = vec[i64](capacity=stop - start)
        length = self._length(group.number, row)
        position: i64 = start
        while position < stop:
            entry = group.entry(position)
            block = i64(self.tables[group.first + row * group.width + entry]) if entry < length else 0
            if block == 0:
                raise self._no_block(f"position {position}", row, group)
            found = append(found, (block - entry) * group.block_size + position)
            position += 1
        return found


def _count(name: str, given: object, size: i64, counts: vec[i64]) -> None:
    """Write one count per request, each within what 64 bits hold safely."""
    i: i64 = 0
    if isinstance(given, int):
        count: i64 = _checked_count(name, given)
        while i < size:
            counts[i] = count
            i += 1
        return
    if not isinstance(given, Iterable):
        raise InvalidArgumentError(f"{name}: must be an integer, or one per request, not {given!r}")
    items = list(given)
    if i64(len(items)) != size:
        raise InvalidArgumentError(f"{name}: {len(items)} counts for {size} requests; give one each, or one for all")
    while i < size:
        counts[i] = _checked_count(name, items[i])
        i += 1


def _checked_count(name: str, given: object) -> i64:
    """Return a count, checked to be an integer in a safe range."""
    if not isinstance(given, int) or given < 0 or given > MAX_LENGTH:
        raise InvalidArgumentError(f"{name}: must be an integer within 0..{MAX_LENGTH}, not {given!r}")
    return given


def _computed_of(request: object) -> int:
    """Return the computed tokens of an object that is no `Request`."""
    given: object = getattr(request, "num_computed_tokens", None)
    if not isinstance(given, int):
        raise InvalidArgumentError(f"requests: num_computed_tokens must be an integer, not {given!r}")
    return given


def zeros32(count: i64) -> vec[i32]:
    """Return a vector of zeros, without a list as long. O(count)."""
    chunk = vec[i32]([0] * min(count, 4096))
    made = vec[i32](capacity=count)
    while i64(len(made)) < count:
        made = extend(made, chunk[: count - i64(len(made))])
    return made


def zeros64(count: i64) -> vec[i64]:
    """Return a vector of zeros, without a list as long. O(count)."""
    chunk = vec[i64]([0] * min(count, 4096))
    made = vec[i64](capacity=count)
    while i64(len(made)) < count:
        made = extend(made, chunk[: count - i64(len(made))])
    return made

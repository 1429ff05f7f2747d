"""The inputs of a step's kernels for each token, made from a worker's block tables.

The tables follow the manager's (`rows`). From them the replica writes the slot of each token of a step and, for
recurrent layers, the blocks of the states that are read and written.

    words    | positions | slots of the first group that has slots | slots of the second | ...
    counts   | query_start_loc | num_computed_tokens | seq_lens | encoder_lens | cu_seqlens_k
             | reads, writes, per recurrent group |
"""

from __future__ import annotations

from typing import Any, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from blockwright.arguments import integer
from blockwright.config import KVCacheConfig
from blockwright.core.keys.packed import zeros32, zeros64
from blockwright.core.keys.request import MAX_LENGTH, Request, item_count
from blockwright.errors import BlockError, InvalidArgumentError, UnsupportedError
from blockwright.worker.rows import BEGIN, CERTAIN, ENCODER, RECORD, GroupRows, TableRows, listed, whole


@final
class TableReplica:
    """The inputs of one step at a time, made from block tables that follow the manager's.

    Attributes:
        rows: the block tables, a row for each request.
        groups, max_num_requests: of the rows.
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
        self.rows = TableRows(config, max_num_requests, max_model_len, max_encoder_len, enable_caching, keep_changes)
        self.groups: list[GroupRows] = self.rows.groups
        self.max_num_requests: i64 = max_num_requests
        self.max_num_tokens: i64 = max_num_tokens
        self.max_model_len: i64 = max_model_len
        self._has_encoder = any([group.is_encoder for group in self.groups])
        words: i64 = self.max_num_tokens
        counts: i64 = 5 * self.max_num_requests + 2
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
        # Per request of the step: where it begins, its new tokens, and how many of them are drafts.
        self._begins: vec[i64] = zeros64(self.max_num_requests)
        self._news: vec[i64] = zeros64(self.max_num_requests)
        self._drafts: vec[i64] = zeros64(self.max_num_requests)
        self.num_requests: i64 = 0
        self.num_tokens: i64 = 0
        self.max_query_len: i64 = 0
        self.max_seq_len: i64 = 0

    # ------------------------------------------------------------------ a step

    def step(self, requests: list[object], num_new_tokens: object, num_draft_tokens: object, allocation: Any) -> None:
        """Apply an allocation, if there is one, bring the rows in order, and write the step's inputs.

        See `InputBatch.step`. Everything is checked first, and changes made by then are undone if a check fails.
        """
        rows = self.rows
        size: i64 = len(requests)
        news, drafts = self._news, self._drafts
        rows._begin_call()
        mark = rows.num_changes
        number: i64 = 0
        try:
            rows._locate(requests)
            _count("num_new_tokens", num_new_tokens, size, news)
            _count("num_draft_tokens", num_draft_tokens, size, drafts)
            self._check_counts(requests, news, drafts)
            if allocation is not None:
                number = rows._apply(requests, allocation)
            for group in self.groups:
                if group.has_slots:
                    self._find_slots(group, news, size)
                elif group.is_recurrent:
                    self._check_states(group, news, drafts, size)
        except Exception:
            rows._undo(mark)
            raise
        # Only now: a step that fails leaves the allocation to be applied again.
        rows._applied = max(rows._applied, number)
        rows._place(size)
        self._fill(news, size)
        for group in self.groups:
            if group.has_slots:
                self._fill_slots(group)
            elif group.is_recurrent:
                self._fill_states(group, news, drafts, size)
        i: i64 = 0
        # Without recurrent layers nothing asks where a step began.
        while i < size and rows._record_size > RECORD:
            if news[i] > 0:
                rows._set_record(i, BEGIN, self._begins[i])
                rows._set_record(i, CERTAIN, self._begins[i] + news[i] - drafts[i])
            i += 1

    def _check_counts(self, requests: list[object], news: vec[i64], drafts: vec[i64]) -> None:
        """Take down where each request's step begins, after checking that it is within the limits. O(requests)."""
        rows = self.rows
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
                    f"num_new_tokens: {given} computed and {news[i]} new tokens of {rows._ids[rows._at[i]]!r} do not "
                    f"lie within 0..{most}, max_model_len"
                )
            if drafts[i] > 0 and drafts[i] >= news[i]:
                raise InvalidArgumentError(
                    f"num_draft_tokens: {drafts[i]} drafts among {news[i]} new tokens of {rows._ids[rows._at[i]]!r}; "
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
        rows = self.rows
        found = self._found
        starts = rows._starts
        bases = rows._bases
        begins = self._begins
        places = rows._at
        out = group.slots - self.max_num_tokens
        block_size = group.block_size
        first = group.number * self.max_num_requests
        i: i64 = 0
        while i < size:
            position = begins[i]
            row = places[i]
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
        rows = self.rows
        found = self._found
        block_size = group.block_size
        at = group.number * self.max_num_requests + row
        while position < stop:
            begin = rows._starts[at]
            if position < begin or position >= begin + block_size:
                entry = group.entry(position)
                block = i64(rows.tables[group.first + row * group.width + entry])
                if block == 0:
                    raise self._no_block(f"position {position}", row, group)
                begin = entry * block_size
                rows._starts[at] = begin
                rows._bases[at] = (block - entry) * block_size
            end = min(stop, begin + block_size)
            # law: SLOT-1
            slot = rows._bases[at] + position
            while position < end:
                found[out] = slot
                out += 1
                slot += 1
                position += 1
        return out

    def _no_block(self, what: str, row: i64, group: GroupRows) -> BlockError:
        hint = ", or the batch's enable_caching differs from the manager's" if group.is_recurrent else ""
        return BlockError(
            f"{what} of {self.rows._ids[row]!r} in group {group.number} has no block; allocate its slots and apply the "
            f"allocation, or add_request it anew{hint}"
        )

    def _check_states(self, group: GroupRows, news: vec[i64], drafts: vec[i64], size: i64) -> None:
        rows = self.rows
        i: i64 = 0
        while i < size:
            if news[i] > 0:
                row = rows._at[i]
                begin = self._begins[i]
                if begin > 0 and self._state_read(group, row, begin) == 0:
                    raise self._no_block(f"the state after {begin} tokens", row, group)
                certain = begin + news[i] - drafts[i]
                if certain > 0 and rows.tables[self._state_index(group, row, certain)] == 0:
                    raise self._no_block(f"the state after {certain} tokens", row, group)
                if drafts[i] > rows._record(row, group.record + 1):
                    raise BlockError(
                        f"num_draft_tokens: {drafts[i]} drafts of {rows._ids[row]!r}, but it has "
                        f"{rows._record(row, group.record + 1)} blocks for their states in group {group.number}; "
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
        rows = self.rows
        if begin == 0:
            return 0
        # A step made again, after it failed: the drafts of the first try must not count as accepted.
        if group.num_states > 0 and begin == rows._record(row, BEGIN):
            return rows._record(row, group.record)
        # law: STATE-1
        accepted = begin - rows._record(row, CERTAIN)
        if accepted > 0:
            if accepted > rows._record(row, group.record + 1):
                return 0
            return rows._record(row, group.record + 1 + accepted)
        return i64(rows.tables[self._state_index(group, row, begin)])

    def _fill(self, news: vec[i64], size: i64) -> None:
        words = self.words
        counts = self.counts
        begins = self._begins
        rows = self.max_num_requests
        total: i64 = 0
        longest: i64 = 0
        farthest: i64 = 0
        keys: i64 = 0
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
            keys = min(keys + stop, MAX_LENGTH)  # no kernel with 32 bits can read more
            counts[4 * rows + 2 + i] = i32(keys)
            if self._has_encoder:
                counts[3 * rows + 1 + i] = i32(self.rows._record(i, ENCODER))
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
        rows = self.rows
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
                    counts[out] = rows.tables[self._state_index(group, i, certain)]
                place = 0
                while place < drafts[i]:
                    counts[out + 1 + place] = i32(rows._record(i, group.record + 2 + place))
                    place += 1
                rows._set_record(i, group.record, read)
            i += 1

    def slots(self, request_id: object, number: object, start: object, stop: object) -> vec[i64]:
        rows = self.rows
        row: i64 = rows.row_of(request_id)
        group = self.groups[integer("group", number, 0, int(rows._num_groups) - 1)]
        if group.is_recurrent:
            raise UnsupportedError(f"group: the blocks of group {group.number} hold states and have no slots")
        first, last = whole(start), whole(stop)
        if first is None or last is None or not 0 <= first <= last <= MAX_LENGTH:
            raise InvalidArgumentError(f"start, stop: must be positions in order, not {start!r} and {stop!r}")
        length = rows._length(group.number, row)
        position: i64 = first
        end: i64 = last
        # The caller may ask for far more than the request holds: only what can be answered takes memory.
        held: i64 = min(end, length * group.block_size)
        found = vec[i64]()
        if held > position:
            found = vec[i64](capacity=held - position)
        while position < end:
            entry = group.entry(position)
            block: i64 = i64(rows.tables[group.first + row * group.width + entry]) if entry < length else 0
            if block == 0:
                raise self._no_block(f"position {position}", row, group)
            found = append(found, (block - entry) * group.block_size + position)
            position += 1
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

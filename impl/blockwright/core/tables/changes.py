"""The changes of one step in the tables, noted before any is made, in memory that all steps share."""

from __future__ import annotations

from typing import final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import with_zeros, zeros32
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.table import RequestTables


@final
class StepScratch:
    """The changes of a step in the tables, except the blocks it takes.

    One record serves all steps of a manager in turn.

    Attributes:
        runs: per group, where the run of groups with tables of the same shape ends.
        held_each: entries of every table before the step, the hit included, for groups that grow alike; -1 for other
            groups. `held_in` reads both kinds.
        held: the same per group, valid only while `held_each` is -1. `undo` cuts the tables back to these lengths.
        dead, dead_ends: per first group of a run, the entries that trimming passes: the first, and the end. Valid only
            in a step that trims, as are `nulled_each`, `num_dead` and `trim_at`.
        nulled: the entries that trimming nulls, group after group. The steps of a batch append to it, so it becomes the
            answer's `nulled_entries`; it is never written again. The step has trimmed if it has grown.
        nulled_each: per first group of a run, how many of these entries trimming nulls in each of its tables.
        num_nulled: the length of `nulled` before the step, so that the step's own part begins there.
        num_dead: the entries that trimming nulls, in all groups.
        trim_at: settled tokens at which the next entry dies after the trim.
        blocks: scratch for block ids that all groups give back or publish at once. It has room for one per group at
            least, and for all nulled entries of the step.
        taken: scratch for the blocks that a step takes, one for each group.
        ends: the last two lengths that a request publishes parts up to as it ends.
        num_replaced: the length of `replaced` before the step.
        replaced: the entries that are copied, four numbers each: index of the request, group, entry, new block. Each
            block is also in the pool's list of copies.
        saved: the blocks that states are copied to before the step writes over them.
        request: index of the request in its batch; 0 outside a batch.
        grown: entries that the step appends, in all groups together: an upper bound of the blocks that it takes.
        has_begun: the call has made a change that cannot be taken back. An error before that is undone; one after it
            tears the manager.
        pending, num_pending: the requests of a batch with a step that is not counted in place, by index, ascending.
        num_seen: how many requests of a batch were checked. Those that are not pending were counted, except perhaps the
            last.
        quiet: tokens that each request of a batch may go on by without a call, as far as they were served.
        any_in_place: whether some pending step may still change only counts.
        ask: the demand of the batch's request that is being served.
    """

    def __init__(self, num_groups: i64, runs: vec[i32]) -> None:
        self.runs: vec[i32] = runs
        self.grown: i64 = 0
        self.has_begun = False
        self.pending: vec[i32] = vec[i32]()
        self.num_pending: i64 = 0
        self.num_seen: i64 = 0
        self.any_in_place = False
        self.quiet: i64 = 0
        self.ask = StepRequest()
        self.held_each: i64 = -1
        self.held: vec[i32] = zeros32(num_groups)
        self.nulled: vec[i32] = vec[i32]()
        self.nulled_each: vec[i32] = zeros32(num_groups)
        self.num_nulled: i64 = 0
        self.num_dead: i64 = 0
        self.trim_at: i64 = 0
        self.dead: vec[i32] = zeros32(num_groups)
        self.dead_ends: vec[i32] = zeros32(num_groups)
        self.blocks: vec[i32] = zeros32(num_groups)
        self.taken: vec[i32] = zeros32(num_groups)
        self.ends: vec[i64] = vec[i64]([0, 0])
        self.replaced: vec[i32] = vec[i32]()
        self.num_replaced: i64 = 0
        self.saved: vec[i32] = vec[i32]()
        self.request: i32 = 0

    def clear(self) -> None:
        """Start again with new memory, because the last answer may still be read."""
        # The last answer may still be read by the engine, so its vectors are never written to again.
        self.nulled = vec[i32]()
        self.replaced = vec[i32]()
        self.request = 0
        self.has_begun = False

    def start_batch(self, size: i64) -> None:
        self.pending = zeros32(size)
        self.num_pending = 0
        self.num_seen = 0
        self.any_in_place = False

    def begin(self, tables: RequestTables | None, uniform_groups: bool) -> None:
        """Note the entries held before a step; `tables` is None for a new request."""
        self.grown = 0
        if len(self.saved) > 0:
            self.saved = vec[i32]()
        self.num_nulled = i64(len(self.nulled))
        self.num_replaced = i64(len(self.replaced))
        self.held_each = -1
        if tables is None:
            return
        # One number stands for all groups, which spares a step as many reads and writes as there are groups.
        if uniform_groups:
            self.held_each = i64(len(tables.by_group[0].blocks))
            return
        held = self.held
        at: i64 = 0
        while at < i64(len(held)):
            stop: i64 = i64(self.runs[at])
            count = i32(len(tables.by_group[at].blocks))
            while at < stop:
                held[at] = count
                at += 1

    def held_in(self, group: i64) -> i64:
        if self.held_each >= 0:
            return self.held_each
        return i64(self.held[group])

    def make_room(self) -> None:
        """Take the memory for the entries that die in this step, in all groups. O(entries)."""
        if i64(len(self.blocks)) < self.num_dead:
            self.blocks = zeros32(self.num_dead)
        if self.num_dead > 0:
            self.nulled = with_zeros(self.nulled, self.num_dead)

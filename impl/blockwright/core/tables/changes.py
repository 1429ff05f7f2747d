"""What one step changes in the tables, noted before anything is changed, in memory that all steps share."""

from __future__ import annotations

from typing import final

from librt.vecs import vec
from mypy_extensions import i32, i64

from blockwright.core.keys.packed import zeros32
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.table import RequestTables


@final
class StepScratch:
    """What a step changes in the tables, beside the blocks it takes. One record serves all steps of a manager in turn.

    Attributes:
        held_each: entries that every table had before the step, the hit included, if groups are even; -1 otherwise.
        held: per group, how many it had if they are not even; see `held_in`.
        nulled: the entries that trimming nulls, group after group; those of a batch's steps follow one another.
        nulled_ends: per group, where its own end; only of a step that trims.
        num_nulled: the entries nulled before the step, by those before it in a batch.
        trimmed: per group, the leading entries that trimming will have passed; only of a step that trims.
        trim_at: settled tokens at which the next entry dies then.
        blocks: room for the blocks that all groups give back, take or publish at once; for one of each, and more.
        replaced: the entries that are copied, four numbers each: index of the request, group, entry, new block.
        request: index of the request in its batch.
        grown: entries that the step appends, in all groups.
        has_begun: something that cannot be taken back has changed in this call.
        pending, num_pending: the requests of a batch whose step is not counted in place, by index, in order.
        num_seen: how many requests of a batch were looked at; those without a turn were counted, but perhaps the last.
        any_in_place: among those with a turn there may be one whose step changes only counts.
        ask: what a request of a batch asks for, one after another.
    """

    def __init__(self, num_groups: i64) -> None:
        """Start without changes."""
        self.grown: i64 = 0
        self.has_begun = False
        self.pending: vec[i32] = vec[i32]()
        self.num_pending: i64 = 0
        self.num_seen: i64 = 0
        self.any_in_place = False
        self.ask = StepRequest()
        self._zeros: vec[i32] = vec[i32]()
        self.held_each: i64 = -1
        self.held: vec[i32] = zeros32(num_groups)
        self.nulled: vec[i32] = vec[i32]()
        self.nulled_ends: vec[i32] = zeros32(num_groups)
        self.num_nulled: i64 = 0
        self.trim_at: i64 = 0
        self.trimmed: vec[i32] = zeros32(num_groups)
        self.blocks: vec[i32] = zeros32(num_groups)
        self.replaced: vec[i32] = vec[i32]()
        self.request: i32 = 0

    def clear(self) -> None:
        """Start again, with memory of its own: what was told before stays as it is."""
        # The last answer may still be read by the engine, so its vectors are never written to again.
        self.nulled = vec[i32]()
        self.replaced = vec[i32]()
        self.request = 0
        self.has_begun = False

    def start_batch(self, size: i64) -> None:
        """Start with room for the pending of so many requests."""
        self.pending = self.zeros(size)
        self.num_pending = 0
        self.num_seen = 0
        self.any_in_place = False

    def zeros(self, count: i64) -> vec[i32]:
        """Return a new vector of zeros, at the speed of a copy. O(count)."""
        # Copying zeros is several times faster than writing them, and a step needs them each time.
        if i64(len(self._zeros)) < count:
            self._zeros = zeros32(count)
        return self._zeros[:count]

    def begin(self, tables: RequestTables | None, uniform_groups: bool) -> None:
        """Note what is held before a step, as much in all groups if they are even; None before a request is entered."""
        self.grown = 0
        self.num_nulled = i64(len(self.nulled))
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
            held[at] = i32(len(tables.by_group[at].blocks))
            at += 1

    def held_in(self, group: i64) -> i64:
        """Return the entries that a group's table had before the step."""
        if self.held_each >= 0:
            return self.held_each
        return i64(self.held[group])

    def make_room(self) -> None:
        """Take the memory for the blocks that all groups give back in this step."""
        most = i64(len(self.nulled)) - self.num_nulled
        if i64(len(self.blocks)) < most:
            self.blocks = zeros32(most)

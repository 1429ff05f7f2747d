"""The tables of one running request: a row of block ids in each group, and the counts that all groups share."""

from __future__ import annotations

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from blockwright.core.keys.request import ManagerTables, Request
from blockwright.core.pool.order import Wish

NO_WANTS: Final = vec[i64]()
_COPIED: Final = (
    "num_written num_certain num_settled num_given num_drafts num_loading checkpoint last_step trim_at in_place "
    "is_forked is_lost is_resumed tenant wish wants wants_end wants_output tails end_tails num_tails is_delayed "
    "num_folded"
).split()


@final
class GroupTable:
    """One request's blocks in one group.

    Attributes:
        blocks: block ids in order of positions; 0 where nothing is held.
        num_published: leading entries that publication has passed (their full blocks carry a key).
        num_trimmed: leading entries that trimming has passed (all of them are null, except sinks).
        num_covered: slots covered by the last growth; the tokens behind the state that a recurrent layer keeps.
        states: blocks for the states of draft tokens, of a recurrent layer only.
        in_place: slots up to which growth changes nothing: covered, and no block becomes full. A lower bound. Kept only
            of the first of a run of groups with tables of one shape.
        saved: of a layer that runs ahead, the tokens from which on its steps leave the state at block ends.
        first_new: of such a layer, the first entry that a step in preparation may write to.
        num_read, read_block: the tokens that the last step of a recurrent layer with drafts began after, and the block
            that their state is read from.
    """

    def __init__(
        self, blocks: vec[i32], num_published: i64, num_trimmed: i64, num_covered: i64, states: vec[i32]
    ) -> None:
        self.blocks: vec[i32] = blocks
        self.num_published: i64 = num_published
        self.num_trimmed: i64 = num_trimmed
        self.num_covered: i64 = num_covered
        self.states: vec[i32] = states
        self.in_place: i64 = 0
        self.saved: i64 = 0
        self.first_new: i64 = 0
        self.num_read: i64 = 0
        self.read_block: i64 = 0

    def copy(self) -> GroupTable:
        twin = GroupTable(self.blocks[:], self.num_published, self.num_trimmed, self.num_covered, self.states[:])
        twin.in_place = self.in_place
        twin.saved = self.saved
        twin.num_read = self.num_read
        twin.read_block = self.read_block
        return twin


@final
class RequestTables(ManagerTables):
    """One running request in one group.

    Attributes:
        request_id: id of the request.
        uid: identity of the `Request` object and its copies, so that another request under the same id is noticed.
        request: the request as last seen, for publication on settlement.
        num_written: tokens with slots that were handed out for writing, lookahead not counted.
        num_certain: the leading part of them that are no drafts, or were declared computed. The engine's count cannot
            go below. At most `num_written`.
        num_settled: tokens of steps that are done, at most `num_written`; unless steps overlap, those before the last
            step that was noted, or that were said to be done since.
        num_given: where that step ended. A step in place that follows is not noted, since it publishes nothing.
        num_drafts: drafts of the last step, as its call declared them.
        num_loading: tokens after the written ones that are on their way from elsewhere.
        checkpoint: the tokens after which a step left recurrent states inside it that may still be published, or 0.
        last_step: number of the last step in flight that computes tokens of it; 0 before the first.
        trim_at: settled tokens at which the next entry dies in some group. A lower bound.
        in_place: slots up to which serving the request changes only counts, in all groups; 0 while it loads or shares.
        is_due, due_before, due_after: its last step leaves a recurrent state that is published once that has run, and
            its neighbours in the chain of such requests.
        is_resumed: the request had been admitted before, by this manager or another; only while it loads.
        is_lost: it holds blocks of a step that was given up, and is given no more slots.
        is_forked: it may share blocks that it has not filled, and has not written since.
        batch: number of the last batch that served it, so that a repetition within a batch is noticed.
        was_certain: the certain tokens before that batch, if it counted them in place.
        wants: the lengths of hits that it wants kept, see `Wanted.lengths`; it never changes.
        wants_end: the longest of them.
        wants_output: as it ends, it also wants all that it has published.
        tails, num_tails: the lengths inside blocks that it is to publish, and how many of them it has.
        end_tails: those of them where recurrent layers publish the state.
        is_delayed: its last step put publication off. Kept only where hits may end inside blocks.
        num_folded: tokens whose blocks were compared with those of others (`folding`).
        tenant, wish: the number of the tenant for which it takes blocks, and the hint for them. A wish never changes,
            so copies share it.
        by_group: the tables, one per group.
    """

    def __init__(self, request: Request, owner: i64, by_group: list[GroupTable]) -> None:
        super().__init__(owner)
        # What a step in place reads and writes comes first, in one or two cache lines.
        self.num_written: i64 = 0
        self.num_certain: i64 = 0
        self.was_certain: i64 = 0
        self.num_drafts: i64 = 0
        self.in_place: i64 = 0
        self.batch: i64 = 0
        self.last_step: i64 = 0
        self.num_settled: i64 = 0
        self.num_given: i64 = 0
        self.num_loading: i64 = 0
        self.checkpoint: i64 = 0
        self.trim_at: i64 = 0
        self.by_group = by_group
        self.is_forked = False
        self.is_lost = False
        self.is_resumed = False
        self.is_due = False
        self.due_before: RequestTables | None = None
        self.due_after: RequestTables | None = None
        self.request = request
        # The id is kept apart from the request, which a caller may rename or drop while its blocks are held.
        self.request_id: str = request._request_id
        self.uid: i64 = request._uid
        self.tenant: i64 = 0
        self.wish: Wish | None = None
        self.wants: vec[i64] = NO_WANTS
        self.wants_end: i64 = 0
        self.wants_output = True
        self.tails: vec[i64] = NO_WANTS
        self.end_tails: vec[i64] = NO_WANTS
        self.num_tails: i64 = 0
        self.is_delayed = False
        self.num_folded: i64 = 0

    def copy_for(self, owner: i64, by_group: list[GroupTable]) -> RequestTables:
        """Return a copy for another manager, which has copied the tables of the groups."""
        twin = RequestTables(self.request, owner, by_group)
        # `batch` and the chain of due states are left out: the new manager sets both itself.
        for name in _COPIED:
            setattr(twin, name, getattr(self, name))
        return twin


def held_blocks(table: GroupTable) -> vec[i32]:
    """Return all that a table holds, in the order in which it is released backwards. O(entries)."""
    return extend(table.blocks[:], table.states)

"""Which blocks the next turn will need: what a request wants kept, and what that says of the blocks it lets go of.

A request wants the blocks that hits of a few lengths would need: its prompt, with and without its last token; the hit
that it began with, unless it was the first to go on from there; its junction; and, when it lets go, all that it has
published. Other blocks are passing, and are evicted first (law: POLICY-4).
"""

from __future__ import annotations

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i32, i64, u8

from blockwright.core.keys.request import Request
from blockwright.core.pool.pool import BlockPool
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.changes import StepScratch
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import RequestTables
from blockwright.core.tables.window import ChunkedRule, Probe, common_hit
from blockwright.core.worth.classes import ASKED, ORDINARY, OUTPUT, PASSING, PROMPT, Classes
from blockwright.core.worth.passing import PassingOrder
from blockwright.core.worth.ranked import RankedOrder

_PROMPT: Final = 0
_RESEND: Final = 1
_HIT: Final = 2
_JUNCTION: Final = 3
_OUTPUT: Final = 4
"""Where these lengths are in what a request wants, after its prompt with and without the last token; 0: not wanted."""
_LAST: Final = 5
"""Where it has left a state as it ended, if it was at a unit."""
NONE: Final = 0
ALL: Final = 1
SOME: Final = 2
"""What `Wanted.among_dead` returns."""


def classes_of(pool: BlockPool) -> Classes | None:
    """Return which blocks of a pool are passing, if that is noted."""
    order = pool._order
    if isinstance(order, PassingOrder):
        return order.classes
    return order.classes if isinstance(order, RankedOrder) else None


def free_classed(pool: BlockPool, blocks: list[int], numbers: dict[int, int]) -> None:
    """Let go of blocks held from outside, in this order, as candidates of these classes (`CandidateOrder.class_of`)."""
    classes, order = classes_of(pool), pool._order
    num_spared: i64 = 0
    is_behind = False
    for block in blocks if classes is not None else ():
        if classes is not None and numbers[block] == PASSING:
            classes.note(block, True)
            num_spared += 1 if is_behind else 0
        else:
            is_behind = True
    if isinstance(order, PassingOrder):
        order.recall(num_spared)
    pool.free_blocks(blocks)
    for block in blocks if classes is not None else ():
        if classes is not None and numbers[block] in (PROMPT, OUTPUT):
            classes.set(block, numbers[block])


@final
class Wanted:
    """What the requests of a manager want kept.

    Attributes:
        classes: where the pool notes which blocks are passing.
        alignment, whole_alignment: multiples that hits, and hits of whole blocks, end at.
        margin: tokens after a hit that must be cached too, and are computed again.
        max_len: tokens that a request may have.
        use_eagle: a draft head needs the hidden state before the first new token.
    """

    def __init__(
        self,
        pool: BlockPool,
        groups: list[GroupTables],
        classes: Classes,
        alignment: i64,
        whole_alignment: i64,
        max_len: i64,
        use_eagle: bool,
    ) -> None:
        self._pool = pool
        self._groups = groups
        self.classes = classes
        self.alignment: i64 = alignment
        self.whole_alignment: i64 = whole_alignment
        self.max_len: i64 = max_len
        self.use_eagle = use_eagle
        self.margin: i64 = max([group.margin() for group in groups], default=0)

    # ------------------------------------------------------------------ a request is admitted

    def lengths(self, request: Request, tables: RequestTables, ask: StepRequest) -> None:
        """Note which lengths, each one that a hit can have, a request wants kept, and what passing blocks are worth.

        law: KEEP-1.
        """
        known: i64 = request._num_prompt + i64(len(request._output))
        prompt = self.within(known)
        resend = self.within(known - 1)
        hit = (ask.begin + ask.external) // self.alignment * self.alignment
        tip: i64 = ORDINARY
        if ask.external == 0 and hit != prompt and hit != resend:
            tip = self._tip_of(ask)
        junction: i64 = request._junction if request._num_looked_up > 0 else 0
        tables.wants = vec[i64]([prompt, resend, hit if tip == ORDINARY else 0, junction])
        tables.wants_end = max(prompt, hit, junction)
        tables.wants_output = tip != PROMPT or junction > 0
        self._worth(request, ask)

    def within(self, length: i64) -> i64:
        """Return the longest hit whose blocks, the draft margin among them, lie within so many tokens. O(1)."""
        return max(length - self.margin, 0) // self.alignment * self.alignment

    def _tip_of(self, ask: StepRequest) -> i64:
        """Return what ended with the last block of a hit, `ORDINARY` if nothing did, of the first group. O(groups)."""
        hit = ask.hit
        if hit is not None:
            for group, ids in zip(self._groups, hit.ids):
                if not group.keeps_all and len(ids) > 0:
                    tip = self.classes.class_of(i64(ids[-1]))
                    if tip in (PROMPT, OUTPUT):
                        return tip
        return ORDINARY

    def _learner(self) -> PassingOrder | None:
        """Return the pool's order, if it learns how many passing blocks to spare. O(1)."""
        order = self._pool._order
        return order if isinstance(order, PassingOrder) and order.whole > 0 else None

    def learn(self, ask: StepRequest) -> None:
        """Learn from an admission how many passing blocks to spare. O(blocks spared no more); takes no memory.

        law: POLICY-6.
        """
        order = self._learner()
        if order is not None:
            order.learn(ask.hit_length, ask.served, ask.lacks)

    def _worth(self, request: Request, ask: StepRequest) -> None:
        """Count what passing blocks are worth to a request that is admitted. O(blocks of its hit) if it ends with one.

        law: POLICY-6.
        """
        ask.served = 0
        ask.lacks = False
        hit = ask.hit
        if self._learner() is None:
            return
        is_served = False
        if hit is not None:
            for ids in hit.ids:
                is_served = is_served or (len(ids) > 0 and self._pool.is_to_pass(i64(ids[-1])))
        if is_served:
            ask.served = ask.hit_length - self._ordinary_hit(request, ask.hit_length)
        junction: i64 = request._junction if request._num_looked_up > 0 else 0
        if junction > 0:
            ask.lacks = not self._is_asked(request, junction)

    def _ordinary_hit(self, request: Request, length: i64) -> i64:
        """Return the longest hit of at most some tokens that needs no passing candidate. O(blocks) at most."""
        max_length: i64 = min(request.num_tokens - 1, request.num_keyed())
        probes: list[Probe] = []
        for group in self._groups:
            size = group._block_size
            keys = request.keys(self._pool._units_for(request, size))
            # One block more than the hit, since a draft head needs that.
            probe = group.probe(keys, min(max_length, length + size), self.use_eagle)
            probe.leaves_out = not group.keeps_all
            probes.append(probe)
        return common_hit([group.rule for group in self._groups], probes, self.whole_alignment, length)

    def _is_asked(self, request: Request, junction: i64) -> bool:
        """Return whether an earlier request asked for a hit that ends at a junction. O(duplicates)."""
        for group in self._groups:
            size = group._block_size
            if group.keeps_all and junction < size:
                return False
            if group.keeps_all:
                keys = request.keys(self._pool._units_for(request, size))
                block = oldest = self._pool.find(keys, junction // size - 1, group._group, size)
                while block != 0 and i64(self.classes.of[block]) & ASKED == 0:
                    block = self._pool._index.next_duplicate(block, oldest)
                return block != 0
        return False

    # ------------------------------------------------------------------ a request lets go

    def at_end(self, tables: RequestTables, last: i64) -> vec[i64]:
        """Return the lengths that a request wants kept as it ends or is preempted; `put_output` puts its output in.

        Where hits may end inside blocks, it publishes `last` tokens as it lets go of them. O(1).
        """
        wants = append(tables.wants[:], 0)
        return append(wants, last) if last > 0 else wants

    def put_output(self, tables: RequestTables, wants: vec[i64], resumes: bool, last: i64) -> None:
        """Put into these lengths that of all that a request has published by now. O(groups); takes no memory."""
        count = self.max_len
        for group, table in zip(self._groups, tables.by_group):
            if not group.is_encoder:  # of a request that publishes nothing more, nothing is known to end
                count = (
                    min(count, table.num_published * group._block_size) if table.num_published <= self.max_len else 0
                )
        end = self.within(max(count, last))
        if not resumes and not tables.wants_output and end >= max(wants[_PROMPT], wants[_HIT], wants[_JUNCTION]):
            end = 0
        wants[_OUTPUT] = end

    def begin(self, group: GroupTables, wants: vec[i64]) -> None:
        """Note which entries of a group's table are wanted, which is let go of next. O(1); takes no memory.

        law: POLICY-5.
        """
        classes, is_plain = self.classes, group.keeps_all
        classes.begin(is_plain)
        if is_plain:
            return
        i: i64 = 0
        while i < min(_LAST, i64(len(wants))):
            self._want(group, _held(group, wants, wants[i]))
            i += 1
        if classes.every > 0 and len(wants) > 0:
            self._want_each(group, classes.every, max(wants[_PROMPT], wants[_RESEND], wants[_HIT], wants[_JUNCTION]))
        if len(wants) > 0:
            output: i64 = wants[_OUTPUT] if len(wants) > _OUTPUT else 0
            size = group._block_size
            classes.end_at(
                (_held(group, wants, _unproven(wants, wants[_PROMPT])) - 1) // size,
                (_held(group, wants, _unproven(wants, wants[_RESEND])) - 1) // size,
                (_held(group, wants, _unproven(wants, output)) - 1) // size,
            )

    def _want(self, group: GroupTables, length: i64) -> None:
        """Want the entries that a hit of `length` tokens needs. O(1)."""
        if length > 0:
            end = group.num_adopted(length)
            if group.sinks > 0:
                self.classes.want(0, min(group.sinks, end))
            if group.has_spots:
                self.classes.want_staying(group.rule, group._block_size, end)
            self.classes.want(group.first_kept(length), end + 1 if group._has_margin else end)

    def _want_each(self, group: GroupTables, every: i64, most: i64) -> None:
        """Want the entries that a hit of some multiple of `every` needs, up to `most`. O(1)."""
        if isinstance(group.rule, ChunkedRule):
            return
        if group.sinks > 0 and most >= every:
            self.classes.want(0, group.sinks)
        size = group._block_size
        margin: i64 = 1 if group._has_margin else 0
        far = every << 20  # beyond the first window, each multiple needs as many entries
        stop = most // every * every // size
        num_last = far // size + margin - group.first_kept(far)
        if stop > 0:
            self.classes.want_each(every // size, num_last, margin, stop + margin)

    def ask_for(self, group: GroupTables, wants: vec[i64], blocks: vec[i32]) -> None:
        """Note in a table that is let go of with which blocks of full attention the wanted hits end. O(1)."""
        if group.keeps_all and self._learner() is not None:
            of = self.classes.of
            i: i64 = 0
            while i < min(_LAST, i64(len(wants))):
                entry = wants[i] // group._block_size - 1
                if entry >= 0 and entry < i64(len(blocks)) and self._pool._index.has_key(i64(blocks[entry])):
                    of[i64(blocks[entry])] = u8(i64(of[i64(blocks[entry])]) | ASKED)
                i += 1

    def may_need(self, tables: RequestTables, at: i64, start: i64, stop: i64) -> bool:
        """See `KVCacheManager.may_be_wanted`. Takes no memory."""
        group = self._groups[at]
        if group.keeps_all or stop * group._block_size > tables.wants[_PROMPT]:
            return True
        self.begin(group, tables.wants)
        while start < stop and self.classes.is_passing(start, 0):
            start += 1
        self.classes.end()
        return start < stop

    def note_copy(self, wants: vec[i64], length: i64, copy: i64) -> None:
        """Note of the copy of a state of some length whether the prompt ended with that. O(1)."""
        ends = length == wants[_PROMPT] or length == wants[_RESEND]
        self.classes.set(copy, PROMPT if ends and _unproven(wants, length) > 0 else ORDINARY)

    def among_dead(self, tables: RequestTables, changes: StepScratch) -> i64:
        """Return which of the entries that die a wanted hit needs: `NONE`, `ALL`, where nothing ends at one, or `SOME`.

        Most steps that decode are of the first two, and let go of the blocks of all groups at once. O(groups).
        """
        wants = tables.wants
        found: i64 = SOME
        at: i64 = 0
        while at < i64(len(self._groups)):
            if changes.dead[at] < changes.dead_ends[at]:
                group = self._groups[at]
                if group.has_spots:
                    return SOME
                needed = NONE
                size = group._block_size
                start = i64(changes.dead[at]) * size
                end = i64(changes.dead_ends[at]) * size
                if self.classes.every > 0 and start <= tables.wants_end:
                    return SOME
                k: i64 = i64(len(wants)) if start > tables.wants_end else 0
                while k < i64(len(wants)):
                    length: i64 = wants[k]
                    if length > 0 and start <= length:
                        first = group.rule.first_needed(length)
                        if first < end:
                            if first >= start + size or end >= length:
                                return SOME
                            needed = ALL
                    k += 1
                if found != SOME and found != needed:
                    return SOME
                found = needed
            at = i64(changes.runs[at])
        return found


def _held(group: GroupTables, wants: vec[i64], length: i64) -> i64:
    """Return a length if the blocks of a group's table hold what a hit of it needs, else 0. O(1).

    A recurrent layer has no state inside a block but the last one: copies have the others (law: UNIT-7).
    """
    is_last = i64(len(wants)) > _LAST and length == wants[_LAST]
    return length if is_last or length % group._block_size == 0 or group.is_row() else 0


def _unproven(wants: vec[i64], length: i64) -> i64:
    """Return a length, or 0 if it is that of the hit or the junction. O(1)."""
    return 0 if length == wants[_HIT] or length == wants[_JUNCTION] else length

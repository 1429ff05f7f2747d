"""Which blocks become findable, as what, and when.

Blocks are published with the step that fills them, for engines that run steps in order. A request that hits them
computes later, or in the same step, in which every layer writes the data of all tokens before any of them reads it. A
recurrent layer does not, so a state that a step leaves is *due* until the step has run (law: MAMBA-5).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from blockwright.core.keys.request import Request
from blockwright.core.steps.state import State
from blockwright.core.steps.units import next_tail, num_certain, publish_last_part, publish_tails
from blockwright.core.tables.ask import StepRequest
from blockwright.core.tables.group import GroupTables
from blockwright.core.tables.table import GroupTable, RequestTables

NOT_RUN: Final = -1
"""Where a step stopped that has still to run."""


def publishes_now(state: State, ask: StepRequest) -> bool:
    """Return whether a step publishes the blocks that it fills, rather than a later call."""
    config = state.config
    return config.caching and not (ask.is_delayed or config.settles or ask.external > 0)


def is_put_off(ask: StepRequest) -> bool:
    """Return whether a step puts publication off: then its request ends without it."""
    return ask.is_delayed or ask.external > 0 or ask.new == 0


def make_keys(state: State, request: Request, count: i64) -> None:
    """Make the keys of the blocks that `count` tokens fill: all the memory that publishing them takes, events aside."""
    if state.config.caching:
        request.hash_filled(count)
        if request._salt_mark != 0 or request._adapter_mark != 0:
            state.pool._reserve_marks()


def publish_to(group: GroupTables, table: GroupTable, request: Request, count: i64, stopped: i64, inside: i64) -> None:
    """Publish the blocks that the first `count` tokens fill, all of them known and written.

    A recurrent layer's state only if a step that has run stopped there, after `stopped` tokens, or left it `inside`.
    """
    if group.publishes(table, count) and request._block_size > 0:
        group.publish(table, request, group._block_size // request._block_size, count, stopped, inside)


def publish_taken(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> i64:
    """Publish the blocks that a step fills, and return the slots up to which the next step is served in place.

    Only now, when all groups have taken their blocks: a candidate that publishing empties, since its content is there
    twice, is the first free block, and the next group would take it before blocks that were empty. law: SHARE-4.
    """
    # What the step before has left comes first: which of two candidates with the same contents is emptied last shows.
    if tables.is_due:
        publish_due(state, tables, request)
    known: i64 = request._num_prompt + i64(len(request._output))
    is_due, in_place = False, state.config.max_len
    publishes = publishes_now(state, ask)
    # A load may bring less.
    certain: i64 = max(ask.begin, min(ask.stop, known)) if ask.external == 0 else -1
    at: i64 = 0
    while at < state.config.num_groups:
        group, first = state.groups[at], tables.by_group[at]
        stop: i64 = i64(state.changes.runs[at])
        if first.in_place < ask.slots:
            while publishes and at < stop:
                publish_to(state.groups[at], tables.by_group[at], request, min(ask.stop, known), NOT_RUN, 0)
                at += 1
            end = ask.stop if group.runs_ahead else ask.certain
            is_due = is_due or (publishes and ask.new > 0 and end <= known and group.leaves_state(end))
            # Only the first group of a run keeps this number, which holds for all of them.
            first.in_place = group.in_place_slots(first, state.config.caching, certain)
        in_place = min(in_place, first.in_place)
        at = stop
    # A request that publishes nothing, since something that it holds was forgotten, leaves no state inside either.
    leaves = publishes and ask.checkpoint > 0 and tables.by_group[0].num_published <= state.config.max_len
    return note_due(state, request, tables, ask, is_due or leaves, in_place)


def note_due(
    state: State, request: Request, tables: RequestTables, ask: StepRequest, is_due: bool, in_place: i64
) -> i64:
    """Note whether a step leaves something to publish once it has run, and publish the state and tails of the last one.

    Returns the slots up to which the next step is served in place, at most `in_place`. O(1) where nothing is left.
    """
    # The state before this step's is published now: a step that follows shows that it has run.
    if tables.is_due:
        publish_due(state, tables, request)
    # A state inside that an earlier step has left, and put off, is published as well once this one has run.
    if tables.checkpoint > 0 and publishes_now(state, ask) and ask.new > 0 and awaited(state, tables) > 0:
        end = ask.stop if state.config.runs_ahead else ask.certain
        is_due = is_due or end <= request._num_prompt + i64(len(request._output))
    tables.is_delayed = is_put_off(ask)
    if state.config.unit > 0:
        known: i64 = request._num_prompt + i64(len(request._output))
        publishes = publishes_now(state, ask)
        tail = next_tail(tables)
        if tail <= min(ask.stop, known):
            drafts = ask.drafts if state.config.overlaps else ask.stop - known
            is_due = is_due or (publishes and ask.new > 0 and not (state.config.runs_ahead and drafts > 0))
        # A step that reaches a tail, or follows one that has, takes the careful way. law: UNIT-3.
        in_place = min(in_place, tail - 1)
        if is_due or tables.is_delayed:
            in_place = 0
    if is_due:
        tables.request = request  # it knows the tokens that the state is of
        state.due.add(tables)
    return in_place


def publish_alike(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> i64:
    """Do the same as `publish_taken` where all groups publish the same entries."""
    config = state.config
    by_group, size = tables.by_group, config.least_size
    first = by_group[0]
    in_place = min(i64(len(first.blocks)) * size, config.max_len)
    if not config.caching:
        return in_place
    start = first.num_published
    end = (start + 1) * size  # tokens that fill the next entry
    if ask.stop < end:
        return min(in_place, end - 1)
    tables.is_delayed = is_put_off(ask)  # of interest only where a block is full
    num_filled = min(ask.stop, request.num_keyed())
    if num_filled >= end and request._block_size > 0 and publishes_now(state, ask):
        pool = state.pool
        units: i64 = 1
        if request._block_size != size:
            units = size // request._block_size
        stop = start + 1
        if num_filled >= end + size:
            stop = num_filled // size
        end = (stop + 1) * size
        is_single = stop == start + 1 and pool.is_plain()
        blocks = state.changes.blocks  # with room for one of each group
        at: i64 = 0
        while at < i64(len(by_group)):
            table = by_group[at]
            assert table.num_published == start, "groups that grow alike publish alike"
            table.num_published = stop
            if is_single:
                blocks[at] = table.blocks[start]
            else:
                pool._publish(table.blocks, request, units, at, size, start, stop)
            at += 1
        if is_single:
            pool._publish_each(blocks, request, units, start, i64(len(by_group)))
    return min(in_place, end - 1)  # the step that fills a block publishes it, so it is not served in place


def conclude(state: State, request: Request, tables: RequestTables, ask: StepRequest) -> None:
    """Publish what a step fills, and count it. Takes no memory, except for events."""
    # One that was given up is not published any more, though its key may be known now.
    inside: i64 = kept_inside(state, tables, ask.begin) if tables.checkpoint > 0 else 0
    tables.checkpoint = inside
    if state.uniform_groups:
        in_place = publish_alike(state, request, tables, ask)
        if state.config.unit > 0:
            in_place = note_due(state, request, tables, ask, False, in_place)
    else:
        in_place = publish_taken(state, request, tables, ask)
    tables.in_place = 0 if ask.external > 0 else min(in_place, tables.trim_at)
    tables.num_loading = ask.external
    tables.checkpoint = ask.checkpoint if ask.checkpoint > 0 else inside
    count_step(state, request, tables, ask.stop - ask.external, ask.new, ask.drafts)
    note_lease(state, request, tables)


def count_step(state: State, request: Request, tables: RequestTables, stop: i64, new: i64, drafts: i64) -> None:
    """Count the tokens of a step that ends at `stop` as written: all that a step in place changes. Takes no memory."""
    # law: LEN-1
    tables.num_written = stop
    tables.num_drafts = drafts
    # With steps in flight the engine reports drafts that fail by settling; until then every token counts as certain.
    if state.config.overlaps:
        tables.num_certain = stop
        if new > 0:
            tables.last_step = state.num_steps
    else:
        known: i64 = request._num_prompt + i64(len(request._output))
        tables.num_certain = max(stop - new, min(stop, known))
        # law: GIVEN-1. What the request's count covers now, should this step be given up.
        tables.num_settled = stop - new
        tables.num_given = stop
        if state.config.saves_states:  # tokens that are not known may be drafts, said or not
            tables.num_drafts = max(0, stop - known)


def hear(state: State, request: Request, tables: RequestTables, count: i64) -> None:
    """Count the steps of a request that its engine took within the lease, without a call. law: LEASE-1."""
    if tables.num_written < count:
        count_step(state, request, tables, count, 0, 0)


def note_lease(state: State, request: Request, tables: RequestTables) -> None:
    """Tell a request how far it may go on without a call. law: LEASE-1."""
    request._lease = 0 if state.config.overlaps or tables.is_due else tables.in_place


def declare(state: State, request: Request, tables: RequestTables, count: i64) -> None:
    """Count tokens as computed, since a call says so."""
    hear(state, request, tables, count)
    tables.num_certain = max(tables.num_certain, count)
    if not state.config.overlaps:
        tables.num_settled = max(tables.num_settled, count)


def publish_filled(state: State, tables: RequestTables, request: Request, count: i64, stopped: i64) -> None:
    """Publish, in every group, the blocks that the first `count` tokens fill."""
    for group, table in zip(state.groups, tables.by_group):
        publish_to(group, table, request, count, stopped, tables.checkpoint)


def count_last(state: State, tables: RequestTables, request: Request, computed: i64, in_flight: bool) -> i64:
    """Return how many tokens a request has computed for certain as it lets go of its blocks, to be published.

    With a step in flight, those that are settled, whatever the engine's count. None if it puts publication off, if
    something that it held was forgotten, or if the count does not cover its last step, which then has not run.
    law: PUB-5, FORGET-6.
    """
    config = state.config
    if not config.caching or tables.is_delayed or request._block_size <= 0:
        return 0
    if tables.by_group[0].num_published > config.max_len:  # private: something that it held was forgotten
        return 0
    count = num_certain(tables, request)
    if in_flight:
        count = min(count, tables.num_settled)
    return count if in_flight or computed >= count else 0


def publish_last(state: State, tables: RequestTables, request: Request, count: i64, end: i64, in_flight: bool) -> None:
    """Publish what `count` tokens filled, as a request lets go of its blocks, and the part up to `end`. law: PUB-5.

    A state where its last step stopped. One that has run ahead is known if all that was written holds. The caller has
    made room and keys; takes no memory, except for events. O(blocks that are not published).
    """
    stopped = tables.num_written - tables.num_drafts
    ahead = state.config.runs_ahead
    if in_flight or (ahead and count < tables.num_written):
        stopped = NOT_RUN
    if not ahead and NOT_RUN < stopped < count:  # drafts that hold have states elsewhere
        for group, table in zip(state.groups, tables.by_group):
            if not group.is_row():
                publish_to(group, table, request, stopped, stopped, tables.checkpoint)
    publish_filled(state, tables, request, count, stopped)
    if end > 0:
        publish_last_part(state, tables, request, end)


def leaves_due(state: State, tables: RequestTables, request: Request) -> bool:
    """Return whether the last step leaves a state or a tail that is published once it has run. law: PUB-1.

    Of layers that run ahead it does not: only the engine knows which of their states remain.
    """
    known: i64 = request._num_prompt + i64(len(request._output))
    if state.config.runs_ahead:
        return False
    if state.config.unit > 0 and next_tail(tables) <= min(tables.num_written, known):
        return True
    stopped = tables.num_written - tables.num_drafts
    if stopped > known:
        return False
    return awaited(state, tables) > 0 or any([each.leaves_state(stopped) for each in state.groups])


def make_private(state: State, tables: RequestTables) -> None:
    """Let a running request publish nothing more: publication has passed more entries than there are."""
    for table in tables.by_group:
        table.num_published = state.config.max_len + 1
    tables.num_tails = i64(len(tables.tails))


def awaited(state: State, tables: RequestTables) -> i64:
    """Return the tokens after which a step left states inside that are still to be published, or 0."""
    inside = tables.checkpoint
    if inside > 0 and any([each.awaits(table, inside) for each, table in zip(state.groups, tables.by_group)]):
        return inside
    return 0


def kept_inside(state: State, tables: RequestTables, settled: i64) -> i64:
    """Return the tokens after which a state inside is kept for its publication once some are settled, or 0.

    Only while the request goes on in the block behind it, so that states do not pile up. law: MAMBA-1, MAMBA-7.
    """
    inside = awaited(state, tables)
    if inside > 0:
        for group in state.groups:
            if not group.is_row() and settled > inside + group._block_size:
                return 0
    return inside


def trim_end(state: State, tables: RequestTables, settled: i64) -> i64:
    """Return the tokens that tables are trimmed for: none beyond a state still to be published. law: MAMBA-7."""
    inside = kept_inside(state, tables, settled)
    return min(settled, inside) if inside > 0 else settled


def publish_due(state: State, tables: RequestTables, request: Request) -> None:
    """Publish the state that a request's last step left, if any, now that the step has run. law: MAMBA-5.

    Not before: a request that hit it in the same step would read it while it is written. Other layers may be hit at
    once, since each writes the step's data before it reads; except parts of blocks, which are copied before the step
    (law: UNIT-5).
    """
    if not state.due.remove(tables):
        return
    stopped = tables.num_written - tables.num_drafts
    if not state.config.overlaps:
        tables.num_settled = max(tables.num_settled, stopped)
    for group, table in zip(state.groups, tables.by_group):
        if not group.is_row():
            publish_to(group, table, request, stopped, stopped, tables.checkpoint)
    if state.config.unit > 0:
        known: i64 = request._num_prompt + i64(len(request._output))
        publish_tails(state, tables, request, min(tables.num_certain, known))


def publish_all_due(state: State) -> None:
    """Publish the states that all steps up to now have left, in their order. O(requests that left one)."""
    # The chain is read anew each time, because publishing takes the request out of it.
    tables = state.due.first
    while tables is not None:
        publish_due(state, tables, tables.request)
        tables = state.due.first

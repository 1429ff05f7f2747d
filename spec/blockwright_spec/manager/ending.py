"""Part one, chapter 16: how a request lets go of its blocks: as it ends, is preempted, or a load of it has failed.

What it has computed for certain is published before, with all that is known of its tokens and keys by then (PUB-5).
"""

from dataclasses import replace

from ..reads import Group, Mamba
from .choices import Choice, legal_order
from .effects import enqueue
from .facts import certain, in_flight, owned, runs_ahead
from .outcomes import Done, Outcome, Reason, Refusal
from .page import acts, pins, states_of, tables_of
from .publication import is_private, publish_blocks, publish_due_states, put_request, without_slot
from .state import NULL, Absent, Batch, Running, State, Table, Waiting


def release_all(state: State, slot: int, successor: Absent | Waiting, choice: Choice, has_run: bool = True) -> Outcome:
    """Release all blocks of a slot as one batch, and leave `successor` in it."""
    left = let_go(state, slot, successor, has_run)
    return return_batches(left, left.batches[-1:], choice)


def let_go(state: State, slot: int, successor: Absent | Waiting, has_run: bool) -> State:
    """Leave `successor` in a slot, and its blocks as a batch.

    What the request has computed for certain is published before (PUB-5). If its last step is in flight, or has not run
    by the engine's count, its states stay unpublished (MAMBA-5).
    """
    steps, request = in_flight(state, slot), state.requests[slot]
    tables = owned(request) if isinstance(request, Running) else ()
    blocks = tuple(tuple(block for block in table if block != NULL) for table in tables)
    count = last_count(state, slot, has_run)
    done = publish_last(publish_due_states(state, slot) if has_run and not steps else state, slot, count)
    left, last = put_request(done, slot, successor), done.requests[slot]
    names = (*tables_of(slot, len(tables)), *states_of(slot, len(tables)))
    held = (*request.tables, *request.states) if isinstance(request, Running) else ()
    whose, resumes = request.prefix[0] if isinstance(request, Running) else 0, isinstance(successor, Waiting)
    each_chapter = state.config.chapters
    said = tuple(each.end(state.config, last, resumes, count) for each in each_chapter if isinstance(last, Running))
    drops = pins("hold", "batches", sum(blocks, ())) + acts("drop", names[: len(held)], held)
    batches = (*left.batches, Batch(slot, blocks, whose, said))
    return replace(left, batches=batches, due=without_slot(left.due, slot), steps=left.steps + drops)


def return_batches(state: State, due: tuple[Batch, ...], choice: Choice) -> Outcome:
    """Release the blocks of some batches, one after another."""
    for batch in due:
        # CHOOSE
        order = choice.order(batch.tables)
        if not legal_order(sum(batch.tables, ()), order):
            return Refusal(Reason.ILLEGAL_CHOICE)
        # EFFECT
        at = state.batches.index(batch)
        steps = state.steps + pins("drop", "batches", order)
        left = replace(state, batches=(*state.batches[:at], *state.batches[at + 1 :]), steps=steps)
        state = enqueue(left, order, batch.said, batch.tables)
    return Done(state)
    # SAME: keys, contents of published blocks, requests.


def last_count(state: State, slot: int, has_run: bool) -> int:
    """Return how many tokens a request has computed for certain as it lets go of its blocks, to be published (PUB-5).

    With a step in flight, those that are settled. None if it puts publication off, or its last step has not run.
    """
    request, config = state.requests[slot], state.config
    if not (isinstance(request, Running) and config.caching) or request.is_delayed or is_private(config, request):
        return 0
    done = max(certain(request), request.settled) if has_run else 0
    return min(request.computed, request.settled if in_flight(state, slot) else done)


def publish_last(state: State, slot: int, count: int) -> State:
    """Publish what `count` tokens filled, as a request lets go of its blocks, and what chapters add (PUB-5).

    A state where its last step stopped. One that has run ahead is known if all that was written holds.
    """
    request, ahead = state.requests[slot], runs_ahead(state.config)
    if not isinstance(request, Running) or not count:
        return state
    is_left = not in_flight(state, slot) and (not ahead or count == request.written)
    stop = certain(request) if is_left else None
    after = state if ahead or stop is None else publish_blocks(state, slot, min(count, stop), stop, Mamba)
    after = publish_blocks(after, slot, count, stop)
    for chapter in state.config.chapters:
        after = chapter.publish_last(after, slot, count)
    return after


def cut_off(group: Group, table: Table, left: int) -> Table:
    """Return the first entries of a table; the block of a state that is still to come stands in the last of them."""
    short = table[:left]
    return (*short[:-1], table[-1]) if isinstance(group.kind, Mamba) and short[-1:] == (NULL,) else short

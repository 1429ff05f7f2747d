"""Part one, chapter 17: how a request lets go of its blocks: as it ends, is preempted, or a load of it has failed.

What it has computed for certain is published before, with all that is known of its tokens and keys by then (PUB-5).
"""

from dataclasses import replace
from typing import Any

from ..reads import Group, Mamba
from .choices import Choice, legal_order
from .effects import enqueue
from .facts import certain, in_flight, owned, recurrent, runs_ahead
from .hits import useful
from .keys import end_of, keyed, named
from .outcomes import Done, Outcome, Reason, Refusal
from .page import acts, drafts_of, pins, tables_of
from .publication import (
    holds_state,
    is_private,
    publish_blocks,
    publish_due_states,
    publish_tails,
    put_request,
    without_slot,
)
from .state import NULL, Absent, Config, Content, Fence, Flight, Running, State, Table, Waiting
from .units import upto


def release_all(state: State, slot: int, successor: Absent | Waiting, choice: Choice, has_run: bool = True) -> Outcome:
    """Release all blocks of a slot as one batch and leave `successor` in it (FENCE-1).

    What it has computed for certain is published before (PUB-5). While a step in flight computes tokens of the request,
    or a load of it is on its way, the batch waits for that. If its last step is in flight, or has not run by the
    engine's count, its states stay unpublished (MAMBA-5).
    """
    steps, request = in_flight(state, slot), state.requests[slot]
    tables = owned(request) if isinstance(request, Running) else ()
    batch = tuple(tuple(block for block in table if block != NULL) for table in tables)
    is_loading = isinstance(request, Running) and request.loading > 0
    count = last_count(state, slot, has_run)
    done = publish_last(publish_due_states(state, slot) if has_run and not steps else state, slot, count)
    left, last = put_request(done, slot, successor), done.requests[slot]
    names = (*tables_of(slot, len(tables)), *drafts_of(slot, len(tables)))
    held = (*request.tables, *request.states) if isinstance(request, Running) else ()
    waits = pins("hold", "fences", sum(batch, ()))
    whose, resumes = request.prefix[0] if isinstance(request, Running) else 0, isinstance(successor, Waiting)
    said = said_at_end(state.config, last, resumes, count) if isinstance(last, Running) else ()
    fence = Fence(steps[-1] if steps else None, slot, batch, whose, said)
    drops, due = waits + acts("drop", names[: len(held)], held), without_slot(left.due, slot)
    fences, flights = (*state.fences, fence), flights_without(state, slot)
    fenced = replace(left, flights=flights, fences=fences, due=due, steps=left.steps + drops)
    return Done(fenced) if steps or is_loading else return_fenced(fenced, (fence,), choice)


def said_at_end(config: Config, request: Running, resumes: bool, count: int) -> tuple[Any, ...]:
    """Return what each chapter says of the blocks of a request that ends with so many tokens."""
    end = last_end(config, request, count)
    return tuple(chapter.end(config, request, resumes, end) for chapter in config.chapters)


def flights_without(state: State, slot: int) -> tuple[tuple[Flight, ...], ...]:
    """Return the steps in flight after a request has gone: they still compute its tokens, for no request."""
    return tuple(
        tuple(replace(flight, slot=None) if flight.slot == slot else flight for flight in step)
        for step in state.flights
    )


def return_fenced(state: State, due: tuple[Fence, ...], choice: Choice) -> Outcome:
    """Take fences away, and release the blocks behind them, a batch after another."""
    for fence in due:
        # CHOOSE
        order = choice.order(fence.tables)
        if not legal_order(sum(fence.tables, ()), order):
            return Refusal(Reason.ILLEGAL_CHOICE)
        # EFFECT
        at = state.fences.index(fence)
        steps = state.steps + pins("drop", "fences", order)
        left = replace(state, fences=(*state.fences[:at], *state.fences[at + 1 :]), steps=steps)
        state = enqueue(left, order, fence.said, fence.tables)
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


def last_end(config: Config, request: Running, count: int) -> int:
    """Return the end of the part that a request publishes as it ends, of so many tokens; 0 if none, or without units.

    Beside recurrent layers only where its last step stopped at a unit: other states inside blocks are not there.
    """
    unit, most = config.unit, max(0, min(count, keyed(config, request.prefix)))
    left = certain(request) if recurrent(config) else most
    is_left = not recurrent(config) or (left % (unit or 1) == 0 and holds_state(config, request, left))
    return left if unit and left <= most and is_left else 0


def publish_last(state: State, slot: int, count: int) -> State:
    """Publish what `count` tokens filled, as a request lets go of its blocks, and the last part (PUB-5).

    A state where its last step stopped. One that has run ahead is known if all that was written holds.
    """
    request, ahead = state.requests[slot], runs_ahead(state.config)
    if not isinstance(request, Running) or not count:
        return state
    is_left = not in_flight(state, slot) and (not ahead or count == request.written)
    stop = certain(request) if is_left else None
    after = state if ahead or stop is None else publish_blocks(state, slot, min(count, stop), stop, Mamba)
    return last_tail(publish_blocks(after, slot, count, stop), slot, count)


def last_tail(state: State, slot: int, count: int) -> State:
    """Publish the last part of what a request has computed, as it ends, and what the same tokens would hit (UNIT-4)."""
    request, unit = state.requests[slot], state.config.unit
    if not isinstance(request, Running) or not unit:
        return state
    end = last_end(state.config, request, count)
    tails = tuple(each // unit * unit for each in (end, min(end, len(request.prefix[1]) - 1)))
    last = put_request(state, slot, replace(request, tails=tails, end_tails=tails))
    return publish_tails(last, slot, end)


def cut_off(group: Group, table: Table, left: int) -> Table:
    """Return the first entries of a table; the block of a state that is still to come stands in the last of them."""
    short = table[:left]
    return (*short[:-1], table[-1]) if isinstance(group.kind, Mamba) and short[-1:] == (NULL,) else short


def law_last_is_published(before: State, done: Done) -> bool:
    """PUB-5: when a request lets go of its blocks, all that it has computed, with keys, is found in whole blocks.

    That is, unless it put publication off. With a step in flight the settled tokens count, and nothing if the last step
    had not run; drafts that were accepted last are not certain yet. Of a recurrent layer it is where that step stopped.
    """
    return all(
        upto(content, end_of(config, content)) in {upto(each, end_of(config, each)) for _, each in done.state.keys}
        for config in (before.config,)
        for slot, (old, new) in enumerate(zip(before.requests, done.state.requests, strict=True))
        if isinstance(old, Running) and not isinstance(new, Running) and publishes(before.config, old)
        for content in last_contents(before, old, slot, done.kept is None)
    )


def last_contents(state: State, request: Running, slot: int, has_run: bool) -> tuple[Content, ...]:
    """Return the contents of the whole blocks that a request holds and has computed for certain."""
    config, stop, steps = state.config, certain(request), in_flight(state, slot)
    done = request.settled if steps else max(stop, request.settled) * has_run
    least = min(request.computed, done, keyed(config, request.prefix))
    is_left = not steps and holds_state(config, request, stop)
    return tuple(
        named(config, at, request.prefix, end)
        for at, group in enumerate(config.groups)
        for entry, block in enumerate(request.tables[at])
        for end in ((entry + 1) * group.block_size,)
        if block != NULL and end <= least and useful(config, at, entry)
        if not isinstance(group.kind, Mamba) or (is_left and end == stop)
    )


def publishes(config: Config, request: Running) -> bool:
    """Return whether a request publishes what it computes: nothing of it was forgotten, nor was that put off last."""
    return config.caching and not request.is_delayed and not is_private(config, request)

"""Part one, chapter 39: steps that are given up before they have run.

A forward fails, memory runs out, a client goes away: then slots were given, and blocks published, for tokens that
nobody computes. The engine lets go of such requests with its own count, which does not cover them. What a request has
published behind the count is found no more (GIVEN-1). What later steps, `cache_blocks` or `settled` say is done stays.

Another request may have begun on such a block within the same step. If it was given up too, the same holds of it, in
whichever order they go. If not, it has nothing to go on from: it is *lost*. Neither what it has published from there on
is found any more, nor anything of those that have begun on that, and it is given no more slots.
"""

from collections.abc import Mapping
from dataclasses import replace

from ...reads import Cross, Mamba
from ..choices import Choice
from ..facts import certain, sharers, span
from ..keys import end_of, is_longer, upto
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..publication import is_private, put_request
from ..seam import forget_keys, write_blocks
from ..state import Absent, Content, Running, State, Waiting
from ..tails import make_private
from ..told import given_up as of_given_up
from .in_flight import end_in_time

Starts = Mapping[int, int]
"""Slots of requests, each with the tokens from which on nothing that it holds was computed from what is there."""


@transition
def abort(state: State, slot: int, count: int, resumes: bool, choice: Choice) -> Outcome:
    """End or preempt a request of which `count` tokens are computed, by the engine's own count: ``free``."""
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    # CHOOSE, EFFECT
    successor = Waiting(request.prefix) if resumes else Absent()
    if count >= certain(request):
        return end_in_time(state, slot, successor, choice)
    kept = max(count, request.settled)
    starts = reached(state, {slot: kept})
    gone = keys_behind(state, starts)
    outcome = end_in_time(give_up(state, slot, starts, gone), slot, successor, choice, has_run=False)
    return replace(outcome, kept=kept) if isinstance(outcome, Done) else outcome
    # SAME: keys of other blocks, and of these up to where they were written; tables of other requests.


def behind(state: State, slot: int, start: int) -> frozenset[int]:
    """Return the blocks of a request that are behind some tokens, are published as more, or were, and are shared.

    Whoever has begun on what was forgotten still reads it. What an encoder gave was written before a request is forked.
    """
    request, config = state.requests[slot], state.config
    tables, written = (request.tables, request.written) if isinstance(request, Running) else ((), 0)
    return frozenset(
        block
        for group, table in zip(config.groups, tables, strict=False)
        if not isinstance(group.kind, Cross)
        for entry, block in enumerate(table)
        for is_cut in (start < min((entry + 1) * span(config, group), written) and sharers(state, block) > 1,)
        if block and (is_cut or entry * span(config, group) >= start or is_longer(state, block, start))
    )


def reached(state: State, starts: Starts) -> Starts:
    """Return those that hold what was given up, or what was computed from that, and so on: none from before it."""
    gone = {block for slot, start in starts.items() for block in behind(state, slot, start)}
    more = {
        slot: max(min(held), min(starts.values()))
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running) and slot not in starts
        for held in (places(state, request, gone),)
        if held and not request.is_lost
    }
    return reached(state, {**starts, **more}) if more else starts


def places(state: State, request: Running, blocks: set[int]) -> tuple[int, ...]:
    """Return where a request holds some of the blocks: the first tokens of their entries."""
    return tuple(
        entry * span(state.config, group)
        for group, table in zip(state.config.groups, request.tables, strict=True)
        for entry, block in enumerate(table)
        if block in blocks
    )


def keys_behind(state: State, starts: Starts) -> frozenset[tuple[int, Content]]:
    """Return what is found of these requests' blocks behind the tokens that each is left with."""
    ends = ((behind(state, slot, start), start) for slot, start in starts.items())
    return frozenset(
        (block, content)
        for blocks, start in ends
        for block, content in state.keys
        if block in blocks and end_of(state.config, content) > start
    )


def give_up(state: State, slot: int, starts: Starts, gone: frozenset[tuple[int, Content]]) -> State:
    """Take these keys away, and what nobody wrote; the request published no more, others that it reaches are lost."""
    after = write_blocks(forget_keys(state, gone), dict(enumerate(contents_without(state, starts))))
    for other in starts:
        request = after.requests[other]
        assert isinstance(request, Running)
        after = put_request(
            after, other, shorten_publication(state, request, starts[slot]) if other == slot else lose(state, request)
        )
    return after


def contents_without(state: State, starts: Starts) -> tuple[Content | None, ...]:
    """Return the contents without what is behind these tokens: of a state nothing is left."""
    contents = state.contents
    for slot, start in starts.items():
        blocks = behind(state, slot, start)
        contents = tuple(
            left_of(state, block, content, start) if block in blocks else content
            for block, content in enumerate(contents)
        )
    return contents


def left_of(state: State, block: int, content: Content | None, start: int) -> Content | None:
    """Return what is left of a block's content up to a token."""
    if content is None or len(content[1][1]) <= start:
        return content
    group = state.config.groups[content[0]]
    begin = (len(content[1][1]) - 1) // group.block_size * group.block_size
    return None if isinstance(group.kind, Mamba) or begin >= start else upto(content, start)


def shorten_publication(state: State, request: Running, kept: int) -> Running:
    """Return a request that has published no more than some tokens."""
    if is_private(state.config, request):
        return request
    pairs = zip(request.published, state.config.groups, strict=True)
    return replace(request, published=tuple(min(looked, kept // group.block_size) for looked, group in pairs))


def lose(state: State, request: Running) -> Running:
    """Return a request as it is once it holds what was given up: it publishes nothing, and is given no more slots."""
    return make_private(state.config, replace(request, is_lost=True))


def law_given_up_is_not_found(before: State, done: Done) -> bool:
    """GIVEN-1: once a step is given up, nothing is found that was published behind the count, nor what came of that.

    Whoever holds some of it is given no more slots.
    """
    return done.kept is None or all(
        not any(is_longer(done.state, block, done.kept) for block in blocks)
        and all(
            other.is_lost
            for other in done.state.requests
            if isinstance(other, Running) and places(done.state, other, set(blocks))
        )
        for slot, (old, new) in enumerate(zip(before.requests, done.state.requests, strict=True))
        if isinstance(old, Running) and not isinstance(new, Running)
        for blocks in (behind(before, slot, done.kept),)
    )


def law_what_has_run_is_found(before: State, done: Done) -> bool:
    """GIVEN-2: to give up a step loses nothing up to the count, and nothing that another request goes on from."""
    pairs = zip(before.requests, done.state.requests, strict=True)
    runs = tuple((old, new) for old, new in pairs if isinstance(new, Running) and not new.is_lost)
    others = tuple(new for old, new in runs if not isinstance(old, Running) or new.written >= old.written)
    return all(
        end_of(before.config, content) > (done.kept or 0)
        and not any(block in table for other in others for table in other.tables)
        for block, content in of_given_up(done)
    )

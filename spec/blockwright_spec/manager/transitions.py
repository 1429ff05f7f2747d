"""Part one, chapter 17: the transitions, one for each call that an engine makes.

All have one shape: REFUSE what cannot happen, CHOOSE what is open, EFFECT what changes, SAME what stays. The steps of
the model run in the order of the calls, so that tokens count as written by the call that gives them slots.
"""

from collections.abc import Callable
from dataclasses import replace

from ..reads import Prefix
from .chapters import adopted, caught_up, said_of
from .choices import Choice, legal_order
from .effects import enqueue, serve, write_tokens
from .ending import release_all
from .facts import certain, held_tables, runs_ahead
from .hits import found, holding, served
from .outcomes import Done, Outcome, Reason, Refusal, Step, transition
from .page import nulls
from .plans import let_go, nulled_entries, stands
from .preconditions import kept_inside, request_from, start_of, trim_end, trim_tables, wrong
from .publication import publish_count, put_off, put_request, stops, without_slot
from .seam import forget_keys, note
from .state import NULL, Absent, Hit, Running, State, Waiting

Ask = tuple[int, int, Step]
"""One request of a batch: its slot, its computed tokens, and the step."""

Ending = Callable[[State, int, Absent | Waiting, Choice], Outcome]
"""How a request lets go of its blocks (chapter `ending`); with steps in flight and loads, in time."""


@transition
def arrive(state: State, slot: int, prefix: Prefix) -> Outcome:
    """Make a request known by its extra keys and prompt: ``Request(...)``."""
    # REFUSE
    if not isinstance(state.requests[slot], Absent):
        return Refusal(Reason.NOT_WAITING)
    # EFFECT
    return Done(put_request(state, slot, Waiting(prefix)))
    # SAME: blocks, queue, keys.


@transition
def find(state: State, slot: int, choice: Choice, most: int | None = None) -> Outcome:
    """Look up the longest hit of a waiting request, of at most some tokens: ``get_computed_blocks`` (HIT-1, HIT-4)."""
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Waiting):
        return Refusal(Reason.NOT_WAITING)
    # CHOOSE
    hit = found(state, request.prefix, choice, most) if state.config.caching else Hit()
    if not all(block in holding(state, content) for block, content in served(hit, request.prefix, state)):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    return Done(put_request(state, slot, Waiting(request.prefix, hit)))
    # SAME: blocks, queue (a lookup protects nothing), keys.


@transition
def admit(state: State, slot: int, hit: Hit, step: Step, choice: Choice) -> Outcome:
    """Start a waiting request on the blocks of its hit: ``allocate_slots`` with a hit (HIT-1, READ-1)."""
    # REFUSE
    start = start_of(state, slot, hit, step)
    if isinstance(start, Refusal):
        return start
    # CHOOSE, EFFECT
    own, step = adopted(state.config, hit, step)
    for chapter in state.config.chapters:
        state = chapter.admit(state, slot, own)
    return serve(state, slot, start, own.length, step, choice)
    # SAME: as in `serve`.


@transition
def grow(state: State, slot: int, computed: int, step: Step, choice: Choice) -> Outcome:
    """Return a running request slots for its next tokens: ``allocate_slots`` (READ-1, TRIM-1, WRITE-1).

    The engine says so that `computed` tokens are done, drafts among them that hold.
    """
    # REFUSE
    told = caught_up(state, slot, computed)
    start = request_from(told, slot, computed, step)
    if isinstance(start, Refusal):
        return start
    # CHOOSE, EFFECT
    return serve(with_settled(told, slot, start), slot, start, computed, step, choice)
    # SAME: as in `serve`.


def grow_each(state: State, asks: tuple[Ask, ...], choice: Choice) -> tuple[tuple[Done, ...], Refusal | None]:
    """Grow requests in order until one does not fit; those before it keep their slots: ``allocate_slots_batch``.

    Gives the steps that happened and the refusal that ended them. A wrong ask anywhere refuses the whole batch.
    """
    # REFUSE
    if len({slot for slot, _, _ in asks}) < len(asks):
        return (), Refusal(Reason.REPEATED)
    if refusal := next((each for ask in asks if (each := wrong(caught_up(state, *ask[:2]), *ask))), None):
        return (), refusal
    # CHOOSE, EFFECT
    steps: tuple[Done, ...] = ()
    for slot, computed, step in asks:
        outcome = grow(state, slot, computed, step, choice)
        if isinstance(outcome, Refusal):
            return steps, outcome
        state, steps = outcome.state, (*steps, outcome)
    return steps, None
    # SAME: as in `serve`, for each request.


def with_settled(state: State, slot: int, request: Running) -> State:
    """Put in its slot a request of which more was said to be settled: what is known of that stands in its blocks.

    What is not known yet is written as it becomes known (READ-1).
    """
    known = min(max(request.computed, request.settled), len(request.prefix[1]))
    return write_tokens(state, slot, replace(request, computed=known), request.computed)


@transition
def append_output(state: State, slot: int, tokens: tuple[int, ...], accepted: int = 0) -> Outcome:
    """Append tokens to a running request; the first `accepted` were drafts, computed by the step before.

    ``append_output_token_ids``, or ``append_output_token_ids_batch`` for one request after another; with accepted
    drafts the engine's count goes up. Others are computed again, unless they were said to be done before they were
    known. With steps in flight the count has gone ahead, and the tokens become known for which slots were given.
    """
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    unknown = request.written - request.computed if request.computed == len(request.prefix[1]) else 0
    if accepted > min(len(tokens), 0 if state.config.overlaps else unknown):
        return Refusal(Reason.UNWRITTEN)
    # EFFECT
    longer = request.prefix[0], request.prefix[1] + tokens
    known = request.written if state.config.overlaps else max(request.computed + accepted, request.settled)
    grown = replace(request, prefix=longer, computed=min(known, len(longer[1])))
    return Done(write_tokens(state, slot, grown, request.computed))
    # SAME: tables, queue, keys: what was accepted is published by the next step or by `publish`.


@transition
def publish(state: State, slot: int, count: int, has_run: bool = True) -> Outcome:
    """Publish the blocks filled up to `count` tokens, after publication was put off: ``cache_blocks`` (PUB-1).

    The engine says so that `count` tokens are computed, drafts among them that hold. Unless steps are in flight, they
    are settled: others may read them from now on, so none of them is taken back (WRITE-1). If the request's last step
    is still to run, a state that it leaves is due; of layers that run ahead, until a later call names the count.
    """
    # REFUSE
    state = caught_up(state, slot, count)
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if count < 0:
        return Refusal(Reason.NEGATIVE)
    if count > min(request.written, len(request.prefix[1])):
        return Refusal(Reason.UNWRITTEN)
    if state.config.settles and count > request.settled:
        return Refusal(Reason.UNSETTLED)
    # EFFECT
    settled = request.settled if state.config.overlaps else max(request.settled, count)
    said = with_settled(state, slot, replace(request, settled=settled))
    is_part = count < min(max(certain(request), request.settled), len(request.prefix[1]))
    said = said if is_part else put_off(said, slot, False)
    is_open = any(flight.slot == slot for step in state.flights[-1:] for flight in step)
    if not has_run or is_open:  # what the open step computes has not run, whatever the count says
        is_due = count == certain(request) and not runs_ahead(state.config) and stops(state.config, request)
        due = (*without_slot(said.due, slot), slot) if is_due else said.due
        return Done(publish_count(replace(said, due=due), slot, count, None))
    return Done(publish_count(said, slot, count, certain(request)))
    # SAME: tables, queue, contents, keys published before.


def publish_each(state: State, asks: tuple[tuple[int, int], ...], has_run: bool = True) -> Outcome:
    """Publish for one request after another, or for none: pairs of slot and tokens, ``cache_blocks_batch``."""
    # REFUSE
    if len({slot for slot, _ in asks}) < len(asks):
        return Refusal(Reason.REPEATED)
    if refusal := next((each for ask in asks if isinstance(each := publish(state, *ask, has_run), Refusal)), None):
        return refusal
    # EFFECT
    first = publish(state, *asks[0], has_run) if asks else Done(state)
    if isinstance(first, Refusal) or not asks[1:]:
        return first
    rest = publish_each(first.state, asks[1:], has_run)
    return replace(rest, steps=first.steps + rest.steps) if isinstance(rest, Done) else rest
    # SAME: as in `publish`, for each request.


@transition
def trim(state: State, slot: int, settled: int, choice: Choice) -> Outcome:
    """Null the entries that are dead at `settled` tokens and release their blocks: ``remove_skipped_blocks``.

    The engine says so that they are done, drafts among them that hold: it goes on from no earlier (READ-1).
    """
    # REFUSE
    state = caught_up(state, slot, settled)
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    if not 0 <= settled <= request.written:
        return Refusal(Reason.NEGATIVE if settled < 0 else Reason.UNWRITTEN)
    if state.config.overlaps and settled > request.settled:
        return Refusal(Reason.UNSETTLED)
    # CHOOSE
    end = trim_end(state.config, request, settled)
    tables = trim_tables(state.config, request.tables, end)
    batch = let_go(request.tables, gone := nulled_entries(request.tables, tables))
    order = choice.order(batch)
    if not legal_order(sum(batch, ()), order):
        return Refusal(Reason.ILLEGAL_CHOICE)
    # EFFECT
    done = max(settled, request.settled)  # a load that is under way was trimmed for what it will have settled
    inside, is_inside = kept_inside(state.config, request, settled), not stands(state.config, tables, end)
    kept = replace(request, tables=tables, trimmed=max(end, request.trimmed), settled=done)
    kept = replace(kept, inside=inside, is_inside=is_inside)
    said = said_of(state.config, request, gone)
    cut = note(with_settled(state, slot, kept), nulls(slot, request.tables, gone))
    return Done(enqueue(cut, order, said), nulled=gone)
    # SAME: entries that some later token reads, keys, contents of published blocks.


@transition
def release(state: State, slot: int, choice: Choice, end: Ending = release_all) -> Outcome:
    """End a request and release its blocks: ``free``; nothing happens to one that is not there."""
    # CHOOSE
    return end(state, slot, Absent(), choice)
    # SAME: keys, contents of published blocks, other requests.


@transition
def preempt(state: State, slot: int, choice: Choice, end: Ending = release_all) -> Outcome:
    """Take a running request's blocks and have it wait again: ``free``, and the engine's own count back to 0."""
    # REFUSE
    request = state.requests[slot]
    if not isinstance(request, Running):
        return Refusal(Reason.NOT_RUNNING)
    # CHOOSE, EFFECT
    return end(state, slot, Waiting(request.prefix), choice)
    # SAME: keys, contents of published blocks, other requests.


@transition
def reset(state: State) -> Outcome:
    """Forget everything published: ``reset_prefix_cache``."""
    # REFUSE
    if any(block != NULL for table in held_tables(state) for block in table):
        return Refusal(Reason.BLOCKS_HELD)
    # EFFECT
    for chapter in state.config.chapters:
        state = chapter.reset(state)
    return Done(replace(forget_keys(state, state.keys), contents=(None,) * len(state.contents)))
    # SAME: the order in which blocks go, requests.

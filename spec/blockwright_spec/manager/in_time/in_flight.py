"""Part one, chapter 32: steps that are in flight until they are settled, and tokens that are loaded from elsewhere.

A step is started, requests are given slots in it, and it runs while the next is prepared. It is settled when it is
known to be done, and which of its drafts were rejected: later steps then move back. What a step in flight or a load
touches is never free (FLIGHT-1): windows are trimmed on settled tokens, and the batch of a request that ends meanwhile
waits behind a fence, `until` the last such step (oldest 0), and returns in the order in which it would have at once.
"""

from dataclasses import replace

from .. import transitions
from ..choices import Choice
from ..effects import write_tokens
from ..ending import let_go, release_all, return_batches
from ..facts import in_flight, is_coming, recurrent, resumed
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..publication import changed_flights, publish_count, publish_due_states, put_request
from ..state import Absent, Flight, Running, State, Waiting

Rejected = tuple[tuple[int, int], ...]
"""How many drafts of which slot were rejected."""


@transition
def begin(state: State) -> Outcome:
    """Start a step, that slots are given in from now on: ``start_step``, or ``new_step_starts`` where none overlap.

    The step before it runs first, so recurrent states that it leaves may be found from now on (MAMBA-5).
    """
    # EFFECT
    flights = (*state.flights, ()) if state.config.overlaps else ()
    for slot in state.due:
        state = publish_due_states(state, slot)
    return Done(replace(state, flights=flights))
    # SAME: everything else.


def end_in_time(state: State, slot: int, successor: Absent | Waiting, choice: Choice, has_run: bool = True) -> Outcome:
    """Release all blocks of a slot, behind a fence if something touches them: a step in flight, or a load (FENCE-1)."""
    request, steps = state.requests[slot], in_flight(state, slot)
    if not steps and not (isinstance(request, Running) and request.coming):
        return release_all(state, slot, successor, choice, has_run)
    left = let_go(state, slot, successor, has_run)
    fence = replace(left.batches[-1], until=steps[-1] if steps else None, is_coming=not steps)
    flights = changed_flights(left, slot, lambda flight: replace(flight, slot=None))
    return Done(replace(left, batches=(*left.batches[:-1], fence), flights=flights))


def release(state: State, slot: int, choice: Choice) -> Outcome:
    """End a request, whose blocks return in time: ``free``."""
    return transitions.release(state, slot, choice, end_in_time)


def preempt(state: State, slot: int, choice: Choice) -> Outcome:
    """Have a request wait again, its blocks return in time: ``free``, and the engine's own count back to 0."""
    return transitions.preempt(state, slot, choice, end_in_time)


@transition
def settle(state: State, rejected: Rejected, choice: Choice) -> Outcome:
    """Report that the oldest step in flight is done: ``settle_step`` (SETTLE-1, FENCE-1)."""
    # REFUSE
    if not state.flights:
        return Refusal(Reason.NO_STEP)
    drafts = {flight.slot: flight.uncertain for flight in state.flights[0]}
    if any(not 0 <= count <= drafts.get(slot, -1) for slot, count in rejected):
        return Refusal(Reason.NOT_REJECTED)
    # EFFECT
    after, done = replace(state, flights=state.flights[1:]), state.flights[0]
    for flight in done:
        after = land(after, flight, dict(rejected))
    outcome = return_batches(after, tuple(fence for fence in state.batches if fence.until == 0), choice)
    if isinstance(outcome, Refusal):
        return outcome
    waiting = (replace(fence, until=fence.until - 1) if fence.until else fence for fence in outcome.state.batches)
    return Done(replace(outcome.state, batches=tuple(waiting)))
    # SAME: tables, the order of what was free.


def land(state: State, flight: Flight, rejected: dict[int, int]) -> State:
    """Count the tokens of one request as settled, move its later steps back by the rejected drafts, and publish."""
    request = state.requests[flight.slot] if flight.slot is not None else None
    if flight.slot is None or not isinstance(request, Running):
        return state
    back, slot = rejected.get(flight.slot, 0), flight.slot
    ahead = any(later.slot == slot for step in state.flights for later in step)
    flights = changed_flights(state, slot, lambda one: replace(one, start=one.start - back, stop=one.stop - back))
    known = len(request.prefix[1])
    kept = replace(
        request,
        settled=flight.stop - back,
        computed=min(request.written - back, known),
        written=request.written - back,
        uncertain=request.uncertain if ahead else request.uncertain - back,
    )
    after = put_request(replace(state, flights=flights), slot, kept)
    if not state.config.settles:
        return after if ahead else publish_due_states(after, slot)
    return publish_count(after, slot, min(kept.settled, known), flight.stop - flight.uncertain)


@transition
def finish_load(state: State, slot: int, count: int, choice: Choice) -> Outcome:
    """Report that a load has ended and how many of its tokens came: ``finish_load`` (LOAD-1).

    What no token after the whole load reads was not asked for, and holds no block. Of the rest, what came is published,
    but no recurrent state of a part: the block that was to get the state at the end of the load has none. If some did
    not come, the request gives its blocks up and waits again: its hit is then what came, as far as a token
    there would find all that it reads. If the whole prompt came, its last token is computed again, for what comes
    after it. Blocks of a request that has ended meanwhile return.
    """
    # REFUSE
    request = state.requests[slot]
    if not is_coming(state, slot) or count < 0 or (isinstance(request, Running) and count > request.coming > 0):
        return Refusal(Reason.NO_LOAD)
    # EFFECT
    if not isinstance(request, Running) or request.coming == 0:
        due = tuple(fence for fence in state.batches if fence.is_coming and fence.slot == slot)
        return return_batches(state, due, choice)
    stop, end = request.written + count, request.written + request.coming
    done = resumed(request.prefix, stop)
    came = replace(request, settled=done, computed=done, written=done, coming=0)
    left = done if stop == end or not recurrent(state.config) else None
    after = publish_count(write_tokens(state, slot, came, request.written, stop == end), slot, done, left)
    return Done(after) if stop == end else end_in_time(after, slot, Waiting(request.prefix), choice, left is not None)
    # SAME: other requests.

"""Part one, chapter 32: steps that are in flight until they are settled, and tokens that are loaded from elsewhere.

A step is started, requests are given slots in it, and it runs while the next is prepared. It is settled when it is
known to be done, and which of its drafts were rejected: later steps then move back as far. What a step in flight
or a load still touches is never free (FLIGHT-1): windows are trimmed on settled tokens, and the blocks of a request
that ends meanwhile wait behind a fence, to return in the order in which they would have returned at once.
"""

from dataclasses import replace

from ..choices import Choice
from ..effects import write_tokens
from ..ending import release_all, return_fenced
from ..facts import is_coming, recurrent, resumed
from ..outcomes import Done, Outcome, Reason, Refusal, transition
from ..publication import changed_flights, publish_count, publish_due_states, put_request
from ..state import Flight, Running, State, Waiting

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
    outcome = return_fenced(after, tuple(fence for fence in state.fences if fence.step == 0), choice)
    if isinstance(outcome, Refusal):
        return outcome
    waiting = (replace(fence, step=fence.step - 1) if fence.step else fence for fence in outcome.state.fences)
    return Done(replace(outcome.state, fences=tuple(waiting)))
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
        due = tuple(fence for fence in state.fences if fence.step is None and fence.slot == slot)
        return return_fenced(state, due, choice)
    stop, end = request.written + count, request.written + request.coming
    done = resumed(request.prefix, stop)
    came = replace(request, settled=done, computed=done, written=done, coming=0)
    left = done if stop == end or not recurrent(state.config) else None
    after = publish_count(write_tokens(state, slot, came, request.written, stop == end), slot, done, left)
    return Done(after) if stop == end else release_all(after, slot, Waiting(request.prefix), choice, left is not None)
    # SAME: other requests.

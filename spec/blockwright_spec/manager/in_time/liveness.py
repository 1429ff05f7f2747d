"""Part one, chapter 37: laws of serving: who waits is served, and a hit never stands in its way."""

from dataclasses import replace
from functools import cache

from ...reads import Prefix
from ..demand import Step
from ..facts import goes_back, is_coming
from ..hits import found
from ..lru import LRU
from ..outcomes import Done, Fits, Outcome, Plan, Reason, Refusal, When
from ..plans import num_waiting, plan_admission
from ..pool_laws import asked
from ..state import Config, Hit, Running, State, Waiting, initial
from ..tails import widest
from .forks import take_copies
from .in_flight import begin, finish_load, release, settle
from .outside import let_go


def law_head_is_served(state: State) -> bool:
    """LIVE-1: once all others are gone and nothing is in flight, a waiting request fits, or never could, hit or not."""
    is_waiting = any(isinstance(each, Waiting) or is_coming(state, slot) for slot, each in enumerate(state.requests))
    if not (is_waiting or state.flights or state.batches or state.copies or state.pins):
        return True  # REF-1 says it: whatever is released is free
    alone = quiet(state)
    step = Step(1, whole=True, reserve=state.config.num_blocks)
    plans = (
        plan_admission(alone, slot, hit, step)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Waiting)
        for hit in (Hit(), found(alone, request.prefix, LRU))
    )
    return len(alone.queue) == state.config.num_blocks - 1 and Refusal(Reason.NO_FREE_BLOCKS) not in (
        Refusal(plan.reason) for plan in plans if isinstance(plan, Refusal)
    )


def law_waiting_returns(state: State) -> bool:
    """LIVE-2: the blocks that a refusal counts as on their way are free once nothing is in flight any more."""
    return not state.batches or len(landed(state).queue) == len(state.queue) + num_waiting(state)


def landed(state: State) -> State:
    """Return the state once steps in flight are settled, and loads that their requests have given up have ended."""
    for slot in {fence.slot for fence in state.batches if fence.is_coming}:
        state = after(finish_load(state, slot, 0, LRU))
    while state.flights:
        state = after(settle(state, (), LRU))
    return state


def quiet(state: State) -> State:
    """Return the state once running requests and holds from outside are released, loads ended, and steps settled."""
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running):
            state = after(release(state, slot, LRU))
    state = after(let_go(landed(state), state.pins))
    state = after(take_copies(state, LRU))
    return after(begin(state)) if state.config.overlaps else state


def after(outcome: Outcome) -> State:
    """Return the state after a step that cannot be refused."""
    assert isinstance(outcome, Done)
    return outcome.state


def law_hit_fits(state: State) -> bool:
    """LIVE-3: on an idle pool no request waits, and with its longest hit it fits in each step as without one.

    Whatever it computes, drafts, loads and looks ahead in the step, and if all of it must fit as well.
    """
    config = state.config
    ready = replace(state, flights=((),)) if config.overlaps else state
    most = goes_back(config)
    return len(state.queue) < config.num_blocks - 1 or not any(
        is_too_much(plan_admission(waits, 0, hit, rest), fits_alone(config, prefix, whole))
        for prefix in asked(state)
        if len(prefix[1]) <= config.max_model_len
        for hit in (found(state, prefix, LRU),)
        for waits in (replace(ready, requests=(Waiting(prefix, hit), *state.requests[1:])),)
        for whole, rest in steps_alike(len(prefix[1]), hit.length, widest(config) if most is None else most)
    )


@cache
def fits_alone(config: Config, prefix: Prefix, step: Step) -> bool:
    """Return whether a request fits a new pool in a step, without a hit."""
    new = replace(initial(config, 1), requests=(Waiting(prefix, Hit()),), flights=((),) * config.overlaps)
    return isinstance(plan_admission(new, 0, Hit(), step), Fits)


def is_too_much(plan: Plan, fits: bool) -> bool:
    """Return whether a step is refused for now, or for ever though it fits without the hit."""
    when = plan.reason.value[0] if isinstance(plan, Refusal) else None
    return when is When.NOT_NOW or (fits and when is When.NEVER)


@cache
def steps_alike(known: int, hit: int, most: int) -> tuple[tuple[Step, Step], ...]:
    """Return steps without a hit and with it that end after the same token, and draft and look ahead alike."""
    several = sorted({0, most})
    ends = ((known, ahead, drafts) for ahead in several for drafts in several)
    steps = tuple(
        Step(stop + drafts, whole=is_whole, drafts=drafts, lookahead=ahead)
        for stop, ahead, drafts in (*ends, *((hit + 1, ahead, 0) for ahead in several if hit + 1 < known))
        for is_whole in sorted({False, stop == known})
    )
    load = Step(0, external=known - 1), Step(0, external=known - 1 - hit)
    pairs = tuple((step, replace(step, new=step.new - hit)) for step in steps)
    return (*pairs, (Step(1, whole=True), Step(1, whole=True)), load)

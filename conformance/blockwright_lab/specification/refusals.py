"""Wrong calls on the specification itself: in every state each must be refused, for the reason that it gives.

Lock-step makes the wrong calls that a manager can be asked. Here are those that none can: choices that are not open,
events of requests that the engine keeps for itself, and a worker's rows. Beside them stand questions of which the
answer is known, about what no manager shows: ghosts, what is lost with a block, and who serves a recorded hit.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from blockwright_conformance.kv_cache.parts import computed_of
from blockwright_spec.block_tables.outcomes import PagedRefusal
from blockwright_spec.manager import transitions
from blockwright_spec.manager.added import StepAdded
from blockwright_spec.manager.choices import Choice, recorded
from blockwright_spec.manager.hits import found, holding
from blockwright_spec.manager.in_time import forks
from blockwright_spec.manager.in_time import in_flight as flights
from blockwright_spec.manager.in_time.explain import explained
from blockwright_spec.manager.in_time.time_laws import law_draft_state_is_its_own
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Reason, Refusal, Step
from blockwright_spec.manager.state import (
    NULL,
    Absent,
    Hit,
    Running,
    State,
    Waiting,
    certain,
    in_flight,
    is_loading,
    recurrent,
)
from blockwright_spec.manager.step_laws import law_evicted_is_lost
from blockwright_spec.manager.table_laws import common_prefix_blocks, law_counts_are_ordered
from blockwright_spec.offload.chain_outcomes import ChainRefusal
from blockwright_spec.reads import Cross, Full, Prefix, entries
from blockwright_spec.worker.rows import RowRefusal

REFUSED = "wrong calls refused"
"""Stands for a law: wrong calls are refused, for their reason."""

Wrong = tuple[object, Callable[[], Any]]
"""A call, and why it is refused; None if it is not."""


def reason_of(outcome: Any) -> object:
    """Return why something was refused; None if it was not; of what is only asked, the answer."""
    if isinstance(outcome, bool):
        return outcome
    refusal = outcome[1] if isinstance(outcome, tuple) and len(outcome) == 2 else outcome
    if isinstance(refusal, Refusal | PagedRefusal | ChainRefusal):
        return refusal.reason
    return refusal if isinstance(refusal, RowRefusal) else None


def all_refused(calls: Iterator[Wrong]) -> bool:
    """Return whether each call is refused for its reason; one that fails is not."""
    try:
        return all(reason_of(call()) is reason for reason, call in calls)
    except Exception:
        return False


def refuses(state: State) -> bool:
    """Return whether a manager's state refuses what is wrong there."""
    return all_refused(
        each for slot in range(len(state.requests)) for each in wrong_calls(state, slot)
    ) and all_refused(of_all(state))


def wrong_calls(state: State, slot: int) -> Iterator[Wrong]:
    request = state.requests[slot]
    if not isinstance(request, Running):
        groups = range(len(state.config.groups))
        yield True, lambda: not any(common_prefix_blocks(state, slot, group, 1) for group in groups)
        yield Reason.NOT_RUNNING, lambda: transitions.trim(state, slot, 0, LRU)
        yield Reason.NOT_RUNNING, lambda: transitions.publish(state, slot, 0)
        yield Reason.NOT_RUNNING, lambda: transitions.append_output(state, slot, (0,))
        yield Reason.NOT_RUNNING, lambda: transitions.preempt(state, slot, LRU)
        yield Reason.NOT_RUNNING, lambda: forks.fork(state, slot, slot, LRU)
    else:
        yield from of_running(state, slot, request)
    yield Reason.NO_LOAD, lambda: flights.finish_load(state, slot, -1, LRU)
    if not any(fence.step is None and fence.slot == slot for fence in state.fences) and not (
        isinstance(request, Running) and request.added.loading
    ):
        yield Reason.NO_LOAD, lambda: flights.finish_load(state, slot, 0, LRU)
    elif isinstance(request, Running) and not request.added.loading:
        yield None, lambda: flights.finish_load(state, slot, 1, LRU)
    if not isinstance(request, Waiting):
        yield Reason.NOT_WAITING, lambda: transitions.find(state, slot, LRU)
        yield Reason.NOT_WAITING, lambda: transitions.admit(state, slot, Hit(), Step(1), LRU)
    if not isinstance(request, Absent):
        yield Reason.NOT_WAITING, lambda: transitions.arrive(state, slot, (0, (0,)))
    if isinstance(request, Waiting):
        yield from of_waiting(state, slot, request)


def of_waiting(state: State, slot: int, request: Waiting) -> Iterator[Wrong]:
    """Return wrong calls about a waiting request: forks to it that are none, and lookups served by foreign blocks."""
    if any(map(any, found(state, request.prefix, LRU).tables)):
        foreign = replace(LRU, serve=lambda holders: state.config.num_blocks)
        yield Reason.ILLEGAL_CHOICE, lambda: transitions.find(state, slot, foreign)
    yield from of_asks(state, slot, request)
    if state.config.caching and not state.config.added.overlaps and not recurrent(state.config):
        yield from of_hits(state, slot, request)
    if length := found(state, request.prefix, LRU).length:
        gone, lost = replace(state, keys=()), frozenset(content for _, content in state.keys)
        yield True, lambda: explained(gone, request.prefix, lost).candidate == length
    for parent, one in enumerate(state.requests):
        if isinstance(one, Running):
            yield from of_forks(state, parent, slot, one)
        if isinstance(one, Running) and not one.added.loading and one.computed == one.written and not state.flights:
            yield from of_able_forks(state, parent, slot, one)


def of_able_forks(state: State, parent: int, child: int, one: Running) -> Iterator[Wrong]:
    """Return what comes of forks of a request that could be forked, and those that are none."""
    able = with_tokens(state, child, one.prefix)
    done, states = forks.fork(able, parent, child, LRU), sum(map(len, map(forks.wanted_states, state.config.groups)))
    if states > len(state.queue) and forks.unforkable(able, parent, child) is None:
        yield True, lambda: done == Refusal(Reason.NO_FREE_BLOCKS, states - len(state.queue))
    elif isinstance(done, Done):
        extra, tokens = one.prefix
        longer = extra, (*tokens[: one.computed], 1)
        said = forks.fork(with_tokens(state, child, longer), parent, child, LRU)
        yield True, lambda: isinstance(said, Done) and getattr(said.state.requests[child], "prefix", None) == longer
        if isinstance(trimmed := transitions.trim(able, parent, one.computed, LRU), Done):
            yield True, lambda: isinstance(forks.fork(trimmed.state, parent, child, LRU), Done)
    if isinstance(done, Done) and done.demand:
        yield Reason.ILLEGAL_CHOICE, lambda: forks.fork(able, parent, child, twice(LRU))
    if one.computed and not state.copies:
        foreign = with_tokens(state, child, (one.prefix[0], tuple(1 - token for token in one.prefix[1])))
        yield Reason.NOT_A_FORK, lambda: forks.fork(foreign, parent, child, LRU)


def with_tokens(state: State, slot: int, prefix: Prefix) -> State:
    """Return a state in which a request waits with other tokens."""
    return replace(state, requests=(*state.requests[:slot], Waiting(prefix), *state.requests[slot + 1 :]))


def of_hits(state: State, slot: int, request: Waiting) -> Iterator[Wrong]:
    """Return admissions with hits that leave no token, are no longer there, or lack a block; and the whole of a hit."""
    (extra, tokens), step = request.prefix, Step(1)
    hit = found(state, (extra, (*tokens, 0)), LRU)
    if hit.length == len(tokens) < state.config.max_model_len:
        yield Reason.HIT_STALE, lambda: transitions.admit(state, slot, hit, step, LRU)
    said = transitions.admit(state, slot, Hit(), Step(len(tokens)), LRU)
    yield True, lambda: not isinstance(said, Done) or law_evicted_is_lost(state, said)
    own = found(state, request.prefix, LRU)
    if not own.length:
        return
    gone = replace(state, keys=())
    yield Reason.HIT_STALE, lambda: transitions.admit(gone, slot, own, step, LRU)
    if all(isinstance(group.kind, Full) for group in state.config.groups):
        holed = Hit(own.length, tuple((NULL, *table[1:]) for table in own.tables))
        yield Reason.HIT_STALE, lambda: transitions.admit(state, slot, holed, step, LRU)
        most = sum(entries(group.block_size, len(tokens)) for group in state.config.groups)
        short = replace(state, config=replace(state.config, num_blocks=most))
        yield Reason.POOL_TOO_SMALL, lambda: transitions.admit(short, slot, own, Step(0, whole=True), LRU)


def of_asks(state: State, slot: int, request: Waiting) -> Iterator[Wrong]:
    """Return wrong admissions: an encoder that nothing reads, loads that come with tokens or beside another load."""
    if not any(isinstance(group.kind, Cross) for group in state.config.groups):
        yield Reason.NO_ENCODER, lambda: transitions.admit(state, slot, Hit(), Step(1, added=StepAdded(encoder=1)), LRU)
    yield Reason.LOAD_ALONE, lambda: transitions.admit(state, slot, Hit(), Step(1, added=StepAdded(external=1)), LRU)
    whole = len(request.prefix[1])
    more = whole if recurrent(state.config) else whole + 1
    yield Reason.LOAD_ALONE, lambda: transitions.admit(state, slot, Hit(), Step(0, added=StepAdded(external=more)), LRU)
    if 1 < whole <= state.config.max_model_len:
        yield (
            Reason.TOO_MANY_DRAFTS,
            lambda: transitions.admit(state, slot, Hit(), Step(whole, added=StepAdded(drafts=1)), LRU),
        )
    if state.config.added.overlaps and not state.flights:
        yield Reason.NO_STEP, lambda: transitions.admit(state, slot, Hit(), Step(1), LRU)
    if is_loading(state, slot) and len(request.prefix[1]) > 1:
        yield Reason.LOADING, lambda: transitions.admit(state, slot, Hit(), Step(0, added=StepAdded(external=1)), LRU)


def of_forks(state: State, parent: int, child: int, one: Running) -> Iterator[Wrong]:
    """Return the forks of what is not settled, or is elsewhere."""
    if one.added.loading:
        yield Reason.LOADING, lambda: forks.fork(state, parent, child, LRU)
    elif in_flight(state, parent) or (state.config.added.overlaps and one.computed < one.written):
        yield Reason.UNSETTLED, lambda: forks.fork(state, parent, child, LRU)
    elif recurrent(state.config) and one.computed != certain(one) and not state.config.added.overlaps:
        yield Reason.STATE_ELSEWHERE, lambda: forks.fork(state, parent, child, LRU)
    elif one.computed < one.settled:
        yield Reason.WENT_BACK, lambda: forks.fork(state, parent, child, LRU)


def of_running(state: State, slot: int, request: Running) -> Iterator[Wrong]:
    """Return the wrong calls about a running request, illegal choices among them."""
    more = request.written + 1
    accepted = (0,) * (request.written + 1)
    yield Reason.NEGATIVE, lambda: transitions.trim(state, slot, -1, LRU)
    yield Reason.NEGATIVE, lambda: transitions.publish(state, slot, -1)
    yield None, lambda: transitions.publish(state, slot, 0)
    yield Reason.UNWRITTEN, lambda: transitions.trim(state, slot, more, LRU)
    yield Reason.UNWRITTEN, lambda: transitions.publish(state, slot, more)
    yield Reason.UNWRITTEN, lambda: transitions.append_output(state, slot, accepted, len(accepted))
    if state.config.added.overlaps and request.settled < request.written:
        yield Reason.UNSETTLED, lambda: transitions.trim(state, slot, request.written, LRU)
    yield None, lambda: transitions.trim(state, slot, request.settled, LRU)
    most = min(request.written, len(request.prefix[1]))
    if state.config.added.settles and request.settled < most:
        yield Reason.UNSETTLED, lambda: transitions.publish(state, slot, most)
    if state.config.added.settles:
        yield None, lambda: transitions.publish(state, slot, min(request.settled, most))
    yield Reason.NOT_WAITING, lambda: forks.fork(state, slot, slot, LRU)
    yield True, lambda: law_draft_state_is_its_own(state)
    yield from of_drafts(state, slot, request)
    computed = computed_of(state, slot)
    if isinstance(said := transitions.append_output(state, slot, (0,)), Done):
        longer = (request.prefix[0], (*request.prefix[1], 0))
        yield True, lambda: said.state.requests[slot].prefix == longer  # type: ignore[union-attr]
    else:
        yield None, lambda: said  # putting out is never refused where no draft is said to hold
    if request.computed < len(request.prefix[1]) or state.config.added.overlaps:
        yield Reason.UNWRITTEN, lambda: transitions.append_output(state, slot, (0,), 1)
    plain = reason_of(transitions.grow(state, slot, computed, Step(1), LRU))
    for of_admissions in (Step(1, whole=True), Step(1, reserve=state.config.num_blocks)):
        yield plain, lambda step=of_admissions: transitions.grow(state, slot, computed, step, LRU)  # type: ignore[misc]
    reads_encoder = any(isinstance(group.kind, Cross) for group in state.config.groups)
    why = Reason.RUNS if reads_encoder else Reason.NO_ENCODER
    yield why, lambda: transitions.grow(state, slot, computed, Step(1, added=StepAdded(encoder=1)), LRU)
    is_known = computed + 1 + recurrent(state.config) <= len(request.prefix[1])
    why = Reason.RUNS if is_known else Reason.LOAD_ALONE
    yield why, lambda: transitions.grow(state, slot, computed, Step(0, added=StepAdded(external=1)), LRU)
    if request.added.loading and computed < state.config.max_model_len:
        yield Reason.LOADING, lambda: transitions.grow(state, slot, computed, Step(1), LRU)
    if any(block != NULL for table in request.tables for block in table):
        yield from of_choices(state, slot, request)


def of_drafts(state: State, slot: int, request: Running) -> Iterator[Wrong]:
    """Return what is asked of drafts in flight: steps before they are settled, though known, and rejections."""
    own = [flight for step in state.flights for flight in step if flight.slot == slot]
    if not own:
        return
    yield True, lambda: request.added.drafts == own[-1].drafts
    said = transitions.append_output(state, slot, (0,) * (request.written - request.computed))
    if not own[0].drafts or not isinstance(said, Done):
        return
    begun = flights.begin(said.state)
    if isinstance(begun, Done) and recurrent(state.config) and request.written < state.config.max_model_len:
        wrong = begun.state
        yield Reason.DRAFTS_IN_FLIGHT, lambda: transitions.grow(wrong, slot, request.written, Step(1), LRU)
    if any(flight.slot == slot for flight in state.flights[0]):
        rejected = ((slot, own[0].drafts),)
        done = flights.settle(said.state, rejected, LRU)
        yield True, lambda: isinstance(done, Done) and law_counts_are_ordered(done.state)


def of_choices(state: State, slot: int, request: Running) -> Iterator[Wrong]:
    """Return steps and releases by choices that are not open."""
    lossy = replace(LRU, order=lambda batch: LRU.order(batch)[1:])
    if not request.added.loading and not any(flight.slot == slot for step in state.flights for flight in step):
        yield Reason.ILLEGAL_CHOICE, lambda: transitions.release(state, slot, lossy)
    end = request.settled if state.config.added.overlaps else request.written
    if isinstance(done := transitions.trim(state, slot, end, LRU), Done) and any(done.nulled):
        yield Reason.ILLEGAL_CHOICE, lambda: transitions.trim(state, slot, end, lossy)
    elif isinstance(done, Done):
        yield None, lambda: transitions.trim(state, slot, end, lossy)  # nothing is released: there is nothing to lose
    step, computed = Step(1), computed_of(state, slot)
    if isinstance(done := transitions.grow(state, slot, computed, step, LRU), Done):
        wrong = Reason.ILLEGAL_CHOICE if any(done.nulled) else None
        yield wrong, lambda: transitions.grow(state, slot, computed, step, lossy)
    if isinstance(done, Done) and any(map(any, done.new)):
        for illegal in (twice(LRU), greedy(LRU), null_instead(LRU)):
            yield Reason.ILLEGAL_CHOICE, lambda illegal=illegal: transitions.grow(state, slot, computed, step, illegal)  # type: ignore[misc]


def twice(policy: Choice) -> Choice:
    return replace(policy, take=lambda queue, count: policy.take(queue, count) + queue[:1])


def greedy(policy: Choice) -> Choice:
    return replace(policy, take=lambda queue, count: policy.take(queue, count)[:-1] + (queue[0],) * 2)


def null_instead(policy: Choice) -> Choice:
    return replace(policy, take=lambda queue, count: (NULL,) * count)


def of_all(state: State) -> Iterator[Wrong]:
    """Return the wrong calls about no request, or several."""
    if isinstance(begun := flights.begin(state), Done):
        yield True, lambda: begun.state.flights == (*state.flights, *([()] if state.config.added.overlaps else []))
    if not state.flights:
        yield Reason.NO_STEP, lambda: flights.settle(state, (), LRU)
    else:
        yield Reason.NOT_REJECTED, lambda: flights.settle(state, ((len(state.requests), 0),), LRU)
    if any(any(map(any, fence.tables)) for fence in state.fences if fence.step == 0):
        yield Reason.ILLEGAL_CHOICE, lambda: flights.settle(state, (), replace(LRU, order=lambda _: ()))
    for flight in state.flights[0] if state.flights else ():
        if flight.slot is not None:
            yield None, lambda slot=flight.slot: flights.settle(state, ((slot, 0),), LRU)  # type: ignore[misc]
    for content in {content for _, content in state.keys}:
        holders = holding(state, content)
        chosen = recorded((), holders[-1:], LRU)
        yield True, lambda chosen=chosen, holders=holders: chosen.serve(holders) == holders[-1]  # type: ignore[misc]
    running = [slot for slot, request in enumerate(state.requests) if isinstance(request, Running)]
    asks = tuple((slot, computed_of(state, slot), Step(1)) for slot in running[:1])
    if asks:
        yield Reason.REPEATED, lambda: transitions.grow_each(state, asks * 2, LRU)
        yield Reason.NO_TOKENS, lambda: transitions.grow_each(state, (*asks[1:], (*asks[0][:2], Step(0))), LRU)
    if state.copies:
        lossy = replace(LRU, order=lambda batch: LRU.order(batch)[1:])
        yield Reason.ILLEGAL_CHOICE, lambda: forks.take_copies(state, lossy)

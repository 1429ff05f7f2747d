"""What an engine may do next: the actions that a scope allows in a state."""

from collections.abc import Iterator
from itertools import product

from blockwright_spec.manager.hits import found, sound
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import (
    Absent,
    Hit,
    Running,
    State,
    Waiting,
    certain,
    draft_states,
    in_flight,
    is_loading,
    recurrent,
)
from blockwright_spec.reads import Prefix

from .actions import (
    Action,
    Admit,
    AdmitHeld,
    Append,
    Find,
    FinishLoad,
    Fork,
    Grow,
    GrowEach,
    LateHit,
    Preempt,
    Publish,
    Release,
    Reset,
    Settle,
    Start,
    TakeCopies,
    Trim,
    WrongHit,
    WrongStep,
    computed_of,
)
from .scopes import Scope


def enabled(scope: Scope, state: State) -> list[Action]:
    """Give every action the scope allows in a state; of several absent requests, which are alike, only the first."""
    actions: list[Action] = []
    absent_seen = False  # of absent requests, one that something is still loaded for differs from the others
    for slot, request in enumerate(state.requests):
        match request:
            case Running():
                actions += of_running(scope, state, slot, request)
            case Waiting():
                actions += of_waiting(scope, state, slot, request)
            case Absent() if not absent_seen or is_loading(state, slot):
                absent_seen = absent_seen or not is_loading(state, slot)
                actions += of_absent(scope, state, slot)
            case Absent():
                pass
    if "batch" in scope.calls:
        actions += of_all(scope, state)
    if "reset" in scope.calls:
        actions.append(Reset())
    if "load" in scope.calls:
        actions += loads(scope, state)
    if "fork" in scope.calls:
        actions += forks(scope, state)
    if "start" in scope.calls:
        actions.append(Start())
    if scope.in_flight or (state.config.overlaps and "misuse" in scope.calls):
        actions += in_time(scope, state)
    return actions


def forks(scope: Scope, state: State) -> Iterator[Action]:
    """Give the forks of running requests to one that is not there, and the taking of copies."""
    absent = next((slot for slot, request in enumerate(state.requests) if isinstance(request, Absent)), None)
    for slot, request in enumerate(state.requests):
        if absent is not None and isinstance(request, Running):
            yield Fork(slot, absent, request.prefix)
            if "misuse" in scope.calls:
                extra, tokens = request.prefix
                yield Fork(slot, absent, (extra, (*tokens[:-1], 1 - tokens[-1])))
                yield Fork(slot, slot, request.prefix)
        elif isinstance(request, Absent) and "misuse" in scope.calls:
            yield Fork(slot, (slot + 1) % len(state.requests), (0, (0,)))
    if state.copies:
        yield TakeCopies()


def in_time(scope: Scope, state: State) -> Iterator[Action]:
    """Give the starts and ends of steps, with every number of rejected drafts."""
    if len(state.flights) < scope.in_flight:
        yield Start()
    if state.flights:
        drafted = [(flight.slot, flight.drafts) for flight in state.flights[0] if flight.slot is not None]
        for counts in product(*(range(drafts + 1) for _, drafts in drafted)):
            pairs = zip(drafted, counts, strict=True)
            yield Settle(tuple((slot, count) for (slot, _), count in pairs if count))
    if "misuse" in scope.calls:
        yield from wrong_settlements(state)


def wrong_settlements(state: State) -> Iterator[Action]:
    """Give ends of steps that are not in flight, or that reject what was not drafted."""
    if not state.flights:
        yield Settle()
    else:
        drafted = {flight.slot: flight.drafts for flight in state.flights[0]}
        yield Settle(((0, drafted.get(0, 0) + 1),))
        yield Settle(((0, -1),))


def loads(scope: Scope, state: State) -> Iterator[Action]:
    """Give the ends of the loads on their way: all tokens came, some, or none."""
    for slot, request in enumerate(state.requests):
        if not is_loading(state, slot):
            if "misuse" in scope.calls:
                yield FinishLoad(slot, 0)
        elif isinstance(request, Running) and request.loading:
            for count in range(request.loading + 1 + ("misuse" in scope.calls)):
                yield FinishLoad(slot, count)
        else:
            yield FinishLoad(slot, 0)


def chunks(scope: Scope, remaining: int) -> range:
    """Give the numbers of tokens that a step may compute out of those remaining."""
    return range(1 if "chunks" in scope.calls else remaining, remaining + 1)


def of_absent(scope: Scope, state: State, slot: int) -> Iterator[Action]:
    """Give what can be done to a request that is not there."""
    for prefix in scope.prompts:
        hit = found(state, prefix, LRU) if state.config.caching else Hit()
        yield from admissions(scope, state, slot, prefix, hit)
        if "hold" in scope.calls:
            yield Find(slot, prefix)
        if "misuse" in scope.calls:
            yield from wrong_hits(scope, state, slot, prefix, hit)
    if "misuse" in scope.calls:
        yield Release(slot)
        yield WrongStep(slot, scope.prompts[-1], 1, 1)
        yield Admit(slot, scope.prompts[0], 0, 0, False, False)
        yield Admit(slot, scope.prompts[-1], -1, 0, False, False)


def admissions(scope: Scope, state: State, slot: int, prefix: Prefix, hit: Hit) -> Iterator[Action]:
    """Give the ways to admit a request that a lookup finds `hit` for."""
    length, encoder = len(prefix[1]), scope.encoder
    if is_idle(scope, state):
        return
    for new in chunks(scope, length - hit.length):
        yield Admit(slot, prefix, new, encoder=encoder, planned="plan" in scope.calls)
        if "whole" in scope.calls:
            yield Admit(slot, prefix, new, encoder=encoder, whole=True, planned="plan" in scope.calls)
            yield Admit(slot, prefix, new, encoder=encoder, reserve=1, planned="plan" in scope.calls)
    if "load" in scope.calls and not is_loading(state, slot):
        for external in range(1, length - hit.length):
            yield Admit(slot, prefix, 0, external=external, encoder=encoder)
    whole = length - hit.length
    for ahead in scope.lookaheads:
        if ahead:
            yield Admit(slot, prefix, whole, ahead)
    if "later" in scope.calls:
        yield Admit(slot, prefix, whole, 0, True)
    if "adopt" in scope.calls and hit.length:
        yield Admit(slot, prefix, 0)
    if "unasked" in scope.calls:
        yield Admit(slot, prefix, length, 0, False, False)


def is_idle(scope: Scope, state: State) -> bool:
    """Tell whether no step has been started that slots could be given in."""
    return state.config.overlaps and not state.flights and "misuse" not in scope.calls


def wrong_hits(scope: Scope, state: State, slot: int, prefix: Prefix, hit: Hit) -> Iterator[Action]:
    """Give hits that are not this request's: of another length, or of another prefix."""
    if hit.length:
        yield WrongHit(slot, prefix, prefix, hit.length - 1)
        if hit.length + 1 < len(prefix[1]):
            yield WrongHit(slot, prefix, prefix, hit.length + 1)
    for other in scope.prompts:
        if other != prefix and len(other[1]) <= len(prefix[1]):
            foreign = found(state, other, LRU) if state.config.caching else Hit()
            if foreign.length and not sound(state, prefix, foreign):
                yield WrongHit(slot, prefix, other, foreign.length)
                break


def of_waiting(scope: Scope, state: State, slot: int, request: Waiting) -> Iterator[Action]:
    """Give what can be done to a request that waits."""
    if "hold" in scope.calls:
        yield AdmitHeld(slot, len(request.prefix[1]) - request.hit.length)
        yield Find(slot, request.prefix)
    else:
        hit = found(state, request.prefix, LRU) if state.config.caching else Hit()
        yield from admissions(scope, state, slot, request.prefix, hit)
    yield Release(slot)


def of_running(scope: Scope, state: State, slot: int, request: Running) -> Iterator[Action]:
    """Give what can be done to a request that holds a block table."""
    yield from steps(scope, state, slot, request)
    yield from outputs(scope, slot, request)
    yield Release(slot)
    if "trim" in scope.calls:
        yield from trims(scope, slot, request)
    if "preempt" in scope.calls:
        yield Preempt(slot)
    if "later" in scope.calls:
        yield from publications(scope, state, slot, request)
    if "misuse" in scope.calls:
        yield from wrong_steps(state, slot, request)


def trims(scope: Scope, slot: int, request: Running) -> Iterator[Action]:
    """Give the calls that trim: at all that is computed, at known drafts that are said to hold only now, or unknown."""
    most = min(request.written, len(request.prefix[1]))
    yield Trim(slot, request.computed)
    if request.computed < most:
        yield Trim(slot, most)
    if "misuse" in scope.calls:
        yield Trim(slot, -1)
        if most < request.written:
            yield Trim(slot, request.written)


def publications(scope: Scope, state: State, slot: int, request: Running) -> Iterator[Action]:
    """Give the calls that publish: all that is computed, a block less, and known drafts that are said to hold only now.

    That they cannot be taken back afterwards is seen where wrong steps are made.
    """
    size, most = state.config.groups[0].block_size, min(request.written, len(request.prefix[1]))
    yield Publish(slot, request.computed)
    if request.computed > size:
        yield Publish(slot, (request.computed - 1) // size * size)
    if request.computed < most:
        yield Publish(slot, most)
    if "misuse" in scope.calls:
        yield Publish(slot, most + 1)
        yield Publish(slot, -1)


def steps(scope: Scope, state: State, slot: int, request: Running) -> Iterator[Action]:
    """Give the steps of a running request: its remaining tokens in chunks, drafts, lookahead, publication put off."""
    remaining = len(request.prefix[1]) - request.computed
    if request.loading or is_idle(scope, state):
        return
    if state.config.overlaps:
        yield from overlapped(scope, state, slot, request)
    elif remaining:
        for new in chunks(scope, remaining):
            yield Grow(slot, new, planned="plan" in scope.calls)
        for ahead in scope.lookaheads:
            if ahead:
                yield Grow(slot, remaining, ahead)
        for drafts in range(1, scope.drafts + 1):
            if request.computed + remaining + drafts <= state.config.max_model_len:
                yield from drafted(state, slot, remaining, drafts)
        if "later" in scope.calls:
            yield Grow(slot, remaining, 0, True)


def drafted(state: State, slot: int, remaining: int, drafts: int) -> Iterator[Action]:
    """Give a step that carries drafts, which need only be declared where a recurrent layer has to keep their states."""
    most = draft_states(state.config)
    if most is None:
        yield Grow(slot, remaining + drafts)
    if most is None or drafts <= most:
        yield Grow(slot, remaining + drafts, 0, False, drafts)


def overlapped(scope: Scope, state: State, slot: int, request: Running) -> Iterator[Action]:
    """Give the steps of a request that may have others in flight: known tokens, or the one that is not known yet."""
    if not wanted(state, slot, request) and "misuse" not in scope.calls:
        return
    remaining = max(1, len(request.prefix[1]) - request.written)
    most = state.config.max_model_len - request.written
    for new in chunks(scope, min(remaining, most)) if most else ():
        yield Grow(slot, new, planned="plan" in scope.calls)
    for drafts in range(1, scope.drafts + 1):
        if remaining + drafts <= most:
            yield Grow(slot, remaining + drafts, 0, False, drafts)
    for ahead in scope.lookaheads:
        if ahead and remaining <= most:
            yield Grow(slot, remaining, ahead)


def outputs(scope: Scope, slot: int, request: Running) -> Iterator[Action]:
    """Give the tokens that the model may put out once all before are computed, accepted drafts among them."""
    length = len(request.prefix[1])
    if scope.in_flight:
        if length < min(request.settled + 1, scope.max_tokens):
            for token in scope.outputs:
                yield Append(slot, (token,))
    elif request.computed == length:
        for accepted in range(request.written - request.computed + 1):
            if length + accepted < scope.max_tokens:
                for token in scope.outputs:
                    yield Append(slot, (token,) * (accepted + 1), accepted)


def of_all(scope: Scope, state: State) -> Iterator[Action]:
    """Give the batches of one new token for every running request that has one to compute, in both orders."""
    asks = tuple(
        (slot, 1)
        for slot, request in enumerate(state.requests)
        if isinstance(request, Running) and wanted(state, slot, request)
    )
    if len(asks) > 1:
        yield GrowEach(asks)
        yield GrowEach(asks[::-1])
        if "misuse" in scope.calls:
            yield GrowEach((*asks[:-1], (asks[-1][0], 0)))
            yield GrowEach((*asks, asks[0]))


def wanted(state: State, slot: int, request: Running) -> int:
    """Count the tokens that a running request may be given slots for; with steps in flight also one still unknown."""
    if not state.config.overlaps:
        return 0 if request.loading else len(request.prefix[1]) - request.computed
    if request.loading or not state.flights or any(flight.slot == slot for flight in state.flights[-1]):
        return 0
    if recurrent(state.config) and request.drafts and (request.computed < request.written or in_flight(state, slot)):
        return 0
    return min(max(1, len(request.prefix[1]) - request.written), state.config.max_model_len - request.written)


def wrong_steps(state: State, slot: int, request: Running) -> Iterator[Action]:
    """Give steps with wrong counts."""
    config, prefix, computed = state.config, request.prefix, computed_of(state, slot)
    if computed:
        yield WrongStep(slot, prefix, computed - 1, 1)
    if certain(request) < computed - 1:
        yield WrongStep(slot, prefix, certain(request), 1)
    if computed < request.written:  # known drafts are said to hold only now, or all of them though they are not known
        known = min(request.written, len(prefix[1]))
        yield WrongStep(slot, prefix, known if computed < known else request.written, 1)
    if config.overlaps or recurrent(config):
        yield WrongStep(slot, prefix, computed, 1, 0, 1)
        yield WrongStep(slot, prefix, computed, 2, 0, 1)
        yield WrongStep(slot, prefix, computed, 0, 0, 0, 1)
        yield WrongStep(slot, prefix, computed, 1, 0, 0, 0, 1)
    yield WrongStep(slot, prefix, computed, 0)
    yield WrongStep(slot, prefix, computed, -1)
    yield WrongStep(slot, prefix, computed, config.max_model_len - computed + 1)
    if request.written < min(config.max_model_len, len(prefix[1])):
        yield WrongStep(slot, prefix, request.written + 1, 1)
    if computed < config.max_model_len:
        yield WrongStep(slot, prefix, computed, 1, -1)
        if recurrent(config):
            yield WrongStep(slot, prefix, computed, 1, 9)
            yield WrongStep(slot, prefix, computed, len(prefix[1]) - computed + 2)
    hit = found(state, prefix, LRU) if config.caching else Hit()
    if hit.length:
        yield LateHit(slot, prefix)

"""What actions have in common, on both sides: requests that are sent, looked up, given slots."""

from typing import Any, NamedTuple

from blockwright_spec.manager import transitions
from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.facts import in_flight, recurrent
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Fits, Plan, Publication, Reason, Refusal
from blockwright_spec.manager.resizing import waits_for
from blockwright_spec.manager.state import Absent, Hit, Running, State, Waiting
from blockwright_spec.reads import Mamba, Prefix

from .adapter import Found, ManagerAdapter, Planned, Served, Tables
from .outcome import ManagerOutcome
from .scopes import Scope


class Reply(NamedTuple):
    refused: bool = False
    """It said "not now": None, or False for a reset."""
    error: Exception | None = None
    hit: Found | None = None
    served: tuple[Served, ...] = ()


OTHER = "other"
"""The name of a request made only for its lookup."""


def name_of(slot: int) -> str:
    return f"r{slot}"


def names_of(state: State) -> tuple[str, ...]:
    return tuple([name_of(slot) for slot in range(len(state.requests))])


# ---- the specification's side


def settled(state: State, outcome: Done | Refusal, hit: Hit | None = None) -> ManagerOutcome:
    if isinstance(outcome, Refusal):
        return ManagerOutcome(state, (), outcome, hit)
    return ManagerOutcome(outcome.state, ((state, outcome),), None, hit)


def step_of(new: int, lookahead: int = 0, later: bool = False, whole: bool = False, **more: int) -> Step:
    publication = Publication.LATER if later else Publication.NOW
    return Step(new, publication, whole, lookahead=lookahead, **more)


def sent(state: State, slot: int, prefix: Prefix) -> State:
    if not isinstance(state.requests[slot], Absent):
        return state
    outcome = transitions.arrive(state, slot, prefix)
    assert isinstance(outcome, Done)
    return outcome.state


def looked_up(state: State, slot: int, choice: Choice, most: int | None = None) -> tuple[State, Hit]:
    outcome = transitions.find(state, slot, choice, most)
    assert isinstance(outcome, Done), outcome
    request = outcome.state.requests[slot]
    assert isinstance(request, Waiting)
    return outcome.state, request.hit


LAST: list[Any] = [None, {}]
"""The last state in which prompts were looked up, and the hits: listing the allowed actions asks for every prompt."""


def hit_of(state: State, prefix: Prefix) -> Hit:
    if not state.config.caching:
        return Hit()
    if LAST[0] is not state:
        LAST[:] = state, {}
    hits: dict[Prefix, Hit] = LAST[1]
    if prefix not in hits:
        hits[prefix] = found(state, prefix, LRU)
    return hits[prefix]


def running(state: State, slot: int) -> Running:
    request = state.requests[slot]
    assert isinstance(request, Running)
    return request


def computed_of(state: State, slot: int) -> int:
    """Return the engine's count of a running request; with steps in flight, their tokens are included."""
    request = running(state, slot)
    return request.written if state.config.overlaps else request.computed


def wanted(state: State, slot: int, request: Running) -> int:
    """Count the tokens that a running request may be given slots for; with steps in flight also one still unknown."""
    if not state.config.overlaps:
        return 0 if request.coming else len(request.prefix[1]) - request.computed
    if request.coming or not state.flights or any(flight.slot == slot for flight in state.flights[-1]):
        return 0
    if recurrent(state.config) and request.uncertain and (request.computed < request.written or in_flight(state, slot)):
        return 0
    return min(max(1, len(request.prefix[1]) - request.written), state.config.max_model_len - request.written)


def chunks(scope: Scope, remaining: int) -> range:
    return range(1 if "chunks" in scope.calls else remaining, remaining + 1)


def places(scope: Scope, state: State, begin: int, new: int) -> tuple[int, ...]:
    """Return the places of a checkpoint in a step of `new` tokens: 0 for none, the right one if any, and wrong ones."""
    if "checkpoint" not in scope.calls:
        return (0,)
    size = max(each.block_size for each in state.config.groups if isinstance(each.kind, Mamba))
    place = (begin + new - 1) // size * size
    wrong = (begin + new, place - 1, place - size) if "misuse" in scope.calls else ()
    right = (place,) if place >= begin + size else ()
    return (0, *sorted({*right, *wrong} - {0}))


def is_idle(scope: Scope, state: State) -> bool:
    """Return whether no step has been started that slots could be given in."""
    return state.config.overlaps and not state.flights and not is_untimely(scope)


def is_untimely(scope: Scope) -> bool:
    return "misuse" in scope.calls and "odd" not in scope.calls


def absent(state: State) -> int | None:
    return next((slot for slot, request in enumerate(state.requests) if isinstance(request, Absent)), None)


# ---- the manager's side


def named(adapter: ManagerAdapter, state: State, slot: int, prefix: Prefix) -> str:
    """Return the name of the request in a slot, which is sent if it is not there."""
    if isinstance(state.requests[slot], Absent):
        adapter.send(name_of(slot), prefix)
    return name_of(slot)


def allocate(
    adapter: ManagerAdapter,
    name: str,
    computed: int,
    step: Step,
    hit: Found | None = None,
    hit_of: str | None = None,
    plan: Plan | None = None,
) -> Reply:
    """Allocate slots for one request; where the specification's own plan is given, by planning first and committing."""
    length = hit.length if hit else 0
    try:
        if plan is not None:
            return committed(adapter, name, adapter.plan(name, computed, step, length, hit_of), plan, hit)
        given = adapter.allocate(name, computed, step, length, hit_of)
    except adapter.errors as error:
        return Reply(error=error, hit=hit)
    return Reply(given is None, None, hit, () if given is None else (told(adapter, given),))


def told(adapter: ManagerAdapter, new: Tables) -> Served:
    """Return the answer of a call for slots, with what it says to have changed besides, if it does."""
    return Served(new, *getattr(adapter, "changed", ()))


def committed(adapter: ManagerAdapter, name: str, planned: Planned, plan: Plan, hit: Found | None) -> Reply:
    """Commit a manager's plan if it fits; one that is not the specification's is an error (PLAN-1)."""
    if isinstance(plan, Fits):
        wanted = Planned(plan.demand, by_group=plan.by_group)
    elif plan.reason is Reason.NO_FREE_BLOCKS:
        wanted = Planned(None, plan.missing, None if planned.waiting is None else plan.waiting, plan.by_group)
    else:
        wanted = Planned()
    if planned.by_group is None:
        wanted = wanted._replace(by_group=None)
    if planned != wanted:
        raise AssertionError(f"PLAN-1: expected {wanted}, found {planned}")
    if planned.demand is None:
        return Reply(True, None, hit)
    return Reply(False, None, hit, (told(adapter, adapter.commit(name)),))


def ends_of(most: int) -> tuple[int, ...]:
    """Return the numbers of blocks that a pool is given: about half of those that it has memory for, one less, all."""
    return tuple(sorted({most // 2 + 1, most - 1, most}))


def waits_told(state: State) -> tuple[int, tuple[str, ...]]:
    """Return how many blocks beyond the end are held, and the names of the requests that hold some."""
    waits = waits_for(state)
    return len(waits), tuple([name_of(slot) for slot in sorted(set().union(*waits.values()))])

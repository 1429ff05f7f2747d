"""The actions of an engine, and which of them a scope allows in a state.

Each action is one public call, or a short sequence that an engine makes in one go (make a request, look it up, admit
it). It names requests by slot, and blocks not at all. One class for each defines when it is allowed, its meaning, its
calls on a manager, and its line in a counterexample.
"""

from collections.abc import Iterator
from typing import Any

from blockwright_spec.manager.choices import Choice
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.metrics import Call
from blockwright_spec.manager.state import Absent, Running, State, is_loading
from blockwright_spec.reads import Prefix

from . import arrivals, running, steps, wrong
from .adapter import ManagerAdapter
from .arrivals import Admit, AdmitHeld, Preempt, Release
from .outcome import ManagerOutcome
from .parts import Reply
from .scopes import Scope
from .steps import FinishLoad

RUNNING: tuple[Any, ...] = (
    *(running.Grow, running.Append, Release, running.Trim, Preempt, running.Publish),
    *(wrong.WrongStep, wrong.LateHit, steps.Retain, steps.ReleasePrefix),
)
"""What may be done with a request that holds a block table, in the order in which it is tried."""
WAITING: tuple[Any, ...] = (AdmitHeld, arrivals.Find, Admit, Release)
"""With one that waits."""
PROMPTED: tuple[Any, ...] = (Admit, arrivals.Find, wrong.WrongHit)
"""With one that is not there, for each prompt that it may have."""
UNSENT: tuple[Any, ...] = (Release, wrong.WrongStep, Admit)
"""With one that is not there, whatever its prompt."""
WHOLE: tuple[Any, ...] = (
    *(running.GrowEach, steps.Reset, steps.Forget, FinishLoad, steps.Fork, steps.TakeCopies),
    *(steps.Start, steps.Settle, steps.Tick, steps.Hold, steps.Take, steps.LetGo),
)
"""With the manager as a whole."""

ACTIONS: tuple[type[Any], ...] = tuple(dict.fromkeys((*RUNNING, *WAITING, *PROMPTED, *UNSENT, *WHOLE)))


def enabled(scope: Scope, state: State) -> Iterator[Any]:
    """Yield every action the scope allows in a state; of several absent requests, which are alike, only the first."""
    absent_seen = False  # of absent requests, one that something is still loaded for differs from the others
    for slot, request in enumerate(state.requests):
        if isinstance(request, Running):
            yield from of_running(scope, state, slot, request.prefix)
        elif not isinstance(request, Absent):
            for each in WAITING:
                yield from each.allowed(scope, state, slot, request.prefix)
        elif not absent_seen or is_loading(state, slot):
            absent_seen = absent_seen or not is_loading(state, slot)
            for prefix in scope.prompts:
                for each in PROMPTED:
                    yield from each.allowed(scope, state, slot, prefix)
            for each in UNSENT:
                yield from each.allowed(scope, state, slot, None)
    for each in WHOLE:
        yield from each.allowed(scope, state)


def of_running(scope: Scope, state: State, slot: int, prefix: Prefix) -> Iterator[Any]:
    for each in RUNNING:
        yield from each.allowed(scope, state, slot, prefix)


def meaning(state: State, action: Any, choice: Choice = LRU) -> ManagerOutcome:
    outcome: ManagerOutcome = action.meaning(state, choice)
    return outcome


def call_of(action: Any) -> Call | None:
    match action:
        case Admit() | AdmitHeld() | Release():
            return Call(action.slot)
        case FinishLoad():
            return Call(action.slot, action.came)
        case Preempt():
            return Call(action.slot, 0, True)
    return None


def perform(adapter: ManagerAdapter, action: Any, state: State) -> Reply:
    try:
        reply: Reply | None = action.perform(adapter, state)
    except adapter.errors as error:
        return Reply(error=error)
    return reply or Reply()

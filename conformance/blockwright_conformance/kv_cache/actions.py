"""The actions of an engine, and which of them a scope allows in a state.

Each action is one public call, or a short sequence that an engine makes in one go (make a request, look it up, admit
it). It names requests by slot, and blocks not at all. A row of a table (`calls`) or a class of its own defines when it
is allowed, its meaning, and its calls on a manager.
"""

from collections.abc import Iterator
from typing import Any

from blockwright_spec.manager.facts import is_coming
from blockwright_spec.manager.metrics import Call
from blockwright_spec.manager.state import Absent, Running, State

from . import requests
from .adapter import ManagerAdapter
from .calls import KINDS
from .calls import Call as TableCall
from .parts import Reply
from .requests import Admit, AdmitHeld
from .scopes import Scope

RUNNING: tuple[Any, ...] = (
    *(requests.Grow, requests.Append, KINDS["Release"], KINDS["Trim"], KINDS["Preempt"], KINDS["Publish"]),
    *(requests.WrongStep, requests.LateHit, KINDS["Retain"], KINDS["ReleasePrefix"], KINDS["Abort"], KINDS["CountOn"]),
    *(KINDS["Shorten"], KINDS["Fold"]),
)
"""The actions on a running request, in the order in which they are tried, then those on others and on the manager."""
WAITING: tuple[Any, ...] = (AdmitHeld, requests.Find, requests.Touch, Admit, KINDS["Release"])
PROMPTED: tuple[Any, ...] = (Admit, requests.Find, requests.Touch, requests.WrongHit)
UNSENT: tuple[Any, ...] = (KINDS["Release"], requests.WrongStep, Admit)
WHOLE: tuple[Any, ...] = (requests.GrowEach, *(each for each in KINDS.values() if each not in RUNNING))

NAMES: tuple[str, ...] = tuple(
    dict.fromkeys(
        each.__name__ if isinstance(each, type) else each.name
        for each in (*RUNNING, *WAITING, *PROMPTED, *UNSENT, *WHOLE)
    )
)


def enabled(scope: Scope, state: State) -> Iterator[Any]:
    """Yield every action the scope allows in a state; of several absent requests, which are alike, only the first."""
    absent_seen = False  # of absent requests, one that something is still loaded for differs from the others
    for slot, request in enumerate(state.requests):
        if not isinstance(request, Absent):
            for each in RUNNING if isinstance(request, Running) else WAITING:
                yield from each.allowed(scope, state, slot, request.prefix)
        elif not absent_seen or is_coming(state, slot):
            absent_seen = absent_seen or not is_coming(state, slot)
            for prefix in scope.prompts:
                for each in PROMPTED:
                    yield from each.allowed(scope, state, slot, prefix)
            for each in UNSENT:
                yield from each.allowed(scope, state, slot, None)
    for each in WHOLE:
        yield from each.allowed(scope, state)


def call_of(action: Any) -> Call | None:
    match action:
        case Admit() | AdmitHeld():
            return Call(action.slot)
        case TableCall("Release", (slot,)):
            return Call(slot)
        case TableCall("FinishLoad", (slot, came)):
            return Call(slot, came)
        case TableCall("Preempt", (slot,)):
            return Call(slot, 0, True)
        case TableCall("Abort", (slot, _, resumes)):
            return Call(slot, 0, resumes)
    return None


def perform(adapter: ManagerAdapter, action: Any, state: State) -> Reply:
    try:
        reply: Reply | None = action.perform(adapter, state)
    except adapter.errors as error:
        return Reply(error=error)
    return reply or Reply()

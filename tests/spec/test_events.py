"""Property: the shortest telling of every step upholds EV-1 to EV-5 for all listeners, and each law can fail.

How: scopes are explored whole, in which prefixes are evicted, lose their parents and are published again; at every
point a listener joins, and one that hears all. Then a listener's events are altered by hand.
Not covered: what implementations tell (lock-step, in the scopes named "events").
"""

from dataclasses import replace

import pytest

from blockwright_conformance.kv_cache.scopes import EVERY, option
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.events import (
    Cleared,
    Event,
    Listener,
    Queue,
    Removed,
    Stored,
    law_restart_finds_what_stood_there,
    news,
    snapshot,
)
from blockwright_spec.manager.laws import EVENT_LAWS
from blockwright_spec.manager.state import Config, State, initial
from blockwright_spec.reads import Full, Group

SCOPES = [
    each
    for each in EVERY
    if option(each.config, "tells") and each.name.startswith(("full, block 1: events", "sliding 2, block 1"))
]
BOTH, ONE, TWO = (0, (0, (1, 2, 3, 4))), (0, (0, (1, 2))), (0, (1, (1, 2)))
FIRST, SECOND = Stored(ONE, None, False, (1, 2), 0), Stored(BOTH, ONE[1], False, (3, 4), 0)


def broken(state: State, listener: Listener) -> list[str]:
    return [law.id for law in EVENT_LAWS if not law.holds(state, listener)]


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.name)
def test_the_shortest_telling_upholds_the_laws(scope: object) -> None:
    """Depth first along each first way to a state, with one listener for every point of the way."""
    world = KVCacheWorld(scope)  # type: ignore[arg-type]
    seen, orphans = set[bytes](), 0
    todo: list[tuple[State, tuple[Listener, ...]]] = [(world.initial(), (Listener((), ()),))]
    while todo:
        state, listeners = todo.pop()
        if world.digest(state) in seen:
            continue
        seen.add(world.digest(state))
        for action in world.enabled(state):
            after = world.meaning(state, action).state
            reported = news(state, after)
            new = [replace(each, events=each.events + reported) for each in listeners]
            assert [broken(after, each) for each in new if broken(after, each)] == []
            orphans += sum(isinstance(event, Stored) and event.is_orphan for event in reported + snapshot(after))
            todo.append((after, (*new[-8:], Listener(snapshot(after), ()))))
    assert (orphans > 0) == ("sliding" in world.scope.name)


def published() -> State:
    """Block 1 holds two tokens of a prompt, block 2 the next two."""
    state = initial(Config((Group(Full(), 2),), 4, 8), 1)
    return replace(state, keys=((1, ONE), (2, BOTH)), contents=(None, ONE, BOTH, None))


@pytest.mark.parametrize(
    ("law", "events"),
    [
        ("EV-1", (FIRST,)),
        ("EV-1", (FIRST, SECOND, SECOND)),
        ("EV-1", (FIRST, SECOND, Removed(TWO))),
        ("EV-1", (FIRST, SECOND, Cleared())),
        ("EV-3", (SECOND, FIRST)),
        ("EV-3", (FIRST, replace(SECOND, parent=None))),
        ("EV-3", (FIRST, replace(SECOND, is_orphan=True))),
        ("EV-4", (FIRST, replace(SECOND, tokens=(1, 2, 3, 4)))),
        ("EV-5", (FIRST, replace(SECOND, tokens=(3, 3)))),
        ("EV-5", (replace(FIRST, extra=1), SECOND)),
    ],
)
def test_a_law_of_events_can_fail(law: str, events: tuple[Event, ...]) -> None:
    state = published()
    assert broken(state, Listener((), (FIRST, SECOND))) == []
    assert broken(state, Listener(snapshot(state), ())) == []
    assert law in broken(state, Listener((), events))


def test_a_latecomer_knows_the_same() -> None:
    state = published()
    assert broken(state, Listener((FIRST,), (SECOND,))) == []
    assert broken(state, Listener((FIRST,), ())) == ["EV-2"]
    assert broken(state, Listener((FIRST, SECOND, FIRST), ())) == ["EV-2"]
    assert broken(replace(state, contents=(None, ONE, None, None)), Listener((), (FIRST, SECOND))) == ["EV-4"]


@pytest.mark.parametrize(
    ("may", "after", "holds"),
    [
        (True, ((3, None), (2, ONE), (1, BOTH)), True),
        (True, ((3, None), (1, BOTH), (2, ONE)), False),
        (True, ((2, ONE), (3, None), (1, BOTH)), False),
        (True, ((3, None), (2, None), (1, BOTH)), False),
        (True, ((3, None), (2, BOTH), (1, BOTH)), False),
        (True, ((3, TWO), (2, ONE), (1, BOTH)), False),
        (False, ((1, None), (2, None), (3, None)), True),
        (False, ((3, None), (2, ONE), (1, BOTH)), False),
    ],
)
def test_the_law_of_a_restart_can_fail(may: bool, after: Queue, holds: bool) -> None:
    assert law_restart_finds_what_stood_there(((2, ONE), (3, None), (1, BOTH)), may, after) == holds

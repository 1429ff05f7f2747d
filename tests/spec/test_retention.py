"""Property: what a tenant hits beside others is at least what it hits alone in a pool of its floor, whatever others do
and hint (SHARE-2); hits under any hints are at least those of plain LRU in a pool of the guarded blocks (HINT-3).

How: every history of requests served one after another, up to a depth, on the specification's own transitions, together
and apart; states that differ in names only are visited once. Laws of single states and steps are those of the scopes.
Not covered: tenants that run several requests at once, whose duplicates take part of their floors.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from blockwright_conformance.kv_cache.symmetry import Names
from blockwright_spec.hints import Wish
from blockwright_spec.manager import retention
from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import ConfigAdded
from blockwright_spec.manager.hits import found
from blockwright_spec.manager.laws import POLICY_LAWS
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome, Step
from blockwright_spec.manager.retention_laws import (
    alone,
    law_share_is_as_if_alone,
    law_wrong_hints_are_bounded,
)
from blockwright_spec.manager.state import Config, Hit, State, initial
from blockwright_spec.reads import Full, Group, Prefix

LATER = 10_000


def done(outcome: Outcome) -> State:
    assert isinstance(outcome, Done), outcome
    return outcome.state


def served(state: State, prefix: Prefix, wish: Wish = Wish()) -> State:  # noqa: B008
    """Serve one request whole, and say something of it before it ends."""
    state = done(t.arrive(state, 0, prefix))
    hit: Hit = found(state, prefix, LRU)
    outcome = t.admit(state, 0, hit, Step(len(prefix[1]) - hit.length), LRU)
    if not isinstance(outcome, Done):
        return done(t.release(state, 0, LRU))
    state = outcome.state
    if wish.priority and state.config.added.retains:
        state = done(retention.retain(state, 0, wish.tokens, wish.priority, state.now + wish.until))
    if wish.first is not None and state.config.added.retains:
        state = done(retention.release_prefix(state, 0, wish.first))
    return done(t.release(state, 0, LRU))


WISHES = (Wish(), Wish(first=0), Wish(2, 1, LATER))
TOKENS = ((0, 0), (0, 1), (1, 1))


def histories(
    config: Config, floor: int, extras: tuple[int, ...], ours: int, depth: int
) -> Iterator[tuple[State, State]]:
    """Yield every pair of states: together, with all hints of the others; apart, without hints, in a pool of the floor.

    `ours` is the tenant whose hits are compared; it hints only if it is alone.
    """
    names = Names()
    pairs = {b"": (initial(config, 1), alone(config, floor))}
    seen: set[bytes] = set()
    for _ in range(depth):
        after: dict[bytes, tuple[State, State]] = {}
        for together, apart in pairs.values():
            yield together, apart
            for extra, tokens, wish in product(extras, TOKENS, WISHES):
                if extra == ours and len(extras) > 1 and wish != Wish():
                    continue
                prefix = (extra, tokens)
                pair = served(together, prefix, wish), served(apart, prefix) if extra == ours else apart
                name = names.digest(pair[0]) + names.digest(pair[1])
                if name not in seen:
                    seen.add(name)
                    after[name] = pair
        pairs = after


def test_share_is_as_if_alone() -> None:
    """SHARE-2."""
    config = Config((Group(Full(), 1),), 6, 2, added=ConfigAdded(retains=True, floors=((1, 3), (4, 2))))
    for together, apart in histories(config, 3, (1, 4), 1, 5):
        assert all(law_share_is_as_if_alone(together, apart, (1, (*tokens, 0))) for tokens in TOKENS)
        assert [law.id for law in POLICY_LAWS if not law.holds(together)] == []


@pytest.mark.parametrize("guard", [2, 3])
def test_wrong_hints_are_bounded(guard: int) -> None:
    """HINT-3."""
    config = Config((Group(Full(), 1),), 5, 2, added=ConfigAdded(retains=True, guard=guard))
    for hinted, plain in histories(config, guard, (0,), 0, 5):
        assert all(law_wrong_hints_are_bounded(hinted, plain, (0, (*tokens, 0))) for tokens in TOKENS)


def test_without_a_guard_wrong_hints_do_harm() -> None:
    """So the bound is the guard's doing."""
    config = Config((Group(Full(), 1),), 5, 2, added=ConfigAdded(retains=True))
    pairs = histories(config, 4, (0,), 0, 5)
    assert any(not law_wrong_hints_are_bounded(*pair, (0, (*tokens, 0))) for pair in pairs for tokens in TOKENS)


def test_a_share_is_not_left_without_floors() -> None:
    """So SHARE-2 is the floors' doing."""
    config = Config((Group(Full(), 1),), 6, 2, added=ConfigAdded(retains=True, floors=()))
    pairs = histories(replace(config), 3, (1, 4), 1, 5)
    assert any(not law_share_is_as_if_alone(*pair, (1, (*tokens, 0))) for pair in pairs for tokens in TOKENS)

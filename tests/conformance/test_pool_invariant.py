"""Property: an invariant of the pool holds for any number of blocks, and that pool is the specification's.

How: z3 shows that a new pool has every clause and that every transition keeps it; each guard and each effect in turn is
left out, and then a clause must be broken in a pool of four blocks, with numbers. Steps of the specification are cut
into transitions that satisfy the very same formulas, whatever is known of the state before; a step that does something
else is noticed. Laws of model and specification agree on 6,000 small states, sound or not.
Not covered: that the implementation's pool does what the specification's does (lock-step).
"""

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("z3")

from blockwright_conformance.gates import Profile
from blockwright_conformance.kv_cache.scopes import PROFILES
from blockwright_lab.proofs import gate as proofs
from blockwright_lab.proofs import pool_invariant
from blockwright_lab.proofs.gate import tied
from blockwright_lab.proofs.pool_invariant import Endless, Few, argument, fault, pool, statements
from blockwright_lab.proofs.pool_model import TRANSITIONS
from blockwright_lab.proofs.pool_tie import LAWS, Noting, differing_laws, faults
from blockwright_spec.manager.state import State

MILLISECONDS = 60_000


def clauses() -> list[tuple[str, str]]:
    """Each transition, and the name of one of its guards or effects."""
    q = Endless()
    before, after = pool(q, "before"), pool(q, "after")
    return [
        (name, clause)
        for name, each in TRANSITIONS.items()
        for outcome in (argument(q, name),)
        for clause in {**each.guards(q, before, outcome), **each.effects(q, before, after, outcome)}
    ]


def test_the_invariant_is_kept() -> None:
    said = statements()
    assert {clause for _, clause in said} >= {*LAWS, "STEP-2"}
    assert {name for name, _ in said} == {"a new pool", *TRANSITIONS}
    assert {statement: wrong for statement in said if (wrong := fault(statement, MILLISECONDS))} == {}


@pytest.mark.parametrize(("name", "clause"), clauses())
def test_every_guard_and_effect_is_needed(name: str, clause: str) -> None:
    q = Few()
    weaker = pool_invariant.without(TRANSITIONS[name], clause)
    found = [
        pool_invariant.unproved(assumed, formula, MILLISECONDS)
        for _, assumed, formula in pool_invariant.steps(q, name, weaker)
    ]
    assert [model for model in found if model]


def test_a_weaker_transition_fails_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    weaker = pool_invariant.without(TRANSITIONS["write"], "unpublished")
    monkeypatch.setitem(TRANSITIONS, "write", weaker)
    assert "not so for" in fault(("write", "PUB-1"), MILLISECONDS)


def test_steps_of_the_specification_are_the_pools() -> None:
    row = tied(Profile("pr"), lambda count=1, note="": None)
    assert (row.detail, row.violations) == ("", 0)
    assert row.transitions > 1_000


def test_a_transition_that_never_happens_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(proofs.TIED, "pr", (len(PROFILES["pr"]), 1))
    row = tied(Profile("pr"), lambda count=1, note="": None)
    assert (row.law, row.violations) == ("PROOF-2", 1)
    assert "never seen" in row.detail


def some_step() -> tuple[State, State, list[tuple[str, tuple[int, ...]]]]:
    """A step of the specification that takes a block, with what was chosen."""
    world = Noting(PROFILES["pr"][0])
    start = world.initial()
    for action in world.enabled(start):
        outcome = world.meaning(start, action)
        if outcome.steps and outcome.state.queue != start.queue:
            return start, outcome.state, list(world.events)
    raise AssertionError("no step takes a block")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: replace(state, queue=state.queue[::-1]),
        lambda state: replace(state, queue=state.queue[1:]),
        lambda state: replace(state, contents=(None,) * len(state.contents), keys=state.keys),
        lambda state: replace(state, keys=((state.queue[-1], (0, (0, (1,)))),)),
        lambda state: replace(state, requests=(state.requests[-1],) * len(state.requests)),
    ],
)
def test_another_step_is_noticed(change: object) -> None:
    before, after, events = some_step()
    assert faults(before, after, events, Counter()) == []
    assert callable(change)
    changed = change(after)
    assert changed != after
    assert faults(before, changed, events, Counter())


def test_laws_agree() -> None:
    count, wrong = differing_laws()
    assert count > 6_000 * len(LAWS)
    assert wrong == []

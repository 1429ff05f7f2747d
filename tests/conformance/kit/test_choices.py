"""Property: every legal choice is taken once, and the laws hold under all of them.

How: the outcomes of single steps are counted by hand; a small scope is explored under every choice and must reach all
that the policy reaches, and more.
Not covered: scopes of more than four free blocks.
"""

from blockwright_conformance.kv_cache.actions import Admit, Release, meaning
from blockwright_conformance.kv_cache.scopes import scope
from blockwright_conformance.kv_cache.world import KVCacheWorld, explorer
from blockwright_lab.specification.choices import OpenExplorer, outcomes
from blockwright_spec.manager.state import Config, initial
from blockwright_spec.reads import Full, Group, Prefix, Sliding

PROMPT: Prefix = (0, (1, 2, 3))


def test_taking_two_of_four_blocks_has_twelve_outcomes() -> None:
    state = initial(Config((Group(Full(), 2),), 5, 8), 2)
    queues = [reported.state.queue for reported in outcomes(state, Admit(0, PROMPT, 3))]
    assert len(queues) == 12
    assert {frozenset(queue) for queue in queues} == {
        frozenset(pair) for pair in ((1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4))
    }


def test_releasing_two_candidates_has_two_outcomes() -> None:
    state = meaning(initial(Config((Group(Full(), 1),), 4, 8), 2), Admit(0, (0, (1, 2)), 2)).state
    queues = {reported.state.queue for reported in outcomes(state, Release(0))}
    assert queues == {(3, 2, 1), (3, 1, 2)}


def test_any_duplicate_may_serve() -> None:
    state = initial(Config((Group(Full(), 1),), 4, 8), 3)
    for slot in (0, 1):
        state = meaning(state, Admit(slot, (0, (1,)), 1)).state
    hits = {reported.hit and reported.hit.tables for reported in outcomes(state, Admit(2, (0, (1, 2)), 1))}
    assert hits == {((1,),), ((2,),)}


def test_laws_hold_under_every_choice() -> None:
    small = scope(Sliding(2), 1, "small", 4, 3, "trim preempt")
    alone, every = explorer(small, None), OpenExplorer(KVCacheWorld(small), alone=True)
    assert alone.run().violation is every.run().violation is None
    assert alone.result.states < every.result.states

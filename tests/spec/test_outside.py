"""Property: in which order blocks were held from outside is no part of the state, so that a use changes it for nobody.

How: on the specification's own transitions. The scopes reach each set of holds by its shortest way alone.
"""

from itertools import permutations

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.added import ConfigAdded
from blockwright_spec.manager.in_time import outside
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.outcomes import Done, Outcome
from blockwright_spec.manager.state import Config, State, initial
from blockwright_spec.reads import Full, Group


def done(outcome: Outcome) -> State:
    assert isinstance(outcome, Done), outcome
    return outcome.state


def test_the_order_of_holds_is_no_part_of_the_state() -> None:
    config = Config(groups=(Group(kind=Full(), block_size=1),), num_blocks=4, max_model_len=4, added=ConfigAdded())
    taken = done(outside.take(initial(config, 1), 2, LRU))
    held = set()
    for order in set(permutations(taken.outside + taken.outside[:1])):
        state = taken
        for block in order:
            state = done(outside.hold(state, (block,)))
        held.add(state.outside)
        waits = done(t.arrive(done(outside.let_go(state, order)), 0, (0, (0, 0))))
        assert waits.outside == taken.outside
        assert outside.law_use_reorders_alone(done(t.arrive(state, 0, (0, (0, 0)))))
    assert len(held) == 1

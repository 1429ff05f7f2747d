"""Property: in which order blocks were held from outside is no part of the state, so that a use changes it for nobody.

How: on the specification's own transitions. The scopes reach each set of holds by its shortest way alone.
"""

from itertools import permutations

from tests.spec.test_keeping import done

from blockwright_spec.manager import transitions as t
from blockwright_spec.manager.in_time import outside
from blockwright_spec.manager.lru import LRU
from blockwright_spec.manager.state import Config, initial
from blockwright_spec.reads import Full, Group


def test_the_order_of_holds_is_no_part_of_the_state() -> None:
    config = Config(groups=(Group(kind=Full(), block_size=1),), num_blocks=4, max_model_len=4)
    for order in set(permutations((1, 1, 2))):
        state = done(outside.take(initial(config, 1), 2, LRU))
        for block in order:
            state = done(outside.hold(state, (block,)))
        assert state.pins == (1, 1, 1, 2, 2)
        assert outside.law_use_reorders_alone(done(t.arrive(state, 0, (0, (0, 0)))))

"""Property: lock-step notices every difference: in acceptance, in what a call returns, in any part of the state.

How: answers and observations are altered by hand, one field at a time, and must be named; the adapter of Blockwright
shows what the specification expects; a manager of another policy is followed, and held to what is legal.
Not covered: that the comparison is enough to find faults (known bugs, mutants).
"""

from dataclasses import replace
from typing import Any

import pytest

from blockwright_conformance.checker.explore import Explorer
from blockwright_conformance.checker.lockstep import act
from blockwright_conformance.kv_cache.abstraction import differences, expected
from blockwright_conformance.kv_cache.adapter import Found, Observation, Served
from blockwright_conformance.kv_cache.blockwright import BlockwrightAdapter
from blockwright_conformance.kv_cache.lockstep import compare, misheard, misreported
from blockwright_conformance.kv_cache.outcome import ManagerOutcome, outcome_of
from blockwright_conformance.kv_cache.parts import Reply, names_of
from blockwright_conformance.kv_cache.requests import Admit, WrongStep
from blockwright_conformance.kv_cache.scopes import of_row
from blockwright_conformance.kv_cache.world import KVCacheWorld
from blockwright_spec.manager.demand import Step
from blockwright_spec.manager.events import Events, Listener
from blockwright_spec.manager.outcomes import Done, Reason, Refusal
from blockwright_spec.manager.page import Act
from blockwright_spec.manager.state import Config, State, Table, initial
from blockwright_spec.reads import Full, Group, Prefix, Sliding

PROMPT: Prefix = (0, (1, 2, 3, 4, 5))
CONFIG = Config((Group(Full(), 2),), 8, 12)


BOTH = Config((Group(Full(), 1), Group(Sliding(3), 2)), 20, 12)


WORLD = KVCacheWorld(of_row("full, block 2", "by hand", 8, 12, ""))
"""What is done by hand needs no scope."""


def together(*actions: Any, config: Config = CONFIG) -> tuple[State, BlockwrightAdapter]:
    """A state and a manager after the same actions."""
    state, adapter = initial(config, 2), BlockwrightAdapter(config)
    for action in actions:
        compared = act(WORLD, adapter, state, action)
        assert compared.faults == []
        state = compared.outcome.state
    return state, adapter


ALTERED: dict[str, Any] = {
    "tables": (((1, 2, 4),), None),
    "queue": (5, 4, 6, 7),
    "references": (0, 1, 2, 1, 0, 0, 0, 0),
    "keys": (None, (0, (0, (1, 2))), None, None, None, None, None, None),
    "published": ((1,), None),
    "free": 3,
    "states": (((9,),), None),
    "settled": (5, None),
    "copies": ((0, 1, 4),),
    "outside": (4,),
    "passing": (3,),
    "tips": ((3, 1),),
    "spares": 1,
    "tails": ((2,),),
}


NOT_FIELDS = ("evicted", "listeners", "counted", "told", "kept")  # compared, or followed, in ways of their own


@pytest.mark.parametrize("field", [field for field in Observation._fields if field not in NOT_FIELDS])
def test_every_field_of_the_state_is_compared(field: str) -> None:
    state, adapter = together(Admit(0, PROMPT, Step(5)))
    shown = adapter.observe(names_of(state))._replace(**{field: ALTERED[field]})
    assert [fault.partition(":")[0] for fault in differences(expected(state), shown)] == [field]


def test_the_count_of_the_null_block_and_an_open_order_do_not_matter() -> None:
    state, _ = together(Admit(0, PROMPT, Step(5)))
    wanted = expected(state)
    assert wanted.references is not None
    other = wanted._replace(references=(7, *wanted.references[1:]), queue=(7, 6, 5, 4))
    assert differences(wanted, other, ordered=False) == []
    assert differences(wanted, other) != []


def test_evictions_are_compared() -> None:
    """What is lost is told, but for what the same step publishes again in another block, which may be."""
    content, other = (0, (0, (1, 2))), (0, (0, (3, 4)))
    lost = ((1, content), (2, other))
    empty, state = initial(CONFIG, 2), replace(initial(CONFIG, 2), keys=lost)
    first, second = ((*each, False) for each in lost)
    takes = (Act("take", 1), Act("take", 2))
    step, again = Done(empty, steps=takes), Done(replace(empty, keys=((3, other),)), steps=takes)
    answer = outcome_of(state, (again,))
    assert misreported(answer, (first,)) == misreported(answer, (first, second)) == []
    for wrong in (
        (),
        (second,),
        (second, first),
        (first, (3, other, False)),
        ((4, content, False),),
        ((1, content, True),),
    ):
        assert misreported(answer, wrong)
    in_place = replace(again, state=replace(state, keys=((2, other),)))
    for steps in ((step,), (in_place,), (step, replace(again, steps=()))):
        assert misreported(outcome_of(state, steps), (first,))
        assert misreported(outcome_of(state, steps), (first, second)) == []


def test_what_listeners_know_is_compared() -> None:
    """An adapter of a scope that tells events shows listeners, and one who was told of too little is noticed."""
    config = replace(CONFIG, chapters=(Events(),))
    state = initial(config, 2)
    adapter = BlockwrightAdapter(config)
    shown = adapter.observe(names_of(state))
    assert shown.listeners == (Listener((), ()),)
    assert compare(outcome_of(state, ()), Reply(), adapter, shown) == []
    stored = replace(state, keys=((3, (0, (0, (3, 4)))),))
    assert [fault[:4] for fault in misheard(stored, shown.listeners)] == ["EV-1", "EV-2"]


def faults(answer: ManagerOutcome, **reply: Any) -> list[str]:
    """The differences to an answer of a manager whose state is as expected."""
    adapter = BlockwrightAdapter(CONFIG)
    return compare(replace(answer, state=initial(CONFIG, 2)), Reply(**reply), adapter, adapter.observe(("r0", "r1")))


DONE = Admit(0, PROMPT, Step(5)).meaning(initial(CONFIG, 2))
NOT_NOW = ManagerOutcome(initial(CONFIG, 2), (), Refusal(Reason.NO_FREE_BLOCKS))
WRONG = ManagerOutcome(initial(CONFIG, 2), (), Refusal(Reason.NO_TOKENS))
STALE = ManagerOutcome(initial(CONFIG, 2), (), Refusal(Reason.HIT_STALE))
ERROR = BlockwrightAdapter.errors[0]("wrong")


def test_acceptance_is_compared() -> None:
    served = (Served(((1, 2, 3),)),)
    assert faults(DONE, served=served, hit=Found(0, ())) == []
    assert faults(DONE, refused=True) != []
    assert faults(DONE, error=ERROR) != []
    assert faults(NOT_NOW, refused=True) == []
    assert faults(NOT_NOW, served=served) != []
    assert faults(NOT_NOW, error=ERROR) != []
    assert faults(WRONG, error=ERROR) == []
    assert faults(WRONG, refused=True) != []
    assert faults(WRONG, served=served) != []
    assert faults(STALE, error=BlockwrightAdapter.stale[0]("stale")) == []
    assert faults(STALE, error=ERROR) != []


def test_outputs_are_compared() -> None:
    assert faults(DONE, served=(Served(((1, 2, 4),)),)) != []
    assert faults(DONE, served=(Served(((1, 2, 3),)),), hit=Found(2, ((1,),))) != []
    assert faults(DONE, served=(Served(((1, 2, 3),), ((0,),)),)) != []
    assert faults(DONE, served=(Served(((1, 2, 3),), ((),)),)) == []


def test_a_refusal_that_changes_something_is_noticed() -> None:
    state, adapter = together(Admit(0, PROMPT, Step(5)))
    adapter.manager.block_pool.get_new_blocks(1)
    assert act(WORLD, adapter, state, WrongStep(0, PROMPT, 5, Step(0))).faults


class OtherPolicy(BlockwrightAdapter):
    """A manager that is right but not by our policy: before each step it turns the queue of contentless blocks."""

    follows_policy = False

    def allocate(self, *args: Any, **kwargs: Any) -> tuple[Table, ...] | None:
        pool = self.manager.block_pool
        bare = [block for block in pool.free_block_ids() if pool.block_keys()[block] is None]
        if len(bare) > 1:
            pool.free_blocks(pool.get_new_blocks(len(bare)))
        return super().allocate(*args, **kwargs)


def test_another_policy_is_followed() -> None:
    small = of_row("sliding 2, block 1", "small", 4, 3, "trim preempt")
    assert Explorer(KVCacheWorld(small, OtherPolicy)).run().violation is None


class OtherPolicyClaimed(OtherPolicy):
    follows_policy = True


def test_choices_that_are_not_legal_are_found() -> None:
    small = of_row("sliding 2, block 1", "small", 4, 3, "trim preempt")
    assert Explorer(KVCacheWorld(small, OtherPolicyClaimed)).run().violation is not None
